"""The table of promises, the page that shows it and the tests that prove it are one list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import promises
import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (.+?) \| (`test_.+`) \|$", re.MULTILINE)


@pytest.mark.parametrize("test", sorted(promises.TESTS))
def test_the_test_of_a_promise_exists(test: str):
    file, _, name = test.partition("::")

    tree = ast.parse((ROOT / file).read_text())

    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_page_for_contributors_shows_every_promise_with_its_tests():
    shown = {
        promise: tuple(re.findall(r"`(test_\w+)`", tests))
        for promise, tests in ROW.findall((ROOT / "CONTRIBUTING.md").read_text())
    }

    assert shown == {
        promise: tuple(test.split("::")[1] for test in tests) for promise, tests in promises.PROMISES.items()
    }
