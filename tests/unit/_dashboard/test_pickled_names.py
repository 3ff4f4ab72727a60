"""The names of a call's arguments, read from its pickle without running it."""

from __future__ import annotations

import os
import pickle

import cloudpickle
import pytest

from kinetic._dashboard import pickled_names


class Thing:
    def __init__(self, value):
        self.value = value


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


CALLS = [
    ((), {}),
    ((1,), {}),
    ((1, "two", 3.0, None, [4], {"five": 5}), {}),
    ((), {"lr": 0.1}),
    ((), {"lr": 0.1, "seed": 3, "lr2": {"lr": [1, {"x": 2}]}, "größe": (1, 2, 3, 4, 5)}),
    ((Thing(1), {1, 2}, b"x" * 70_000), {"thing": Thing([1, 2]), "again": "thing", "f": len}),
    (tuple(range(300)), {f"name{number}": number for number in range(300)}),
]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_arguments_are_counted_and_keywords_named(call, protocol):
    found = pickled_names.read(pickle.dumps(call, protocol))

    assert found == (len(call[0]), tuple(call[1]))


def test_closures_and_classes_of_a_script_are_passed_over():
    size = 3
    data = cloudpickle.dumps(((lambda x: x + size,), {"make": type("Local", (), {"a": 1})}))

    assert pickled_names.read(data) == (1, ("make",))


def test_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert pickled_names.read(pickle.dumps(((Bomb(),), {"bomb": Bomb()}))) == (1, ("bomb",))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80\x05", pickle.dumps(7), pickle.dumps((1, 2)), pickle.dumps(((1,), {}))[:-3], b"\xff" * 50, b"0" * 50],
)
def test_what_is_no_call_has_no_names(data):
    assert pickled_names.read(data) is None
