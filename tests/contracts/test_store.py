"""What every store promises, tried on each of them.

A new store is done when it passes. What only processes can show (crashes, full disks) is asked of the stores that
other processes can see.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from servers.azurite import AZURE

import kinetic
from kinetic._stores import Entry, open_store, put_hint, put_many
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic.errors import KeyMissingError, OptionError, StoreError, StoreUnreachableError

BAD_KEYS = [
    "", "/a", "a/", "a//b", "../a", "a/..", "a/../b", "./a", "a/.", ".", "..", "a\0b", ".tmp/a", ".tmp", "k" * 1025,
    "a\nb", "a\rb", "a\tb", "\x01", "a\x7f", "a\ud800", "a\uffff",  # a listing in XML cannot spell these
]  # fmt: skip
BAD_PREFIXES = ["a", "/", "/a/", "a//", "../", "a/../"]


@pytest.fixture(params=["files", "memory", "gcs", "s3", AZURE])
def store(request, make_store):
    return make_store(request.param)


@pytest.fixture(params=["files", "gcs", "s3", AZURE])
def visible(request, make_store):
    """A store that other processes can open by its address."""
    return make_store(request.param)


@pytest.fixture
def shared(tmp_path):
    """A store of files, for what only a disk has."""
    return FileStore(tmp_path / "store")


def keys(store, prefix="", **options):
    return [entry.key for entry in store.entries(prefix, **options)]


def python(code, *arguments, **options):
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=environ, **options)


# ------------------------------------------------------------------------------------------------- writing and reading


@pytest.mark.parametrize("content", [b"", b"x", os.urandom(3 << 20)], ids=len)
@pytest.mark.parametrize("form", ["bytes", "bytearray", "memoryview", "wide", "file", "chunks", "generator"])
def test_what_was_put_comes_back_whatever_form_it_came_in(store, tmp_path, content, form):
    (tmp_path / "source").write_bytes(content)
    padded = content + bytes(-len(content) % 4)
    source = {
        "bytes": content,
        "bytearray": bytearray(content),
        "memoryview": memoryview(content),
        "wide": memoryview(padded).cast("I") if padded else memoryview(b""),
        "file": tmp_path / "source",
        "chunks": [content[:1], content[1:]],
        "generator": (content[start : start + 1000] for start in range(0, len(content), 1000)),
    }[form]

    assert store.put("a/b", source) is True

    assert store.get("a/b") == (padded if form == "wide" else content)
    assert (tmp_path / "source").read_bytes() == content


def test_putting_again_replaces(store):
    store.put("a", b"a long first version")
    store.put("a", b"second")

    assert store.get("a") == b"second"
    assert store.size("a") == 6


def test_create_only_leaves_what_is_there(store):
    assert store.put("a", b"first", if_absent=True) is True
    assert store.put("a", b"second", if_absent=True) is False
    assert store.get("a") == b"first"


def test_create_only_works_again_after_a_deletion(store):
    store.put("a/b", b"first", if_absent=True)
    store.delete("a/")

    assert store.put("a/b", b"second", if_absent=True) is True


def test_of_eight_threads_that_create_a_key_exactly_one_wins(store):
    gate = threading.Barrier(8)
    won = []

    def create(number):
        for turn in range(25):
            gate.wait()
            if store.put(f"turn/{turn}", f"{number}".encode(), if_absent=True):
                won.append((turn, number))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(turn for turn, _ in won) == list(range(25))
    assert all(store.get(f"turn/{turn}") == f"{number}".encode() for turn, number in won)


def test_of_eight_processes_that_create_a_key_exactly_one_wins(visible):
    code = """
import sys, time
from kinetic._stores import open_store
store, number, start = open_store(sys.argv[1]), sys.argv[2], float(sys.argv[3])
time.sleep(max(0, start - time.time()))
for turn in range(50):
    if store.put(f"turn/{turn}", number.encode() * 1000, if_absent=True):
        print(turn, number)
"""
    start = time.time() + 0.5
    processes = [python(code, visible.url, number, start, stdout=subprocess.PIPE, text=True) for number in range(8)]
    won = [line.split() for process in processes for line in process.communicate()[0].splitlines()]

    assert sorted(int(turn) for turn, _ in won) == list(range(50))
    assert all(visible.get(f"turn/{turn}") == number.encode() * 1000 for turn, number in won)
    if isinstance(visible, FileStore):
        assert list((visible.root / ".tmp").iterdir()) == []


def test_a_reader_sees_one_version_or_the_other_never_a_mixture(store):
    versions = [bytes([number]) * 200_000 for number in range(2)]
    store.put("a", versions[0])
    stop = threading.Event()

    def write():
        turn = 0
        while not stop.is_set():
            turn += 1
            store.put("a", versions[turn % 2])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = {store.get("a") for _ in range(200)}
    finally:
        stop.set()
        thread.join()

    assert seen <= set(versions)


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, None, b"0123456789"), (3, None, b"3456789"), (0, 3, b"012"), (3, 3, b"345"), (8, 10, b"89"), (10, 1, b""),
        (50, 1, b""), (50, None, b""), (3, 0, b""),
    ],
)  # fmt: skip
def test_a_range_is_what_lies_there(store, start, length, expected):
    store.put("a", b"0123456789")

    assert store.get("a", start=start, length=length) == expected


def test_a_missing_key_is_an_error_that_names_it(store, tmp_path):
    store.put("there/it/is", b"x")

    part, fetch = (lambda key: store.get(key, start=1, length=1)), (lambda key: store.fetch(key, tmp_path / "x"))
    for read in (store.get, part, fetch):
        for key in ("missing", "there/missing", "there/it", "there/it/is/not"):
            with pytest.raises(KeyMissingError, match=key):
                read(key)
    assert [path.name for path in tmp_path.iterdir() if "x" in path.name.split(".")] == []


def test_the_size_of_a_missing_key_is_none(store):
    store.put("a/b", b"123")

    assert store.size("a/b") == 3
    assert [store.size(key) for key in ("b", "a/c", "a/b/c", "a")] == [None] * 4


def test_fetching_writes_the_whole_file_and_replaces_an_old_one(store, tmp_path):
    body = os.urandom(3 << 20)
    store.put("a", body)
    (tmp_path / "target").write_bytes(b"old and much longer" * 1_000_000)

    store.fetch("a", tmp_path / "target")

    assert (tmp_path / "target").read_bytes() == body
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_key_that_is_no_path_inside_the_store_is_refused_by_every_verb(store, tmp_path, key):
    verbs = [
        lambda: store.put(key, b"x"),
        lambda: store.put(key, b"x", if_absent=True),
        lambda: store.get(key),
        lambda: store.fetch(key, tmp_path / "x"),
        lambda: store.size(key),
    ]
    for verb in verbs:
        with pytest.raises(OptionError):
            verb()


@pytest.mark.parametrize("prefix", BAD_PREFIXES)
def test_a_prefix_that_is_none_is_refused(store, prefix):
    with pytest.raises(OptionError):
        list(store.entries(prefix))
    with pytest.raises(OptionError):
        list(store.folders(prefix))


@pytest.mark.parametrize(
    "key",
    [
        "a b",
        "ünï/☃",
        "a*b?[c]",
        "#x",
        "a&b<c>",
        "a+b=c",
        "a\\\\b",
        "é",
        "😀",
        "-rf",
        "...",
        "a/...b",
        "~",
        "%2F",
        'quote"s',
        "x" * 200,
    ],
)
def test_unusual_keys_are_keys(store, key):
    if "\\" in key and store.url.startswith("az://"):
        with pytest.raises(OptionError, match="makes a slash of each backslash"):
            store.put(key, b"x")
        return

    store.put(key, b"x")

    assert store.get(key) == b"x"
    assert keys(store) == [key]
    assert store.delete(key) == 1


def test_a_store_that_cannot_finish_writing_leaves_what_was_there(store):
    def broken():
        yield b"half"
        raise RuntimeError("the source failed")

    store.put("a", b"old")
    for key in ("a", "new"):
        with contextlib.suppress(RuntimeError):
            store.put(key, broken())

    assert store.get("a") == b"old"
    assert keys(store) == ["a"]


# -------------------------------------------------------------------------------------------------------- large objects


LARGE = os.urandom(20 << 20)  # three pieces and parts in the cloud


def in_chunks(content, size=700_001):
    return (content[start : start + size] for start in range(0, len(content), size))


@pytest.mark.parametrize("if_absent", [False, True])
@pytest.mark.parametrize("form", ["bytes", "file", "generator"])
def test_a_large_object_comes_back_whatever_form_it_came_in(store, tmp_path, form, if_absent):
    (tmp_path / "source").write_bytes(LARGE)
    source = {"bytes": LARGE, "file": tmp_path / "source", "generator": in_chunks(LARGE)}[form]

    assert store.put("a/b", source, if_absent=if_absent) is True
    counted = []
    store.fetch("a/b", tmp_path / "target", counted.append)

    assert sum(counted) == len(LARGE)
    assert store.get("a/b") == LARGE
    assert (tmp_path / "target").read_bytes() == LARGE
    assert (store.size("a/b"), keys(store)) == (len(LARGE), ["a/b"])


@pytest.mark.parametrize("size", [(8 << 20) - 1, 8 << 20, (8 << 20) + 1, 16 << 20], ids=str)
def test_an_object_may_end_where_a_piece_ends(store, size):
    store.put("a", LARGE[:size])
    store.put("b", in_chunks(LARGE[:size]), if_absent=True)

    assert store.get("a") == store.get("b") == LARGE[:size]


def test_a_large_object_is_created_once(store):
    assert store.put("a", LARGE, if_absent=True) is True
    assert store.put("a", in_chunks(LARGE[1:]), if_absent=True) is False
    assert store.put("a", b"small", if_absent=True) is False
    assert store.get("a") == LARGE
    assert keys(store) == ["a"]


@pytest.mark.parametrize(("start", "length"), [(5, 12 << 20), (9 << 20, None), (19 << 20, 5 << 20), (0, 8 << 20)])
def test_a_large_range_is_what_lies_there(store, start, length):
    store.put("a", LARGE)

    assert store.get("a", start=start, length=length) == LARGE[start:][:length]


def test_a_large_source_that_fails_leaves_what_was_there(store):
    def broken():
        yield from in_chunks(LARGE)
        raise RuntimeError("the source failed")

    store.put("a", b"old")
    for key, if_absent in (("a", False), ("new", False), ("new", True)):
        with pytest.raises(RuntimeError, match="the source failed"):
            store.put(key, broken(), if_absent=if_absent)

    assert store.get("a") == b"old"
    assert keys(store) == ["a"]


def test_a_large_object_is_read_in_one_version_though_it_is_replaced(store, tmp_path):
    versions = [bytes([number]) * (17 << 20) for number in range(2)]
    store.put("a", versions[0])
    thread = threading.Thread(target=lambda: [store.put("a", versions[turn % 2]) for turn in range(1, 4)])

    thread.start()
    store.fetch("a", tmp_path / "a")
    seen = {store.get("a"), (tmp_path / "a").read_bytes()}
    thread.join()

    assert seen <= set(versions)


def test_a_touched_large_object_is_young_again_and_holds_the_same_bytes(store):
    store.put("a", LARGE)
    before = store.entry("a").modified

    assert store.touch("a") is True
    assert store.entry("a").modified >= before
    assert store.get("a") == LARGE
    assert keys(store) == ["a"]


# ------------------------------------------------------------------------------------------------------------- listing


TREE = ["a-b", "a.b/x", "a/b", "a/c/d", "aa", "b/1", "b/10", "b/2", "z/y/x/w"]


@pytest.fixture
def full(store):
    for name in reversed(TREE):
        store.put(name, name.encode())
    return store


def test_a_listing_comes_in_the_order_of_the_keys(full):
    assert keys(full) == sorted(TREE)


def test_a_listing_of_a_prefix_holds_what_lies_under_it_only(full):
    assert keys(full, "a/") == ["a/b", "a/c/d"]
    assert keys(full, "b/") == ["b/1", "b/10", "b/2"]
    assert keys(full, "missing/") == []
    assert keys(full, "aa/") == []


@pytest.mark.parametrize("prefix", ["", "a/", "b/", "z/"])
def test_a_listing_goes_on_after_any_key(full, prefix):
    whole = keys(full, prefix)

    for after in [*TREE, "0", "a/", "a/c", "a/c/", "b/1x", "zz", "a.b"]:
        assert keys(full, prefix, after=after) == [key for key in whole if key > after]


def test_an_entry_tells_size_and_time(store):
    before = time.time()
    store.put("a", b"123")

    [entry] = store.entries("")

    assert isinstance(entry, Entry)
    assert (entry.key, entry.size) == ("a", 3)
    assert before - 5 < entry.modified < time.time() + 5


def test_a_listing_of_a_new_store_is_empty(store):
    assert keys(store) == []
    assert list(store.folders("")) == []


def test_folders_are_named_once_and_in_order(full):
    assert list(full.folders("")) == ["a", "a.b", "b", "z"]
    assert list(full.folders("a/")) == ["c"]
    assert list(full.folders("z/y/")) == ["x"]
    assert list(full.folders("missing/")) == []


def test_a_listing_survives_deletions_while_it_is_read(store):
    for number in range(50):
        store.put(f"{number:02}/x", b"")
    listing = store.entries("")
    first = next(listing).key
    store.delete("30/")

    rest = [entry.key for entry in listing]

    assert first == "00/x"
    assert set(rest) >= {f"{number:02}/x" for number in range(1, 50) if number != 30}


# ------------------------------------------------------------------------------------------------------------ deletion


def test_deleting_a_prefix_spares_its_longer_namesake(store):
    for key in ("job-1/a", "job-1/b/c", "job-12/a", "job-1x", "job-/a"):
        store.put(key, b"")

    assert store.delete("job-1/") == 2
    assert keys(store) == ["job-/a", "job-12/a", "job-1x"]


def test_deleting_one_key_spares_what_lies_under_it(store):
    store.put("job-1/a", b"")

    assert store.delete("job-1") == 0
    assert keys(store) == ["job-1/a"]


def test_deleting_what_is_gone_is_no_error(store):
    assert store.delete("missing") == 0
    assert store.delete("missing/") == 0
    store.put("a", b"")
    assert store.delete("a/b") == 0
    assert store.delete("a/b/") == 0


def test_deleting_needs_a_key_or_a_prefix(store):
    store.put("a", b"")

    for wrong in ("", "/", "../", "a/../"):
        with pytest.raises(OptionError):
            store.delete(wrong)
    assert keys(store) == ["a"]


def test_a_folder_whose_last_key_was_deleted_is_not_named_any_more(store):
    for key in ("a/b/1", "a/b/2", "a/c/3", "d/4"):
        store.put(key, b"")

    store.delete("a/b/1")
    assert list(store.folders("a/")) == ["b", "c"]
    store.delete("a/b/2")
    assert list(store.folders("a/")) == ["c"]
    store.delete("a/c/")
    assert list(store.folders("")) == ["d"]
    assert store.put("a/b/1", b"again", if_absent=True) is True


def test_a_deleted_folder_can_be_written_again(store):
    for turn in range(3):
        store.put("job/deep/a", b"%d" % turn)
        assert store.get("job/deep/a") == b"%d" % turn
        store.delete("job/")


def test_writing_and_deleting_at_once_do_not_trip_over_each_other(store):
    failures = []

    def write(name):
        try:
            for turn in range(100):
                store.put(f"job/deep/{name}", b"%d" % turn, if_absent=bool(turn % 2))
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.delete("job/")
    for thread in threads:
        thread.join()

    assert failures == []


# -------------------------------------------------------------------------------------- crashes, disks, other processes


def test_an_address_leads_back_to_the_store(store):
    store.put("a", b"1")
    if isinstance(store, MemoryStore):
        open_store(store.url).put("b", b"2")
        assert keys(open_store(store.url)) == ["b"]
    else:
        assert keys(open_store(store.url)) == ["a"]


def test_another_kind_of_address_is_refused_with_those_that_work():
    with pytest.raises(OptionError, match="file:///folder"):
        open_store("ftp://somewhere")


def test_a_writer_that_is_killed_in_the_middle_leaves_no_object(visible):
    code = """
import sys, time
from kinetic._stores import open_store
def endless():
    yield b"x" * 3_000_000
    print("half", flush=True)
    time.sleep(60)
open_store(sys.argv[1]).put("a/b", endless())
"""
    visible.put("a/c", b"old")
    process = python(code, visible.url, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert keys(visible) == ["a/c"]
    assert visible.size("a/b") is None
    assert visible.put("a/b", b"new", if_absent=True) is True


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("below", ["store", "."])
def test_nothing_is_written_below_a_file_system_that_was_unmounted_where_nobody_would_find_it(small_disk, below):
    store = FileStore(small_disk / below)
    store.put("job/a", b"old")
    source = small_disk.parent / "result"
    source.write_bytes(b"computed for hours")
    subprocess.run(["umount", str(small_disk)], check=True)
    try:
        verbs = [
            lambda: store.put("job/b", b"new"),
            lambda: store.put_hint("job/b"),
            lambda: store.put_many([("job/b", b"new"), ("c", b"")]),
            lambda: FileStore(small_disk / below).adopt("job/b", source, if_absent=True),
            store.scratch,
        ]
        for verb in verbs:
            with pytest.raises(StoreUnreachableError, match="Not mounted any more") as caught:
                verb()
            assert caught.value.next == "mount its file system again"
        assert list(small_disk.iterdir()) == []
    finally:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(small_disk)], check=True)

    assert store.adopt("job/b", source, if_absent=True) is True
    assert store.get("job/b") == b"computed for hours"


def test_nothing_counts_as_deleted_while_the_file_system_is_unmounted(small_disk):
    store = FileStore(small_disk)
    store.put("job/a", b"old")
    subprocess.run(["umount", str(small_disk)], check=True)
    try:
        for verb in (store.size, store.entry, store.touch):
            with pytest.raises(StoreUnreachableError, match="Not mounted any more"):
                verb("job/a")
    finally:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(small_disk)], check=True)

    assert store.size("job/a") is None


@pytest.mark.parametrize("source", [b"x" * (2 << 20), [b"x" * 1000] * 2000], ids=["bytes", "chunks"])
def test_a_full_disk_is_an_error_of_ours_and_leaves_what_was_there(small_disk, source):
    store = FileStore(small_disk / "store")
    store.put("a", b"old")

    for key in ("a", "b"):
        with pytest.raises(StoreError, match="full") as caught:
            store.put(key, source)
        assert caught.value.code == "store-full"

    assert store.get("a") == b"old"
    assert keys(store) == ["a"]
    assert list((small_disk / "store" / ".tmp").iterdir()) == []
    assert store.put("b", b"fits") is True


def test_a_file_of_the_same_disk_is_taken_over_whole(shared):
    for turn, expected in enumerate([True, False]):
        source = shared.scratch() / "pack"
        source.write_bytes(b"%d" % turn)

        assert shared.adopt("packs/1", source, if_absent=True) is expected
        assert not source.exists()

    assert shared.get("packs/1") == b"0"
    assert keys(shared) == ["packs/1"]


def test_a_file_of_another_disk_is_copied(shared, small_disk):
    (small_disk / "pack").write_bytes(b"far")

    assert shared.adopt("packs/1", small_disk / "pack") is True
    assert shared.get("packs/1") == b"far"
    assert not (small_disk / "pack").exists()


def test_scratch_files_are_no_objects(shared):
    (shared.scratch() / "half").touch()

    assert keys(shared) == []
    assert list(shared.folders("")) == []
    for verb in (shared.get, shared.size, shared.delete):
        with pytest.raises(OptionError):
            verb(".tmp/half")
    assert (shared.scratch() / "half").exists()


def test_a_descriptor_of_an_object_reads_it_though_it_is_replaced(shared):
    shared.put("a", b"first")
    descriptor = shared.open("a")
    shared.put("a", b"second")

    assert os.pread(descriptor, 100, 0) == b"first"
    os.close(descriptor)


def test_a_folder_that_refuses_us_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").touch()
    store = FileStore(tmp_path / "file" / "store")

    with pytest.raises(StoreUnreachableError, match="the store refused 'a'"):
        store.put("a", b"x")
    assert keys(store) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("key", "owned"), [("job/handle.json", "/job"), ("other/handle.json", "/.tmp")])
def test_a_folder_of_another_user_is_named_with_its_owner(key, owned):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # which another user may reach, unlike tmp_path
        os.chmod(folder, 0o1777)
        store = FileStore(folder)
        store.put("job/handle.json", b"x")
        os.seteuid(65534)
        try:
            with pytest.raises(StoreUnreachableError, match="the store refused") as raised:
                store.get(key) if owned == "/job" else store.put(key, b"x")
        finally:
            os.seteuid(0)

    assert raised.value.why.endswith(f": {folder}{owned} belongs to user 0, and you are user 65534")
    assert "KINETIC_STORE" in raised.value.next


def test_a_file_store_refuses_a_key_under_another_key_and_says_so(shared):
    shared.put("a", b"old")

    with pytest.raises(StoreUnreachableError, match="the store refused 'a/b'"):
        shared.put("a/b", b"x")
    assert shared.get("a") == b"old"
    assert list((shared.root / ".tmp").iterdir()) == []


def test_a_refused_key_leaves_no_scratch_behind(shared):
    for key in BAD_KEYS:
        with pytest.raises(OptionError):
            shared.put(key, b"x")

    assert not (shared.root / ".tmp").exists()


def test_objects_belong_to_their_owner_alone(shared):
    shared.put("a/b", b"x")

    assert (shared.root / "a" / "b").stat().st_mode & 0o077 == 0
    assert (shared.root / "a").stat().st_mode & 0o077 == 0


# ----------------------------------------------------------------------------------------------------- one key, its age


def test_an_entry_of_one_key_is_what_the_listing_says(store):
    store.put("a/b", b"123")

    assert [store.entry("a/b")] == list(store.entries("a/"))
    assert [store.entry(key) for key in ("a", "a/c", "a/b/c")] == [None] * 3


def test_a_touched_object_is_young_again_and_holds_the_same_bytes(store):
    store.put("a", b"123")
    before = store.entry("a").modified
    if isinstance(store, FileStore):
        os.utime(store.root / "a", (before - 86400, before - 86400))

    assert store.touch("a") is True
    assert store.entry("a").modified >= before
    assert store.get("a") == b"123"
    assert store.touch("missing") is False


def test_many_objects_are_put_at_once_and_replace_what_was_there(store):
    store.put("job-3/order", b"old")
    objects = [(f"job-{number}/order", b"%d" % number) for number in range(30)]

    store.put("job-4/mark", b"not empty")
    assert put_many(store, [*objects, ("job-3/mark", b""), ("job-4/mark", b""), ("group/manifest", b"last")]) == []
    assert put_many(store, []) == []

    assert [store.get(key) for key, _ in objects] == [data for _, data in objects]
    assert [store.get(f"job-{number}/mark") for number in (3, 4)] == [b"", b""]
    assert store.get("group/manifest") == b"last"


def test_many_objects_are_created_at_once_and_those_that_exist_are_left_and_named(store):
    store.put("job-3/page", b"theirs")
    store.put("job-4/mark", b"")
    objects = [(f"job-{number}/page", b"%d" % number) for number in range(20)]

    left = put_many(store, [*objects, ("job-4/mark", b""), ("job-5/mark", b"")], if_absent=True)

    assert sorted(left) == ["job-3/page", "job-4/mark"]
    assert [store.get(key) for key, _ in objects] == [
        b"theirs" if number == 3 else b"%d" % number for number in range(20)
    ]
    assert store.get("job-5/mark") == b""


def test_of_many_objects_the_last_appears_only_when_all_others_are_there(store, monkeypatch):
    store.put("job", b"")  # in a folder, no key below it can be put
    real = type(store).put

    def refuse(self, key, data):
        if key == "job/order":
            raise StoreError(key)
        return real(self, key, data)

    monkeypatch.setattr(type(store), "put", refuse)

    with pytest.raises(StoreError):
        put_many(store, [("other/order", b"1"), ("job/order", b"2"), ("last", b"3")])

    assert store.size("last") is None


def test_a_key_that_is_no_path_is_refused_before_anything_of_many_is_written(shared):
    with pytest.raises(OptionError):
        put_many(shared, [("good", b"1"), ("../bad", b"2")])

    assert shared.size("good") is None


def test_a_hint_is_an_empty_object_that_leaves_what_is_there(store):
    put_hint(store, "marks/1")
    put_hint(store, "marks/1")

    assert keys(store, "marks/") == ["marks/1"]
    assert store.get("marks/1") == b""
