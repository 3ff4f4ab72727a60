"""The queue, for a process that is a fork of one that has it open: a job, of its supervisor.

SQLite cannot be used again for the same file after a fork: it takes its parent's locks for its own. A new interpreter
has no parent's locks, so one is started with the first question, asked by pipes, and ends with the process that asks.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from kinetic._backends.local.queue import Queue
from kinetic.errors import BackendUnavailableError, KineticError

_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from kinetic._backends.local.queue_process import answer
answer(sys.argv[1])
"""
_ENDED = (EOFError, BrokenPipeError, pickle.UnpicklingError)  # not OSError: a user's handler may raise TimeoutError


class QueueOfParent:
    """Has the methods of ``Queue``, and another process for them."""

    is_read_only = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._pipes: tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]] | None = None  # the process, to it, and back
        self._pid = os.getpid()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **named: self._ask(name, args, named)

    def close(self) -> None:
        """End the process until it is needed again."""
        with self._lock:
            self._end()

    def _ask(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Have a method called; once more if the process was killed: each of them may be repeated."""
        with self._lock:
            try:
                is_error, value = self._exchange_patiently((name, args, named))
            except BaseException:  # also of a signal's handler: an answer that comes late is not that to the next one
                self._end()
                raise
        if is_error:
            raise value
        return value

    def _exchange_patiently(self, question: object) -> tuple[bool, Any]:
        with contextlib.suppress(*_ENDED):
            return self._exchange(question)
        self._end()
        try:
            return self._exchange(question)
        except _ENDED as error:
            raise _unusable("ended", error) from error

    def _exchange(self, question: object) -> tuple[bool, Any]:
        if self._pipes is None or self._pid != os.getpid():
            package = Path(__file__).parents[3]
            words = [sys.executable, "-P", "-c", _START, str(package), str(self._path)]
            try:
                process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
            except OSError as error:
                raise _unusable("cannot be started", error) from error
            self._pipes, self._pid = (
                (process, cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)),
                os.getpid(),
            )
        _, to, back = self._pipes
        _send(to, question)
        return pickle.load(back)  # type: ignore[no-any-return] # noqa: S301 - of our own child

    def _end(self) -> None:
        pipes, self._pipes = self._pipes, None
        if pipes is None or self._pid != os.getpid():
            return
        process, *both = pipes
        process.kill()  # it may wait for the queue; what it had not committed is as if it had never begun
        for pipe in both:
            with contextlib.suppress(OSError):
                pipe.close()
        process.wait()


def _unusable(how: str, error: Exception) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"the process that reads the queue for this job {how}",
        why=f"{type(error).__name__}: {error}",
        next="submit from a process that is not a job",
    )


def answer(path: str) -> None:
    """Answer questions of standard input until it ends."""
    queue: Queue | None = None
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may come between two answers
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            name, args, named = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own parent
            try:
                queue = queue or Queue(Path(path))
                found = (False, getattr(queue, name)(*args, **named))
            except KineticError as error:
                found = (True, error)
            _send(out, found)


def _send(file: IO[bytes], value: object) -> None:
    pickle.dump(value, file)
    file.flush()
