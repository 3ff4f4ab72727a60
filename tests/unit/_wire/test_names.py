"""Ids that a user abbreviates."""

from __future__ import annotations

import pytest

import kinetic
from kinetic._wire import keys
from kinetic.errors import OptionError


@pytest.mark.parametrize(("found", "expected"), [([], None), (["cpu-a"], "cpu-a"), (["cpu-a"] * 2, "cpu-a")])
def test_one_id_or_none_that_begins_so_is_no_mistake(found, expected):
    assert keys.only_match("cpu", found) == expected


def test_of_several_ids_that_begin_so_some_are_named_and_more_is_asked_for():
    found = [f"cpu-{number}" for number in range(7)]

    with pytest.raises(OptionError) as caught:
        keys.only_match("cpu", found, "ids of removed jobs")

    error = caught.value
    assert error.what == "'cpu' is the beginning of 7 ids of removed jobs"
    assert error.why == "cpu-0, cpu-1, cpu-2, cpu-3, cpu-4"
    assert error.code == "ambiguous-id"


def test_the_word_for_the_newest_job_on_the_command_line_is_answered_with_what_python_has():
    with pytest.raises(OptionError) as caught:
        kinetic.attach("@last")

    assert caught.value.next == "kinetic.jobs.list_jobs()[0] is the newest job"
