"""``kinetic jobs result``: what a job returned.

What is printed is not a copy: a value may not be printable, a terminal forgets. So nothing is removed unless
``--cleanup`` asks for it, and then only after the value has been written.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from kinetic._cli import error_output, shared_options
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.job_text import JobOutput, write_value
from kinetic._wire import keys
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.outcomes import Outcome
    from kinetic._wire.records import JobRecord


def load_value(handle: JobRecord, outcome: Outcome) -> Any:
    """Open the value; where its modules are missing, advise how to load it."""
    from kinetic._cli import main
    from kinetic._jobs import locate, results
    from kinetic.errors import ResultUnreadableError

    main.freeze_own_objects()
    try:
        return results.value_of(locate.store_of(handle), outcome, handle.func_name)
    except ResultUnreadableError as error:
        if isinstance(error.__cause__, ImportError):
            error.next = (
                f"run in the project's folder, with its Python: PYTHONPATH=. python -m kinetic jobs result "
                f"{handle.job_id}     "
                f"or save it without loading: kinetic jobs result {handle.job_id} --save result.pkl"
            )
        raise


def job_page(handle: JobRecord, outcome: Outcome | None, *, status: str = "SUCCEEDED") -> dict[str, Any]:
    """Return for JSON which job it was, and when it ran."""
    return {
        "job_id": handle.job_id,
        "function": handle.func_name,
        "status": status,
        "started_at": keys.format_utc(outcome.started) if outcome and outcome.started else None,
        "ended_at": keys.format_utc(outcome.ended) if outcome and outcome.ended else None,
    }


def failure_page(handle: JobRecord, seen: Snapshot, failure: KineticError) -> dict[str, Any]:
    """Return for JSON what is known of a job that left no value."""
    error = dict(seen.outcome.error) if seen.outcome is not None else {}
    error = error if output_format.is_json(error) else {"message": str(error.get("message", ""))}
    told = {**error, "told": failure.what, "code": failure.code}
    return {**job_page(handle, seen.outcome, status=seen.status.value), "error": told}


def failure_of(
    handle: JobRecord, seen: Snapshot, *, as_json: bool, log_is_shown: bool = True, **more: object
) -> KineticError:
    """Return the error of a job that left no value; it is printed as JSON already, where that is wanted."""
    from kinetic._inspect import explanation

    failure = explanation.job_error(handle, seen, log_is_shown=log_is_shown)
    if as_json:
        output_format.print_document(**failure_page(handle, seen, failure), **more)
        sys.stdout.flush()
    return failure


def follow_to_end(handle: JobRecord, stream: TextIO) -> Snapshot:
    """Write the log of a job to a stream until the job ends; Ctrl-C detaches."""
    from kinetic._jobs import wait

    log, progress = _Log(stream), output.Progress()
    try:
        with error_output.job_keeps_running(handle):
            try:
                seen = wait.wait(handle, follow=log, progress=progress)
            except OSError as error:  # as of a full disk behind the stream: the job may have ended meanwhile
                _report_if_ended(handle, error)
                raise
    except SystemExit:  # `kinetic dev` ends this process, and writes to the same terminal
        log.end_line()
        progress.end()
        raise
    log.end_line()
    progress.wrote("\n")
    progress.end()
    return seen


def _report_if_ended(handle: JobRecord, error: OSError) -> None:
    """Print that a job has ended whose log cannot be written, so that it is not said to keep running."""
    from kinetic._jobs import status
    from kinetic._output import tracebacks

    with contextlib.suppress(KineticError):  # nothing can be said of it then
        if not isinstance(error, BrokenPipeError) and status.has_ended(handle):
            output.report(f"{handle.job_id} has ended; its log: kinetic jobs logs {handle.job_id}")
            tracebacks.mark_told(error)


class _Log:
    """Writes the log of a job, and knows whether it left a line open."""

    def __init__(self, stream: TextIO) -> None:
        self._output = JobOutput(lambda: stream)
        self._last = "\n"

    def __call__(self, text: str) -> None:
        """Write what is new."""
        self._output.write(text)
        self._last = text[-1:] or self._last

    def end(self) -> None:
        """Write what is held back."""
        self._output.end()

    def end_line(self) -> None:
        """Let what follows begin on a new line."""
        if self._last != "\n":
            self("\n")
            self.end()


@click.command
@shared_options.job_argument
@shared_options.timeout_option("Stop waiting")
@shared_options.save_options(
    "Save the value as a pickle instead of printing it; it is verified, but not loaded.", "Remove the job"
)
@shared_options.cleanup_options
@shared_options.json_option
@click.pass_context
def result(
    ctx: click.Context,
    handle: JobRecord,
    timeout: float | None,
    save: Path | None,
    force: bool,
    cleanup: bool,
    cleanup_timeout: float,
    as_json: bool,
) -> None:
    """Wait for a job and print its value, or save it.

    A string is printed as it is, other values by their repr. For a failed job it prints the traceback, with exit code
    125. The result is kept unless you pass --cleanup.

    Example: kinetic jobs result @last --save result.pkl
    """
    from kinetic._jobs import collect, locate, wait

    check_save_path(save, force=force)
    with error_output.job_keeps_running(handle):
        seen = wait.wait(handle, timeout=timeout)
    code = 0
    if seen.outcome is not None:
        locate.key_to_read(handle)  # nothing of a store is used unverified
    if seen.outcome is not None and seen.outcome.succeeded:
        _deliver(handle, seen.outcome, save, as_json=as_json)
    else:
        code = error_output.report(failure_of(handle, seen, as_json=as_json, log_is_shown=False))
    if cleanup and seen.outcome is not None:
        collect.after_collection(handle, seen, wait=cleanup_timeout)
    ctx.exit(code)


_OTHER_FORMATS = frozenset((".csv", ".h5", ".json", ".npy", ".npz", ".parquet", ".txt", ".yaml"))  # by their names


def check_save_path(save: Path | None, *, force: bool) -> None:
    """Refuse, before waiting, a file that cannot be written or would be replaced without --force."""
    if save is None:
        return
    if not save.parent.is_dir():
        raise OptionError(
            f"there is no folder {save.parent}", why=f"--save {save} writes to it", next=f"mkdir -p {save.parent}"
        )
    if save.exists() and not save.is_file():
        raise OptionError(
            f"{save} is not a regular file",
            why="--save would put one in its place",
            next=f"save to a file and read it: --save result.pkl && cat result.pkl > {save}",
            code="file-exists",
        )
    if save.exists() and not force:
        raise OptionError(
            f"{save} exists already",
            why="--save does not replace files",
            next="use another name, or add --force",
            code="file-exists",
        )
    if str(save) == "-":
        raise OptionError("--save writes into a file, and not to standard output", next="leave it out, or pass --json")
    if save.suffix.lower() in _OTHER_FORMATS:
        json = "; for JSON, instead of --save: --json" if save.suffix.lower() == ".json" else ""
        output.warn(f"{save} will be a pickle, whatever its name", next=f"--save {save.with_suffix('.pkl')}{json}")


def _deliver(handle: JobRecord, outcome: Outcome, save: Path | None, *, as_json: bool) -> None:
    """Save the value, or open and print it; it has left this process when this returns."""
    if save is not None:
        size = _save(handle, outcome, save)
        if as_json:
            output_format.print_document(**job_page(handle, outcome), saved_to=str(save), size_bytes=size)
        click.echo(f"saved the result to {save}, a pickle of {size} bytes", err=True)
    else:
        value = load_value(handle, outcome)
        if as_json:
            output_format.print_document(**job_page(handle, outcome), **output_format.value_page(value))
        else:
            write_value(sys.stdout, f"{value if isinstance(value, str) else output_format.value_repr(value)}\n")
    sys.stdout.flush()


def _save(handle: JobRecord, outcome: Outcome, path: Path) -> int:
    from kinetic._jobs import locate, results

    try:
        return results.save(locate.store_of(handle), outcome, path)
    except OSError as error:
        if isinstance(error, KineticError):
            raise
        raise KineticError(
            f"the result could not be saved to {path}",
            why=f"{type(error).__name__}: {error.strerror or error}; the result is still in the store",
            next="use a file on another disk or in your own folder",
            code="not-saved",
        ) from error
