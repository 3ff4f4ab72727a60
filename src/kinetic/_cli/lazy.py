"""Groups of commands that are imported when they are asked for, and that name the nearest when they are misspelt."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

NAMES_OF_HELP = {"help_option_names": ["-h", "--help"]}


class Later(NamedTuple):
    """A command that is imported on first use.

    Attributes:
        place: Its module and its name there, e.g. "kinetic._cli.commands.jobs:jobs".
        help: Its one line in the help of the group; a test holds it equal to the command's own first line.
    """

    place: str
    help: str


class LazyGroup(click.Group):
    """Know commands by name and one line each; import one when it is called.

    Args:
        later: The commands, in the order in which the help shows them.
        aliases: Other names, which the help does not show.
        options: As for ``click.Group``.
    """

    def __init__(self, *, later: Mapping[str, Later], aliases: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(context_settings=NAMES_OF_HELP, invoke_without_command=True, no_args_is_help=False, **options)
        self._later = dict(later)
        self._aliases = dict(aliases or {})

    @property
    def short_helps(self) -> dict[str, str]:
        """The line of each command."""
        return {name: command.help for name, command in self._later.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name the commands."""
        return list(self._later)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command, by its name or another one of its names."""
        known = self._later.get(self._aliases.get(cmd_name, cmd_name))
        if known is None:
            return None
        module, _, attribute = known.place.partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands into the help; none of them is imported for that."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self._later.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; a name that there is not is answered with the nearest."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None:
            if ctx.resilient_parsing:
                return None, None, args
            if name.startswith("-"):
                return super().resolve_command(ctx, args)  # an option: click says which one is near
            self._no_such(ctx, name)
        return self._aliases.get(name, name), command, args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; without one, show the help."""
        if not (ctx.args or ctx._protected_args):  # noqa: SLF001 - as click.Group itself asks
            click.echo(ctx.get_help())
            return None
        return super().invoke(ctx)

    def _no_such(self, ctx: click.Context, name: str) -> NoReturn:
        from difflib import get_close_matches  # 2 ms; only on the way to an error

        near = get_close_matches(name, [*self._later, *self._aliases], 1)
        best = self._aliases.get(near[0], near[0]) if near else ""
        meant = f"; did you mean {best!r}?" if best else ""
        error = click.UsageError(f"there is no command {name!r}{meant}", ctx)
        error.args = (error.message, f"{ctx.command_path} has: {', '.join(self._later)}", f"{ctx.command_path} {best}")
        raise NoSuchCommandError(
            error.message,
            ctx,
            why=f"{ctx.command_path} has {', '.join(self._later)}",
            next=f"{ctx.command_path} {best or '-h'}",
        )


class NoSuchCommandError(click.UsageError):
    """Say that a command does not exist, and which one is near."""

    def __init__(self, message: str, ctx: click.Context, *, why: str, next: str) -> None:  # noqa: A002 - as in errors.py
        super().__init__(message, ctx)
        self.why = why
        self.next = next
