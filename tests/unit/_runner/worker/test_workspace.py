"""The project's files in the job: what was promised, or an error that names the file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import zlib

import pytest

from kinetic._project.archive import ship
from kinetic._project.root import Plan
from kinetic._runner.worker.workspace import unpack, written_since
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import trees
from kinetic.errors import IntegrityError, KeyMissingError, StoreError

FILES = {
    "a.py": b"print(1)\n",
    "pkg/__init__.py": b"",
    "pkg/model.py": b"x = 1\n" * 500,
    "large.bin": b"0123456789" * 600_000,
}


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path):
    return FileStore(tmp_path / "store") if request.param == "files" else MemoryStore("workspace")


@pytest.fixture
def shipped(store, tmp_path):
    for path, content in FILES.items():
        (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / path).write_bytes(content)
    (tmp_path / "project" / "a.py").chmod(0o700)
    (tmp_path / "project" / "empty").mkdir()
    return ship(Plan(tmp_path / "project", "", None, ("",)), store, cache=tmp_path / "cache", environ={})


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def put_pack(store, *contents):
    """Store a pack as anybody may who can write to the store, and return its id."""
    data, blobs = bytearray(trees.pack_header()), []
    for raw in contents:
        blobs.append(trees.Blob(hashlib.sha256(raw).digest(), len(data), len(raw), len(raw), 0))
        data += raw
    pack, end = trees.pack_end(blobs)
    store.put(trees.pack_key(pack), bytes(data) + end)
    return pack


def folder_of(*entries):
    return json.dumps({"kinetic-tree": 1, "entries": list(entries)}).encode()


def damage(store, pack, old, new):
    key = trees.pack_key(pack)
    data = store.get(key)
    assert old in data
    store.put(key, data.replace(old, new, 1))


def test_files_folders_and_rights_arrive(store, shipped, tmp_path):
    unpacked = unpack(store, shipped.tree, shipped.packs, tmp_path / "work")

    found = {str(path.relative_to(tmp_path / "work")): path for path in (tmp_path / "work").rglob("*")}
    assert {name: path.read_bytes() for name, path in found.items() if path.is_file()} == FILES
    assert found["empty"].is_dir()
    assert found["a.py"].stat().st_mode & 0o111 == 0o111
    assert found["large.bin"].stat().st_mode & 0o111 == 0
    assert (unpacked.files, unpacked.bytes) == (4, sum(map(len, FILES.values())))


def test_nothing_else_is_left_beside_the_workspace(store, shipped, tmp_path):
    unpack(store, shipped.tree, shipped.packs, tmp_path / "jobs" / "work")

    assert os.listdir(tmp_path / "jobs") == ["work"]


def test_a_damaged_file_is_named(store, shipped, tmp_path):
    damage(store, shipped.packs[0], FILES["large.bin"][:5000], b"0123456780" * 500)

    with pytest.raises(IntegrityError, match=r"large\.bin is damaged"):
        unpack(store, shipped.tree, shipped.packs, tmp_path / "work")


def test_a_damaged_folder_is_named(store, tmp_path):
    inner, content = folder_of(), b"content"
    top = folder_of(["sub", "d", len(inner), digest_of(inner)])
    pack = put_pack(store, top, inner, content)
    damage(store, pack, inner, inner[:-1] + b" ")

    with pytest.raises(IntegrityError, match="the folder 'sub/' is damaged"):
        unpack(store, digest_of(top), [pack], tmp_path / "work")


def test_a_missing_pack_is_an_error_that_says_so(store, shipped, tmp_path):
    store.delete(trees.pack_key(shipped.packs[0]))

    with pytest.raises(KeyMissingError):
        unpack(store, shipped.tree, shipped.packs, tmp_path / "work")


def test_a_pack_that_the_order_does_not_name_is_missed_by_name(store, tmp_path):
    top = folder_of(["a.py", "f", 7, digest_of(b"content")])
    pack = put_pack(store, top)

    with pytest.raises(IntegrityError, match=r"a\.py is missing"):
        unpack(store, digest_of(top), [pack], tmp_path / "work")


def test_an_unknown_tree_is_an_error(store, shipped, tmp_path):
    with pytest.raises(IntegrityError, match="is missing"):
        unpack(store, "0" * 64, shipped.packs, tmp_path / "work")


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "..", ".", "", "a/b", "nul\0"])
def test_a_name_that_leads_out_of_the_workspace_is_refused(store, tmp_path, name):
    top = folder_of([name, "f", 7, digest_of(b"content")])
    pack = put_pack(store, top, b"content")

    with pytest.raises(IntegrityError):
        unpack(store, digest_of(top), [pack], tmp_path / "work")

    assert not list(tmp_path.rglob("evil*"))


def test_a_size_that_is_not_the_content_s_is_refused(store, tmp_path):
    top = folder_of(["a.py", "f", 8, digest_of(b"content")])
    pack = put_pack(store, top, b"content")

    with pytest.raises(IntegrityError, match=r"'a\.py' has the wrong size"):
        unpack(store, digest_of(top), [pack], tmp_path / "work")


def test_a_tree_that_contains_itself_is_impossible_and_one_that_repeats_a_folder_is_not(store, tmp_path):
    leaf = folder_of(["x.txt", "f", 7, digest_of(b"content")])
    top = folder_of(["one", "d", len(leaf), digest_of(leaf)], ["two", "d", len(leaf), digest_of(leaf)])
    pack = put_pack(store, top, leaf, b"content")

    assert unpack(store, digest_of(top), [pack], tmp_path / "work").files == 2


def test_a_file_that_lies_there_already_is_not_written_over_nor_followed(store, shipped, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.py").symlink_to(tmp_path / "victim")

    with pytest.raises(StoreError, match="cannot be written"):
        unpack(store, shipped.tree, shipped.packs, tmp_path / "work")

    assert not (tmp_path / "victim").exists()


def test_a_compressed_pack_arrives_as_well(store, tmp_path):
    raw = b"text " * 1000
    top = folder_of(["a.txt", "f", len(raw), digest_of(raw)])
    data, blobs = bytearray(trees.pack_header()), []
    for content in (top, raw):
        small = zlib.compress(content, 1)
        blobs.append(trees.Blob(hashlib.sha256(content).digest(), len(data), len(small), len(content), 1))
        data += small
    pack, end = trees.pack_end(blobs)
    store.put(trees.pack_key(pack), bytes(data) + end)

    unpack(store, digest_of(top), [pack], tmp_path / "work")

    assert (tmp_path / "work" / "a.txt").read_bytes() == raw


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_is_said_plainly(store, shipped, tmp_path):
    (tmp_path / "small").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path / "small")]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(StoreError, match="workspace is full") as caught:
            unpack(store, shipped.tree, shipped.packs, tmp_path / "small" / "work")
    finally:
        subprocess.run(["umount", str(tmp_path / "small")], check=True)

    assert caught.value.code == "workspace-full"


def test_what_the_job_wrote_is_named_and_nothing_else(store, shipped, tmp_path):
    work = tmp_path / "work"
    unpacked = unpack(store, shipped.tree, shipped.packs, work)
    assert written_since(work, unpacked) == []

    (work / "model.keras").write_bytes(b"weights")
    (work / "empty" / "log.txt").write_text("")
    (work / "a.py").write_text("print(2)\n")  # as long as before
    (work / "pkg" / "model.py").unlink()
    (work / "pkg" / "__pycache__").mkdir()
    (work / "pkg" / "__pycache__" / "model.pyc").touch()
    (work / "large.bin").replace(work / "renamed.bin")
    (work / "link").symlink_to("nowhere")

    assert written_since(work, unpacked) == ["a.py", "empty/log.txt", "link", "model.keras", "renamed.bin"]


def test_reading_and_changing_rights_are_no_writing(store, shipped, tmp_path):
    unpacked = unpack(store, shipped.tree, shipped.packs, tmp_path / "work")
    (tmp_path / "work" / "a.py").read_bytes()
    (tmp_path / "work" / "a.py").chmod(0o600)

    assert written_since(tmp_path / "work", unpacked) == []


def test_a_workspace_that_is_gone_has_no_new_files(store, shipped, tmp_path):
    unpacked = unpack(store, shipped.tree, shipped.packs, tmp_path / "work")
    (tmp_path / "work").rename(tmp_path / "elsewhere")

    assert written_since(tmp_path / "work", unpacked) == []
