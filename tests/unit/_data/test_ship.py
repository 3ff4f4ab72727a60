"""Local data's way into a store: whole, deterministic, nothing twice, and nothing promised that is not there."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kinetic._blobs import file_tree, sender
from kinetic._data import Data
from kinetic._data import ship as shipping
from kinetic._data.ship import recheck, ship
from kinetic._output.format import size_text
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic._wire.order import DataRef, Manifest
from kinetic.errors import DataChangedError, DataError, DataMissingError, KeyMissingError

DAY = 24 * 3600
pytestmark = pytest.mark.usefixtures("little")


def some_files(count: int = 30, seed: int = 1) -> dict[str, bytes]:
    """Small and large ones, in the sizes of ``little``."""
    dice = random.Random(seed)
    sizes = [0, 1, 50, 399, 400, 600, 601, 2000]
    return {f"part {n % 4}/f{n:03}": dice.randbytes(sizes[n % len(sizes)]) for n in range(count)}


@pytest.fixture
def root(tmp_path, fill) -> Path:
    return fill(tmp_path / "set", some_files())


@pytest.fixture
def send(root, store, cache):
    def sent(path=root, *, to=store, data=None, cache=cache, fuse=False) -> DataRef:
        return ship(data or Data(path, fuse=fuse), to, cache=cache)

    return sent


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The names of files that are opened."""
    names = []
    really = file_tree.open_regular

    def noted(selection, file):
        names.append(file.relative)
        return really(selection, file)

    monkeypatch.setattr(file_tree, "open_regular", noted)
    return names


def manifest_of(store, ref) -> Manifest:
    return Manifest.from_bytes(store.get(keys.data_manifest(ref.hash, ref.manifest)), sha256=ref.manifest)


def everything(store) -> dict[str, bytes]:
    return {entry.key: store.store.get(entry.key) for entry in store.store.entries("")}


# -------------------------------------------------------------------------------------------------------- what travels


def test_what_was_shipped_comes_back(send, store, root, fetched):
    ref = send()

    assert fetched(store, ref) == some_files()
    assert ref == DataRef(
        kind="shipped",
        uri=store.url,
        path=str(root),
        name="set",
        is_dir=True,
        hash=Data(root).content_hash(),
        manifest=ref.manifest,
    )


@pytest.mark.parametrize("size", [0, 1, 399, 400, 600, 601, 1700])
def test_a_single_file_comes_back(send, store, tmp_path, fetched, size):
    content = os.urandom(size)
    (tmp_path / "one file.bin").write_bytes(content)

    ref = send(tmp_path / "one file.bin")

    assert (ref.is_dir, ref.name) == (False, "one file.bin")
    assert fetched(store, ref) == {"one file.bin": content}


def test_executable_bits_and_empty_folders_survive(send, store, root):
    (root / "part 0" / "f000").chmod(0o755)
    (root / "empty" / "deep").mkdir(parents=True)
    (root / "links only").mkdir()
    (root / "links only" / "to").symlink_to("..")

    manifest = manifest_of(store, send())

    assert [file.path for file in manifest.files if file.executable] == ["part 0/f000"]
    assert set(manifest.folders) == {"empty/deep", "links only"}


def test_an_empty_folder_is_data_too(send, store, tmp_path):
    (tmp_path / "nothing").mkdir()

    assert manifest_of(store, send(tmp_path / "nothing")).files == ()


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="other systems want names to be UTF-8")
def test_any_name_survives(send, store, tmp_path, fill, fetched):
    files = {"a b": b"1", "line\nbreak": b"2", os.fsdecode(b"\xff\xfe"): b"3", "日本/ü": b"4", "\\": b"5"}

    assert fetched(store, send(fill(tmp_path / "odd", files))) == files


def test_small_files_are_packed_and_large_ones_are_cut(send, store):
    manifest = manifest_of(store, send())

    assert {file.size < 400 for file in manifest.files if file.packed} == {True}
    packs = {part.blob for file in manifest.files if file.packed for part in file.parts}
    sizes = [len(store.get(keys.data_blob(pack))) for pack in packs]
    assert sum(sizes) == sum(file.size for file in manifest.files if file.packed)
    assert max(sizes) <= 1000
    assert sum(size > 600 for size in sizes) >= len(sizes) - 1  # none that the next file would have fitted into
    chunked = [file for file in manifest.files if not file.packed]
    assert {len(file.parts) for file in chunked if file.size == 2000} == {7}
    assert all(part[1:] == (0, 300) for file in chunked for part in file.parts[:-1])


def test_the_same_tree_gives_the_same_bytes_wherever_it_lies(send, store, tmp_path, fill, cache):
    other = fill(tmp_path / "other", dict(reversed(some_files().items())))
    elsewhere = MemoryStore("elsewhere")

    first, second = send(), send(other, to=elsewhere, cache=cache / "b")

    assert first.manifest == second.manifest
    assert everything(store) == {entry.key: elsewhere.get(entry.key) for entry in elsewhere.entries("")}


def test_the_manifest_comes_last(send, store):
    ref = send()

    written = store.sent()
    assert written[-1] == keys.data_manifest(ref.hash, ref.manifest)
    assert set(written) == everything(store).keys()
    assert len(written) == len(set(written))


def test_in_real_sizes_a_large_file_is_cut_at_64_mebibytes(store, tmp_path, cache, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("KINETIC_HOME", str(cache.parent))
    with (tmp_path / "large.bin").open("wb") as file:
        file.write(b"begin")
        file.truncate((64 << 20) + 5)

    manifest = manifest_of(store, ship(Data(tmp_path / "large.bin"), store, cache=cache))

    assert [part.length for part in manifest.files[0].parts] == [64 << 20, 5]


# ------------------------------------------------------------------------------------------------------- nothing twice


def test_unchanged_data_costs_one_request_and_no_file_is_read(send, store, read, calm):
    first = send()
    store.take(), read.clear()

    assert send() == first
    assert store.take() == [("entry", keys.data_manifest(first.hash, first.manifest))]
    assert read == []


def test_a_machine_without_memory_finds_the_manifest_in_the_store(send, store, cache):
    first = send()
    store.take()

    assert send(cache=cache / "other machine") == first
    assert store.sent() == []


def test_another_root_with_the_same_content_sends_nothing(send, store, tmp_path, fill):
    first = send()
    store.take()

    second = send(fill(tmp_path / "copy", some_files()))

    assert (second.hash, second.manifest) == (first.hash, first.manifest)
    assert store.sent() == []


@pytest.mark.parametrize("again", [lambda path: path.chmod(0o755), lambda path: (path.parent / "empty").mkdir()])
def test_a_mode_or_an_empty_folder_makes_another_manifest_and_no_blob(send, store, root, again):
    first = send()
    again(root / "part 1" / "f001")
    store.take()

    second = send()

    assert second.hash == first.hash
    assert second.manifest != first.manifest
    assert store.sent() == [keys.data_manifest(second.hash, second.manifest)]


def test_an_edit_sends_the_edited_file_only(send, store, root, fetched):
    send()
    (root / "part 1" / "f001").write_bytes(b"new")
    store.take()

    ref = send()

    blob, manifest = store.sent()
    assert everything(store)[blob] == b"new"
    assert manifest == keys.data_manifest(ref.hash, ref.manifest)
    assert fetched(store, ref) == some_files() | {"part 1/f001": b"new"}


def test_an_edit_at_the_end_of_a_large_file_sends_its_last_chunk_only(send, store, root, fetched):
    large = next(path for path, content in some_files().items() if len(content) == 2000)
    content = some_files()[large]
    send()
    (root / large).write_bytes(content + b"more")
    store.take()

    ref = send()

    assert [everything(store)[key] for key in store.sent()[:-1]] == [content[1800:] + b"more"]
    assert fetched(store, ref)[large] == content + b"more"


def test_removing_and_adding_files_keeps_the_rest_where_it_lies(send, store, root, fetched):
    send()
    (root / "part 1" / "f001").unlink()
    (root / "part 9").mkdir()
    (root / "part 9" / "new").write_bytes(b"fresh")
    store.take()

    ref = send()

    assert len(store.sent()) == 2
    expected = {path: content for path, content in some_files().items() if path != "part 1/f001"}
    assert fetched(store, ref) == expected | {"part 9/new": b"fresh"}


def test_many_small_edits_do_not_spread_a_tree_over_ever_more_packs(send, store, root, fetched):
    files = some_files()
    for number in range(60):
        path = f"part 1/edit {number % 40}"
        files[path] = b"%d" % number
        (root / path).write_bytes(files[path])
        ref = send()

    manifest = manifest_of(store, ref)
    small = sum(file.size for file in manifest.files if file.packed)
    assert len({part.blob for file in manifest.files if file.packed for part in file.parts}) <= small / 500 + 20
    assert fetched(store, ref) == files


def test_a_memory_without_a_store_behind_it_sends_everything(send, root, cache, fetched):
    send(to=MemoryStore("one"))
    other = MemoryStore("other")

    assert fetched(other, send(to=other)) == some_files()


@pytest.mark.parametrize("damage", [b"", b"null", b"{}", b"[" * 10**5, b"\xff"])
def test_a_damaged_memory_of_what_was_sent_is_an_empty_one(send, store, cache, damage):
    first = send()
    (page,) = (cache / "data").glob("*.sent")
    page.write_bytes(damage)
    store.take()

    assert send() == first
    assert store.sent() == []


def test_a_cache_that_cannot_be_written_is_no_harm(send, store, tmp_path, fetched):
    (tmp_path / "file").write_text("")

    assert fetched(store, send(cache=tmp_path / "file")) == some_files()


# ----------------------------------------------------------------------------------------------- the store loses things


def test_a_manifest_that_is_gone_is_written_again(send, store):
    first = send()
    store.store.delete(keys.data_manifest(first.hash, first.manifest))
    store.take()

    assert send() == first
    assert store.sent() == [keys.data_manifest(first.hash, first.manifest)]


def test_a_manifest_that_is_damaged_is_written_again(send, store, cache):
    first = send()
    key = keys.data_manifest(first.hash, first.manifest)
    page = store.store.get(key)
    for number, damaged in enumerate((page[:-5], b"", page[:-1] + b"!")):
        store.store.put(key, damaged)

        assert send(cache=cache / str(number)) == first
        assert store.store.get(key) == page


def test_an_old_manifest_and_its_blobs_are_made_young_again_the_manifest_last(send, store, age, read, calm):
    first = send()
    age(store, "data/", 8 * DAY)
    store.take(), read.clear()

    assert send() == first
    assert read == []
    touched = [key for name, key in store.take() if name == "touch"]
    assert set(touched) == everything(store).keys()
    assert touched[-1] == keys.data_manifest(first.hash, first.manifest)
    assert all(time.time() - entry.modified < DAY for entry in store.entries("data/"))


def test_one_that_is_not_old_yet_is_left_alone(send, store, age):
    send()
    age(store, "data/", 6 * DAY)
    store.take()

    send()

    assert [name for name, _ in store.take()] == ["entry"]


def test_what_is_gone_when_an_old_manifest_is_looked_at_is_sent_again(send, store, age, fetched):
    first = send()
    gone = [key for key in everything(store) if key.startswith("data/blobs/")][::3]
    for key in gone:
        store.store.delete(key)
    age(store, "data/", 8 * DAY)

    ref = send()

    assert fetched(store, ref) == some_files()
    assert all(time.time() - entry.modified < DAY for entry in store.entries(keys.data_manifests(ref.hash)))
    if ref.manifest != first.manifest:
        assert store.entry(keys.data_manifest(first.hash, first.manifest)) is None


def test_blobs_that_are_used_again_after_an_edit_are_made_young(send, store, age, root, fetched):
    send()
    age(store, "data/", 8 * DAY)
    (root / "part 1" / "f001").write_bytes(b"new")

    ref = send()

    needed = {keys.data_blob(blob) for blob in manifest_of(store, ref).blobs()}
    assert all(time.time() - store.entry(key).modified < DAY for key in needed)
    assert fetched(store, ref) == some_files() | {"part 1/f001": b"new"}


def test_a_blob_that_was_cut_short_is_replaced_when_it_is_met(send, store, fetched, cache):
    first = send()
    blobs = [key for key in everything(store) if key.startswith("data/blobs/")]
    for key in blobs:
        store.store.put(key, b"")
    store.store.delete(keys.data_manifests(first.hash))

    assert fetched(store, send()) == some_files()


def test_what_a_job_found_broken_is_sent_again_after_a_recheck(send, store, fetched):
    first = send()
    blobs = sorted(key for key in everything(store) if key.startswith("data/blobs/"))
    whole = everything(store)[blobs[0]]
    store.store.put(blobs[0], bytes(len(whole)))
    store.store.delete(blobs[1])
    store.store.put(blobs[2], b"x")
    assert send() == first  # nobody looks at blobs while the manifest is young

    assert recheck(first, store) == 3

    assert fetched(store, send()) == some_files()
    assert recheck(send(), store) == 0


def test_a_recheck_of_what_is_whole_changes_nothing(send, store):
    ref = send()
    before = everything(store)

    assert recheck(ref, store) == 0
    assert everything(store) == before


def test_a_recheck_without_a_manifest_lets_the_next_ship_send_it(send, store, fetched):
    ref = send()
    store.store.put(keys.data_manifest(ref.hash, ref.manifest), b"damaged")

    assert recheck(ref, store) == 1

    assert fetched(store, send()) == some_files()


# --------------------------------------------------------------------------------------------------- edited meanwhile


def one_edit(path: Path):
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


@pytest.mark.parametrize(
    "edit",
    [one_edit, lambda path: path.write_bytes(path.read_bytes() + b"!"), lambda path: path.write_bytes(b"!")],
    ids=["same size", "longer", "shorter"],
)
@pytest.mark.parametrize("size", [50, 2000])
def test_a_file_that_is_edited_between_hashing_and_sending_is_noticed(send, store, root, monkeypatch, edit, size):
    path = next(path for path, content in some_files().items() if len(content) == size)
    really = file_tree.digest_tree

    def look(*words):
        tree = really(*words)
        edit(root / path)
        return tree

    with monkeypatch.context() as patch:
        patch.setattr(file_tree, "digest_tree", look)
        with pytest.raises(DataChangedError, match=path):
            send()

    assert list(store.store.entries("data/manifests/")) == []
    ref = send()
    assert manifest_of(store, ref).hash == Data(root).content_hash()


@pytest.mark.parametrize("fuse", [False, True])
def test_an_empty_file_is_empty_only_if_that_was_hashed(memory, root, send, monkeypatch, fuse):
    tree = file_tree.digest_tree(str(root), None)
    number = next(number for number, file in enumerate(tree.files) if file.size == 0)
    wrong = tree.digests[: 32 * number] + bytes(32) + tree.digests[32 * number + 32 :]
    monkeypatch.setattr(file_tree, "digest_tree", lambda *_words: tree._replace(digests=wrong))

    with pytest.raises(DataChangedError, match=tree.files[number].relative):
        send(to=memory, fuse=fuse)


def test_a_large_file_that_is_edited_while_its_chunks_go_out_is_noticed(send, store, tmp_path):
    (tmp_path / "large").write_bytes(os.urandom(90_000))  # more chunks than are read before one of them is sent
    edited = []

    def edit(_key):
        if not edited:
            edited.append(True)
            with (tmp_path / "large").open("r+b") as file:
                file.seek(89_999)
                file.write(b"!!")

    store.before_put = edit

    with pytest.raises(DataChangedError, match="large"):
        send(tmp_path / "large")

    assert list(store.store.entries("data/manifests/")) == []


def test_a_file_that_is_removed_while_others_are_sent_is_noticed(send, store, root):
    store.before_put = lambda _key: (root / "part 3" / "f007").unlink(missing_ok=True)

    with pytest.raises(DataChangedError, match="f007"):
        send()

    assert list(store.store.entries("data/manifests/")) == []


def test_data_that_is_not_what_its_hash_said_is_not_sent(send, store, root):
    data = Data(root)
    data.content_hash()
    (root / "part 1" / "f001").write_bytes(b"new")

    with pytest.raises(DataChangedError, match="after its content hash was computed") as caught:
        send(data=data)

    assert f"make a new one: Data({str(root)!r})" in str(caught.value)
    assert store.sent() == []


def test_data_whose_hash_nobody_asked_for_may_change_between_jobs(send, store, root, fetched):
    data = Data(root)
    send(data=data)
    (root / "part 1" / "f001").write_bytes(b"new")

    assert fetched(store, send(data=data))["part 1/f001"] == b"new"


def test_data_that_is_gone_is_missing(send, root):
    data = Data(root)
    root.rename(root.with_name("moved"))

    with pytest.raises(DataMissingError, match="gone"):
        send(data=data)


def test_an_error_of_the_store_promises_nothing_and_is_raised(send, store):
    def refuse(key):
        raise KeyMissingError("the store is on fire")

    store.before_put = refuse

    with pytest.raises(KeyMissingError, match="on fire"):
        send()

    assert everything(store) == {}


# ------------------------------------------------------------------------------------------------------------- mounted


def test_on_this_machine_mounted_data_is_the_very_folder_wherever_the_store_lies(store, root, cache):
    ref = ship(Data(root, fuse=True), store, cache=cache, is_here=True)

    assert (ref.kind, ref.uri, ref.fuse, ref.is_dir) == ("view", str(root), True, True)
    assert store.asked == []


def test_mounted_data_that_is_gone_is_missing(root, tmp_path, cache):
    data = Data(root, fuse=True)
    root.rename(root.with_name("moved"))

    with pytest.raises(DataMissingError):
        ship(data, FileStore(tmp_path / "store"), cache=cache, is_here=True)


def test_elsewhere_mounted_data_lies_there_as_plain_objects(send, memory, root):
    ref = send(to=memory, fuse=True)

    prefix = f"data/trees/{ref.hash}/"
    assert (ref.kind, ref.uri, ref.fuse) == ("prefix", f"{memory.url}/{prefix}", True)
    assert {key.removeprefix(prefix): data for key, data in everything(memory).items() if prefix in key} == some_files()
    assert memory.sent()[-1] == keys.data_tree_marker(ref.hash)


def test_a_mounted_single_file_lies_in_a_folder_of_its_own(send, memory, root):
    ref = send(root / "part 3" / "f007", to=memory, fuse=True)

    assert (ref.kind, ref.is_dir) == ("object", False)
    assert ref.uri == f"{memory.url}/data/trees/{ref.hash}/f007"


def test_unchanged_mounted_data_costs_one_request(send, memory, read, calm):
    ref = send(to=memory, fuse=True)
    memory.take(), read.clear()

    assert send(to=memory, fuse=True) == ref
    assert memory.take() == [("entry", keys.data_tree_marker(ref.hash))]
    assert read == []


def test_mounted_data_is_completed_and_made_young(send, memory, age):
    ref = send(to=memory, fuse=True)
    objects = [key for key in everything(memory) if key.startswith("data/trees/")]
    memory.store.delete(objects[0])
    memory.store.put(objects[5], b"cut short")
    age(memory, "data/", 8 * DAY)
    memory.take()

    assert send(to=memory, fuse=True) == ref

    assert set(memory.sent()) == {objects[0], objects[5], keys.data_tree_marker(ref.hash)}
    assert all(time.time() - entry.modified < DAY for entry in memory.entries("data/"))


@pytest.mark.parametrize("size", [50, 2000])
def test_mounted_data_that_is_edited_meanwhile_has_no_marker(send, memory, root, size):
    path = next(path for path, content in some_files().items() if len(content) == size)

    def edit(_key):
        memory.before_put = lambda _key: None
        (root / path).write_bytes(bytes(size))

    data = Data(root, fuse=True)
    tree = file_tree.digest_tree(str(root), None)
    edit("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_tree, "digest_tree", lambda *_words: tree)
        with pytest.raises(DataChangedError, match=path):
            send(data=data, to=memory)

    assert not any("complete" in key for key in everything(memory))
    assert f"data/trees/{tree.hash}/{path}" not in everything(memory)


def test_a_name_that_no_object_can_have_is_refused_before_anything_is_sent(send, memory, root):
    (root / "line\nbreak").write_bytes(b"")

    with pytest.raises(DataError, match="cannot be mounted"):
        send(to=memory, fuse=True)

    assert memory.sent() == []


def test_doubted_mounted_data_is_looked_at_again(send, memory):
    ref = send(to=memory, fuse=True)
    memory.store.delete(next(key for key in everything(memory) if key.startswith("data/trees/")))

    assert recheck(ref, memory) == 1

    send(to=memory, fuse=True)
    assert len(everything(memory)) == len(some_files()) + 1


# ------------------------------------------------------------------------------------------------------------- telling


def test_what_does_not_travel_is_told_once(send, root, capsys):
    (root / "link").symlink_to("part 1")
    os.mkfifo(root / "pipe")

    send(), send()

    assert capsys.readouterr().err.count(": link/ (a link to a folder), pipe (neither") == 1


def test_more_than_ten_gibibytes_draw_a_warning(send, monkeypatch, capsys):
    monkeypatch.setattr(file_tree, "_LARGE_BYTES", 100)

    send(), send()

    assert capsys.readouterr().err.count("warning: ") == 1


def test_what_takes_long_is_told_with_files_bytes_rate_and_what_was_there(capsys, monkeypatch):
    monkeypatch.setattr(file_tree, "_SLOW_SECONDS", 0.0)

    with file_tree.TransferProgress("sending", "./set", 3, 3000) as told:
        told.add(files=1, done=1000)
        told.add(files=2, there=2000)

    said = capsys.readouterr().err.splitlines()[-1]
    assert "sending ./set took" in said
    assert "3 of 3 files, 3.0 kB of 3.0 kB, " in said
    assert "/s, 2.0 kB already there" in said


def test_without_a_thread_to_tell_it_meanwhile_the_end_is_told(capsys, monkeypatch, no_more_threads):
    monkeypatch.setattr(file_tree, "_SLOW_SECONDS", 0.0)

    with file_tree.TransferProgress("sending", "./set", 3, 3000) as told:
        told.add(files=3, done=3000)

    (said,) = capsys.readouterr().err.splitlines()
    assert "sending ./set took" in said


TELL = """
import sys
from kinetic._blobs import file_tree as telling

telling._SLOW_SECONDS = 0.02
with telling.TransferProgress("sending", "/data/" + 60 * "long", 20_000, 3_000_000_000) as told:
    told._begun -= 12
    told.add(files=3456, done=1_000_000_000, there=1_200_000_000)
    sys.stdin.read()
"""


def test_a_terminal_shows_files_bytes_rate_and_what_was_there_in_eighty_columns():
    ours, theirs = os.openpty()
    line = rb"\rkinetic: sending, \d+ s: 3456/20000 files, 2.2/3.0 GB, [0-9.]+ MB/s, 1.2 GB there \("
    with subprocess.Popen([sys.executable, "-c", TELL], stdin=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            while piece := os.read(ours, 4096):
                shown += piece
                if re.search(line, shown):
                    process.stdin.close()  # ends the transfer
    os.close(ours)

    assert process.returncode == 0
    assert b"\r\x1b[K" in shown[-len(b"kinetic: sending") - 400 :], "the line is gone at the end"


def test_what_takes_a_moment_is_not_told(send, capsys):
    send()

    assert capsys.readouterr().err == ""


def test_sizes_are_told_as_people_say_them():
    sizes = [0, 999, 1000, 2_500_000, 7e9]

    assert [size_text(size) for size in sizes] == ["0 bytes", "999 bytes", "1.0 kB", "2.5 MB", "7.0 GB"]


def test_what_is_remembered_of_another_store_is_not_believed(cache):
    sent = shipping.SentManifest("a", "b", "c", 1)
    shipping.remember_sent(cache, "/root", "memory://one", sent)

    assert shipping.recall_sent(cache, "/root", "memory://one") == sent
    assert shipping.recall_sent(cache, "/root", "memory://other") is None
    assert shipping.recall_sent(cache, "/other", "memory://one") is None


def test_an_object_from_the_future_counts_as_old():
    from kinetic._stores import Entry

    assert sender.is_old(Entry("a", 1, time.time() + 30 * DAY))
    assert not sender.is_old(Entry("a", 1, time.time() + 60))
