"""The log of a job, live, in the store or in the history: bytes at positions. Each line is seen once, in order."""

from __future__ import annotations

import codecs
import contextlib
import functools
import hashlib
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._backends.protocol import BytesLog, LiveLog
from kinetic._jobs import locate
from kinetic._output import terminal as output
from kinetic._stores.protocol import Entry, Store
from kinetic._wire import digests, fields, keys, outcomes
from kinetic._wire.digests import LOG_BLOCK_BYTES, LogDigest
from kinetic.errors import (
    BackendUnavailableError,
    IntegrityError,
    KeyMissingError,
    KineticError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from hashlib import _Hash

    from kinetic._backends.protocol import Backend, Inspector
    from kinetic._wire.outcomes import Outcome
    from kinetic._wire.records import JobRecord

HISTORY_LOG_BYTES = 10 << 20  # of the end of each log of a collected job, before it is compressed
GZIP = 31  # zlib's number for "with the head and foot of gzip", so that zcat reads it

_BLOCK, _LARGEST_BLOCK = 1 << 16, 1 << 20
_MOST_PACKED = HISTORY_LOG_BYTES + 3 * _BLOCK  # of a kept log: gzip adds some kilobytes to what it cannot compress
_DIGITS = 18  # of the offset of a segment
_SEGMENT = 1 << 20  # bytes, as the runner cuts it
_MOST_ADDED = 1 << 20  # bytes that are shown of what was added to a log after its end: it may be a terabyte
_PAUSE_SECONDS, _LONGEST_PAUSE = 1.0, 30.0  # between two requests to the backend for what the store has


class StoredLog:
    """A log in the store: segments named by the offset of their first byte."""

    is_complete = True  # the log goes into the store before the verdict does

    def __init__(self, store: Store, prefix: str, entries: Sequence[Entry] | None = None) -> None:
        self._store, self._prefix = store, prefix
        self._segments: list[tuple[int, Entry]] = []
        self._starts: list[int] = []
        self._take(store.entries(prefix) if entries is None else entries, 0)

    def size(self) -> int:
        """Return how many bytes there are."""
        return self._segments[-1][0] + self._segments[-1][1].size if self._segments else 0

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position."""
        found = bytearray()
        while len(found) < length:
            position = start + len(found)
            index = bisect_right(self._starts, position) - 1
            if index < 0:
                break
            begins, entry = self._segments[index]
            piece = self._store.get(entry.key, start=position - begins, length=length - len(found))
            if not piece and not self._has_grown(position):
                break
            found += piece
        return bytes(found)

    def _has_grown(self, end: int) -> bool:
        """Take in segments that began since the last listing; return whether there are any. A live job writes more."""
        last = self._segments[-1][1].key
        return self._take(self._store.entries(self._prefix, after=last), end)

    def _take(self, entries: Iterable[Entry], end: int) -> bool:
        """Take in the segments that follow one another from a position on; return whether there are any.

        A runner leaves no gap. A forged segment that claims to begin a petabyte later would keep a reader of the last
        lines busy for years.
        """
        before = len(self._starts)
        for entry in entries:
            name = entry.key.rpartition("/")[2]
            if not name.isascii() or not name.isdecimal() or len(name) > _DIGITS or int(name) != end:
                continue
            self._segments.append((end, entry))
            self._starts.append(end)
            end += entry.size
        return len(self._starts) > before


class CheckedLog:
    """A log of an attempt that has ended, compared with the sealed digest of it as it is read.

    It is read in whole blocks, so the end is checked also where nothing before it is read; only what is more than 11
    MiB before the end is checked once all was read. A difference is reported once; what was found is returned all the
    same.
    """

    is_complete = True

    def __init__(self, log: LiveLog, sealed: LogDigest, report: Callable[[str], object]) -> None:
        self._log, self._sealed, self._report = log, sealed, report
        self.is_changed = False
        self._count = -(-sealed.size_bytes // LOG_BLOCK_BYTES)
        self._known = self._count - len(sealed.blocks)  # from this block on each can be checked by itself
        self._block, self._at = b"", -1
        self._next, self._before = 0, hashlib.sha256()  # of all blocks so far, if they are read in order

    def size(self) -> int:
        """Return how many bytes there are to be read."""
        return min(self._log.size(), self._sealed.size_bytes + _MOST_ADDED)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position."""
        found = bytearray()
        while len(found) < length:
            index, offset = divmod(start + len(found), LOG_BLOCK_BYTES)
            if index != self._at:
                left = self._log.size() - index * LOG_BLOCK_BYTES  # beyond its end, a store is asked three times
                self._block = self._log.read(index * LOG_BLOCK_BYTES, min(LOG_BLOCK_BYTES, left)) if left > 0 else b""
                self._at = index
                self._check(index, hashlib.sha256(self._block))
            found += self._block[offset : offset + length - len(found)]
            if len(self._block) < LOG_BLOCK_BYTES:
                break
        return bytes(found)

    def close(self) -> None:
        """Close the log below."""
        close(self._log)

    def _check(self, index: int, found: _Hash) -> None:
        sealed, size, why = self._sealed, self._log.size(), ""
        if size != sealed.size_bytes:
            why = _size_difference(size, sealed.size_bytes)
        elif self._known <= index < self._count and found.hexdigest() != sealed.blocks[index - self._known]:
            why = "its bytes differ"
        if index == self._next and not self.is_changed and not why:
            self._next += 1
            self._before.update(found.digest())
            if self._next == self._count and self._before.hexdigest() != sealed.sha256:
                why = "its bytes differ"
        if why and not self.is_changed:
            self.is_changed = True
            self._report(why)


class HistoryLog(BytesLog):
    """The end of a log of a collected job, as the history has it, without so many bytes before it."""

    def __init__(self, data: bytes, left_out: int = 0) -> None:
        super().__init__(data)
        self.left_out = left_out


def log_of(job: JobRecord, *, attempt: int | None = None, host: int = 0) -> LiveLog | None:
    """Open the log of a job, of its last attempt by default, wherever it is now; None when there is none."""
    store = locate.store_of(job)
    if locate.past_of(job) is not None:  # its cluster may be gone by now
        return history_log(store, job.job_id, attempt=attempt, host=host)
    try:
        open_it = _log_here if registry.is_here(job.backend) else _log_elsewhere
        found, sealed = open_it(job, store, attempt, host)
    except BackendUnavailableError:
        kept = history_log(store, job.job_id, attempt=attempt, host=host)
        if kept is None:
            raise
        return kept
    printed = sealed is None or sealed.size_bytes > 0
    if found is None and printed and (found := history_log(store, job.job_id, attempt=attempt, host=host)) is None:
        if sealed is not None:
            report(job.job_id, _size_difference(0, sealed.size_bytes))
        return None
    return checked_log(found, sealed, job.job_id) if found is not None else None


_Found = tuple[LiveLog | None, LogDigest | None]


def _log_here(job: JobRecord, store: Store, attempt: int | None, host: int) -> _Found:
    number = latest_attempt(job) if attempt is None else attempt
    found = open_log(locate.backend_of(job), store, job.job_id, attempt=number, host=host)
    return found, sealed_digest(job, attempt=number, host=host)


def _log_elsewhere(job: JobRecord, store: Store, attempt: int | None, host: int) -> _Found:
    """Open the log of a job on a cluster: once it has ended its store has all of it, and its cluster may be away."""
    number = last_attempt(job) if attempt is None else attempt
    sealed = sealed_digest(job, attempt=number, host=host)
    if sealed is not None:
        stored = stored_log(store, job.job_id, attempt=number, host=host)
        if (stored.size() if stored is not None else 0) >= sealed.size_bytes:
            return stored, sealed
    try:
        return open_log(locate.backend_of(job), store, job.job_id, attempt=number, host=host), sealed
    except BackendUnavailableError:
        with contextlib.suppress(KineticError):  # it was cancelled, or its log has no digest for another reason
            if locate.read_outcome(job) is not None:
                return stored_log(store, job.job_id, attempt=number, host=host), sealed
        raise


def checked_log(log: LiveLog, sealed: LogDigest | None, job_id: str) -> LiveLog:
    """Return a log that is compared with what was sealed, where there is something to compare."""
    if sealed is None or not log.is_complete or isinstance(log, HistoryLog):
        return log
    return CheckedLog(log, sealed, functools.partial(report, job_id))


def report(job_id: str, why: str) -> None:
    """Print that a log is not what it was when its job ended."""
    output.report_error(
        f"the log of {job_id} was changed after the job ended: {why}; look at who can write to the store"
    )


def sealed_digest(job: JobRecord, *, attempt: int, host: int, outcome: Outcome | None = None) -> LogDigest | None:
    """Return what the log of an attempt was when it had ended, by the job's verdict (read if it is not given)."""
    try:
        outcome = outcome or locate.read_outcome(job)
        if outcome is not None and outcome.attempt == attempt:
            logs: Sequence[LogDigest] = outcome.logs
        elif outcome is not None or attempt < latest_noted_attempt(locate.store_of(job), job.job_id):
            note = outcomes.read_note(locate.store_of(job), job.job_id, attempt, locate.key_to_read(job))
            logs = fields.read_one(outcomes.LOGS, note.details.get(outcomes.LOGS_DETAIL, ()), "the note")
        else:
            return None
    except IntegrityError as error:
        output.report_error(f"whether the log of {job.job_id} was changed is unknown: {error.what}")
        return None
    except KineticError:  # no Note; or the key is not here, and then nothing of this job is believed
        return None
    return next((each for each in logs if (each.attempt, each.host) == (attempt, host)), None)


def _size_difference(found: int, sealed: int) -> str:
    more = f"{found - sealed} bytes were added" if found > sealed else f"{found} of its {sealed} bytes are there"
    return more if found > sealed else f"{more} (or the rest has not arrived)"


def open_log(
    backend: Backend, store: Store, job_id: str, *, attempt: int, host: int, follow: bool = False
) -> LiveLog | None:
    """Open the log of an attempt: the live one while it is there, else the stored one, or None."""
    live = backend.live_log(job_id, host=host, attempt=attempt, follow=follow)
    if live is not None:
        return live
    left = store_last_log(backend, store, job_id, attempt=attempt, host=host)
    stored = StoredLog(store, keys.logs(job_id, attempt, host))
    if left is not None and left.size() > stored.size():
        return left
    return stored if stored.size() else None


def store_last_log(inspector: Inspector, store: Store, job_id: str, *, attempt: int, host: int = 0) -> LiveLog | None:
    """Bring into the store what only the backend has of the log of a process that was killed; return that log.

    The first to look does it, as the backend forgets. Two who do it write the same bytes to the same keys.
    """
    left = inspector.last_log(job_id, host=host, attempt=attempt)
    if left is None:
        return None
    with contextlib.suppress(KineticError):  # without permission to write it is read all the same
        stored = StoredLog(store, keys.logs(job_id, attempt, host)).size()
        if stored < left.size() and store.size(keys.record(job_id)) is not None:  # of a removed job nothing is kept
            for start in range(stored, left.size(), _SEGMENT):
                store.put(keys.log_segment(job_id, attempt, host, start), left.read(start, _SEGMENT), if_absent=True)
    return left


def stored_log(store: Store, job_id: str, *, attempt: int, host: int) -> StoredLog | HistoryLog | None:
    """Open the log of one attempt from the store or the history, or return None when neither has any."""
    stored = StoredLog(store, keys.logs(job_id, attempt, host))
    return stored if stored.size() else history_log(store, job_id, attempt=attempt, host=host)


def history_log(store: Store, job_id: str, *, attempt: int | None, host: int) -> HistoryLog | None:
    """Open the log of a collected job, by default of the last attempt that printed something; None if it has none."""
    page = locate.read_page(store, job_id) or {}
    kept = {found["attempt"]: found for found in logs_in_history(page) if found["host"] == host}
    number = max(kept, default=-1) if attempt is None else attempt
    if number not in kept:
        return None
    found, data = kept[number], b""
    try:
        packed = store.get(keys.history_log(job_id, number, host), length=_MOST_PACKED)
        data = zlib.decompressobj(GZIP).decompress(packed, HISTORY_LOG_BYTES + 2 * _BLOCK)
    except KeyMissingError:
        report(job_id, "what the history kept of it is gone")
        return None
    except zlib.error:
        report(job_id, "what the history kept of it is damaged")
        return HistoryLog(b"")
    if found.get("sha256", "") != digests.of_bytes(data):
        report(job_id, "its bytes differ from what the history kept")
    elif found.get("changed"):
        report(job_id, "that was so before it was collected")
    return HistoryLog(data, found.get("left_out", 0))


def latest_attempt_in_history(page: Mapping[str, Any]) -> int:
    """Return the number of the last attempt of a job that is history."""
    return max(int(page.get("attempts") or 0) - 1, 0)


def logs_in_history(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return which logs the page of a collected job names: attempt, host, size in bytes and digest of each."""
    found = page.get("logs")
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, dict) and {"attempt", "host"} <= each.keys()]


def newest_attempt(job: JobRecord, *, host: int) -> int:
    """Return the attempt whose log ``log_of`` opens."""
    if (past := locate.past_of(job)) is not None:
        return max((each["attempt"] for each in logs_in_history(past) if each["host"] == host), default=0)
    return latest_attempt(job)


def latest_attempt(job: JobRecord) -> int:
    """Return the number of the attempt that runs or ran last; where it runs elsewhere, only the store knows it."""
    is_here = registry.is_here(job.backend)
    seen = locate.backend_of(job).observe([job.job_id]).get(job.job_id) if is_here else None
    return max(last_attempt(job), (seen.attempt or 0) if seen else 0)


def last_attempt(job: JobRecord) -> int:
    """Return the number of the last attempt by the store."""
    number = latest_noted_attempt(locate.store_of(job), job.job_id)
    if number > 0:
        with contextlib.suppress(KineticError):  # of a verdict that cannot be verified, who reads a log is told
            return until_verdict(locate.read_outcome(job), number)
    return number


def until_verdict(outcome: Outcome | None, number: int) -> int:
    """Return the number of an attempt, or that of the one with the verdict where it is earlier.

    Others can put the note and the log of a later attempt into the store, and no verdict vouches for them.
    """
    return number if outcome is None or outcome.attempt < 0 else min(number, outcome.attempt)


def latest_noted_attempt(store: Store, job_id: str) -> int:
    """Return the number of the last attempt that began, as the store knows it; 0 where none did."""
    found = [number for number, _ in keys.numbered(store.entries(keys.attempts(job_id)))]
    return max((number for number in found if number < keys.MOST_ATTEMPTS), default=0)


def text_of(log: LiveLog | None) -> str:
    """Return a whole log; bytes that are not UTF-8 are replaced."""
    if log is None:
        return ""
    return log.read(0, log.size()).decode(errors="replace")


def pieces_of(log: LiveLog | None) -> Iterator[bytes]:
    """Yield what there is of a log now, in pieces: it may be larger than the memory."""
    position, size = 0, log.size() if log is not None else 0
    while log is not None and position < size and (data := log.read(position, min(_LARGEST_BLOCK, size - position))):
        position += len(data)
        yield data


def lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a log, without their line breaks; bytes that are not UTF-8 are replaced."""
    half: list[bytes] = []
    for data in pieces:
        *lines, rest = data.split(b"\n")
        for line in lines:
            yield b"".join((*half, line)).decode(errors="replace")
            half.clear()
        half.append(rest)
    if any(half):
        yield b"".join(half).decode(errors="replace")


def close(log: LiveLog | None) -> None:
    """Close a log that has something open: a file, a connection."""
    closing = getattr(log, "close", None)
    if closing is not None:
        closing()


def tail(log: LiveLog | None, lines: int, *, most: int = HISTORY_LOG_BYTES) -> str:
    """Return exactly the last lines of a log as text; see ``tail_bytes``."""
    return tail_bytes(log, lines, most=most).decode(errors="replace").removesuffix("\n")


def tail_bytes(
    log: LiveLog | None, lines: int, *, most: int = HISTORY_LOG_BYTES, start: int = 0, end: int | None = None
) -> bytes:
    """Return exactly the last lines of a log, or of a part of it, byte for byte, with the final line break if any.

    It reads back no further than needed, and at most so many bytes. Of longer lines the beginning is left out, and a
    line in its place says so: a progress bar may have written 400 MB without a break.
    """
    if log is None or lines <= 0:
        return b""
    size = position = log.size() if end is None else end
    blocks: list[bytes] = []
    breaks = length = 0
    while position > start and breaks <= lines and size - position < most:
        length = min(max(_BLOCK, 2 * length), _LARGEST_BLOCK, position - start, most - (size - position))
        blocks.append(log.read(position - length, length))
        if len(blocks[-1]) < length:  # it was cut meanwhile
            break
        position -= length
        breaks += blocks[-1].count(b"\n")
    data = b"".join(reversed(blocks))
    last = b"\n" if data.endswith(b"\n") else b""
    found = data.removesuffix(b"\n").split(b"\n")[-lines:]
    left_out = b""
    if position > start and breaks <= lines:
        left_out = f"kinetic: {position - start} bytes before this are left out\n".encode()
    return left_out + b"\n".join(found) + last


class Follower:
    """Reads what is new in a log, each byte once, across attempts."""

    def __init__(
        self,
        reopen: Callable[[int], LiveLog | None],
        attempt: Callable[[], int],
        stored: Callable[[int], LiveLog | None] = lambda _: None,
        *,
        sealed: Callable[[int], LogDigest | None] = lambda _: None,
        report: Callable[[str], object] = lambda _: None,
        store_seconds: float = 0.0,
        start: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reopen, self._stored, self._attempt_now = reopen, stored, attempt
        self._sealed, self._report = sealed, report
        self._store_seconds, self._clock = store_seconds, clock
        self._read_again = 0.0  # when a stored log is read again
        self._open_again, self._pause = 0.0, _PAUSE_SECONDS  # when the backend is asked again for what the store has
        self._attempt = -1
        self._log: LiveLog | None = None
        self._first = start  # bytes of the first attempt that the caller has already: what follows cannot be checked
        self._position, self._hasher = start, digests.LogHasher()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def new_text(self, *, last: bool = False) -> Iterator[str]:
        """Yield what was written since the last time; with ``last``, also what a broken character left over."""
        for data in self.new_bytes(last=last):
            yield self._decoder.decode(data)
        if last:
            yield self._decoder.decode(b"", final=True)

    def new_bytes(self, *, last: bool = False) -> Iterator[bytes]:
        """Yield what was written since the last time, byte for byte; with ``last``, all that there will ever be."""
        attempt = self._attempt_now()
        if attempt != self._attempt:
            if self._attempt >= 0:
                yield from self._rest()
                self._first = 0
            self.close()
            self._attempt, self._position, self._hasher = attempt, self._first, digests.LogHasher()
            self._read_again, self._pause = 0.0, _PAUSE_SECONDS
        if last:
            yield from self._rest()
            return
        now = self._clock()
        if self._log is None or (isinstance(self._log, StoredLog) and now >= self._open_again):
            self._open(now)
        if not isinstance(self._log, StoredLog) or now >= self._read_again:
            with contextlib.suppress(StoreUnreachableError):  # as with its status: the next time reads on
                yield from self._read()
            self._read_again = now + self._store_seconds

    def _open(self, now: float) -> None:
        """Open the newest log: what only the store has now, the backend may have a moment later."""
        self._log = self._reopen(self._attempt) or self._log
        self._pause = min(2 * self._pause, _LONGEST_PAUSE) if isinstance(self._log, StoredLog) else _PAUSE_SECONDS
        self._open_again = now + self._pause

    def _rest(self) -> Iterator[bytes]:
        """Yield all that an attempt left, and compare it with what was sealed.

        What is open is read first: of a log whose end did not reach the store, it may have more.
        """
        known = self._sealed(self._attempt)
        if self._log is None and not self._has_all_of(known):
            self._log = self._stored(self._attempt) or self._reopen(self._attempt)
        yield from self._read()
        if (self._log is None or not self._log.is_complete) and not self._has_all_of(known):
            self.close()
            self._log = self._stored(self._attempt)
            yield from self._read()
        if self._first:
            return
        sealed = None if isinstance(self._log, HistoryLog) else known  # that one was checked when it was opened
        if sealed is not None and (found := self._hasher.size) != sealed.size_bytes:
            self._report(_size_difference(found, sealed.size_bytes))
        elif sealed is not None and self._hasher.digest(0, 0).sha256 != sealed.sha256:
            self._report("its bytes differ")

    def _has_all_of(self, sealed: LogDigest | None) -> bool:
        """Return whether as much was read as was sealed: the store, which costs requests, has no more."""
        return sealed is not None and self._position >= sealed.size_bytes

    def close(self) -> None:
        """Close the log that is open."""
        close(self._log)
        self._log = None

    def _read(self) -> Iterator[bytes]:
        while self._log is not None:
            left_out = self._log.left_out if isinstance(self._log, HistoryLog) else 0
            self._position = max(self._position, left_out)  # the first line of the rest says what is gone
            try:
                data = self._log.read(self._position - left_out, _BLOCK)
            except (KeyMissingError, OSError):
                self._log = None  # it moved into the store: opened anew next time
                return
            if not data:
                return
            self._position += len(data)
            self._hasher.update(data)
            yield data
