"""The picture of the README shows what the commands print today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def without_ids_and_times(line: str) -> str:
    line = re.sub(r"\d{8}-\d{6}-[0-9a-f]{7}", "ID", line)
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)? ?s\b", "TIME", line)).strip()


def test_the_picture_shows_what_the_commands_print():
    spec = importlib.util.spec_from_file_location("generate_session_picture", ROOT / "docs/generate_session_picture.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    shown = generator.lines_of(generator.PICTURE.read_text())

    now = generator.lines_of(generator.draw(generator.session()))

    assert [without_ids_and_times(line) for line in shown] == [without_ids_and_times(line) for line in now], (
        "the output has changed: python docs/generate_session_picture.py"
    )
