"""The log of a job for a page: any part of it at once, a search through all of it, and what is added while it grows.

A log is bytes at positions. So a page that shows the end of a log of 100 MB reads its end, and the rest on demand.
"""

from __future__ import annotations

import codecs
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from kinetic._jobs import locate, logs, wait
from kinetic._jobs.locate import past_of
from kinetic._jobs.logs import CheckedLog
from kinetic._wire import NamedTuple

if TYPE_CHECKING:
    from kinetic._backends.protocol import LiveLog
    from kinetic._jobs.handle import JobHandle

MOST_BYTES = 1 << 20  # of one answer
_BLOCK_BYTES = 1 << 20
_MOST_MATCHES = 200  # of one answer
_MOST_SEARCHED = 64 << 20  # bytes of one answer: a page shows how far the search is
_LONGEST_LINE = 400  # characters of a line that matches
_MOST_OPEN = 8
_PIECE_BYTES = 1 << 16  # of one event


class LogPart(NamedTuple):
    """Some bytes of a log."""

    data: bytes
    start: int  # position of the first of them
    size: int  # of the log now
    is_changed: bool  # whether the log was changed after the job ended


class _Open(NamedTuple):
    log: LiveLog | None
    lock: threading.Lock


class LogPages:
    """Reads logs. Those of jobs that have ended stay open for the next request."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, int | None, int], _Open] = OrderedDict()
        self._lock = threading.Lock()

    def part(
        self, job: JobHandle, *, is_final: bool, attempt: int | None, host: int, start: int, length: int
    ) -> LogPart:
        """Return bytes from a position; a negative one counts from the end."""
        with self._opened(job, is_final=is_final, attempt=attempt, host=host) as log:
            if log is None:
                return LogPart(b"", 0, 0, is_changed=False)
            size = log.size()
            begin = max(size + start, 0) if start < 0 else min(start, size)
            data = log.read(begin, min(length, MOST_BYTES))
            return LogPart(data, begin, size, is_changed=isinstance(log, CheckedLog) and log.is_changed)

    def search(
        self, job: JobHandle, *, is_final: bool, attempt: int | None, host: int, words: str, start: int
    ) -> dict[str, Any]:
        """Return the lines from a position on that contain some words, whatever their case, and how far it got."""
        matches: list[dict[str, Any]] = []
        with self._opened(job, is_final=is_final, attempt=attempt, host=host) as log:
            if log is None or not words:
                return {"matches": matches, "next": None, "size": 0}
            size = log.size()
            position = _search(log, words.lower(), start, min(size, start + _MOST_SEARCHED), matches)
            return {"matches": matches, "next": position if position < size else None, "size": size}

    @contextlib.contextmanager
    def _opened(self, job: JobHandle, *, is_final: bool, attempt: int | None, host: int) -> Iterator[LiveLog | None]:
        key = (job.job_id, attempt, host)
        with self._lock:
            found = self._open.get(key) if is_final else None
            if found is not None:
                self._open.move_to_end(key)
        opened = found or _Open(logs.log_of(job, attempt=attempt, host=host), threading.Lock())
        if is_final and found is None and opened.log is not None:
            with self._lock:
                self._open[key] = opened
                while len(self._open) > _MOST_OPEN:
                    _, (log, lock) = self._open.popitem(last=False)
                    with lock:
                        logs.close(log)
        with opened.lock:
            yield opened.log
        if not is_final:
            logs.close(opened.log)


def _search(log: LiveLog, words: str, start: int, end: int, matches: list[dict[str, Any]]) -> int:
    """Add lines that contain some words; return the position after the last line that was searched."""
    position, rest = start, b""
    while position < end and len(matches) < _MOST_MATCHES:
        data = log.read(position, _BLOCK_BYTES)
        if not data:
            return end
        begins = position - len(rest)
        whole = rest + data
        position += len(data)
        cut = whole.rfind(b"\n") + 1
        if position >= end and len(data) < _BLOCK_BYTES:
            cut = len(whole)  # the last line has no break, or not yet
        elif not cut and len(whole) >= _BLOCK_BYTES:
            cut = len(whole)  # a line longer than a block is searched in pieces
        for at, line in _lines_with(whole[:cut], words):
            matches.append({"start": begins + at, "text": line[:_LONGEST_LINE]})
            if len(matches) >= _MOST_MATCHES:
                return begins + at + 1
        rest = whole[cut:]
    return position - len(rest) if position < end else position


def _lines_with(data: bytes, words: str) -> Iterator[tuple[int, str]]:
    lowered, wanted = data.lower(), words.encode(errors="replace")
    is_plain = words.isascii()  # of other letters, bytes know no case
    at = 0
    if not is_plain:
        for line in data.split(b"\n"):
            text = line.decode(errors="replace")
            if words in text.lower():
                yield at, text
            at += len(line) + 1
        return
    while (found := lowered.find(wanted, at)) >= 0:
        begin = lowered.rfind(b"\n", 0, found) + 1
        stop = lowered.find(b"\n", found)
        stop = len(data) if stop < 0 else stop
        yield begin, data[begin:stop].decode(errors="replace")
        at = stop + 1


def follow(
    job: JobHandle, *, attempt: int | None, host: int, start: int, is_over: Callable[[], bool]
) -> Generator[dict[str, Any]]:
    """Yield what is added to a log after a position, until the job ends or ``is_over``.

    Yields:
        ``{"text": …, "bytes": n}`` for each piece, with its length in the log, where a text may stand for bytes that
        are none; ``{"attempt": n}`` where the log of another attempt begins, and at last ``{"ended": status}``.

    Raises:
        KineticError: The job cannot be seen any more.
    """
    if past_of(job) is not None:
        yield {"ended": "NOT_FOUND"}
        return
    backend, newest = locate.backend_of(job), wait.Attempt(job)
    reader = wait.StatusReader(job)
    seen = reader.read(None)
    newest.see(seen)
    current = newest() if attempt is None else attempt

    def wanted() -> int:
        return newest() if attempt is None else attempt

    follower = wait.make_follower(job, attempt=wanted, host=host, start=start)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while not is_over():
            has_ended = seen.status.is_final or newest() > wanted()
            if wanted() != current:
                current = wanted()
                decoder.reset()
                yield {"attempt": current}
            yield from _events(follower.new_bytes(last=has_ended), decoder, last=has_ended)
            if has_ended:
                yield {"ended": seen.status.value}
                return
            looked = backend.clock.monotonic()
            while not is_over() and not wait.has_news(backend, job, pause=backend.log_poll_seconds, looked=looked):
                yield from _events(follower.new_bytes(), decoder)
            if not is_over():
                seen = reader.read(None)
                newest.see(seen)
    finally:
        follower.close()
        backend.stop_watching(job.job_id)


def _events(
    pieces: Iterator[bytes], decoder: codecs.IncrementalDecoder, *, last: bool = False
) -> Iterator[dict[str, Any]]:
    for data in pieces:
        for at in range(0, len(data), _PIECE_BYTES):
            yield from _event(data[at : at + _PIECE_BYTES], decoder)
    if last:
        yield from _event(b"", decoder, last=True)


def _event(data: bytes, decoder: codecs.IncrementalDecoder, *, last: bool = False) -> Iterator[dict[str, Any]]:
    before = len(decoder.getstate()[0])  # bytes of half a character
    if text := decoder.decode(data, last):
        yield {"text": text, "bytes": before + len(data) - len(decoder.getstate()[0])}
