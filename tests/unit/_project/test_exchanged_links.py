"""Somebody exchanges files and folders of a project for links while it ships: what was judged is what is read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinetic._blobs import fetch, file_tree
from kinetic._project import archive, ignore
from kinetic._project.root import Plan
from kinetic._stores.memory import MemoryStore

SECRET = b"the private key of the victim"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a folder, and beside it what must never ship."""
    for name in ("project/folder", "victim", "project/aside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "victim" / "table.txt").write_bytes(SECRET)
    (tmp_path / "project" / "main.py").write_text("x = 1\n")
    (tmp_path / "project" / "folder" / "table.txt").write_text("harmless, of the project")
    return tmp_path / "project"


@contextmanager
def swapping(swap: Callable[[], None]) -> Iterator[None]:
    """Swap in a loop, on a thread, while the block runs."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            swap()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def shipped(project: Path, cache: Path, number: int) -> bytes:
    """Ship a project into a store of its own, and return all that is there."""
    store = MemoryStore(f"memory://swapped-{os.getpid()}-{cache.name}-{number}")
    archive.ship(Plan(project, "main.py", "", ()), store, cache=cache / str(number), environ={})
    return b"".join(fetch.read_blob(store, entry.key.rpartition("/")[2], "it") for entry in store.entries(""))


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_swapped_for_a_link_in_a_loop_never_ships_what_the_link_leads_to(what, project, tmp_path) -> None:
    real, away = project / "folder", tmp_path / "away"
    target = tmp_path / "victim"
    if what == "file":
        real, target = real / "table.txt", target / "table.txt"
    link = tmp_path / "link"

    def swap() -> None:
        link.symlink_to(target)
        real.rename(away)
        link.rename(real)
        real.unlink()
        away.rename(real)

    with swapping(swap):
        found = [shipped(project, tmp_path, number) for number in range(100)]

    assert not any(SECRET in data for data in found)
    assert all(b"x = 1" in data for data in found)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_link_that_comes_between_the_scan_and_the_reading_is_not_followed_out(what, project, tmp_path) -> None:
    rules, _ = ignore.read_rules(str(project), {})
    walked = file_tree.scan(str(project), ignore.Project(str(project), rules, ()))
    (file,) = [file for folder in walked.folders for file in folder.files if file.relative == "folder/table.txt"]
    (project / "folder" / "table.txt").unlink()
    if what == "folder":
        (project / "folder").rmdir()
        (project / "folder").symlink_to(tmp_path / "victim")
    else:
        (project / "folder" / "table.txt").symlink_to(tmp_path / "victim" / "table.txt")

    with pytest.raises(PermissionError, match="a link to"):
        ignore.Project(str(project), rules, ()).open(file)


def test_a_link_to_a_secret_of_the_project_that_comes_in_between_is_judged_as_the_scan_does(project) -> None:
    (project / ".env").write_bytes(SECRET)
    rules, _ = ignore.read_rules(str(project), {})
    (file,) = [
        file
        for file in file_tree.scan(str(project), ignore.Project(str(project), rules, ())).folders[0].files
        if file.relative == "main.py"
    ]
    (project / "main.py").unlink()
    (project / "main.py").symlink_to(".env")

    with pytest.raises(PermissionError):
        ignore.Project(str(project), rules, ()).open(file)


def test_links_within_the_project_still_ship(project, tmp_path) -> None:
    (project / "alias").symlink_to("folder")
    (project / "other.py").symlink_to("main.py")
    rules, _ = ignore.read_rules(str(project), {})
    opener = ignore.Project(str(project), rules, ())

    for folder in file_tree.scan(str(project), ignore.Project(str(project), rules, ())).folders:
        for file in folder.files:
            descriptor = opener.open(file)
            assert os.read(descriptor, 100) == Path(file.path).read_bytes()
            os.close(descriptor)
