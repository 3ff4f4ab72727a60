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
