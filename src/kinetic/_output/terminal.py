"""Messages on standard error, and the lines of a terminal that are rewritten while something runs.

There is one terminal, and several may draw on it. An *owner* keeps the place until `release`: what others draw in the
meantime is not shown, and no one removes another owner's lines. Messages are written above. A phase that takes more
than a second is shown on a terminal as a line that counts its seconds; elsewhere one line says what is waited for, or
after some seconds that it still runs. In both, a line at its end says how long it took. No colors are used here.

What comes from a store, a job, a cluster or a file name controls no terminal. *Text about* something (names, reasons,
tables) is escaped: controls, escape sequences, marks that reverse the direction of text, lone surrogates. *What a job
printed* keeps its looks; see ``job_text.py``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kinetic._output import colors
from kinetic._output.colors import Sanitized
from kinetic._output.format import duration_text, plain, shortened
from kinetic._wire import python_runtime
from kinetic.errors import OptionError, indented

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

PREFIX = "kinetic: "
LEVEL_VARIABLE = "KINETIC_LOG_LEVEL"
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "FATAL": 50}
INFO = _LEVELS["INFO"]
_DAY_SECONDS = 24 * 3600.0
SLOW_SECONDS = 1.0
LONG_SECONDS = 5.0  # without a terminal: what takes longer may look as if it hung
Clock = Callable[[], float]

_CLEAR = "\r\x1b[K"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"  # from the cursor on
_ROOM = 3  # columns that a line leaves free: for the ^C of a terminal, and the last one
USUAL_SIZE = os.terminal_size((80, 24))  # of a terminal that does not say how large it is
_lock = python_runtime.free_in_child(threading.RLock())
_shown = False
_above = 0  # how many of the shown lines are above the one with the cursor
_owner: weakref.ref[object] | None = None  # who drew what is shown; one that is gone owns nothing
_again: list[str] = []  # the lines that an owner drew, to be drawn again below what others write
_said: set[str] = set()
_messages = 0  # lines that were written above what is shown
_is_line_open = False  # whether a job's text ends in the middle of a line, on the same terminal


def is_possible() -> bool:
    """Return whether standard error is a terminal on which a line can be rewritten: not one of a bar of the program."""
    if colors.tqdm_with_bars() is not None:
        return False
    return colors.is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"


def show_line(text: str, *, owner: object = None) -> None:
    """Show one line, cut to the terminal's width, in place of what is shown; anyone may replace one without owner."""
    global _shown, _owner
    with _lock:
        if _is_taken(owner):
            return
        if _above:
            clear()
        _write(f"{_CLEAR}{shortened(plain(text), size().columns - _ROOM)}")
        _shown, _owner = True, _ref(owner)
        _again.clear()


def show_lines(lines: Sequence[str], *, owner: object = None) -> None:
    """Show as many lines as the terminal has room for, in the place of what is shown.

    All of it is one write, and no line is empty in between: that prevents flicker. With an owner they stay below what
    others write, until the owner releases them. A line that is Sanitized fits already, and may have colors.
    """
    global _owner  # noqa: PLW0603 - there is one terminal
    with _lock:
        if _is_taken(owner):
            return
        room = size()
        fitting = [
            line if isinstance(line, Sanitized) else shortened(plain(line), room.columns - 1)
            for line in lines[: max(room.lines - 1, 1)]
        ]
        _draw(_to_the_top(), fitting)
        _owner = _ref(owner)
        _again[:] = fitting if owner is not None else []


def messages_written() -> int:
    """Return how many lines of ours moved the cursor of the terminal so far."""
    return _messages


def note_open_line(*, is_open: bool) -> None:
    """Record whether what a job printed on the terminal ends in the middle of a line: a message begins a new one."""
    global _is_line_open  # noqa: PLW0603 - there is one terminal
    _is_line_open = is_open


def write_line(text: str) -> None:
    """Write a line above what is shown, in one write: so that nothing flickers."""
    global _messages, _is_line_open  # noqa: PLW0603 - as above
    with _lock:
        _messages += 1
        if _is_line_open and is_possible():
            text = f"\n{text}"
        _is_line_open = False
        if not _again or _owner is None or _owner() is None or not is_possible():
            clear()
            colors.write(sys.stderr, Sanitized(f"{text}\n"))
            return
        before = f"{_to_the_top()}{_CLEAR_BELOW}" if _shown else ""
        _draw(f"{before}{text}\n", _again)


def clear() -> None:
    """Remove what is shown, whatever its owner; call it before writing to the terminal directly."""
    global _shown, _above
    with _lock:
        if _shown:
            _write(f"{_to_the_top()}{_CLEAR_BELOW}" if _above else _CLEAR)
            _shown, _above = False, 0


def release(owner: object) -> None:
    """Remove what this owner drew; what others drew stays."""
    global _owner  # noqa: PLW0603 - as above
    with _lock:
        if _owner is not None and _owner() is owner:
            clear()
            _owner = None
            _again.clear()


def leave_line() -> None:
    """Begin a new line on a terminal, after the ``^C`` of the person who pressed it."""
    global _messages, _is_line_open
    if is_possible():
        clear()
        _write("\n")
        _messages, _is_line_open = _messages + 1, False


def _is_taken(owner: object) -> bool:
    """Return whether what is shown belongs to another owner that still exists."""
    return _shown and _owner is not None and _owner() not in (None, owner)


def _ref(owner: object) -> weakref.ref[object] | None:
    return None if owner is None else weakref.ref(owner)


def _draw(before: str, fitting: Sequence[str]) -> None:
    global _shown, _above
    # The return at the end: a ^C that does not fit into the last line would move the cursor one line below the picture.
    _write(f"{before}{chr(10).join(f'{line}{_CLEAR_LINE}' for line in fitting)}{_CLEAR_BELOW}\r")
    _shown, _above = True, len(fitting) - 1


def _to_the_top() -> str:
    return f"\r\x1b[{_above}A" if _above else "\r"


def size() -> os.terminal_size:
    """Return how large the terminal of standard error is, whatever COLUMNS says."""
    return size_of(sys.stderr)


def size_of(stream: TextIO | None) -> os.terminal_size:
    """Return how large the terminal behind a stream is."""
    try:
        found = os.get_terminal_size(stream.fileno())  # type: ignore[union-attr] # as below
    except (OSError, ValueError, AttributeError):  # AttributeError: there is no such stream at all
        return USUAL_SIZE
    return os.terminal_size((found.columns or USUAL_SIZE.columns, found.lines or USUAL_SIZE.lines))


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed terminal must not harm the job
        colors.write(sys.stderr, Sanitized(text))


def report(text: str) -> None:
    """Write something that is good to know."""
    _write_message(text, INFO)


def warn(text: str, *, why: str = "", next: str = "") -> None:
    """Write something that may need attention, and on lines of their own why, and what to do."""
    labels = (("why:   ", why, "yellow"), ("next:  ", next, "green"))
    parts = [_painted(label, color) + indented(part, len(label)) for label, part, color in labels if part]
    _write_message(text, _LEVELS["WARNING"], *parts, label="warning: ")


def report_error(text: str) -> None:
    """Write in one line that something is wrong, even if the log level leaves warnings out."""
    _write_message(text, _LEVELS["ERROR"])


def report_once(text: str, *, about: str = "") -> None:
    """Report something the first time in this process; the same `about`, by default the text, counts as the same."""
    if (about or text) not in _said:
        _said.add(about or text)
        report(text)


def warn_once(text: str, why: str = "", next: str = "") -> None:
    """Warn the first time in this process."""
    if text not in _said:
        _said.add(text)
        warn(text, why=why, next=next)


def is_notice_due(notice: str, folder: Path, *, now: float | None = None) -> bool:
    """Return whether a notice should be given: once a day, remembered by an empty file named by its digest.

    Where the folder cannot be written, the notice is due each time.
    """
    now = time.time() if now is None else now
    mark = folder / f"{zlib.crc32(notice.encode()):08x}"
    with contextlib.suppress(OSError):  # not given yet
        if 0 <= now - mark.stat().st_mtime < _DAY_SECONDS:
            return False
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        mark.touch(mode=0o600)
        os.utime(mark, (now, now))
    return True


def is_wanted(level: int) -> bool:
    """Return whether KINETIC_LOG_LEVEL lets messages of this level through; one that is unknown counts as INFO."""
    return level >= _LEVELS.get(os.environ.get(LEVEL_VARIABLE, "INFO").upper(), INFO)


def check_level(environ: Mapping[str, str]) -> None:
    """Refuse a KINETIC_LOG_LEVEL that is not known."""
    level = environ.get(LEVEL_VARIABLE, "")
    if level and level.upper() not in _LEVELS:
        raise OptionError(
            f"{LEVEL_VARIABLE}={plain(level)!r} is not a level of messages",
            why=f"levels: {', '.join(_LEVELS)}",
            next=f"export {LEVEL_VARIABLE}=INFO",
        )


def _painted(label: str, color: str) -> str:
    """Return a label of ours, which ends with blanks, in a color if standard error gets any."""
    word = label.rstrip(" ")
    return colors.paint(word, color, sys.stderr, bold=True) + label[len(word) :]


def _write_message(text: str, level: int, *parts: str, label: str = "") -> None:
    if sys.stderr is None or not is_wanted(level):
        return
    with contextlib.suppress(OSError, ValueError):  # a closed terminal must not harm the job
        text = indented(f"{label}{text}", len(PREFIX)).removeprefix(label)
        write_line("\n".join([f"{PREFIX}{_painted(label, 'yellow') if label else ''}{text}", *parts]))


class _PhaseLine:
    """Owns the line of all phases that run at the same time."""


_phase_line = _PhaseLine()
_phases: list[Progress] = []  # that share the line, in the order in which they began


class Progress:
    """The phases of one piece of work, one after the other; those of ``phase`` share a line with others'.

    ``label`` is asked for each line which work it is about, for its beginning.
    """

    def __init__(self, clock: Clock = time.monotonic, *, shares: bool = False, label: Callable[[], str] = str) -> None:
        self._clock, self._shares, self._label = clock, shares, label
        self._is_live = is_possible() and is_wanted(INFO)
        self._phase = ""
        self._detail = ""
        self._since = 0.0
        self._written = ""  # to a log file, or shown on the terminal
        self._mid_line = False

    def enter(self, phase: str, detail: str = "") -> None:
        """Begin a phase, or update its detail; another phase before it has ended."""
        if phase != self._phase:
            self.end()
            self._phase, self._written = phase, ""
            self._since = self._clock()
            if self._shares:
                _phases.append(self)
        self.update(detail)

    def update(self, detail: str) -> None:
        """Set how far the phase is, and show it."""
        self._detail = detail
        self.show()

    def show(self) -> None:
        """Bring what is shown up to date."""
        seconds = self._clock() - self._since
        if not self._phase or seconds < SLOW_SECONDS:
            return
        about = f": {self._detail}" if self._detail else ""
        if self._is_live and self._shares:
            with _lock:
                text = PREFIX + "; ".join(filter(None, [each.text() for each in _phases]))
                show_lines([text], owner=_phase_line)
        elif self._is_live and not self._mid_line:
            text = f"{PREFIX}{self._label()}{self._phase}, {duration_text(seconds)}{about}"
            if text != self._written:
                self._written = text
                show_line(text, owner=self)
        elif not self._is_live and about and not self._written:
            self._written = about
            report(f"{self._label()}{self._phase}{about}")

    def text(self) -> str:
        """Return what a line says of the phase, "" for one that has only begun."""
        seconds = self._clock() - self._since
        about = f": {self._detail}" if self._detail else ""
        return f"{self._phase}, {duration_text(seconds)}{about}" if seconds >= SLOW_SECONDS else ""

    def show_still(self, detail: str) -> None:
        """Report once that the phase still runs, where no line counts its seconds."""
        if self._phase and not self._is_live and not self._written:
            about = f": {detail}" if detail else ""
            self._written = f"still {self._phase} after {duration_text(self._clock() - self._since)}{about}"
            report(self._written)

    def wrote(self, text: str) -> None:
        """Record text that others wrote to the terminal: the line is shown again only where a line begins."""
        if text:
            self._mid_line = not text.endswith("\n")
            self._written = "" if self._is_live else self._written

    def end(self) -> None:
        """Report how long the phase took, if it was long."""
        self.clear()
        seconds = self._clock() - self._since
        if self._phase and seconds >= SLOW_SECONDS:
            if self._mid_line and self._is_live and not _is_line_open:
                _write("\n")
            report(f"{self._label()}{self._phase} took {duration_text(seconds)}")
        self._phase, self._mid_line = "", False

    def clear(self) -> None:
        """Remove the line that this drew, and no other; phases that still run draw theirs again."""
        if not self._shares:
            release(self)
            return
        with _lock:
            if self in _phases:
                _phases.remove(self)
            release(_phase_line)
            if long := [each for each in _phases if each.text()]:
                long[0].show()


@contextmanager
def beside(work: Callable[[threading.Event], object], name: str) -> Iterator[None]:
    """Run something on a thread while the block runs; it is given the event that says that the block is over."""
    over = threading.Event()
    thread = python_runtime.start_thread(lambda: work(over), name)
    try:
        yield
    finally:
        over.set()
        if thread is not None:
            thread.join()


@contextmanager
def phase(name: str, *, summary: bool = True, detail: Callable[[], str] | None = None) -> Iterator[None]:
    """Show what runs inside, if it takes long, and at the end how long it took; another thread calls `detail`."""
    progress = Progress(shares=True)
    progress.enter(name)

    def tick(over: threading.Event) -> None:
        while not over.wait(SLOW_SECONDS):
            progress.show() if detail is None else progress.update(detail())

    def report_still(over: threading.Event) -> None:
        if not over.wait(LONG_SECONDS):
            progress.show_still("" if detail is None else detail())

    work = tick if is_possible() else report_still
    try:
        with beside(work, "kinetic-progress") if is_wanted(INFO) else contextlib.nullcontext():
            yield
    finally:
        progress.end() if summary else progress.clear()
