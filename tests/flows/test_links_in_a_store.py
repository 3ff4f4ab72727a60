"""Whoever can write into a store's folder cannot have a plain command list, read, write or delete elsewhere."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from .conftest import Project  # type: ignore[import-not-found,unused-ignore]

OLD = 400 * 24 * 3600.0
ADDS = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def add(a, b):
        return a + b

    if __name__ == "__main__":
        print(add(1, 2))
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of the user's with old files, named and shaped as kinetic's own are."""
    folder = tmp_path / "theirs"
    for name in (
        "photo.jpg",
        "cpu-x-1.json",
        "0" * 64,
        "blobs/ab/photo",
        "manifests/photo",
        "sub/photo.jpg",
        "x.spare",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("dear")
        os.utime(path, (time.time() - OLD, time.time() - OLD))
    return folder


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "name", ["history", "packs", "data", "outputs", "groups", ".tmp", "cpu-add-20250101-000000-aaaaaaa"]
)
def test_a_plain_list_deletes_nothing_behind_a_link_in_the_store(
    project: Project, home: Path, theirs: Path, name: str
) -> None:
    assert project.out(ADDS).splitlines()[-1] == "3"
    before = files(theirs)
    link = home / "store" / name
    if link.exists():
        shutil.rmtree(link)
    link.symlink_to(theirs)
    for mark in (*home.glob("run/*/swept-*"), *home.glob("run/*/tidied-*")):
        mark.unlink()

    listed = project.kinetic("jobs", "list", "--all")
    cleaned = project.kinetic("disk", "--clean")

    assert listed.returncode == 0, listed.stderr
    assert files(theirs) == before, cleaned.stderr
    assert "photo" not in listed.stdout


def test_a_job_is_not_written_through_a_link_in_the_store(project: Project, home: Path, theirs: Path) -> None:
    (home / "store").mkdir(parents=True)
    (home / "store" / ".tmp").symlink_to(theirs)
    before = files(theirs)
    project.write("script.py", ADDS)

    done = project.run("script.py")

    assert done.returncode != 0
    assert "the store refused" in done.stderr
    assert files(theirs) == before
