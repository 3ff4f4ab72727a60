"""The variables: named in one place, and never read behind its back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinetic._config import target as _settings
from kinetic._config import variables
from kinetic._config.variables import VARIABLES, read_variable

ROOM = Path(_settings.__file__).parent


@pytest.mark.parametrize(
    ("environ", "value"),
    [({}, None), ({"KINETIC_ZONE": ""}, None), ({"KINETIC_ZONE": "europe-west4-a"}, "europe-west4-a")],
    ids=["unset", "empty", "set"],
)
def test_a_variable_that_is_set_but_empty_counts_as_unset(environ, value):
    assert read_variable("KINETIC_ZONE", environ) == value


def test_a_variable_that_no_page_describes_cannot_be_read():
    with pytest.raises(LookupError, match="KINETIC_SURPRISE is read but not described"):
        read_variable("KINETIC_SURPRISE", {"KINETIC_SURPRISE": "1"})


def test_every_variable_has_a_default_in_words():
    assert all(VARIABLES.values())


def test_every_variable_that_this_room_mentions_is_described():
    mentioned = {name for file in ROOM.glob("*.py") for name in re.findall(r"\bKINETIC_[A-Z_]*[A-Z]", file.read_text())}

    assert mentioned <= VARIABLES.keys()


def test_what_only_looks_like_a_variable_of_ours_is_found_with_the_nearest_name() -> None:
    environ = {
        "KINETIC_PROJEKT": "acme",
        "KINETIC_QQQQQQQQQQQQQQQQ": "1",
        "KINETIC_MINE": "1",
        "KINETIC_HOME": "/h",
        "KINETIC_SUPERVISOR": "handed on by us",
        "KINETICS": "not ours",
    }

    found = variables.unknown_variables(environ, besides=["KINETIC_MINE"])

    assert found == {"KINETIC_PROJEKT": "KINETIC_PROJECT", "KINETIC_QQQQQQQQQQQQQQQQ": ""}
    assert variables.describe_unknown_variables(found).startswith(
        "kinetic does not read KINETIC_PROJEKT (did you mean KINETIC_PROJECT?), KINETIC_QQQQQQQQQQQQQQQQ; "
    )


def test_every_variable_that_our_source_names_is_described_or_ours() -> None:
    named = set()
    for file in ROOM.parent.rglob("*.py"):
        named |= set(re.findall(r'"(KINETIC_[A-Z_]+[A-Z])"', file.read_text()))

    assert variables.unknown_variables(dict.fromkeys(named, "")) == {}


def test_a_variable_that_is_like_an_option_is_answered_with_the_option() -> None:
    found = variables.unknown_variables({"KINETIC_ACCELERATOR": "cpu", "KINETIC_SPOT": "1", "KINETIC_CAT": "1"})

    assert variables.describe_unknown_variables(found).startswith(
        "kinetic does not read KINETIC_ACCELERATOR (pass accelerator=… to kinetic.run), KINETIC_CAT, "
        "KINETIC_SPOT (pass spot=… to kinetic.run);"
    )
