"""Only the registry knows which backends there are: a new one is a room of its own and one line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kinetic._backends import registry

SOURCE = Path(__file__).parents[2] / "src" / "kinetic"
REGISTRY = SOURCE / "_backends" / "registry.py"
NAMES = {*registry.names(), "kube"}
MENTIONED = re.compile(rf"[\"'](?:{'|'.join(NAMES)})[\"']|gke or pathways|gke and pathways|local, gke|backend=")
LISTS = re.compile(r"\blocal, gke\b|\bgke (?:or|and) pathways\b|\bbackend=\"?(?:local|gke|pathways)\b")


def texts_of(file: Path) -> Iterator[ast.Constant]:
    """Yield the texts in the code of a file that has a name in quotes; docstrings are for readers."""
    source = file.read_text()
    if not MENTIONED.search(source):
        return
    tree = ast.parse(source)  # 10 ms a file
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node


def test_no_other_file_names_a_backend() -> None:
    named = [
        f"{file.relative_to(SOURCE)}:{text.lineno}: {text.value!r}"
        for file in sorted(SOURCE.rglob("*.py"))
        if file != REGISTRY
        for text in texts_of(file)
        if text.value in NAMES or LISTS.search(text.value)
    ]

    assert named == []


def test_the_look_finds_a_name_where_there_is_one() -> None:
    assert {text.value for text in texts_of(REGISTRY)} >= {*registry.names()}
