"""``kinetic jobs logs``: what a job printed, byte for byte."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

import click

from kinetic._cli import failures, interrupting, options, tables

if TYPE_CHECKING:
    from kinetic._backends.protocol import LiveLog
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.looking import Look

_BLOCK_BYTES = 1 << 20
_LOOK_SECONDS = 0.1  # a job flushes its output this often


@click.command
@options.on_a_job
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends; 125 is the exit code if it failed.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--attempt", type=click.IntRange(min=0), metavar="N", help="Of attempt N, from 0; the newest without it.")
@click.option("--host", type=click.IntRange(min=0), default=0, metavar="N", help="Of host N of a slice; 0 without it.")
def logs(handle: JobHandle, follow: bool, tail: int | None, attempt: int | None, host: int) -> None:
    """Print the log of a job.

    Without an option: everything up to now. Ctrl-C stops the printing, never the job.

    Example: kinetic jobs logs @last --follow
    """
    _check(handle, follow=follow, tail=tail, attempt=attempt)
    out = sys.stdout.buffer
    if follow:
        with interrupting.job_goes_on(handle):
            seen = _follow(handle, out, attempt=attempt, host=host)
        if seen.status.is_final and (seen.outcome is None or not seen.outcome.succeeded):
            raise failures.of_job(handle, seen, log_is_shown=True)
        return
    log = _open(handle, attempt=attempt, host=host)
    if log is None:
        _say_why_there_is_none(handle, host)
    elif tail is None:
        _copy(log, out)
    else:
        from kinetic._jobs import logs as logs_

        out.write(logs_.tail_bytes(log, tail))


def _check(handle: JobHandle, *, follow: bool, tail: int | None, attempt: int | None) -> None:
    """Refuse what cannot be meant.

    Raises:
        OptionError: Both --follow and --tail, or an attempt that there was not.
    """
    from kinetic._jobs import logs as logs_
    from kinetic._jobs import places
    from kinetic.errors import OptionError

    if follow and tail is not None:
        raise OptionError(
            "--follow and --tail do not go together",
            why="--follow prints the whole log and what is still to come, --tail only its end",
            next=f"kinetic jobs logs {handle.job_id} --follow",
        )
    if attempt is not None:
        latest = logs_.latest_attempt(places.backend_of(handle), places.store_of(handle), handle.job_id)
        if attempt > latest:
            raise OptionError(
                f"{handle.job_id} has no attempt {attempt}",
                why=f"attempts count from 0, and the newest is {latest}",
                next=f"kinetic jobs logs {handle.job_id} --attempt {latest}",
            )


def _follow(handle: JobHandle, out: IO[bytes], *, attempt: int | None, host: int) -> Look:
    """Print a log as it grows, until the job ends or a later attempt begins than the one that was asked for."""
    from kinetic._jobs import looking, places, waiting

    backend, number, told = places.backend_of(handle), attempt or 0, ""
    follower = waiting.make_follower(handle, attempt=lambda: number, host=host)
    try:
        while True:
            seen = looking.look(handle)
            newest = _attempt_of(seen, number)
            number = newest if attempt is None else attempt
            for data in follower.new_bytes():
                out.write(data)
            out.flush()
            if seen.status.is_final or newest > number:
                return seen
            told = _say_what_it_waits_for(seen, told)
            backend.watch(handle.job_id, seconds=_LOOK_SECONDS)
    finally:
        backend.forget_watch(handle.job_id)


def _attempt_of(seen: Look, known: int) -> int:
    witness = seen.outcome or seen.sighting
    return known if witness is None else max(witness.attempt, 0)


def _say_what_it_waits_for(seen: Look, told: str) -> str:
    reason = seen.sighting.reason if seen.sighting is not None else ""
    if reason and reason != told:
        click.echo(f"{seen.status.value}: {tables.plain(reason)}", err=True)
    return reason


def _open(handle: JobHandle, *, attempt: int | None, host: int) -> LiveLog | None:
    from kinetic._jobs import logs as logs_
    from kinetic._jobs import places

    backend, store = places.backend_of(handle), places.store_of(handle)
    return logs_.open_log(backend, store, handle.job_id, attempt=attempt, host=host)


def _copy(log: LiveLog, out: IO[bytes]) -> None:
    """Copy a log up to its present end, in pieces: it may be larger than the memory."""
    position, size = 0, log.size()
    while position < size and (data := log.read(position, min(_BLOCK_BYTES, size - position))):
        out.write(data)
        position += len(data)


def _say_why_there_is_none(handle: JobHandle, host: int) -> None:
    from kinetic._jobs import listing, looking

    seen = looking.look(handle)
    of_host = f" of host {host}" if host else ""
    state = ", ".join(filter(None, (seen.status.value, tables.plain(listing.reason_of(seen)))))
    click.echo(f"There is no log{of_host}: the job is {state}", err=True)
