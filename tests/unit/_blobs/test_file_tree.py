"""What is remembered of files between two calls, and when an equal stamp may be trusted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic._blobs import file_tree
from kinetic._wire import folders

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("changed", "read_at", "settled"),
    [
        (100 * SECOND, 101 * SECOND, False),  # in whole seconds: the clock may be coarse
        (100 * SECOND, 103 * SECOND, True),
        (100 * SECOND + 1, 100 * SECOND + 10_000_000, False),
        (100 * SECOND + 1, 100 * SECOND + 30_000_000, True),
        (200 * SECOND + 1, 100 * SECOND, False),  # from the future
    ],
)
def test_a_stamp_is_trusted_only_when_it_is_older_than_the_clock_of_the_disk_can_tell(
    changed: int, read_at: int, settled: bool
) -> None:
    about = SimpleNamespace(st_mtime_ns=changed, st_ctime_ns=changed - SECOND)

    assert folders.is_settled(folders.changed_ns(about), read_at) is settled


def test_digests_are_found_again_by_their_records(tmp_path: Path) -> None:
    path, records, found = str(tmp_path / "a.stamps"), ["a\0one", "b\0two"], [b"1" * 32, b"2" * 32]
    file_tree.Digests(path, "/root", records).write(records, found)

    again = file_tree.Digests(path, "/root", records)

    assert again.whole() == b"".join(found)
    assert again.each() == dict(zip(records, found, strict=True))
    assert file_tree.Digests(path, "/root", ["a\0one", "b\0three"]).whole() is None
    assert file_tree.Digests(path, "/other", records).each() == {}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:-1] + b"x", lambda _: b"{}\n", lambda _: b""]
)
def test_damaged_digests_are_not_believed(tmp_path: Path, damage) -> None:
    path, records = tmp_path / "a.stamps", ["a", "b"]
    file_tree.Digests(str(path), "/root", records).write(records, [b"1" * 32, b"2" * 32])
    path.write_bytes(damage(path.read_bytes()))

    assert file_tree.Digests(str(path), "/root", records).each() == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"kinetic-cache":99,"a":1}', '{"a":1}', "[" * 100_000])
def test_a_foreign_page_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "page").write_text(text)

    assert file_tree.read_page(tmp_path / "page") == {}


def test_a_page_comes_back(tmp_path: Path) -> None:
    file_tree.write_page(tmp_path / "page", {"a": 1})

    assert file_tree.read_page(tmp_path / "page") == {"a": 1}
