"""What stores in the cloud promise while the wire between us and them breaks.

The faults happen in a proxy between the real client and the server; ``straight`` is the same store without it, to see
what truly lies there.
"""

from __future__ import annotations

import math
import os
import threading
from datetime import timedelta
from functools import partial

import pytest
from servers.azurite import AZURE
from servers.faults import Fault

from kinetic._stores import parallel, upload
from kinetic._stores.parallel import Retry
from kinetic.errors import CredentialsError, KeyMissingError, StoreUnreachableError

QUICK = Retry(attempts=4, first_seconds=0.01, most_seconds=0.02, total_seconds=5)
LARGE = os.urandom(17_000_000)  # three parts of a file, two of a stream
WRITES = "PUT|POST"


@pytest.fixture(params=["gcs", "s3", AZURE])
def wire(request, faulty):
    return faulty(request.param)


def keys(store, prefix=""):
    return [entry.key for entry in store.entries(prefix)]


# --------------------------------------------------------------------------------------------------------------- storms


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_storm_that_ends_is_sat_out_by_every_verb(wire, tmp_path, status):
    store, proxy, _ = wire

    def storm():
        proxy.faults = [Fault("status", status=status, times=2)]

    storm()
    assert store.put("a/b", b"1") is True
    storm()
    assert store.put("a/c", b"2", if_absent=True) is True
    storm()
    assert store.put("a/c", b"3", if_absent=True) is False
    storm()
    assert store.get("a/c") == b"2"
    storm()
    store.fetch("a/b", tmp_path / "b")
    storm()
    assert store.size("a/b") == 1
    storm()
    assert keys(store) == ["a/b", "a/c"]
    storm()
    assert list(store.folders("")) == ["a"]
    storm()
    assert store.touch("a/b") is True
    storm()
    assert store.delete("a/b") == 1
    assert [fault.met for fault in proxy.faults] == [2]


@pytest.fixture
def slow_line(wire, monkeypatch):
    """A line on which a request takes longer than it may where another large one is under way."""
    store, proxy, straight = wire
    monkeypatch.setattr(upload, "LINE", upload.Line())
    monkeypatch.setattr(store._client, "_timeout", timedelta(seconds=2))
    proxy.faults = [Fault("crowded", times=math.inf)]
    return store, straight


def test_a_large_object_is_sent_part_by_part_where_its_parts_are_too_slow_together(slow_line):
    store, straight = slow_line

    assert store.put("a", LARGE, if_absent=True) is True
    assert straight.get("a") == LARGE


def test_objects_are_sent_one_by_one_where_they_are_too_slow_together(slow_line):
    store, straight = slow_line
    data = LARGE[:2_000_000]

    puts = [partial(store.put, f"a/{number}", data, if_absent=number % 2 == 0) for number in range(4)]
    assert list(parallel.in_parallel(store, puts)) == [True] * 4
    assert {straight.get(f"a/{number}") for number in range(4)} == {data}


def test_a_storm_without_end_is_an_error_of_ours_after_a_bounded_number_of_requests(wire, tmp_path):
    store, proxy, straight = wire
    straight.put("a", b"old")
    proxy.faults = [Fault("status", times=math.inf)]

    verbs = [
        lambda: store.put("a", b"new"), lambda: store.put("b", b"new", if_absent=True), lambda: store.get("a"),
        lambda: store.fetch("a", tmp_path / "a"), lambda: store.size("a"), lambda: keys(store),
        lambda: list(store.folders("")), lambda: store.touch("a"), lambda: store.delete("a"),
    ]  # fmt: skip
    for verb in verbs:
        before = len(proxy.requests)
        with pytest.raises(StoreUnreachableError) as caught:
            verb()
        assert caught.value.next
        assert len(proxy.requests) - before <= 40, proxy.requests[before:]
    assert straight.get("a") == b"old"
    assert not list(tmp_path.glob(".*.part"))


def test_a_server_that_is_not_there_is_an_error_of_ours(wire):
    store, proxy, _ = wire
    proxy.faults = [Fault("drop", times=math.inf)]

    with pytest.raises(StoreUnreachableError):
        store.get("a")


# --------------------------------------------------------------------------------------------- connections that break


def test_a_connection_that_breaks_before_the_answer_is_no_matter_for_what_reads(wire, tmp_path):
    store, proxy, straight = wire
    for number in range(9):
        straight.put(f"a/{number}", b"%d" % number)
    for kind in ("drop", "lose"):
        proxy.faults = [Fault(kind)]
        assert store.get("a/1") == b"1"
        proxy.faults = [Fault(kind)]
        assert store.size("a/1") == 1
        proxy.faults = [Fault(kind, after=1)]
        assert len(keys(store)) == 9
        proxy.faults = [Fault(kind)]
        assert list(store.folders("")) == ["a"]


@pytest.mark.parametrize("kind", ["drop", "half", "lose"])
def test_a_put_whose_connection_breaks_is_written_once_and_whole(wire, kind):
    store, proxy, straight = wire
    straight.put("a", b"old")
    proxy.faults = [Fault(kind, method=WRITES)]

    assert store.put("a", b"x" * 100_000) is True

    assert proxy.faults[0].met == 1
    assert straight.get("a") == b"x" * 100_000


def test_a_download_that_breaks_in_its_middle_is_whole(wire, tmp_path):
    store, proxy, straight = wire
    straight.put("large", LARGE)
    straight.put("small", LARGE[:100_000])
    for after in range(3):
        proxy.faults = [Fault("cut", method="GET", times=2, after=after)]
        store.fetch("large", tmp_path / "large")
        assert (tmp_path / "large").read_bytes() == LARGE
        assert proxy.faults[0].met == 2
    proxy.faults = [Fault("cut", method="GET")]
    assert store.get("small") == LARGE[:100_000]
    proxy.faults = [Fault("cut", method="GET", after=1)]
    assert store.get("large", start=5) == LARGE[5:]


def test_a_download_that_breaks_for_ever_leaves_the_old_file(wire, tmp_path):
    store, proxy, straight = wire
    straight.put("large", LARGE)
    (tmp_path / "file").write_bytes(b"old")
    proxy.faults = [Fault("cut", method="GET", times=math.inf, after=1)]

    with pytest.raises(StoreUnreachableError):
        store.fetch("large", tmp_path / "file")

    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_slow_reading_is_reading(wire):
    store, proxy, straight = wire
    straight.put("a", LARGE[:500_000])
    proxy.faults = [Fault("slow")]

    assert store.get("a") == LARGE[:500_000]


@pytest.mark.parametrize("kind", ["status", "drop", "half", "lose"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_large_upload_survives_a_fault_at_any_of_its_steps(wire, tmp_path, kind, after):
    store, proxy, straight = wire
    (tmp_path / "source").write_bytes(LARGE)
    proxy.faults = [Fault(kind, method=WRITES, after=after)]

    assert store.put("a", tmp_path / "source") is True

    assert proxy.faults[0].met == 1
    assert straight.get("a") == LARGE


@pytest.mark.parametrize("kind", ["status", "drop", "half", "lose"])
@pytest.mark.parametrize("after", [0, 1, 3, 4])
def test_a_stream_that_can_be_read_once_survives_a_fault_at_any_step(wire, kind, after):
    store, proxy, straight = wire
    proxy.faults = [Fault(kind, method=WRITES, after=after)]

    assert store.put("a", (LARGE[start : start + 1_000_000] for start in range(0, len(LARGE), 1_000_000))) is True

    assert straight.get("a") == LARGE


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_stream_whose_login_ends_on_the_way_is_whole_or_an_error_and_never_cut(wire, after):
    store, proxy, straight = wire
    proxy.faults = [Fault("status", method=WRITES, after=after, status=401)]

    try:
        store.put("a", (LARGE[start : start + 1_000_000] for start in range(0, len(LARGE), 1_000_000)))
    except CredentialsError:
        assert keys(straight) == []
    else:
        assert straight.get("a") == LARGE


def test_an_upload_that_fails_for_good_leaves_nothing(wire):
    store, proxy, straight = wire
    straight.put("a", b"old")
    proxy.faults = [Fault("status", method=WRITES, times=math.inf, after=2)]

    for key in ("a", "b"):
        with pytest.raises(StoreUnreachableError):
            store.put(key, (LARGE[start : start + 1_000_000] for start in range(0, len(LARGE), 1_000_000)))

    assert straight.get("a") == b"old"
    assert keys(straight) == ["a"]


# ------------------------------------------------------------------------------------------- answers that got lost


@pytest.mark.parametrize("kind", ["lose", "half", "drop"])
def test_who_created_an_object_knows_it_though_the_answer_was_lost(wire, kind):
    store, proxy, straight = wire
    proxy.faults = [Fault(kind, method=WRITES)]

    assert store.put("a", b"mine", if_absent=True) is True

    assert proxy.faults[0].met == 1
    assert straight.get("a") == b"mine"
    assert store.put("a", b"mine", if_absent=True) is False


def test_who_found_an_object_knows_it_though_the_answer_was_lost(wire):
    store, proxy, straight = wire
    straight.put("a", b"same bytes", if_absent=True)
    proxy.faults = [Fault("lose", method=WRITES)]

    assert store.put("a", b"same bytes", if_absent=True) is False


def test_an_answer_that_is_lost_and_a_storm_behind_it_still_tell_the_truth(wire):
    store, proxy, straight = wire
    proxy.faults = [Fault("lose", method=WRITES), Fault("status", times=2)]

    assert store.put("a", b"mine", if_absent=True) is True
    assert straight.get("a") == b"mine"


@pytest.mark.parametrize("kind", ["gcs", "s3"])
def test_of_eight_writers_on_a_bad_wire_exactly_one_has_created_the_object(faulty, kind):
    store, proxy, straight = faulty(kind, QUICK._replace(attempts=30))
    proxy.faults = [Fault("lose", method=WRITES, times=20, after=3), Fault("drop", times=20, after=10)]
    gate = threading.Barrier(8)
    won = []

    def create(number):
        for turn in range(10):
            gate.wait(10)
            if store.put(f"turn/{turn}", b"%d" % number, if_absent=True):
                won.append((turn, number))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(turn for turn, _ in won) == list(range(10))
    assert all(straight.get(f"turn/{turn}") == b"%d" % number for turn, number in won)


@pytest.mark.parametrize("after", range(5))
def test_who_created_a_large_object_knows_it_though_an_answer_was_lost(wire, tmp_path, after):
    store, proxy, straight = wire
    (tmp_path / "source").write_bytes(LARGE)
    proxy.faults = [Fault("lose", method=WRITES, after=after)]

    assert store.put("a", tmp_path / "source", if_absent=True) is True

    assert proxy.faults[0].met == 1 or after == 4
    assert straight.get("a") == LARGE
    assert store.put("a", tmp_path / "source", if_absent=True) is False
    assert keys(straight) == ["a"]


def test_a_deletion_whose_answer_was_lost_is_no_error(wire):
    store, proxy, straight = wire
    for number in range(9):
        straight.put(f"a/{number}", b"")
    proxy.faults = [Fault("lose", method="DELETE|POST", times=2)]

    store.delete("a/")

    assert keys(straight) == []


def test_many_transfers_on_a_bad_wire_arrive(wire, tmp_path):
    store, proxy, _ = wire
    contents = {f"data/{number:02}": os.urandom(1000 + number) for number in range(40)}
    proxy.faults = [Fault("status", times=5, after=3), Fault("drop", times=5, after=20), Fault("cut", times=5, after=5)]

    list(parallel.in_parallel(store, [partial(store.put, *item) for item in contents.items()]))
    list(parallel.in_parallel(store, [partial(store.fetch, key, tmp_path / key[-2:]) for key in contents]))

    assert {f"data/{path.name}": path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == contents


def test_a_long_listing_continues_behind_what_it_had_as_often_as_a_page_breaks_off(faulty, gcs_server, monkeypatch):
    store, proxy, straight = faulty("gcs", Retry(attempts=2, first_seconds=0.01))
    monkeypatch.setattr(gcs_server, "page_size", 1000)
    names = [f"a/{number:04}" for number in range(2_500)]
    for name in names:
        gcs_server.buckets[straight.address.bucket].put(straight.address.prefix + name, b"")
    proxy.faults = [Fault("cut", method="GET", after=1), Fault("cut", method="GET", after=2)]

    assert keys(store, "a/") == names
    assert [fault.met for fault in proxy.faults] == [1, 1]


def test_a_missing_key_is_missing_on_a_bad_wire_as_well(wire):
    store, proxy, _ = wire
    proxy.faults = [Fault("drop"), Fault("status")]

    with pytest.raises(KeyMissingError):
        store.get("missing")
