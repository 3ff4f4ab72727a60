"""Burying: whoever takes a dead supervisor's lock ends its processes and says what became of its job.

It is safe to die in the middle of this: the lock falls free again, and the next one does the same once more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetic._backends.local import liveness, runtime_files
from kinetic._backends.local import queue as local_queue
from kinetic._backends.local.queue import JobRow, Queue, SupervisorRow
from kinetic._backends.local.runtime_files import Paths
from kinetic._runner import processes
from kinetic._runner import processes as runner_processes
from kinetic._runner.supervisor import attempts, verdicts
from kinetic._runner.supervisor.attempts import was_removed
from kinetic._stores import open_store
from kinetic._stores.protocol import Store, put_file
from kinetic._wire import digests, folders, inspection, keys
from kinetic._wire.failpoints import step
from kinetic._wire.task import Task
from kinetic.errors import KineticError

SUPERVISOR_VARIABLE = "KINETIC_SUPERVISOR"  # in the environment of a supervisor and of everything below it
_STARTING_SECONDS = 1.0  # a supervisor is there in 0.1 s; before that, its process need not even be there
_SLOW_START_SECONDS = 60.0  # as long as its process is there, on a machine that is busy
REQUEUES = 2  # a job that ends its supervisor before it begins, three times, is the reason
NO_PAGE = (
    "what was needed to run the job is gone from this machine (its launch page); submit it again"  # if not removed
)
_one_at_a_time = threading.Lock()  # POSIX locks do not tell threads of one process apart


def recover_dead_supervisors(paths: Paths, queue: Queue) -> None:
    """Look at every supervisor's life, and bury those that lost it."""
    known = queue.supervisors()
    names = {supervisor.supervisor for supervisor in known}
    orphans = {row.supervisor for row in queue.look("state IN ('claimed', 'running')")} - names - {None}
    own = os.environ.get(SUPERVISOR_VARIABLE, "")
    for supervisor in [*known, *(SupervisorRow(str(name), "", "busy", 0, 0.0) for name in sorted(map(str, orphans)))]:
        if supervisor.supervisor == own and supervisor.pid == os.getpid():
            continue
        with _one_at_a_time, contextlib.suppress(OSError):  # of one that cannot be looked at now; another look follows
            _look_at(paths, queue, supervisor)


def _look_at(paths: Paths, queue: Queue, supervisor: SupervisorRow) -> None:
    lock = paths.lock(supervisor.supervisor)
    starting = supervisor.state == "starting"
    if not lock.exists():
        age = time.time() - supervisor.since
        is_young = 0 <= age < _STARTING_SECONDS  # below 0 the clock went back, and only its process tells
        if starting and (is_young or (age < _SLOW_START_SECONDS and _marked(supervisor.supervisor))):
            return
        held = liveness.take_lock(lock)  # two observers must not settle the same job at once
    else:
        held = liveness.take_abandoned_lock(lock)
    if held is None:
        _continue_if_stopped(paths, queue, supervisor)
        return
    try:
        step("observer:locked")
        kill_marked(supervisor.supervisor)
        step("observer:ended-processes")
        _settle_all(paths, queue, supervisor)
    finally:
        held.release(remove=True)


def _continue_if_stopped(paths: Paths, queue: Queue, supervisor: SupervisorRow) -> None:
    """Let a supervisor go on that somebody stopped (SIGSTOP), its own job perhaps, where something waits for it.

    Who stops one that is at work may mean it. But an end of the job that nobody notices, a wish to end it and a passed
    deadline are not to wait for that.
    """
    if (
        not supervisor.pid
        or processes.state(supervisor.pid) != "T"
        or not _is_marked(supervisor.pid, supervisor.supervisor)
    ):
        return
    rows = queue.look("supervisor = ? AND state IN ('claimed', 'running')", (supervisor.supervisor,))
    children = runner_processes.children_of(supervisor.pid)
    waits_for_it = not children or any(processes.state(child) == "Z" for child in children)
    if waits_for_it or any(_is_awaited(paths, row) for row in rows):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(supervisor.pid, signal.SIGCONT)


def _is_awaited(paths: Paths, row: JobRow) -> bool:
    """Return whether a job must be ended now."""
    if row.stop:
        return True
    page = runtime_files.read_task(paths, row.job_id)
    limit = page.deadline if page is not None else None
    return limit is not None and row.started is not None and time.time() > row.started + limit


def _settle_all(paths: Paths, queue: Queue, supervisor: SupervisorRow) -> None:
    said = verdicts.last_lines(paths.supervisor_log(supervisor.supervisor))
    if supervisor.state == "starting":
        give_up_on_template(paths, queue, supervisor.template_id, said)
    for row in queue.look("supervisor = ? AND state IN ('claimed', 'running')", (supervisor.supervisor,)):
        if row.stop:
            queue.end(row.job_id, "ended")
        elif row.requeues < REQUEUES and paths.launch(row.job_id).exists() and not has_begun(paths, row):
            clear_attempt(paths, row)
            queue.requeue(row.job_id, supervisor.supervisor)
        else:
            settle(paths, queue, row, said)
        drop_data(paths, row.job_id)
    queue.forget_supervisor(supervisor.supervisor)
    for path in (paths.wake(supervisor.supervisor), paths.held(supervisor.supervisor)):
        path.unlink(missing_ok=True)
    if not said:  # else its last words are kept for a day
        paths.supervisor_log(supervisor.supervisor).unlink(missing_ok=True)


def give_up_on_template(paths: Paths, queue: Queue, template_id: str, said: str) -> None:
    """Count a supervisor that never came up; jobs that have seen three of those end with a reason."""
    for row in queue.count_a_failed_start(template_id):
        if row.requeues > REQUEUES:
            settle(paths, queue, row, said, why="the process that carries out jobs does not start")


def has_begun(paths: Paths, row: JobRow) -> bool:
    """Say whether the function of a job may have begun; after a restart of the machine, "running" means so."""
    if row.state == "claimed":
        return False
    restarted = row.started is not None and row.started < _boot_time()
    return restarted or paths.files(row.job_id, row.attempt).began.exists()


def settle(paths: Paths, queue: Queue, row: JobRow, said: str = "", *, why: str = "") -> None:
    """Give a job that nobody keeps its verdict: the result if it was complete, otherwise why it was lost.

    Args:
        paths: Where.
        queue: Its queue.
        row: The job.
        said: The last words of its supervisor, if it had any.
        why: What happened, if it is known.
    """
    try:
        _settle(paths, queue, row, said, why)
    except (KineticError, OSError) as error:  # the store refuses, or page or key are gone: let the row tell it
        if isinstance(error, attempts.TRANSIENT_ERRORS) and is_finished(
            paths, row
        ):  # the value is here: whoever looks next
            queue.note(row.job_id, attempts.waiting_message(error))
            return
        what = why or f"the process that kept this job was killed, and its verdict could not be written: {error}"
        queue.end(row.job_id, _with_last_words(what, said))


def is_finished(paths: Paths, row: JobRow) -> bool:
    """Say whether a job has come to its end, and only its verdict is not in the store."""
    with contextlib.suppress(KineticError, OSError):
        page = runtime_files.read_task(paths, row.job_id)
        tasks = runtime_files.tasks_of(paths, page, row.attempt) if page is not None else ()
        ending = verdicts.Ending(status=None, phase="")
        return any(verdicts.final_report(task, ending) is not None for task in tasks)
    return False


def hand_over(paths: Paths, queue: Queue, rows: Sequence[JobRow]) -> None:
    """Make supervisors that wait for credentials leave finished jobs to this client, whose own are valid."""
    for row in rows:
        if row.state != "running" or not row.verdict.startswith(attempts.FINISHED) or row.stop:
            continue
        with contextlib.suppress(KineticError, OSError):
            page = runtime_files.read_task(paths, row.job_id)
            if page is None:
                continue
            open_store(page.store_url).size(keys.result(row.job_id))  # refused: no better than the supervisor's
            pid = next(
                (supervisor.pid for supervisor in queue.supervisors() if supervisor.supervisor == row.supervisor), 0
            )
            if pid and liveness.is_locked(paths.lock(str(row.supervisor))):
                os.kill(pid, signal.SIGTERM)


def _settle(paths: Paths, queue: Queue, row: JobRow, said: str, why: str) -> None:
    page = runtime_files.read_task(paths, row.job_id)
    if page is None:
        queue.end(row.job_id, NO_PAGE)
        return
    store = open_store(page.store_url)
    tasks = runtime_files.tasks_of(paths, page, row.attempt)
    status = "ended"
    if store.size(keys.result(row.job_id)) is None:
        ending = verdicts.Ending(status=None, phase="execute" if has_begun(paths, row) else "order")
        task = tasks[verdicts.decisive_host(tasks, [ending] * len(tasks))]
        verdict = verdicts.judge(task, ending, started=row.started or row.submitted, ended=time.time())
        if verdict.cause == "lost":
            what = why or str(verdict.error["message"])
            verdict = replace(verdict, error={**verdict.error, "message": _with_last_words(what, said)})
        verdict = replace(verdict, witness="observer", key_id=page.key_id, logs=log_digests(tasks))
        step("observer:judged")
        key = runtime_files.read_key(paths, row.job_id)
        attempts.seal_outcome(store, verdict, key, body=task.body, mark=page.mark)
        status = verdict.status
    step("observer:sealed")
    finish(paths, queue, store, tasks, status)
    tidy(paths, row.job_id, page)
    step("observer:settled")


def finish(paths: Paths, queue: Queue, store: Store, tasks: Sequence[Task], status: str) -> None:
    """Make the log of a job durable and say that it has ended.

    If its row is gone, somebody removed the job meanwhile: then nothing of it stays on this machine, and nothing in the
    store once that somebody has deleted its record.
    """
    job_id = tasks[0].job_id
    if queue.jobs([job_id]):
        for task in tasks:
            ship_log(store, task)
        step("supervisor:log-shipped")
    clear_scratch(tasks)
    step("supervisor:cleared")
    is_known = queue.end(job_id, status)
    drop_data(paths, job_id)  # now that nobody waits for it
    key = None
    with contextlib.suppress(OSError, KineticError):
        key = runtime_files.read_key(paths, job_id)
    runtime_files.remove_task(paths, job_id)  # before anything is asked of a store that may be out of reach
    if not is_known:
        abandon(paths, store, job_id)
    elif key is not None and was_removed(store, job_id, contextlib.nullcontext(key)):
        queue.forget([job_id])
        abandon(paths, store, job_id)


def tidy(paths: Paths, job_id: str, page: Task | None = None) -> None:
    """Remove what an ended job has no more use for: its pulse, its marks, an empty log, and empty folders.

    Args:
        paths: Where.
        job_id: The job; its row says that it has ended.
        page: Its launch page, which names its output folders.
    """
    if page is not None and page.store_url.startswith("file://"):
        outputs = f"{page.store_url.removeprefix('file://')}/{keys.OUTPUTS}"
        group = (page.queued or {}).get("group") or job_id
        for name in ("KINETIC_CHECKPOINT_DIR", "KINETIC_OUTPUT_DIR"):  # the first lies in the second
            folder = page.environment.get(name, "")
            if folder.startswith((f"{outputs}{job_id}", f"{outputs}{group}/")):  # its own, which no other job shares
                with contextlib.suppress(OSError):  # the job left something in it, or never made it
                    os.rmdir(folder)
    with contextlib.suppress(OSError):
        for entry in os.scandir(paths.job(job_id)):
            is_empty_log = entry.name.startswith("log-") and entry.is_file() and entry.stat().st_size == 0
            if entry.name == paths.completion_pipe(job_id).name or entry.name.endswith(".stacks") or is_empty_log:
                os.unlink(entry)
        os.rmdir(paths.job(job_id))  # not of a job that failed: its working folder is kept for a day


def abandon(paths: Paths, store: Store, job_id: str) -> None:
    """Leave nothing behind of a job that somebody else removed while we had it in hands."""
    if store.size(keys.record(job_id)) is None:
        store.delete(keys.job(job_id))
    remove_job(paths, job_id)


def clear_attempt(paths: Paths, row: JobRow) -> None:
    """Remove what an attempt that came to nothing wrote, before another one takes its place."""
    with contextlib.suppress(KineticError, OSError):
        page = runtime_files.read_task(paths, row.job_id)
        if page is not None:
            clear_scratch(runtime_files.tasks_of(paths, page, row.attempt))


def clear_scratch(tasks: Sequence[Task]) -> None:
    """Remove what an attempt wrote on the way to its result."""
    for task in tasks:
        for path in (task.body, task.word):
            path.unlink(missing_ok=True)


def log_digests(tasks: Sequence[Task]) -> tuple[digests.LogDigest, ...]:
    """Return the digests of what the hosts of an attempt printed; none of its processes is left."""
    found = []
    for task in tasks:
        with contextlib.suppress(OSError):
            found.append(digests.of_log(task.log, task.attempt, task.host))
    return tuple(found)


def ship_log(store: Store, task: Task) -> None:
    """Make a finished log durable: by a rename where the store is on the same disk."""
    with contextlib.suppress(OSError, KineticError):
        if task.log.stat().st_size == 0:
            return
        put_file(store, keys.log_segment(task.job_id, task.attempt, task.host, 0), task.log)


_ADVICE = ("why: ", "next: ", " ")  # how the lines below an error of ours begin, and those of a traceback


def _with_last_words(what: str, said: str) -> str:
    """Add what a supervisor's own log says last, if it left any: the error itself, not the advice below it."""
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(_ADVICE)]
    return f"{what}; its last words: {lines[-1]}" if lines else what


def _boot_time() -> float:
    """Return when this machine started, as Unix time; 0 where it does not tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.time() - time.clock_gettime(clock) if clock is not None else 0.0


def kill_marked(supervisor: str) -> None:
    """Kill every process of a dead supervisor, found by the mark in its environment, never by a number alone."""
    for _ in range(5):  # what forks while we look is found on the next round
        found = [pid for pid in _marked(supervisor) if pid != os.getpid()]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)  # they need a moment to be gone


def _marked(supervisor: str) -> list[int]:
    wanted = f"{SUPERVISOR_VARIABLE}={supervisor}".encode()
    if not Path("/proc/self/environ").exists():
        return _marked_by_ps(wanted)
    found = []
    for name in os.listdir("/proc"):  # names are all we need
        if name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and _alive(name):
                    found.append(int(name))
    return found


def _is_marked(pid: int, supervisor: str) -> bool:
    """Return whether a process is a supervisor or below it, by the mark in its environment."""
    try:
        return f"{SUPERVISOR_VARIABLE}={supervisor}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _alive(pid: str) -> bool:
    """Say whether a process is more than a zombie."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return bool(state) and state[0] not in {"Z", "X"}


def _marked_by_ps(wanted: bytes) -> list[int]:
    import subprocess  # macOS: ps shows the environment of one's own processes

    listing = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, check=False).stdout  # noqa: S607
    return [int(line.split(None, 1)[0]) for line in listing.splitlines() if wanted in line.split()]


def drop_data(paths: Paths, job_id: str) -> None:
    """Remove what a job read, its own copies and links only; no process of it is left."""
    try:
        found = [path for path in paths.job(job_id).iterdir() if path.name.startswith("data-")]
    except FileNotFoundError:  # removed meanwhile, by another process
        return
    if found:
        from kinetic._runner.data import shipped_data  # most jobs read no data

        for folder in found:
            shipped_data.release(folder, paths.data_cache)


def remove_job(paths: Paths, job_id: str) -> None:
    """Remove the folder of a job that is over, and first the links elsewhere that are noted in it."""
    drop_data(paths, job_id)
    remove_folder(paths.job(job_id))


def remove_folder(folder: Path) -> None:
    """Remove a folder and everything in it; what is gone already is no error."""
    import shutil  # 3 ms, for archives that nobody here makes; by now the job has ended

    shutil.rmtree(folder, ignore_errors=True)


History = Callable[[Store, str], Mapping[str, Any] | None]
HOUR = 3600.0
DAY = 24 * HOUR
MONTH = 30 * DAY


def sweep(
    paths: Paths, queue: Queue, scratch: Path | None, history: History | None = None, *, now: float | None = None
) -> None:
    """Sweep if nobody did so within the last hour.

    Args:
        paths: The host-local state.
        queue: The rows, which say what is still needed.
        scratch: The store's folder for files being written, if it has one.
        history: Gives the page of a removed job, once it is verified; None removes nothing by what a page says.
        now: Unix time; the current time by default.
    """
    now = time.time() if now is None else now
    if not _is_due(paths.runtime / "swept", now):
        return
    store = open_store(f"file://{scratch.parent}") if scratch is not None else None
    if store is not None:
        _finish_removals(paths, queue, store, history or _nothing)
        _drop_half_submitted(paths, store, now)
        _drop_groups(paths, store, now)
    rows = {row.job_id: row for row in queue.look()}
    for folder in _listed(paths.jobs):
        row = rows.get(folder.name)
        if row is None and _age(folder, now) > DAY and not liveness.is_locked(paths.submitting(folder.name)):
            remove_job(paths, folder.name)
        elif row is not None and row.ended is not None and now - row.ended > _kept_seconds(folder):
            runtime_files.remove_task(paths, folder.name)  # its supervisor died before it could
            drop_data(paths, folder.name)
            for work in folder.glob("work-*"):
                remove_folder(work)
            tidy(paths, folder.name)
    _sweep_supervisors(paths, queue, now)
    if scratch is not None:
        _sweep_scratch(scratch, rows, now)
    _sweep_runners(paths, queue, now)
    if paths.data_cache.is_dir():
        from kinetic._runner.data import file_cache  # only where jobs have read data

        file_cache.sweep(paths.data_cache, now=now)


def _sweep_supervisors(paths: Paths, queue: Queue, now: float) -> None:
    """Remove what is left of supervisors and queues that are gone."""
    supervisors = {supervisor.supervisor for supervisor in queue.supervisors()}
    for file in _listed(paths.supervisors):
        if file.name.partition(".")[0] not in supervisors and _age(file, now) > DAY:
            file.unlink(missing_ok=True)
    for file in paths.runtime.glob(f"{paths.queue.name}.{local_queue.DAMAGED}-*"):
        if _age(file, now) > MONTH:
            file.unlink(missing_ok=True)


def _sweep_scratch(scratch: Path, rows: Mapping[str, JobRow], now: float) -> None:
    """Remove what was half written into a store; not behind a link that somebody put in its place."""
    for key, about in folders.walk(scratch.parent, f"{scratch.name}/"):
        name = folders.name_of(key)
        row = rows.get(name.partition(".")[0])
        if now - about.st_mtime > DAY and (row is None or row.ended is not None):
            with contextlib.suppress(FileNotFoundError), folders.opened_parent(scratch.parent, key) as folder:
                os.unlink(name, dir_fd=folder)


def _kept_seconds(folder: Path) -> float:
    """Return how long what an ended job leaves is kept; a session in the debugger ends with its job, so none is cut."""
    return inspection.EXPIRES_SECONDS if next(folder.glob("*.debug"), None) is not None else DAY


def _nothing(store: Store, job_id: str) -> None:
    """Know of no removed job."""


def _finish_removals(paths: Paths, queue: Queue, store: Store, history: History) -> None:
    """Complete what a remover that was killed had begun: its tombstone says what was to go."""
    ended = {row.job_id for row in queue.look("state = 'ended'")}
    names = ended | set(store.folders("")) - keys.RESERVED
    for name in names:
        page = history(store, name) if store.size(keys.history(name)) is not None else None
        if page is None:
            continue
        if name in ended:
            queue.forget([name])
            remove_job(paths, name)
        with contextlib.suppress(KineticError):
            if page.get("artifacts_removed"):
                store.delete(keys.job(name))


def _drop_half_submitted(paths: Paths, store: Store, now: float) -> None:
    """Delete what a killed submission left: without a record nobody can find it, and so old, nobody works on it."""
    for name in set(store.folders("")) - keys.RESERVED:
        if store.size(keys.record(name)) is None and not liveness.is_locked(paths.submitting(name)):
            newest = max((entry.modified for entry in store.entries(keys.job(name))), default=0.0)
            if now - newest > DAY and store.size(keys.result(name)) is None:
                store.delete(keys.job(name))


def _drop_groups(paths: Paths, store: Store, now: float) -> None:
    """Delete what is left of batches that nobody can find, and what was kept here for batches that are gone."""
    for name in list(store.folders(keys.GROUPS)):
        if store.size(keys.group_manifest(name)) is None:
            newest = max((entry.modified for entry in store.entries(keys.group(name))), default=now)
            if now - newest > DAY:
                store.delete(keys.group(name))
    for file in _listed(paths.groups):
        if file.suffix == ".lock":
            useless = _age(file, now) > DAY and not liveness.is_locked(file)
        else:
            useless = _age(file, now) > MONTH and store.size(keys.group_manifest(file.stem)) is None
        if useless:
            file.unlink(missing_ok=True)


def _sweep_runners(paths: Paths, queue: Queue, now: float) -> None:
    with queue.change() as db:
        needed = db.execute(
            "SELECT template FROM templates WHERE template_id IN (SELECT template_id FROM jobs WHERE state != 'ended')"
            " OR template_id IN (SELECT template_id FROM supervisors)"
        ).fetchall()
    from kinetic._images import isolated_environment  # 10 ms, subprocess among them; once an hour

    old = [folder for folder in _listed(paths.runners) if _age(folder, now) > MONTH]
    for folder in [*old, *isolated_environment.stale(paths.environments, now)]:
        if not any(folder.name in template for (template,) in needed):
            remove_folder(folder)


def _is_due(mark: Path, now: float) -> bool:
    """Say whether the last sweep is an hour ago, and if so, mark that one begins now."""
    with contextlib.suppress(OSError):
        if 0 <= now - mark.stat().st_mtime < HOUR:
            return False
    try:
        mark.touch(0o600)
        os.utime(mark, (now, now))
    except OSError:
        return False
    return True


def _listed(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from list(folder.iterdir())


def _age(path: Path, now: float) -> float:
    try:
        return now - path.lstat().st_mtime
    except OSError:
        return 0.0
