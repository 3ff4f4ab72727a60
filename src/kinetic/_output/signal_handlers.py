"""What signal handlers of the user's raise into a wait: the caller gets it, whichever of our lines it interrupts.

Python runs a handler between any two lines. A TimeoutError that one raises is an OSError, which lines that read a file
take for an error of the file: they would pass it over, or report it as another one.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Any

# What programs use to interrupt themselves, or are interrupted by. Ctrl-C raises no OSError, unless they handle it.
_NAMES = ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGHUP", "SIGINT")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


class HandlerWatch:
    """Notes what handlers raise while the code below a frame runs: a wait of the main thread, which installs them."""

    def __init__(self, frame: FrameType) -> None:
        self.error: Exception | None = None
        self._frame: FrameType | None = frame
        self._installed: dict[int, Any] = {}  # by signal, what notes for the handler
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _Noting) and handler is not signal.default_int_handler:
                noting = _Noting(handler, self)
                with contextlib.suppress(ValueError):  # in an interpreter inside another one, as of mod_wsgi
                    signal.signal(number, noting)
                    self._installed[number] = noting
        if self._installed:
            _watches.append(self)

    def end(self) -> Exception | None:
        """Put the handlers back, unless there are others by now; return what was raised last, and not given out."""
        self._frame = None
        if self._installed:
            _watches.remove(self)
            for number, noting in self._installed.items():
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

    def __init__(self, handler: Any, watch: HandlerWatch) -> None:
        self.handler, self._watch = handler, watch

    def __call__(self, number: int, interrupted: FrameType | None) -> object:
        try:
            return self.handler(number, interrupted)
        except Exception as error:
            self._watch.note(error, interrupted)
            raise


_watches: list[HandlerWatch] = []  # of the main thread


def check() -> None:
    """Raise what a handler raised into a wait of this thread, and our code passed over."""
    for watch in _watches:
        if watch.error is not None and threading.current_thread() is threading.main_thread():
            error, watch.error = watch.error, None
            raise error
