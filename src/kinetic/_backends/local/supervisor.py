"""The queue's supervisor: takes the oldest row that fits, carries it out, and takes the next.

It holds its life lock from its first moment to its last, holds at most one job, and leaves after a minute without any.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kinetic._backends.local import liveness, queue, recovery, runtime_files, scheduler
from kinetic._backends.local.queue import JobRow, Limits, Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._runner import processes
from kinetic._runner.supervisor import attempts, supervise
from kinetic._runner.supervisor.supervise import DECIDED, REMOVED, Decision, Supervisor
from kinetic._runner.supervisor.verdicts import Ending
from kinetic._runner.worker import worker
from kinetic._stores.protocol import CREDENTIAL_VARIABLES, Store
from kinetic._wire import digests, distribution, documents, keys
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.task import Task
from kinetic.errors import BackendUnavailableError, KineticError, StoreUnreachableError

T = TypeVar("T")

_IDLE_SECONDS = 60.0


class SupervisorProcess:
    """One supervisor's process."""

    def __init__(self, name: str, template_id: str, runtime: Path, limits: Limits, runner: str) -> None:
        self.name, self.template_id, self.limits, self.runner = name, template_id, limits, runner
        self.paths = Paths(runtime)
        held = liveness.take_lock(self.paths.lock(name))
        if held is None:
            raise SystemExit(f"supervisor {name} runs already")
        self.life = held
        step("supervisor:alive")
        liveness.make_pipe(self.paths.wake(name))
        self.wake = os.open(self.paths.wake(name), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.supervisor = Supervisor(worker.work)
        self.title = processes.ProcessTitle(self.supervisor.libc)
        self.queue = Queue(self.paths.queue)
        self.ending = False
        signal.signal(signal.SIGTERM, self._on_term)

    def run(self) -> None:
        """Keep jobs until there are none for a minute."""
        scheduler.apply_template(self.queue.template(self.template_id))
        self.queue.register(self.name, self.template_id)
        step("supervisor:registered")
        while not self.ending:
            row_ = self.queue.claim(self.name, self.template_id, self.limits)
            if row_ is not None:
                step("supervisor:claimed")
                self._keep(row_)
                step("supervisor:ended")
                self._help_others()
            elif not self._wait() and self._leave():
                return
        self._leave()

    def _keep(self, row: JobRow) -> None:
        """Carry out a job; an error becomes its verdict, so that no job ends supervisor after supervisor.

        An error of the queue ends this process instead: no worker of it runs then, its lock is free, and whoever
        looks next finishes the job from what is in the store.
        """
        try:
            task = runtime_files.read_task(self.paths, row.job_id)
            if task is None:
                self.queue.end(row.job_id, recovery.NO_PAGE)
            else:
                _lend_credentials(task)
                self.supervisor.carry_out(QueueSource(self, row, task))
        except BackendUnavailableError:
            raise
        except (KineticError, OSError) as error:
            _print_traceback()
            recovery.kill_marked(self.name)
            self._give_up(row.job_id, error)
        self.paths.held(self.name).unlink(missing_ok=True)

    def _give_up(self, job_id: str, error: Exception) -> None:
        """Say what became of a job that this supervisor could not bring to its end."""
        now = self.queue.jobs([job_id]).get(job_id)  # it knows the attempt
        if now is None or now.state == "ended":  # it was removed; or its verdict is there, and what is left is swept
            return
        is_away = isinstance(error, attempts.TRANSIENT_ERRORS)
        if is_away and now.stop:
            self.queue.end(job_id, f"it was stopped while its store was out of reach: {_in_words(error)}")
            recovery.clear_attempt(self.paths, now)
            recovery.drop_data(self.paths, job_id)
        elif is_away and (self.ending or recovery.is_finished(self.paths, now)):
            self.ending = True  # whoever looks next finds the row of a supervisor that is gone: a value is sealed then
        else:
            recovery.settle(self.paths, self.queue, now, why=f"the job could not be carried out: {_in_words(error)}")

    def _help_others(self) -> None:
        """Start supervisors of another kind if those are next in line; nobody else may be looking.

        Meanwhile this process adopts no orphans: a supervisor that detaches itself would become its child, and be ended
        as a left-over of its next job.
        """
        processes.adopt_orphans(self.supervisor.libc, on=False)
        with contextlib.suppress(KineticError, OSError):
            scheduler.advance(self.paths, self.queue, self.limits, collect=True)
        processes.adopt_orphans(self.supervisor.libc)

    def _wait(self) -> bool:
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        rang = bool(poll.poll(_IDLE_SECONDS * 1000))
        with contextlib.suppress(BlockingIOError):
            while rang and os.read(self.wake, 4096):
                pass
        return rang

    def _leave(self) -> bool:
        """Sign off, unless a job came in the same moment."""
        if not self.queue.leave(self.name, self.template_id, at_once=self.ending):
            return False
        self.paths.wake(self.name).unlink(missing_ok=True)
        log = self.paths.supervisor_log(self.name)
        with contextlib.suppress(OSError):
            if log.stat().st_size == 0:
                log.unlink()
        self.life.release(remove=True)
        return True

    def _on_term(self, *_: object) -> None:
        """Pass the end on to the worker: the machine or somebody wants this supervisor gone."""
        self.ending = True
        liveness.wake(self.paths.wake(self.name))


class QueueSource:
    """One row of the queue, for the supervisor; see ``Source``.

    Args:
        supervisor: Whose process this is.
        row: The row, which the supervisor has claimed.
        task: Its task.
    """

    store: Store
    witness = "supervisor"
    elsewhere: Callable[[], bool] | None = None  # all hosts of a slice are processes of this supervisor

    def __init__(self, supervisor: SupervisorProcess, row: JobRow, task: Task) -> None:
        self._supervisor, self._row, self.task, self.wake = supervisor, row, task, supervisor.wake
        self._paths, self._queue = supervisor.paths, supervisor.queue
        self._is_cloud = scheduler.is_cloud(task.store_url)
        self.passes: tuple[type[Exception], ...] = attempts.TRANSIENT_ERRORS if self._is_cloud else ()
        self._heart: liveness.CompletionWriter | None = None

    @property
    def is_retried(self) -> bool:
        """Whether a failure may be followed by another attempt; see ``Source``."""
        return not self._supervisor.ending

    def temporary_key(self) -> AbstractContextManager[bytes]:
        """Lend the job's key; see ``Source``."""
        return documents.temporary_key(self._paths.key(self.task.job_id))

    def key(self) -> bytes:
        """Return the job's key; see ``Source``."""
        return runtime_files.read_key(self._paths, self.task.job_id)

    def reach(self, do: Callable[[], T]) -> T:
        """Do something with the store; one in a cloud is waited for while it is out of reach."""
        if not self._is_cloud:
            return do()
        return attempts.keep_trying(
            do,
            StoreUnreachableError,
            wait=self.wait,
            say=lambda error: sys.stderr.write(f"{self.task.job_id} waits for its store: {_in_words(error)}\n"),
        )

    def skip(self, why: str) -> None:
        """Take the row out of the way; see ``Source``."""
        job_id = self.task.job_id
        if why == DECIDED:
            self._queue.end(job_id, "ended")
            return
        self._queue.forget([job_id])
        if why == REMOVED:
            recovery.abandon(self._paths, self.store, job_id)
        else:  # another machine began with it: this row is none of ours
            recovery.remove_job(self._paths, job_id)

    def claim(self, key: bytes) -> AttemptNote | None:
        """Make the next attempt ours, unless another machine was given the same child of a batch."""
        details: dict[str, object] = {"supervisor": self._supervisor.name, "machine_id": self.task.machine}
        runner, python = Path(self._supervisor.runner).name, distribution.python_version()
        note = AttemptNote(self.task.job_id, 0, os.uname().nodename, time.time(), runner, python, details)
        return attempts.claim(self.store, note, key)

    def begin(self, note: AttemptNote) -> Sequence[Task]:
        """Write down that the job runs; see ``Source``."""
        job_id, supervisor = self.task.job_id, self._supervisor
        queue.note_held_job(self._paths, supervisor.name, job_id, note.attempt, self._row.devices)
        if not self._queue.running(job_id, supervisor.name, note.attempt):
            now = self._queue.jobs([job_id]).get(job_id)
            if now is None:  # removed
                recovery.abandon(self._paths, self.store, job_id)
            elif now.stop:
                self._queue.end(job_id, "ended")
            return ()  # else it is somebody else's: the queue was rebuilt before it could know that we had the job
        meet = _free_address() if self.task.hosts > 1 else ""
        marks = {recovery.SUPERVISOR_VARIABLE: supervisor.name, "KINETIC_ATTEMPT": str(note.attempt)}
        if self._row.devices:
            marks["CUDA_VISIBLE_DEVICES"] = self._row.devices
        self._heart = liveness.CompletionWriter(self._paths.completion_pipe(job_id))
        self._queue.close()  # until it is used next: SQLite's connections must not cross a fork
        return runtime_files.tasks_of(
            self._paths, self.task, note.attempt, runner=supervisor.runner, more=marks, coordinator=meet
        )

    def forked(self, hosts: Sequence[supervise.WatchedWorker]) -> None:
        """Tell that the job runs; see ``Source``."""
        self._supervisor.title.set(self.task.job_id, f"supervisor {hosts[0].task.folder}")
        if self._heart is not None:
            self._heart.running()

    def is_unwanted(self) -> bool:
        """Say whether the job shall end: asked to, removed, or cancelled by somebody who died before telling us."""
        job_id, ending = self.task.job_id, self._supervisor.ending
        with contextlib.suppress(KineticError):  # a store or a queue that is out of reach for a while ends no job
            row = self._queue.jobs([job_id]).get(job_id)
            asked = ending or row is None or bool(row.stop) or self.store.size(keys.result(job_id)) is not None
            return asked or attempts.was_removed(self.store, job_id, self.temporary_key())
        return ending

    def decide(self, tasks: Sequence[Task], task: Task, ending: Ending, verdict: Outcome) -> Decision | None:
        """Start a job again whose worker was killed before the function began; else the verdict holds."""
        if self._supervisor.supervisor.libc is None:
            recovery.kill_marked(self._supervisor.name)  # where orphans cannot be adopted, they are found by their mark
        again = self._row.requeues < recovery.REQUEUES
        if again and ending.was_killed and not any(task.began.exists() for task in tasks):
            self._requeue(tasks)
            return None
        if verdict.cause == "stopped" and self._supervisor.ending:
            verdict = replace(verdict, error={**verdict.error, "message": _TOLD_TO_END})
        self._tasks = tasks
        return verdict, task.body

    def log_digests(self, tasks: Sequence[Task]) -> tuple[digests.LogDigest, ...]:
        """Return the digests of what the hosts printed; see ``Source``."""
        return recovery.log_digests(tasks)

    def may_seal(self, verdict: Outcome) -> bool:  # noqa: ARG002 - a pod has to send its log first
        """Say yes: nothing comes before the verdict here."""
        return True

    def try_again(self, reason: str) -> None:  # noqa: ARG002 - its log and its Note say so
        """Put the job back to its old place; see ``Source``."""
        self._requeue(self._tasks, counted=False)

    def _requeue(self, tasks: Sequence[Task], *, counted: bool = True) -> None:
        """Free what an attempt held, and put its job back to its old place, where any supervisor may take it."""
        recovery.clear_scratch(tasks)
        recovery.drop_data(self._paths, self.task.job_id)
        for task in tasks:
            task.began.unlink(missing_ok=True)
        self._queue.requeue(self.task.job_id, self._supervisor.name, counted=counted)

    def wait(self, seconds: float) -> bool:
        """Wait; return whether to stop waiting: the job was stopped or removed, or this process must end."""
        select.select([self.wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        with contextlib.suppress(BackendUnavailableError):  # a queue that is out of reach as well ends no job
            row = self._queue.jobs([self.task.job_id]).get(self.task.job_id)
            return self._supervisor.ending or row is None or bool(row.stop)
        return self._supervisor.ending

    def waits(self, words: str) -> None:
        """Write into the queue what the verdict waits for.

        After an hour, or when this process must end, whoever looks next seals it, with their own credentials.
        """
        sys.stderr.write(f"{self.task.job_id} {words}\n")
        self._queue.note(self.task.job_id, words)

    def patience_seconds(self, verdict: Outcome) -> float:  # noqa: ARG002 - the value is on the disk of this machine
        """Return how long a verdict waits for its store; see ``Source``."""
        return attempts.HOUR

    def let_go(self) -> None:
        """Tell everybody who waits to look; see ``Source``."""
        self._supervisor.title.reset()
        if self._heart is not None:
            self._heart.stop()

    def finish(self, tasks: Sequence[Task], verdict: Outcome, *, created: bool) -> None:  # noqa: ARG002 - one has won
        """Make the log durable, end the row, and clear up; see ``Source``."""
        recovery.finish(self._paths, self._queue, self.store, tasks, verdict.status)
        for task in tasks if verdict.succeeded else ():
            recovery.remove_folder(task.folder)  # a failed one keeps its working folder for a day
        recovery.tidy(self._paths, self.task.job_id, self.task)


def _free_address() -> str:
    """Return a free ``address:port`` on this machine, at which the hosts of an emulated slice can meet."""
    import socket  # only slices need it

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


_TOLD_TO_END = "the job was ended because its supervisor was told to end (SIGTERM), as at a shutdown of the machine"


def _lend_credentials(task: Task) -> None:
    """Let this supervisor open the store of a job as the job itself could: with what its client had."""
    for name in CREDENTIAL_VARIABLES if task.store_url.startswith(("gs://", "s3://")) else ():
        if name in task.environment:
            os.environ[name] = task.environment[name]
        else:
            os.environ.pop(name, None)


def _in_words(error: Exception) -> str:
    """Return what went wrong in one line: ours have a sentence and a reason, the system's have a file."""
    if isinstance(error, KineticError):
        return f"{error.what}, {error.why}" if error.why else str(error.what)
    return f"{type(error).__name__}: {error}"


def _print_traceback() -> None:
    """Write what went wrong into this supervisor's own log."""
    import traceback  # 5 ms; a supervisor's start is what a first call waits for

    traceback.print_exc()


def main(words: list[str]) -> None:
    """Be a supervisor: ``NAME TEMPLATE RUNTIME SLOTS GPUS``; already detached."""
    name, template_id, runtime, slots, gpus = words
    runner = str(Path(sys.argv[0]).parent)
    os.chdir("/")
    try:
        limits = Limits(int(slots), tuple(filter(None, gpus.split(","))))
        supervisor = SupervisorProcess(name, template_id, Path(runtime), limits, runner)
        supervise.preload()
        gc.collect()
        gc.freeze()
        gc.disable()
        supervisor.run()
    except Exception:  # noqa: BLE001 - the last frame: into the supervisor's log; whoever looks next buries us
        _print_traceback()
        os._exit(1)
    os._exit(0)
