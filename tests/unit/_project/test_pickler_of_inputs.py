"""Inputs on their way into the store: one by one, many to an object, and nothing left behind."""

from __future__ import annotations

import errno
import io
import pickle
from pathlib import Path
from queue import SimpleQueue

import pytest

from kinetic._project import pickler
from kinetic._project.pickler import Call, InputPacker
from kinetic._project.root import Plan
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import digests
from kinetic.errors import ArgumentNotPicklableError, StoreError

PLAN = Plan(Path(__file__).parent, "", "", ("",))


class Raises:
    def __init__(self, error: BaseException, before: object = None) -> None:
        self.error, self.before = error, before

    def __reduce__(self):
        raise self.error


@pytest.fixture(params=["files", "memory"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return FileStore(tmp_path / "store") if request.param == "files" else MemoryStore(str(tmp_path))


def packer(store):
    return InputPacker(PLAN, store, lambda number: f"inputs/{number}")


def opened(store, placed):
    data = store.get(placed.key, start=placed.start, length=placed.size)
    placed.verify(digests.of_bytes(data), "it")
    return pickle.loads(data)


def objects(store):
    return [entry.key for entry in store.entries("inputs/")]


def scraps(store, tmp_path):
    return [*(tmp_path / "store" / ".tmp").glob("*"), *tmp_path.glob("*.inputs")]


def test_each_input_comes_out_of_its_own_range(store, tmp_path):
    with packer(store) as open_:
        placed = [open_.add((number,), {"name": "x" * number}, None) for number in range(50)]

    assert [opened(store, place) for place in placed] == [((n,), {"name": "x" * n}) for n in range(50)]
    assert objects(store) == ["inputs/0"]
    assert scraps(store, tmp_path) == []


def test_a_thousand_share_an_object(store, monkeypatch):
    with packer(store) as open_:
        placed = [open_.add((number,), {}, None) for number in range(2001)]

    assert objects(store) == ["inputs/0", "inputs/1", "inputs/2"]
    assert [opened(store, placed[n])[0] for n in (0, 999, 1000, 2000)] == [(0,), (999,), (1000,), (2000,)]


def test_an_object_is_closed_when_it_is_large(store, monkeypatch):
    monkeypatch.setattr(pickler, "LARGE", 1000)

    with packer(store) as open_:
        placed = [open_.add(("x" * 600,), {}, None) for _ in range(4)]

    assert [place.key for place in placed] == ["inputs/0", "inputs/0", "inputs/1", "inputs/1"]


def test_an_input_that_cannot_be_pickled_names_the_path_to_it_and_harms_no_other(store):
    with packer(store) as open_:
        first = open_.add((1,), {}, None)
        with pytest.raises(ArgumentNotPicklableError, match="SimpleQueue"):
            open_.add(("x" * 100_000, {"deep": [SimpleQueue()]}), {}, None)
        second = open_.add((2,), {}, None)

    assert second.start == first.size
    assert [opened(store, place)[0] for place in (first, second)] == [(1,), (2,)]


@pytest.mark.parametrize("error", [OSError(28, "theirs"), LookupError("theirs")], ids=repr)
def test_whatever_an_input_raises_is_its_own_fault(store, error):
    with packer(store) as open_:
        with pytest.raises(ArgumentNotPicklableError, match="theirs"):
            open_.add((Raises(error),), {}, None)
        kept = open_.add((2,), {}, None)

    assert opened(store, kept) == ((2,), {})


def test_ctrl_c_passes_and_leaves_nothing(store, tmp_path):
    open_ = packer(store)
    open_.add((1,), {}, None)

    with pytest.raises(KeyboardInterrupt), open_:
        open_.add((Raises(KeyboardInterrupt()),), {}, None)

    assert objects(store) == []
    assert scraps(store, tmp_path) == []


def test_a_full_disk_is_told_as_such_and_is_no_input_s_fault(store):
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    with packer(store) as open_:
        open_.add((1,), {}, None)
        kept, open_._file._file = open_._file._file, Full()
        with pytest.raises(StoreError, match="is full"):
            open_.add((2,), {}, None)
        open_._file._file = kept


def test_nothing_is_written_for_no_inputs(store):
    with packer(store):
        pass

    assert objects(store) == []


def call(**kwargs):
    return Call(len, (), kwargs, "len")


def test_a_large_object_that_inputs_share_is_named_with_what_all_of_them_store(store, monkeypatch):
    monkeypatch.delenv("KINETIC_PAYLOAD_SIZE_WARN_MB", raising=False)
    shared, name = bytes(200_000), "x"

    with packer(store) as open_:
        (note,) = open_.repeated(call(a=shared, n=name, i=1), call(a=shared, n=name, i=2), 500)
        others = open_.repeated(call(a=shared, i=1), call(a=bytes(bytearray(shared)), i=2), 500)
        few = open_.repeated(call(a=shared, i=1), call(a=shared, i=2), 5)

    assert note.startswith("each of the 500 inputs stores argument 'a', argument 'n', the same object: together 100 MB")
    assert "kinetic.Data" in note
    assert (others, few) == ([], [])
