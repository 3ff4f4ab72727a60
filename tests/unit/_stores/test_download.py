"""Objects put together from pieces."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading

import pytest

from kinetic._stores import bucket
from kinetic.errors import StoreUnreachableError


class Pieces:
    """A store of one object that can be made to lie."""

    url = "gs://bucket"

    def __init__(self, data, *, short_from=None, versions=("1",)):
        self.data = data
        self.short_from = short_from
        self.versions = list(versions)

    def piece(self, key, start, length, *, version=None):
        now = self.versions[0]
        if version is not None and version != now:
            raise bucket.ObjectChanged
        if len(self.versions) > 1:
            del self.versions[0]
        end = start + length - (self.short_from is not None and start >= self.short_from)
        return bucket.Piece(self.data[start:end], len(self.data), now)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(bucket, "PIECE", 10)


DATA = bytes(range(95))


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 95])
@pytest.mark.parametrize("start", [0, 1, 10, 15, 95, 200])
@pytest.mark.parametrize("length", [None, 0, 1, 10, 25, 1000])
def test_a_range_of_any_size_is_what_lies_there(size, start, length):
    data = DATA[:size]

    wanted = data[start:] if length is None else data[start : start + length]
    assert bucket.read_range(Pieces(data), "a", start, length) == wanted


def test_a_file_is_the_object(tmp_path):
    bucket.fetch_file(Pieces(DATA), "a", tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == DATA


def test_a_piece_that_is_too_short_is_an_error_and_leaves_nothing(tmp_path):
    short = Pieces(DATA, short_from=50)

    with pytest.raises(StoreUnreachableError, match="too little"):
        bucket.read_range(short, "a", 0, None)
    with pytest.raises(StoreUnreachableError, match="too little"):
        bucket.fetch_file(short, "a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_middle_leaves_nothing_that_cannot_be_freed(monkeypatch):
    left = []
    monkeypatch.setattr(sys, "unraisablehook", left.append)  # asked since Python 3.13; earlier ones keep silent

    for _ in range(3):
        with contextlib.suppress(StoreUnreachableError):
            bucket.read_range(Pieces(DATA, short_from=50), "a", 0, None)
    for thread in threading.enumerate():
        if thread.name.startswith("kinetic-transfer"):
            thread.join(10)  # it may hold what it did last
    gc.collect()

    assert left == []


def test_an_object_that_changes_is_read_again():
    assert bucket.read_range(Pieces(DATA, versions="1223"), "a", 0, None) == DATA


def test_an_object_that_never_rests_is_an_error():
    with pytest.raises(StoreUnreachableError, match="again and again"):
        bucket.read_range(Pieces(DATA, versions=map(str, range(100_000))), "a", 0, None)
