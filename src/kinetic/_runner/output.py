"""What a job prints: one descriptor for both streams, so that order is true; buffered in blocks, so that it is fast.

Unbuffered printing costs four to nine times. So stdout gathers 64 KiB and is flushed every 100 ms, before each write to
stderr, and at the end; a follower is never more than that behind.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from kinetic._wire import folders

_BLOCK = 1 << 16
_FLUSH_SECONDS = 0.1


class _AfterStdout(io.FileIO):
    """Raw stderr that lets stdout go first."""

    def write(self, data: object, /) -> int | None:  # type: ignore[override] # FileIO says Buffer, 3.12 on
        with contextlib.suppress(ValueError, OSError):
            sys.stdout.flush()
        return super().write(data)  # type: ignore[arg-type]


class _Flusher(threading.Thread):
    """Flush stdout every 100 ms as long as something may be in it."""

    def __init__(self) -> None:
        super().__init__(name="kinetic-log-flush", daemon=True)
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_FLUSH_SECONDS):
            with contextlib.suppress(ValueError, OSError):
                sys.stdout.flush()


_log = Path()
_identity = (0, 0)
_stderr: object = None  # ours, from redirect()


def redirect(log: Path) -> None:
    """Send descriptors 1 and 2, and Python's streams over them, into the log; read nothing from stdin."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (target, 1), (target, 2)):
        os.dup2(source, number, inheritable=True)
    global _log, _identity, _stderr  # noqa: PLW0603 - a process has one standard error
    found = os.fstat(target)
    _log, _identity = log, (found.st_dev, found.st_ino)
    os.close(target)
    os.close(nothing)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(io.FileIO(1, "w", closefd=False), buffered=True)  # type: ignore[misc]
    _stderr = sys.stderr = sys.__stderr__ = _text(_AfterStdout(2, "w", closefd=False), buffered=False)  # type: ignore[misc]


def _nobody(_: int) -> None:
    """Take no note of the thread."""


_begun: Callable[[int], object] = _nobody


def keep_flushing(begun: Callable[[int], object] = _nobody) -> None:
    """Start the thread that flushes; call it in the worker, after the fork.

    Args:
        begun: Is told the thread's number, now and whenever it is started again; by this thread.
    """
    global _begun  # noqa: PLW0603 - a process has one thread that flushes
    _begun = begun
    _start_flushing()


def _start_flushing() -> None:
    _flushers.append(_Flusher())
    _flushers[-1].start()
    _begun(_flushers[-1].native_id or 0)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Do without that thread for a moment: a process that enters a namespace must not have any."""
    running = bool(_flushers)
    while _flushers:
        flusher = _flushers.pop()
        flusher.over.set()
        flusher.join()
    try:
        yield
    finally:
        if running:
            _start_flushing()


_flushers: list[_Flusher] = []  # one in a worker, none elsewhere


def flush() -> None:
    """Write out everything that was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # user code may have closed or replaced them
            stream.flush()


def say(text: str) -> None:
    """Write something of ours into the log, also where user code has closed, replaced or redirected standard error.

    A stream that user code put in its place gets the text, as Python would write it there; where that fails, and where
    descriptor 2 is another file by now, the text goes to the log by its name.
    """
    with contextlib.suppress(BaseException):  # user code: its stream, or ours without its descriptor
        if sys.stderr is not _stderr or _is_the_log():
            sys.stderr.write(text)
            sys.stderr.flush()
            return
    with contextlib.suppress(OSError):
        descriptor = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            folders.write_all(descriptor, text.encode(errors="backslashreplace"))
        finally:
            os.close(descriptor)


def _is_the_log() -> bool:
    found = os.fstat(2)
    return (found.st_dev, found.st_ino) == _identity


def _text(raw: io.FileIO, *, buffered: bool) -> io.TextIOWrapper:
    block = io.BufferedWriter(raw, _BLOCK if buffered else 8192)
    errors = "surrogateescape" if buffered else "backslashreplace"
    return io.TextIOWrapper(block, encoding="utf-8", errors=errors, line_buffering=not buffered)
