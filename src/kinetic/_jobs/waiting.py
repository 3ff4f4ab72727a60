"""Waiting for a job: told by its pulse, never by a clock; a rare look guards against lost news."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._backends.protocol import LiveLog
from kinetic._jobs import logs, looking, places
from kinetic._jobs.looking import Look
from kinetic.errors import JobTimeoutError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    import logging

    from kinetic._jobs.handle import JobHandle

_LOOK_SECONDS = 1.0  # pushed, not polled: this only finds a queue that nobody keeps any more
_LOG_SECONDS = 0.1  # a job flushes its output this often

OnChange = Callable[[JobStatus], None]


def wait(
    handle: JobHandle,
    *,
    timeout: float | None = None,
    on_change: OnChange | None = None,
    follow: Callable[[str], object] | None = None,
    progress: output.Progress | None = None,
) -> Look:
    """Wait until a job has its verdict.

    Args:
        handle: The job.
        timeout: Seconds; None waits for ever, 0 looks once.
        on_change: Told of the first status, of each change, and of the last; what it raises is logged and swallowed.
        follow: Receives the text of the job's log as it comes.
        progress: Tells the user what goes on, once it takes long; whoever brings it ends it. Where the log is followed
            there is always one.

    Raises:
        JobTimeoutError: The time is over; the job goes on.
    """
    limit = None if timeout is None else time.monotonic() + timeout
    told: JobStatus | None = None
    attempt = _Attempt()
    follower = make_follower(handle, attempt=attempt) if follow is not None else None
    own = output.Progress() if follow is not None and progress is None else None
    progress = progress or own
    try:
        while True:
            seen = looking.look(handle)
            if seen.status is not told:
                told = seen.status
                _tell(on_change, told)
            if follower is not None and follow is not None:
                attempt.see(seen)
                for text in follower.new_text(last=told.is_final):
                    output.clear()
                    follow(text)
                    if progress is not None:
                        progress.wrote(text)
            if told.is_final:
                if own is not None:
                    own.end()
                return seen
            if progress is not None:
                progress.enter(*_phase(seen))
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                raise _too_late(handle, timeout or 0.0, told)
            pause = _LOG_SECONDS if follower is not None else _LOOK_SECONDS
            places.backend_of(handle).watch(handle.job_id, seconds=pause if left is None else min(left, pause))
    finally:
        output.clear()
        places.backend_of(handle).forget_watch(handle.job_id)


def _phase(seen: Look) -> tuple[str, str]:
    """Say in which phase a job is, and more about it where there is more."""
    if seen.status is JobStatus.RUNNING:
        return "running", ""
    reason = seen.sighting.reason if seen.sighting is not None else ""
    return "waiting for a slot", reason.removeprefix("waits for ")


class _Attempt:
    """The attempt whose log is read: the one last seen."""

    def __init__(self) -> None:
        self.number = 0

    def see(self, seen: Look) -> None:
        """Take it from whoever knows."""
        if seen.outcome is not None:
            self.number = max(self.number, seen.outcome.attempt)
        elif seen.sighting is not None:
            self.number = seen.sighting.attempt

    def __call__(self) -> int:
        return self.number


def make_follower(handle: JobHandle, *, attempt: Callable[[], int], host: int = 0) -> logs.Follower:
    """Return a reader of the job's log from its beginning."""
    backend, store = places.backend_of(handle), places.store_of(handle)

    def reopen(number: int) -> LiveLog | None:
        return logs.open_log(backend, store, handle.job_id, attempt=number, host=host)

    return logs.Follower(reopen, attempt)


def to_stdout(text: str) -> None:
    """Write a job's text as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _tell(on_change: OnChange | None, status: JobStatus) -> None:
    if on_change is None:
        return
    try:
        on_change(status)
    except Exception:  # noqa: BLE001 - the callback is user code
        _log().exception("the on_status_change callback failed; the job is not affected")


def _log() -> logging.Logger:
    import logging  # 5 ms; only when there is something to tell

    return logging.getLogger("kinetic.jobs")


def _too_late(handle: JobHandle, timeout: float, status: JobStatus) -> JobTimeoutError:
    return JobTimeoutError(
        f"{handle.job_id} has not ended within {timeout:g} s",
        why=f"it is {status.value}, and goes on",
        next=f"call result() again, or: kinetic jobs logs {handle.job_id} --follow",
    )
