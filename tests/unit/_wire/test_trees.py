"""The format of trees and packs: canonical, verified, and clear about what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import zlib

import pytest

from kinetic._wire import trees
from kinetic.errors import IntegrityError, StoreError

DIGEST = hashlib.sha256(b"content").hexdigest()


def entry(name="a.py", kind="f", size=7, digest=DIGEST):
    return trees.Entry(name, kind, size, digest)


def write_pack(folder, contents, *, compressed=False):
    """Write a pack by hand, as any client may, and return its id and path."""
    data, blobs = bytearray(trees.pack_header()), []
    for raw in contents:
        stored = zlib.compress(raw) if compressed else raw
        blobs.append(trees.Blob(hashlib.sha256(raw).digest(), len(data), len(stored), len(raw), int(compressed)))
        data += stored
    pack, end = trees.pack_end(blobs)
    path = folder / "pack"
    path.write_bytes(bytes(data) + end)
    return pack, path


def open_pack(path, pack):
    return trees.Pack(os.open(path, os.O_RDONLY), pack)


def read_all(path, pack):
    opened = open_pack(path, pack)
    try:
        return [opened.read(blob, "it") for blob in opened.blobs.values()]
    finally:
        opened.close()


def test_a_folder_has_the_same_bytes_whatever_order_its_entries_come_in():
    one, two = entry("b.py"), entry("a.py")

    assert trees.node([one, two]) == trees.node([two, one])


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "line\nbreak", "ünï ☃", "tab\t", "\x7f"])
def test_a_folder_comes_back_as_it_was_written(name):
    entries = [entry("a.py"), entry(name, "x", 3), entry("sub", "d", 9)]

    assert trees.read_node(trees.node(entries), "") == sorted(entries)


def test_a_folder_is_plain_json_that_another_program_can_read():
    page = json.loads(trees.node([entry("é")]))

    assert page == {"kinetic-tree": 1, "entries": [["é", "f", 7, DIGEST]]}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "../x", "a\0b", 3])
def test_a_name_that_leads_out_of_its_folder_is_refused(name):
    data = json.dumps({"kinetic-tree": 1, "entries": [[name, "f", 7, DIGEST]]}).encode()

    with pytest.raises(IntegrityError, match="cannot be"):
        trees.read_node(data, "pkg/")


@pytest.mark.parametrize(
    "bad", [["a", "l", 7, DIGEST], ["a", "f", -1, DIGEST], ["a", "f", 7, "zz"], ["a", "f", 7, DIGEST.upper()]]
)
def test_an_entry_that_no_client_writes_is_refused(bad):
    data = json.dumps({"kinetic-tree": 1, "entries": [bad]}).encode()

    with pytest.raises(IntegrityError, match="'pkg/'"):
        trees.read_node(data, "pkg/")


def test_the_same_name_twice_in_a_folder_is_refused():
    data = json.dumps({"kinetic-tree": 1, "entries": [["a", "f", 7, DIGEST], ["a", "x", 7, DIGEST]]}).encode()

    with pytest.raises(IntegrityError):
        trees.read_node(data, "")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"kinetic-tree":1,"entries":[1]}', b"null"])
def test_bytes_that_are_no_folder_are_refused(data):
    with pytest.raises(IntegrityError, match=r"unreadable|damaged"):
        trees.read_node(data, "")


def test_a_folder_of_a_later_version_says_so():
    with pytest.raises(StoreError, match="another version of kinetic") as caught:
        trees.read_node(b'{"kinetic-tree":2,"entries":[]}', "")

    assert caught.value.code == "pack-version"


@pytest.mark.parametrize("compressed", [False, True])
def test_a_pack_gives_back_every_blob(tmp_path, compressed):
    contents = [b"", b"one", b"two" * 5000]
    pack, path = write_pack(tmp_path, contents, compressed=compressed)

    assert read_all(path, pack) == contents


def test_the_id_of_a_pack_is_the_digest_of_its_index(tmp_path):
    pack, path = write_pack(tmp_path, [b"one"])

    opened = open_pack(path, pack)

    assert hashlib.sha256(opened.index).hexdigest() == pack
    assert trees.read_index(opened.index) == list(opened.blobs.values())
    opened.close()


def test_an_empty_pack_is_a_pack(tmp_path):
    pack, path = write_pack(tmp_path, [])

    opened = open_pack(path, pack)

    assert opened.blobs == {}
    opened.close()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("way", ["read", "copy"])
def test_a_changed_byte_is_found_and_the_file_is_named(tmp_path, compressed, way):
    pack, path = write_pack(tmp_path, [os.urandom(3 << 20)], compressed=compressed)
    data = bytearray(path.read_bytes())
    data[1 << 20] ^= 1
    path.write_bytes(data)
    opened = open_pack(path, pack)
    [blob] = opened.blobs.values()

    with pytest.raises(IntegrityError, match=r"pkg/model\.py is damaged") as caught:
        opened.read(blob, "pkg/model.py") if way == "read" else opened.copy(blob, lambda _: None, "pkg/model.py")

    assert trees.pack_key(pack) in str(caught.value)
    opened.close()


def test_a_pack_that_was_cut_short_is_refused_wherever_it_was_cut(tmp_path):
    pack, path = write_pack(tmp_path, [b"one" * 10, b"two" * 10])
    whole = path.read_bytes()

    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(IntegrityError, match="damaged"):
            open_pack(path, pack)


def test_any_changed_byte_of_a_pack_is_found(tmp_path):
    contents = [b"one" * 10, b"two" * 10]
    pack, path = write_pack(tmp_path, contents)
    whole = path.read_bytes()

    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(StoreError):
            read_all(path, pack)


def test_another_pack_under_this_key_is_refused(tmp_path):
    _, path = write_pack(tmp_path, [b"one"])

    with pytest.raises(IntegrityError, match="its index is damaged"):
        open_pack(path, "0" * 64)


def test_a_pack_of_a_later_version_says_so(tmp_path):
    pack, path = write_pack(tmp_path, [b"one"])
    data = bytearray(path.read_bytes())
    data[7] = 2
    path.write_bytes(data)

    with pytest.raises(StoreError, match="format 2, this version reads format 1") as caught:
        open_pack(path, pack)

    assert caught.value.code == "pack-version"


def test_a_refused_pack_leaves_no_descriptor_open(tmp_path):
    pack, path = write_pack(tmp_path, [b"one"])
    descriptor = os.open(path, os.O_RDONLY)

    with pytest.raises(IntegrityError):
        trees.Pack(descriptor, pack[::-1])

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_compressed_blob_cannot_swell_beyond_what_the_index_promised(tmp_path):
    raw = bytes(50 << 20)
    stored = zlib.compress(raw, 9)
    start = len(trees.pack_header())
    pack, end = trees.pack_end([trees.Blob(hashlib.sha256(raw).digest(), start, len(stored), 100, 1)])
    (tmp_path / "pack").write_bytes(trees.pack_header() + stored + end)
    opened = open_pack(tmp_path / "pack", pack)
    [blob] = opened.blobs.values()

    with pytest.raises(IntegrityError):
        opened.read(blob, "bomb.py")
    opened.close()
