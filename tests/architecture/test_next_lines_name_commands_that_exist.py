"""Whatever an error tells the reader to type can be typed: the command exists, and so do its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kinetic._cli.command_tree import LazyGroup
from kinetic._cli.main import cli

SOURCE = Path(__file__).parents[2] / "src" / "kinetic"
BLANK = "\x00"  # stands for whatever an f-string fills in
# "kinetic" is a word of a sentence here, and a command everywhere else.
PROSE = re.compile(r"\b(?:of|let|for|after|than|by|upgrade|force-reinstall|install)\s+kinetic\b")
GROUPS = re.compile(rf"\bkinetic (?:{'|'.join(cli.lazy_commands)})\b")
PARTS = re.compile(r"\s{3,}|[,;]|\. ")  # what ends a command inside a line: a gap, or the sentence around it


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield every text that tells the reader what to type, with its line.

    What is passed as ``next``, in whatever way it is written; and whatever else names a group of commands, except in a
    docstring.
    """
    nodes = list(ast.walk(ast.parse(source)))
    named = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg == "next":
            for text in written(node.value, named):
                yield node.value.lineno, text
        if isinstance(node, ast.Assign) and any(getattr(each, "attr", "") == "next" for each in node.targets):
            for text in written(node.value, named):
                yield node.value.lineno, text
        if isinstance(node, ast.Call):
            for value in node.args:
                yield from ((value.lineno, text) for text in written(value, {}) if GROUPS.search(text))


def written(node: ast.expr, named: dict[str, ast.expr]) -> Iterator[str]:
    """Yield the texts that an expression may give."""
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else BLANK for part in parts)
        case ast.IfExp(body=body, orelse=orelse):
            yield from written(body, named)
            yield from written(orelse, named)
        case ast.BoolOp(values=values):
            for value in values:
                yield from written(value, named)
        case ast.Name(id=name) if name in named:
            yield from written(named[name], {})
        case ast.BinOp(left=left, right=right):
            yield from (f"{a}{b}" for a in written(left, named) for b in written(right, named))


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every command of kinetic in a text, without ``kinetic`` itself."""
    for found in re.finditer(r"(?<![\w./-])kinetic (?=[\w-])", PROSE.sub("", text)):
        yield PARTS.split(PROSE.sub("", text)[found.end() :])[0].split()


def complaint(words: list[str]) -> str:
    """Say why a command cannot be typed, or "" when it can."""
    command: click.Command = cli
    while isinstance(command, LazyGroup):
        if not words:
            return "names a group and no command"
        if words[0] in {"-h", "--help"}:
            return ""
        below = command.get_command(click.Context(command), words[0])
        if below is None:
            return f"there is no command {words[0]!r}"
        command, words = below, words[1:]
    known = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for word in words[: words.index("--")] if "--" in words else words:  # behind it is the command of a job
        name = word.partition("=")[0]
        if name.startswith("-") and name != "-" and name not in known and name not in {"-h", "--help"}:
            return f"there is no option {name}"
    return ""


def test_each_next_line_names_a_command_that_exists() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line}: kinetic {' '.join(words)}": complaint(words)
        for path in sorted(SOURCE.rglob("*.py"))
        if "kinetic " in (source := path.read_text())
        for line, text in texts(source)
        for words in commands(text)
    }

    assert len(found) > 200
    assert [f"{where}: {words}" for where, words in found.items() if words] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kinetic repair --only store", "there is no command 'repair'"),
        ("try: kinetic jobs events 1", "there is no command 'events'"),
        (f"kinetic jobs logs {BLANK} --folow", "there is no option --folow"),
        (f"kinetic jobs result {BLANK} --save=x     keeps it", ""),
        ("kinetic jobs", "names a group and no command"),
        ("kinetic package --dry-run lists what is sent", ""),
    ],
)
def test_a_command_that_cannot_be_typed_is_noticed(text: str, expected: str) -> None:
    assert [complaint(words) for words in commands(text)] == [expected]


@pytest.mark.parametrize(
    "text", ["pip install --upgrade kinetic-jobs", "use the newer version of kinetic on both sides"]
)
def test_a_sentence_about_kinetic_is_no_command(text: str) -> None:
    assert list(commands(text)) == []


@pytest.mark.parametrize(
    "source",
    [
        "raise E('x', next='kinetic jobs listt')",
        "raise E('x', next=f'kinetic jobs listt {name}')",
        "raise E('x', next='kinetic jobs listt' if near else 'something else')",
        "raise E('x', next=error.next or 'kinetic jobs listt')",
        "WAY = 'kinetic jobs listt'\nraise E('x', next=WAY)",
        "error.next = 'kinetic jobs listt'",
        "say(f'follow: kinetic jobs listt {name}')",
    ],
)
def test_a_next_line_is_found_however_it_is_written(source: str) -> None:
    assert [complaint(words) for _, text in texts(source) for words in commands(text)] == [
        "there is no command 'listt'"
    ]
