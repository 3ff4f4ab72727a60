"""How a command fails: the message on standard error, and the exit code.

| exit code | meaning |
|---|---|
| 1 | an error |
| 2 | a usage error: nothing was done |
| 124 | the time is over, the job keeps running |
| 125 | the job failed or was cancelled |
| 130 | Ctrl-C |
| 141 | standard output was closed (``| head``); what a shell reports of a program that a closed pipe ends |
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from kinetic._wire.records import JobRecord
    from kinetic.errors import KineticError


ERROR, USAGE, TIME_OVER, JOB_FAILED, INTERRUPTED, PIPE_CLOSED = 1, 2, 124, 125, 130, 141
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_INDENT = " " * len("error: ")
CALLED = "kinetic.called"  # in the meta of click's contexts: the Called command
WORDS = "kinetic.words"  # and what was typed after "kinetic"
_ADVICE = re.compile(r'(--[\w-]+ )?(?<![\w?&-])([a-z]\w*) ?= ?(?:"([^"]+)"|(\w[\w.=]*(?:,\w[\w.=]*)*))')
_OTHER_FLAGS = {"on_done": "--notify"}  # of commands that have none of the option's name


class Called(NamedTuple):
    """The command that is run, and what was typed for it: "kinetic jobs list"."""

    command: click.Command
    path: str


def report(error: BaseException, *, called: Called | None = None, debug: bool = False) -> int:
    """Print what happened, why and what to do next, with `debug` after the traceback; return the exit code.

    Advice that is written in Python is shown as it is typed for the command that was called.
    """
    _redirect_stdout_if_broken()
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    from kinetic.errors import is_debug  # only on the way to an error

    if debug or is_debug():
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if not isinstance(error, click.ClickException):
        return _report_other(error, called)
    what = " ".join(error.format_message().split()).rstrip(".")  # click lists choices on lines of their own
    what = what.replace("a valid integer range", "a whole number").replace("a valid float range", "a number")
    context = getattr(error, "ctx", None)  # None where the parser of options found it
    path = context.command_path if context is not None else called.path if called is not None else "kinetic"
    why, next_ = getattr(error, "why", None), getattr(error, "next", None) or f"{path} -h"
    if isinstance(error, click.NoSuchOption) and (line := in_front(error.option_name)):
        what = f"{path} has no option {error.option_name}"
        why, next_ = "it is an option of kinetic itself, and those come before the command", line
    print_parts(what[:1].lower() + what[1:], code="usage", why=why, next=next_)
    return error.exit_code


def in_front(name: str, of: click.Context | None = None) -> str:
    """Return the command line with an option in its place: of a command right behind it, else of kinetic itself.

    "" where there is no such option, or it was not typed behind that place.
    """
    import shlex  # 2 ms; only on the way to an error

    context = of or click.get_current_context(silent=True)
    if context is None:
        return ""
    words = [*context.meta.get(WORDS, ())]
    at = next((index for index, word in enumerate(words) if word.partition("=")[0] == name), None)
    place = 0 if of is None else words.index(of.info_name) + 1 if of.info_name in words else len(words)
    known = (of or context.find_root()).command.params
    option = next((each for each in known if name in (*each.opts, *each.secondary_opts)), None)
    if option is None or at is None or at < place:
        return ""
    end = at + (1 if "=" in words[at] or getattr(option, "is_flag", False) else 2)
    return shlex.join(["kinetic", *words[:place], *words[at:end], *words[place:at], *words[end:]])


def print_parts(what: str, *, code: str, why: str | None = None, next: str | None = None) -> None:
    """Print the three parts of an error."""
    parts = (("error:", f"{what} [{code}]", "red"), ("why:", why, "yellow"), ("next:", _in_profile(next), "green"))
    from kinetic._output import colors  # only on the way to an error

    for label, text, color in parts:
        if not text:
            continue
        sys.stderr.write(colors.paint(label, color, sys.stderr, bold=True))
        sys.stderr.write(" " * (len(_INDENT) - len(label)))
        sys.stderr.flush()  # click writes to a stream of its own where the encoding is ASCII
        first, *others = text.splitlines()
        click.echo("\n".join([first, *(_INDENT + line.removeprefix(_INDENT) for line in others)]), err=True)


def stop_waiting_for_google(why: str, next_: str) -> NoReturn:
    """End a command on Ctrl-C, and say what Google continues with: no operation can be cancelled."""
    from kinetic._output import terminal

    terminal.leave_line()
    print_parts("stopped waiting; Google continues with what it began", code="interrupted", why=why, next=next_)
    sys.exit(INTERRUPTED)


def _in_profile(advice: str | None) -> str | None:
    """Add the --profile that was typed to the commands of an advice: without it they would look elsewhere."""
    context = click.get_current_context(silent=True)
    whole = context.find_root() if context is not None else None
    profile = whole.params.get("profile") if whole is not None else None
    if not advice or not profile or whole is None or not isinstance(whole.command, click.Group):
        return advice
    from kinetic._config.profiles import LOCAL

    if profile == LOCAL.name:  # jobs of this machine are found with any
        return advice
    command = rf"(?<![\w./-])kinetic (?=(?:{'|'.join(whole.command.list_commands(whole))})\b)"
    return re.sub(command, lambda _: f"kinetic --profile {profile} ", advice)


@contextmanager
def advice_in_python(context: click.Context) -> Iterator[None]:
    """Keep the advice of an error as it is written: it is about the code of the user's file."""
    called = context.meta.pop(CALLED, None)
    yield
    context.meta[CALLED] = called


def as_typed(advice: str, command: click.Command) -> str:
    """Write accelerator="cpu" as it is typed after a command: --accelerator cpu, or cpu where it is an argument."""
    import shlex  # 2 ms; only on the way to an error

    from kinetic._config.options import BY_NAME, RESOURCE_NAMES

    flags = {name for each in command.params if not getattr(each, "is_flag", False) for name in each.opts}
    arguments = {each.human_readable_name.rstrip(".").lower() for each in command.params if each.opts == [each.name]}

    def typed(found: re.Match[str]) -> str:
        name, value = found[2], found[3] or found[4]
        if found[1]:  # it is typed already, as in --option accelerator=gpu-l4
            return found[0]
        if name in RESOURCE_NAMES:
            name, value = "resources", f"{name}={value}"
        if name in arguments:
            return shlex.quote(value)
        flag = next((each for each in (f"--{name.replace('_', '-')}", _OTHER_FLAGS.get(name)) if each in flags), None)
        if flag is not None:
            return f"{flag} {shlex.quote(value)}"
        return f"--option {name}={shlex.quote(value)}" if name in BY_NAME and "--option" in flags else found[0]

    return _ADVICE.sub(typed, advice)


def _report_other(error: BaseException, called: Called | None) -> int:
    from kinetic.errors import JobError, KineticError, ProjectRootError, SettingsError, correct_advice

    if isinstance(error, FileNotFoundError):
        from kinetic._project import root

        try:
            root.current_folder()
        except ProjectRootError as gone:
            error = gone
    if isinstance(error, KineticError):
        from kinetic._output import tracebacks

        for note in getattr(error, "__notes__", ()):
            click.echo(note.removeprefix(tracebacks.REMOTE).rstrip("\n"), err=True)
        correct_advice(error)
        next_ = error.next
        if next_ and called is not None and not isinstance(error, JobError | SettingsError):  # those are about files
            next_ = as_typed(next_, called.command)
        print_parts(error.what, code=error.code, why=error.why, next=next_)
        return exit_code(error)
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        print_parts(
            "a disk is full" + (f": {error.filename}" if error.filename else ", and the output is incomplete"),
            code="disk-full",
            why=f"{error.strerror}; standard output may be a file on it",
            next="free some space, or redirect the output, and run it again; submitted jobs are not affected",
        )
    else:
        from kinetic._output import tracebacks

        print_parts(
            ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split())))),
            code="unexpected",
            why=tracebacks.why_replaced() or "an unexpected error; it may be a bug in kinetic",
            next="to see the traceback, run it again with --debug after kinetic",
        )
    return ERROR


def exit_code(error: KineticError) -> int:
    """Return the exit code for an error of ours."""
    from kinetic import errors

    if isinstance(error, errors.OptionError):
        return USAGE
    if isinstance(error, errors.JobTimeoutError):
        return TIME_OVER
    if isinstance(error, errors.JobNotFoundError | errors.ResultMissingError | errors.ResultUnreadableError):
        return ERROR
    return JOB_FAILED if isinstance(error, errors.JobError) else ERROR


def _redirect_stdout_if_broken() -> None:
    """Redirect standard output if it cannot be written, or Python would complain again when it exits."""
    try:
        sys.stdout.flush()
    except ValueError:  # closed
        return
    except OSError:  # what it still holds cannot be written, now or at the end
        with contextlib.suppress(OSError, ValueError):  # not a file, as in tests
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SuggestionError(click.UsageError):
    """A usage error with a reason, and a command line that can be pasted."""

    def __init__(self, message: str, ctx: click.Context, *, why: str, next: str) -> None:
        super().__init__(message, ctx)
        self.why = why
        self.next = next


def job_keeps_running(handle: JobRecord) -> AbstractContextManager[None]:
    """Report on Ctrl-C that the job keeps running, and how to follow and cancel it."""
    from kinetic._jobs.wait import detaching  # 20 ms; loaded already where a command waits

    return detaching(handle)
