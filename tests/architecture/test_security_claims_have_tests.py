"""docs/security.md names the tests that hold each of its claims: they exist, and each claim has one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))

    assert named
    assert named - there == set()


def test_each_row_that_says_what_somebody_cannot_do_names_a_test() -> None:
    table = PAGE.partition("## Who may do what")[2].partition("\n\nkinetic does not encrypt")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row.startswith("| ")]

    for who, _, cannot, tests in rows[1:]:
        assert cannot.startswith("nothing") or "`test_" in tests, who


def test_each_page_that_is_sealed_names_a_test() -> None:
    table = PAGE.partition("## Documents")[2].partition("\n\nVerification is cheap")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row.startswith("| ")]

    assert all("`test_" in row[-1] for row in rows[1:])
