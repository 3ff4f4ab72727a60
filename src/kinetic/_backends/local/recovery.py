"""The end of a job on this machine: recovery of jobs whose supervisor died, and clearing up.

The process that takes a dead supervisor's lock ends its processes and writes the verdict of its job. It may die in the
middle of this: then the lock is free again, and the next one repeats it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kinetic._backends.local import notifier, runtime_files
from kinetic._backends.local.queue import ACTIVE, JobRow, Queue, SupervisorRow
from kinetic._backends.local.runtime_files import Paths
from kinetic._runner import processes
from kinetic._runner.supervisor import attempts, verdicts
from kinetic._runner.supervisor.attempts import was_removed
from kinetic._stores import open_store
from kinetic._stores.protocol import SCRATCH, Store, put_file, put_hint
from kinetic._wire import digests, documents, folders, keys, python_runtime
from kinetic._wire.failpoints import step
from kinetic._wire.task import Task
from kinetic.errors import KineticError, StoreUnreachableError

SUPERVISOR_VARIABLE = "KINETIC_SUPERVISOR"  # in the environment of a supervisor and of everything below it
_STARTING_SECONDS = 1.0  # a supervisor is there in 0.1 s; before that, its process need not even exist
_SLOW_START_SECONDS = 60.0  # as long as its process exists, on a machine that is busy
REQUEUES = 2  # a job that ends its supervisor three times before its function starts is the reason
NO_PAGE = "what was needed to run the job is gone from this machine (its launch page); submit it again"
_one_at_a_time = python_runtime.free_in_child(threading.Lock())  # POSIX locks do not tell threads of one process apart


def recover_dead_supervisors(paths: Paths, queue: Queue) -> None:
    known = queue.supervisors()
    names = {each.supervisor for each in known}
    orphans = {row.supervisor for row in queue.rows(ACTIVE) if row.supervisor} - names
    own = os.environ.get(SUPERVISOR_VARIABLE, "")
    for each in [*known, *(SupervisorRow(name, "", "busy", 0, 0.0) for name in sorted(orphans))]:
        if each.supervisor != own or each.pid != os.getpid():
            with _one_at_a_time, contextlib.suppress(OSError):  # the next observation tries again
                _recover_if_dead(paths, queue, each)


def _recover_if_dead(paths: Paths, queue: Queue, row: SupervisorRow) -> None:
    lock = paths.lock(row.supervisor)
    if not lock.exists():
        age = time.time() - row.since
        is_young = 0 <= age < _STARTING_SECONDS  # below 0 the clock went back, and only its process tells
        is_slow = age < _SLOW_START_SECONDS and bool(_marked(row.supervisor))
        if row.state == "starting" and (is_young or is_slow):
            return
        held = runtime_files.take_lock(lock)  # two observers must not settle the same job at once
    else:
        held = runtime_files.take_abandoned_lock(lock)
    if held is None:
        _continue_if_stopped(paths, queue, row)
        return
    try:
        if _is_of_another_home(lock, row.supervisor):
            _leave_to_its_home(paths, queue, row.supervisor)
            return
        step("observer:locked")
        kill_marked(row.supervisor)
        step("observer:ended-processes")
        _settle_jobs(paths, queue, row)
    finally:
        held.release(remove=True)


def _is_of_another_home(lock: Path, supervisor: str) -> bool:
    """Return whether a supervisor lives and holds its lock in another home, of which this one is a copy."""
    for pid in _marked(supervisor):
        with contextlib.suppress(OSError):  # it has ended
            opened = [os.readlink(entry) for entry in list(os.scandir(f"/proc/{pid}/fd"))]
            locks = {folders.file_id(path) for path in opened if path.endswith(f"/{lock.name}")}
            if locks - {(0, 0), folders.file_id(lock)}:
                return True
    return False


def _leave_to_its_home(paths: Paths, queue: Queue, supervisor: str) -> None:
    """End in a copied queue only what has its verdict; the rest takes what it takes of this machine."""
    for row in _jobs_of(queue, supervisor):
        with contextlib.suppress(KineticError):
            task = runtime_files.read_task(paths, row.job_id)
            if task is not None and open_store(task.store_url).size(keys.result(row.job_id)) is not None:
                queue.end(row.job_id, "ended")
    if not _jobs_of(queue, supervisor):
        queue.forget_supervisor(supervisor)


def _continue_if_stopped(paths: Paths, queue: Queue, supervisor: SupervisorRow) -> None:
    """Continue a supervisor that was stopped (SIGSTOP), by its own job perhaps, if something waits for it.

    A user may have stopped it on purpose. But the end of its job, a request to end it and a passed deadline must not
    wait.
    """
    pid = supervisor.pid
    if not pid or processes.state(pid) != "T" or not _is_marked(pid, supervisor.supervisor):
        return
    children = processes.children_of(pid)
    has_ended = not children or any(processes.state(child) == "Z" for child in children)
    if has_ended or any(_must_end(paths, row) for row in _jobs_of(queue, supervisor.supervisor)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def _must_end(paths: Paths, row: JobRow) -> bool:
    if row.stop:
        return True
    task = runtime_files.read_task(paths, row.job_id)
    limit = task.deadline if task is not None else None
    return limit is not None and row.started is not None and time.time() > row.started + limit


def _jobs_of(queue: Queue, supervisor: str) -> list[JobRow]:
    return queue.rows(f"supervisor = ? AND {ACTIVE}", (supervisor,))


def _settle_jobs(paths: Paths, queue: Queue, supervisor: SupervisorRow) -> None:
    name = supervisor.supervisor
    log = verdicts.last_lines(paths.supervisor_log(name))
    if supervisor.state == "starting":
        from kinetic._project import runner_bundle  # rare: after a power cut, its code may be cut short

        with contextlib.suppress(KineticError, OSError):
            runner_bundle.repair(paths.runners)
        give_up_on_template(paths, queue, supervisor.template_id, log)
    for row in _jobs_of(queue, name):
        if row.stop:
            queue.end(row.job_id, "ended")
        elif row.requeues < REQUEUES and paths.launch(row.job_id).exists() and not _may_have_started(paths, row):
            clear_attempt(paths, row)
            queue.requeue(row.job_id, name)
        else:
            settle(paths, queue, row, log)
        drop_data(paths, row.job_id)
    queue.forget_supervisor(name)
    paths.wake(name).unlink(missing_ok=True)
    paths.held_job(name).unlink(missing_ok=True)
    remove_folder(paths.workspace(name))
    if not log:  # else it is kept for a day
        paths.supervisor_log(name).unlink(missing_ok=True)


def give_up_on_template(paths: Paths, queue: Queue, template_id: str, log: str) -> None:
    """Count a supervisor that did not start; jobs for which three did not start end with a reason."""
    for row in queue.count_failed_start(template_id):
        if row.requeues > REQUEUES:
            settle(paths, queue, row, log, why="the supervisor process does not start")


def _may_have_started(paths: Paths, row: JobRow) -> bool:
    """Return whether the function of a job may have started; "running" before a restart of the machine means so."""
    if row.state == "claimed":
        return False
    restarted = row.started is not None and row.started < _boot_time()
    return restarted or paths.files(row.job_id, row.attempt).began.exists()


def settle(paths: Paths, queue: Queue, row: JobRow, log: str = "", *, why: str = "") -> None:
    """Write the verdict of a job that has no supervisor: its value if that was complete, otherwise why it was lost."""
    try:
        _settle(paths, queue, row, log, why)
    except (KineticError, OSError) as error:  # the store refuses, or page or key are gone: the row says so
        if isinstance(error, attempts.TRANSIENT_ERRORS) and is_finished(paths, row):
            # The value is here: an observer with valid credentials seals it later.
            queue.note(row.job_id, attempts.waiting_message(error))
            return
        what = why or f"the supervisor of this job was killed, and its verdict could not be written: {error}"
        queue.end(row.job_id, _with_last_line(what, log))


def is_finished(paths: Paths, row: JobRow) -> bool:
    """Return whether the function of a job has ended, and only its verdict is not in the store."""
    with contextlib.suppress(KineticError, OSError):
        ending = verdicts.Ending(status=None, phase="")
        return any(verdicts.final_report(task, ending) is not None for task in _tasks_of_row(paths, row))
    return False


def hand_over(paths: Paths, queue: Queue, rows: Sequence[JobRow]) -> None:
    """Make supervisors that wait for credentials leave their finished jobs to this client, if its own are valid."""
    for row in rows:
        if row.state != "running" or not row.verdict.startswith(attempts.FINISHED) or row.stop:
            continue
        with contextlib.suppress(KineticError, OSError):
            task = runtime_files.read_task(paths, row.job_id)
            if task is None:
                continue
            open_store(task.store_url).size(keys.result(row.job_id))  # raises if they are no better
            pid = next((each.pid for each in queue.supervisors() if each.supervisor == row.supervisor), 0)
            if pid and runtime_files.is_locked(paths.lock(str(row.supervisor))):
                os.kill(pid, signal.SIGTERM)


def _settle(paths: Paths, queue: Queue, row: JobRow, log: str, why: str) -> None:
    page = runtime_files.read_task(paths, row.job_id)
    if page is None:
        queue.end(row.job_id, NO_PAGE)
        return
    store = open_store(page.store_url)
    if store.local is not None and _is_unmounted(store.local.root):
        raise StoreUnreachableError(f"the store {store.url} is away", why="its folder is missing; is it mounted?")
    tasks = runtime_files.tasks_of(paths, page, row.attempt)
    status, verdict = "ended", None
    if store.size(keys.result(row.job_id)) is None:
        ending = verdicts.Ending(status=None, phase="execute" if _may_have_started(paths, row) else "order")
        task = tasks[verdicts.decisive_host(tasks, [ending] * len(tasks))]
        verdict = verdicts.judge(task, ending, started=row.started or row.submitted, ended=time.time())
        if verdict.cause == "lost":
            what = _with_last_line(why or str(verdict.error["message"]), log)
            verdict = replace(verdict, error={**verdict.error, "message": what})
        key = runtime_files.read_key(paths, row.job_id)
        # Not of a lost one: it is unknown whether its function failed.
        reason = "" if verdict.cause == "lost" else attempts.retry_reason(store, verdict, page.retries, key)
        is_noted = store.size(_log_key(task)) is not None  # its supervisor came as far as that
        if reason and not is_noted and reason not in verdicts.last_lines(task.log):
            folders.append(task.log, f"kinetic: {reason}\n")
        verdict = replace(verdict, witness="observer", key_id=page.key_id, logs=log_digests(tasks))
        if reason:
            if not is_noted:
                attempts.note_failure(store, verdict, key)
            ship_usage(store, tasks, key)
            requeue(paths, queue, store, tasks, str(row.supervisor), counted=False)
            return
        step("observer:judged")
        attempts.seal_outcome(store, verdict, key, body=task.body, mark=page.mark)
        status = verdict.status
    step("observer:sealed")
    finish(paths, queue, store, tasks, status)
    tidy(paths, row.job_id, page)
    if verdict is not None:
        notifier.send(paths.runtime, row.job_id, notifier.ended_of(verdict, is_command=page.is_command))
    step("observer:settled")


def _is_unmounted(root: Path) -> bool:
    """Return whether where the folder of a store was is an empty one, as that of a mount point."""
    if (root / SCRATCH).is_dir():  # each store that was written to has it
        return False
    while not root.is_dir():
        root = root.parent
    return not any(root.iterdir())


def finish(
    paths: Paths, queue: Queue, store: Store, tasks: Sequence[Task], status: str, *, measured: bool = True
) -> None:
    """Make the log of a job durable, and what it used if that was ``measured``, and end its row.

    If its row is gone, the job was removed meanwhile: then nothing of it stays on this machine, and nothing in the
    store once its record is deleted.
    """
    job_id = tasks[0].job_id
    printed = [task for task in tasks if _has_text(task.log)]
    if printed and queue.jobs([job_id]):
        for task in printed:
            ship_log(store, task)
    key = None
    with contextlib.suppress(OSError, KineticError):
        key = runtime_files.read_key(paths, job_id)
    if measured and key is not None and queue.jobs([job_id]):
        ship_usage(store, tasks, key)
    clear_scratch(tasks)
    step("supervisor:cleared")
    is_known = queue.end(job_id, status)
    drop_data(paths, job_id)  # after the end, for which clients wait
    runtime_files.remove_task(paths, job_id)  # before the first request to a store that may be out of reach
    if not is_known:
        abandon(paths, store, job_id)
    elif key is not None and was_removed(store, job_id, contextlib.nullcontext(key)):
        queue.forget([job_id])
        abandon(paths, store, job_id)


def requeue(paths: Paths, queue: Queue, store: Store, tasks: Sequence[Task], supervisor: str, *, counted: bool) -> None:
    """Remove the files of an attempt, and put its job back to its old place, where any supervisor may take it.

    Its log goes into the store: once the row waits, a client that cancels the job removes its folder.
    """
    for task in tasks:
        if _has_text(task.log):
            ship_log(store, task)
    for task in tasks:
        task.began.unlink(missing_ok=True)  # first: who finds the rest without it puts the job back as well
    clear_scratch(tasks)
    drop_data(paths, tasks[0].job_id)
    queue.requeue(tasks[0].job_id, supervisor, counted=counted)


_NOT_KEPT = (".began", ".stacks", ".usage", ".usage~", ".progress", ".visited")


def tidy(paths: Paths, job_id: str, task: Task | None = None, *, whole: bool = False) -> None:
    """Remove what an ended job does not need: its pipe, its marks, an empty log, and empty folders.

    ``whole``: also its working folder, which a job that failed keeps for a day.
    """
    if task is not None and task.store_url.startswith("file://"):
        outputs = f"{task.store_url.removeprefix('file://')}/{keys.OUTPUTS}"
        group = (task.queued or {}).get("group_id") or job_id
        for name in ("KINETIC_CHECKPOINT_DIR", "KINETIC_OUTPUT_DIR"):  # the first is inside the second
            folder = task.environment.get(name, "")
            if folder.startswith((f"{outputs}{job_id}", f"{outputs}{group}/")):  # its own, which no other job shares
                with contextlib.suppress(OSError):  # the job left something in it, or never made it
                    os.rmdir(folder)
    with contextlib.suppress(OSError):
        entries = list(os.scandir(paths.job(job_id)))
        if whole and not any(_is_log(entry.name) and _has_text(entry.path) for entry in entries):
            remove_folder(paths.job(job_id))
            return
        for entry in entries:
            is_empty_log = entry.name.startswith("log-") and entry.is_file() and entry.stat().st_size == 0
            if whole and entry.name.startswith("work-"):
                remove_folder(Path(entry.path))
            if entry.name == paths.completion_pipe(job_id).name or entry.name.endswith(_NOT_KEPT) or is_empty_log:
                os.unlink(entry)
        os.rmdir(paths.job(job_id))  # not of a job that failed: its working folder is kept for a day


def abandon(paths: Paths, store: Store, job_id: str) -> None:
    """Leave nothing behind of a job that was removed while this process carried it out."""
    if store.size(keys.record(job_id)) is None:
        store.delete(keys.job(job_id))
    remove_job(paths, job_id)


def _tasks_of_row(paths: Paths, row: JobRow) -> tuple[Task, ...]:
    task = runtime_files.read_task(paths, row.job_id)
    return runtime_files.tasks_of(paths, task, row.attempt) if task is not None else ()


def clear_attempt(paths: Paths, row: JobRow) -> None:
    """Remove what an unfinished attempt wrote, before another one takes its place."""
    with contextlib.suppress(KineticError, OSError):
        clear_scratch(_tasks_of_row(paths, row))


def clear_scratch(tasks: Sequence[Task]) -> None:
    """Remove what an attempt wrote on the way to its result."""
    for task in tasks:
        for path in (task.body, task.word):
            path.unlink(missing_ok=True)


def log_digests(tasks: Sequence[Task]) -> tuple[digests.LogDigest, ...]:
    """Return the digests of the logs of an attempt's hosts; none of its processes is left."""
    found = []
    for task in tasks:
        with contextlib.suppress(OSError):
            found.append(digests.of_log(task.log, task.attempt, task.host))
    return tuple(found)


def ship_log(store: Store, task: Task) -> None:
    """Make a finished log durable: by a rename where the store is on the same disk."""
    with contextlib.suppress(OSError, KineticError):
        put_file(store, _log_key(task), task.log)
    step("supervisor:log-shipped")


def _log_key(task: Task) -> str:
    return keys.log_segment(task.job_id, task.attempt, task.host, 0)


def ship_usage(store: Store, tasks: Sequence[Task], key: bytes) -> None:
    """Bring what the hosts of an attempt used into the store, sealed; nothing waits for the disk."""
    from kinetic._wire import measurements  # only jobs that ran for a second or more

    for task in tasks:
        with contextlib.suppress(OSError, KineticError):
            page = documents.read(task.usage.read_bytes(), "the usage", most_bytes=measurements.PAGE.most_bytes)
            found = measurements.PAGE.build(page, "the usage")
            put_hint(store, keys.usage(task.job_id, task.attempt, task.host), found.to_bytes(key))


def _is_log(name: str) -> bool:
    return name.startswith("log-") and "." not in name  # of an attempt; beside it are files that are named after it


def _has_text(log: str | Path) -> bool:
    try:
        return os.stat(log).st_size > 0
    except OSError:
        return False


_ADVICE = ("why: ", "next: ", " ")  # how the lines below an error of ours begin, and those of a traceback


def _with_last_line(what: str, log: str) -> str:
    """Add the last error in a supervisor's log, without the advice below it."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(_ADVICE)]
    return f"{what}; its log ends with: {lines[-1]}" if lines else what


def _boot_time() -> float:
    """Return when this machine started, as Unix time; 0 where it does not tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.time() - time.clock_gettime(clock) if clock is not None else 0.0


def kill_marked(supervisor: str) -> None:
    """Kill every process of a dead supervisor, found by the mark in its environment, never by a number alone."""
    for left in reversed(range(10)):  # what forks meanwhile is found in the next round
        found = [pid for pid in _marked(supervisor) if pid != os.getpid()]
        if not found:
            return
        for pid in found:
            if left and processes.is_tracker(pid):
                continue  # it ends by itself once all others have
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)  # they need a moment to end


def _marked(supervisor: str) -> list[int]:
    if not Path("/proc/self/environ").exists():
        return _marked_by_ps(f"{SUPERVISOR_VARIABLE}={supervisor}".encode())
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if _is_marked(pid, supervisor) and processes.state(pid) not in {"", "Z", "X"}]


def _is_marked(pid: int, supervisor: str) -> bool:
    """Return whether a process is a supervisor or below it, by the mark in its environment."""
    try:
        return f"{SUPERVISOR_VARIABLE}={supervisor}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _marked_by_ps(wanted: bytes) -> list[int]:
    import subprocess  # macOS: ps shows the environment of one's own processes

    listing = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, check=False).stdout  # noqa: S607
    return [int(line.split(None, 1)[0]) for line in listing.splitlines() if wanted in line.split()]


def drop_data(paths: Paths, job_id: str) -> None:
    """Remove a job's own copies of what it read, and links to it; no process of it is left."""
    if found := _copies_of_data(paths, job_id):
        from kinetic._runner.data import mounted_data  # most jobs read no data

        for folder in found:
            mounted_data.release(folder, paths.data_cache)
        paths.clearing(job_id).unlink(missing_ok=True)


def _copies_of_data(paths: Paths, job_id: str) -> list[Path]:
    try:
        return [path for path in paths.job(job_id).iterdir() if path.name.startswith("data-")]
    except OSError:  # removed meanwhile, by another process; or what is left is swept
        return []


def note_clearing(paths: Paths, job_id: str, supervisor: str) -> None:
    """Note that a supervisor will remove a job's copies of data, which may take minutes: no client waits for that."""
    if _copies_of_data(paths, job_id):
        with contextlib.suppress(OSError):
            paths.clearing(job_id).write_text(supervisor)


def _is_being_cleared(paths: Paths, job_id: str) -> bool:
    try:
        supervisor = paths.clearing(job_id).read_text()
    except (OSError, ValueError):
        return False
    return runtime_files.is_locked(paths.lock(supervisor))


def remove_job(paths: Paths, job_id: str) -> None:
    """Remove the folder of a job that is over, and first the links elsewhere that are noted in it.

    Its supervisor removes the folder at last if it is about to remove the copies of data in it.
    """
    if _is_being_cleared(paths, job_id):
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(paths.job(job_id))):
                if not entry.name.startswith("data-") and entry.name != paths.clearing(job_id).name:
                    with contextlib.suppress(FileNotFoundError):  # the supervisor was faster
                        remove_folder(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)
        if _is_being_cleared(paths, job_id):
            return
    drop_data(paths, job_id)
    remove_folder(paths.job(job_id))


def remove_folder(folder: Path) -> None:
    """Remove a folder of ours, with what a job left mounted in it; nothing that stays mounted is emptied."""
    if not processes.detach_mounts(folder):
        return  # the next collection tries again
    try:
        folders.remove(folder.parent, folder.name)
    except OSError:  # something in it cannot be removed: the rest can
        import shutil  # 3 ms

        shutil.rmtree(folder, ignore_errors=True)
