"""The page for coding assistants: in the form that they read, and it names only commands and names that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import kinetic
from kinetic._cli.main import cli


@pytest.fixture(scope="module")
def page() -> str:
    done = CliRunner().invoke(cli, ["skill"])
    assert done.exit_code == 0
    return done.stdout


def test_it_begins_with_a_name_and_with_when_to_use_it(page: str) -> None:
    _, head, body = page.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())

    assert fields.keys() == {"name", "description"}
    assert re.fullmatch("[a-z0-9-]{1,64}", fields["name"])
    assert 100 < len(fields["description"]) <= 1024  # more is cut off by assistants
    assert body.lstrip().startswith("# kinetic\n")


def test_the_example_in_its_help_writes_the_page_in_a_folder_that_has_nothing(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = CliRunner().invoke(cli, ["skill", "--help"]).stdout
    words = shlex.split(re.findall("Example: kinetic (.+)", shown)[0])
    monkeypatch.chdir(tmp_path)

    Path(words[-1]).write_text(CliRunner().invoke(cli, words[:-2]).stdout)

    assert (tmp_path / words[-1]).read_text() == page


def test_every_command_that_it_names_exists_with_its_options(page: str) -> None:
    named = re.findall(r"^\$ (kinetic .+)|`(kinetic [a-z].+?)`", page, re.MULTILINE)
    assert len(named) > 15
    for words in (a or b for a, b in named):
        command: click.Command = cli
        for word in words.split()[1:]:
            if isinstance(command, click.Group):
                below = command.get_command(click.Context(command), word)
                assert below is not None, words
                command = below
            elif word == "--":
                break
            elif word.startswith("--") and "::" not in words.split(word)[0]:
                assert word in {option for each in command.params for option in each.opts}, words


def test_every_public_name_that_it_uses_exists(page: str) -> None:
    names = set(re.findall(r"\bkinetic\.([a-z_]+(?:\.[a-z_]+)*)", page, re.IGNORECASE))
    assert len(names) > 5
    for name in names:
        found: object = kinetic
        for part in name.split("."):
            found = getattr(found, part)
