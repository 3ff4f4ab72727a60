"""The log of a job as bytes at positions: segments, tails, and a follower that sees each byte once."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import user_module

from kinetic import testing
from kinetic._backends.protocol import BytesLog
from kinetic._jobs import logs
from kinetic._jobs.logs import Follower, HistoryLog, StoredLog
from kinetic._stores.memory import MemoryStore
from kinetic._wire import digests, keys
from kinetic._wire.digests import LogHasher
from kinetic.errors import KeyMissingError, StoreUnreachableError

USER = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def count():
        for number in range(1000):
            print(number)
"""


class Counting:
    """A log in memory that counts what is read of it."""

    is_complete = True

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bytes_read = 0

    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, length: int) -> bytes:
        found = self.data[start : start + length]
        self.bytes_read += len(found)
        return found


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(request.node.name)


def stored(store: MemoryStore, *segments: bytes, attempt: int = 0) -> StoredLog:
    start = 0
    for segment in segments:
        store.put(keys.log_segment("job", attempt, 0, start), segment)
        start += len(segment)
    return StoredLog(store, keys.logs("job", attempt, 0))


def test_no_more_is_read_of_a_kept_log_than_it_can_have(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = bytes(range(256)) * 4 * (logs.HISTORY_LOG_BYTES >> 10)
    page = {"logs": [{"attempt": 0, "host": 0, "size": len(kept), "sha256": digests.of_bytes(kept)}]}
    monkeypatch.setattr(logs.locate, "read_page", lambda *_: page)
    at, told, read = keys.history_log("job", 0, 0), list[str](), list[int]()
    monkeypatch.setattr(logs, "report", lambda _, why: told.append(why))
    get = store.get

    def counted(key: str, *, start: int = 0, length: int | None = None) -> bytes:
        found = get(key, start=start, length=length)
        read.append(len(found))
        return found

    monkeypatch.setattr(store, "get", counted)
    packed = zlib.compress(kept, 0, wbits=logs.GZIP)  # as large as it can be
    store.put(at, packed)
    whole = logs.history_log(store, "job", attempt=0, host=0)
    store.put(at, packed + bytes(64 << 20))
    logs.history_log(store, "job", attempt=0, host=0)

    assert whole is not None
    assert (whole.size(), told) == (len(kept), [])
    assert read[1] < len(packed) + (1 << 20)


def test_the_pieces_of_a_log_are_whole_lines_wherever_they_were_cut() -> None:
    log = Counting(b"one\n\ntwo \xc3\xa9 \xff\nno end")

    for size in range(1, log.size() + 1):
        pieces = [log.data[start : start + size] for start in range(0, log.size(), size)]
        assert list(logs.lines_of(pieces)) == ["one", "", "two é \ufffd", "no end"]
    assert list(logs.lines_of(logs.pieces_of(log))) == ["one", "", "two é \ufffd", "no end"]
    assert list(logs.lines_of([b"end\n"])) == ["end"]
    assert list(logs.pieces_of(None)) == []


# ------------------------------------------------------------------------------------------------- segments


def test_segments_read_as_one(store: MemoryStore) -> None:
    log = stored(store, b"first\nsec", b"ond\nthi", b"rd\n")

    assert log.size() == 19
    assert logs.text_of(log) == "first\nsecond\nthird\n"


@pytest.mark.parametrize("start", range(20))
@pytest.mark.parametrize("length", [0, 1, 5, 100])
def test_any_piece_is_the_piece_of_the_whole(store: MemoryStore, start: int, length: int) -> None:
    log = stored(store, b"first\nsec", b"ond\nthi", b"rd\n")

    assert log.read(start, length) == b"first\nsecond\nthird\n"[start : start + length]


def test_segments_are_in_order_of_their_positions_and_not_of_their_digits(store: MemoryStore) -> None:
    pieces = [bytes([65 + number]) * 7 for number in range(20)]

    assert logs.text_of(stored(store, *pieces)) == b"".join(pieces).decode()


def test_attempts_have_logs_of_their_own(store: MemoryStore) -> None:
    stored(store, b"zero", attempt=0)

    assert logs.text_of(stored(store, b"one", attempt=1)) == "one"


def test_no_segments_are_an_empty_log(store: MemoryStore) -> None:
    log = stored(store)

    assert log.size() == 0
    assert log.read(0, 10) == b""
    assert logs.tail(log, 5) == ""


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert logs.text_of(Counting(b"a\xffb")) == "a\ufffdb"
    assert logs.tail(Counting(b"x\na\xffb\n"), 1) == "a\ufffdb"


def test_no_log_is_no_text() -> None:
    assert logs.text_of(None) == ""
    assert logs.tail(None, 5) == ""


# ------------------------------------------------------------------------------------------------- the tail


@pytest.mark.parametrize(
    ("data", "lines", "found"),
    [
        (b"a\nb\nc\n", 2, "b\nc"),
        (b"a\nb\nc", 2, "b\nc"),
        (b"a\nb\nc\n", 3, "a\nb\nc"),
        (b"a\nb\nc\n", 9, "a\nb\nc"),
        (b"a\n\n\n", 2, "\n"),
        (b"\n", 1, ""),
        (b"a\nb\n", 0, ""),
        (b"a\nb\n", -1, ""),
        (b"", 3, ""),
        (b"progress 1\rprogress 2\n", 1, "progress 1\rprogress 2"),
        ("✓\nünï\n".encode(), 1, "ünï"),
    ],
)
def test_a_tail_is_exactly_the_last_lines(data: bytes, lines: int, found: str) -> None:
    assert logs.tail(Counting(data), lines) == found


def test_a_tail_reads_back_from_the_end_no_further_than_needed() -> None:
    log = Counting(b"a line of some length\n" * 1_000_000)

    assert logs.tail(log, 5).splitlines() == ["a line of some length"] * 5
    assert log.bytes_read <= 2 << 16


def test_a_tail_of_lines_longer_than_a_block_is_whole() -> None:
    log = Counting(b"".join(bytes([65 + number]) * 100_000 + b"\n" for number in range(5)))

    assert [(line[0], len(line)) for line in logs.tail(log, 2).splitlines()] == [("D", 100_000), ("E", 100_000)]


@pytest.mark.parametrize("offset", range(-2, 3))
def test_a_tail_is_right_where_a_line_ends_near_the_edge_of_a_block(offset: int) -> None:
    last = b"x" * ((1 << 16) + offset)

    assert logs.tail(Counting(b"before\n" + last + b"\n"), 1) == last.decode()
    assert logs.tail(Counting(b"before\n" + last + b"\n"), 2) == f"before\n{last.decode()}"


# ------------------------------------------------------------------------------------------------- following


class Growing(Counting):
    def write(self, data: bytes) -> None:
        self.data += data


def following(log) -> Follower:
    return Follower(lambda attempt: log, lambda: 0)


def new(follower: Follower, *, last: bool = False) -> str:
    return "".join(follower.new_text(last=last))


def test_a_follower_sees_each_byte_once() -> None:
    log = Growing(b"one\n")
    follower = following(log)

    assert new(follower) == "one\n"
    assert new(follower) == ""
    log.write(b"two\nthr")
    assert new(follower) == "two\nthr"
    log.write(b"ee\n")
    assert new(follower, last=True) == "ee\n"


def test_a_follower_reads_all_of_a_large_log() -> None:
    assert len(new(following(Growing(b"x" * 1_000_000)))) == 1_000_000


def test_a_character_that_was_half_written_is_shown_when_it_is_whole() -> None:
    log = Growing("ü".encode()[:1])
    follower = following(log)

    assert new(follower) == ""
    log.write("ü".encode()[1:])
    assert new(follower) == "ü"


def test_a_character_that_never_became_whole_is_replaced_at_the_end() -> None:
    follower = following(Growing(b"end\xc3"))

    assert new(follower) == "end"
    assert new(follower, last=True) == "\ufffd"


def test_a_log_that_is_not_there_yet_is_asked_for_again() -> None:
    logs_there: list = [None, None, Growing(b"at last\n")]
    follower = Follower(lambda attempt: logs_there.pop(0), lambda: 0)

    assert [new(follower) for _ in range(4)] == ["", "", "at last\n", ""]


@pytest.mark.parametrize("error", [KeyMissingError("gone"), FileNotFoundError("gone")])
def test_a_log_that_moves_into_the_store_is_read_on_from_where_it_was(store: MemoryStore, error: Exception) -> None:
    class Moved(Growing):
        def read(self, start: int, length: int) -> bytes:
            if moved:
                raise error
            return super().read(start, length)

    moved: list[bool] = []
    opened = [Moved(b"one\ntw"), stored(store, b"one\ntwo\n")]
    follower = Follower(lambda attempt: opened.pop(0), lambda: 0)

    assert new(follower) == "one\ntw"
    moved.append(True)
    assert new(follower) == ""
    assert new(follower) == "o\n"


@pytest.mark.parametrize(("seen", "rest"), [(b"", "gone\nthree\nfour\n"), (b"one\ntwo\nthree\n", "four\n")])
def test_the_end_of_a_log_of_which_the_history_kept_the_end_only_comes_once(seen: bytes, rest: str) -> None:
    line = b"gone\n"
    opened = [Growing(seen), HistoryLog(line + b"three\nfour\n", left_out=len(b"one\ntwo\n") - len(line))]
    follower = Follower(lambda attempt: opened.pop(0), lambda: 0)

    assert new(follower) == seen.decode()
    follower.close()

    assert new(follower) == rest


def test_another_attempt_is_followed_from_its_beginning() -> None:
    attempts = [Growing(b"first\n"), Growing(b"second\n")]
    now = [0]
    follower = Follower(lambda attempt: attempts[attempt], lambda: now[0])

    assert new(follower) == "first\n"
    now[0] = 1
    assert new(follower) == "second\n"
    assert new(follower) == ""


# ------------------------------------------------------------------------- a live log that need not have everything


class Live(Growing):
    is_complete = False


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_at_the_end_the_store_has_what_the_live_log_has_not(store: MemoryStore) -> None:
    whole = stored(store, b"one\ntwo\nthree\n")
    follower = Follower(lambda attempt: Live(b"one\ntw"), lambda: 0, lambda attempt: whole)

    assert new(follower) == "one\ntw"
    assert new(follower, last=True) == "o\nthree\n"


def test_at_the_end_the_live_log_may_have_what_the_store_never_got(store: MemoryStore) -> None:
    live = Live(b"one\n")
    follower = Follower(lambda attempt: live, lambda: 0, lambda attempt: stored(store, b"one\n"))

    assert new(follower) == "one\n"
    live.write(b"two\n")
    assert new(follower, last=True) == "two\n"


def test_a_live_log_that_breaks_at_the_end_is_continued_from_the_store(store: MemoryStore) -> None:
    class Broken(Live):
        def read(self, start: int, length: int) -> bytes:
            if start:
                raise ConnectionError("gone")
            return super().read(start, length)

    follower = Follower(lambda attempt: Broken(b"on"), lambda: 0, lambda attempt: stored(store, b"one\ntwo\n"))

    assert new(follower) == "on"
    assert new(follower, last=True) == "e\ntwo\n"


def test_what_an_attempt_left_is_read_before_the_next_one(store: MemoryStore) -> None:
    stored(store, b"first, whole\n")
    now = [0]
    follower = Follower(
        lambda attempt: Live([b"first", b"second"][attempt]), lambda: now[0], lambda attempt: stored_of(store, attempt)
    )

    assert new(follower) == "first"
    now[0] = 1
    assert new(follower) == ", whole\nsecond"


def stored_of(store: MemoryStore, attempt: int) -> StoredLog | None:
    return logs.stored_log(store, "job", attempt=attempt, host=0)


def test_whoever_reads_the_store_goes_over_to_the_live_log_when_it_is_there(store: MemoryStore) -> None:
    opened: list = [stored(store, b"one\n"), stored(store, b"one\n"), Live(b"one\ntwo\n")]
    clock = Clock()
    follower = Follower(lambda attempt: opened.pop(0), lambda: 0, clock=clock)
    seen = []

    for clock.now in (0.0, 0.5, 2.0, 3.0, 7.0, 100.0):
        seen.append(new(follower))

    assert seen == ["one\n", "", "", "", "two\n", ""]


def test_a_store_is_not_asked_more_often_than_it_should_be(store: MemoryStore) -> None:
    stored(store, b"one\n")
    clock = Clock()
    follower = Follower(lambda attempt: stored_of(store, attempt), lambda: 0, store_seconds=1.0, clock=clock)
    assert new(follower) == "one\n"
    stored(store, b"one\ntwo\n")

    clock.now = 0.9
    assert new(follower) == ""
    clock.now = 1.0
    assert new(follower) == "two\n"


def test_a_store_that_does_not_answer_for_a_moment_ends_no_following(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stored(store, b"one\n")
    follower = Follower(lambda _: log, lambda: 0)
    assert [*follower.new_bytes()] == [b"one\n"]

    def no_answer(*_: object) -> bytes:
        raise StoreUnreachableError("the store does not answer")

    with monkeypatch.context() as during:
        during.setattr(log, "read", no_answer)
        assert [*follower.new_bytes()] == []
    stored(store, b"one\n", b"two\n")

    assert [*follower.new_bytes()] == [b"two\n"]


def test_at_the_end_a_store_is_asked_in_any_case(store: MemoryStore) -> None:
    stored(store, b"one\n")
    follower = Follower(lambda attempt: stored_of(store, attempt), lambda: 0, store_seconds=1.0, clock=Clock())
    assert new(follower) == "one\n"
    stored(store, b"one\ntwo\n")

    assert new(follower, last=True) == "two\n"


# ------------------------------------------------------------------------------- a log that a pod is still writing


def test_a_reader_of_stored_segments_sees_what_is_added_to_the_last_one(store: MemoryStore) -> None:
    log = stored(store, b"first\n", b"sec")

    store.put(keys.log_segment("job", 0, 0, 6), b"second\n")

    assert log.read(9, 100) == b"ond\n"


def test_a_reader_of_stored_segments_goes_on_into_those_that_began_later(store: MemoryStore) -> None:
    log = stored(store, b"first\n", b"sec")

    store.put(keys.log_segment("job", 0, 0, 6), b"second\n")
    store.put(keys.log_segment("job", 0, 0, 13), b"third\n")

    assert log.read(9, 100) == b"ond\nthird\n"
    assert log.read(19, 100) == b""


def test_a_log_whose_attempt_has_ended_is_read_with_one_request_for_a_segment(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher, asked = LogHasher(), list[str]()
    hasher.update(b"one\ntwo\n")
    log = logs.checked_log(stored(store, b"one\ntwo\n"), hasher.digest(0, 0), "job")

    def counted(name: str) -> Callable[..., object]:
        own = getattr(store, name)
        return lambda *arguments, **options: asked.append(name) or own(*arguments, **options)

    for name in ("get", "size", "entries"):
        monkeypatch.setattr(store, name, counted(name))

    assert log.read(0, 1 << 20) == b"one\ntwo\n"
    assert asked == ["get"]


def test_a_follower_of_stored_segments_sees_each_byte_once(store: MemoryStore) -> None:
    stored(store, b"fi")
    follower = Follower(lambda attempt: StoredLog(store, keys.logs("job", attempt, 0)), lambda: 0)
    seen = [b"".join(follower.new_bytes())]

    for start, data in ((0, b"first"), (5, b"\nsec"), (5, b"\nsecond\n"), (13, b"third\n")):
        store.put(keys.log_segment("job", 0, 0, start), data)
        seen.append(b"".join(follower.new_bytes()))

    assert seen == [b"fi", b"rst", b"\nsec", b"ond\n", b"third\n"]


# ------------------------------------------------------------------------------------- of a process that was killed


class Place:
    """A place that has the log of a killed process, until somebody takes it away."""

    is_here = False

    def __init__(self, left: bytes | None) -> None:
        self.left = left

    def live_log(self, name: str, *, host: int, attempt: int, follow: bool = False) -> None:
        return None

    def last_log(self, name: str, *, host: int, attempt: int) -> Counting | None:
        return Counting(self.left) if self.left is not None and (host, attempt) == (0, 0) else None


def submitted(store: MemoryStore, *segments: bytes) -> None:
    store.put(keys.record("job"), b"{}")
    stored(store, *segments)


def opened(place: Place, store: MemoryStore, attempt: int = 0) -> str:
    return logs.text_of(logs.open_log(place, store, "job", attempt=attempt, host=0))


def test_what_was_printed_since_the_last_segment_is_fetched_and_stored_by_whoever_looks_first(
    store: MemoryStore,
) -> None:
    submitted(store, b"first\n", b"sec")
    place = Place(b"first\nsecond\n" + b"x" * (3 << 20))

    found = opened(place, store)
    place.left = None  # the pod is removed

    assert found.startswith("first\nsecond\nxxx")
    assert opened(place, store) == found


def test_the_whole_log_is_kept_where_nothing_of_it_had_reached_the_store(store: MemoryStore) -> None:
    submitted(store)

    assert opened(Place(b"all of it\n"), store) == "all of it\n"
    assert opened(Place(None), store) == "all of it\n"


def test_a_store_that_has_more_than_the_place_keeps_what_it_has(store: MemoryStore) -> None:
    submitted(store, b"first\nsecond\n")

    assert opened(Place(b"first\n"), store) == "first\nsecond\n"


def test_nothing_is_written_for_a_job_that_was_removed(store: MemoryStore) -> None:
    assert opened(Place(b"first\n"), store) == "first\n"
    assert list(store.entries("job/")) == []


def test_other_attempts_keep_their_logs(store: MemoryStore) -> None:
    submitted(store)
    stored(store, b"later\n", attempt=1)

    assert opened(Place(b"first\n"), store, attempt=1) == "later\n"


# ------------------------------------------------------------------------------------- hostile and very long logs


class Zeros(Counting):
    """A log of one endless line, of which nothing exists but its length."""

    def __init__(self, length: int) -> None:
        super().__init__(b"")
        self.length = length

    def size(self) -> int:
        return self.length

    def read(self, start: int, length: int) -> bytes:
        self.bytes_read += length
        return bytes(length)


def test_of_a_line_without_end_only_the_end_is_read_and_a_line_says_so() -> None:
    log = Zeros(400 << 20)

    told = logs.tail(log, 5)

    first, rest = told.split("\n")
    assert first == f"kinetic: {(400 << 20) - logs.HISTORY_LOG_BYTES} bytes before this are left out"
    assert len(rest) == logs.HISTORY_LOG_BYTES == log.bytes_read


def test_the_lines_behind_a_very_long_one_are_told_as_they_are() -> None:
    log = Counting(b"x" * (logs.HISTORY_LOG_BYTES + 1) + b"\nthree\nfour\n")

    assert logs.tail(log, 2) == "three\nfour"
    assert logs.tail_bytes(log, 2) == b"three\nfour\n"


@pytest.mark.parametrize("start", [999_999_999_999, 10**15, 10**17])
def test_a_segment_that_begins_behind_a_gap_is_no_part_of_the_log(store: MemoryStore, start: int) -> None:
    log = stored(store, b"first\n", b"second\n")
    store.put(keys.log_segment("job", 0, 0, start), b"planted\n")
    planted = StoredLog(store, keys.logs("job", 0, 0))

    assert planted.size() == log.size() == 13
    assert logs.tail(planted, 5) == logs.tail(log, 5) == "first\nsecond"
    assert planted.read(0, 100) == b"first\nsecond\n"


@pytest.mark.parametrize("name", ["planted", "-1", "1e3", "٣", "9" * 400])
def test_what_has_no_offset_for_a_name_is_no_part_of_the_log(store: MemoryStore, name: str) -> None:
    log = stored(store, b"first\n")
    store.put(keys.logs("job", 0, 0) + name, b"planted\n")

    assert logs.text_of(StoredLog(store, keys.logs("job", 0, 0))) == logs.text_of(log) == "first\n"


def test_the_log_of_a_job_that_has_ended_is_whole_though_its_cluster_serves_only_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testing.fake_backend(tmp_path) as backend:
        job = user_module.imported(tmp_path, USER, monkeypatch).count.run_async()
        job.result(cleanup=False)
        printed = "".join(f"{number}\n" for number in range(1000))
        hasher = LogHasher()
        hasher.update(printed.encode())
        monkeypatch.setattr(logs, "sealed_digest", lambda *_, **__: hasher.digest(0, 0))
        monkeypatch.setattr(backend, "live_log", lambda *_, **__: BytesLog(printed[:20].encode(), is_complete=False))

        assert job.logs() == printed


def test_whoever_has_read_all_that_was_sealed_asks_the_store_for_nothing(store: MemoryStore) -> None:
    hasher, reported = LogHasher(), list[str]()
    hasher.update(b"one\n")
    asked: list[int] = []
    follower = Follower(
        lambda attempt: Live(b"one\n"),
        lambda: 0,
        asked.append,
        sealed=lambda attempt: hasher.digest(0, 0),
        report=reported.append,
    )

    read = [new(follower), new(follower, last=True)]

    assert (read, asked, reported) == (["one\n", ""], [], [])


def test_what_was_added_to_a_log_that_was_sealed_is_reported_also_where_the_store_is_not_asked() -> None:
    hasher, reported = LogHasher(), list[str]()
    hasher.update(b"one\n")
    live = Live(b"one\n")
    follower = Follower(
        lambda attempt: live, lambda: 0, sealed=lambda attempt: hasher.digest(0, 0), report=reported.append
    )

    new(follower)
    live.write(b"more\n")

    assert new(follower, last=True) == "more\n"
    assert reported == ["5 bytes were added"]


def test_of_a_terabyte_that_was_added_to_a_log_after_its_end_only_the_beginning_is_read() -> None:
    hasher = LogHasher()
    hasher.update(b"one\n")

    class Forged:
        is_complete = True

        def size(self) -> int:
            return 1 << 40

        def read(self, start: int, length: int) -> bytes:
            assert start < 2 << 20, "who reads all of it needs a terabyte of memory"
            return b"one\n" * (length // 4)

    log = logs.checked_log(Forged(), hasher.digest(0, 0), "job")
    text = logs.text_of(log)

    assert (len(text), text[:8]) == (4 + (1 << 20), "one\none\n")
    assert sum(map(len, logs.pieces_of(log))) == len(text)
