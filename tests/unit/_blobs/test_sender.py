"""One transport for projects and data: a file that is in both is in the store once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kinetic._blobs import sender
from kinetic._data import Data
from kinetic._data.ship import ship as ship_data
from kinetic._project.archive import ship as ship_project
from kinetic._project.root import Plan
from kinetic._runner.data.mounted_data import JobFolders
from kinetic._runner.data.provision import provide
from kinetic._runner.worker.workspace import unpack
from kinetic._stores.files import FileStore
from kinetic._wire import folders

SMALL, LARGE, EMPTY = os.urandom(50_000), os.urandom(250_000), b""


@pytest.fixture(autouse=True)
def little(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sender, "SMALL_BYTES", 100_000)
    monkeypatch.setattr(sender, "CHUNK_BYTES", 100_000)


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "store")


@pytest.fixture
def project(tmp_path, store):
    (tmp_path / "project").mkdir()
    for name, content in (("small.bin", SMALL), ("large.bin", LARGE), ("__init__.py", EMPTY)):
        (tmp_path / "project" / name).write_bytes(content)
    plan = Plan(tmp_path / "project", "", None, ("",))
    return lambda: ship_project(plan, store, cache=tmp_path / "home" / "cache", environ={})


@pytest.fixture
def data(tmp_path, store):
    (tmp_path / "set" / "deep").mkdir(parents=True)
    for name, content in (("deep/weights", LARGE), ("table", SMALL), ("empty", EMPTY)):
        (tmp_path / "set" / name).write_bytes(content)
    return lambda: ship_data(Data(tmp_path / "set"), store, cache=tmp_path / "home" / "cache")


def stored_bytes(store):
    return sum(entry.size for entry in store.entries("data/blobs/"))


@pytest.mark.parametrize("first", ["project", "data"])
def test_a_file_of_a_project_and_of_a_data_folder_is_sent_once(first, project, data, store, tmp_path):
    shipped, ref = (project(), data()) if first == "project" else reversed((data(), project()))

    assert stored_bytes(store) < len(SMALL) + len(LARGE) + 2000, "the bytes of both, once, and one manifest"
    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")
    [folder] = provide([ref], JobFolders(tmp_path / "job", tmp_path / "kept", {}))
    found = [tmp_path / "work" / name for name in ("small.bin", "large.bin", "__init__.py")]
    assert [path.read_bytes() for path in found] == [SMALL, LARGE, EMPTY]
    found = [Path(folder, name) for name in ("table", "deep/weights", "empty")]
    assert [path.read_bytes() for path in found] == [SMALL, LARGE, EMPTY]


def test_a_file_that_moves_within_a_project_or_into_its_data_is_not_sent_again(project, data, store, tmp_path):
    project()
    before = stored_bytes(store)
    (tmp_path / "project" / "small.bin").rename(tmp_path / "project" / "moved.bin")
    (tmp_path / "project" / "large.bin").unlink()

    project()
    data()

    assert stored_bytes(store) < before + 2000


def test_a_blob_that_the_store_lost_is_sent_again_for_both(project, data, store, tmp_path):
    project()
    store.delete("data/blobs/")

    ref = data()
    shipped = project()

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")
    [folder] = provide([ref], JobFolders(tmp_path / "job", tmp_path / "kept", {}))
    assert (tmp_path / "work" / "small.bin").read_bytes() == SMALL
    assert Path(folder, "deep/weights").read_bytes() == LARGE


def test_another_store_is_not_believed_to_have_what_this_one_has(project, data, tmp_path):
    project()
    other = FileStore(tmp_path / "other")

    ship_data(Data(tmp_path / "set"), other, cache=tmp_path / "home" / "cache")

    assert stored_bytes(other) == len(SMALL) + len(LARGE)


def test_a_project_is_whole_though_what_is_remembered_of_its_large_file_was_cut_for_others(
    project, store, tmp_path, monkeypatch
):
    monkeypatch.setattr(sender.Contents, "_MOST", 4)
    while not folders.is_settled(folders.changed_ns(os.stat(tmp_path / "project" / "large.bin")), time.time_ns()):
        time.sleep(0.005)  # until its stamp can be trusted
    project()
    for name in ("one", "two"):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_bytes(os.urandom(1000))
    ship_data(Data(tmp_path / "set"), store, cache=tmp_path / "home" / "cache")
    (tmp_path / "project" / "edited.py").write_text("")

    shipped = project()

    unpack(store, shipped.manifest, shipped.packs, tmp_path / "work")
    assert (tmp_path / "work" / "large.bin").read_bytes() == LARGE
