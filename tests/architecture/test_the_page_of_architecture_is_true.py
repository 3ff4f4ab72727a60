"""docs/design/architecture.md sends its reader to files that exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "kinetic"
PAGE = (ROOT / "docs" / "design" / "architecture.md").read_text()

FILES = sorted(set(re.findall(r"`((?:_\w+/)?(?:\w+/)*\w+\.py)`", PAGE)))
MODULES = sorted(set(re.findall(r"`(_[a-z]+/(?:\w+/)*\w+)`", PAGE)))
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_the_page_names_exists(name: str) -> None:
    assert (SOURCE / name).is_file() or ("/" not in name and any(SOURCE.rglob(name)))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_the_page_names_exists(name: str) -> None:
    assert (SOURCE / f"{name}.py").is_file() or (SOURCE / name).is_dir()


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_its_place_in_the_picture(room: str) -> None:
    assert re.search(rf"(?m)^\d .*\b{room}\b", PAGE)


def test_a_file_name_says_one_thing() -> None:
    found = Counter(path.name for path in SOURCE.rglob("*.py"))

    twice = {name for name, count in found.items() if count > 1}

    # Each place to run jobs has a backend, and each border that has several implementations a protocol.
    assert twice == {"__init__.py", "backend.py", "protocol.py"}
