"""What a job printed, as a terminal or a file shows it: a progress bar is one line that changes, not a thousand lines.

A log holds what was printed, byte for byte, and stays so. Whoever shows it interprets, within the last lines of that
log, the carriage return, the backspace, erasing in a line, and the cursor going up and down, as bars of tqdm and Keras
use them. On a terminal these lines change in place; in a file or a pipe a line is written once it is final.

Nothing else of a job steers a terminal: colors and other renditions pass, and sequences that set the title, write the
clipboard, clear the screen or go above the job's own lines are removed. In a file, a line that never went back is
written byte for byte.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
from collections.abc import Callable
from typing import TextIO

from kinetic._output import colors, terminal
from kinetic._output.colors import Sanitized
from kinetic._output.format import plain, width
from kinetic.errors import printable

_MOST_ROWS = 16  # that can still change
_MOST_COLUMNS = 1 << 14  # of a row that changes; in a longer one the carriage return is a line break
_MOST_KEPT = 4 * _MOST_COLUMNS  # characters of a row that nothing has edited: no terminal goes back in a longer one
_LONGEST_STYLE = 96  # characters: more renditions at once are nobody's bar
_TAB = 8
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"  # from the cursor on

_SGR = r"\x1b\[[0-9;:]*m"
_MOVE = r"\x1b\[[0-9]{0,4}[ABCDEFG]|\x1b\[[0-2]?K"
_STRING = r"\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)"  # a title, the clipboard, private messages
_SEQUENCE = rf"{_STRING}|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]"
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]{0,4096}\x1b?|[ -/]*)?\Z")
_CONTROLS = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HARMLESS = bytes({*range(0x20, 0x7F), *b"\b\t\n\r"})
_LONGEST_HELD = 8192  # characters
_EDIT = re.compile(rf"\r(?!\r*\n)|\x08|{_MOVE}")
_OF_EDITS = "\r\b\x1b"  # one of them is in each edit, and in few texts: 200 times as fast to look for
_PART = re.compile(
    rf"(?P<end>\r*\n)|(?P<sgr>{_SGR})|(?P<move>{_MOVE})|(?P<no>{_SEQUENCE})|\r|\x08+|[^\r\n\x08\x1b]+|\x1b"
)
_OF_STYLE = re.compile(_SGR)
_ONE_COLUMN_EACH = re.compile("[ -~\u2500-\u259f]*")  # ASCII, and what bars are drawn with


class _Row:
    """One line that may still change. Until it is edited it is text as it was printed; then it is cells."""

    __slots__ = ("cells", "columns", "end", "is_cut", "is_dirty", "start_style", "text", "written")

    def __init__(self, style: str) -> None:
        self.text = ""
        self.cells: list[tuple[str, str]] | None = None  # style and character of each column; "" right of a wide one
        self.start_style = style
        self.end = ""  # the line break behind it
        self.written = ""  # what a file, or the terminal, has of it already
        self.columns = -1  # that it takes on the terminal; -1: as many as its text
        self.is_dirty = False  # whether it changed since it was drawn
        self.is_cut = False  # whether the terminal shows its beginning only

    @property
    def is_edited(self) -> bool:
        return self.cells is not None

    def append(self, text: str) -> None:
        """Add text to a line that was never edited."""
        if text:
            self.text, self.columns = _beginning(self.text, text), -1

    def edit(self) -> list[tuple[str, str]]:
        """Return the cells, which are made of the text now if that was not done before."""
        if self.cells is None:
            self.cells, style = [], self.start_style
            for found in _PART.finditer(self.text):
                if found["sgr"]:
                    style = _style_after(style, found["sgr"])
                elif not found["no"]:
                    _put(self.cells, len(self.cells), found[0], style)
            self.text = ""
        return self.cells

    def shown(self) -> str:
        """Return what the line is now; of an edited one without the blanks at its end."""
        if self.cells is None:
            return self.text
        found, style = [], ""
        for own, character in self.cells[: self.last_column()]:
            if own != style:
                found.append(f"\x1b[0m{own}" if style else own)
                style = own
            found.append(character)
        return "".join(found) + ("\x1b[0m" if style else "")

    def last_column(self) -> int:
        """Return how many columns are written, up to the last that is not blank."""
        if self.cells is None:
            return width(re.sub(_SEQUENCE, "", self.text).expandtabs(_TAB))
        blanks = 0
        while blanks < len(self.cells) and self.cells[-1 - blanks][1] == " ":
            blanks += 1
        return len(self.cells) - blanks

    def measure(self) -> int:
        """Return how many columns the terminal has of it."""
        return self.columns if self.columns >= 0 else self.last_column()


class _Screen:
    """The last lines of a log, and the cursor in them."""

    def __init__(self, *, for_a_file: bool) -> None:
        self._for_a_file = for_a_file  # there, what does not edit a line stays as it is
        self.rows = [_Row("")]
        self.at = 0
        self.column: int | None = None  # None: behind the text of a row that was never edited
        self.style = ""
        self.has_gone_up = False
        self.gone: list[_Row] = []  # rows that cannot change any more, until they are taken

    @property
    def is_appending(self) -> bool:
        """Return whether what comes next is added behind all that there is."""
        return self.at == len(self.rows) - 1 and self.column is None

    def append(self, text: str) -> None:
        """Take in text that edits nothing, and was cleaned."""
        lines = text.rsplit("\n", _MOST_ROWS)
        if len(lines) > _MOST_ROWS:
            self._take_styles(lines[0])  # all lines above
            del lines[0], self.rows[:]
            self.rows.append(_Row(self.style))
        for line in lines[:-1]:
            self.rows[-1].append(line)
            self.rows[-1].end = "\n"
            self._take_styles(line)
            self.rows.append(_Row(self.style))
        self.rows[-1].append(lines[-1])
        self._take_styles(lines[-1])
        del self.rows[: max(len(self.rows) - _MOST_ROWS, 0)]
        self.at = len(self.rows) - 1

    def _take_styles(self, text: str) -> None:
        if "\x1b" in text:
            for found in _OF_STYLE.finditer(text, max(text.rfind("\x1b[0m"), 0)):  # which ends all before it
                self.style = _style_after(self.style, found[0])

    def apply(self, text: str) -> None:
        """Take in any text."""
        for found in _PART.finditer(_without_what_is_overwritten(text)):
            part = found[0]
            if found["end"]:
                self._end_line(part)
            elif found["sgr"]:
                self.style = _style_after(self.style, part)
                if self.column is None:
                    self._row().text += part
            elif found["move"]:
                self._move(part)
            elif part == "\r":
                self._return()
            elif part[0] == "\b":
                self.column = max(self._column() - len(part), 0)
            elif self._for_a_file and (self.column is None or not (found["no"] or part == "\x1b")):
                self._print(part)
            elif not found["no"] and part != "\x1b":
                self._print(_escaped(part))

    def _row(self) -> _Row:
        self.rows[self.at].is_dirty = True
        return self.rows[self.at]

    def _column(self) -> int:
        row = self.rows[self.at]
        return len(row.edit()) if self.column is None else self.column

    def _print(self, text: str) -> None:
        row = self._row()
        if self.column is None:
            row.text += text
        else:
            self.column = _put(row.edit(), self.column, text, self.style)

    def _return(self) -> None:
        if len(self.rows[self.at].text) > _MOST_COLUMNS:
            self._end_line("\n")
        else:
            self.rows[self.at].edit()
            self.column = 0

    def _end_line(self, end: str) -> None:
        row = self.rows[self.at]
        row.end = row.end or end
        row.is_dirty = row.is_dirty or row.is_cut
        if self.at < len(self.rows) - 1:
            self.at += 1
            self.column = 0 if self.rows[self.at].text or self.rows[self.at].is_edited else None
            return
        self.rows.append(_Row(self.style))
        self.at, self.column = len(self.rows) - 1, None
        if len(self.rows) > _MOST_ROWS:
            self.drop(1)

    def drop(self, count: int) -> None:
        """Let the first rows go: they stay as they are."""
        self.gone += self.rows[:count]
        del self.rows[:count]
        self.at = max(self.at - count, 0)

    def _move(self, part: str) -> None:
        letter, number = part[-1], int(part[2:-1] or "0")
        if letter == "K":
            self._erase(number)
            return
        column, count = self._column(), max(number, 1)
        if letter in "AF":
            self.has_gone_up = True
            self.at = max(self.at - count, 0)
        elif letter in "BE":
            self.at = min(self.at + count, len(self.rows) - 1)
        elif letter == "C":
            column += count
        elif letter == "D":
            column -= count
        else:
            column = count - 1
        self.rows[self.at].edit()
        self.column = 0 if letter in "EF" else min(max(column, 0), _MOST_COLUMNS)

    def _erase(self, kind: int) -> None:
        column, cells = self._column(), self._row().edit()
        if kind == 0:
            del cells[column:]
        elif kind == 1:
            cells[: column + 1] = [("", " ")] * min(column + 1, len(cells))
        else:
            cells.clear()
        self.column = column


def _beginning(text: str, more: str) -> str:
    """Add text to a line, up to what is kept of one: adding to a line of 200 MB copied all of it for each piece."""
    return text if len(text) >= _MOST_KEPT else text + more[: _MOST_KEPT - len(text)]


def _put(cells: list[tuple[str, str]], column: int, text: str, style: str) -> int:
    """Write text over cells from a column on, and return the column behind it."""
    if column > len(cells):
        cells += [("", " ")] * (column - len(cells))
    if _ONE_COLUMN_EACH.fullmatch(text):
        text = text[: _MOST_COLUMNS - column]
        cells[column : column + len(text)] = [(style, character) for character in text]
        return column + len(text)
    for character in text:
        if column >= _MOST_COLUMNS:
            break
        if character == "\t":
            wide, found = _TAB - column % _TAB, " "
        else:
            wide, found = (1 if "\udc80" <= character <= "\udcff" else width(character)), character
        if not wide and column:  # it combines with the character before it
            before = cells[column - 1]
            cells[column - 1] = (before[0], f"{before[1]}{character}"[:8])
            continue
        rest = " " if found == " " else ""
        cells[column : column + wide] = [(style, found), *[(style, rest)] * (wide - 1)]
        column += max(wide, 1)
    return column


def _style_after(style: str, sgr: str) -> str:
    """Return the renditions that hold after one more."""
    codes = sgr[2:-1]
    if codes.replace("0", "") == "":
        return ""
    if codes.startswith(("0;", "00;")) or len(style) + len(sgr) > _LONGEST_STYLE:
        return sgr if len(sgr) <= _LONGEST_STYLE else ""
    return style + sgr


def _without_what_is_overwritten(text: str) -> str:
    """Leave out those versions of a line that the next ones cover: a bar may come a thousand times at once."""
    if text.count("\r") < 3:
        return text
    return "\n".join(_latest(line) if line.count("\r") > 2 else line for line in text.split("\n"))


def _latest(line: str) -> str:
    bare = line.rstrip("\r")
    first, *versions = bare.split("\r")
    if not versions:
        return line
    last, longest = versions.pop(), -1
    kept = [last]
    if _ONE_COLUMN_EACH.fullmatch(last):
        longest = len(last)
    for version in reversed(versions):
        written = version.rstrip("\b")  # the return goes further back than they do
        colors = _OF_STYLE.findall(written)
        letters = _OF_STYLE.sub("", written) if colors else written
        is_simple = bool(_ONE_COLUMN_EACH.fullmatch(letters))
        if is_simple and len(letters) <= longest and not (colors and _style_after("", colors[-1])):
            kept += colors[-1:]
            continue
        kept.append(version)
        if is_simple:
            longest = max(longest, len(letters))
    return "\r".join([first, *reversed(kept)]) + line[len(bare) :]


def _is_harmless(text: str) -> bool:
    """Return whether nothing in a text must be escaped; of ASCII, which most text is, 20 times as fast as a search."""
    return not text.encode().translate(None, _HARMLESS) if text.isascii() else _CONTROLS.search(text) is None


def _escaped(text: str) -> str:
    return text if _is_harmless(text) else _CONTROLS.sub(lambda found: plain(found[0]), text)


def _sanitized(text: str) -> str:
    """Return text that moves no cursor: escaped, without sequences other than renditions."""
    if "\x1b" not in text:
        return _escaped(text)
    if _is_harmless(_OF_STYLE.sub("", text)):  # colors alone
        return text
    text = re.sub(_SEQUENCE, lambda found: found[0] if _OF_STYLE.fullmatch(found[0]) else "", text)
    kept = [*_OF_STYLE.findall(text), ""]
    return "".join(f"{_escaped(part)}{keep}" for part, keep in zip(_OF_STYLE.split(text), kept, strict=True))


def _has_edit(text: str) -> bool:
    """Return whether text changes what stands before it."""
    return any(map(text.__contains__, _OF_EDITS)) and _EDIT.search(text) is not None


class TerminalText:
    """Text of a job on its way to a terminal; it comes in pieces, and a sequence may be cut in two."""

    def __init__(self, size: Callable[[], os.terminal_size] = lambda: terminal.USUAL_SIZE) -> None:
        self._size = size
        self._held = ""
        self._screen = _Screen(for_a_file=False)
        self._drawn = 1  # so many of the rows are on the terminal, with its cursor behind the last of them
        self._messages = terminal.messages_written()
        self._was = size()

    def feed(self, text: str) -> str:
        """Return what shows the text, and all that was printed before it, as a terminal would."""
        text = self._held + text
        begun = _BEGUN.search(text)
        self._held = text[begun.start() :] if begun else ""
        text = text[: begun.start()] if begun else text
        if (self._messages, self._was) != (now := (terminal.messages_written(), self._size())):
            self._forget(others_wrote=self._messages != now[0])
            self._messages, self._was = now
        if self._screen.is_appending and not _has_edit(text):
            found = _sanitized(text)
            self._screen.append(found.replace("\r", ""))
            self._drawn = len(self._screen.rows)
            return found
        for row in self._screen.rows:
            row.columns, row.written = row.measure(), row.text
        self._screen.apply(text)
        return self._redrawn()

    def end(self) -> str:
        """Return the rest, escaped: a sequence that was never finished."""
        held, self._held = self._held, ""
        return printable(held)

    @property
    def is_mid_line(self) -> bool:
        """Return whether the terminal's cursor is behind some text."""
        last = self._screen.rows[-1]
        return bool(last.text or last.cells)

    def _forget(self, *, others_wrote: bool) -> None:
        """Let the lines above be: others wrote below them, or they wrap otherwise now."""
        if len(self._screen.rows) > 1:
            self._screen.drop(len(self._screen.rows) - 1)
        self._screen.at = 0
        self._screen.gone.clear()
        self._drawn = 0 if others_wrote and self._screen.rows[0].is_edited else 1
        if others_wrote and not self._screen.rows[0].is_edited:
            self._screen.rows[0].text = ""  # it stays above; what follows begins a line
            self._screen.column = None

    def _redrawn(self) -> str:
        """Return what brings the terminal from what is drawn to what there is now, without an empty line in between."""
        screen, columns = self._screen, max(self._was.columns, 2)
        rows = [*screen.gone, *screen.rows]
        on_screen, cursor = rows[: self._drawn], len(screen.gone) + screen.at
        first = next((at for at, row in enumerate(on_screen) if row.is_dirty), len(on_screen))
        screen.gone, self._drawn = [], len(screen.rows)
        if first == len(rows):
            return ""
        up = sum(max(-(-row.columns // columns), 1) for row in on_screen[first:]) - 1
        before = ("\r\n" if on_screen else "\r") if up < 0 else "\r" + (f"\x1b[{up}A" if up else "")
        if up == 0 and not on_screen[first].columns:
            before = ""  # the cursor is where an empty line begins
        texts = []
        for at, row in enumerate(rows[first:], first):
            wide = row.last_column()
            row.is_cut = row.is_edited and at >= cursor and wide > columns - 1  # rows above the cursor are shown whole
            row.columns, row.is_dirty = columns - 1 if row.is_cut else wide, False
            texts.append(_cut(row, columns - 1) if row.is_cut else row.shown())
        if first == len(on_screen) - 1 and not rows[first].is_edited:  # of a long line, only the beginning is kept
            before, texts[0] = "", texts[0].removeprefix(rows[first].written)
        return f"{before}{f'{_CLEAR_LINE}{chr(10)}'.join(texts)}{_CLEAR_BELOW}"


def _cut(row: _Row, columns: int) -> str:
    shorter = _Row("")
    shorter.cells = [*(row.cells or ())][: columns - 1]
    if shorter.cells and shorter.cells[-1][1] and width(shorter.cells[-1][1]) > 1:
        shorter.cells.pop()
    return f"{shorter.shown()}…"


class FileText:
    """Text of a job on its way to a file or a pipe: what is final of it, and of lines that change their last state."""

    def __init__(self) -> None:
        self._held = ""
        self._screen = _Screen(for_a_file=True)

    def feed(self, text: str) -> str:
        """Return what can be written by now."""
        text, self._held = self._held + text, ""
        begun = _BEGUN.search(text)
        whole = begun.start() if begun else len(text.rstrip("\r"))  # what follows says whether these go back
        if len(text) - whole < _LONGEST_HELD:
            self._held, text = text[whole:], text[:whole]
        screen = self._screen
        if len(screen.rows) == 1 and screen.is_appending and not _has_edit(text):
            cut = text.rfind("\n") + 1
            row = screen.rows[0] if not cut else _Row("")
            row.text = row.written = _beginning(row.text, text[cut:])
            screen.rows[0] = row
            return text
        screen.apply(text)
        return self._settled()

    def end(self) -> str:
        """Return the rest: the lines that might have changed once more, and a sequence that was never finished."""
        screen = self._screen
        found = "".join(map(_line, screen.rows))
        held, self._held = self._held, ""
        self._screen = _Screen(for_a_file=True)
        return found + held

    def _settled(self) -> str:
        screen = self._screen
        while len(screen.rows) > 1 and screen.at > 0 and not self._may_change(screen.rows[0]):
            screen.drop(1)
        found = "".join(map(_line, screen.gone))
        screen.gone.clear()
        if screen.is_appending and len(screen.rows) == 1:
            found += screen.rows[0].text[len(screen.rows[0].written) :]
            screen.rows[0].written = screen.rows[0].text
        return found

    def _may_change(self, top: _Row) -> bool:
        """Return whether bars below a row have not been left for good: those below each other go up again."""
        screen = self._screen
        if not (screen.has_gone_up and top.is_edited):
            return False
        return not any(row.end and row.last_column() for row in screen.rows[1 : screen.at])


def _line(row: _Row) -> str:
    """Return what a file does not have yet of a line."""
    if not row.is_edited:
        return f"{row.text[len(row.written) :]}{row.end}"
    found = row.shown()
    if len(row.written) < _MOST_KEPT and found.startswith(row.written):
        return f"{found[len(row.written) :]}{row.end[-1:]}"
    return f"\n{found}{row.end[-1:]}"


class JobOutput:
    """Writes what jobs print to a stream: to a terminal lines that change in place, elsewhere their last state.

    A notebook shows carriage returns itself, so it gets everything.
    """

    def __init__(self, stream: Callable[[], TextIO | None]) -> None:
        self._stream = stream
        self._terminal: TerminalText | None = None
        self._file: FileText | None = None
        self._decoder: codecs.IncrementalDecoder | None = None

    def write(self, text: str) -> None:
        """Write a piece of text."""
        stream = self._stream()
        if colors.is_terminal(stream):
            if self._terminal is None:
                self._terminal = TerminalText(lambda: terminal.size_of(self._stream()))
            found = self._terminal.feed(text)
            terminal.note_open_line(is_open=self._terminal.is_mid_line)
        elif _is_notebook(stream):
            found = text
        else:
            self._file = self._file or FileText()
            found = self._file.feed(text)
        self._put(stream, found)

    def write_bytes(self, data: bytes) -> int:
        """Write a piece of a log: into a file with its own bytes, whatever the encoding of the stream is."""
        if self._decoder is None:
            keeps = "replace" if colors.is_terminal(self._stream()) else "surrogateescape"
            self._decoder = codecs.getincrementaldecoder("utf-8")(keeps)
        self.write(self._decoder.decode(data))
        return len(data)

    def end(self) -> None:
        """Write what is left at the end of a log."""
        if self._decoder is not None:
            self.write(self._decoder.decode(b"", final=True))
        found = "".join(each.end() for each in (self._terminal, self._file) if each is not None)
        if found:
            self._put(self._stream(), found)

    def _put(self, stream: TextIO | None, text: str) -> None:
        is_raw = self._decoder is not None and not colors.is_terminal(stream)
        try:
            if is_raw and stream is not None and hasattr(stream, "buffer"):
                stream.flush()
                stream.buffer.write(text.encode(errors="surrogateescape"))
                stream.flush()
            else:
                colors.write(stream, Sanitized(text))
        except OSError as error:
            if error.errno != errno.EIO:  # the terminal is gone: the program still waits for the job, which has its log
                raise


def write_value(stream: TextIO, text: str) -> None:
    """Write a whole text that a job made, e.g. its value; only for a terminal is it changed."""
    stream.write(Sanitized(_sanitized(text) if colors.is_terminal(stream) else text))


def _is_notebook(stream: TextIO | None) -> bool:
    return type(stream).__module__.startswith("ipykernel.")
