"""Files for their owner only, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic._wire import folders


def test_a_file_is_replaced_whole_and_the_folders_above_it_are_made(tmp_path: Path):
    path = tmp_path / "one" / "two" / "page"

    folders.write_whole(path, b"first")
    folders.write_whole(path, b"second")

    assert path.read_bytes() == b"second"
    assert os.listdir(path.parent) == ["page"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_that_cannot_take_its_place_leaves_nothing_beside_it(tmp_path: Path):
    (tmp_path / "page" / "in the way").mkdir(parents=True)

    with pytest.raises(OSError, match="page"):
        folders.write_whole(tmp_path / "page", b"data")

    assert os.listdir(tmp_path) == ["page"]


def test_below_a_file_nothing_is_written(tmp_path: Path):
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        folders.write_whole(tmp_path / "file" / "page", b"data")
