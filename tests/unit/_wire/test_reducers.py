"""How objects of classes are pickled that neither Python nor cloudpickle knows."""

from __future__ import annotations

import io
import pickle
from fractions import Fraction
from typing import TYPE_CHECKING

import cloudpickle

from kinetic._wire import reducers

if TYPE_CHECKING:
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
