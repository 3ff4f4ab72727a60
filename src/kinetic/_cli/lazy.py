"""Groups of commands that are imported when they are asked for, and that name the nearest when they are misspelt."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic._cli.mistakes import MistakeError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SLIP = 0.8  # what is so much like a command of ours is a slip of the finger


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

    Called without a command it shows its help and ends well: whoever types ``kinetic`` alone asks what there is.

    Args:
        later: The commands, in the order in which the help shows them.
        aliases: Other names, which the help does not show.
        options: As for ``click.Group``.
    """

    def __init__(self, *, later: Mapping[str, Later], aliases: Mapping[str, str] | None = None, **options: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"]}  # every command below inherits them
        super().__init__(context_settings=settings, invoke_without_command=True, no_args_is_help=False, **options)
        self.later = dict(later)
        self._aliases = dict(aliases or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name the commands."""
        return list(self.later)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command, by its name or another one of its names."""
        known = self.later.get(self._aliases.get(cmd_name, cmd_name))
        if known is None:
            return None
        module, _, attribute = known.place.partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the commands into the help; none of them is imported for that."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.later.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands, none of which is imported for that, and the options of the group itself."""
        from click.shell_completion import CompletionItem  # loaded already, where this is asked

        known = self.later.items()
        offered = [CompletionItem(name, help=later.help) for name, later in known if name.startswith(incomplete)]
        return [*offered, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; a name that there is not is answered with the nearest."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return self._aliases.get(name, name), command, args[1:]
        if ctx.resilient_parsing or name.startswith("-"):  # completing a half-typed line, or a misplaced option
            return super().resolve_command(ctx, args)
        raise self._no_such(ctx, name, args[1:])

    def _no_such(self, ctx: click.Context, name: str, words: list[str]) -> MistakeError:
        from difflib import get_close_matches  # 2 ms; only on the way to an error

        from kinetic._cli import foreign

        known = [*self.later, *self._aliases]
        meant = foreign.meant(ctx.command_path, name.lower(), words)
        if meant is not None and not get_close_matches(name.lower(), known, 1, _SLIP):
            return MistakeError(
                f"there is no command {name!r}; did you mean {meant.command!r}?",
                ctx,
                why=f"commands of {ctx.command_path}: {', '.join(self.later)}",
                next=meant.line,
            )

        near = get_close_matches(name.lower(), known, 1)
        best = self._aliases.get(near[0], near[0]) if near else ""
        return MistakeError(
            f"there is no command {name!r}" + (f"; did you mean {best!r}?" if best else ""),
            ctx,
            why=f"commands of {ctx.command_path}: {', '.join(self.later)}",
            next=f"{ctx.command_path} {best or '-h'}",
        )


def show_help_alone(ctx: click.Context) -> None:
    """Show the help of a group that was called without a command."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
