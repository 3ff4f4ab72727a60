"""Ends that are noticed in the background: what ``add_done_callback`` and ``await`` stand on.

Threads wait as ``result()`` does, so an end is noticed as fast. There are few of them: beyond that many jobs they take
turns, and an end is noticed later by as many turns as there are others.
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
from kinetic._jobs.wait import AGAIN_SECONDS, AWAY_SECONDS, OUT_OF_REACH, check_callback
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic._wire import python_runtime
from kinetic.errors import CallableError

if TYPE_CHECKING:
    from kinetic._backends.protocol import Clock

_MOST_THREADS = 32  # each has a pipe open on this machine

R = TypeVar("R")


@dataclass(frozen=True)
class End:
    """What is waited for."""

    name: str  # of the job or batch
    wait: Callable[[Callable[[], object]], object]  # calls now and then what it is given, which may raise
    turn_seconds: float = 1.0  # how long a thread waits for it while others have none


@dataclass
class Wait:
    """Somebody who waits for an end."""

    end: End
    tell: Callable[[BaseException | None], object]  # gets None, or the error after which it is not waited for any more
    is_wanted: Callable[[], bool] = lambda: True  # whether anybody still wants to be told
    clock: Clock = time
    gives_up: float = float("-inf")  # when; at the first error, if nothing was seen before

    def take_turn(self, do_others_wait: Callable[[], object]) -> bool:
        """Wait, as long as no other wait has more right to the thread, and tell; return whether that was all."""
        error: BaseException | None = None
        over = self.clock.monotonic() + self.end.turn_seconds

        def check() -> None:
            now = self.clock.monotonic()
            self.gives_up = now + AWAY_SECONDS
            if not self.is_wanted() or (now > over and do_others_wait()):
                raise _TurnOverError

        try:
            if self.is_wanted():
                self.end.wait(check)
        except _TurnOverError:
            return not self.is_wanted()
        except OUT_OF_REACH as away:
            if self.clock.monotonic() < self.gives_up:
                self.clock.sleep(AGAIN_SECONDS)
                return False
            error = away
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever waits
            error = raised
        if self.is_wanted():
            self.tell(error)
        return True


class _TurnOverError(Exception):
    """The thread is wanted for another wait, or nobody wants to be told any more."""


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
            raise RuntimeError(f"no thread could be started to wait for {wait.end.name}")

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
            if wait.take_turn(lambda: self._waits):
                wait = None


_waits_of: dict[int, _Waits] = {}  # by process: after a fork, the threads stay behind


def add(wait: Wait) -> None:
    """Wait for an end on a thread; a program that ends does not wait for it."""
    _waits_of.setdefault(os.getpid(), _Waits()).add(wait)


def call(function: Callable[[R], object], handle: R, end: End, *, at_once: bool = False) -> None:
    """Call a function of the user's with a handle once its job or batch has ended."""
    check_callback("a done callback", function, "it is given the handle")

    def tell(error: BaseException | None) -> None:
        if error is not None:
            what = getattr(error, "what", None) or f"{type(error).__name__}: {error}"
            output.warn(f"the end of {end.name} cannot be seen, so its done callback is not called", why=what)
            return
        try:
            function(handle)
        except Exception:  # noqa: BLE001 - the callback is user code
            locate.log().exception("a done callback of %s failed; the job is not affected", end.name)

    if at_once:
        tell(None)
    else:
        add(Wait(end, tell))


class Value(Generic[R]):
    """What ``await`` waits for: the value of a job or a batch, collected on a thread."""

    def __init__(self, end: End, collect: Callable[[], R], report: Callable[[], object]) -> None:
        self._end, self._collect, self._report = end, collect, report

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # 40 ms; whoever awaits has it

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise CallableError(
                f"{self._end.name} cannot be awaited here",
                why="`await` needs an event loop of asyncio, and none runs in this thread",
                next="call result() on a thread; with Trio: await trio.to_thread.run_sync(job.result)",
            ) from None
        future: asyncio.Future[R] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            value: Any = None
            try:
                if error is not None:
                    raise error
                value = self._collect()
            except StopIteration as raised:  # no coroutine can pass it on
                error = RuntimeError(f"{self._end.name} raised StopIteration")
                error.__cause__ = raised
            except BaseException as raised:  # noqa: BLE001 - it belongs to whoever awaits
                error = raised

            def deliver() -> None:
                if not future.done():
                    future.set_exception(error) if error is not None else future.set_result(value)

            with contextlib.suppress(RuntimeError):  # the loop is closed; the handle keeps the value
                loop.call_soon_threadsafe(deliver)

        def is_wanted() -> bool:
            with contextlib.suppress(RuntimeError):  # as above
                loop.call_soon_threadsafe(lambda: None)  # Interrupt in a notebook cancels the cell, and wakes no loop
            return not future.cancelled()

        add(Wait(self._end, tell, is_wanted))
        try:
            return (yield from future)
        except asyncio.CancelledError as error:
            tracebacks.note_cancelled_await(self._report, error)
            raise
