"""One walk for both sides: finds what stands for data in arguments, and puts paths in its place."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from kinetic._wire import references


class Wanted:
    """Stands for data."""


class Pair(NamedTuple):
    left: object
    right: object


@dataclass
class Config:
    path: object
    more: list = field(default_factory=list)


def find(*args, **kwargs):
    return [
        (spot.position, spot.where)
        for spot in references.find_objects(args, kwargs, lambda value: isinstance(value, Wanted))
    ]


def test_every_place_has_the_name_that_a_human_would_give_it():
    found = find(
        Wanted(),
        [1, (2, {"train": Wanted()})],
        Pair(Wanted(), 1),
        Config(Wanted(), [Wanted()]),
        config={"deep": [{"er": Wanted()}]},
        alone=Wanted(),
    )

    assert found == [
        ("argument 0", "value"),
        ("argument 1[1][1]['train']", "value"),
        ("argument 2[0]", "value"),
        ("argument 3.path", "value"),
        ("argument 3.more[0]", "value"),
        ("argument 'config'['deep'][0]['er']", "value"),
        ("argument 'alone'", "value"),
    ]


def test_members_of_sets_and_keys_are_told_apart_and_so_is_what_lies_below_them():
    found = find({Wanted()}, frozenset({(1, Wanted())}), {Wanted(): 1}, {(Wanted(),): Wanted()})

    assert [where for _, where in found] == ["set", "set", "key", "key", "value"]


def test_an_object_that_is_reached_twice_is_named_once_and_one_in_a_set_as_well_is_named_for_both():
    shared = Wanted()

    assert find([shared, shared], shared) == [("argument 0[0]", "value")]
    assert sorted(where for _, where in find([shared], {shared})) == ["set", "value"]


def test_cycles_end_and_depth_is_no_limit():
    around = [Wanted()]
    around.append(around)
    deep = Wanted()
    for _ in range(50_000):
        deep = [deep]

    assert find(around) == [("argument 0[0]", "value")]
    assert len(find(deep)) == 1


def test_a_field_that_makes_its_value_on_each_access_hides_nothing():
    @dataclass
    class Fresh:
        one: object

        @property
        def one(self):
            return [Wanted()]

        @one.setter
        def one(self, value):
            pass

    many = [Fresh(None) for _ in range(50)]

    assert len(find(many)) == 50


def test_a_field_that_was_never_set_is_passed_over():
    assert find(Config.__new__(Config)) == []


LEAVES = {"number": 5, "text": "text", "bytes": b"bytes", "None": None, "object": object(), "class": Wanted, "len": len}


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES)
def test_anything_else_is_a_leaf(leaf):
    assert find(leaf) == []


def test_leaves_are_replaced_and_types_shared_objects_and_cycles_stay():
    wanted, kept = Wanted(), object()
    shared = [wanted]
    whole = {
        "pair": Pair(wanted, kept),
        "order": OrderedDict(a=wanted),
        "default": defaultdict(list, b=[wanted]),
        "config": Config(wanted, shared),
        "shared": shared,
    }
    whole["self"] = whole

    found = references.replace_leaves(whole, lambda leaf: "path" if leaf is wanted else leaf)

    assert found["pair"] == Pair("path", kept)
    assert type(found["pair"]) is Pair
    assert found["order"] == OrderedDict(a="path")
    assert type(found["order"]) is OrderedDict
    assert found["default"]["b"] == ["path"]
    assert found["default"].default_factory is list
    assert found["config"].path == "path"
    assert found["config"].more is found["shared"]
    assert found["self"] is found
    assert found["pair"].right is kept
    assert whole["shared"] == [wanted]  # the caller's own containers are as they were
