"""The ``kinetic`` command: what stands before its sub-commands, and how everything ends."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Any, TextIO

import click

from kinetic._cli import command_tree, error_output
from kinetic._cli.command_tree import LazyGroup, show_help_alone
from kinetic._version import __version__

_MANY_OBJECTS = 100_000  # what imports make stays anyway: looking through it for garbage costs 8 of 90 ms


class Root(LazyGroup):
    """The whole tree. Whatever goes wrong below it is told in one way, and becomes an exit code."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Read what stands before the sub-command."""
        try:
            return super().make_context(*arguments, **options)
        except click.UsageError as error:
            sys.exit(error_output.report(error))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a sub-command, and see to it that what it printed has arrived."""
        try:
            found = super().invoke(ctx)
            sys.stdout.flush()
        except (click.exceptions.Exit, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the last frame: every end gets its words and its exit code
            ctx.exit(error_output.report(error, debug=bool(ctx.params.get("debug"))))
        return found


def _profile_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from kinetic._cli import shared_options  # only for the Tab key

    return shared_options.complete_profiles(ctx, param, incomplete)


@click.group(
    cls=Root,
    later=command_tree.commands_of(),
    epilog="Exit codes: 0 success, 1 error, 2 usage error, 124 timeout, 125 the job failed, "
    "130 interrupted. Results are written to standard output, messages to standard error.",
)
@click.version_option(__version__, message="kinetic %(version)s")
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=_profile_names,
    help="Use this profile instead of the current one (KINETIC_PROFILE).",
)
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, profile: str | None, debug: bool) -> None:  # noqa: ARG001 - Root.invoke reads debug
    """Run Python functions as jobs, and collect their results.

    Submit a job in Python, with @kinetic.run(...), or with kinetic run; the other commands manage it.

    Example: kinetic run train.py::train --lr 1e-3
    """
    if profile:
        _use_profile(profile)
    show_help_alone(ctx)


def _use_profile(name: str) -> None:
    """Make a profile the current one of this process."""
    from kinetic._config import profiles

    found = profiles.load(os.environ)
    if found.get(name) is None:
        from difflib import get_close_matches

        from kinetic.errors import SettingsError

        nearest = get_close_matches(name, found.names, n=1, cutoff=0)[0]
        raise SettingsError(
            f"no profile is named {name!r}",
            why=f"profiles in {found.file}: {', '.join(sorted(found.saved)) or 'none'}; built in: local",
            next=f"write --profile {nearest}",
        )
    os.environ["KINETIC_PROFILE"] = name


def _open_closed_streams() -> None:
    """Let standard streams that the caller closed (``>&-``) lead nowhere, or the first file we open would be one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while (descriptor := os.open(os.devnull, os.O_RDWR)) < number:
                pass  # one before it is closed as well: keep it occupied
            setattr(sys, name, open(descriptor, "r" if number == 0 else "w"))  # noqa: SIM115 - for as long as we live


class _SanitizingStream(io.TextIOWrapper):
    """A standard stream with the gate of ``_output/gate.py`` before it: nothing that is printed steers a terminal."""

    before: TextIO

    def write(self, text: str) -> int:
        """Write a text of one line or of several; what has passed the gate already goes as it is."""
        if not getattr(text, "has_passed", False) and not text.replace("\n", "").isprintable():
            from kinetic.errors import printable  # not for the help

            text = printable(text)
        return super().write(text)


def _sanitizing(stream: TextIO) -> TextIO:
    """Put the gate before a standard stream; one that is no file, as in tests, stays as it is."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _SanitizingStream):
        return stream
    # A value may hold what this terminal's encoding cannot say.
    encoding, at_once, by_line = stream.encoding, stream.write_through, stream.line_buffering
    stream.flush()
    # Not detach(): shutil asks sys.__stdout__, which is this stream, how wide the terminal is.
    gated = _SanitizingStream(
        stream.buffer, encoding, "backslashreplace", line_buffering=by_line, write_through=at_once
    )
    gated.before = stream  # a stream that nothing holds any more closes the file below it
    return gated


def main() -> None:
    """Be the console script."""
    gc.set_threshold(_MANY_OBJECTS)
    _open_closed_streams()
    sys.stdout, sys.stderr = _sanitizing(sys.stdout), _sanitizing(sys.stderr)
    cli(prog_name="kinetic")


if __name__ == "__main__":
    main()


_COMPLETE_VARIABLE = "_KINETIC_COMPLETE"  # click's own name for it: the script sets it, and click answers
_NEW_BASH = "complete -o nosort -F _kinetic_completion kinetic"
_ANY_BASH = "complete -F _kinetic_completion kinetic"  # bash before 4.4, such as that of macOS, sorts what is offered
_COMPLETION_SETUP = {
    "bash": 'put this into ~/.bashrc: eval "$(kinetic completion bash)"',
    "zsh": 'put this into ~/.zshrc, below compinit: eval "$(kinetic completion zsh)"',
    "fish": "run this once: kinetic completion fish > ~/.config/fish/completions/kinetic.fish",
}


@click.command(epilog="; ".join(f"{shell}: {how}" for shell, how in _COMPLETION_SETUP.items()) + ".")
@click.argument("shell", type=click.Choice([*_COMPLETION_SETUP]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a script for shell completion.

    It completes commands, options, job ids, profiles and accelerators.

    Example: kinetic completion bash >> ~/.bashrc
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, f"click does not know {shell}"  # noqa: S101 - it knows the three that are offered
    # Not kind.source(): for bash, that starts one to ask for its version, and it need not even be installed here.
    script = ShellComplete.source(kind(cli, {}, "kinetic", _COMPLETE_VARIABLE))
    print(script.replace(_NEW_BASH, f"{_NEW_BASH} 2>/dev/null || {_ANY_BASH}"))
    if sys.stdout.isatty():
        click.echo(f"To use it, {_COMPLETION_SETUP[shell]}", err=True)
