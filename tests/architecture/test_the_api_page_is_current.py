"""docs/api.md is what docs/generate_api.py makes of the docstrings, and nothing public is missing there."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

import kinetic

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def generated(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script puts our sources in front of it
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("generate_api", DOCS / "generate_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.page()


def test_the_page_is_what_the_docstrings_say(generated):
    assert (DOCS / "api.md").read_text() == generated, "run: python docs/generate_api.py"


def test_every_public_name_is_explained(generated):
    errors = [f"`{name}`" for name in kinetic.errors.__all__]
    methods = [f"`kinetic.JobHandle.{name}`" for name, _ in inspect.getmembers(kinetic.JobHandle, inspect.isroutine)]
    names = [f"`kinetic.{name}`" for name in kinetic.__all__]

    wanted = [*names, *errors, *(name for name in methods if "._" not in name)]

    assert [name for name in wanted if name not in generated] == []


def test_every_explanation_has_words(generated):
    parts = [part.strip().splitlines() for part in generated.split("\n#")]

    bare = [lines[0] for lines in parts if len(lines) < 2 and not lines[0].startswith("# ")]

    assert bare == []
