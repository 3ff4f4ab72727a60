"""Waiting for a job: its backend reports changes; a rare look guards against lost news."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._backends.protocol import LiveLog
from kinetic._jobs import locate, logs, notifications
from kinetic._jobs.status import Snapshot, is_far, last_attempt_note, lock_key, observe
from kinetic._output import colors, signal_handlers, tracebacks
from kinetic._output import terminal as output
from kinetic._wire import NamedTuple, python_runtime
from kinetic.errors import (
    BackendUnavailableError,
    CredentialsError,
    JobTimeoutError,
    KineticError,
    OptionError,
    OptionTypeError,
    StoreUnreachableError,
)
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Clock, Observer
    from kinetic._jobs.activity import StallWatch
    from kinetic._output.job_text import JobOutput
    from kinetic._wire.digests import LogDigest
    from kinetic._wire.outcomes import Outcome
    from kinetic._wire.records import JobRecord

AWAY_SECONDS = 600.0  # how long a wait bears a store or a cluster that does not answer: the job keeps running
AGAIN_SECONDS = 1.0
_REASON_SECONDS = 2.0  # between the first two questions why a job waits; each costs a cluster four requests
_LONGEST_REASON_SECONDS = 30.0  # and between later ones
_ATTEMPT_SECONDS = 1.0  # between two questions which attempt runs, and where its log is
_CLAIM_SECONDS = 60.0
_BAR_COLUMNS = 20
_REPORTED_SECONDS = 0.5  # between two looks at what a job reports of its progress: it writes as often
_FOLLOWER_SECONDS = 5.0  # between two looks at a job on a cluster that waits for another one, which may have ended
_LOG_SECONDS = 0.3  # in which a job that was told to a warm pod may end before its log is looked for: three requests
_LONG_SECONDS = 1.0  # of waiting, after which 10 ms count for nothing
_AT_THE_END = (
    "kinetic._jobs.activity",
    "kinetic._jobs.resource_usage",
    "kinetic._output.job_text",
    "kinetic._wire.device_tensors",
)

OnChange = Callable[[JobStatus], None]
T = TypeVar("T")


def wait(
    job: JobRecord,
    *,
    timeout: float | None = None,
    on_change: OnChange | None = None,
    follow: Callable[[str], object] | None = None,
    progress: output.Progress | None = None,
    check: Callable[[], object] = lambda: None,
    collects: bool = False,
) -> Snapshot:
    """Wait until a job has its verdict; ``check`` is called now and then, and may raise.

    ``collects``: it is removed afterwards, if it has succeeded.
    """
    timeout = seconds_to_wait(timeout)
    if locate.past_of(job) is not None:  # its backend need not exist any more
        seen = observe(job)
        notify(on_change, seen.status)
        if follow is not None:
            follow(logs.text_of(logs.log_of(job)))
            _end(follow)
        return seen
    backend = locate.backend_of(job)
    clock = backend.clock
    limit = None if timeout is None else clock.monotonic() + timeout
    display = _Display(job, follow, progress)
    # Of a job on this machine, each of many looks would ask a store in a bucket three things.
    reader = StatusReader(job, collects=collects, awaits_end=not backend.is_here)
    began = clock.monotonic()
    notified: JobStatus | None = None
    with contextlib.ExitStack() as waits:
        waits.callback(backend.stop_watching, job.job_id)
        waits.callback(display.close)
        is_first = True
        while True:
            is_late = _is_late(clock, limit)
            seen = reader.read(limit)
            if seen.status is not notified:
                notified = seen.status
                notify(on_change, notified)
            display.show(seen)
            if seen.status.is_final:
                display.end()
                if cells := sys.modules.get("kinetic._output.notebook"):  # else no cell shows anything
                    cells.look_now(job.job_id)
                notifications.see(job, seen)
                return seen
            if is_first:
                is_first = False
                waits.callback(tracebacks.note_wait(functools.partial(report_detached, job)))
                _check_circle(job)
                waits.enter_context(backend.without_slot())
            if is_late:
                raise _too_late(job, seen, timeout)
            load_what_the_end_needs(clock.monotonic() - began)
            looked = _looked(backend, seen)
            while not has_news(backend, job, pause=display.pause, looked=looked, limit=limit):
                check()
                signal_handlers.check()
                display.keep_up(seen)
            check()
            signal_handlers.check()


def _is_late(clock: Clock, limit: float | None) -> bool:
    """Return whether the time is over, before a last look: a process that was stopped finds what has ended by now."""
    return limit is not None and clock.monotonic() >= limit


def _too_late(job: JobRecord, seen: Snapshot, timeout: float | None) -> JobTimeoutError:
    return JobTimeoutError(
        f"{job.job_id} has not ended within {timeout:g} s",
        why=f"it is {seen.status.value}, and keeps running",
        next=f"kinetic jobs logs {job.job_id} --follow     or wait again",
    )


class JobEvent(NamedTuple):
    """A change of a job, as it was seen.

    Attributes:
        at: Unix time at which it was seen.
        status: The status from then on.
        attempt: Which attempt, from 0; None while that is not known, as on a cluster before it has begun, and of a job
            that was closed before it began.
        reason: Why it waits, or how it failed; "" where there is nothing to say.
    """

    at: float
    status: JobStatus
    attempt: int | None
    reason: str


def events(job: JobRecord, *, timeout: float | None = None) -> Iterator[JobEvent]:
    """Yield how a job is now, and each change, until it has ended."""
    last: JobEvent | None = None
    for seen in _looks(job, seconds_to_wait(timeout)):
        event = JobEvent(time.time(), seen.status, _attempt_of(job, seen), seen.reason)
        if last is None or event[1:] != last[1:]:
            last = event
            yield event


def _attempt_of(job: JobRecord, seen: Snapshot) -> int | None:
    times = seen.outcome or seen.observation
    found = times.attempt if times is not None else None
    if found is None and seen.status is JobStatus.RUNNING:  # a cluster does not know it
        with contextlib.suppress(KineticError):  # the next look asks again
            found = logs.latest_noted_attempt(locate.store_of(job), job.job_id)
    return found if found is None or found >= 0 else None  # -1: it ended without an attempt


def _looks(job: JobRecord, timeout: float | None) -> Iterator[Snapshot]:
    if locate.past_of(job) is not None:
        yield observe(job)
        return
    backend, reader = locate.backend_of(job), StatusReader(job)
    limit = None if timeout is None else backend.clock.monotonic() + timeout
    try:
        while True:
            is_late = _is_late(backend.clock, limit)
            seen = reader.read(limit)
            yield seen
            if seen.status.is_final:
                return
            if is_late:
                raise _too_late(job, seen, timeout)
            looked = _looked(backend, seen)
            pause = looked + backend.poll_seconds - backend.clock.monotonic()
            while not _has_news_without_slot(backend, job, pause=pause, looked=looked, limit=limit):
                pass
    finally:
        backend.stop_watching(job.job_id)


def _looked(backend: Backend, seen: Snapshot) -> float:
    """Return when a job was looked at, for ``has_news``; earlier for one on a cluster that a look may start."""
    waits = seen.observation is not None and seen.observation.waits_for_others
    return backend.clock.monotonic() - (max(0.0, backend.poll_seconds - _FOLLOWER_SECONDS) if waits else 0.0)


def _has_news_without_slot(backend: Backend, job: JobRecord, **times: Any) -> bool:
    """Return the same as ``has_news``; a job that waits here, between whose looks its own code runs, lends its slot."""
    _check_circle(job)
    with backend.without_slot():
        return has_news(backend, job, **times)


def seconds_to_wait(timeout: object, name: str = "timeout") -> float | None:
    """Return what a user wrote as a timeout, in seconds; None for no limit."""
    try:
        seconds = None if timeout is None else float(timeout)  # type: ignore[arg-type] # where it is no number, it raises
        if isinstance(timeout, str | bytes) or seconds != seconds:  # noqa: PLR0124 - as NaN is, which would never be over
            raise TypeError
    except (TypeError, ValueError):
        raise OptionTypeError(
            f"{name} must be a number of seconds, got {timeout!r}", next=f"{name}=600     for ten minutes"
        ) from None
    return seconds


def check_flags(**flags: object) -> None:
    """Refuse what is not True, False or None, before anything is done: cleanup="no" would remove a result."""
    for name, value in flags.items():
        if isinstance(value, str | bytes) or value not in (None, 0, 1):
            raise OptionTypeError(f"{name}={value!r} is neither True nor False")


def check_callback(name: str, function: object, given: str) -> None:
    """Refuse what is not a function; ``given`` says what it is called with."""
    if not callable(function):
        raise OptionTypeError(f"{name} must be a function, got {function!r}", next=given)


def _check_circle(job: JobRecord) -> None:
    """Refuse to wait, inside a job, for one that starts only when this job has ended."""
    own = os.environ.get("KINETIC_JOB_ID")
    if own and own in (job.after or ()):
        raise OptionError(
            f"{job.job_id} starts once this job has ended",
            why=f"it follows {own}, which is this job, so waiting for it here would never end",
            next=f"do not wait for it in here; when both have ended: kinetic jobs result {job.job_id}",
        )


OUT_OF_REACH = (StoreUnreachableError, BackendUnavailableError, CredentialsError)
# How ``bear_outages`` is called before there was any answer: a wrong name or login is an error at once, and only a
# cluster is waited for, as patiently as by the submission, which may have been a moment ago.
FIRST_LOOK: dict[str, Any] = {"seconds": 60.0, "errors": (BackendUnavailableError,)}


def bear_outages(
    look: Callable[[], T],
    name: str,
    clock: Clock,
    limit: float | None,
    *,
    seconds: float = AWAY_SECONDS,
    errors: tuple[type[KineticError], ...] = OUT_OF_REACH,
) -> T:
    """Look until there is an answer: store or cluster may not answer for so long, at most until the limit."""
    until = clock.monotonic() + seconds
    until = until if limit is None else min(until, limit)
    while True:
        try:
            return look()
        except errors as error:
            signal_handlers.check()
            if clock.monotonic() >= until:
                raise
            output.report_once(f"{name} keeps running, and cannot be seen now: {error.what}; waiting")
            clock.sleep(AGAIN_SECONDS)


class StatusReader:
    """Looks at a job, again and again, through times in which store or cluster do not answer."""

    def __init__(self, job: JobRecord, *, collects: bool = False, awaits_end: bool = False) -> None:
        self._job = job
        self._later = {"expected": True, "collects": collects} if awaits_end else {}  # of each look but the first one
        self._clock = locate.backend_of(job).clock
        self._bear = FIRST_LOOK
        self._last: Snapshot | None = None

    def read(self, limit: float | None) -> Snapshot:
        """Look until there is an answer or the limit is reached; before the first one, only a cluster is waited for.

        After the limit, where there is no answer, return what was seen last: then the time is over.
        """
        is_late, later = _is_late(self._clock, limit), self._later if self._last is not None else {}
        look = functools.partial(observe, self._job, **later)
        try:
            self._last = bear_outages(look, self._job.job_id, self._clock, limit, **self._bear)
        except OUT_OF_REACH:
            if self._last is None or not is_late:
                raise
        self._bear = {}
        return self._last


def has_news(backend: Backend, job: JobRecord, *, pause: float, looked: float, limit: float | None = None) -> bool:
    """Wait at most ``pause`` seconds; return whether to look again: there was a change, or the last look is long ago.

    Both times are by the clock of the backend. On this machine a look costs no more than the question for changes,
    unless the job's store is far away.
    """
    pause = min(pause, backend.poll_seconds)
    left = pause if limit is None else min(pause, limit - backend.clock.monotonic())
    if left <= 0:
        return True
    try:
        changed = backend.watch(job.job_id, seconds=left)
    except BackendUnavailableError:  # of a cluster; the look that follows bears it
        if backend.is_here:
            raise
        backend.clock.sleep(min(left, AGAIN_SECONDS))
        return True
    now, is_cheap = backend.clock.monotonic(), backend.is_here and not is_far(job)
    return is_cheap or changed or now - looked >= backend.poll_seconds or (limit is not None and now >= limit)


def load_what_the_end_needs(waited: float) -> None:
    """Load it during a long wait: an upgrade of kinetic may replace its files before the job ends."""
    if waited >= _LONG_SECONDS and _AT_THE_END[-1] not in sys.modules:
        for name in _AT_THE_END:
            importlib.import_module(name)


_displays: list[_Display] = []  # those of this process that draw a line


class _Display:
    """What the user sees of a job during a wait: its log, or a line about its state."""

    def __init__(
        self, job: JobRecord, follow: Callable[[str], object] | None, progress: output.Progress | None
    ) -> None:
        self._follow = follow
        self._attempt = Attempt(job)
        self._log_seconds = locate.backend_of(job).log_poll_seconds
        self._is_told = False  # whether its end is told
        self._outcome: Outcome | None = None
        self._follower: logs.Follower | None = None
        if follow is not None:
            self._follower = make_follower(
                job, attempt=self._attempt, seconds=self._reopen_seconds, outcome=lambda: self._outcome
            )
        self._own = output.Progress(label=self._label) if follow is not None and progress is None else None
        self._progress, self._is_among_others = progress or self._own, False
        if self._own is not None:
            _displays.append(self)
            for display in _displays if len(_displays) > 1 else ():
                display._is_among_others = True  # noqa: SLF001 - of this class
        self._reasons = _Reasons(job)
        self._job, self._clock = job, locate.backend_of(job).clock
        self._stall: StallWatch | None = None
        self._reported, self._reported_due = "", self._clock.monotonic() + _REPORTED_SECONDS
        self._log_due = self._clock.monotonic() + _LOG_SECONDS

    @property
    def pause(self) -> float:
        """Seconds until there may be something new to show, whether or not there is news."""
        return _REASON_SECONDS if self._follower is None else self._log_seconds

    def show(self, seen: Snapshot) -> None:
        """Show what is new after a look."""
        self._attempt.see(seen)
        self._is_told = seen.observation is not None and seen.observation.is_told
        self._outcome = seen.outcome
        if seen.status is not JobStatus.PENDING:
            self._print_log(last=seen.status.is_final)
        if not seen.status.is_final:
            self._show_phase(seen)

    def keep_up(self, seen: Snapshot) -> None:
        """Show what comes between two looks."""
        if seen.status is JobStatus.PENDING:
            self._show_phase(seen)
        else:
            self._print_log()

    def _label(self) -> str:
        """Name the job before a line about it, where several threads wait for jobs."""
        return f"{self._job.job_id}: " if self._is_among_others else ""

    def _reopen_seconds(self) -> float:
        return self._log_seconds if self._is_told else _ATTEMPT_SECONDS

    def _show_phase(self, seen: Snapshot) -> None:
        if self._progress is None:
            return
        phase, detail = self._reasons.phase(seen)
        if seen.status is JobStatus.RUNNING:
            now = self._clock.monotonic()
            if now >= self._reported_due:
                self._reported_due = now + _REPORTED_SECONDS
                self._look_at_activity(seen)
            detail = detail or self._reported
        self._progress.enter(phase, detail)

    def _look_at_activity(self, seen: Snapshot) -> None:
        """Look at how far a job is, and whether it seems to hang."""
        from kinetic._jobs import activity  # 2 ms; not for a job of half a second

        found = activity.live_progress_of(self._job, self._attempt())
        self._reported = activity.progress_text(found) if found is not None else ""
        if found is not None and found.share is not None and output.is_possible():
            columns = min(_BAR_COLUMNS, output.size().columns // 8)  # the text beside it matters more
            self._reported = f"{colors.bar(found.share, columns, sys.stderr)} {self._reported}"
        self._stall = self._stall or activity.StallWatch(self._job)
        self._stall.look(seen)

    def _print_log(self, *, last: bool = False) -> None:
        if self._follower is None or self._follow is None:
            return
        if self._is_told and not last and self._clock.monotonic() < self._log_due:
            return
        for text in self._follower.new_text(last=last):
            output.clear()
            self._follow(text)
            if self._progress is not None:
                self._progress.wrote(text)

    def end(self) -> None:
        """Print how long it took."""
        if self._own is not None:
            self._own.end()

    def close(self) -> None:
        """Close the log, and remove the line that was drawn here."""
        with contextlib.suppress(ValueError):  # it draws none
            _displays.remove(self)
        if self._progress is not None:
            self._progress.clear()
        if self._follower is not None:
            self._follower.close()
        if self._follow is not None:
            _end(self._follow)


class _Reasons:
    """Why a job waits: by its observation, or by asking now and then where that takes several questions."""

    def __init__(self, job: JobRecord) -> None:
        self._job = job
        self._next, self._pause = float("-inf"), _REASON_SECONDS
        self._reason = ""
        self._warned_of: set[str] = set()
        self._has_rebuilt = False

    def phase(self, seen: Snapshot) -> tuple[str, str]:
        """Return in which phase a job is, and details that were not part of a warning."""
        reason = seen.observation.reason if seen.observation is not None else ""
        if seen.status is JobStatus.RUNNING:
            return "running", reason
        backend = locate.backend_of(self._job)
        if backend.is_here:
            what = reason.removeprefix("waits for ")
            other = "waiting" if what.startswith("its ") else "waiting for a slot"
            return "waiting for other jobs" if self._names_predecessor(what) else other, what
        now = backend.clock.monotonic()
        if now >= self._next:
            self._next = now + self._pause
            self._pause = min(2 * self._pause, _LONGEST_REASON_SECONDS)
            self._ask(backend)
        detail = self._reason or reason
        if self._names_predecessor(what := detail.removeprefix("waits for ")):
            return "waiting for other jobs", what
        return "waiting", "" if detail in self._warned_of else detail

    def _names_predecessor(self, what: str) -> bool:
        return what.partition(" ")[0] in (self._job.after or ())

    def _ask(self, observer: Observer) -> None:
        with contextlib.suppress(KineticError):
            found = observer.explain(self._job.job_id)
            if found is None:
                return
            if not found.waits:  # its pod runs, and the cluster has not counted it yet
                self._reason = ""
                return
            if found.code == "image-missing" and self._rebuild():
                self._reason = "its image was removed from the registry, and is built again"
                return
            before, self._reason = self._reason, found.what.removeprefix(f"{self._job.job_id}: ")
            # What may pass is reported once it has not passed; that the jobs before it run is as it should be.
            lasts = bool(found.next) and self._reason == before and found.code != "follows"
            if (found.stuck or lasts) and self._reason not in self._warned_of:
                self._warned_of.add(self._reason)
                output.warn(found.what, why=found.why or "", next=found.next or "")

    def _rebuild(self) -> bool:
        """Begin to build the job's image again, once, if it was built from a lock; return whether that was done."""
        if not self._has_rebuilt and lock_key(self._job):
            self._has_rebuilt = True
            python_runtime.start_thread(self._build_image, "kinetic-image")
            return True
        return False

    def _build_image(self) -> None:
        from kinetic._jobs import pod_requirements  # only for an image that is gone

        job_id = self._job.job_id
        try:
            is_same = pod_requirements.rebuild_image(self._job)
        except (KineticError, OSError) as error:
            what = error.what if isinstance(error, KineticError) else str(error)
            output.warn(
                f"the image of {job_id} could not be built again", why=what, next=f"kinetic jobs explain {job_id}"
            )
            return
        if is_same:
            output.report(f"the image of {job_id} was built again; the cluster pulls it within minutes")
        else:
            output.warn(
                f"the image of {job_id} was built again, and has another digest",
                why="bytecode is not the same in every build",
                next=f"kinetic jobs cancel {job_id}, and submit the job again: the new image is used",
            )


class Attempt:
    """The attempt whose log is read: the newest that was seen. On a cluster only the store knows its number."""

    def __init__(self, job: JobRecord) -> None:
        self.number = 0
        self._job = job
        self._clock = locate.backend_of(job).clock
        self._version: str | None = None
        self._asked, self._until = 0.0, 0.0

    def see(self, seen: Snapshot) -> None:
        """Take it from the outcome or from the backend, whichever knows it."""
        if seen.outcome is not None:
            self.number, self._until = max(self.number, seen.outcome.attempt), 0.0
        elif seen.observation is not None and seen.observation.attempt is not None:
            self.number = seen.observation.attempt
        elif seen.observation is not None and seen.observation.version != self._version:
            self._version = seen.observation.version
            self._until = self._clock.monotonic() + _CLAIM_SECONDS  # a pod begins with its attempt in this time

    def __call__(self) -> int:
        now = self._clock.monotonic()
        if self._asked + _ATTEMPT_SECONDS < now < self._until:
            self._asked = now
            with contextlib.suppress(KineticError):
                self.number = max(self.number, self._newest())
        return self.number

    def _newest(self) -> int:
        """Return the newest attempt in the store; others can put there what looks like a later one."""
        found = logs.latest_noted_attempt(locate.store_of(self._job), self._job.job_id)
        if found > self.number:
            with contextlib.suppress(CredentialsError):  # of another user's job, there is nothing to go by but this
                note = last_attempt_note(self._job)
                return note.attempt if note is not None else self.number
        return found


def make_follower(
    job: JobRecord,
    *,
    attempt: Callable[[], int],
    host: int = 0,
    start: int = 0,
    seconds: Callable[[], float] = lambda: _ATTEMPT_SECONDS,
    outcome: Callable[[], Outcome | None] = lambda: None,
) -> logs.Follower:
    """Return a reader of the log of one host, from a position in the attempt that it begins with.

    Args:
        job: The job.
        attempt: Says which attempt runs now.
        host: Which host of it.
        start: The position.
        seconds: How long to wait between two tries to open the log, on a cluster.
        outcome: The verdict, once it was read.
    """
    backend, store = locate.backend_of(job), locate.store_of(job)
    last = float("-inf")

    def reopen(number: int) -> LiveLog | None:
        nonlocal last
        if not backend.is_here and backend.clock.monotonic() - last < seconds():
            return None  # each try is a question to the cluster
        last = backend.clock.monotonic()
        with contextlib.suppress(StoreUnreachableError, BackendUnavailableError):  # it is tried again
            return logs.open_log(backend, store, job.job_id, attempt=number, host=host, follow=True)
        return None

    def stored(number: int) -> LiveLog | None:
        return logs.stored_log(store, job.job_id, attempt=number, host=host)

    def sealed(number: int) -> LogDigest | None:
        return logs.sealed_digest(job, attempt=number, host=host, outcome=outcome())

    report = functools.partial(logs.report, job.job_id)
    pause = 0.0 if backend.is_here else _ATTEMPT_SECONDS
    return logs.Follower(reopen, attempt, stored, sealed=sealed, report=report, store_seconds=pause, start=start)


def follow_logs(
    job: JobRecord,
    hosts: Iterable[int] = (0,),
    *,
    attempt: int | None = None,
    start: Mapping[int, int] | None = None,
    look: Callable[[Snapshot], object] = lambda _: None,
) -> Generator[tuple[int, bytes], None, Snapshot]:
    """Yield which host has written what, until the job ends or an attempt begins that is later than the wanted one.

    By default that is the newest, and each that follows it; the logs are read from these positions on, or from their
    beginning. ``look`` is called with what was seen last, after each time that all was read.
    """
    backend, newest, reader = locate.backend_of(job), Attempt(job), StatusReader(job)

    def wanted() -> int:
        return newest() if attempt is None else attempt

    begin = start or {}
    followers = {each: make_follower(job, attempt=wanted, host=each, start=begin.get(each, 0)) for each in hosts}

    def news(*, last: bool = False) -> Iterator[tuple[int, bytes]]:
        return ((each, data) for each, follower in followers.items() for data in follower.new_bytes(last=last))

    try:
        while True:
            seen = reader.read(None)
            newest.see(seen)
            is_over = seen.status.is_final or newest() > wanted()
            yield from news(last=is_over)
            if is_over:
                return seen
            look(seen)
            looked = _looked(backend, seen)
            while not _has_news_without_slot(backend, job, pause=backend.log_poll_seconds, looked=looked):
                yield from news()
                look(seen)
    finally:
        for follower in followers.values():
            follower.close()
        backend.stop_watching(job.job_id)


def detaching(job: JobRecord) -> tracebacks.Detaching:
    """Return a context for waiting, where Ctrl-C says that the job keeps running, how to follow and to cancel it."""
    return tracebacks.Detaching(functools.partial(report_detached, job))


def report_detached(job: JobRecord) -> str:
    """Print that a job keeps running, and return the most important of it in one line."""
    output.leave_line()
    output.report(f"detached: {job.job_id} keeps running")
    output.report(f"follow:   kinetic jobs logs {job.job_id} --follow")
    if job.debug:
        output.report(f"debug:    kinetic jobs debug {job.job_id}")
    output.report(f"cancel:   kinetic jobs cancel {job.job_id}")
    return f"{job.job_id} keeps running; cancel it with: kinetic jobs cancel {job.job_id}"


class _ToStdout:
    """Writes what jobs print to standard output, as ``job_text.py`` says."""

    def __init__(self) -> None:
        self._output: JobOutput | None = None

    def __call__(self, text: str) -> None:
        if self._output is None:
            from kinetic._output import job_text  # 2 ms; only where a log is shown

            self._output = job_text.JobOutput(lambda: sys.stdout)
        self._output.write(text)
        tracebacks.note_log_output(text)

    def end(self) -> None:
        if self._output is not None:
            self._output.end()


to_stdout = _ToStdout()


class BesideValue:
    """Writes a job's log to standard output as long as that is possible: the value arrives also on a full disk."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._is_over = False

    def __call__(self, text: str) -> None:
        self._attempt(functools.partial(to_stdout, text))

    def end(self) -> None:
        self._attempt(to_stdout.end)

    def _attempt(self, write: Callable[[], object]) -> None:
        if self._is_over:
            return
        try:
            write()
        except (OSError, ValueError) as error:
            is_closed = getattr(sys.stdout, "closed", False)
            if not is_closed and getattr(error, "errno", None) in {None, errno.EPIPE}:  # a reader like `head` left
                raise
            self._is_over = True
            what = f"the log of {self._job_id} is not shown any more: standard output cannot be written to"
            output.warn(what, why=str(error), next=f"kinetic jobs logs {self._job_id}")


def _end(follow: Callable[[str], object]) -> None:
    """Have what shows a log write what it holds back of a line that may still change."""
    end = getattr(follow, "end", None)
    if end is not None:
        end()


def notify(on_change: OnChange | None, status: JobStatus) -> None:
    """Call a callback of the user's, if there is one."""
    if on_change is None:
        return
    try:
        on_change(status)
    except Exception:  # noqa: BLE001 - the callback is user code
        locate.log().exception("the on_status_change callback failed; the job is not affected")
