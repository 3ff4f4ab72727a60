"""``kinetic jobs logs``: what a job printed, byte for byte."""

from __future__ import annotations

import sys
import time
from typing import IO, TYPE_CHECKING

import click

from kinetic._cli import failures, interrupting, options, tables
from kinetic._cli.prefixed import Prefixed
from kinetic._output import gate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetic._backends.protocol import LiveLog
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.logs import Follower
    from kinetic._jobs.status import Snapshot

Out = IO[bytes] | gate.Terminal | Prefixed
_BLOCK_BYTES = 1 << 20


@click.command
@options.on_a_job
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the job ends; exit code 125 if it failed.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Show only the last N lines.")
@click.option(
    "--attempt", type=click.IntRange(min=0), metavar="N", help="Show attempt N, from 0.  [default: the newest]"
)
@click.option("--host", default="0", metavar="N|all", help="Show host N of a slice, or all hosts.  [default: 0]")
def logs(handle: JobHandle, follow: bool, tail: int | None, attempt: int | None, host: str) -> None:
    """Print the log of a job.

    Without options, it prints the log so far. Ctrl-C stops printing and does not end the job.

    Example: kinetic jobs logs @last --follow
    """
    _check(handle, follow=follow, tail=tail, attempt=attempt)
    hosts = _hosts(handle, host)
    outs: dict[int, Out] = {number: gate.for_bytes(sys.stdout) for number in hosts}
    if host == "all":
        outs = {number: Prefixed(gate.for_bytes(sys.stdout), number) for number in hosts}
    if follow and not _is_history(handle):
        with interrupting.job_goes_on(handle):
            seen = _follow(handle, outs, attempt=attempt)
        if seen.status.is_final and (seen.outcome is None or not seen.outcome.succeeded):
            raise failures.of_job(handle, seen, log_is_shown=True)
        return
    for number, out in outs.items():
        _print(handle, out, attempt=attempt, host=number, tail=tail)


def _is_history(handle: JobHandle) -> bool:
    """Return whether a job was collected: there is nothing to follow, only a log to print."""
    from kinetic._jobs.status import past_of

    return past_of(handle) is not None


def _print(handle: JobHandle, out: Out, *, attempt: int | None, host: int, tail: int | None) -> None:
    log = _open(handle, attempt=attempt, host=host)
    if log is None:
        _say_why_there_is_none(handle, host)
    elif tail is None:
        _copy(log, out)
    else:
        from kinetic._jobs import logs as logs_

        out.write(logs_.tail_bytes(log, tail))
    _finish(out)


def _finish(out: Out) -> None:
    if isinstance(out, Prefixed):
        out.finish()


def _hosts(handle: JobHandle, wanted: str) -> list[int]:
    """Return the hosts whose logs are wanted.

    Raises:
        OptionError: The slice has no such host.
    """
    from kinetic._jobs import places
    from kinetic.errors import OptionError

    count = places.hosts_of(handle)
    if wanted == "all":
        return list(range(count))
    if wanted.isdigit() and int(wanted) < count:
        return [int(wanted)]
    raise OptionError(
        f"{handle.job_id} has no host {wanted}",
        why="it runs on one host, 0" if count == 1 else f"{handle.accelerator} has {count} hosts, 0 to {count - 1}",
        next=f"kinetic jobs logs {handle.job_id} --host all",
    )


def _check(handle: JobHandle, *, follow: bool, tail: int | None, attempt: int | None) -> None:
    """Refuse what cannot be meant.

    Raises:
        OptionError: Both --follow and --tail, or an attempt that there was not.
    """
    from kinetic._jobs import logs as logs_
    from kinetic._jobs import places
    from kinetic._jobs.status import past_of
    from kinetic.errors import OptionError

    if follow and tail is not None:
        raise OptionError(
            "--follow and --tail cannot be used together",
            why="--follow prints the whole log and new lines, --tail only its end",
            next=f"kinetic jobs logs {handle.job_id} --follow",
        )
    if attempt is not None:
        past = past_of(handle)
        latest = (
            logs_.latest_kept(past)
            if past is not None
            else logs_.latest_attempt(places.backend_of(handle), places.store_of(handle), handle.job_id)
        )
        if attempt > latest:
            raise OptionError(
                f"{handle.job_id} has no attempt {attempt}",
                why=f"attempts are counted from 0, and the newest is {latest}",
                next=f"kinetic jobs logs {handle.job_id} --attempt {latest}",
            )


def _follow(handle: JobHandle, outs: dict[int, Out], *, attempt: int | None) -> Snapshot:
    """Print a log as it grows, until the job ends or a later attempt begins than the one that was asked for."""
    from kinetic._jobs import places, waiting
    from kinetic._jobs.status import observe

    backend, newest, told = places.backend_of(handle), waiting.Attempt(handle), ""

    def wanted() -> int:
        return newest() if attempt is None else attempt

    followers = [(waiting.make_follower(handle, attempt=wanted, host=host), out) for host, out in outs.items()]
    try:
        while True:
            seen = observe(handle)
            newest.see(seen)
            is_over = seen.status.is_final or newest() > wanted()
            _print_news(followers, last=is_over)
            if is_over:
                for out in outs.values():
                    _finish(out)
                sys.stdout.flush()
                return seen
            told = _say_what_it_waits_for(seen, told)
            looked = backend.clock.monotonic()
            while not waiting.has_news(backend, handle, pause=backend.log_seconds, looked=looked):
                _print_news(followers)
    finally:
        for follower, _ in followers:
            follower.close()
        backend.forget_watch(handle.job_id)


def _print_news(followers: Sequence[tuple[Follower, Out]], *, last: bool = False) -> None:
    for follower, out in followers:
        for data in follower.new_bytes(last=last):
            out.write(data)
    sys.stdout.flush()


def _say_what_it_waits_for(seen: Snapshot, told: str) -> str:
    reason = seen.sighting.reason if seen.sighting is not None else ""
    if reason and reason != told:
        click.echo(f"{seen.status.value}: {tables.plain(reason)}", err=True)
    return reason


def _open(handle: JobHandle, *, attempt: int | None, host: int) -> LiveLog | None:
    from kinetic._jobs import logs as logs_

    return logs_.log_of(handle, attempt=attempt, host=host)


def _copy(log: LiveLog, out: Out) -> None:
    """Copy a log up to its present end, in pieces: it may be larger than the memory."""
    position, size = 0, log.size()
    while position < size and (data := log.read(position, min(_BLOCK_BYTES, size - position))):
        out.write(data)
        position += len(data)


def _say_why_there_is_none(handle: JobHandle, host: int) -> None:
    from kinetic._jobs import describing
    from kinetic._jobs.status import observe

    page = describing.page_of(handle, observe(handle))
    of_host = f" of host {host}" if host else ""
    state = ", ".join(filter(None, (tables.status(page, time.time()), tables.plain(page["reason"]))))
    click.echo(f"There is no log{of_host}: the job is {state}", err=True)
