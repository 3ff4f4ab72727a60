"""How a command ends badly: the words on standard error, and the exit code.

| exit code | meaning |
|---|---|
| 1 | an error |
| 2 | a mistake on the command line: nothing was done |
| 124 | the time is over, the job goes on |
| 125 | the job failed or was cancelled |
| 130 | Ctrl-C |
| 141 | nobody reads standard output any more (``| head``); what a shell says of a program that a closed pipe ends |
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot
    from kinetic.errors import KineticError


ERROR, USAGE, TIME_OVER, JOB_FAILED, INTERRUPTED, PIPE_CLOSED = 1, 2, 124, 125, 130, 141
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_INDENT = " " * len("error: ")
_LONGEST_SENTENCE = 500  # characters of a job's own message; the whole of it stands in the traceback


def report(error: BaseException, *, debug: bool = False) -> int:
    """Say on standard error what happened, why and what to do next; return the exit code.

    Args:
        error: What ended the command.
        debug: Show the traceback first.
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, OSError):
        _redirect_stdout_if_broken()
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    if debug or os.environ.get("KINETIC_DEBUG", "") not in {"", "0"}:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if isinstance(error, click.ClickException):
        return _report_usage(error)
    return _report_own(error)


def print_parts(what: str, *, code: str, why: str | None = None, next: str | None = None) -> None:  # noqa: A002 - as in errors.py
    """Print the three parts of an error."""
    parts = (("error:", f"{what} [{code}]", "red"), ("why:", why, "yellow"), ("next:", next, "green"))
    for label, text, colour in parts:
        if text:
            _write_label(label.ljust(len(_INDENT)), colour)
            click.echo(_indented(text), err=True)


def job_error(handle: JobHandle, seen: Snapshot, *, log_is_shown: bool = False) -> KineticError:
    """Return what stands for a job that ended without a value; the user's exception in words: it is not opened.

    Args:
        handle: The job.
        seen: How it ended.
        log_is_shown: The user has its whole log in sight, and with it the traceback.
    """
    from dataclasses import replace

    from kinetic._jobs import locate, results
    from kinetic.errors import JobError

    outcome, logs = seen.outcome, f"kinetic jobs logs {handle.job_id}"
    if outcome is None:
        return _error_without_outcome(handle, seen)
    error = outcome.error
    if outcome.cause in {"exception", "exit"} and "type" in error:
        kind = error["type"] if error.get("module") in {None, "builtins"} else f"{error['module']}.{error['type']}"
        first, *_ = str(error.get("message", "")).splitlines() or [""]
        raised = JobError(
            f"{handle.func_name} raised {kind}" + (f": {first[:_LONGEST_SENTENCE]}" if first else ""),
            why="it was raised in the job; the traceback above is the job's",
            next=logs,
            code="job-failed",
        )
        if not log_is_shown:
            results.attach_remote_traceback(raised, error.get("traceback"))
        return raised
    failed = results.failure_of(locate.store_of(handle), replace(outcome, body_length=0), handle.func_name)
    assert isinstance(failed, Exception)  # noqa: S101 - without a body it is always in our words
    return _as_kinetic_error(failed)


def _as_kinetic_error(error: BaseException) -> KineticError:
    from kinetic.errors import JobError, KineticError

    return error if isinstance(error, KineticError) else JobError(str(error))


def _error_without_outcome(handle: JobHandle, seen: Snapshot) -> KineticError:
    from kinetic.errors import JobError
    from kinetic.job_status import JobStatus

    if seen.status is JobStatus.FAILED:
        return JobError(
            f"{handle.func_name} was lost",
            why="its process ended without a result",
            next=f"kinetic jobs logs {handle.job_id}",
            code="lost",
        )
    return _as_kinetic_error(handle.exception(timeout=0) or JobError(f"{handle.job_id} has no result"))


def _report_usage(error: click.ClickException) -> int:
    """Tell a mistake on the command line in the same three parts."""
    text = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    help_line = f"{context.command_path} -h" if context is not None else "kinetic -h"
    print_parts(
        text[:1].lower() + text[1:],
        code="usage",
        why=getattr(error, "why", None),
        next=getattr(error, "next", None) or help_line,
    )
    return error.exit_code


def _report_own(error: BaseException) -> int:
    from kinetic.errors import KineticError

    if isinstance(error, OSError) and error.errno in _NO_ROOM and not isinstance(error, KineticError):
        print_parts(
            "a disk is full" + (f": {error.filename}" if error.filename else ", and the output is incomplete"),
            code="disk-full",
            why=f"{error.strerror}; standard output may be a file on it",
            next="free some space, or redirect the output, and run it again; a submitted job keeps running",
        )
        return ERROR
    if not isinstance(error, KineticError):
        text = " ".join(str(error).split())
        print_parts(
            f"{type(error).__name__}: {text}" if text else type(error).__name__,
            code="unexpected",
            why="an unexpected error; it may be a bug in kinetic",
            next="to see the traceback, run it again with --debug after kinetic",
        )
        return ERROR
    from kinetic._output import tracebacks

    for note in getattr(error, "__notes__", ()):
        click.echo(note.removeprefix(tracebacks.REMOTE).rstrip("\n"), err=True)
    print_parts(error.what, code=error.code, why=error.why, next=error.next)
    return exit_code(error)


def exit_code(error: KineticError) -> int:
    """Return the exit code that stands for an error of ours."""
    from kinetic import errors

    if isinstance(error, errors.OptionError):
        return USAGE
    if isinstance(error, errors.JobTimeoutError):
        return TIME_OVER
    if isinstance(error, errors.JobNotFoundError | errors.ResultMissingError | errors.ResultUnreadableError):
        return ERROR
    return JOB_FAILED if isinstance(error, errors.JobError) else ERROR


def _indented(text: str) -> str:
    """Put the lines after the first below its beginning; those that our errors have indented already stay."""
    first, *others = text.splitlines()
    return "\n".join([first, *(_INDENT + line.removeprefix(_INDENT) for line in others)])


def _write_label(label: str, colour: str) -> None:
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        from kinetic._output.format import Sanitized  # the colour is ours

        sys.stderr.write(Sanitized(click.style(label, fg=colour, bold=True)))
    else:
        click.echo(label, err=True, nl=False)


def _redirect_stdout_if_broken() -> None:
    """Point standard output elsewhere, or Python would complain once more while it shuts down."""
    with contextlib.suppress(ValueError):  # closed
        try:
            sys.stdout.flush()
        except OSError:  # what it still holds cannot be written, now or at the end
            _redirect_stdout()


def _redirect_stdout() -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # it is no file, as in tests
        return


class SuggestionError(click.UsageError):
    """Say what is wrong with a command line, why, and what was probably meant.

    Args:
        message: What is wrong.
        ctx: The command that found it.
        why: The reason, or what there is to choose from.
        next: A command line.
    """

    def __init__(self, message: str, ctx: click.Context, *, why: str, next: str) -> None:  # noqa: A002 - as in errors.py
        super().__init__(message, ctx)
        self.why = why
        self.next = next


def job_keeps_running(handle: JobHandle) -> AbstractContextManager[None]:
    """Say on Ctrl-C that the job keeps running, and how to follow and to cancel it."""
    from kinetic._jobs.wait import detaching  # 20 ms; who waits has it already

    return detaching(handle)
