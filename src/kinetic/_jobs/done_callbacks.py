"""Ends that are noticed in the background: what ``add_done_callback`` and ``await`` stand on.

Threads wait as ``result()`` does, so an end is noticed as fast. There are few of them: beyond that many jobs they take
turns, and an end is noticed later by a second for each turn.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kinetic._jobs import locate
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic._wire import python_runtime
from kinetic.errors import (
    BackendUnavailableError,
    CredentialsError,
    JobTimeoutError,
    OptionTypeError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from kinetic._backends.protocol import Clock

_MOST_THREADS = 32  # each has a pipe open on this machine
_TURN_SECONDS = 1.0
_LONG_TURN_SECONDS = 10.0  # where no other job waits for a thread
_AWAY_SECONDS = 600.0  # as result() bears it
_AGAIN_SECONDS = 1.0

R = TypeVar("R")


@dataclass
class Wait:
    """One end that is waited for.

    Attributes:
        name: Of the job or batch.
        until_end: Waits for it, at most so many seconds; then raises JobTimeoutError.
        tell: Is called with None once it has ended, or with the error after which it is not waited for any more.
        is_wanted: Whether anybody still wants to be told.
        clock: Tells the time between two tries where the store or the cluster does not answer.
    """

    name: str
    until_end: Callable[[float], object]
    tell: Callable[[BaseException | None], object]
    is_wanted: Callable[[], bool] = lambda: True
    clock: Clock = time
    gives_up: float = float("-inf")  # when; at the first error, if nothing was seen before

    def take_turn(self, seconds: float) -> bool:
        """Wait for so long, and tell; return whether that was all."""
        error: BaseException | None = None
        try:
            if self.is_wanted():
                self.until_end(seconds)
        except JobTimeoutError:
            self.gives_up = self.clock.monotonic() + _AWAY_SECONDS
            return False
        except (StoreUnreachableError, BackendUnavailableError, CredentialsError) as away:
            if self.clock.monotonic() < self.gives_up:
                self.clock.sleep(_AGAIN_SECONDS)
                return False
            error = away
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits
            error = raised
        if self.is_wanted():
            self.tell(error)
        return True


class _Waits:
    """The waits of a process, and the threads that take turns at them; they end when nothing is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: deque[Wait] = deque()
        self._threads = 0

    def add(self, wait: Wait) -> None:
        with self._lock:
            self._waits.append(wait)
            starts = self._threads < _MOST_THREADS
            self._threads += starts
        if starts and python_runtime.start_thread(self._work, "kinetic-end") is None:
            with self._lock:
                self._threads -= 1
                if self._threads or wait not in self._waits:
                    return  # another one takes it
                self._waits.remove(wait)
            raise RuntimeError(f"no thread could be started to wait for {wait.name}")

    def _work(self) -> None:
        wait: Wait | None = None
        while True:
            with self._lock:
                if wait is not None:
                    self._waits.append(wait)
                if not self._waits:
                    self._threads -= 1
                    return
                wait = self._waits.popleft()
                seconds = _TURN_SECONDS if self._waits else _LONG_TURN_SECONDS
            if wait.take_turn(seconds):
                wait = None


_waits_of: dict[int, _Waits] = {}  # by process: after a fork, the threads stay behind


def add(wait: Wait) -> None:
    """Wait for an end on a thread; a program that ends does not wait for it."""
    _waits_of.setdefault(os.getpid(), _Waits()).add(wait)


def call(function: Callable[[R], object], handle: R, name: str, until_end: Callable[[float], object] | None) -> None:
    """Call a function of the user's with a handle once its job or batch has ended: at once without ``until_end``."""
    if not callable(function):
        raise OptionTypeError(f"a done callback must be a function, got {function!r}", next="it is given the handle")

    def tell(error: BaseException | None) -> None:
        if error is not None:
            what = getattr(error, "what", None) or f"{type(error).__name__}: {error}"
            output.warn(f"the end of {name} cannot be seen, so its done callback is not called", why=what)
            return
        try:
            function(handle)
        except Exception:  # noqa: BLE001 - the callback is user code
            locate.log().exception("a done callback of %s failed; the job is not affected", name)

    if until_end is None:
        tell(None)
    else:
        add(Wait(name, until_end, tell))


class Value(Generic[R]):
    """What ``await`` waits for: the value of a job or a batch, collected on a thread."""

    def __init__(
        self, name: str, until_end: Callable[[float], object], collect: Callable[[], R], report: Callable[[], object]
    ) -> None:
        self._name, self._until_end, self._collect, self._report = name, until_end, collect, report

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # 40 ms; whoever awaits has it

        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            value: Any = None
            try:
                if error is not None:
                    raise error
                value = self._collect()
            except StopIteration as raised:  # no coroutine can pass it on
                error = RuntimeError(f"{self._name} raised StopIteration")
                error.__cause__ = raised
            except BaseException as raised:  # noqa: BLE001 - it belongs to whoever awaits
                error = raised

            def deliver() -> None:
                if not future.done():
                    future.set_exception(error) if error is not None else future.set_result(value)

            with contextlib.suppress(RuntimeError):  # the loop is closed; the handle keeps the value
                loop.call_soon_threadsafe(deliver)

        add(Wait(self._name, self._until_end, tell, lambda: not future.cancelled()))
        try:
            return (yield from future)
        except asyncio.CancelledError:
            tracebacks.note_cancelled_await(self._report)
            raise
