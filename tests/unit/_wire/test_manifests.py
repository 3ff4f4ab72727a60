"""The format of manifests and blobs: canonical, verified, and clear about what is wrong."""

from __future__ import annotations

import hashlib
import json
import zlib

import pytest

from kinetic._wire import order
from kinetic._wire.order import Manifest, ManifestFile, Part
from kinetic.errors import IntegrityError

BLOBS = ("1" * 64, f"{'2' * 64}.z")


def project(path="pkg/a.py", size=7, parts=((BLOBS[1], 3, 7),)):
    file = ManifestFile(path, executable=True, size=size, digest="", packed=True, parts=tuple(Part(*p) for p in parts))
    return Manifest("3" * 64, is_dir=True, files=(file,), folders=("empty",))


def read(data, **options):
    return Manifest.from_bytes(data, sha256=hashlib.sha256(data).hexdigest(), **options)


def test_a_manifest_comes_back_as_it_was_written():
    assert read(project().to_bytes()) == project()
    assert read(project().to_bytes(BLOBS), blobs=BLOBS) == project()


def test_the_manifest_of_a_project_names_its_own_blob_by_number():
    unnamed = project(parts=(("", 3, 7),)).to_bytes([BLOBS[0], ""])

    assert read(unnamed, blobs=BLOBS) == project()


def test_a_manifest_is_plain_json_that_another_program_can_read():
    page = json.loads(project("é").to_bytes())

    assert page == {
        "data": 1,
        "hash": "3" * 64,
        "is_dir": True,
        "blobs": [BLOBS[1]],
        "files": [["é", 1, 7, "", 1, [[0, 3, 7]]]],
        "folders": ["empty"],
    }


@pytest.mark.parametrize("path", ["", ".", "..", "a/../b", "/etc", "../x", "a\0b", "a//b", 3])
def test_a_path_that_leads_out_of_the_tree_is_refused(path):
    with pytest.raises(IntegrityError, match="not a path inside a tree"):
        read(project(path).to_bytes())


@pytest.mark.parametrize("blob", ["", "x", "../" + "1" * 61, "1" * 63, "1" * 64 + ".zz", 3])
def test_what_is_not_the_name_of_a_blob_is_refused(blob):
    with pytest.raises(IntegrityError, match="not the name of a blob"):
        read(project(parts=((blob, 3, 7),)).to_bytes())


@pytest.mark.parametrize("parts", [((BLOBS[0], 0, 6),), ((BLOBS[0], -1, 7),), ()])
def test_parts_that_do_not_make_up_the_size_are_refused(parts):
    with pytest.raises(IntegrityError, match="do not make up its size"):
        read(project(parts=parts).to_bytes())


def test_a_blob_that_the_order_does_not_name_is_refused():
    with pytest.raises(IntegrityError, match="the project is damaged"):
        read(project().to_bytes(BLOBS), blobs=BLOBS[:1])


def test_another_page_than_the_promised_one_is_refused():
    with pytest.raises(IntegrityError, match="is not what was submitted"):
        Manifest.from_bytes(project().to_bytes(), sha256="0" * 64)


def test_a_later_version_is_refused():
    with pytest.raises(IntegrityError, match="this kinetic reads 1"):
        read(project().to_bytes().replace(b'"data":1', b'"data":2'))


def test_what_is_compressed_never_becomes_larger_than_a_pack_may_be():
    bomb = zlib.compress(bytes(order.MOST_COMPRESSED_BYTES * 10))

    assert len(order.inflate(bomb)) == order.MOST_COMPRESSED_BYTES + 1
    assert order.inflate(zlib.compress(b"text")) == b"text"
    assert order.inflate(b"not compressed") == b""
