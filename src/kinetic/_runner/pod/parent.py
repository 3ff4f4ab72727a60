"""The parent: the first process of a container. It starts one worker, passes signals on, and leaves a verdict.

It ends with 0 only if there is a verdict in the store; the other codes stand in ``_wire/pod.py``. From the moment the
cluster says that the pod must go, user code has 10 s, and the parent 3 s more for a note and the last of the log.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._runner import afresh, judging, keeping, patience, retries, sealing
from kinetic._runner.judging import Ending
from kinetic._runner.pod import claiming, deciding, preparing, shortage
from kinetic._runner.pod.lookout import Lookout, begin
from kinetic._runner.pod.peers import Peers
from kinetic._runner.pod.preparing import Place
from kinetic._runner.pod.printing import Printing
from kinetic._runner.pod.segments import Segments
from kinetic._runner.pod.spool import Spool
from kinetic._runner.pod.telling import last_words, say, through
from kinetic._runner.work import ORDER, Work
from kinetic._stores.opening import open_anew, open_store
from kinetic._wire import digests, distribution, keys, pages, podlog
from kinetic._wire import note as notes
from kinetic._wire.handles import HISTORY
from kinetic._wire.outcome import FAILED, Outcome
from kinetic._wire.pod import FAILED_EXIT, INFRASTRUCTURE_EXIT, PodPage
from kinetic.errors import (
    CredentialsError,
    IntegrityError,
    KeyMissingError,
    KineticError,
    RunnerError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from kinetic._runner.pod.notifier import Notifier

USER_SECONDS = 10.0  # of the 15 that Spot gives
LAST_SECONDS = 3.0  # for the note and the last of the log
_LOG_SECONDS = 5.0  # how long a verdict waits for the last of the log
_HASTY_LOG_SECONDS = 1.0  # the same once the pod must go: user code may have left no more than 5 s for both
_LATE_LOG_SECONDS = 60.0  # how long the pod stays for it after the verdict
_ASKING_SECONDS = 1.0  # of those last ones, for the question whether the job is still known
_DRAIN_SECONDS = 2.0  # for whoever reads the container's output
_VERDICT_SECONDS = 60.0  # between two looks of a single host: somebody may have cancelled the job
_FOREVER = float("inf")  # a value is worth a machine until somebody says otherwise: the job's own deadline, or a cancel
_LINGER_SECONDS = 300.0  # JAX's processes wait so long for each other at their end


class Parent:
    """The parent process of one pod.

    Args:
        page: What it was told.
        place: Where it stands.
        environ: The container's environment.
    """

    def __init__(self, page: PodPage, place: Place, environ: Mapping[str, str]) -> None:
        self.page, self.place, self.environ = page, place, environ
        self.told_to_end = False
        self.watching = False
        self.is_settled = False  # somebody else's verdict was seen
        self.started = time.time()
        self._lingers_since: float | None = None
        self._always_short_of = shortage.of_this_machine(place.base)
        self.notifier: Notifier | None = None
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)

    def run(self) -> int:
        """Do everything, and return the exit code."""
        signal.signal(signal.SIGTERM, self._on_term)
        code = self._run()
        if self.page.holds and code != INFRASTRUCTURE_EXIT:
            self._dismiss()
            say("this process stays until it is told to end")
            self.watching = True
            self.wait_for(lambda: self.told_to_end, float("inf"))
        return code

    def _run(self) -> int:
        page, host = self.page, self.place.host
        say(f"job {page.job_id}" + (f", host {host} of {page.hosts}" if page.hosts > 1 else ""))
        if found := distribution.stranger(map(sysconfig.get_path, ("purelib", "platlib"))):
            say(f"this image has another package named kinetic ({found}); the job imports ours, which it brings along")
        self.store = open_store(page.store_url)
        if self._looked_patiently():
            say(f"{podlog.VERDICT} already; nothing is left to do")
            return 0
        if self._was_removed():
            say("the job was removed; nothing is left to do")
            return FAILED_EXIT
        preparing.check_secret(page)
        with preparing.borrowed_key(page) as key:
            self.note = claiming.claim(self.store, page, self.place, key)
            lacking = shortage.that_lasts(self.store, self.note, key)
            taken_away = self._taken_away(key)
            say(podlog.claimed(podlog.Claim(page.job_id, self.note.attempt, host), page.hosts))
            self.peers = Peers(self.store, page.job_id, self.note.attempt, host)
            if page.hosts > 1:
                self._begin_together(page, host, key)
        if page.most_attempts is not None and taken_away >= page.most_attempts:
            return self._give_up(_failed("preempted", _taken_too_often(page.most_attempts), self))
        if lacking:
            return self._give_up(_failed("evicted", shortage.in_words(lacking), self))
        task = preparing.work_of(page, self.place, self.note.attempt, self.environ)
        ending = self._keep(task)
        code = self._conclude(task, ending)
        self.printing.drain(_DRAIN_SECONDS)
        for path in (task.body, task.meta):
            path.unlink(missing_ok=True)
        return code

    def _begin_together(self, page: PodPage, host: int, key: bytes) -> None:
        from kinetic._runner.pod.notifier import Notifier  # 5 ms; most jobs have one host

        self.notifier = Notifier(self.store, page.job_id, self.note.attempt, host)
        self.notifier.publish(key)
        self.peers.ring = self.notifier.tell
        self.peers.begin(key)

    def _dismiss(self) -> None:
        """Let the cluster end the slice; where it does not let us, its chips are held until the result is collected."""
        if self.page.removes and self.place.host == 0:
            from kinetic._runner.pod import dismissing  # only slices of one kind need it

            if why := dismissing.dismiss(self.page.removes, self.environ):
                say(f"this slice holds its machines until somebody collects the result; it cannot be removed: {why}")

    # ------------------------------------------------------------------------------------------------- while it runs

    def _keep(self, task: Work) -> Ending:
        """Start the worker, and watch it to its end."""
        preparing.check_secret(self.page)
        libc = keeping.use_linux()
        keeping.adopt_orphans(libc)  # the first process of a container is that by itself
        bell = keeping.Bell()
        spool = Spool(task.log)
        _hear_ourselves(task.log)
        if not afresh.is_needed() and not task.own_interpreter:
            keeping.load_ahead()
        self.spare = sealing.Reserve(self.store)
        watched = keeping.start(task, libc)
        watched.grace, watched.spare_children = USER_SECONDS, True
        self.watching = True
        self.key = self.peers.key = preparing.key_of(self.page)
        self._begin_threads(task, spool)
        elsewhere = self._others_are_over if self.page.hosts > 1 else None
        return keeping.watch([watched], bell, wake=self._wake, stop=self._is_unwanted, elsewhere=elsewhere)[0]

    def _begin_threads(self, task: Work, spool: Spool) -> None:
        """Start what must not be there when this process forks."""

        def key_of(start: int) -> str:
            return keys.log_segment(task.job_id, task.attempt, task.host, start)

        self.printing = Printing(spool, Segments(self.store, key_of, spool))
        self.printing.start()
        through(self.printing)
        seconds = self.page.look_seconds if self.page.hosts > 1 else _VERDICT_SECONDS
        self.lookout = Lookout(self._look, self._waker, seconds)
        self.lookout.start()
        if self.notifier is not None:
            self.notifier.start(self.lookout.ring, self.key)

    def _look(self) -> bool:
        """Look into the store, on the lookout's thread; say whether the worker shall end."""
        if self.page.hosts > 1:
            if self.place.host > 0:
                self.peers.remind()
                self.peers.answer()
            elif self.peers.look().trouble:
                return True
        self.is_settled = self._has_verdict() or self.is_settled
        return self.is_settled or (self.page.hosts == 1 and self._is_replaced())

    def _is_replaced(self) -> bool:
        """Say whether a later attempt has begun: this pod was given up, as its machine may be, and lives on."""
        noted = self.store.entries(keys.attempts(self.page.job_id))
        later = (number for number, _ in keys.numbered(noted) if number > self.note.attempt)
        return any(self._is_noted(number) for number in later)

    def _is_noted(self, attempt: int) -> bool:
        """Return whether an attempt has begun: its Note is sealed with the job's key."""
        with contextlib.suppress(KeyMissingError, IntegrityError):
            return notes.read(self.store, self.page.job_id, attempt, self.key).attempt == attempt
        return False

    def _looked_patiently(self) -> bool:
        """Say whether there is a verdict; a slice waits for its store, since all its hosts would start again at once.

        Raises:
            RunnerError: The store was out of reach for an hour: a slice that is started again without end costs chips.
        """
        if self.page.hosts == 1:
            return self._has_verdict()
        try:
            return patience.keep_trying(
                self._has_verdict,
                StoreUnreachableError,
                wait=lambda pause: self.wait_for(lambda: self.told_to_end, pause),
                say=lambda error: say(f"the store is out of reach; it is tried again: {error}"),
                seconds=self.page.patience_seconds,
            )
        except StoreUnreachableError as error:
            raise RunnerError(
                f"the store was out of reach for {self.page.patience_seconds:g} s, so the slice gives up",
                why=str(error),
            ) from error

    def _has_verdict(self) -> bool:
        return self.store.size(keys.result(self.page.job_id)) is not None

    def _is_unwanted(self) -> bool:
        if self.told_to_end:
            self._note_a_shortage()
        return self.told_to_end or self.lookout.found

    def _note_a_shortage(self) -> None:
        """Write down at once what this machine is short of: whoever is evicted has one second."""
        lacking = [what for what in shortage.of_this_machine(self.place.base) if what not in self._always_short_of]
        if self.place.host == 0 and lacking and shortage.SHORT_OF not in self.note.details:
            self.note = replace(self.note, details={**self.note.details, shortage.SHORT_OF: lacking[0]})
            begin(lambda: self._note_the_end(f"this machine ran out of {lacking[0]}"))

    def _others_are_over(self) -> bool:
        """Say whether the worker, which is done and may wait for its peers, need not wait any longer."""
        now = time.monotonic()
        self._lingers_since = self._lingers_since or now
        over = self.place.host == 0 and self.peers.roll.all_ended(self.page.hosts)
        return over or self._is_unwanted() or now > self._lingers_since + _LINGER_SECONDS

    def _on_term(self, *_: object) -> None:
        """Obey the cluster: pass it on to the worker, or end at once if there is none."""
        self.told_to_end = True
        if not self.watching:
            say("told to end before the job began")
            os._exit(INFRASTRUCTURE_EXIT)
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b".")

    # ------------------------------------------------------------------------------------------------------ beginning

    def _was_removed(self) -> bool:
        place = keys.tombstone(self.page.job_id)
        if self.store.size(place) is None:
            return False
        with contextlib.suppress(IntegrityError, KeyMissingError), preparing.borrowed_key(self.page) as key:
            return bool(pages.open_page(HISTORY, self.store, place, key).get("resource_removed"))
        return False

    def _taken_away(self, key: bytes) -> int:
        """Count the attempts whose machine was taken away; those that failed are counted as retries."""
        before = self.note.attempt
        return before - retries.failures(self.store, self.page.job_id, before, key) if self.page.retries else before

    def _give_up(self, verdict: Outcome) -> int:
        """Fail a job that was cut short too often."""
        message = verdict.error["message"]
        self.key = preparing.key_of(self.page)
        sealing.seal(self.store, verdict, self.key, mark=self.page.mark)
        say(f"{podlog.VERDICT}: the job failed: {message}")
        last_words(self.page.last_words, message)
        return FAILED_EXIT

    # --------------------------------------------------------------------------------------------------------- ending

    def _conclude(self, task: Work, ending: Ending) -> int:
        """Turn the end of the worker into a verdict, a word to the leader, or an attempt that may be repeated."""
        word = judging.the_word(task, ending)
        began = task.began.exists()
        why = deciding.without_a_verdict(word, ending, told_to_end=self.told_to_end, began=began)
        memory = preparing.memory_bytes()
        judged = judging.judge(task, ending, started=self.started, ended=time.time(), machine_bytes=memory)
        verdict = replace(judged, key_id=self.page.key_id, witness="runner")
        if self.page.hosts > 1:
            from kinetic._runner.pod import slices  # most jobs have one host

            return (slices.follow if self.place.host else slices.lead)(self, task, verdict, ending, why)
        if self.is_settled:
            return self.leave_to_the_verdict()
        return self.leave(why) if why else self.deliver(verdict, task.body)

    def leave_to_the_verdict(self) -> int:
        say(f"{podlog.VERDICT}: somebody else's; the worker was ended")
        if not self._is_forgotten():
            self.send_log()
        return 0

    def leave(self, why: str, more: Callable[[], object] | None = None) -> int:
        """End without a verdict: say so, and bring note and log into the store as far as there is time."""
        words = f"this attempt has no verdict: {why}; another one may follow"
        say(words)
        last_words(self.page.last_words, words)
        limit = time.monotonic() + LAST_SECONDS
        if self._is_forgotten():
            return INFRASTRUCTURE_EXIT
        last = begin(more or (lambda: self._note_the_end(why)))
        self.printing.finish(max(1.0, limit - time.monotonic()))
        last.join(max(0.0, limit - time.monotonic()))
        return INFRASTRUCTURE_EXIT

    def _note_the_end(self, why: str) -> None:
        if self.place.host == 0:
            claiming.add(self.store, self.note, why, self.key)

    def _is_forgotten(self) -> bool:
        """Say whether the job was removed meanwhile: then nothing more is written below its prefix."""
        found: list[int | None] = []
        begin(lambda: found.append(self.store.size(keys.record(self.page.job_id)))).join(_ASKING_SECONDS)
        return found == [None]

    def deliver(self, verdict: Outcome, body: Path | None) -> int:
        """Bring the verdict into the store: the log first, so that whoever sees the verdict sees all of it."""
        words = self._next_try(verdict)
        if words:
            os.write(2, f"kinetic: {words}\n".encode(errors="backslashreplace"))  # into the log; see _hear_ourselves
        verdict = replace(verdict, logs=(*self.log_digests(), *verdict.logs))
        trouble = self.send_log()
        if not verdict.succeeded and self.patiently(self._is_replaced):  # what failed here may go well there
            return self.leave("another attempt has taken its place")
        if words:
            self.patiently(lambda: retries.write_down(self.store, verdict, self.key))
            return self.leave(words, lambda: None)

        def seal() -> bool:
            return sealing.seal(self.store, verdict, self.key, body=body, spare=self.spare, mark=self.page.mark)

        ours = self.patiently(seal, seconds=_FOREVER if verdict.succeeded else patience.HOUR)
        self.peers.ring()
        failed = ours and not verdict.succeeded
        words = f"the job failed: {verdict.error.get('message', verdict.cause)}" if failed else "the job succeeded"
        say(f"{podlog.VERDICT}: {words if ours else 'another one was there first; it holds'}")
        if trouble and not self._is_forgotten() and (trouble := self.printing.finish(_LATE_LOG_SECONDS)):
            say(f"the end of the log is not in the store: {trouble}")
        if failed:
            last_words(self.page.last_words, words)
        return FAILED_EXIT if failed else 0

    def _next_try(self, verdict: Outcome) -> str:
        """Say so when the job has failed and has retries left, which another pod makes; "" when the verdict holds.

        Of several hosts, only a JobSet begins anew with a number of its own.
        """
        if verdict.succeeded or not self.page.retries or (self.page.hosts > 1 and self.place.restarts is None):
            return ""
        found: list[str] = []

        def ask() -> bool:
            found.append(retries.next_try(self.store, verdict, self.page.retries, self.key))
            return True

        self.patiently(ask)
        return found[0] if found else ""

    def log_digests(self) -> tuple[digests.LogDigest, ...]:
        """Return the digest of this host's log, which ends here: its worker is gone."""
        return (self.printing.digest(self.note.attempt, self.place.host),)

    def send_log(self) -> str:
        """Bring the log into the store, as far as there is time; return why its end is not there, or ""."""
        return self.printing.finish(_HASTY_LOG_SECONDS if self.told_to_end else _LOG_SECONDS)

    def patiently(self, put: Callable[[], bool], *, seconds: float = patience.HOUR) -> bool:
        """Bring something into the store that must not be lost, however long it is out of reach or refuses us."""
        told = ""

        def waits(error: Exception) -> None:
            nonlocal told
            if isinstance(error, CredentialsError):
                with contextlib.suppress(KineticError):
                    self.store = open_anew(self.page.store_url)  # with what credentials there are by now
            if (said := patience.waits_for(error)) != told:
                told = said
                say(f"{said}; it is tried again")

        return patience.keep_trying(
            put,
            (KineticError, OSError),
            wait=lambda pause: self.wait_for(lambda: self.told_to_end, pause),
            say=waits,
            seconds=seconds,
        )

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds, woken by the lookout and by signals; say whether it does."""
        limit = time.monotonic() + seconds
        while not holds() and (left := limit - time.monotonic()) > 0:
            select.select([self._wake], [], [], min(left, _VERDICT_SECONDS))
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        return holds()


def _hear_ourselves(log: Path) -> None:
    """Have what this process itself writes to its standard error in the log, where it moves nothing out of its place.

    Readers count the bytes of the container's output; a warning of a library between them would not be in the store.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _taken_too_often(most: int) -> str:
    return f"its machine was taken away {most} times, and it may begin {most} times only"


def _failed(cause: str, message: str, parent: Parent) -> Outcome:
    """Return the verdict on a job that fails before its worker is started."""
    return Outcome(
        parent.page.job_id,
        FAILED,
        attempt=parent.note.attempt,
        host=parent.place.host,
        cause=cause,
        phase=ORDER,
        error={"message": message},
        started=parent.started,
        ended=time.time(),
        witness="runner",
        key_id=parent.page.key_id,
    )
