"""The decorator's arguments, validated once; the deadline; what a change keeps."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from kinetic._batches import submission
from kinetic._config import options
from kinetic._jobs.job_options import Options
from kinetic.errors import OptionError, OptionTypeError


def test_the_first_thirteen_are_those_of_run_in_its_order() -> None:
    names = list(inspect.signature(Options).parameters)

    assert names[:13] == (
        "accelerator container_image base_image_repo zone project capture_env_vars cluster backend namespace volumes "
        "spot output_dir debug".split()
    )
    assert names[13:] == ["deadline", "resources", "retries", "keep_warm", "name", "tags", "after", "on_done"]


def test_options_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Options.checked(accelerator="cpu").accelerator = "gpu-l4"


def test_a_change_makes_new_ones_and_validates_them() -> None:
    before = Options.checked(accelerator="cpu", zone="z")

    after = before.changed(accelerator="gpu-l4")

    assert (before.accelerator, after.accelerator, after.zone) == ("cpu", "gpu-l4", "z")
    with pytest.raises(OptionError):
        before.changed(accelerator="gpu-l5")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("accelerater", "nearest: accelerator"),
        ("zones", "nearest: zone"),
        ("timeout", "nearest: deadline"),
        ("xyz", "options: accelerator, "),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"'{wrong}' is not an option of kinetic.run") as raised:
        Options().changed(**{wrong: 1})

    assert raised.value.why.startswith(near)


def test_a_change_of_a_checked_list_of_variables_stays_as_it_was() -> None:
    before = Options.checked(accelerator="cpu", capture_env_vars=["A", "B*"])

    assert before.changed(spot=True).capture_env_vars == ("A", "B*")


def test_spot_may_be_asked_for_by_the_name_as_well() -> None:
    assert Options.checked(accelerator="gpu-l4:spot").placement().spot
    assert Options.checked(accelerator="gpu-l4", spot=True).placement().spot
    assert not Options.checked(accelerator="gpu-l4").placement().spot


def test_an_output_directory_is_kept_as_text() -> None:
    assert Options.checked(accelerator="cpu", output_dir=Path("/out")).output_dir == "/out"
    assert Options.checked(accelerator="cpu", output_dir="gs://bucket/out").output_dir == "gs://bucket/out"


# ------------------------------------------------------------------------------------------------- the deadline


@pytest.mark.parametrize("deadline", [True, [60]])
def test_a_deadline_is_a_number_or_a_text(deadline) -> None:
    with pytest.raises(OptionTypeError, match="is not a number of seconds"):
        Options.checked(accelerator="cpu", deadline=deadline)


@pytest.mark.parametrize(
    ("deadline", "seconds"), [("60", 60.0), ("10m", 600.0), ("1.5 h", 5400.0), ("2d", 172800.0), ("1e3", 1000.0)]
)
def test_a_deadline_may_be_a_text_with_a_unit(deadline, seconds) -> None:
    assert Options.checked(accelerator="cpu", deadline=deadline).deadline == seconds


@pytest.mark.parametrize("deadline", ["soon", "10 minutes", "", "m"])
def test_a_text_that_is_no_span_of_time_is_refused_with_what_it_takes(deadline) -> None:
    with pytest.raises(OptionError, match="is not a number of seconds") as raised:
        Options.checked(accelerator="cpu", deadline=deadline)

    assert raised.value.next == 'deadline=3600, or deadline="10m"'


@pytest.mark.parametrize("deadline", ["0m", "-1", "inf", "nan", 0, -3])
def test_a_deadline_is_positive(deadline) -> None:
    with pytest.raises(OptionError, match="is not a positive number of seconds"):
        Options.checked(accelerator="cpu", deadline=deadline)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"deadline": sys.maxsize}, "deadline=9223372036854775807 is too long"),
        ({"deadline": 10**400}, "is too long"),
        ({"retries": sys.maxsize}, "retries is too large"),
        ({"resources": {"cpu": 10**30}}, "is not a valid CPU quantity"),
        ({"resources": {"memory": "9" * 400 + "Ti"}}, "is not a valid memory size"),
    ],
    ids=str,
)
def test_what_no_page_of_a_job_can_hold_is_refused_with_the_most_that_one_can(option, words) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        Options.checked(accelerator="cpu", **option)

    assert "at most" in raised.value.why


@pytest.mark.parametrize("deadline", [0.5, 60, None])
def test_a_deadline_may_be_whole_or_not(deadline) -> None:
    assert Options.checked(accelerator="cpu", deadline=deadline).deadline == deadline


# ------------------------------------------------------------------------------------------------ resources, retries


@pytest.mark.parametrize("written", [{"cpu": 4, "memory": "16Gi"}, "cpu=4,memory=16Gi"])
def test_resources_are_a_table_or_a_text(written) -> None:
    found = Options.checked(accelerator="cpu", resources=written).resources

    assert options.read_resources(found) == options.ResourceRequests(4.0, 16 * 2**30)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ram": "1Gi"}, "'ram' is not a resource"),
        ({1: 2}, "1 is not a resource"),
        ({"cpu": 0}, "cpu"),
        (3, "is not a table"),
    ],
)
def test_resources_that_cannot_work_are_refused(wrong, words) -> None:
    with pytest.raises(OptionError, match=words):
        Options.checked(accelerator="cpu", resources=wrong)


class Number:
    """What NumPy's numbers are to us."""

    def __index__(self) -> int:
        return 2

    def __float__(self) -> float:
        return 2.0

    def __str__(self) -> str:
        return "2"


def test_numbers_of_other_libraries_are_numbers() -> None:
    number = Number()

    found = Options.checked(accelerator="cpu", retries=number, deadline=number, resources={"cpu": number})

    assert (type(found.retries), type(found.deadline)) == (int, float)
    assert options.read_resources(found.resources).cpu == 2.0
    assert submission.request_of(len, (), "len", found, [1], max_concurrent=number).settings.max_concurrent == 2


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_retries_are_a_whole_number_from_zero(wrong) -> None:
    with pytest.raises(OptionError, match="retries"):
        Options.checked(accelerator="cpu", retries=wrong)
