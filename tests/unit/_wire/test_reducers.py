"""How objects of classes are pickled that neither Python nor cloudpickle knows."""

from __future__ import annotations

import fractions
import io
import pickle
import sys
import types
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import cloudpickle

from kinetic._wire import reducers

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_class_is_looked_up_once_however_many_of_its_objects_are_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up, find = list[type](), reducers._Table._find

    def counted(self: reducers._Table, kind: type) -> object:
        looked_up.append(kind)
        return find(self, kind)

    monkeypatch.setattr(reducers._Table, "_find", counted)

    class Pickler(cloudpickle.Pickler):
        dispatch_table = reducers.extended(cloudpickle.Pickler.dispatch_table)

    file = io.BytesIO()
    Pickler(file).dump([Fraction(number, 7) for number in range(100)])

    assert pickle.loads(file.getvalue())[3] == Fraction(3, 7)
    assert looked_up.count(Fraction) == 1


def test_a_class_whose_metaclass_compares_in_its_own_way_is_looked_up_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Column(type):
        def __eq__(cls, other: object) -> Any:
            raise TypeError("the truth value of a comparison of columns is ambiguous")

        __hash__ = type.__hash__

    text = type.__new__(Column, "Text", (), {"__module__": "fractions"})
    table: Any = reducers.extended(cloudpickle.Pickler.dispatch_table)

    assert table._find(text) is None
    monkeypatch.setattr(fractions, "TEXT", text(), raising=False)
    assert table._find(text) == table._of_mark


def test_an_error_of_a_library_that_says_it_is_pythons_own_is_found_in_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = types.ModuleType("library_of_errors")
    library.__file__ = str(tmp_path / "site-packages" / "library_of_errors.py")
    vars(library)["RuntimeFault"] = fault = type("RuntimeFault", (RuntimeError,), {"__module__": "builtins"})
    monkeypatch.setitem(sys.modules, library.__name__, library)
    made = cloudpickle.Pickler(io.BytesIO()).reducer_override

    make, arguments = reducers.of_class(fault, made(fault))

    assert make(*arguments) is fault
    assert reducers.of_class(type(None), made(type(None))) == made(type(None))
