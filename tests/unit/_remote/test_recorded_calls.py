"""A function of the user's that submits one job for each input becomes one batch."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

import kinetic
from kinetic._batches import submission
from kinetic._remote import callable as remote_callable
from kinetic._remote import recorded_calls
from kinetic.errors import CallableError, OptionError


@kinetic.run(accelerator="cpu")
def train(rate, epochs=1):
    raise AssertionError("nothing runs here")


@kinetic.run(accelerator="cpu")
def other(rate):
    raise AssertionError("nothing runs here")


def recorded(function, items, mode="auto"):
    remote, calls = recorded_calls.record_inputs(function, items, mode)
    assert remote.is_alike(train)
    return [(call.args, call.kwargs) for call in calls]


def test_a_function_that_submits_becomes_the_calls_that_it_makes():
    assert recorded(lambda rate: train.run_async(rate, epochs=3), [0.1, 0.2]) == [
        ((0.1,), {"epochs": 3}),
        ((0.2,), {"epochs": 3}),
    ]


def test_inputs_are_spread_over_it_as_over_the_function_itself():
    submits = lambda rate, epochs: train.submit(rate, epochs=epochs + 1)  # noqa: E731 - as users write it

    assert recorded(submits, [(0.1, 2), {"rate": 0.2, "epochs": 3}]) == [
        ((0.1,), {"epochs": 3}),
        ((0.2,), {"epochs": 4}),
    ]
    assert recorded(lambda pair: train.run_async(*pair), [(1, 2)], "single") == [((1, 2), {})]


def test_a_partial_of_run_async_will_do():
    assert recorded(functools.partial(train.run_async, epochs=3), [0.1]) == [((0.1,), {"epochs": 3})]


@pytest.mark.parametrize(
    ("submits", "words"),
    [
        (print, "calls no run_async"),
        (lambda rate: rate, "calls no run_async"),
        (SimpleNamespace(), "calls no run_async"),
        (lambda rate: train.run_async(rate) if rate else None, "one job for each input"),
        (lambda rate: (train.run_async(rate), train.run_async(rate)), "one job for each input"),
    ],
)
def test_what_does_not_submit_one_job_for_each_input_is_refused(submits, words, capsys):
    with pytest.raises(CallableError) as caught:
        recorded(submits, [0])

    assert words in caught.value.why
    assert capsys.readouterr().out == "", "it was not even called"


def test_a_blocking_call_is_refused_with_the_word_that_was_meant():
    with pytest.raises(CallableError) as caught:
        recorded(lambda rate: train(rate) or train.run_async(rate), [0.1])

    assert caught.value.next == "write train.run_async(…) in it"


@pytest.mark.parametrize(
    "submits",
    [
        lambda rate: (train if rate else other).run_async(rate),
        lambda rate: train.with_options(deadline=rate + 1).run_async(rate),
    ],
)
def test_jobs_of_several_functions_or_with_several_options_are_no_batch(submits):
    with pytest.raises(OptionError, match="input 1 is for another function, or has other options"):
        recorded_calls.record_inputs(submits, [0, 1], "auto")


def test_a_handle_that_is_not_there_yet_says_so():
    with pytest.raises(CallableError, match="result was requested of a job that is not submitted yet"):
        recorded(lambda rate: train.run_async(rate).result(), [0.1])


def test_what_the_function_raises_is_its_own_and_nothing_stays_recorded():
    with pytest.raises(ZeroDivisionError):
        recorded(lambda rate: train.run_async(1 / rate), [0])

    assert remote_callable.record_call(train, (), {}) is None


def test_an_input_of_a_recorded_call_is_shown_as_it_was_written():
    assert submission.input_repr(submission.Arguments((0.1,), {})) == "0.1"
    assert submission.input_repr(submission.Arguments((0.1, "x"), {"epochs": 3})) == "(0.1, 'x', epochs=3)"
