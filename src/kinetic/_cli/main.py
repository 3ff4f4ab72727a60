"""The ``kinetic`` command: what precedes its subcommands, and how every command ends."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from typing import Any, Literal, TextIO

import click

from kinetic._cli import error_output
from kinetic._cli.command_tree import LazyGroup
from kinetic._cli.error_output import SuggestionError
from kinetic._version import __version__

_MANY_OBJECTS = 100_000  # what imports create stays anyway: searching it for garbage costs 8 of 90 ms


class Root(LazyGroup):
    """The whole tree; every error below it is reported in one way and becomes an exit code."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **options: Any) -> click.Context:
        """Read what precedes the subcommand."""
        words = [*args]
        try:
            context = super().make_context(info_name, args, *more, **options)
        except click.UsageError as error:
            if isinstance(error, click.NoSuchOption) and (line := self._behind(error.option_name, words)):
                what = f"kinetic itself has no option {error.option_name}"
                why = "it is an option of the command, and follows it"
                error = SuggestionError(what, click.Context(self), why=why, next=line)
            sys.exit(error_output.report(error))
        except OSError as error:  # help and version are printed here
            sys.exit(error_output.report(error))
        context.meta[error_output.WORDS] = words
        return context

    def _behind(self, name: str, words: list[str]) -> str:
        """Return the line with an option behind the command that has it; "" where none does."""
        at = next((index for index, word in enumerate(words) if word.partition("=")[0] == name), len(words))
        for end in (at + 1, at + 2):  # a flag, or an option with its value
            command: click.Command | None = self
            rest, place = [*words[:at], *words[end:]], 0
            while isinstance(command, click.Group) and place < len(rest):
                command, place = command.get_command(click.Context(command), rest[place]), place + 1
            option = next((each for each in command.params if name in each.opts), None) if command is not None else None
            if option is not None and (getattr(option, "is_flag", False) or "=" in words[at]) == (end == at + 1):
                import shlex  # 2 ms; only on the way to an error

                return shlex.join(["kinetic", *rest[:place], *words[at:end], *rest[place:]])
        return ""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand, and make sure that what it printed has been written."""
        try:
            try:
                found = super().invoke(ctx)
            except (click.exceptions.Exit, SystemExit):
                sys.stdout.flush()
                raise
            sys.stdout.flush()
        except (click.exceptions.Exit, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the last frame: every error gets a message and an exit code
            called = ctx.meta.get(error_output.CALLED)
            ctx.exit(error_output.report(error, called=called, debug=bool(ctx.params.get("debug"))))
        return found


def _profile_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from kinetic._cli import shared_options  # only for the Tab key

    return shared_options.complete_profiles(ctx, param, incomplete)


@click.group(
    cls=Root,
    path=(),
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
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    expose_value=False,
    is_eager=True,
    callback=lambda _ctx, _param, choice: _use_color(choice),
    help="Use colors; auto means on a terminal, unless NO_COLOR is set, or where FORCE_COLOR is.  [default: auto]",
)
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=lambda _ctx, _param, chosen: _be_quiet(chosen),
    help="Print warnings and errors only (KINETIC_LOG_LEVEL=WARNING).",
)
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
def cli(profile: str | None, debug: bool) -> None:  # noqa: ARG001 - Root.invoke reads debug
    """Run Python functions as jobs, and collect their results.

    Submit a job in Python, with @kinetic.run(...), or with kinetic run; the other commands manage it.

    Example: kinetic run train.py::train --lr 1e-3
    """
    if profile:
        _use_profile(profile)


@click.group(
    cls=LazyGroup,
    path=["jobs"],
    epilog="JOB_ID is the id of a job, a unique beginning of it, the --name that only it has, or @last or - for "
    "the newest job.",
)
def jobs() -> None:
    """List, inspect, collect and cancel jobs.

    Example: kinetic jobs logs @last --follow
    """


def _use_color(choice: Literal["auto", "always", "never"] | None) -> None:
    if choice is not None:
        from kinetic._output import colors  # only if it is given

        colors.choose(choice)


def _be_quiet(chosen: bool) -> None:
    if chosen and os.environ.get("KINETIC_LOG_LEVEL", "").upper() != "ERROR":  # which prints less
        os.environ["KINETIC_LOG_LEVEL"] = "WARNING"


def _use_profile(name: str) -> None:
    """Make a profile the current one of this process."""
    from kinetic._config import profiles

    found = profiles.load(os.environ)
    if found.get(name) is None:
        raise profiles.unknown_profile_error(name, found, way="write --profile {nearest}")
    os.environ["KINETIC_PROFILE"] = name


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that the caller closed (``>&-``), or the first file we open would be one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while (descriptor := os.open(os.devnull, os.O_RDWR)) < number:
                pass  # one before it is closed as well: keep it occupied
            setattr(sys, name, open(descriptor, "r" if number == 0 else "w"))  # noqa: SIM115 - for the whole process


class _SanitizingStream(io.TextIOWrapper):
    """A standard stream that escapes terminal controls, except in text that `_output/terminal.py` marked as safe.

    What is written to a terminal that is gone is lost, and so is a message that cannot be written, so that the exit
    code is the job's.
    """

    wrapped: TextIO
    was_terminal: bool
    has_messages: bool

    def write(self, text: str) -> int:
        """Write a text of one line or of several."""
        if not getattr(text, "is_safe", False) and not text.replace("\n", "").isprintable():
            from kinetic.errors import printable  # not for the help

            text = printable(text)
        try:
            return super().write(text)
        except OSError as error:
            self._leave(error)
            return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        try:
            super().flush()
        except OSError as error:
            self._leave(error)
            super().flush()

    def _leave(self, error: OSError) -> None:
        """Write to /dev/null from here on if the terminal was closed, or for messages; results must not get lost."""
        if not self.has_messages and (error.errno != errno.EIO or not self.was_terminal):
            raise error
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


def _sanitizing(stream: TextIO) -> TextIO:
    """Let a standard stream escape terminal controls; one that is not a file, as in tests, stays as it is."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _SanitizingStream):
        return stream
    # A value may hold what this terminal's encoding cannot represent.
    encoding, at_once, by_line = stream.encoding, stream.write_through, stream.line_buffering
    stream.flush()
    # Not detach(): shutil asks sys.__stdout__, which is this stream, how wide the terminal is.
    sanitizing = _SanitizingStream(
        stream.buffer, encoding, "backslashreplace", line_buffering=by_line, write_through=at_once
    )
    sanitizing.was_terminal = stream.isatty()  # one that is gone does not say so
    sanitizing.has_messages = stream is sys.stderr
    sanitizing.wrapped = stream  # a stream without references closes the file below it
    return sanitizing


def freeze_own_objects() -> None:
    """Keep all that is there out of searches for garbage, also of the last one when the process ends.

    Before code of a user is loaded, what that makes is searched then as in any program: objects in cycles are
    finalized, and libraries (nanobind, in PyTorch's Triton) do not report theirs as leaked.
    """
    if not gc.get_freeze_count():
        gc.freeze()


def main() -> None:
    """Run the console script."""
    gc.set_threshold(_MANY_OBJECTS)
    _open_closed_streams()
    sys.stdout, sys.stderr = _sanitizing(sys.stdout), _sanitizing(sys.stderr)
    try:
        cli(prog_name="kinetic")
    finally:
        freeze_own_objects()  # the process ends: searching all that it has for garbage costs 5 to 10 ms


if __name__ == "__main__":
    main()
