"""Groups of commands that are imported on first use, and that suggest the nearest one for an unknown name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic._cli.error_output import CALLED, Called, SuggestionError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_TYPO = 0.86  # a word this similar to a command of ours is a typo; "stop" is not one of "top"

# The order is that of the help; the last column is the first line of the command's own help, which a test verifies.
_TREE = """
    run            | run:run                   | Run a function of a file, or any command, as a job.
    dev            | dev:dev                   | Run a function of a file again at each save.
    jobs           | main:jobs                 | List, inspect, collect and cancel jobs.
    jobs list      | job_table:list_           | List jobs, newest first.
    jobs show      | job_views:show            | Show all details of a job.
    jobs status    | job_views:status          | Print the status of a job.
    jobs explain   | job_views:explain         | Show why a job is pending or failed, and what to do.
    jobs wait      | job_views:wait            | Wait until jobs have ended.
    jobs logs      | job_logs:logs             | Print the log of a job.
    jobs debug     | job_actions:debug         | Attach a debugger to a job that was submitted with debug=True.
    jobs stacks    | job_actions:stacks        | Print the stack of each thread of a running job.
    jobs shell     | job_actions:shell         | Open a shell in a running job, or run a command there.
    jobs forward   | job_actions:forward       | Connect a port of this machine to one of a running job.
    jobs result    | job_results:result        | Wait for a job and print its value, or save it.
    jobs cancel    | job_actions:cancel        | Cancel jobs; their logs are kept.
    jobs cleanup   | job_actions:cleanup       | Remove jobs and their stored files.
    batch          | batch:batch               | List, inspect, collect, cancel and resume batches.
    batch list     | batch:list_               | List batches, newest first.
    batch status   | batch:status              | Show the state of a batch and of its jobs.
    batch results  | batch_results:results     | Wait for a batch and print its values, or save them.
    batch logs     | batch_logs:logs           | Print the log of one job of a batch, or of all of them.
    batch cancel   | batch:cancel              | Cancel the running, pending and unsubmitted jobs of a batch.
    batch cleanup  | batch:cleanup             | Remove a batch: its jobs, their results and logs, and itself.
    batch resume   | batch:resume              | Submit the missing inputs of a batch whose driver has ended.
    outputs        | job_files:outputs         | List and copy the output files of jobs.
    outputs ls     | job_files:ls              | List the output files of a job.
    outputs get    | job_files:get             | Copy the output files of a job into a local folder.
    top            | top:top                   | Show what running jobs use, live.
    dashboard      | dashboard:dashboard       | Show jobs and batches in the browser, live.
    package        | job_files:package         | Show which files would be sent with a job.
    image          | images:image              | List, inspect, verify and remove images of jobs.
    image list     | images:list_              | List the images that were built for jobs, last used first.
    image show     | images:show               | Show which packages an image has: its lock.
    image verify   | images:verify             | Verify that an image is what its lock makes.
    image prune    | images:prune              | Remove images that no job has used for long.
    cache          | cache:cache               | List and remove programs that jobs compiled.
    cache list     | cache:list_               | List the compiled programs in the store, by library and hardware.
    cache prune    | cache:prune               | Remove compiled programs that no job has used for long.
    build-image    | images:build_image        | Build the images of the prebuilt mode.
    accelerators   | accelerators:accelerators | Show what a job can run on.
    cost           | cost:cost                 | Show what accelerators cost per hour.
    up             | up:up                     | Make a cluster for jobs in Google Cloud, or complete one.
    down           | up:down                   | Remove a cluster that `kinetic up` made.
    init           | init:init                 | Join or make a cluster: save a profile, repair what jobs lack.
    status         | health:status             | Show how a cluster is now: its nodes, their cost, what waits.
    doctor         | health:doctor             | Check everything that jobs need, and say how each fault is repaired.
    pool           | pools:pool                | Add, change, remove and list the node pools of a Standard cluster.
    pool add       | pools:add                 | Add a node pool for an accelerator, or change how far one grows.
    pool remove    | pools:remove              | Remove a node pool that kinetic made; its jobs are named before.
    pool list      | pools:list_               | List the node pools of the cluster.
    warm           | warm:warm                 | Start, list and stop pods that stay for the next job.
    warm start     | warm:start                | Start a warm pod for the jobs of this project, and wait for it.
    warm list      | warm:list_                | List your warm pods, what they do and what they cost.
    warm stop      | warm:stop                 | Stop warm pods, by their names or the beginnings of them.
    config         | settings:config           | Show every setting, its value and its source.
    profile        | profile:profile           | Save and select profiles: where jobs run, and their options.
    profile create | profile:create            | Save a profile.
    profile list   | profile:list_             | List the profiles.
    profile use    | profile:use               | Make a profile the current one.
    profile unset  | profile:unset             | Clear the current profile.
    profile show   | profile:show              | Show a profile.
    profile rm     | profile:remove            | Remove a profile.
    disk           | machine:disk              | Show the disk space that kinetic uses, and why.
    key            | machine:key               | Export and import the keys that seal results.
    key list       | machine:list_             | List the keys of this machine.
    key export     | machine:export            | Print a key, for another machine.
    key import     | machine:import_           | Add a key that another machine exported.
    completion     | completion:completion     | Print a script for shell completion.
    skill          | skill:skill               | Print what a coding assistant should know about kinetic.
"""

# Words of other tools (and ours without their group), and our command. The job is what was typed after the word, else
# @last; a command that takes neither a job nor a file takes no arguments over.
_ANYWHERE = """
    logs log tail attach follow       | jobs logs @last
    stat state                        | jobs status @last
    ps ls list get queue squeue       | jobs list
    top htop stats nvidia-smi         | top
    describe show info inspect usage  | jobs show @last
    progress                          | jobs show @last
    cancel kill stop scancel abort    | jobs cancel @last
    rm delete del remove cleanup      | jobs cleanup @last
    explain why events                | jobs explain @last
    result results fetch              | jobs result @last
    wait                              | jobs wait @last
    exec ssh shell                    | jobs shell @last
    stacks py-spy                     | jobs stacks @last
    port-forward tunnel proxy         | jobs forward @last
    debug                             | jobs debug @last
    submit sbatch srun apply start    | run FILE.py::FUNCTION
    map batches                       | batch list
    context contexts use              | profile list
    images install                    | package
    tpus gpus nodes hardware          | accelerators
    price prices pricing              | cost l4
    check checks verify diagnose      | doctor
    files artifacts                   | outputs ls @last
    download                          | outputs get @last
    version                           | --version
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
_OF_THE_CACHE = """
    clear clean rm remove delete gc   | cache prune
"""
_OF_OUTPUTS = """
    download copy cp pull fetch       | outputs get @last
    list show                         | outputs ls @last
"""
_TABLES = {
    "kinetic": _ANYWHERE,
    "kinetic jobs": _ANYWHERE,
    "kinetic batch": _OF_A_BATCH,
    "kinetic cache": _OF_THE_CACHE,
    "kinetic outputs": _OF_OUTPUTS,
}


class LazyCommand(NamedTuple):
    """A command that is imported on first use: "module:name" and its one line in the help of the group."""

    place: str
    help: str


def commands_of(*group: str) -> dict[str, LazyCommand]:
    """Return the commands of a group, by name; without a group those of ``kinetic`` itself."""
    found: dict[str, LazyCommand] = {}
    for line in _TREE.strip().splitlines():
        path, place, help_ = map(str.strip, line.split("|"))
        *above, name = path.split()
        if above == [*group]:
            found[name] = LazyCommand(f"kinetic._cli.{place}", help_)
    return found


class LazyGroup(click.Group):
    """A group of the table that imports a command when it is called; without a command it shows its help."""

    def __init__(self, *, path: Sequence[str], aliases: Mapping[str, str] | None = None, **options: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"]}  # every command below inherits them
        super().__init__(context_settings=settings, invoke_without_command=True, no_args_is_help=False, **options)
        self.lazy_commands = commands_of(*path)
        self._aliases = ({"ls": "list"} if "list" in self.lazy_commands else {}) | dict(aliases or {})

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, or show the help of the group."""
        found = super().invoke(ctx)
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands."""
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command, by its name or an alias."""
        known = self.lazy_commands.get(self._aliases.get(cmd_name, cmd_name))
        if known is None:
            return None
        module, _, attribute = known.place.partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the commands into the help, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.lazy_commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands, without importing any, and the options of the group itself."""
        from click.shell_completion import CompletionItem  # loaded already, where this is asked

        known = self.lazy_commands.items()
        offered = [CompletionItem(name, help=command.help) for name, command in known if name.startswith(incomplete)]
        return [*offered, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called, or suggest one for an unknown name."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            own = self._aliases.get(name, name)
            ctx.meta[CALLED] = Called(command, f"{ctx.command_path} {own}")
            return own, command, args[1:]
        if ctx.resilient_parsing or name.startswith("-"):  # completing a half-typed line, or a misplaced option
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches  # 2 ms; only on the way to an error

        known = [*self.lazy_commands, *self._aliases]
        meant = suggest(ctx.command_path, name.lower(), args[1:])
        same = [each for each in known if each[0] == name[:1].lower()]  # "kill" is no typo of "skill"
        if meant is not None and not get_close_matches(name.lower(), same, 1, _TYPO):
            best, line = meant
            best = f"kinetic {best}" if best == name else best  # of another group
        else:
            near = [] if name == "help" else get_close_matches(name.lower(), known, 1)  # it is near to "shell"
            best = self._aliases.get(near[0], near[0]) if near else ""
            rest = _typed(args[1:]) if best or name == "help" else ""
            line = " ".join(filter(None, (ctx.command_path, best, rest, "" if best else "-h")))
        raise SuggestionError(
            f"there is no command {name!r}" + (f"; did you mean {best!r}?" if best else ""),
            ctx,
            why=f"commands of {ctx.command_path}: {', '.join(self.lazy_commands)}",
            next=line,
        )


def suggest(group: str, word: str, words: Sequence[str]) -> tuple[str, str] | None:
    """Return our command for a word of another tool, typed after a group, and a command line that can be pasted."""
    for theirs, ours in rows(_TABLES.get(group, "")):
        if word in theirs:
            command = " ".join(part for part in ours if not _is_example(part))
            if not _is_example(ours[-1]):
                return command, f"kinetic {command}"
            return command, f"kinetic {command} {_typed(words) or ours[-1]}"
    return None


def _typed(words: Sequence[str]) -> str:
    """Return words so that they can be pasted, "" where one of them controls a terminal."""
    from shlex import join  # 2 ms; only on the way to an error

    return join(words) if all(each.isprintable() for each in words) else ""


def rows(table: str) -> list[tuple[list[str], list[str]]]:
    """Return the lines of a table: words of other tools, and the words of our command."""
    return [
        (theirs.split(), ours.split())
        for theirs, ours in (line.split("|") for line in table.strip().splitlines() if line)
    ]


def _is_example(part: str) -> bool:
    return part.startswith(("@", "FILE"))
