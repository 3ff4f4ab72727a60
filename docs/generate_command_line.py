"""Write docs/command-line.md from the commands themselves; a test compares the page with it.

python docs/generate_command_line.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click  # noqa: TID251 - the page is made from click's commands

from kinetic._cli.command_tree import LazyGroup
from kinetic._cli.main import cli

PAGE = Path(__file__).with_name("command-line.md")
_TOP = """# Command line

The package installs the command `kinetic`; `python -m kinetic` is the same. Every command has help: `-h`. Results are
written to standard output and messages to standard error, so a command can be piped; `--json` prints one document with
stable names instead of a table. Colors and lines that count seconds appear on a terminal only; `kinetic --color`,
`NO_COLOR` and `FORCE_COLOR` decide on colors.

{codes}

This page is generated from the commands by `docs/generate_command_line.py`.
"""
_CODES = """| Exit code | Meaning |
|---|---|
| 0 | success |
| 1 | an error |
| 2 | a usage error: nothing was done |
| 124 | timeout: the job keeps running |
| 125 | the job failed or was cancelled |
| 130 | interrupted: the job keeps running |
| 141 | standard output was closed, as by `head` |"""


def page() -> str:
    """Return the page."""
    parts = [_TOP.format(codes=_CODES)]
    for path, command in _commands(cli, ("kinetic",)):
        parts.append(_section(path, command))
    return "\n".join(parts)


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, LazyGroup):
        for name in command.lazy_commands:
            below = command.get_command(click.Context(command, info_name=path[-1]), name)
            if below is not None:
                yield from _commands(below, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    # A command keeps its help option once it was asked for it: under the names that the terminal gives it.
    context = click.Context(command, info_name=path[-1], help_option_names=["-h", "--help"])
    words = " ".join((*path, *command.collect_usage_pieces(context)))
    lines = [f"## `{' '.join(path)}`", "", f"`{words}`", ""]
    for paragraph in (command.help or "").replace("\b\n", "").split("\n\n"):
        lines += [_paragraph(" ".join(paragraph.split())), ""]
    if isinstance(command, LazyGroup):
        lines += ["| Command | |", "|---|---|"]
        lines += [
            f"| [`{name}`](#{'-'.join((*path, name))}) | {_cell(lazy.help)} |"
            for name, lazy in command.lazy_commands.items()
        ]
        lines.append("")
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if options:
        lines += ["| Option | |", "|---|---|"]
        lines += [f"| {_code(_names(option))} | {_cell(_help(option))} |" for option in options]
        lines.append("")
    epilog = " ".join((command.epilog or "").split())
    return "\n".join([*lines, *([epilog, ""] if epilog and len(path) > 1 else [])])


def _paragraph(text: str) -> str:
    """Set the command of an example apart."""
    start, example, command = text.partition("Example: ")
    return f"{start}Example: `{command}`" if example else _cell(text)


def _names(option: click.Option) -> str:
    names = ", ".join(option.opts) + ("" if not option.secondary_opts else f" / {', '.join(option.secondary_opts)}")
    usual = "|".join(option.type.choices) if isinstance(option.type, click.Choice) else option.type.name.upper()
    return names if option.is_flag else f"{names} {option.metavar or usual}"


def _code(text: str) -> str:
    """Return code for a cell: a plain | in it ends the cell on GitHub, and a masked one shows its mask on our site."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _help(option: click.Option) -> str:
    default = f" Default: {option.default}." if option.show_default else ""
    return f"{option.help or ''}{default}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page())
