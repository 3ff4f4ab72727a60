"""A call in two pickles: small ones inside the order, large ones in the store, and nothing left behind."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType

import pytest

from kinetic._project import pickler, root
from kinetic._project.pickler import Call, Payload
from kinetic._project.root import Plan
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import digests
from kinetic._wire.order import INLINE_BYTES
from kinetic.errors import ArgumentNotPicklableError, StoreUnreachableError

KEYS = ("cpu-train-1/function", "cpu-train-1/arguments")
PLAN = Plan(Path(__file__).parent, "", "", ("",))


class Unwilling:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self):
        raise self.error


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path):
    return FileStore(tmp_path / "store") if request.param == "files" else MemoryStore(str(tmp_path))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETIC_PAYLOAD_SIZE_WARN_MB", raising=False)


def pack(store, *args, **named) -> Payload:
    return pickler.pack_call(Call(sorted, args, named, "sorted"), PLAN, store, KEYS)


def everything_in(store) -> list[str]:
    return [entry.key for entry in store.entries("")]


def test_a_small_call_travels_inside_the_order(store) -> None:
    payload = pack(store, [3, 1], reverse=True)

    assert pickle.loads(payload.function.unwrap("it")) is sorted
    assert pickle.loads(payload.arguments.unwrap("them")) == (([3, 1],), {"reverse": True})
    assert everything_in(store) == []


def test_large_arguments_go_into_the_store_and_are_known_by_their_digest(store) -> None:
    data = bytes(2 * INLINE_BYTES)

    payload = pack(store, data)

    stored = store.get(KEYS[1])
    assert pickle.loads(stored) == ((data,), {})
    assert (payload.arguments.size, payload.arguments.sha256) == (len(stored), digests.of_bytes(stored))
    assert payload.arguments.key == KEYS[1]
    assert everything_in(store) == [KEYS[1]]


def test_arguments_of_exactly_the_limit_stay_inside(store) -> None:
    overhead = pack(store, bytes(INLINE_BYTES // 2)).arguments.size - INLINE_BYTES // 2

    fits = pack(store, bytes(INLINE_BYTES - overhead))
    does_not = pack(store, bytes(INLINE_BYTES - overhead + 1))

    assert fits.arguments.size == INLINE_BYTES
    assert fits.arguments.key == ""
    assert does_not.arguments.key == KEYS[1]


def test_the_spool_leaves_no_file_behind(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")

    pack(store, bytes(2 * INLINE_BYTES))

    assert [path for path in store.scratch().iterdir() if path.is_file()] == []


def test_a_pickling_that_fails_half_way_leaves_no_file_behind(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")

    with pytest.raises(ArgumentNotPicklableError, match=r"argument 1 → \['queue'\] cannot be pickled"):
        pack(store, bytes(2 * INLINE_BYTES), {"queue": SimpleQueue()})

    assert everything_in(store) == []
    assert [path for path in store.scratch().iterdir() if path.is_file()] == []


def test_the_cause_of_a_refusal_is_kept(store) -> None:
    with pytest.raises(ArgumentNotPicklableError) as raised:
        pack(store, Unwilling(ValueError("I will not")))

    assert str(raised.value.__cause__) == "I will not"
    assert isinstance(raised.value, TypeError)


def test_trouble_with_the_store_is_not_called_trouble_with_pickling(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")

    with pytest.raises(StoreUnreachableError):
        pack(FileStore(tmp_path / "store"), bytes(2 * INLINE_BYTES))


def test_what_the_caller_changes_afterwards_does_not_travel(store) -> None:
    numbers = [1]

    payload = pack(store, numbers)
    numbers.append(2)

    assert pickle.loads(payload.arguments.unwrap("them")) == (([1],), {})


# ------------------------------------------------------------------------------------------------- size


def test_a_call_of_ordinary_size_is_not_worth_a_word(store) -> None:
    assert pack(store, bytes(1_000_000)).notes == ()


def test_a_large_call_is_told_with_its_size_and_a_way_out(store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PAYLOAD_SIZE_WARN_MB", "0.5")

    (note,) = pack(store, bytes(1_000_000)).notes

    assert note.startswith("the function and its arguments are 1 MB (KINETIC_PAYLOAD_SIZE_WARN_MB=0.5)")
    assert 'pass kinetic.Data("file"): the function gets a path' in note


@pytest.mark.parametrize("setting", ["0", "-1", "2", "much", ""])
def test_the_warning_can_be_moved_or_switched_off(store, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("KINETIC_PAYLOAD_SIZE_WARN_MB", setting)

    assert pack(store, bytes(1_000_000)).notes == ()


# ------------------------------------------------------------------------------------------------- the script


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("train.py", "train.py"),
        ("jobs/train.py", "jobs/train.py"),
        ("../elsewhere.py", ""),
        (None, ""),
    ],
)
def test_the_script_is_known_by_its_place_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None, found: str
) -> None:
    main = ModuleType("__main__")
    if file:
        main.__file__ = str(tmp_path / file)
    monkeypatch.setitem(sys.modules, "__main__", main)

    assert root.script_of(Plan(tmp_path, "", "", ("",))) == found
