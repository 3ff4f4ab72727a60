"""From the words of a container's command to its supervisor, and from whatever goes wrong to an exit code."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from kinetic._runner.pod import container, install
from kinetic._runner.pod.container import HostInPod
from kinetic._runner.pod.log_pump import (
    LogPump,
    LogSegments,
    LogSpool,
    drain_output,
    say,
    set_output,
    write_termination_message,
)
from kinetic._runner.pod.poller import Poller, run_on_thread
from kinetic._runner.pod.rendezvous import Peers
from kinetic._runner.supervisor import attempts, supervise, verdicts
from kinetic._runner.supervisor.attempts import FOREVER
from kinetic._runner.supervisor.supervise import DECIDED, Decision, Supervisor, store_patiently
from kinetic._runner.supervisor.verdicts import Ending
from kinetic._runner.worker import worker
from kinetic._stores.protocol import Store
from kinetic._wire import digests, distribution, inspection, keys, outcomes, pod_log_format
from kinetic._wire.outcomes import FAILED, AttemptNote, Outcome
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT, ORDER, TERMINATION_LOG, Task
from kinetic.errors import (
    CredentialsError,
    IntegrityError,
    KeyMissingError,
    KineticError,
    RunnerError,
    StoreError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from kinetic._runner.pod.rendezvous import Notifier


T = TypeVar("T")

USER_SECONDS = 10.0  # of the 15 that Spot gives
LAST_SECONDS = 3.0  # for the note and the last of the log
_LOG_SECONDS = 5.0  # how long a verdict waits for the last of the log
_HASTY_LOG_SECONDS = 1.0  # the same once the pod must go: user code may have left no more than 5 s for both
_LATE_LOG_SECONDS = 60.0  # how long the pod stays for it after the verdict
_ASKING_SECONDS = 1.0  # of those last ones, for the question whether the job is still known
_DRAIN_SECONDS = 2.0  # for whoever reads the container's output
_VERDICT_SECONDS = 60.0  # between two looks of a single host: somebody may have cancelled the job
_LINGER_SECONDS = 300.0  # JAX's processes wait so long for each other at their end


class PodSource:
    """The task of one pod, for the supervisor; see ``Source``.

    Args:
        task: What it was told.
        place: Where it stands.
        environ: The container's environment.

    Attributes:
        code: The exit code that this process leaves with.
        end_requested: Whether the cluster wants the pod to go.
        is_settled: Whether somebody else's verdict was seen.
        peers: The other hosts of a slice.
    """

    store: Store
    peers: Peers
    note: AttemptNote
    witness = "runner"
    passes: tuple[type[Exception], ...] = (KineticError, OSError)

    def __init__(self, task: Task, place: HostInPod, environ: Mapping[str, str]) -> None:
        self.task, self.place, self.environ = task, place, environ
        self.settings = container.settings_of(task)
        self.code = INFRASTRUCTURE_EXIT
        self.end_requested = False
        self.is_settled = False
        self._watching = False
        self._lingers_since: float | None = None
        self._always_short_of = container.shortages(place.base)
        self._notifier: Notifier | None = None
        self._log_pump: LogPump | None = None
        self._key = b""
        self._said = self._lacking = self._log_trouble = ""
        self._taken_away = 0
        self.wake, self._waker = os.pipe()
        for end in (self.wake, self._waker):
            os.set_blocking(end, False)

    def run(self) -> int:
        """Carry out the task, and return the exit code."""
        signal.signal(signal.SIGTERM, self._on_term)
        task, host = self.task, self.place.host
        say(f"job {task.job_id}" + (f", host {host} of {task.hosts}" if task.hosts > 1 else ""))
        if found := distribution.foreign_distribution(map(sysconfig.get_path, ("purelib", "platlib"))):
            say(f"this image has another package named kinetic ({found}); the job imports ours, which it brings along")
        Supervisor(worker.work).carry_out(self)
        if self._log_pump is not None:
            self._log_pump.drain(_DRAIN_SECONDS)
            for name in ("body", "word"):
                (self.place.base / name).unlink(missing_ok=True)
        if self.settings.holds and self.code != INFRASTRUCTURE_EXIT:
            self._dismiss()
            say("this process stays until it is told to end")
            self._watching = True
            self.wait_for(lambda: self.end_requested, FOREVER)
        return self.code

    def _dismiss(self) -> None:
        """Let the cluster end the slice; where it does not let us, its chips are held until the result is collected."""
        if self.settings.removes and self.place.host == 0:
            from kinetic._runner.pod import rendezvous  # only slices of one kind need it

            if why := rendezvous.remove_own_slice(self.settings.removes, self.environ):
                say(f"this slice holds its machines until somebody collects the result; it cannot be removed: {why}")

    def _on_term(self, *_: object) -> None:
        """Obey the cluster: pass it on to the worker, or end at once if there is none."""
        self.end_requested = True
        if not self._watching:
            say("told to end before the job began")
            os._exit(INFRASTRUCTURE_EXIT)
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b".")

    # ------------------------------------------------------------------------------------------------------ beginning

    @contextlib.contextmanager
    def temporary_key(self) -> Iterator[bytes]:
        """Lend the job's key; see ``Source``."""
        container.check_secret(self.settings)
        with container.temporary_key(self.settings) as key:
            yield key

    def key(self) -> bytes:
        """Return the job's key; see ``Source``."""
        self._key = self._key or container.key_of(self.settings)
        return self._key

    def reach(self, do: Callable[[], T]) -> T:
        """Do something with the store; a slice waits for it, since all its hosts would start again at once.

        Raises:
            RunnerError: The store was out of reach for an hour: a slice that is started again without end costs chips.
        """
        if self.task.hosts == 1:
            return do()
        try:
            return attempts.keep_trying(
                do,
                StoreUnreachableError,
                wait=self.wait,
                say=lambda error: say(f"the store is out of reach; it is tried again: {error}"),
                seconds=self.settings.patience_seconds,
            )
        except StoreUnreachableError as error:
            raise RunnerError(
                f"the store was out of reach for {self.settings.patience_seconds:g} s, so the slice gives up",
                why=str(error),
            ) from error

    def skip(self, why: str) -> None:
        """Say that there is nothing to do; see ``Source``."""
        if why == DECIDED:
            say(f"{pod_log_format.VERDICT} already; nothing is left to do")
            self.code = 0
        else:
            say("the job was removed; nothing is left to do")
            self.code = FAILED_EXIT

    def claim(self, key: bytes) -> AttemptNote | None:
        """Make the next attempt ours; of several hosts all have the number of their set's restarts."""
        machine, python = os.uname().nodename, distribution.python_version()
        details: dict[str, object] = {"pod": machine, "host": self.place.host}
        note = AttemptNote(self.task.job_id, 0, machine, time.time(), self.settings.runner_sha256, python, details)
        found = self._claim_together(note, key) if self.task.hosts > 1 else attempts.claim(self.store, note, key)
        if found is not None:
            self._lacking = container.lasting_shortage(self.store, found, key)
            self._taken_away = found.attempt  # those that failed are counted as retries
            if self.task.retries:
                self._taken_away -= attempts.count_failures(self.store, self.task.job_id, found.attempt, key)
            self.note = found
            say(
                pod_log_format.claim_line(
                    pod_log_format.Claim(self.task.job_id, found.attempt, self.place.host), self.task.hosts
                )
            )
            self.peers = Peers(self.store, self.task.job_id, found.attempt, self.place.host)
            if self.task.hosts > 1:
                self._begin_together(key)
        return found

    def _claim_together(self, note: AttemptNote, key: bytes) -> AttemptNote:
        note = replace(note, attempt=self.place.restarts or 0)
        if self.place.restarts is None:  # as below; a longer log of that life would stand behind the end of ours
            self.store.delete(keys.logs(note.job_id, note.attempt, self.place.host))
        if self.place.host == 0:
            if self.place.restarts is None:  # it may be the set's second life: what the first told must not count
                self.store.delete(keys.hosts(note.job_id, note.attempt))
                begun = inspection.mark_begun(note.job_id, note.attempt, inspection.page_key(inspection.token(key)))
                self.store.delete(begun)
            self.store.put(note.key, note.to_bytes(key), if_absent=True)
        return note

    def begin(self, note: AttemptNote) -> Sequence[Task]:
        """Get everything ready for the fork, unless the job was cut short too often; see ``Source``."""
        task, most = self.task, self.settings.most_attempts
        if most is not None and self._taken_away >= most:
            self._give_up("preempted", f"its machine was taken away {most} times, and it may begin {most} times only")
            return ()
        if self._lacking:
            self._give_up("evicted", container.eviction_message(self._lacking))
            return ()
        here = container.task_of(task, self.place, note.attempt, self.environ)
        container.check_secret(self.settings)
        self._spool = LogSpool(here.log)
        _hear_ourselves(here.log)
        if not supervise.needs_own_interpreter() and not here.own_interpreter:
            supervise.preload()
        return (here,)

    def _begin_together(self, key: bytes) -> None:
        from kinetic._runner.pod.rendezvous import Notifier  # 5 ms; most jobs have one host

        self._notifier = Notifier(self.store, self.task.job_id, self.note.attempt, self.place.host)
        self._notifier.publish(key)
        self.peers.ring = self._notifier.tell
        self.peers.begin(key)

    def _give_up(self, cause: str, message: str) -> None:
        """Fail a job that was cut short too often."""
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
        attempts.seal_outcome(self.store, verdict, self.key(), mark=self.task.mark)
        say(f"{pod_log_format.VERDICT}: the job failed: {message}")
        write_termination_message(self.settings.last_words, message)
        self.code = FAILED_EXIT

    # ------------------------------------------------------------------------------------------------- while it runs

    def forked(self, hosts: Sequence[supervise.WatchedWorker]) -> None:
        """Start what must not be there when this process forks: its threads; see ``Source``."""
        for watched in hosts:
            watched.grace, watched.spare_children = USER_SECONDS, True
        self._watching = True
        self.peers.key = self.key()

        def key_of(start: int) -> str:
            return keys.log_segment(self.task.job_id, self.note.attempt, self.place.host, start)

        self._log_pump = LogPump(self._spool, LogSegments(self.store, key_of, self._spool))
        self._log_pump.start()
        set_output(self._log_pump)
        seconds = self.settings.poll_seconds if self.task.hosts > 1 else _VERDICT_SECONDS
        self._poller = Poller(self._look, self._waker, seconds)
        self._poller.start()
        if self._notifier is not None:
            self._notifier.start(self._poller.ring, self.key())

    def _look(self) -> bool:
        """Look into the store, on the lookout's thread; say whether the worker shall end."""
        if self.task.hosts > 1:
            if self.place.host > 0:
                self.peers.remind()
                self.peers.answer()
            elif self.peers.look().trouble:
                return True
        self.is_settled = self.store.size(keys.result(self.task.job_id)) is not None or self.is_settled
        return self.is_settled or (self.task.hosts == 1 and self._is_replaced())

    def _is_replaced(self) -> bool:
        """Say whether a later attempt has begun: this pod was given up, as its machine may be, and lives on."""
        noted = self.store.entries(keys.attempts(self.task.job_id))
        later = (number for number, _ in keys.numbered(noted) if number > self.note.attempt)
        return any(self._is_noted(number) for number in later)

    def _is_noted(self, attempt: int) -> bool:
        """Return whether an attempt has begun: its Note is sealed with the job's key."""
        with contextlib.suppress(KeyMissingError, IntegrityError):
            return outcomes.read_note(self.store, self.task.job_id, attempt, self.key()).attempt == attempt
        return False

    def is_unwanted(self) -> bool:
        """Say whether the worker shall end; see ``Source``."""
        if self.end_requested:
            self._note_a_shortage()
        return self.end_requested or self._poller.found

    def _note_a_shortage(self) -> None:
        """Write down at once what this machine is short of: whoever is evicted has one second."""
        lacking = [what for what in container.shortages(self.place.base) if what not in self._always_short_of]
        if self.place.host == 0 and lacking and container.SHORT_OF not in self.note.details:
            self.note = replace(self.note, details={**self.note.details, container.SHORT_OF: lacking[0]})
            run_on_thread(lambda: self._note_the_end(f"this machine ran out of {lacking[0]}"))

    @property
    def elsewhere(self) -> Callable[[], bool] | None:
        """Asks whether the hosts in other pods are done; see ``Source``."""
        return self._others_are_over if self.task.hosts > 1 else None

    def _others_are_over(self) -> bool:
        """Say whether the worker, which is done and may wait for its peers, need not wait any longer."""
        now = time.monotonic()
        self._lingers_since = self._lingers_since or now
        over = self.place.host == 0 and self.peers.roster.all_ended(self.task.hosts)
        return over or self.is_unwanted() or now > self._lingers_since + _LINGER_SECONDS

    # --------------------------------------------------------------------------------------------------------- ending

    def decide(self, tasks: Sequence[Task], task: Task, ending: Ending, verdict: Outcome) -> Decision | None:  # noqa: ARG002
        """Say whether this attempt has a verdict, a word for the leader, or may be repeated; see ``Source``."""
        word, began = verdicts.final_report(task, ending), task.began.exists()
        why = verdicts.reason_without_verdict(word, ending, end_requested=self.end_requested, began=began)
        if self.task.hosts > 1:
            from kinetic._runner.pod import rendezvous  # most jobs have one host

            return (rendezvous.follow if self.place.host else rendezvous.lead)(self, task, verdict, ending, why)
        if self.is_settled:
            self.leave_to_the_verdict()
            return None
        if why:
            self.leave(why)
            return None
        return verdict, task.body

    def leave_to_the_verdict(self) -> None:
        """End without a verdict, because there is one."""
        say(f"{pod_log_format.VERDICT}: somebody else's; the worker was ended")
        if not self._is_forgotten():
            self.send_log()
        self.code = 0

    def leave(self, why: str, more: Callable[[], object] | None = None) -> None:
        """End without a verdict: say so, and bring note and log into the store as far as there is time."""
        self.code = INFRASTRUCTURE_EXIT
        words = f"this attempt has no verdict: {why}; another one may follow"
        say(words)
        write_termination_message(self.settings.last_words, words)
        limit = time.monotonic() + LAST_SECONDS
        if self._is_forgotten():
            return
        last = run_on_thread(more or (lambda: self._note_the_end(why)))
        self._finish_log(max(1.0, limit - time.monotonic()))
        last.join(max(0.0, limit - time.monotonic()))

    def _note_the_end(self, why: str) -> None:
        """Write down how an attempt ended that left no verdict."""
        if self.place.host == 0:
            ended = replace(self.note, details={**self.note.details, "ended": time.time(), "why": why})
            self.store.put(ended.key, ended.to_bytes(self.key()))

    def _is_forgotten(self) -> bool:
        """Say whether the job was removed meanwhile: then nothing more is written below its prefix."""
        found: list[int | None] = []
        run_on_thread(lambda: found.append(self.store.size(keys.record(self.task.job_id)))).join(_ASKING_SECONDS)
        return found == [None]

    @property
    def is_retried(self) -> bool:
        """Whether another pod may follow a failure: of several hosts, only a JobSet begins anew with its own number."""
        return self.task.hosts == 1 or self.place.restarts is not None

    def may_seal(self, verdict: Outcome) -> bool:
        """Send the log first, so that whoever sees the verdict sees all of it; see ``Source``."""
        self._log_trouble = self.send_log()
        if not verdict.succeeded and store_patiently(self, self._is_replaced):  # what failed here may go well there
            self.leave("another attempt has taken its place")
            return False
        return True

    def try_again(self, reason: str) -> None:
        """Leave the job to the next pod; see ``Source``."""
        self.leave(reason, lambda: None)

    def patience_seconds(self, verdict: Outcome) -> float:
        """Return how long a verdict waits for its store; see ``Source``."""
        return FOREVER if verdict.succeeded else attempts.HOUR

    def waits(self, words: str) -> None:
        """Say what the verdict waits for, once; see ``Source``."""
        if words != self._said:
            self._said = words
            say(f"{words}; it is tried again")

    def let_go(self) -> None:
        """Do nothing: nobody waits for this process but the cluster."""

    def finish(self, tasks: Sequence[Task], verdict: Outcome, *, created: bool) -> None:  # noqa: ARG002 - one host
        """Say what became of the job, and send what is left of its log; see ``Source``."""
        self.peers.ring()
        failed = created and not verdict.succeeded
        words = f"the job failed: {verdict.error.get('message', verdict.cause)}" if failed else "the job succeeded"
        say(f"{pod_log_format.VERDICT}: {words if created else 'another one was there first; it holds'}")
        if self._log_trouble and not self._is_forgotten() and (trouble := self._finish_log(_LATE_LOG_SECONDS)):
            say(f"the end of the log is not in the store: {trouble}")
        if failed:
            write_termination_message(self.settings.last_words, words)
        self.code = FAILED_EXIT if failed else 0

    def log_digests(self, tasks: Sequence[Task]) -> tuple[digests.LogDigest, ...]:  # noqa: ARG002 - one host
        """Return the digest of this host's log, which ends here: its worker is gone; see ``Source``."""
        return (self._log_pump.digest(self.note.attempt, self.place.host),) if self._log_pump is not None else ()

    def send_log(self) -> str:
        """Bring the log into the store, as far as there is time; return why its end is not there, or ""."""
        return self._finish_log(_HASTY_LOG_SECONDS if self.end_requested else _LOG_SECONDS)

    def _finish_log(self, seconds: float) -> str:
        return self._log_pump.finish(seconds) if self._log_pump is not None else ""

    def wait(self, seconds: float) -> bool:
        """Wait; say whether the pod must go; see ``Source``."""
        return self.wait_for(lambda: self.end_requested, seconds)

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds, woken by the lookout and by signals; say whether it does."""
        limit = time.monotonic() + seconds
        while not holds() and (left := limit - time.monotonic()) > 0:
            select.select([self.wake], [], [], min(left, _VERDICT_SECONDS))
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        return holds()


def _hear_ourselves(log: Path) -> None:
    """Have what this process itself writes to its standard error in the log, where it moves nothing out of its place.

    Readers count the bytes of the container's output; a warning of a library between them would not be in the store.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    os.dup2(descriptor, 2)
    os.close(descriptor)


_LAST_SECONDS = 2.0  # for whoever reads the container's output, after something went wrong


def main(words: list[str], base: str, runner: str) -> NoReturn:
    """Be the first process of a container.

    Args:
        words: The task.
        base: A folder of this container's own.
        runner: The folder with this code.
    """
    code = INFRASTRUCTURE_EXIT
    message, place_for_it = "", TERMINATION_LOG
    try:
        task = Task.from_page(page_of(words[0] if words else ""))
        settings = container.settings_of(task)
        place_for_it = settings.last_words
        install.install_store_client(settings.store_requirement, Path(base))
        place = HostInPod(container.host_of(task, os.environ), container.restarts_of(os.environ), Path(base), runner)
        code = PodSource(task, place, os.environ).run()
    except (KineticError, OSError) as error:
        code, message = _code_of(error), str(error)
    except BaseException as error:  # noqa: BLE001 - the last frame of the first process
        say(traceback.format_exc().rstrip())
        message = f"{type(error).__name__}: {error}"
    finally:
        if message:
            say(message)
            write_termination_message(place_for_it, message)
            drain_output(_LAST_SECONDS)
        os._exit(code)


def page_of(word: str) -> str:
    """Return the page that an argument of the container stands for."""
    return Path(word[1:]).read_text() if word.startswith("@") else word


def _code_of(error: Exception) -> int:
    """Say whether another attempt may fare better: one that finds the store in reach, and room on the disk."""
    passes = isinstance(error, OSError | StoreError | CredentialsError) and not isinstance(error, IntegrityError)
    return INFRASTRUCTURE_EXIT if passes else FAILED_EXIT
