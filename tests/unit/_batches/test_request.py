"""Asking for a batch: what cannot work is refused before anything is packed."""

from __future__ import annotations

import pytest

import kinetic
from kinetic import testing
from kinetic._batches import submission
from kinetic._jobs.job_options import Options
from kinetic._wire.records import Settings
from kinetic.errors import OptionError, OptionTypeError


def wish(inputs=(1,), **options):
    return submission.request_of(len, (), "len", Options(), inputs, **options)


def test_what_is_not_said_is_as_documented():
    found = wish()

    assert found.settings == Settings(max_concurrent=64, retries=0, fail_fast=False, cancel_running_on_fail=False)
    assert (found.input_mode, found.group_name, found.tags) == ("auto", None, {})
    assert not found.retries_given


def test_retries_count_as_given_even_if_they_are_none():
    assert wish(retries=0).retries_given


@pytest.mark.parametrize(
    "options",
    [
        *({"max_concurrent": 0}, {"max_concurrent": -1}, {"max_concurrent": 2**63}, {"retries": -1}),
        *({"retries": 2**63}, {"input_mode": "guess"}, {"inputs": []}),
    ],
    ids=str,
)
def test_a_value_that_cannot_work_is_a_value_error(options):
    with pytest.raises(ValueError) as raised:
        wish(**options)

    assert isinstance(raised.value, OptionError)
    assert not isinstance(raised.value, TypeError)


@pytest.mark.parametrize("options", [{"max_concurrent": 0}, {"retries": -1}], ids=str)
def test_a_number_that_cannot_work_is_refused_with_what_it_is_for_and_what_would_work(options):
    with pytest.raises(OptionError) as raised:
        wish(**options)

    assert (raised.value.why or "").startswith("it is how many")
    assert raised.value.next


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrent": 1.5},
        {"max_concurrent": True},
        {"max_concurrent": "8"},
        {"retries": "1"},
        {"retries": True},
        {"retries": 0.5},
        {"fail_fast": 1},
        {"cancel_running_on_fail": None},
        {"group_name": 5},
        {"tags": ["a"]},
        {"tags": {"a": 1}},
        {"tags": {1: "a"}},
        {"inputs": 5},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_a_type_error(options):
    with pytest.raises(TypeError) as raised:
        wish(**options)

    assert isinstance(raised.value, OptionTypeError)


def test_retries_of_none_are_refused_and_no_limit_is_not():
    with pytest.raises(OptionError):
        wish(retries=None)
    assert wish(max_concurrent=None).settings.max_concurrent is None


@pytest.mark.parametrize(("count", "most", "warned"), [(101, None, True), (100, None, False), (101, 64, False)])
def test_only_more_than_a_hundred_at_once_are_worth_a_warning(capsys, count, most, warned):
    wish(range(count), max_concurrent=most)

    assert ("warning" in capsys.readouterr().err) == warned


def test_tags_are_taken_over_and_not_kept_by_reference():
    tags = {"sweep": "lr"}

    found = wish(tags=tags)
    tags["sweep"] = "wd"

    assert found.tags == {"sweep": "lr"}


@pytest.mark.parametrize("word", ["grp-a1b2c3d4", "grp-a1", "grp-missing", "Sweep of lr", "../x"])
def test_a_batch_that_is_not_there_is_a_file_not_found_error_whatever_was_given(word, tmp_path):
    with testing.temporary_home(tmp_path), pytest.raises(FileNotFoundError, match=word):
        kinetic.attach_batch(word)


@pytest.mark.parametrize("word", [None, 5, "", "cpu-train-20261120-143000-1a2b3c4"])
def test_what_can_be_neither_an_id_nor_a_name_of_a_batch_is_a_value_error(word, tmp_path):
    with testing.temporary_home(tmp_path), pytest.raises(ValueError, match="cannot be the id of a batch"):
        kinetic.attach_batch(word)


def test_a_batch_says_before_it_stores_its_inputs_that_they_share_a_large_object(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KINETIC_PAYLOAD_SIZE_WARN_MB", "1")
    shared = b"x" * 600_000

    with testing.fake_backend(tmp_path):
        kinetic.run()(len).run_async_map([shared, shared], input_mode="single").wait()

    told = capsys.readouterr().err
    assert "each of the 2 inputs stores argument 0, the same object: together 1 MB" in told
    assert told.index("each of the 2 inputs") < told.index("submitted grp-")
