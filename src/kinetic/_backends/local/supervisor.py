"""The supervisor process: it takes the oldest job of the queue that it may start, carries it out, and takes the next.

It holds its lock from its first moment to its last, has at most one job, and exits after a minute without any; the last
one of its kind that has libraries imported for the next job after ten.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kinetic._backends.local import limits, notifier, queue, recovery, runtime_files, scheduler
from kinetic._backends.local.queue import JobRow, Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._runner import processes
from kinetic._runner.supervisor import attempts, worker_process
from kinetic._runner.supervisor.supervise import DECIDED, REMOVED, Decision, Supervisor
from kinetic._runner.supervisor.verdicts import Ending, Report
from kinetic._runner.supervisor.worker_monitor import WatchedWorker
from kinetic._runner.supervisor.worker_process import EarlyWorker
from kinetic._runner.worker import function_call, preloaded_modules, worker
from kinetic._stores.protocol import ACCESS_VARIABLES, Store
from kinetic._wire import digests, documents, folders, keys, outcomes, python_runtime
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.task import Task
from kinetic.errors import BackendUnavailableError, KineticError, PredecessorError, StoreUnreachableError, reason_of

if TYPE_CHECKING:
    from kinetic._backends.local.preloading import Preloading
    from kinetic._wire.measurements import Measurements

T = TypeVar("T")

# What a decorator loads in every job. The first job of this process loads it itself, which keeps it from waiting.
_IN_EVERY_JOB = ("kinetic._remote.callable", "kinetic._jobs.job_options", "kinetic._hardware.placement")
_KEPT_FREE_BYTES = 1 << 30  # not spent on libraries for the next jobs
_MOST_REMOVED_BYTES = 64 << 20  # of files that a job wrote into its working folder, while its client waits
_BYTES_OF_LIBRARIES = 512 << 20  # for each supervisor: PyTorch holds some 250 MB when it is imported, JAX and Keras 340
_IDLE_SECONDS = 60.0
_IDLE_SECONDS_WITH_LIBRARIES = 600.0  # as long as an edit takes; they hold memory meanwhile
_ADVANCE_SECONDS = 0.5  # how often a supervisor with one job after the other looks after the rest of the queue


class SupervisorProcess:
    """This process, from its start to its end."""

    def __init__(self, name: str, template_id: str, runtime: Path, runner: str) -> None:
        self.name, self.template_id, self.runner = name, template_id, runner
        self.paths = Paths(runtime)
        held = runtime_files.take_lock(self.paths.lock(name))
        if held is None:
            raise SystemExit(f"supervisor {name} is already running")
        self.lock = held
        step("supervisor:alive")
        runtime_files.keep_from_cleaners(self.paths.runtime)
        runtime_files.make_pipe(self.paths.wake(name))
        self.wake = os.open(self.paths.wake(name), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.supervisor = Supervisor(worker.work)
        self.queue = Queue(self.paths.queue)
        self._spare: EarlyWorker | None = None  # for the next job, while there is none
        self._last: Task | None = None
        self._preloading: Preloading | None = None  # once a job has imported a library
        self._left: dict[str, object] | None = None  # what is in the working folder that is kept for the next job
        self.advanced = float("inf")  # when; infinite while there was no job since
        self.ending = False
        signal.signal(signal.SIGTERM, self._on_term)

    def run(self) -> None:
        """Carry out jobs until there are none for some minutes."""
        scheduler.apply_template(self.queue.template(self.template_id))
        self.queue.register(self.name, self.template_id)
        step("supervisor:registered")
        while not self.ending:
            row = self.queue.claim(self.name, self.template_id)
            if row is not None:
                step("supervisor:claimed")
                self._carry_out(row)
                step("supervisor:ended")
                self._settle_followers()
                if _IN_EVERY_JOB[0] not in sys.modules:
                    for name in _IN_EVERY_JOB:
                        importlib.import_module(name)
                self.advanced = min(self.advanced, time.monotonic())
                if time.monotonic() > self.advanced + _ADVANCE_SECONDS:
                    self.start_others()
                continue
            if self.advanced != float("inf"):
                self.start_others()
            if self.queue.waits_for_others(self.template_id) and self.queue.gpu_locks().watch(self.supervisor.libc):
                continue  # one may have become free just before
            self._fork_ahead()
            if not self._wait(_IDLE_SECONDS) and not self._waits_longer() and self._leave():
                return
        self._leave()

    def _carry_out(self, row: JobRow) -> None:
        """Carry out a job; an error becomes its verdict, so that no job ends supervisor after supervisor.

        An error of the queue ends this process instead: no worker of it runs then, its lock is free, and the next
        observer finishes the job from what is in the store.
        """
        try:
            task = runtime_files.read_task(self.paths, row.job_id)
            if task is None:
                self.queue.end(row.job_id, recovery.NO_PAGE)
            else:
                _use_credentials_of(task)
                self.supervisor.carry_out(QueueSource(self, row, task))
        except BackendUnavailableError:
            raise
        except (KineticError, OSError) as error:
            _print_traceback()
            recovery.kill_marked(self.name)
            self._give_up(row.job_id, error)
        if self.paths.launch(row.job_id).exists():  # else no row is ever rebuilt for it, and the next job replaces this
            self.paths.held_job(self.name).unlink(missing_ok=True)

    def with_workspace(self, task: Task) -> Task:
        """Return a task with the working folder that another job may have left."""
        if task.hosts > 1:
            return task
        return replace(task, workspace=str(self.paths.workspace(self.name) / "work-last"), left=self._left)

    def keep_workspace(self, task: Task, verdict: Outcome, found: dict[str, object] | None) -> bool:
        """Keep the working folder of a job for the next one, which verifies it; what the job wrote there is removed.

        ``found``: what its worker said of it.
        """
        is_usual = verdict.cause in outcomes.OF_THE_FUNCTION and not task.visited.exists()
        is_usual &= not os.path.islink(task.folder)  # it has moved its folder, and what it wrote there stays
        if not (task.workspace and found and is_usual) or processes.mounts_below(task.folder):
            return False
        if verdict.files and not (verdict.succeeded and _remove_written(task.folder, verdict.files)):
            return False
        with contextlib.suppress(OSError):  # there is none, as its worker took it; or the job removed its own
            os.rename(task.workspace, task.folder.with_name(f"{task.folder.name}-before"))  # goes with the job
        with contextlib.suppress(OSError):
            self.paths.workspace(self.name).mkdir(folders.PRIVATE_FOLDER, exist_ok=True)
            os.rename(task.folder, task.workspace)
            self._left = found
            return True
        return False

    def _drop_workspace(self) -> None:
        if self._left is not None:
            self._left = None
            recovery.remove_folder(self.paths.workspace(self.name))

    def _fork_ahead(self) -> None:
        """Have a worker ready for a job that comes alone, which then does not wait for the fork and what follows it.

        Not without libc, where nothing would tell it from the process of a job, nor in a process with threads.
        """
        if self.supervisor.libc is None or worker_process.needs_own_interpreter():
            self._last = None
        if self._last is not None and (self._spare is None or not self._spare.is_alive):
            self._end_spare()
            usual = scheduler.allowed_variables(self._last.environment)  # none that only that job was to have
            self._last = replace(self._last, environment=usual)
            wait = functools.partial(worker.wait_for_a_task, self._last)
            with contextlib.suppress(OSError):  # no processes left, or no space: the job itself says so
                self._spare = EarlyWorker(wait, self.supervisor.libc)
        if self._preloading is not None:
            self._preloading.get_ready()

    def spare_for(self, task: Task) -> EarlyWorker | None:
        """Return the worker that waits, if it can carry out this task; after this, there is none."""
        self._last = task
        is_early = task.hosts == 1 and not task.own_interpreter and not worker_process.needs_own_interpreter()
        preloaded = self._preloading.worker_for(task, may_be=is_early) if self._preloading is not None else None
        if self._spare is None or not is_early or preloaded is not None or not self._spare.is_alive:
            self._end_spare()
        spare, self._spare = self._spare, None
        return preloaded or spare

    def learn_imports(self, task: Task) -> None:
        """Let the next job find imported what this one had to import."""
        can_be_used = self.supervisor.libc is not None and not worker_process.needs_own_interpreter()
        if not can_be_used or not (self._preloading or (task.folder.parent / preloaded_modules.IMPORTS_FILE).exists()):
            return
        if self._preloading is None:
            from kinetic._backends.local.preloading import Preloading  # of jobs that import libraries

            self._preloading = Preloading(self.supervisor, self._may_import_ahead)
        self._preloading.learn(task)

    def _end_spare(self) -> None:
        if self._spare is not None:
            self._spare.end()
            self._spare = None

    def _give_up(self, job_id: str, error: Exception) -> None:
        """Write down what became of a job that could not be brought to its end."""
        row = self.queue.jobs([job_id]).get(job_id)  # it has the attempt
        if row is None or row.state == "ended":  # it was removed; or its verdict is there, and what is left is swept
            return
        is_away = isinstance(error, attempts.TRANSIENT_ERRORS)
        if is_away and row.stop:
            self.queue.end(job_id, f"it was stopped while its store was out of reach: {reason_of(error)}")
            recovery.clear_attempt(self.paths, row)
            recovery.drop_data(self.paths, job_id)
        elif is_away and (self.ending or recovery.is_finished(self.paths, row)):
            self.ending = True  # the next observer finds the row of a dead supervisor, and seals the value
        else:
            recovery.settle(self.paths, self.queue, row, why=f"the job could not be carried out: {reason_of(error)}")

    def _settle_followers(self) -> None:
        """Let the jobs start that waited for the one that ended."""
        with contextlib.suppress(BackendUnavailableError):  # a queue out of reach: the next who looks does it
            if self.queue.followers():
                from kinetic._backends.local import followers  # only where a job follows another

                with self._adopting_none(), contextlib.suppress(KineticError, OSError):
                    followers.settle(self.paths, self.queue)

    def start_others(self) -> None:
        """Start supervisors of another template if those are next, and send what a job has seen the end of.

        Perhaps no client observes the queue.
        """
        self.advanced = float("inf")
        with self._adopting_none():
            notifier.start_due(self.paths.runtime)
            with contextlib.suppress(KineticError, OSError):
                scheduler.advance(self.paths, self.queue, collect=True)

    def notify(self, task: Task, verdict: Outcome) -> None:
        """Have a process of its own tell of the end of a job."""
        if notifier.is_pending(self.paths.runtime, task.job_id):
            with self._adopting_none():
                notifier.send(self.paths.runtime, task.job_id, notifier.ended_of(verdict, is_command=task.is_command))

    @contextlib.contextmanager
    def _adopting_none(self) -> Iterator[None]:
        """Start what detaches itself: adopted by this process, it would be ended with what the next job leaves."""
        processes.adopt_orphans(self.supervisor.libc, on=False)
        try:
            yield
        finally:
            processes.adopt_orphans(self.supervisor.libc)

    def _may_import_ahead(self) -> bool:
        """Return whether one more job is likely to come here, and all supervisors of this kind could hold libraries.

        A job that comes alone wakes the first of them that is idle.
        """
        same = [row.supervisor for row in self.queue.supervisors() if row.template_id == self.template_id]
        free = limits.free_bytes()
        is_room = free is None or free > _KEPT_FREE_BYTES + len(same) * _BYTES_OF_LIBRARIES
        return is_room and (same[:1] == [self.name] or self.queue.is_queued(self.template_id))

    def _waits_longer(self) -> bool:
        """Wait for a job that comes later, with libraries imported, unless others do; return whether one came."""
        if self._preloading is None or not self._preloading.is_of_use or self.queue.waits_for_others(self.template_id):
            return False
        others = [row for row in self.queue.supervisors() if row.template_id == self.template_id]
        return len(others) == 1 and self._wait(_IDLE_SECONDS_WITH_LIBRARIES - _IDLE_SECONDS)

    def _wait(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        if self._preloading is not None and self._preloading.descriptor >= 0:
            poll.register(self._preloading.descriptor, select.POLLIN)
        freed = self.queue.gpu_locks().freed if self.queue.waits_for_others(self.template_id) else -1
        if freed >= 0:
            poll.register(freed, select.POLLIN)
        woken = bool(poll.poll(seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            while woken and freed >= 0:
                os.read(freed, 1 << 16)
        with contextlib.suppress(BlockingIOError):
            while woken and os.read(self.wake, 4096):
                pass
        return woken

    def _leave(self) -> bool:
        """Remove this supervisor from the queue, unless a job came at the same moment."""
        if not self.queue.leave(self.name, self.template_id, at_once=self.ending):
            return False
        self._end_spare()
        if self._preloading is not None:
            self._preloading.end()
        self._drop_workspace()
        for path in (self.paths.wake(self.name), self.paths.held_job(self.name)):
            path.unlink(missing_ok=True)
        log = self.paths.supervisor_log(self.name)
        with contextlib.suppress(OSError):
            if log.stat().st_size == 0:
                log.unlink()
        self.lock.release(remove=True)
        return True

    def _on_term(self, *_: object) -> None:
        self.ending = True  # and the worker is ended, too
        runtime_files.wake(self.paths.wake(self.name))


class QueueSource:
    """One row of the queue, as the source of a task; its methods are described in ``Source``."""

    store: Store
    witness = "supervisor"
    elsewhere: Callable[[], bool] | None = None  # all hosts of a slice are children of this process
    waits_for_exit = True  # it is measured, and another job may get its slot

    def __init__(self, process: SupervisorProcess, row: JobRow, task: Task) -> None:
        self._process, self._row, self.task, self.wake = process, row, task, process.wake
        self._paths, self._queue = process.paths, process.queue
        self._is_cloud = scheduler.is_cloud(task.store_url)
        self.passes: tuple[type[Exception], ...] = attempts.TRANSIENT_ERRORS if self._is_cloud else ()
        self._completion: runtime_files.CompletionWriter | None = None
        self._is_measured = self._is_kept = False
        self._report = Report()

    @property
    def is_retried(self) -> bool:
        return not self._process.ending

    def temporary_key(self) -> AbstractContextManager[bytes]:
        return runtime_files.temporary_key(self._paths, self.task.job_id)

    def key(self) -> bytes:
        return runtime_files.read_key(self._paths, self.task.job_id)

    def reach(self, do: Callable[[], T]) -> T:
        if not self._is_cloud:
            return do()

        def say(error: Exception) -> None:
            words = f"waits for its store: {reason_of(error)}"
            sys.stderr.write(f"{self.task.job_id} {words}\n")
            with contextlib.suppress(BackendUnavailableError):
                self._queue.note(self.task.job_id, words, state="claimed")

        return attempts.keep_trying(do, StoreUnreachableError, wait=self.wait, say=say)

    def skip(self, why: str) -> None:
        job_id = self.task.job_id
        if why == DECIDED:
            self._queue.end(job_id, "ended")
            return
        self._queue.forget([job_id])
        if why == REMOVED:
            recovery.abandon(self._paths, self.store, job_id)
        else:  # another machine carries it out
            recovery.remove_job(self._paths, job_id)

    def claim(self, key: bytes) -> AttemptNote | None:
        details: dict[str, object] = {"supervisor": self._process.name, "machine_id": self.task.machine}
        runner, python = Path(self._process.runner).name, python_runtime.python_version()
        note = AttemptNote(self.task.job_id, 0, os.uname().nodename, time.time(), runner, python, details)
        return attempts.claim(self.store, note, key)

    def begin(self, note: AttemptNote) -> Sequence[Task]:
        job_id, process = self.task.job_id, self._process
        runtime_files.note_held_job(self._paths, process.name, job_id, note.attempt, self._row.devices)
        if not self._queue.running(job_id, process.name, note.attempt):
            now = self._queue.jobs([job_id]).get(job_id)
            if now is None:  # removed
                recovery.abandon(self._paths, self.store, job_id)
            elif now.stop:
                self._queue.end(job_id, "ended")
            return ()  # else another supervisor has it: the queue was rebuilt before it could know of this one
        task = process.with_workspace(self.task)
        if task.after:
            if (values := self._values_of_predecessors()) is None:
                return ()
            task = replace(task, values=values)
        function_call.keep_shared(self.store, self.task)
        marks = {recovery.SUPERVISOR_VARIABLE: process.name, "KINETIC_ATTEMPT": str(note.attempt)}
        self._completion = runtime_files.CompletionWriter(self._paths.completion_pipe(job_id))
        coordinator = _free_address() if self.task.hosts > 1 else ""
        tasks = runtime_files.tasks_of(
            self._paths,
            task,
            note.attempt,
            runner=process.runner,
            more=marks,
            coordinator=coordinator,
            gpus=queue.split_devices(self._row.devices),
        )
        process.supervisor.early = process.spare_for(tasks[0])
        return tasks

    def _values_of_predecessors(self) -> list[dict[str, object]] | None:
        """Return where the values are that the arguments refer to; None if one is gone, which closes the job."""
        from kinetic._backends.local import followers  # as above
        from kinetic._runner.supervisor import predecessors

        after = predecessors.of_task(self.task.after)
        data = runtime_files.read_followed_keys(self._paths, self.task.job_id)
        try:
            return self.reach(lambda: predecessors.check_ready(self.store, after, data))
        except PredecessorError as error:
            followers.close(self._paths, self._queue, self.store, self.task, error)
            return None

    def forked(self, hosts: Sequence[WatchedWorker]) -> None:
        self._report = hosts[0].reader.report
        self._process.supervisor.title.set(self.task.job_id, f"supervisor {hosts[0].task.folder}")
        if self._completion is not None:
            self._completion.running()

    def keep_usage(self, task: Task, found: Measurements) -> None:
        """Write it beside the log, for who looks while the job runs; its end brings it into the store."""
        self._queue.keep_gpus()  # as often as this, for want of an event
        beside = f"{task.usage}~"
        with contextlib.suppress(OSError):  # a full disk: the job does not need it
            with open(beside, "wb") as file:
                file.write(documents.write({"schema": documents.SCHEMA, **found.to_json()}))
            os.replace(beside, task.usage)
            self._is_measured = True

    def is_unwanted(self) -> bool:
        """Return whether the job must end: asked to, removed, or cancelled by a client that died since."""
        job_id, ending = self.task.job_id, self._process.ending
        with contextlib.suppress(KineticError):  # a store or a queue that is out of reach for a while ends no job
            row = self._queue.jobs([job_id]).get(job_id)
            asked = ending or row is None or bool(row.stop) or self.store.size(keys.result(job_id)) is not None
            if asked or attempts.was_removed(self.store, job_id, self.temporary_key()):
                return True
            self._process.start_others()  # perhaps the job asked for it, which has submitted another one
            return False
        return ending

    def decide(self, tasks: Sequence[Task], task: Task, ending: Ending, verdict: Outcome) -> Decision | None:
        """Start a job again that was killed, or ended at a shutdown, before its function started; else it holds."""
        if self._process.supervisor.libc is None:
            recovery.kill_marked(self._process.name)  # where orphans cannot be adopted, they are found by their mark
        if not any(task.began.exists() for task in tasks):
            is_ending = self._process.ending
            is_shutdown = is_ending and verdict.cause in {"stopped", "signal"} and not self._is_stopped()
            # A shutdown may reach the job's process first, and this one a moment later.
            is_killed = ending.was_killed or (verdict.error.get("signal") == "SIGTERM" and not is_ending)
            if is_shutdown or (is_killed and self._row.requeues < recovery.REQUEUES):
                self._requeue(tasks, counted=not is_shutdown)
                return None
        if verdict.cause == "stopped" and self._process.ending:
            message = "the job was ended because its supervisor received SIGTERM, as at a shutdown of the machine"
            verdict = replace(verdict, error={**verdict.error, "message": message})
        self._tasks = tasks
        return verdict, task.body

    def _is_stopped(self) -> bool:
        """Return whether the job was cancelled or removed."""
        row = self._queue.jobs([self.task.job_id]).get(self.task.job_id)
        return row is None or bool(row.stop) or self.store.size(keys.result(self.task.job_id)) is not None

    def log_digests(self, tasks: Sequence[Task]) -> tuple[digests.LogDigest, ...]:
        return recovery.log_digests(tasks)

    def may_seal(self, verdict: Outcome) -> bool:
        return True

    def try_again(self, reason: str) -> None:
        self._requeue(self._tasks, counted=False)

    def _requeue(self, tasks: Sequence[Task], *, counted: bool) -> None:
        if self._is_measured:
            recovery.ship_usage(self.store, tasks, self.key())
        self._queue.free_gpus()
        recovery.requeue(self._paths, self._queue, self.store, tasks, self._process.name, counted=counted)

    def wait(self, seconds: float) -> bool:
        select.select([self.wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        with contextlib.suppress(BackendUnavailableError):  # a queue that is out of reach as well ends no job
            row = self._queue.jobs([self.task.job_id]).get(self.task.job_id)
            return self._process.ending or row is None or bool(row.stop)
        return self._process.ending

    def report_waiting(self, words: str) -> None:
        """Write into the queue what the verdict waits for.

        After an hour, or when this process is asked to end, the next observer seals it, with its own credentials.
        """
        sys.stderr.write(f"{self.task.job_id} {words}\n")
        self._queue.note(self.task.job_id, words)

    def patience_seconds(self, verdict: Outcome) -> float:
        return attempts.HOUR  # the value is on the disk of this machine

    def wake_waiting(self, tasks: Sequence[Task], verdict: Outcome | None) -> None:
        self._process.supervisor.title.reset()
        try:
            if verdict is not None:
                # Before it is heard of: a client that has its value removes what the job has, each file of a project.
                self._is_kept = self._process.keep_workspace(tasks[0], verdict, self._report.workspace)
            recovery.note_clearing(self._paths, self.task.job_id, self._process.name)
        finally:
            if self._completion is not None:
                self._completion.stop()

    def finish(self, tasks: Sequence[Task], verdict: Outcome, *, created: bool) -> None:
        self._queue.free_gpus()
        self._process.learn_imports(tasks[0])
        recovery.finish(self._paths, self._queue, self.store, tasks, verdict.status, measured=self._is_measured)
        recovery.tidy(self._paths, self.task.job_id, self.task, whole=self._is_kept or verdict.succeeded)
        if created:
            self._process.notify(self.task, verdict)


def _remove_written(folder: Path, names: Sequence[str]) -> bool:
    """Remove the files that a job wrote into its working folder; False, where that would take long or is not all."""
    if len(names) >= worker.FILES_NAMED:
        return False
    top = os.path.realpath(folder)
    try:
        if sum(os.lstat(f"{top}/{name}").st_size for name in names) > _MOST_REMOVED_BYTES:
            return False
        for name in names:
            parent = os.path.dirname(f"{top}/{name}")
            if os.path.realpath(parent) != parent or not f"{parent}/".startswith(f"{top}/"):
                return False
            os.unlink(f"{top}/{name}")
            with contextlib.suppress(OSError):  # there is something else in it
                while parent != top:
                    os.rmdir(parent)
                    parent = os.path.dirname(parent)
    except OSError:  # the next job would see what is left, and unpacks its project anew
        return False
    return True


def _free_address() -> str:
    """Return a free ``address:port`` on this machine, at which the hosts of a job meet; the next port is free, too."""
    import socket  # only jobs of several hosts need it

    while True:
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                other.bind(("127.0.0.1", port + 1))
                return f"127.0.0.1:{port}"


def _use_credentials_of(task: Task) -> None:
    """Set the credentials that the client of a job had: they open its store, and take its files."""
    addresses = task.store_url, task.environment.get("KINETIC_OUTPUT_DIR", "")
    for name in ACCESS_VARIABLES if scheduler.is_cloud(*addresses) else ():
        if name in task.environment:
            os.environ[name] = task.environment[name]
        else:
            os.environ.pop(name, None)


def _print_traceback() -> None:
    import traceback  # 5 ms; a first call waits for the start of a supervisor

    traceback.print_exc()  # into this supervisor's own log


def main(words: list[str]) -> None:
    """Run a supervisor: ``NAME TEMPLATE_ID RUNTIME``; it is detached already."""
    name, template_id, runtime = words
    runner = str(Path(sys.argv[0]).parent)
    os.chdir("/")
    try:
        process = SupervisorProcess(name, template_id, Path(runtime), runner)
        worker.preload()
        preloaded_modules.get_ready_to_fork()
        gc.disable()
        process.run()
    except Exception:  # noqa: BLE001 - the last frame: into the log; the next observer recovers the job
        _print_traceback()
        os._exit(1)
    os._exit(0)
