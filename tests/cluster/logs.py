"""What a container wrote, kept and served as a kubelet does: by line, with the time of each, the oldest dropped."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

# A kubelet rotates at 10 MiB, and serves what is in the newest file.
KEPT_BYTES = 10 << 20
# A longer line is stored in pieces, which are put together again when it is read.
LONGEST_PIECE = 16 << 10


class Line(NamedTuple):
    """A piece of output: up to and with its line end, or what came before the pipe or the limit ended it."""

    time: dt.datetime
    text: bytes


class Question(NamedTuple):
    """What part of a log somebody asks for, as in the query of the API."""

    follow: bool = False
    tail_lines: int | None = None
    since: dt.datetime | None = None
    timestamps: bool = False
    limit_bytes: int | None = None


class Log:
    """The output of one run of one container; both streams in the order in which they were read."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._bytes = 0
        self._dropped = 0  # how many lines went before the first that is still there
        self._news = asyncio.Event()
        self.is_complete = False

    async def pump(self, stream: asyncio.StreamReader) -> None:
        """Take everything from a stream until it ends."""
        while True:
            try:
                text = await stream.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                if end.partial:
                    self._add(end.partial)
                return
            except asyncio.LimitOverrunError as long:
                text = await stream.readexactly(min(long.consumed, LONGEST_PIECE))
            self._add(text)

    def _add(self, text: bytes) -> None:
        self._lines.append(Line(dt.datetime.now(dt.UTC), text))
        self._bytes += len(text)
        while self._bytes > KEPT_BYTES and len(self._lines) > 1:
            self._bytes -= len(self._lines.popleft().text)
            self._dropped += 1
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def complete(self) -> None:
        self.is_complete = True
        self._tell()

    async def wait_for(self, text: bytes) -> None:
        """Return once a line contains ``text``; if none ever does, never."""
        async for line in self.read(Question(follow=True)):
            if text in line:
                return
        await asyncio.Event().wait()

    def tail(self, lines: int, limit: int) -> str:
        """Return the last lines, at most ``limit`` bytes of them."""
        text = b"".join(line.text for line in list(self._lines)[-lines:])
        return text[-limit:].decode(errors="replace")

    async def read(self, question: Question) -> AsyncIterator[bytes]:
        """Yield what was asked for; with ``follow``, until the container is done."""
        chosen = [line for line in self._lines if question.since is None or line.time >= question.since]
        position = self._dropped + len(self._lines)
        if question.tail_lines is not None:
            chosen = chosen[len(chosen) - min(len(chosen), question.tail_lines) :]
        left = question.limit_bytes if question.limit_bytes is not None else 1 << 62
        at_start = True
        while True:
            for line in chosen:
                text = _stamped(line) if question.timestamps and at_start else line.text
                at_start = line.text.endswith(b"\n")
                yield text[:left]
                left -= min(left, len(text))
                if left == 0:
                    return
            if not question.follow:
                return
            news = self._news  # before looking, so that nothing slips in between
            chosen = list(self._lines)[max(0, position - self._dropped) :]
            position = self._dropped + len(self._lines)
            if not chosen:
                if self.is_complete:
                    return
                await news.wait()


def _stamped(line: Line) -> bytes:
    # Nanoseconds, as a kubelet writes them; this clock has microseconds.
    return line.time.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode() + line.text
