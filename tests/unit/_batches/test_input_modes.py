"""Inputs: how each becomes the arguments of one call."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import pytest

from kinetic._batches import submission
from kinetic._batches.batch_handle import BatchHandle
from kinetic._jobs.handle import JobHandle
from kinetic._project.pickler import check_arguments
from kinetic.errors import CallableError, OptionError, OptionTypeError


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    ("item", "mode", "args", "kwargs"),
    [
        ({"lr": 0.01, "wd": 1e-4}, "auto", (), {"lr": 0.01, "wd": 1e-4}),
        ([0.01, 32], "auto", (0.01, 32), {}),
        ((0.01, 32), "auto", (0.01, 32), {}),
        (Point(1, 2), "auto", (1, 2), {}),
        (0.01, "auto", (0.01,), {}),
        ("text", "auto", ("text",), {}),
        (None, "auto", (None,), {}),
        ({}, "auto", (), {}),
        ([], "auto", (), {}),
        (OrderedDict(lr=1), "auto", (), {"lr": 1}),
        ({"not-an-id": 1}, "auto", ({"not-an-id": 1},), {}),
        ({"class": 1}, "auto", ({"class": 1},), {}),
        ({"ok": 1, "class": 1}, "auto", ({"ok": 1, "class": 1},), {}),
        ({1: 2}, "auto", ({1: 2},), {}),
        ({"match": 1}, "auto", (), {"match": 1}),  # a soft keyword can be the name of a parameter
        ({"größe": 1}, "auto", (), {"größe": 1}),
        ({"lr": 0.01}, "single", ({"lr": 0.01},), {}),
        ([1, 2], "single", ([1, 2],), {}),
        ([1, 2], "args", (1, 2), {}),
        ((1, 2), "args", (1, 2), {}),
        ({"lr": 0.01}, "kwargs", (), {"lr": 0.01}),
        ({"class": 1}, "kwargs", (), {"class": 1}),
    ],
)
def test_an_item_becomes_arguments_by_its_mode(item, mode, args, kwargs):
    found = submission.arguments_of(item, mode)

    assert (found.args, dict(found.kwargs)) == (args, kwargs)


@pytest.mark.parametrize(
    ("item", "mode"), [({"lr": 1}, "args"), (5, "args"), ("ab", "args"), ([1], "kwargs"), (5, "kwargs")]
)
def test_an_item_of_the_wrong_type_is_a_type_error(item, mode):
    with pytest.raises(TypeError, match="the input"):
        submission.arguments_of(item, mode)


def test_a_key_that_is_no_text_is_told_and_does_not_become_python_s_own_error():
    with pytest.raises(CallableError, match="has the key 1, which is not a string"):
        submission.checked_arguments({1: 2}, "kwargs", (), lambda args, kwargs: None)


def test_arguments_are_checked_together_with_the_instance_of_a_bound_method():
    def scaled(self, number):
        return self, number

    def check(args, kwargs):
        check_arguments(scaled, args, kwargs, "scaled")

    found = submission.checked_arguments(5, "auto", ("me",), check)

    assert found.args == ("me", 5)
    with pytest.raises(CallableError, match="cannot be called like this") as raised:
        submission.checked_arguments([5, 6], "auto", ("me",), check)
    assert raised.value.next == 'if each input is one argument: run_async_map(…, input_mode="single")'


@pytest.mark.parametrize("mode", ["", "AUTO", None, 3])
def test_a_mode_that_is_none_names_those_that_are(mode):
    with pytest.raises(OptionError, match="auto, single, args, kwargs"):
        submission.check_mode(mode)


def test_inputs_are_gone_through_once_and_there_is_at_least_one():
    assert submission.input_list(number * 2 for number in range(3)) == [0, 2, 4]
    assert submission.input_list({"a": 1}) == ["a"]
    with pytest.raises(ValueError, match="there are no inputs"):
        submission.input_list([])
    with pytest.raises(OptionTypeError, match="not a collection"):
        submission.input_list(5)
    with pytest.raises(OptionTypeError, match=r"'a\.csv' is one text"):
        submission.input_list("a.csv")


def test_what_an_iterable_raises_on_its_way_is_its_own_error():
    def broken():
        yield 1
        raise LookupError("theirs")

    with pytest.raises(LookupError, match="theirs"):
        submission.input_list(broken())


def test_a_handle_in_an_input_is_shown_by_its_id():
    names = ("job_id", "backend", "project", "cluster_name", "zone", "namespace", "bucket_name", "k8s_name")
    others = ("image_uri", "accelerator", "func_name", "display_name", "created_at")
    job = JobHandle(**{**dict.fromkeys((*names, *others), "x"), "job_id": "cpu-make-1"})
    batch = BatchHandle("grp-0a1b2c3d", None, {}, [])

    assert submission.input_repr(batch) == "grp-0a1b2c3d"
    assert submission.input_repr({"parts": batch, "rate": 0.5}) == "{'parts': grp-0a1b2c3d, 'rate': 0.5}"
    assert submission.input_repr((job, 2)) == "(cpu-make-1, 2)"
    assert submission.input_repr(submission.Arguments((job,), {"of": [batch]})) == "(cpu-make-1, of=[grp-0a1b2c3d])"


def test_a_text_of_an_input_is_short_on_one_line_and_never_fails():
    class Rude:
        def __repr__(self):
            raise RuntimeError("no")

    assert submission.input_repr({"lr": 0.1}) == "{'lr': 0.1}"
    assert submission.input_repr(Rude()) == "<Rude, whose repr raises RuntimeError>"
    assert len(submission.input_repr("x" * 500)) == 80
    assert submission.input_repr("x" * 500).endswith("…")
    assert "\n" not in submission.input_repr(type("Tall", (), {"__repr__": lambda self: "a\nb"})())
