"""Groups of commands that are imported when they are asked for, and that name the nearest when they are misspelt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic._cli.error_output import SuggestionError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_SLIP = 0.8  # what is so much like a command of ours is a slip of the finger


class LazyCommand(NamedTuple):
    """A command that is imported on first use.

    Attributes:
        place: Its module and its name there, e.g. "kinetic._cli.jobs:jobs".
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

    def __init__(
        self, *, later: Mapping[str, LazyCommand], aliases: Mapping[str, str] | None = None, **options: Any
    ) -> None:
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

    def _no_such(self, ctx: click.Context, name: str, words: list[str]) -> SuggestionError:
        from difflib import get_close_matches  # 2 ms; only on the way to an error

        known = [*self.later, *self._aliases]
        meant = suggest(ctx.command_path, name.lower(), words)
        if meant is not None and not get_close_matches(name.lower(), known, 1, _SLIP):
            return SuggestionError(
                f"there is no command {name!r}; did you mean {meant.command!r}?",
                ctx,
                why=f"commands of {ctx.command_path}: {', '.join(self.later)}",
                next=meant.line,
            )

        near = get_close_matches(name.lower(), known, 1)
        best = self._aliases.get(near[0], near[0]) if near else ""
        return SuggestionError(
            f"there is no command {name!r}" + (f"; did you mean {best!r}?" if best else ""),
            ctx,
            why=f"commands of {ctx.command_path}: {', '.join(self.later)}",
            next=f"{ctx.command_path} {best or '-h'}",
        )


def show_help_alone(ctx: click.Context) -> None:
    """Show the help of a group that was called without a command."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_COMMANDS = "kinetic._cli"

# The order is that of the help.
_TREE = """
    run            | run:run                   | Run a function of a file as a job.
    jobs           | jobs:jobs                 | List, inspect, collect and cancel jobs.
    jobs list      | jobs:list_                | List jobs, newest first.
    jobs show      | jobs:show                 | Show all details of a job.
    jobs status    | jobs:status               | Print the status of a job.
    jobs explain   | jobs:explain              | Show why a job is pending or failed, and what to do.
    jobs wait      | jobs:wait                 | Wait until jobs have ended.
    jobs logs      | job_results:logs          | Print the log of a job.
    jobs debug     | job_actions:debug         | Attach a debugger to a job that was submitted with debug=True.
    jobs stacks    | job_actions:stacks        | Print the stack of each thread of a running job.
    jobs shell     | job_actions:shell         | Open a shell in a running job, or run a command there.
    jobs result    | job_results:result        | Wait for a job and print its value, or save it.
    jobs cancel    | job_actions:cancel        | Cancel a job; its log is kept.
    jobs cleanup   | job_actions:cleanup       | Remove a job and its stored files, or many jobs.
    batch          | batch:batch               | List, inspect, collect, cancel and resume batches.
    batch list     | batch:list_               | List batches, newest first.
    batch status   | batch:status              | Show the state of a batch and of its jobs.
    batch results  | batch_results:results     | Wait for a batch and print its values, or save them.
    batch logs     | batch:logs                | Print the log of one job of a batch.
    batch cancel   | batch:cancel              | Cancel the running, pending and unsubmitted jobs of a batch.
    batch cleanup  | batch:cleanup             | Remove a batch: its jobs, their results and logs, and itself.
    batch resume   | batch:resume              | Submit the missing inputs of a batch whose driver has ended.
    outputs        | job_files:outputs         | List and copy the output files of jobs.
    package        | job_files:package         | Show which files would be sent with a job.
    accelerators   | accelerators:accelerators | Show what a job can run on.
    config         | settings:config           | Show every setting, its value and its source.
    profile        | settings:profile          | Save and select profiles: where jobs run, and their options.
    profile create | settings:create           | Save a profile.
    profile list   | settings:list_            | List the profiles.
    profile use    | settings:use              | Make a profile the current one.
    profile unset  | settings:unset            | Clear the current profile.
    profile show   | settings:show             | Show a profile.
    profile rm     | settings:remove           | Remove a profile.
    disk           | machine:disk              | Show the disk space that kinetic uses, and why.
    key            | machine:key               | Export and import the keys that seal results.
    key list       | machine:list_             | List the keys of this machine.
    key export     | machine:export            | Print a key, for another machine.
    key import     | machine:import_           | Add a key that another machine exported.
    completion     | main:completion           | Print a script for shell completion.
"""


def commands_of(*group: str) -> dict[str, LazyCommand]:
    """Return the commands of a group, by name.

    Args:
        group: Its own name, word by word; none for ``kinetic`` itself.
    """
    found: dict[str, LazyCommand] = {}
    for line in _TREE.strip().splitlines():
        path, place, help_ = map(str.strip, line.split("|"))
        *above, name = path.split()
        if above == [*group]:
            found[name] = LazyCommand(f"{_COMMANDS}.{place}", help_)
    return found


# Words of other tools (and ours without their group), and the command of ours. The job is what was typed behind the
# word, else @last; what takes neither a job nor a file takes nothing over.
_ANYWHERE = """
    logs log tail attach follow       | jobs logs @last
    status stat state                 | jobs status @last
    ps ls list get top queue squeue   | jobs list
    describe show info inspect        | jobs show @last
    cancel kill stop scancel abort    | jobs cancel @last
    rm delete del remove cleanup      | jobs cleanup @last
    explain why events                | jobs explain @last
    result results fetch              | jobs result @last
    wait                              | jobs wait @last
    exec ssh shell                    | jobs shell @last
    stacks py-spy                     | jobs stacks @last
    debug                             | jobs debug @last
    submit sbatch srun apply start    | run FILE.py::FUNCTION
    map batches                       | batch list
    context contexts use              | profile list
    images install                    | package
    tpus gpus nodes hardware          | accelerators
"""
_OF_A_BATCH = """
    ps get top                        | batch list
    show describe info inspect wait   | batch status @last
    kill stop abort                   | batch cancel @last
    rm delete del remove              | batch cleanup @last
    result fetch collect              | batch results @last
    log tail                          | batch logs @last
    retry restart start continue      | batch resume @last
"""
_TABLES = {"kinetic": _ANYWHERE, "kinetic jobs": _ANYWHERE, "kinetic batch": _OF_A_BATCH}


class Suggestion(NamedTuple):
    """What was probably meant.

    Attributes:
        command: Ours, without ``kinetic``.
        line: A command line that can be pasted.
    """

    command: str
    line: str


def suggest(group: str, word: str, words: Sequence[str]) -> Suggestion | None:
    """Return our command for a word of another tool, or None where it is nobody's word.

    Args:
        group: As it was typed: "kinetic", "kinetic jobs" or "kinetic batch".
        word: What stands there in place of a command, in lower case.
        words: What was typed behind it.
    """
    for theirs, ours in rows(_TABLES.get(group, "")):
        if word in theirs:
            command = " ".join(part for part in ours if not _is_example(part))
            typed = _quoted(words) if _is_example(ours[-1]) else ""
            return Suggestion(
                command, f"kinetic {command} {typed or ours[-1]}" if _is_example(ours[-1]) else f"kinetic {command}"
            )
    return None


def rows(table: str) -> list[tuple[list[str], list[str]]]:
    """Return the lines of a table: words of theirs, and the words of our command."""
    return [
        (theirs.split(), ours.split())
        for theirs, ours in (line.split("|") for line in table.strip().splitlines() if line)
    ]


def _is_example(part: str) -> bool:
    return part.startswith(("@", "FILE"))


def _quoted(words: Sequence[str]) -> str:
    """Return the words as a shell would take them; "" where one of them has no business on a screen."""
    from shlex import join  # 2 ms; only on the way to an error

    return join(words) if all(word.isprintable() for word in words) else ""
