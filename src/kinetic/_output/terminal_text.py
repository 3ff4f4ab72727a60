"""The gate before every screen: what comes from a store, a job, a cluster or a file name steers no terminal.

Two kinds of text pass it. *Words about* something (names, reasons, errors, tables) are shown as they are, and what is
not printable is written as Python writes it: controls, escape sequences, marks that reverse the direction of text, lone
surrogates. *What a job printed* keeps its looks on a terminal: colours and other renditions, tabs, the carriage return
and the backspace of progress bars, and the erasing of the rest of a line. All other sequences, such as those that set
the title, write the clipboard, move the cursor or clear the screen, are taken out. Into a file or a pipe it goes byte
for byte.
"""

from __future__ import annotations

import codecs
import re
from typing import IO, TextIO

from kinetic.errors import printable

_KEPT = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K")  # renditions, and erasing in the line
_STRING = r"\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)"  # a title, the clipboard, private messages
_SEQUENCE = re.compile(rf"{_STRING}|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]")
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]{0,4096}\x1b?|[ -/]*)?\Z")
_STEERS = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Return a text as one line that does nothing to a terminal."""
    return printable(text, keep="")


class Sanitized(str):
    """Text that has passed the gate, or that we made ourselves: the streams of the command write it as it is."""

    __slots__ = ()
    has_passed = True


class JobText:
    """The text of a job on its way to a terminal; it comes in pieces, and a sequence may be cut in two."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what may be shown by now."""
        text = self._held + text
        begun = _BEGUN.search(text)
        self._held = text[begun.start() :] if begun else ""
        return self._shown(text[: begun.start()] if begun else text)

    def end(self) -> str:
        """Return the rest: a sequence that was never finished, in a form that can be read."""
        held, self._held = self._held, ""
        return printable(held)

    def _shown(self, text: str) -> str:
        if "\x1b" in text:
            text = _SEQUENCE.sub(lambda found: found[0] if _KEPT.fullmatch(found[0]) else "", text)
            parts = _KEPT.split(text)
            kept = [*_KEPT.findall(text), ""]
            return "".join(f"{_tamed(part)}{keep}" for part, keep in zip(parts, kept, strict=True))
        return _tamed(text)


class Terminal:
    """Where the bytes of a log go on a terminal: whole characters, and nothing in them that steers it.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = JobText()

    def write(self, data: bytes) -> int:
        """Write a piece of a log."""
        self._stream.write(Sanitized(self._text.feed(self._decoder.decode(data))))
        return len(data)


def for_bytes(stream: TextIO) -> IO[bytes] | Terminal:
    """Return what the bytes of a log are written to: a terminal's are tamed, all others stay what they are."""
    return Terminal(stream) if stream.isatty() else stream.buffer


def write_job_text(stream: TextIO, text: str) -> None:
    """Write all of a text that a job made, e.g. its value: tamed on a terminal, else as it is."""
    if stream.isatty():
        filter_ = JobText()
        text = filter_.feed(text) + filter_.end()
    stream.write(Sanitized(text))


def _tamed(text: str) -> str:
    return _STEERS.sub(lambda found: printable(found[0], keep=""), text)
