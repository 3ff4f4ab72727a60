"""The task of one pod as the supervisor sees it: claimed, watched while it runs, and brought into the store."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kinetic._runner.pod import container, log_pump
from kinetic._runner.pod.container import HostInPod
from kinetic._runner.pod.log_pump import LogPump, LogSegments, LogSpool, say, write_termination_message
from kinetic._runner.supervisor import attempts, verdicts, worker_process
from kinetic._runner.supervisor.attempts import FOREVER
from kinetic._runner.supervisor.supervise import DECIDED, TAKEN, Decision, Supervisor, store_patiently
from kinetic._runner.supervisor.verdicts import Ending
from kinetic._runner.supervisor.worker_monitor import WatchedWorker
from kinetic._runner.supervisor.worker_process import EarlyWorker
from kinetic._runner.worker import worker
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys, pod_log_format, python_runtime
from kinetic._wire.outcomes import FAILED, AttemptNote, Outcome
from kinetic._wire.task import (
    FAILED_EXIT,
    FOLLOWED_FILE,
    INFRASTRUCTURE_EXIT,
    INSTALL,
    ORDER,
    AttemptFiles,
    Task,
)
from kinetic.errors import (
    CredentialsError,
    KineticError,
    PredecessorError,
    RunnerError,
    StoreError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from kinetic._runner.pod.rendezvous import Notifier, Peers
    from kinetic._runner.pod.usage_upload import UsageUpload
    from kinetic._runner.pod.waiting_jobs import Others
    from kinetic._wire.measurements import Measurements


T = TypeVar("T")

USER_SECONDS = 10.0  # of the 15 that Spot gives
LAST_SECONDS = 3.0  # for the note and the last of the log
_LOG_SECONDS = 5.0  # how long a verdict waits for the last of the log
_HASTY_LOG_SECONDS = 1.0  # the same once the pod must go: user code may have left no more than 5 s for both
_USAGE_SECONDS = 1.0  # how long it waits for what the job used in the end
_LATE_LOG_SECONDS = 60.0  # how long the pod stays for it after the verdict
_ASKING_SECONDS = 1.0  # of those last ones, for the question whether the job is still known
_VERDICT_SECONDS = 60.0  # between two checks of a single host whether the job was cancelled
_LINGER_SECONDS = 300.0  # JAX's processes wait so long for each other at their end
_LEAST_POLL_SECONDS = 0.1  # notifications that come together are one


def run_on_thread(task: Callable[[], object]) -> threading.Thread:
    def attempt() -> None:
        with contextlib.suppress(KineticError, OSError):
            task()

    thread = threading.Thread(target=attempt, name="kinetic-last-words", daemon=True)
    thread.start()
    return thread


class Poller(threading.Thread):
    """Polls the store every few seconds, or when there is news, and wakes the parent, as long as the process lives.

    The parent itself asks the store nothing while its worker runs: a store that does not answer would keep it from
    passing on the end that the cluster announces.
    """

    def __init__(self, poll: Callable[[], bool], wake: int, seconds: float) -> None:
        super().__init__(name="kinetic-poller", daemon=True)
        self.found = False  # whether the worker should end, as a poll returned
        self._poll, self._wake, self._seconds = poll, wake, seconds
        self._news = threading.Event()
        self.poll_soon = self._news.set

    def run(self) -> None:
        while True:
            self._news.wait(self._seconds)
            self._news.clear()
            with contextlib.suppress(Exception):  # it may answer the next time; if this ended, a slice would hang
                self.found = self._poll() or self.found
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b".")
            time.sleep(_LEAST_POLL_SECONDS)


class PodSource:
    """The task of one pod, for the supervisor; see ``Source``."""

    store: Store
    peers: Peers  # of a slice
    note: AttemptNote
    witness = "runner"
    passes: tuple[type[Exception], ...] = (KineticError, OSError)
    in_background = staticmethod(run_on_thread)

    def __init__(self, task: Task, place: HostInPod, environ: Mapping[str, str]) -> None:
        self.task, self.place, self.environ = task, place, environ
        self.settings = container.settings_of(task)
        self.code = INFRASTRUCTURE_EXIT
        self.end_requested = False  # by the cluster
        self.is_settled = False  # another process's verdict was seen
        self.is_removed = False  # with its verdict, before this host of a slice saw that
        self._is_watching = False
        self._lingers_since: float | None = None
        self._claimed: AttemptNote | None = None
        self._always_short_of = container.shortages(place.base)
        self._notifier: Notifier | None = None
        self._log_pump: LogPump | None = None
        self._usage: UsageUpload | None = None
        self._key = b""
        self._said = self._shortage = self._brief = self._log_trouble = ""
        self._interruptions = self._first_attempt = 0
        self._waiting_others: Others | None = None
        self.wake, self._waker = os.pipe()
        for end in (self.wake, self._waker):
            os.set_blocking(end, False)

    def run(self, supervisor: Supervisor) -> int:
        signal.signal(signal.SIGTERM, self._on_term)
        task, host = self.task, self.place.host
        say(f"job {task.job_id}" + (f", host {host} of {task.hosts}" if task.hosts > 1 else ""))
        self._open_log()
        is_warm = bool(self.settings.warm)
        if is_warm and self._install_store_client():  # else its client is imported already
            supervisor.discard_early()  # it does not find what was installed after it was forked
        self._begin_with(supervisor)
        if not is_warm and self._install_store_client():
            supervisor.discard_early()
        import sysconfig  # 1 ms, while the worker gets ready

        if found := python_runtime.foreign_distribution(map(sysconfig.get_path, ("purelib", "platlib"))):
            say(f"this image has another package named kinetic ({found}); the job imports ours, which it brings along")
        supervisor.carry_out(self)
        supervisor.discard_early()  # if there was nothing to do
        if self._log_pump is not None:
            self._log_pump.drain(log_pump.DRAIN_SECONDS)
            for name in ("body", "word"):
                (self.place.base / name).unlink(missing_ok=True)
        if self.settings.holds and self.code != INFRASTRUCTURE_EXIT:
            if self.settings.removes and host == 0:
                from kinetic._runner.pod import rendezvous  # most jobs have one host

                if why := rendezvous.remove_own_slice(self.settings.removes, self.environ):
                    say(f"this slice holds its machines until the result is collected; it cannot be removed: {why}")
            say("this process runs until it is asked to end")
            self._is_watching = True
            self.wait_for(lambda: self.end_requested, FOREVER)
        return self.code

    @property
    def waits_for_exit(self) -> bool:
        """Whether the verdict waits for the end of the worker's process: a slice's hosts wait for each other anyway."""
        return self.task.hosts > 1

    @property
    def verdict_words(self) -> str:
        """How a line begins that says that there is a verdict; of a warm pod, whose log has many, with the job."""
        return pod_log_format.verdict_of(self.task.job_id) if self.settings.warm else pod_log_format.VERDICT

    def _open_log(self) -> None:
        """Make the log, and let our own standard error go there.

        Readers count the bytes of the container's output, and a warning of a library between them would not be in the
        store.
        """
        log = AttemptFiles(str(self.place.base), "").log
        self._spool = LogSpool(log)
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.dup2(descriptor, 2)
        os.close(descriptor)

    def _begin_with(self, supervisor: Supervisor) -> None:
        """Have a worker fetch the order that was forked before anything is loaded that has threads."""
        try:
            here = container.task_of(self.task, self.place, 0, self.environ)
        except RunnerError:  # raised again by the task of the attempt
            here = None
        if here is None or here.own_interpreter:
            supervisor.discard_early()
            return
        for _ in range(2):
            if supervisor.early is None:
                if worker_process.needs_own_interpreter():
                    return
                supervisor.early = EarlyWorker(worker.get_ready, supervisor.libc)
            with contextlib.suppress(BrokenPipeError):  # it was forked long ago, and has ended
                supervisor.early.tell(here)
                return
            supervisor.discard_early()

    def _install_store_client(self) -> bool:
        """Install what opens the store if the image does not have it; return whether that was necessary."""
        requirement = self.settings.store_requirement
        if not requirement:
            return False
        try:
            importlib.import_module(requirement.partition("=")[0])
        except ImportError:
            from kinetic._runner.pod import install, kept_packages  # 5 ms; images of ours have it

            base = self.place.base
            if self.settings.warm:
                kept_packages.provide_client(requirement, base)
            else:
                install.install_store_client(requirement, base, base / "clients")
            return True
        return False

    def _on_term(self, *_: object) -> None:
        """Pass the cluster's request on to the worker, or end at once if there is none."""
        self.end_requested = True
        if not self._is_watching:
            say("told to end before the job began")
            os._exit(INFRASTRUCTURE_EXIT)
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b".")

    # ------------------------------------------------------------------------------------------------------ beginning

    @contextlib.contextmanager
    def temporary_key(self) -> Iterator[bytes]:
        container.check_secret(self.settings)
        with container.temporary_key(self.settings) as key:
            yield key

    def key(self) -> bytes:
        self._key = self._key or container.key_of(self.settings)
        return self._key

    def reach(self, do: Callable[[], T]) -> T:
        """Do something with the store; a slice waits for it, since all its hosts would start again at once.

        But not longer than an hour, and ten minutes for a right that may just have been given: a slice that is started
        again without end costs chips.
        """
        if self.task.hosts == 1:
            return do()
        seconds = self.settings.patience_seconds
        trying = functools.partial(
            attempts.keep_trying,
            wait=self.wait,
            say=lambda error: say(f"the store cannot be used yet; it is tried again: {error}"),
        )
        try:
            return trying(
                lambda: trying(do, CredentialsError, seconds=seconds / 6), StoreUnreachableError, seconds=seconds
            )
        except (StoreError, CredentialsError) as error:
            raise RunnerError(
                "the store could not be used, so the slice gives up", why=attempts.on_one_line(error), next=error.next
            ) from error

    def skip(self, why: str) -> None:
        if why == DECIDED:
            say(f"{self.verdict_words} already; nothing is left to do")
            self._start_others()
            self.code = 0
        elif why == TAKEN:
            say("the job is not this pod's; nothing is left to do here")
            self.code = FAILED_EXIT
        else:
            say("the job was removed; nothing is left to do")
            self.code = FAILED_EXIT

    def claim(self, key: bytes) -> AttemptNote | None:
        """Make the next attempt ours; the hosts of a slice join that of the first one."""
        task, host = self.task, self.place.host
        if self.settings.warm or self.settings.was_assigned:
            from kinetic._runner.pod import warm_task  # most pods have one job

            taken = warm_task.take(self, key)
            if taken is None:
                return None
            self._first_attempt = taken
        machine, python = os.uname().nodename, python_runtime.python_version()
        details: dict[str, object] = {"pod": machine, "host": host}
        note = AttemptNote(task.job_id, 0, machine, time.time(), self.settings.runner_sha256, python, details)
        found = self._claimed  # where the store was out of reach right after it, this is done once more
        if found is None:
            found = self._claim_together(note, key) if task.hosts > 1 else attempts.claim(self.store, note, key)
        if found is not None:
            self._claimed = found
            self._shortage = container.lasting_shortage(self.store, found, key)
            self._brief = container.brief_attempts(self.store, found, key) if task.hosts > 1 else ""
            self._interruptions = found.attempt  # those that failed are counted as retries
            if task.retries:
                self._interruptions -= attempts.count_failures(self.store, task.job_id, found.attempt, key)
            self.note = found
            claim = pod_log_format.Claim(task.job_id, found.attempt, host)
            say(pod_log_format.claim_line(claim, task.hosts))
            if task.hosts > 1:
                from kinetic._runner.pod.rendezvous import Notifier, Peers  # 10 ms; most jobs have one host

                self.peers = Peers(self.store, task.job_id, found.attempt, host)
                self._notifier = Notifier(self.store, task.job_id, found.attempt, host)
                self._notifier.publish(key)
                self.peers.notify = self._notifier.notify
                self.peers.begin(key)
        return found

    def _claim_together(self, note: AttemptNote, key: bytes) -> AttemptNote | None:
        if not self.settings.warm:
            from kinetic._runner.pod import rendezvous  # most jobs have one host

            return rendezvous.claim_in_group(self, note, key)
        restarts = max(0, (self.place.restarts or 0) - self.settings.first_restart)
        note = replace(note, attempt=self._first_attempt + restarts)
        if self.place.host == 0:
            self.store.put(note.key, note.to_bytes(key), if_absent=True)
        return note

    def begin(self, note: AttemptNote) -> Sequence[Task]:
        """Get everything ready for the fork, unless the job was interrupted too often; see ``Source``."""
        most = self.settings.most_attempts
        if most is not None and self._interruptions >= most:
            self._give_up("preempted", f"its machine was taken away {most} times, and it may begin {most} times only")
            return ()
        if self._shortage:
            self._give_up("evicted", container.eviction_message(self._shortage))
            return ()
        if self._brief:
            times = f"{container.MOST_BRIEF} attempts in a row ended within {container.BRIEF_SECONDS:g} s"
            self._give_up("infrastructure", f"{times}, the last one as {self._brief}; the function may end its own pod")
            return ()
        task = self.task
        if task.after:
            if (values := self._values_of_predecessors()) is None:
                return ()
            task = replace(task, values=values)
        return (container.task_of(task, self.place, note.attempt, self.environ),)

    def _values_of_predecessors(self) -> list[dict[str, object]] | None:
        """Return where the values are that the arguments refer to; None if a predecessor did not succeed."""
        from kinetic._runner.supervisor import predecessors  # only a job that follows others

        try:
            data = Path(self.settings.secret, FOLLOWED_FILE).read_bytes()
            return predecessors.check_ready(self.store, predecessors.of_task(self.task.after), data)
        except PredecessorError as error:
            if error.code == "predecessor-waits":
                raise
            verdict = predecessors.verdict_of(
                self.task.job_id, self.task.key_id, error, witness=self.witness, attempt=self.note.attempt
            )
            self._seal_at_once(verdict, error.what)
            return None

    def _give_up(self, cause: str, message: str) -> None:
        verdict = Outcome(
            self.task.job_id,
            FAILED,
            attempt=self.note.attempt,
            host=self.place.host,
            cause=cause,
            phase=ORDER,
            error={"message": message},
            started=self.note.started,
            ended=time.time(),
            witness=self.witness,
            key_id=self.task.key_id,
        )
        self._seal_at_once(verdict, message)

    def _seal_at_once(self, verdict: Outcome, message: str) -> None:
        attempts.seal_outcome(self.store, verdict, self.key(), mark=self.task.mark)
        self._settle_followers(succeeded=False)
        say(f"{self.verdict_words}: the job failed: {message}")
        write_termination_message(self.settings.last_words, message)
        self.code = FAILED_EXIT

    # ------------------------------------------------------------------------------------------------- while it runs

    def forked(self, hosts: Sequence[WatchedWorker]) -> None:
        """Start the threads, which must not exist when this process forks; see ``Source``."""
        for watched in hosts:
            watched.grace, watched.spare_children = USER_SECONDS, True
        self._is_watching = True

        def key_of(start: int) -> str:
            return keys.log_segment(self.task.job_id, self.note.attempt, self.place.host, start)

        self._log_pump = LogPump(self._spool, LogSegments(self.store, key_of, self._spool))
        self._log_pump.start()
        log_pump.set_output(self._log_pump)
        seconds = self.settings.poll_seconds if self.task.hosts > 1 or self._others() else _VERDICT_SECONDS
        key = self.key()
        if self.task.hosts > 1:
            self.peers.key = key
        self._poller = Poller(self._poll, self._waker, seconds)
        self._poller.start()
        signal.signal(signal.SIGUSR1, lambda *_: self._poller.poll_soon())  # of a warm pod: the job was cancelled
        if self._notifier is not None:
            self._notifier.start(self._poller.poll_soon, key)

    def keep_usage(self, task: Task, found: Measurements) -> None:
        """Have a thread bring it into the store, now and then; see ``Source``."""
        if self._usage is None:
            from kinetic._runner.pod.usage_upload import UsageUpload  # jobs that end within a second need none

            key = self.key()
            at = keys.usage(task.job_id, task.attempt, task.host)
            self._usage = UsageUpload(lambda each: self.store.put(at, each.to_bytes(key)))
            self._usage.start()
        self._usage.offer(found)

    def _poll(self) -> bool:
        """Read the store, on the poller's thread; return whether the worker should end."""
        if self.task.hosts > 1:
            if self.place.host > 0:
                if self.peers.has_ended and self.store.size(keys.record(self.task.job_id)) is None:
                    # its client has collected the result, and a warm slice does not end with its job
                    self.is_removed = self.is_settled = True
                    return True
                self.peers.answer()
            elif self.peers.read().trouble:
                return True
        self.is_settled = self.store.size(keys.result(self.task.job_id)) is not None or self.is_settled
        if others := self._others():
            others.start_if_compiled()
        return self.is_settled or (self._may_be_replaced and self.is_replaced())

    @property
    def _may_be_replaced(self) -> bool:
        """Whether another attempt may have begun; a host that hears of its leader is in that one's attempt."""
        if self.task.hosts == 1:
            return True
        return self.place.host > 0 and not self.settings.warm and not (self._notifier and self._notifier.is_connected)

    def _others(self) -> Others | None:
        """Return the children of the batch that wait for what this one compiles; None where there are none."""
        if self._waiting_others is None and self.settings.awaited_seconds and not self.place.host:
            from kinetic._runner.pod.waiting_jobs import Others  # only in pods of such batches

            self._waiting_others = Others(self.store, self.task, self.place.base, self.environ)
        return self._waiting_others

    def _start_others(self) -> None:
        if others := self._others():
            others.start()

    def is_replaced(self) -> bool:
        """Return whether a later attempt has begun: this pod was given up, as its machine may be, and still runs."""
        newest = attempts.newest(self.store, self.task.job_id, self.key())
        return newest is not None and newest.attempt > self.note.attempt

    def is_unwanted(self) -> bool:
        if self.end_requested:
            self._note_shortage()
        return self.end_requested or self._poller.found

    def _note_shortage(self) -> None:
        """Write down at once what this machine is short of: an evicted pod has one second."""
        lacking = [what for what in container.shortages(self.place.base) if what not in self._always_short_of]
        if self.place.host == 0 and lacking and container.SHORT_OF not in self.note.details:
            self.note = replace(self.note, details={**self.note.details, container.SHORT_OF: lacking[0]})
            run_on_thread(lambda: self._note_the_end(f"this machine ran out of {lacking[0]}"))

    @property
    def elsewhere(self) -> Callable[[], bool] | None:
        return self._need_not_linger if self.task.hosts > 1 else None

    def _need_not_linger(self) -> bool:
        """Return whether the worker, which is done and may wait for its peers, need not wait any longer."""
        now = time.monotonic()
        self._lingers_since = self._lingers_since or now
        over = self.place.host == 0 and self.peers.roster.all_ended(self.task.hosts)
        return over or self.is_unwanted() or now > self._lingers_since + _LINGER_SECONDS

    # --------------------------------------------------------------------------------------------------------- ending

    def decide(self, tasks: Sequence[Task], task: Task, ending: Ending, verdict: Outcome) -> Decision | None:  # noqa: ARG002
        """Return whether this attempt has a verdict, a report for the leader, or may be repeated; see ``Source``."""
        report, began = verdicts.final_report(task, ending), task.began.exists()
        why = verdicts.reason_without_verdict(report, ending, end_requested=self.end_requested, began=began)
        if why.startswith(verdicts.OUT_OF_REACH) and container.was_out_of_reach(self.store, self.note, self.key()):
            why = ""  # of the first host; nothing else would keep a JobSet from starting again without end
        if self.task.hosts > 1:
            from kinetic._runner.pod import rendezvous  # as above

            return (rendezvous.follow if self.place.host else rendezvous.lead)(self, task, verdict, ending, why)
        if self.is_settled:
            self.leave_to_the_verdict()
            return None
        if why:
            self.leave(why)
            return None
        if self.gives_back(verdict):
            self.leave_to_own_pod(verdict, task.log)
            return None
        return verdict, task.body

    def gives_back(self, verdict: Outcome) -> bool:
        """Return whether a warm pod could not bring the packages that another pod has, or could get."""
        if not self.settings.warm or verdict.phase != INSTALL or verdict.cause == "deadline":
            return False
        from kinetic._runner.pod import kept_packages  # most pods have one job

        return kept_packages.is_difference(self.task.requirements)

    def leave_to_own_pod(self, verdict: Outcome, log: Path) -> None:
        from kinetic._runner.pod import warm_task  # as above

        warm_task.give_back(self, verdict, log)

    def leave_to_the_verdict(self) -> None:
        self._start_others()
        say(f"{self.verdict_words}, from another process; the worker was ended")
        if self.task.hosts > 1 and self.settings.warm:
            self.peers.notify()  # the pods of the others stay, so nothing else tells them before their next poll
        if not self._is_forgotten():
            self.send_log()
        self.code = 0

    def leave(self, why: str, more: Callable[[], object] | None = None, *, failed: bool = False) -> None:
        """End without a verdict: say so, and bring note and log into the store as far as there is time."""
        self.code = INFRASTRUCTURE_EXIT
        words = why if failed else f"this attempt has no verdict: {why}; another one may follow"
        say(words)
        write_termination_message(self.settings.last_words, words)
        limit = time.monotonic() + LAST_SECONDS
        if self._is_forgotten():
            return
        last = run_on_thread(more or (lambda: self._note_the_end(why)))
        others = self._others()
        threads = [last, run_on_thread(others.start_if_decided)] if others else [last]
        self._finish_log(max(1.0, limit - time.monotonic()))
        for thread in threads:
            thread.join(max(0.0, limit - time.monotonic()))

    def _note_the_end(self, why: str) -> None:
        if self.place.host == 0:
            ended = replace(self.note, details={**self.note.details, "ended": time.time(), container.WHY: why})
            self.store.put(ended.key, ended.to_bytes(self.key()))

    def _is_forgotten(self) -> bool:
        """Return whether the job was removed meanwhile: then nothing more is written below its prefix."""
        found: list[int | None] = []
        run_on_thread(lambda: found.append(self.store.size(keys.record(self.task.job_id)))).join(_ASKING_SECONDS)
        return found == [None]

    @property
    def is_retried(self) -> bool:
        """Whether another pod may follow a failure: of several hosts, an Indexed Job does not begin anew."""
        return self.task.hosts == 1 or self.place.restarts is not None or self.settings.holds

    def may_seal(self, verdict: Outcome) -> bool:
        """Send the log first, so that a client that sees the verdict sees all of it; see ``Source``."""
        self._log_trouble = self.send_log()
        if not verdict.succeeded and store_patiently(self, self.is_replaced):  # what failed here may succeed there
            self.leave("another attempt has taken its place")
            return False
        return True

    def try_again(self, reason: str) -> None:
        self.leave(reason, lambda: None, failed=True)

    def patience_seconds(self, verdict: Outcome) -> float:
        return FOREVER if verdict.succeeded else attempts.HOUR

    def report_waiting(self, words: str) -> None:
        if words != self._said:
            self._said = words
            say(f"{words}; it is tried again")

    def wake_waiting(self, tasks: Sequence[Task], verdict: Outcome | None) -> None: ...

    def finish(self, tasks: Sequence[Task], verdict: Outcome, *, created: bool) -> None:  # noqa: ARG002 - one host
        if self.task.hosts > 1:
            self.peers.notify()
        if self.settings.warm:
            from kinetic._runner.pod import fork_server  # most pods have one job

            fork_server.report_decided()
        failed = created and not verdict.succeeded
        words = f"the job failed: {verdict.error.get('message', verdict.cause)}" if failed else "the job succeeded"
        say(f"{self.verdict_words}: {words if created else 'another one was there first; it is valid'}")
        if self._log_trouble and not self._is_forgotten() and (trouble := self._finish_log(_LATE_LOG_SECONDS)):
            say(f"the end of the log is not in the store: {trouble}")
        if failed:
            write_termination_message(self.settings.last_words, words)
        if created:
            self._settle_followers(succeeded=verdict.succeeded)
        self.code = FAILED_EXIT if failed else 0

    def _settle_followers(self, *, succeeded: bool) -> None:
        """Start or close what waits for this job, if this pod was given the token with which it may."""
        self._start_others()
        if self.place.host or not container.ACCOUNT_TOKEN.is_file():
            return
        from kinetic._runner.pod import waiting_jobs  # only where the cluster allows it

        with contextlib.suppress(Exception):  # the verdict is there; the next process that looks does it
            job_id, group = self.task.job_id, keys.group_of_mark(self.task.mark)
            for words in waiting_jobs.settle(self.store, job_id, group, succeeded=succeeded, environ=self.environ):
                say(words)

    def log_digests(self, tasks: Sequence[Task]) -> tuple[digests.LogDigest, ...]:  # noqa: ARG002 - one host
        """Return the digest of this host's log, which ends here: its worker is gone; see ``Source``."""
        return (self._log_pump.digest(self.note.attempt, self.place.host),) if self._log_pump is not None else ()

    def send_log(self) -> str:
        """Bring the log into the store, as far as there is time; return why its end is not there, or ""."""
        return self._finish_log(_HASTY_LOG_SECONDS if self.end_requested else _LOG_SECONDS)

    def _finish_log(self, seconds: float) -> str:
        if self._usage is not None:
            self._usage.send_last()  # at the same time
        trouble = self._log_pump.finish(seconds) if self._log_pump is not None else ""
        if self._usage is not None:
            self._usage.join(min(seconds, _USAGE_SECONDS))
        return trouble

    def wait(self, seconds: float) -> bool:
        return self.wait_for(lambda: self.end_requested, seconds)

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds, woken by the poller and by signals; return whether it does."""
        limit = time.monotonic() + seconds
        while not holds() and (left := limit - time.monotonic()) > 0:
            select.select([self.wake], [], [], min(left, _VERDICT_SECONDS))
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        return holds()
