"""Of a pickle that cannot be opened, the part at fault is named by the path to it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from kinetic._wire import pickle_diagnosis


class Fails:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


class Box:
    def __init__(self, inside: object) -> None:
        self.inside = inside


def reading(thing: object) -> Any:
    """Return a function that reads a global and has a value in a closure."""
    space = {"__name__": "__main__", "thing": thing}
    exec("def read(): return thing", space)
    return space["read"]


def closing_over(thing: object) -> Any:
    return lambda: thing


NAMES = {
    "argument 1 → ['grid'][0]": (((1, {"grid": [Fails()]}), {}), ""),
    "argument 'model' → ['inside']['a']": (((), {"model": Box({"a": Fails()})}), ""),
    "global 'thing'": (reading(Fails()), "the function"),
    "a variable that a function closes over": (closing_over(Fails()), "the function"),
}


@pytest.mark.parametrize("path", NAMES)
def test_the_path_leads_to_the_part_that_cannot_be_opened(path: str) -> None:
    value, name = NAMES[path]

    found = pickle_diagnosis.find_unopened(cloudpickle.dumps(value), name)

    assert found == f"{path} (int)"


def test_a_part_whose_module_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_where_it_was_pickled")
    exec("class Thing: pass", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    data = cloudpickle.dumps((([1, module.Thing()],), {}))
    monkeypatch.delitem(sys.modules, module.__name__)

    assert pickle_diagnosis.find_unopened(data) == "argument 0 → [1] (only_where_it_was_pickled.Thing)"


def test_nothing_is_said_of_a_pickle_that_can_be_opened() -> None:
    assert pickle_diagnosis.find_unopened(cloudpickle.dumps(((1,), {}))) == ""


ITSELF: list[Any] = [1]
ITSELF.append({"again": (ITSELF,)})


@pytest.mark.parametrize("most", [7, 20_000])
@pytest.mark.parametrize(
    "value",
    [[], (), {}, (1,), ((), [2]), [["a", None], {"x": (b"1",), 2: {3}}], "x" * 100, b"y", bytearray(b"z"), ITSELF],
)
def test_the_beginning_of_a_repr_is_that_of_python(value: object, most: int) -> None:
    assert pickle_diagnosis.beginning_of_repr(value, most) == repr(value)[:most]


def test_no_more_of_a_repr_is_made_than_is_shown() -> None:
    made = []

    class Part:
        def __repr__(self) -> str:
            made.append(self)
            return "Part()"

    text = pickle_diagnosis.beginning_of_repr({"parts": [[Part()] for _ in range(1000)]}, 50)

    assert (text, len(made)) == ("{'parts': [[Part()], [Part()], [Part()], [Part()],", 4)
