"""The decorator's arguments, validated once; the deadline; what a change keeps."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from kinetic._jobs import options
from kinetic._jobs.options import Options
from kinetic.errors import OptionError, OptionTypeError


def test_the_first_thirteen_are_those_of_run_in_its_order() -> None:
    names = list(inspect.signature(Options).parameters)

    assert names[:13] == (
        "accelerator container_image base_image_repo zone project capture_env_vars cluster backend namespace volumes "
        "spot output_dir debug".split()
    )
    assert names[13:] == ["deadline"]


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
    ("wrong", "near"), [("accelerater", "accelerator"), ("zones", "zone"), ("deadlines", "deadline"), ("xyz", "")]
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"'{wrong}' is not an option of kinetic.run") as raised:
        Options().changed(**{wrong: 1})

    assert near in raised.value.why


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


def test_a_deadline_is_the_option_before_the_variable() -> None:
    environ = {"KINETIC_DEADLINE": "60"}

    assert options.deadline_of(Options(deadline=5), environ) == 5
    assert options.deadline_of(Options(), environ) == 60.0
    assert options.deadline_of(Options(), {}) is None
    assert options.deadline_of(Options(), {"KINETIC_DEADLINE": ""}) is None


@pytest.mark.parametrize("setting", ["soon", "0", "-3", "inf", "nan"])
def test_a_variable_that_is_no_positive_number_is_named(setting: str) -> None:
    with pytest.raises(OptionError, match=f"KINETIC_DEADLINE='{setting}' is not a positive number of seconds"):
        options.deadline_of(Options(), {"KINETIC_DEADLINE": setting})


@pytest.mark.parametrize("deadline", ["60", True, [60]])
def test_a_deadline_is_a_number(deadline) -> None:
    with pytest.raises(OptionTypeError, match="is not a number of seconds"):
        Options.checked(accelerator="cpu", deadline=deadline)


@pytest.mark.parametrize("deadline", [0.5, 60, None])
def test_a_deadline_may_be_whole_or_not(deadline) -> None:
    assert Options.checked(accelerator="cpu", deadline=deadline).deadline == deadline
