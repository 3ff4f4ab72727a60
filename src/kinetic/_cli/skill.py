"""``kinetic skill``: what a coding assistant should know about kinetic."""

from __future__ import annotations

from pathlib import Path

import click


@click.command
def skill() -> None:
    """Print what a coding assistant should know about kinetic.

    It is a page in Markdown, in the form that assistants call a skill. Each of them looks for it in a folder of the
    project, such as .claude/skills/kinetic or .agents/skills/kinetic, by the name SKILL.md.

    Example: kinetic skill > SKILL.md
    """
    click.echo(Path(__file__).with_name("skill.md").read_text(encoding="utf-8"), nl=False)
