"""What signal handlers of the user's raise into a submission or a wait: the caller gets it, whatever it interrupts.

Python runs a handler between any two lines. A TimeoutError that one raises is an OSError, which lines that read a file
take for an error of the file: they would pass it over, or report it as another one.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

# What programs use to interrupt themselves, or are interrupted by. Ctrl-C raises no OSError, unless they handle it.
_NAMES = ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGHUP", "SIGINT")
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
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _Noting) and handler is not signal.default_int_handler:
                with contextlib.suppress(ValueError):  # in an interpreter inside another one, as of mod_wsgi
                    noting = _Noting(handler)
                    signal.signal(number, noting)
                    _installed[number] = noting
        _watches.append(self)

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

    def note(self, error: Exception, interrupted: FrameType | None) -> None:
        """Note what a handler raised, if it has interrupted our code, and not the user's own beside it."""
        while interrupted is not None and interrupted is not self._frame:
            interrupted = interrupted.f_back
        if interrupted is not None:
            self.error = error


class _Noting:
    """A handler of the user's whose errors are noted; somebody may keep it for longer than the wait takes."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, interrupted: FrameType | None) -> object:
        try:
            return self.handler(number, interrupted)
        except Exception as error:
            for watch in _watches:
                watch.note(error, interrupted)
            raise


_watches: list[HandlerWatch] = []  # of the main thread
_installed: dict[int, _Noting] = {}  # by signal


def check() -> None:
    """Raise what a handler raised into a wait of this thread, and our code passed over."""
    if threading.current_thread() is not threading.main_thread():
        return
    error = next((watch.error for watch in reversed(_watches) if watch.error is not None), None)
    if error is not None:
        for watch in _watches:  # of one wait inside another, both have it
            watch.error = None
        raise error
