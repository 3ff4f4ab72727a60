"""``requires-python``: which Pythons fit, measured against the library that installers use."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from kinetic._packing import pythons
from kinetic._packing.dependencies import Dependencies
from kinetic.errors import OptionError

PYTHONS = ("3.10.14", "3.11.0", "3.11.7", "3.12.1", "3.13.0", "4.0.0")
OPERATORS = ("~=", "==", "!=", "<=", ">=", "<", ">", "===")
BOUNDS = ("3.11", "3.11.0", "3.11.7", "3.12", "3.13.0", "4")
WANTED = [
    *(f"{operator}{bound}" for operator, bound in itertools.product(OPERATORS, BOUNDS) if operator + bound != "~=4"),
    *("==3.11.*", "!=3.11.*", "==3.*", ">=3.11,<3.13", ">= 3.11 , != 3.12.*", "<4,>=3.8,", ""),
]


@pytest.mark.parametrize("wanted", WANTED)
def test_a_python_fits_where_an_installer_says_that_it_does(wanted: str) -> None:
    expected = SpecifierSet(wanted.replace("===", "=="))  # "===" compares texts; 3.11 and 3.11.0 are one Python

    found = {python: pythons.fits(wanted, python) for python in PYTHONS}

    assert found == {python: python in expected for python in PYTHONS}


@pytest.mark.parametrize("wanted", ["^3.11", "3.11", ">=three", ">=3.11.*", "~=3", ">=3.11;<4", ">=99,^3"])
def test_what_is_no_range_of_versions_is_told(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"\^3|3\.11|three|~=3"):
        pythons.fits(wanted, "3.11.7")


def test_a_project_that_wants_another_python_is_refused_in_three_parts() -> None:
    file = Path("/app/main.py")
    found = Dependencies(file, "script", requires_python=">=3.99")

    with pytest.raises(OptionError) as caught:
        found.check_python("3.11.7")

    assert caught.value.what == f"{file} wants Python >=3.99, and the job would run in Python 3.11.7"
    assert "the Python that submits it" in (caught.value.why or "")
    assert "submit with a Python that is >=3.99" in (caught.value.next or "")
    assert caught.value.code == "dependency"


def test_a_range_that_cannot_be_read_is_told_with_its_file() -> None:
    with pytest.raises(OptionError, match=r"'requires-python' of /app/pyproject\.toml cannot be read"):
        Dependencies(Path("/app/pyproject.toml"), "pyproject", requires_python="^3.11").check_python("3.11.7")


@pytest.mark.parametrize("wanted", [None, "", ">=3.11"])
def test_a_project_that_is_content_with_this_python_is_not_refused(wanted: str | None) -> None:
    Dependencies(Path("/app/pyproject.toml"), "pyproject", requires_python=wanted).check_python("3.11.7")
