"""The lines of a terminal that are written over again: shown while something runs, out of the way of other text.

There is one terminal and many who might draw. Who draws says so (`owner`) and keeps the place until `release`: others
that draw meanwhile are not shown, and what others release is not theirs to take away. Text of any kind goes above.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kinetic._output import format as output_format
from kinetic._output.format import duration_text, shortened
from kinetic._wire import threads
from kinetic.errors import printable

_CLEAR = "\r\x1b[K"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"  # from the cursor on
_USUAL_WIDTH = 80  # of a terminal that does not say how wide it is
_USUAL_HEIGHT = 24
_lock = threading.RLock()
_shown = False
_above = 0  # how many lines of what is shown stand above the one with the cursor
_owner: weakref.ref[object] | None = None  # who drew what is shown; one that is gone holds nothing
_again: list[str] = []  # the lines that an owner drew, to be drawn again below what others write


def is_possible() -> bool:
    """Say whether standard error is a terminal that can write over a line."""
    stream = sys.stderr
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def show_line(text: str, *, owner: object = None) -> None:
    """Show a text in the place of what is shown; never more than one line of the terminal.

    Args:
        text: The line.
        owner: Who draws; None for anybody, whose lines give way to all others.
    """
    global _shown, _owner
    with _lock:
        if _is_taken(owner):
            return
        if _above:
            clear()
        _write(f"{_CLEAR}{output_format.plain(text)[: _width() - 1]}")
        _shown, _owner = True, _ref(owner)
        _again.clear()


def show_lines(lines: Sequence[str], *, owner: object = None) -> None:
    """Show several lines in the place of what is shown, as many as the terminal has room for, each cut to its width.

    All of it is one write, and no line is empty in between: that is what keeps it from flickering. Where they have an
    owner they stay below what others write, until the owner takes them away.
    """
    global _owner  # noqa: PLW0603 - there is one terminal
    with _lock:
        if _is_taken(owner):
            return
        width = _width() - 1
        fitting = [shortened(output_format.plain(line), width) for line in lines[: max(_height() - 1, 1)]]
        _draw(_to_the_top(), fitting)
        _owner = _ref(owner)
        _again[:] = fitting if owner is not None else []


def write_line(text: str) -> None:
    """Write a line of text above what is shown: in one write, so that no picture is missing in between."""
    with _lock:
        if not _again or _owner is None or _owner() is None or not is_possible():
            clear()
            sys.stderr.write(output_format.Sanitized(f"{text}\n"))
            sys.stderr.flush()
            return
        before = f"{_to_the_top()}{_CLEAR_BELOW}" if _shown else ""
        _draw(f"{before}{text}\n", _again)


def clear() -> None:
    """Take away what is shown, whoever drew it, to make room; who writes to the terminal by itself calls this first."""
    global _shown, _above
    with _lock:
        if _shown:
            _write(f"{_to_the_top()}{_CLEAR_BELOW}" if _above else _CLEAR)
            _shown, _above = False, 0


def release(owner: object) -> None:
    """Take away what this owner drew; what others drew stays."""
    global _owner  # noqa: PLW0603 - as above
    with _lock:
        if _owner is not None and _owner() is owner:
            clear()
            _owner = None
            _again.clear()


def end_line() -> None:
    """End the line that others left open."""
    with _lock:
        _write("\n")


def leave_line() -> None:
    """Begin a new line on a terminal, where the ``^C`` of who pressed it stands on the present one."""
    if is_possible():
        clear()
        end_line()


def _is_taken(owner: object) -> bool:
    """Say whether what is shown belongs to somebody else, who still lives."""
    return _shown and _owner is not None and _owner() not in (None, owner)


def _ref(owner: object) -> weakref.ref[object] | None:
    return None if owner is None else weakref.ref(owner)


def _draw(before: str, fitting: Sequence[str]) -> None:
    global _shown, _above
    _write(f"{before}{chr(10).join(f'{line}{_CLEAR_LINE}' for line in fitting)}{_CLEAR_BELOW}")
    _shown, _above = True, len(fitting) - 1


def _to_the_top() -> str:
    return f"\r\x1b[{_above}A" if _above else "\r"


def _width() -> int:
    return _size().columns or _USUAL_WIDTH


def _height() -> int:
    return _size().lines or _USUAL_HEIGHT


def _size() -> os.terminal_size:
    try:
        return os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # AttributeError: there is no standard error at all
        return os.terminal_size((_USUAL_WIDTH, _USUAL_HEIGHT))


def _write(text: str) -> None:
    try:
        sys.stderr.write(output_format.Sanitized(text))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # a closed terminal, or none, must not harm the job
        return


PREFIX = "kinetic: "
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "FATAL": 50}
INFO = _LEVELS["INFO"]
_said: set[str] = set()
_DAY_SECONDS = 24 * 3600.0


def report(text: str) -> None:
    """Tell something that is good to know."""
    _write_message(text, INFO)


def warn(text: str, *, why: str = "", next: str = "") -> None:  # noqa: A002 - as in errors.py
    """Tell something that may need attention, and in lines of their own why, and what to do."""
    parts = (("why:   ", why), ("next:  ", next))
    _write_message(
        f"warning: {text}", _LEVELS["WARNING"], *(label + _below(said, len(label)) for label, said in parts if said)
    )


def report_error(text: str) -> None:
    """Tell in one line that something is not what it must be; who wants no warnings is told, too."""
    _write_message(text, _LEVELS["ERROR"])


def report_once(text: str, *, about: str = "") -> None:
    """Tell something, but only the first time in this process.

    Args:
        text: What is said.
        about: What counts as the same thing; the text itself by default.
    """
    if (about or text) not in _said:
        _said.add(about or text)
        report(text)


def warn_once(text: str) -> None:
    """Tell something that may need attention, but only the first time in this process."""
    if text not in _said:
        _said.add(text)
        warn(text)


def is_notice_due(notice: str, folder: Path, *, now: float | None = None) -> bool:
    """Return whether a notice is to be given: once a day, as an empty file with its digest for a name remembers.

    Args:
        notice: What is to be said.
        folder: Where it is remembered; where that cannot be written, the notice is due each time.
        now: Seconds since the epoch; tests bring their own.
    """
    now = time.time() if now is None else now
    mark = folder / f"{zlib.crc32(notice.encode()):08x}"
    try:
        if 0 <= now - mark.stat().st_mtime < _DAY_SECONDS:
            return False
    except OSError:
        pass  # not yet
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        mark.touch(mode=0o600)
        os.utime(mark, (now, now))
    return True


def is_wanted(level: int) -> bool:
    """Say whether the user wants to be told what has this weight."""
    return level >= _LEVELS.get(os.environ.get("KINETIC_LOG_LEVEL", "INFO").upper(), INFO)


def _below(text: str, indent: int) -> str:
    """Pass the gate: a name with a line break in it begins no line that could be taken for one of ours."""
    first, *others = printable(text).split("\n")
    return "\n".join([first, *(line if line[:1] in {"", " "} else f"{' ' * indent}{line}" for line in others)])


def _write_message(text: str, level: int, *parts: str) -> None:
    stream = sys.stderr
    if stream is None or not is_wanted(level):
        return
    try:
        write_line("\n".join([f"{PREFIX}{_below(text, len(PREFIX))}", *parts]))
    except (OSError, ValueError):  # a closed terminal must not harm the job
        return


SLOW_SECONDS = 1.0
LONG_SECONDS = 5.0  # without a terminal: what takes longer may look as if it hung
_MINUTE, _HOUR = 60, 3600
Clock = Callable[[], float]


class Progress:
    """The phases of one piece of work, one after the other.

    Args:
        clock: Gives seconds; tests bring their own.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._is_live = is_possible() and is_wanted(INFO)
        self._phase = ""
        self._detail = ""
        self._since = 0.0
        self._told = ""  # what a log file has been told, or the terminal shows
        self._mid_line = False

    def enter(self, phase: str, detail: str = "", *, since: float | None = None) -> None:
        """Say what goes on now; the phase before it, if it is another one, has ended.

        Args:
            phase: E.g. "waiting for a slot".
            detail: More about it, e.g. how many are before us.
            since: When it began, by the clock; now by default.
        """
        if phase != self._phase:
            self.end()
            self._phase, self._told = phase, ""
            self._since = self._clock() if since is None else since
        self._detail = detail
        self.show()

    def tell(self, detail: str) -> None:
        """Say how far the phase is."""
        self._detail = detail
        self.show()

    def show(self) -> None:
        """Bring what is shown up to date."""
        seconds = self._clock() - self._since
        if not self._phase or seconds < SLOW_SECONDS:
            return
        about = f": {self._detail}" if self._detail else ""
        if self._is_live and not self._mid_line:
            text = f"{PREFIX}{self._phase}, {duration_text(seconds)}{about}"
            if text != self._told:
                self._told = text
                show_line(text, owner=self)
        elif not self._is_live and about and not self._told:
            self._told = about
            report(f"{self._phase}{about}")

    def show_still(self, detail: str = "") -> None:
        """Say once that the phase goes on, where no line counts its seconds.

        Args:
            detail: How far it is.
        """
        if self._phase and not self._is_live and not self._told:
            about = f": {detail}" if detail else ""
            self._told = f"still {self._phase} after {duration_text(self._clock() - self._since)}{about}"
            report(self._told)

    def wrote(self, text: str) -> None:
        """Take note of text that others wrote to the terminal: the line is shown again only where a line begins."""
        if text:
            self._mid_line = not text.endswith("\n")
            self._told = "" if self._is_live else self._told

    def end(self) -> None:
        """Say how long the phase took, if it was long."""
        self.clear()
        seconds = self._clock() - self._since
        if self._phase and seconds >= SLOW_SECONDS:
            if self._mid_line and self._is_live:
                end_line()
            report(f"{self._phase} took {duration_text(seconds)}")
        self._phase, self._mid_line = "", False

    def clear(self) -> None:
        """Take the line away that this drew, and none of somebody else's."""
        release(self)


@contextmanager
def phase(name: str, *, summary: bool = True, detail: Callable[[], str] | None = None) -> Iterator[None]:
    """Name what happens inside, if it takes long.

    Args:
        name: E.g. "packing".
        summary: Say at the end how long it took; False where the caller says it in better words.
        detail: Says how far it is, each second on a terminal, once elsewhere; asked by another thread.
    """
    progress = Progress()
    progress.enter(name)
    stop = _keep_showing(progress, detail) if is_wanted(INFO) else _nothing
    try:
        yield
    finally:
        stop()
        if summary:
            progress.end()
        else:
            progress.clear()


def _keep_showing(progress: Progress, detail: Callable[[], str] | None) -> Callable[[], None]:
    """Show a phase from a thread while the caller works; return what stops it."""
    import threading

    over = threading.Event()

    def tick() -> None:
        while not over.wait(SLOW_SECONDS):
            progress.show() if detail is None else progress.tell(detail())

    def tell_once() -> None:
        if not over.wait(LONG_SECONDS):
            progress.show_still("" if detail is None else detail())

    thread = threads.start(tick if is_possible() else tell_once, "kinetic-progress")

    def stop() -> None:
        over.set()
        if thread is not None:
            thread.join()

    return stop


def _nothing() -> None:
    return
