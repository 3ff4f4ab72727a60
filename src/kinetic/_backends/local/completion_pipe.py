"""The pulse of a job: a named pipe by which its keeper tells every waiting process at once, without being asked.

The keeper holds the only writing end. One byte, never read, stays in the pipe and means "running"; the end of the pipe
means "ended, or the keeper died: look now". The kernel closes it when the keeper is killed, so death is told as well.
Where named pipes tell nothing (KINETIC_PORTABLE=1, or a system without), waiting is a look every few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path

_POLL_SECONDS = 0.005
_POLL_LIMIT = 0.1


class CompletionWriter:
    """The keeper's end: open while the job runs."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            # Both ends, because opening for writing alone fails while nobody reads.
            self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def running(self) -> None:
        """Tell that the worker runs."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, b"r")

    def stop(self) -> None:
        """Tell that there is something to see."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class CompletionReader:
    """A waiting process's end."""

    def __init__(self, path: Path, *, portable: bool = False) -> None:
        self._descriptor: int | None = None
        self._running = False
        self._ended = False
        self._pause = _POLL_SECONDS
        if not portable:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def listening(self) -> bool:
        """Say whether this end still tells something; a job that is tried again has a new pulse."""
        return self._descriptor is None or not self._ended

    @property
    def descriptor(self) -> int | None:
        """The pipe, where it tells something."""
        return self._descriptor

    def note_end(self, told: Container[int]) -> None:
        """Take note that the pipe has ended, if it is among those that told so."""
        self._ended = self._ended or self._descriptor in told

    def wait(self, seconds: float) -> None:
        """Return when something may have changed, or after some seconds."""
        if self._descriptor is None or self._ended:
            time.sleep(max(0.0, min(seconds, self._pause)))
            self._pause = min(self._pause * 1.2, _POLL_LIMIT)
            return
        poll = select.poll()
        poll.register(self._descriptor, 0 if self._running else select.POLLIN)
        for _, events in poll.poll(max(0.0, seconds) * 1000):
            self._running = self._running or bool(events & select.POLLIN)
            self._ended = bool(events & (select.POLLHUP | select.POLLERR))
        if self._ended and not self._running:  # some systems say so of a pipe that nobody has written to yet
            time.sleep(max(0.0, min(seconds, _POLL_SECONDS)))

    def close(self) -> None:
        """Let go of the pipe."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        """Close the pipe with the thread that waited; an interpreter at its end may have no `os` left."""
        try:
            if self._descriptor is not None:
                _close(self._descriptor)
        except (OSError, AttributeError):  # somebody closed every descriptor; or it was never made
            pass


def wait_for_an_end(beats: Sequence[CompletionReader], seconds: float) -> None:
    """Return when one of some jobs has ended, or after some seconds."""
    poll, count = select.poll(), 0
    for beat in beats:
        if beat.descriptor is not None:
            poll.register(beat.descriptor, 0)
            count += 1
    if count < len(beats) or not beats:  # some tell nothing, or there is nobody to tell
        time.sleep(max(0.0, min(seconds, _POLL_LIMIT)))
        return
    told = {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}
    for beat in beats:
        beat.note_end(told)


def make(path: Path) -> None:
    """Make a pulse or a wake-up pipe."""
    with contextlib.suppress(FileExistsError, OSError):
        os.mkfifo(path, 0o600)


def wake(path: Path) -> bool:
    """Wake whoever reads this pipe; False when nobody does."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, b"w")
    except BlockingIOError:
        return True  # full of wake-ups: it will wake
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
