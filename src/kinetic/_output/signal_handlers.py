"""What signal handlers of the user's raise into a submission or a wait: the caller gets it, whatever it interrupts.

Python runs a handler between any two lines. A TimeoutError that one raises is an OSError, which lines that read a file
take for an error of the file: they would pass it over, or report it as another one.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

# What programs use to interrupt themselves, or are interrupted by. Ctrl-C raises no OSError, unless they handle it.
_NAMES = ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGHUP", "SIGINT")
_PAUSES = 0x20 | 0x80 | 0x200  # inspect.CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


class HandlerWatch:
    """Notes what handlers raise while a frame, or what it calls, is running in the main thread, which installs them.

    As a context, it lets what a handler raised leave in the place of the error for which our code took it.
    """

    def __init__(self, frame: FrameType) -> None:
        self.error: Exception | None = None
        self._frame: FrameType | None = frame
        if threading.current_thread() is not threading.main_thread():
            return
        # With this one before its handlers: a wait of another thread that ends meanwhile is not the last then.
        _watches[:] = [*(watch for watch in _watches if not watch.is_left(_running())), self]
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _Noting) and handler is not signal.default_int_handler:
                with contextlib.suppress(ValueError):  # in an interpreter inside another one, as of mod_wsgi
                    noting = _Noting(handler)
                    signal.signal(number, noting)
                    _installed[number] = noting

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        raised = self.end()
        if raised is not None and isinstance(error, Exception) and error is not raised:
            for note in getattr(error, "__notes__", ()):  # as the command that resumes a batch
                raised.add_note(note)
            raise raised from None

    def end(self) -> Exception | None:
        """Stop noting; return what was raised last, and not given out.

        The last watch puts the handlers back, unless there are others by now: a batch that is collected in a loop
        has one between two of its jobs, and the wait for a job inside the loop ends before it.
        """
        self._frame = None
        if self in _watches:
            _watches.remove(self)
        while _installed and not _watches:
            number, noting = _installed.popitem()
            own = noting.handler
            if signal.getsignal(number) is noting:
                with contextlib.suppress(ValueError):  # a generator that another thread ends
                    signal.signal(number, own)
        error, self.error = self.error, None  # its traceback leads back to here
        return error

    def is_around(self, running: set[FrameType]) -> bool:
        """Return whether its frame is among some that run: the user's code beside a generator is none of its own."""
        return self._frame in running

    def is_left(self, running: set[FrameType]) -> bool:
        """Return whether its frame has ended without it: a handler interrupted the very line that began or ended it."""
        return not (self.is_around(running) or (self._frame and self._frame.f_code.co_flags & _PAUSES))


class _Noting:
    """A handler of the user's whose errors are noted; somebody may keep it for longer than the wait takes."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, interrupted: FrameType | None) -> object:
        try:
            return self.handler(number, interrupted)
        except Exception as error:
            running = _running(interrupted)
            for watch in _watches:
                if watch.is_around(running):
                    watch.error = error
            raise


_watches: list[HandlerWatch] = []  # of the main thread
_installed: dict[int, _Noting] = {}  # by signal


def _running(frame: FrameType | None = None) -> set[FrameType]:
    """Return the frames that run, from one of them on; of this function's caller unless another one is named."""
    found = set[FrameType]()
    above: FrameType | None = frame or sys._getframe(1)  # noqa: SLF001 - by its documentation, who calls
    while above is not None:
        found.add(above)
        above = above.f_back
    return found


def check() -> None:
    """Raise what a handler raised into a wait of this thread, and our code passed over."""
    if threading.current_thread() is not threading.main_thread() or all(each.error is None for each in _watches):
        return
    running = _running()
    around = [watch for watch in reversed(_watches) if watch.is_around(running)]
    error = next((watch.error for watch in around if watch.error is not None), None)
    if error is not None:
        for watch in around:  # of one wait inside another, both have it
            watch.error = None
        raise error
