"""Processes that die or race while they send: nothing is lost or promised too early, and no blob goes twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kinetic
from kinetic._blobs import sender
from kinetic._data import Data
from kinetic._data.ship import ship
from kinetic._stores.files import FileStore
from kinetic.errors import StoreError

LAST, MANIFEST = 50, 51  # the last blob, and what is written after it

# Sends a folder, and dies by SIGKILL around the n-th object that is written: before it, in the middle of its bytes, or
# after it; or in the middle of writing what it remembers.
CHILD = """
import itertools, os, signal, sys
from pathlib import Path
from kinetic._data import Data
from kinetic._blobs import sender as sending
from kinetic._data.ship import ship
from kinetic._stores.files import FileStore

root, store, cache, number, moment = sys.argv[1:6]
sending.SMALL_BYTES, sending.PACK_BYTES, sending.CHUNK_BYTES = 400, 1000, 300
counter = itertools.count(1)  # one for all threads

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(FileStore):
    def put(self, key, source, *, if_absent=False):
        mine = next(counter) == int(number)
        if mine and moment == "before":
            die()
        if mine and moment == "within":
            data = bytes(source)
            def chunks():
                yield data[: len(data) // 2]
                die()
            source = chunks()
        written = super().put(key, source, if_absent=if_absent)
        if mine and moment == "after":
            die()
        return written

if moment == "remembering":
    os.replace = lambda *_: die()
print("go", flush=True)
sys.stdin.readline()
ref = ship(Data(root), Dying(Path(store)), cache=Path(cache))
print(ref.manifest)
"""


@pytest.fixture
def start(tmp_path, root):
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}
    children = []

    def started(number: int = 0, moment: str = "never", cache: str = "cache") -> subprocess.Popen[str]:
        words = [sys.executable, "-c", CHILD, root, tmp_path / "store", tmp_path / cache, str(number), moment]
        child = subprocess.Popen(
            words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout.readline() == "go\n"
        return child

    yield started
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def files():
    dice = random.Random(3)
    sizes = [0, 1, 50, 399, 400, 601, 2000]
    return {f"part {n % 3}/f{n:02}": dice.randbytes(sizes[n % len(sizes)]) for n in range(28)}


@pytest.fixture
def root(tmp_path, fill, files):
    return fill(tmp_path / "set", files)


def blobs(folder: Path) -> dict[str, tuple[int, int]]:
    """The blobs of a store by name, with what tells whether one was written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("data/blobs/*")}


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("moment", ["before", "within", "after"])
@pytest.mark.parametrize("number", [1, 4, 13, LAST, MANIFEST])
def test_what_a_killed_process_sent_is_not_sent_again(start, tmp_path, root, files, fetched, number, moment):
    alone = FileStore(tmp_path / "alone")
    expected = ship(Data(root), alone, cache=tmp_path / "cache of alone")
    assert len(blobs(alone.root)) == LAST
    child = start(number, moment)
    child.communicate("\n")
    assert child.returncode == -signal.SIGKILL
    left = blobs(tmp_path / "store")
    promised = list((tmp_path / "store").glob("data/manifests/*/*"))
    assert len(promised) == (number == MANIFEST and moment == "after")

    store = FileStore(tmp_path / "store")
    ref = ship(Data(root), store, cache=tmp_path / "cache")

    assert ref.manifest == expected.manifest
    assert fetched(store, ref) == files
    now = blobs(tmp_path / "store")
    assert {name: now[name] for name in left} == left
    assert now.keys() == blobs(alone.root).keys()


def test_a_process_that_is_killed_while_it_remembers_costs_no_byte(start, tmp_path, root, files, fetched):
    # The stamps come first; files that were written this moment are not in them, so it dies after the manifest.
    child = start(moment="remembering")
    child.communicate("\n")
    assert child.returncode == -signal.SIGKILL
    left = blobs(tmp_path / "store")

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SMALL_BYTES", 400), ("PACK_BYTES", 1000), ("CHUNK_BYTES", 300)):
            patch.setattr(sender, name, value)
        store = FileStore(tmp_path / "store")
        ref = ship(Data(root), store, cache=tmp_path / "cache")

    assert fetched(store, ref) == files
    now = blobs(tmp_path / "store")
    assert {name: now[name] for name in left} == left


@pytest.mark.parametrize("caches", [["cache", "cache"], ["one", "other"]])
def test_two_processes_that_send_one_tree_at_once_agree(start, tmp_path, root, files, fetched, caches):
    both = [start(cache=cache) for cache in caches]

    for child in both:
        child.stdin.write("\n")
        child.stdin.flush()
    told = [child.communicate() for child in both]

    assert [child.returncode for child in both] == [0, 0], told
    first, second = (out.strip() for out, _ in told)
    assert first == second
    store = FileStore(tmp_path / "store")
    ref = ship(Data(root), store, cache=tmp_path / "cache")
    assert ref.manifest == first
    assert fetched(store, ref) == files
    assert list((tmp_path / "store" / ".tmp").iterdir()) == []


def test_one_that_is_killed_beside_another_does_it_no_harm(start, tmp_path, files, fetched, root):
    doomed, other = start(7, "within"), start()

    for child in (doomed, other):
        child.stdin.write("\n")
        child.stdin.flush()
    told, _ = other.communicate()
    doomed.communicate()

    assert other.returncode == 0
    assert doomed.returncode in {-signal.SIGKILL, 0}  # 0: the other one had written all before its seventh write
    store = FileStore(tmp_path / "store")
    ref = ship(Data(root), store, cache=tmp_path / "cache")
    assert ref.manifest == told.strip()
    assert fetched(store, ref) == files


def test_many_threads_that_write_into_a_new_store_at_once_all_make_its_folders(tmp_path):
    for number in range(25):
        store = FileStore(tmp_path / str(number) / "some" / "store")
        gate, failed = threading.Barrier(8), []

        def put(key: str, store=store, gate=gate, failed=failed) -> None:
            gate.wait()
            try:
                store.put(f"data/blobs/{key}", b"x")
            except StoreError as error:
                failed.append(error)

        threads = [threading.Thread(target=put, args=(str(key),)) for key in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failed == []
