"""``kinetic jobs result``: wait for a job, then print its value or save it.

What is printed is not a copy: a value may not be printable, a terminal forgets. So nothing is removed unless
``--cleanup`` asks for it, and then only after the value has been written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kinetic._cli import failures, interrupting, options, showing, tables
from kinetic._output import gate

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.outcome import Outcome


class Wishes(NamedTuple):
    """What the user asked for."""

    save: Path | None
    as_json: bool
    cleanup: bool
    cleanup_timeout: float


@click.command
@options.on_a_job
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop waiting after this time; exit code 124."
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Save the value as a pickle instead of printing it; it is verified, but not loaded.",
)
@click.option("--force", is_flag=True, help="Let --save replace an existing file.")
@click.option("--cleanup/--no-cleanup", default=False, help="Remove the job afterwards.  [default: no-cleanup]")
@options.confirmation
@options.as_json
@click.pass_context
def result(
    ctx: click.Context,
    handle: JobHandle,
    timeout: float | None,
    save: Path | None,
    force: bool,
    cleanup: bool,
    cleanup_timeout: float,
    cleanup_poll_interval: float,  # noqa: ARG001 - documented; deletion is told here, not polled
    as_json: bool,
) -> None:
    """Wait for a job and print its value, or save it.

    A string is printed as it is, other values by their repr. For a failed job it prints the traceback, with exit code
    125. The result is kept unless you pass --cleanup.

    Example: kinetic jobs result @last --save result.pkl
    """
    from kinetic._jobs import places, waiting

    check_place(save, force=force)
    wishes = Wishes(save, as_json, cleanup, cleanup_timeout)
    with interrupting.job_goes_on(handle):
        seen = waiting.wait(handle, timeout=timeout)
    if seen.outcome is not None:
        places.key_to_read(handle)  # nothing of a store is used unverified
    if seen.outcome is not None and seen.outcome.succeeded:
        _deliver(handle, seen.outcome, wishes)
        code = 0
    else:
        code = _tell_failure(handle, seen, wishes)
    if cleanup and seen.outcome is not None:
        _remove(handle, seen, wishes)
    ctx.exit(code)


def check_place(save: Path | None, *, force: bool) -> None:
    """Refuse a file that cannot be written, or that would be replaced, before anybody waits.

    Raises:
        OptionError: There is no such folder, or the file exists and nobody said to replace it.
    """
    from kinetic.errors import OptionError

    if save is None:
        return
    if not save.parent.is_dir():
        raise OptionError(
            f"there is no folder {save.parent}", why=f"--save {save} writes to it", next=f"mkdir -p {save.parent}"
        )
    if save.exists() and not force:
        raise OptionError(
            f"{save} exists already",
            why="--save does not replace files",
            next="use another name, or add --force",
            code="file-exists",
        )


def _deliver(handle: JobHandle, outcome: Outcome, wishes: Wishes) -> None:
    """Save the value, or open and print it; it has left this process when this returns."""
    if wishes.save is not None:
        size = _save(handle, outcome, wishes.save)
        if wishes.as_json:
            tables.document(**showing.head(handle, outcome), saved_to=str(wishes.save), size_bytes=size)
        click.echo(f"saved the result to {wishes.save}, a pickle of {size} bytes", err=True)
    elif wishes.as_json:
        tables.document(**showing.head(handle, outcome), **showing.page_of(showing.value_of(handle, outcome)))
    else:
        value = showing.value_of(handle, outcome)
        gate.write_job_text(sys.stdout, f"{value if isinstance(value, str) else showing.repr_of(value)}\n")
    sys.stdout.flush()


def _save(handle: JobHandle, outcome: Outcome, path: Path) -> int:
    from kinetic._jobs import places, reading
    from kinetic.errors import KineticError

    try:
        return reading.save(places.store_of(handle), outcome, path)
    except OSError as error:
        if isinstance(error, KineticError):
            raise
        raise KineticError(
            f"the result could not be saved to {path}",
            why=f"{type(error).__name__}: {error.strerror or error}; the result is still in the store",
            next="use a file on another disk or in your own folder",
            code="not-saved",
        ) from error


def _tell_failure(handle: JobHandle, seen: Snapshot, wishes: Wishes) -> int:
    """Tell how the job failed, and return the exit code; what could be removed now has been shown."""
    failure = failures.of_job(handle, seen)
    if wishes.as_json:
        tables.document(**showing.failure(handle, seen, failure))
        sys.stdout.flush()
    return failures.tell(failure)


def _remove(handle: JobHandle, seen: Snapshot, wishes: Wishes) -> None:
    from kinetic._jobs import removing

    removing.after_collection(handle, seen, wait=wishes.cleanup_timeout)
