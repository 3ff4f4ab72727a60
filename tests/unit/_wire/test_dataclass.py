"""A dataclass of ours is made with its first instance, and is then like every other."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from threading import Barrier
from types import FrameType
from typing import Any

import pytest

from kinetic._wire import dataclass


@dataclass(frozen=True)
class Page:
    kind: str
    self_: int = 3
    lines: list[str] = field(default_factory=list)


class Undecorated(Page):
    pass


@dataclass(frozen=True)
class Unpickled:
    number: int


def test_it_is_made_when_its_first_instance_is() -> None:
    @dataclass(frozen=True)
    class Point:
        x: int
        y: int = 0

    assert "__init__" not in vars(Point)
    assert Point(1) == Point(x=1, y=0)
    assert "__init__" in vars(Point)


def test_an_instance_is_like_that_of_every_dataclass() -> None:
    page = Page("log", lines=["a"])

    assert (page.kind, page.self_, page.lines, Page(kind="log").lines) == ("log", 3, ["a"], [])
    assert dataclasses.replace(page, kind="note") == Page("note", 3, ["a"])
    assert dataclasses.asdict(page) == {"kind": "log", "self_": 3, "lines": ["a"]}
    assert repr(page) == "Page(kind='log', self_=3, lines=['a'])"
    assert copy.copy(page) == pickle.loads(pickle.dumps(page)) == page
    assert Undecorated("log") != page
    with pytest.raises(dataclasses.FrozenInstanceError):
        page.kind = "note"  # type: ignore[misc] # as intended
    with pytest.raises(TypeError, match="kind"):
        Page()  # type: ignore[call-arg] # as intended


def test_the_fields_of_a_class_without_an_instance_are_known() -> None:
    @dataclass
    class Point:
        x: int

    assert [each.name for each in dataclasses.fields(Point)] == ["x"]


def test_an_instance_that_is_unpickled_first_has_its_methods() -> None:
    one, other = (pickle.loads(b"\x80\x04c" + f"{__name__}\nUnpickled\n".encode() + b")\x81.") for _ in range(2))

    one.__dict__["number"] = other.__dict__["number"] = 1

    assert one == other == Unpickled(1)


def test_threads_that_make_the_first_instances_together_get_whole_ones() -> None:
    for _ in range(50):

        @dataclass(frozen=True)
        class Point:
            x: int
            y: list[int] = field(default_factory=list)

        start = Barrier(4)

        def make(number: int, point: type = Point, start: Barrier = start) -> object:
            start.wait()
            return point(number)

        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(make, range(4)))
        assert made == [Point(number) for number in range(4)]


def test_a_class_is_made_anew_after_ctrl_c_at_any_step_of_making_it() -> None:
    steps = 0
    while True:
        steps += 1

        @dataclass(frozen=True)
        class Point:
            x: int
            y: list[int] = field(default_factory=list)
            z: int = field(default=3, compare=False)

        left, own = steps, dict(vars(Point))

        def count(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_name == "_process_class" and event == "line":
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            Point(1)
        except KeyboardInterrupt:
            assert dict(vars(Point)) == own
        finally:
            sys.settrace(before)

        assert (Point(1), Point(1).y, Point(1).z) == (Point(x=1, z=4), [], 3)
        if left > 0:
            break
    assert steps > 50


def twin(decorate: Callable[..., Any]) -> Any:
    class Plain:
        x: int
        y: int = 2
        tags: dict[str, int] = field(default_factory=dict, compare=False)
        secret: str = field(default="", repr=False, compare=False)

    return decorate(frozen=True)(Plain)


def test_what_all_share_says_and_compares_as_the_standard_functions_do() -> None:
    ours, theirs = twin(dataclass), twin(dataclasses.dataclass)

    assert repr(ours(1, tags={"a": 1})) == repr(theirs(1, tags={"a": 1}))
    assert hash(ours(1, 3)) == hash(theirs(1, 3))
    assert ours(1, tags={"a": 1}) == ours(1, secret="s") != ours(2)
    assert ours(1) != theirs(1)
    assert ours(1).tags is not ours(1).tags


@pytest.mark.parametrize(
    ("given", "named"),
    [((), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": 1}), ((1, 2, {}, "", 5), {})],
    ids=["none", "twice", "unknown", "missing", "too many"],
)
def test_arguments_that_do_not_fit_are_refused_as_the_standard_function_does(given: Any, named: Any) -> None:
    for decorate in (dataclass, dataclasses.dataclass):
        with pytest.raises(TypeError):
            twin(decorate)(*given, **named)


def test_what_is_frozen_can_neither_be_set_nor_deleted() -> None:
    page = Page("log")

    with pytest.raises(dataclasses.FrozenInstanceError):
        page.other = 1  # type: ignore[attr-defined] # as intended
    with pytest.raises(dataclasses.FrozenInstanceError):
        del page.kind
