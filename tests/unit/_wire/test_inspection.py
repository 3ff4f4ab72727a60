"""What a visitor says in place of a command: its client reads it, and takes nothing else for it."""

from __future__ import annotations

import pytest

from kinetic._wire import inspection
from kinetic.errors import RunnerError


def test_what_was_wrong_comes_as_it_was_said() -> None:
    found = inspection.read_error_line(
        inspection.error_line(RunnerError("there is no x", why="looked in /bin\n", code="no-command"))
    )

    assert found is not None
    assert (found.what, found.why, found.next, found.code) == ("there is no x", "looked in /bin\n", None, "no-command")


def test_it_comes_through_a_terminal_as_well() -> None:
    assert (
        inspection.read_error_line(inspection.error_line(RunnerError("there is no ✗")).replace(b"\n", b"\r\n"))
        is not None
    )


@pytest.mark.parametrize(
    "text", [b"", b"mine\n", inspection.ERROR_MARK, inspection.ERROR_MARK + b"{}\n", inspection.ERROR_MARK + b"[]\n"]
)
def test_what_a_command_wrote_is_not_taken_for_it(text: bytes) -> None:
    assert inspection.read_error_line(text) is None
