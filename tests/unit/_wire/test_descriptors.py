"""Nothing is listed, read, written or deleted through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic._wire import folders


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file, and links out of it: to a folder of the user's, to a file there, to nothing."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "photo").write_text("dear")
    folder = tmp_path / "root"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("ours")
    (folder / "a" / "z").write_text("ours, too")
    (folder / "linked").symlink_to(tmp_path / "theirs")
    (folder / "a" / "link").symlink_to(tmp_path / "theirs" / "photo")
    (folder / "broken").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    return folder


def test_a_walk_names_links_and_goes_through_none(root: Path) -> None:
    assert [path for path, _ in folders.walk(root)] == ["a/b/file", "a/link", "a/z", "broken", "linked", "pipe"]
    assert [path for path, _ in folders.walk(root, "linked/")] == []
    assert [path for path, _ in folders.walk(root, "a/", "a/b/file")] == ["a/link", "a/z"]
    assert list(folders.walk(root / "not there")) == []


def test_the_folder_itself_may_be_reached_through_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(root)

    assert os.read(folders.open_file(tmp_path / "elsewhere", "a/z"), 99) == b"ours, too"


@pytest.mark.parametrize("path", ["a/link", "broken", "pipe", "a", "not there"])
def test_only_a_regular_file_is_opened(root: Path, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        folders.open_file(root, path)


def test_no_file_is_opened_and_nothing_made_behind_a_link(root: Path, tmp_path: Path) -> None:
    for use in (
        lambda: folders.open_file(root, "linked/photo"),
        lambda: folders.lstat(root, "linked/photo"),
        lambda: folders.opened(root, "linked/new", make=0o700).__enter__(),
    ):
        with pytest.raises(NotADirectoryError):
            use()
    assert os.listdir(tmp_path / "theirs") == ["photo"]


def test_removing_takes_links_away_and_not_what_they_name(root: Path, tmp_path: Path) -> None:
    (root / "a" / "inner").symlink_to(tmp_path / "theirs")

    assert folders.remove(root, "a/") == 4
    assert folders.remove(root, "linked") == 0
    assert folders.remove(root, "linked/photo") == 0
    assert not (root / "a").exists()
    assert (tmp_path / "theirs" / "photo").read_text() == "dear"


def test_no_descriptor_stays_open(root: Path) -> None:
    before = len(os.listdir("/dev/fd"))

    list(folders.walk(root))
    for path in ("linked/photo", "a/link", "pipe", "a"):
        with pytest.raises(OSError):
            folders.open_file(root, path)
    folders.remove(root, "a")

    assert len(os.listdir("/dev/fd")) == before
