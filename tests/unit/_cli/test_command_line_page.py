"""docs/command-line.md is what its generator makes of the commands, and it explains every one of them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
GENERATOR = runpy.run_path(str(DOCS / "generate_command_line.py"))


def test_the_page_is_up_to_date() -> None:
    written = (DOCS / "command-line.md").read_text()

    assert written == GENERATOR["page"](), "run: python docs/generate_command_line.py"


@pytest.mark.parametrize(
    "command", ["run", "jobs list", "jobs wait", "jobs explain", "jobs show", "disk", "key export"]
)
def test_a_command_has_a_section_with_its_example(command) -> None:
    section = GENERATOR["page"]().partition(f"## `kinetic {command}`\n")[2].partition("\n## ")[0]

    assert f"`kinetic {command} " in section
    assert "Example: `kinetic " in section


def test_an_option_has_one_cell_that_shows_what_it_takes() -> None:
    rows = [line for line in GENERATOR["page"]().splitlines() if line.startswith(("| `-", "| <code>-"))]

    assert {row.replace("\\|", "").count("|") for row in rows} == {3}  # GitHub ends a cell at each | that is not masked
    assert any(row.startswith("| <code>--color auto&#124;always&#124;never</code> |") for row in rows)


def test_a_sign_that_means_something_in_a_table_is_written_so_that_it_means_nothing() -> None:
    assert GENERATOR["_cell"]("a|b <c> *d*") == "a\\|b &lt;c> \\*d\\*"
