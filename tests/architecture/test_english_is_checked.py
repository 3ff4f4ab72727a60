"""docs/check_english.py finds the phrases that pages avoid, wherever they are in a sentence."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_english", ROOT / "docs" / "check_english.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", ["Whoever has the key can forge it.", "A job of whoever has it.", "Nobody sees it."])
def test_a_phrase_is_found_at_the_beginning_of_a_sentence_as_in_its_middle(check: ModuleType, text: str) -> None:
    assert list(check.matches(ROOT / "README.md", 1, text))


def test_pages_and_messages_have_none_of_the_phrases(check: ModuleType) -> None:
    assert sorted({*check.in_pages(), *check.in_source()}) == []
