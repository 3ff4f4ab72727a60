"""``requires-python`` of a project decides whether a job may run in this Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic._project.dependencies import Dependencies
from kinetic.errors import OptionError


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


@pytest.mark.parametrize("wanted", ["^3.11", "3.11", ">=three", ">=3.11.*", "~=3", ">=99,^3"])
def test_a_malformed_range_of_versions_is_an_error(wanted: str) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        Dependencies(Path("/app/pyproject.toml"), "pyproject", requires_python=wanted).check_python("3.11.7")


@pytest.mark.parametrize("wanted", [None, "", ">=3.11"])
def test_a_project_that_is_content_with_this_python_is_not_refused(wanted: str | None) -> None:
    Dependencies(Path("/app/pyproject.toml"), "pyproject", requires_python=wanted).check_python("3.11.7")
