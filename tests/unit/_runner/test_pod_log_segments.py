"""The log of a pod: a spool that gives its space back, and segments that arrive at their own pace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic._jobs import logs
from kinetic._runner.pod.log_pump import SEGMENT_BYTES, LogSegments, LogSpool
from kinetic._stores.memory import MemoryStore
from kinetic._wire import digests, keys
from kinetic.errors import StoreUnreachableError


class Log:
    """A spool, a store that counts, and a clock that a test sets."""

    def __init__(self, path: Path, **more: int) -> None:
        self.path, self.now, self.puts, self.broken = path, 0.0, [], False
        self.spool = LogSpool(path)
        self.store = MemoryStore(str(path))
        self.segments = LogSegments(self, self.key, self.spool, clock=lambda: self.now, **more)

    def key(self, start: int) -> str:
        return keys.log_segment("job", 0, 0, start)

    def put(self, key: str, data: bytes) -> bool:
        if self.broken:
            raise StoreUnreachableError("no answer")
        self.puts.append((int(key[-12:]), len(data)))
        return self.store.put(key, data)

    def prints(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def passes(self, seconds: float) -> None:
        """Let time pass, and do what the shipper does meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            if self.segments.is_due():
                self.segments.ship()

    def stored(self) -> bytes:
        log = logs.StoredLog(self.store, keys.logs("job", 0, 0))
        return log.read(0, log.size())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


@pytest.fixture
def small(tmp_path: Path) -> Log:
    return Log(tmp_path / "log", most_waiting=4 * SEGMENT_BYTES)


def test_nothing_printed_is_nothing_sent(log: Log) -> None:
    log.passes(100)

    assert log.puts == []


def test_what_is_printed_is_in_the_store_two_seconds_later(log: Log) -> None:
    log.prints(b"one\n")

    log.passes(2.1)

    assert log.stored() == b"one\n"


def test_the_current_segment_is_rewritten_every_two_seconds_and_only_if_it_grew(log: Log) -> None:
    for _ in range(3):
        log.prints(b"line\n")
        log.passes(2.1)
    log.passes(20)

    assert log.puts == [(0, 5), (0, 10), (0, 15)]


def test_a_full_segment_is_closed_and_never_written_again(log: Log) -> None:
    log.prints(b"x" * SEGMENT_BYTES + b"y")
    log.passes(2.1)
    log.prints(b"z")
    log.passes(2.1)

    assert log.puts == [(0, SEGMENT_BYTES), (SEGMENT_BYTES, 1), (SEGMENT_BYTES, 2)]


def test_full_segments_do_not_wait(log: Log) -> None:
    log.prints(b"x" * (5 * SEGMENT_BYTES))

    log.passes(0.5)

    assert len(log.stored()) == 5 * SEGMENT_BYTES


def test_a_partly_stored_segment_that_fills_up_does_not_wait(log: Log) -> None:
    log.prints(b"x")
    log.passes(2.1)
    log.prints(b"x" * SEGMENT_BYTES)

    log.passes(0.1)

    assert log.puts[-1] == (0, SEGMENT_BYTES)


def test_the_pace_is_slower_after_ten_minutes(log: Log) -> None:
    log.passes(600)
    log.puts.clear()
    for _ in range(60):
        log.prints(b"line\n")
        log.passes(1)

    assert 2 <= len(log.puts) <= 3


def test_a_store_in_trouble_gets_everything_later_and_in_order(log: Log) -> None:
    log.broken = True
    log.prints(b"one\n")
    log.now = 3
    with pytest.raises(StoreUnreachableError):
        log.segments.ship()
    log.prints(b"two\n" * SEGMENT_BYTES)
    log.broken = False

    log.passes(3)

    assert log.stored() == b"one\n" + b"two\n" * SEGMENT_BYTES


def test_a_store_in_trouble_is_not_asked_more_often(log: Log) -> None:
    log.broken = True
    log.prints(b"one\n")
    log.now = 3
    with pytest.raises(StoreUnreachableError):
        log.segments.ship()

    assert not log.segments.is_due()


def test_what_waits_is_bounded_and_the_gap_is_told_in_its_place(small: Log) -> None:
    small.prints(b"first\n")
    small.passes(2.1)
    small.prints(b"a" * (6 * SEGMENT_BYTES))
    small.passes(1)
    small.prints(b"last\n")
    small.passes(3)

    stored = small.stored()
    head, told, rest = stored.partition(b"\nkinetic: ")
    assert head == b"first\n"
    assert b"bytes of this log are missing" in rest.splitlines()[0]
    assert told
    assert stored.endswith(b"alast\n")
    kept = stored.count(b"a", stored.index(b"in time\n")) - 1  # the one of "last"
    assert int(rest.split()[0]) == 6 * SEGMENT_BYTES - kept


@pytest.mark.parametrize("size", [0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES + 5])
def test_nothing_waits_after_everything_was_sent(log: Log, size: int) -> None:
    log.prints(os.urandom(size))

    while log.segments.waiting():
        log.segments.ship()

    assert log.stored() == log.path.read_bytes()


def test_a_spool_gives_back_the_space_of_what_nobody_needs(log: Log) -> None:
    log.prints(os.urandom(8 << 20))
    before = log.path.stat().st_blocks

    log.spool.release(6 << 20)

    about = log.path.stat()
    if about.st_blocks == before:
        pytest.skip("this file system cannot give back the space of a part of a file")
    assert about.st_size == 8 << 20
    assert about.st_blocks * 512 < 4 << 20
    assert log.spool.read((6 << 20) - 100, 10) != bytes(10)


def test_a_spool_keeps_what_a_verdict_quotes(log: Log) -> None:
    log.prints(b"x" * (2 << 20))

    log.spool.release(2 << 20)

    assert log.spool.read((2 << 20) - (64 << 10), 64 << 10) == b"x" * (64 << 10)


# ------------------------------------------------------------------------------------------------------- digests


def test_the_digest_is_that_of_what_the_store_has_though_the_disk_has_given_its_space_back(log: Log) -> None:
    for number in range(3 * 16):
        log.prints(bytes([65 + number % 26]) * (1 << 16))
        log.passes(0.3)
        log.segments.release(log.spool.size())
    log.prints(b"the end\n")

    found = log.segments.digest(0, 0)
    while log.segments.waiting():
        log.segments.ship()

    assert os.stat(log.path).st_blocks * 512 < log.spool.size()
    assert found == digest_of(log.stored())


def test_what_is_printed_after_the_digest_was_taken_is_not_sent(log: Log) -> None:
    log.prints(b"while the job ran\n")
    found = log.segments.digest(0, 0)

    log.prints(b"a warning of a library, afterwards\n")
    while log.segments.waiting():
        log.segments.ship()

    assert log.stored() == b"while the job ran\n"
    assert log.segments.digest(0, 0) == found == digest_of(log.stored())


def test_the_digest_knows_the_line_about_what_is_missing(small: Log) -> None:
    small.prints(b"x" * (SEGMENT_BYTES // 2))
    small.passes(5)
    small.broken = True
    small.prints(b"y" * (6 * SEGMENT_BYTES))
    with pytest.raises(StoreUnreachableError):
        small.segments.ship()
    small.broken = False

    found = small.segments.digest(0, 0)
    while small.segments.waiting():
        small.segments.ship()

    assert b"bytes of this log are missing" in small.stored()
    assert found == digest_of(small.stored())


def test_after_the_digest_was_taken_nothing_is_left_out_any_more(small: Log) -> None:
    small.prints(b"x" * (4 * SEGMENT_BYTES))
    found = small.segments.digest(0, 0)
    small.prints(b"y" * (9 * SEGMENT_BYTES))

    while small.segments.waiting():
        small.segments.ship()

    assert found == digest_of(small.stored())


def digest_of(data: bytes) -> digests.LogDigest:
    hasher = digests.LogHasher()
    hasher.update(data)
    return hasher.digest(0, 0)
