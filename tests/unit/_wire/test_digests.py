"""The digest of a log: of all its bytes, however they came, and of the blocks of its end."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest

from kinetic._wire import digests

MIB = 1 << 20


def hashed(*pieces: bytes) -> digests.LogDigest:
    hasher = digests.LogHasher()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest(0, 0)


@pytest.mark.parametrize("cuts", [[], [1], [MIB], [MIB - 1, MIB + 1], [5, 2 * MIB, 3 * MIB], [2 * MIB, 2 * MIB]])
def test_the_pieces_in_which_a_log_came_do_not_matter(cuts) -> None:
    data = bytes(range(256)) * (3 * MIB // 256) + b"end"
    places = itertools.pairwise([0, *cuts, len(data)])

    assert hashed(*[data[a:b] for a, b in places]) == hashed(data)


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 11 * MIB, 12 * MIB + 5])
def test_a_digest_is_that_of_the_digests_of_all_blocks_and_knows_the_last_eleven(size, tmp_path: Path) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    (tmp_path / "log").write_bytes(data)
    blocks = [hashlib.sha256(data[at : at + MIB]) for at in range(0, size, MIB)]

    found = digests.of_log(tmp_path / "log", 2, 3)

    assert (found.attempt, found.host, found.size_bytes) == (2, 3, size)
    assert found.sha256 == hashlib.sha256(b"".join(block.digest() for block in blocks)).hexdigest()
    assert found.blocks == tuple(block.hexdigest() for block in blocks[-11:])


def test_a_digest_can_be_taken_before_the_end(tmp_path: Path) -> None:
    hasher = digests.LogHasher()
    hasher.update(b"first ")

    assert hasher.digest(0, 0) == hashed(b"first ")
    hasher.update(b"second")
    assert hasher.digest(0, 0) == hashed(b"first second")


def test_a_log_that_is_not_there_is_an_empty_one(tmp_path: Path) -> None:
    assert digests.of_log(tmp_path / "none", 0, 0) == hashed()
