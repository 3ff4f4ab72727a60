"""``kinetic jobs cancel`` and ``kinetic jobs cleanup``: ending jobs, and removing what is left of them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic import _output as output
from kinetic._cli import error_output, shared_options
from kinetic._output import format as output_format
from kinetic._output.format import Column, age_text, size_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kinetic._backends.protocol import Stacks
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot


@click.command
@shared_options.job_argument
@shared_options.cleanup_options
def cancel(handle: JobHandle, cleanup_timeout: float, cleanup_poll_interval: float) -> None:  # noqa: ARG001 - documented
    """Cancel a job; its log is kept.

    A job that has already ended, and its result, are kept.

    Example: kinetic jobs cancel @last
    """
    from kinetic._jobs import remove

    if remove.cancel(handle, wait=cleanup_timeout):
        click.echo(f"{handle.job_id} is cancelled; its log: kinetic jobs logs {handle.job_id}", err=True)
    else:
        click.echo(remove.why_not_cancelled(handle), err=True)


@click.command
@click.argument("job_id", required=False, metavar="[JOB_ID]", shell_complete=shared_options.complete_jobs)
@click.option("--all", "everything", is_flag=True, help="Remove all jobs that have ended.")
@click.option(
    "--older-than",
    type=shared_options.Duration(),
    metavar="AGE",
    help="With --all: only jobs that ended longer ago than this, such as 7d.",
)
@click.option("--dry-run", is_flag=True, help="With --all: show the jobs, and remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="With --all: do not ask for confirmation.")
@click.option(
    "--k8s/--no-k8s",
    default=True,
    help="Remove the processes, the queue entry and the working folder, or the Kubernetes objects.",
)
@click.option("--gcs/--no-gcs", default=True, help="Remove the stored files: result, log and record.")
@shared_options.cleanup_options
@shared_options.place_options
@shared_options.json_option
def cleanup(
    job_id: str | None,
    everything: bool,
    older_than: float | None,
    dry_run: bool,
    yes: bool,
    k8s: bool,
    gcs: bool,
    cleanup_timeout: float,
    cleanup_poll_interval: float,  # noqa: ARG001 - documented; the end is told, not polled
    as_json: bool,
    **place: str | None,
) -> None:
    """Remove a job and its stored files, or many jobs.

    A running job is stopped first. With --all instead of an id: every job that has ended; pending and running jobs
    are not affected. Files in KINETIC_OUTPUT_DIR are always kept.

    Example: kinetic jobs cleanup --all --older-than 7d
    """
    wishes = CleanupRequest(k8s, gcs, cleanup_timeout)
    if everything and job_id is None:
        cleanup_all(wishes, older_than=older_than, dry_run=dry_run, yes=yes, as_json=as_json, place=place)
        return
    if job_id is None:
        raise click.UsageError("pass a job id, or --all for all jobs that have ended")
    if everything or older_than is not None or dry_run:
        raise click.UsageError("--all, --older-than and --dry-run cannot be used with a job id")
    _cleanup_one(shared_options.find_job(job_id, **place), wishes, as_json=as_json)


class CleanupRequest(NamedTuple):
    """What is to be removed of a job.

    Attributes:
        resource: The queue's row, the processes, the working folder.
        artifacts: Result, log and record.
        timeout: Seconds to wait until processes are gone.
    """

    resource: bool
    artifacts: bool
    timeout: float

    def check(self, command: str) -> None:
        """Refuse to remove nothing.

        Raises:
            OptionError: Neither of the two is wanted.
        """
        from kinetic.errors import OptionError

        if not (self.resource or self.artifacts):
            raise OptionError(
                "there is nothing to remove",
                why="--no-k8s and --no-gcs together remove nothing",
                next=command,
            )


def _cleanup_one(handle: JobHandle, wishes: CleanupRequest, *, as_json: bool) -> None:
    from kinetic._jobs import remove
    from kinetic._jobs.status import observe_many

    wishes.check(f"kinetic jobs cleanup {handle.job_id}")
    (seen,) = observe_many([handle])  # a damaged result is no obstacle: removing needs no reading
    remove.remove(handle, seen, resource=wishes.resource, artifacts=wishes.artifacts, wait=wishes.timeout)
    ended = "" if seen.status.is_final else f"it was {seen.status.value} and was stopped; "
    both = wishes.resource and wishes.artifacts
    kept = "" if both else "its stored files are kept; " if wishes.resource else "its resource is kept; "
    click.echo(f"{handle.job_id} is removed; {ended}{kept}its history: kinetic jobs list --all", err=True)
    if as_json:
        output_format.print_document(removed=[handle.job_id])


COLUMNS = (
    Column("JOB ID"),
    Column("FUNCTION", spare=2),
    Column("STATUS"),
    Column("ENDED", spare=1),
    Column("SIZE", right=True),
)


class EndedJob(NamedTuple):
    """A job that has ended, and what removing it frees."""

    handle: JobHandle
    seen: Snapshot
    when: float
    size_bytes: int


def cleanup_all(
    wishes: CleanupRequest,
    *,
    older_than: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    place: Mapping[str, str | None],
) -> None:
    """Remove every job that has ended.

    Args:
        wishes: What of each.
        older_than: Seconds: only those that ended longer ago.
        dry_run: Show them, and remove nothing.
        yes: Do not ask.
        as_json: Print a document instead of a table.
        place: Where to look.

    Raises:
        OptionError: There is no terminal to ask in, and no --yes.
    """
    command = "kinetic jobs cleanup --all" + (
        f" --older-than {shared_options.duration_argument(older_than)}" if older_than else ""
    )
    wishes.check(command)
    with output.phase("looking at the jobs", summary=False):
        found = _ended_jobs(place, older_than)
    if found and not as_json:
        output_format.print_table(COLUMNS, [_cells(job) for job in found])
        sys.stdout.flush()
    if not found or dry_run:
        click.echo(_sentence(found, "would be removed", "nothing to remove: "), err=True)
        removed: list[EndedJob] = []
    else:
        if not yes and not _is_confirmed(found, f"{command} --yes"):
            click.echo("nothing was removed", err=True)
            return
        removed = [job for job in found if _remove(job, wishes)]
        click.echo(f"{_sentence(removed, 'removed')}; their history: kinetic jobs list --all", err=True)
    if as_json:
        output_format.print_document(jobs=[_page(job, removed=job in removed) for job in found])


def _ended_jobs(place: Mapping[str, str | None], older_than: float | None) -> list[EndedJob]:
    """Find the jobs that have ended or were cancelled, newest first, and long enough ago."""
    from kinetic._jobs import find, locate
    from kinetic._jobs.status import observe_many
    from kinetic._wire import keys

    handles = find.list_stored_jobs(**place)
    now, found = time.time(), []
    for handle, seen in zip(handles, observe_many(handles), strict=True):
        outcome = seen.outcome
        if not seen.status.is_final:
            continue
        when = (outcome.ended if outcome else None) or (seen.observation.ended if seen.observation else None)
        when = when or keys.parse_utc(handle.created_at) or now  # unknown: certainly not too old
        if older_than is None or now - when > older_than:
            size = sum(entry.size for entry in locate.store_of(handle).entries(f"{handle.job_id}/"))
            found.append(EndedJob(handle, seen, when, size))
    return found


def _is_confirmed(found: Sequence[EndedJob], command: str) -> bool:
    """Ask a person; where there is none, nothing is removed.

    Raises:
        OptionError: There is no terminal.
    """
    if not shared_options.is_interactive():
        from kinetic.errors import OptionError

        raise OptionError(
            f"nothing was removed: {_count(found)} would be removed",
            why="not a terminal: pass --yes to confirm",
            next=command,
        )
    waiting = sum(job.seen.outcome is not None and job.seen.outcome.succeeded for job in found)
    results = (
        f", with {'1 uncollected result' if waiting == 1 else f'{waiting} uncollected results'}" if waiting else ""
    )
    return shared_options.confirm(f"Remove {_count(found)}{results}?")


def _remove(job: EndedJob, wishes: CleanupRequest) -> bool:
    """Remove one job; one that cannot be removed does not keep the others."""
    from kinetic._jobs import remove
    from kinetic.errors import KineticError

    try:
        remove.remove(job.handle, job.seen, resource=wishes.resource, artifacts=wishes.artifacts, wait=wishes.timeout)
    except KineticError as error:
        click.echo(f"warning: {job.handle.job_id} could not be removed: {output_format.plain(error.what)}", err=True)
        return False
    return True


def _sentence(jobs: Sequence[EndedJob], verb: str, start: str = "") -> str:
    return f"{start if not jobs else ''}{_count(jobs)} {verb}, {size_text(sum(job.size_bytes for job in jobs))}"


def _count(jobs: Sequence[EndedJob]) -> str:
    return "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _cells(job: EndedJob) -> list[str]:
    ended = f"{age_text(time.time() - job.when)} ago"
    return [job.handle.job_id, job.handle.func_name, _status(job), ended, size_text(job.size_bytes)]


def _status(job: EndedJob) -> str:
    """Return what a list with ``--all`` says as well: nobody else is shown that a cancelled job is NOT_FOUND."""
    outcome = job.seen.outcome
    cancelled = outcome is not None and outcome.status == "cancelled"
    return "CANCELLED" if cancelled else job.seen.status.value


def _page(job: EndedJob, *, removed: bool) -> dict[str, Any]:
    from kinetic._wire import keys

    return {
        "job_id": job.handle.job_id,
        "function": job.handle.func_name,
        "status": _status(job),
        "ended_at": keys.format_utc(job.when),
        "size_bytes": job.size_bytes,
        "removed": removed,
    }


@click.command
@shared_options.job_argument
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=5678,
    show_default=True,
    metavar="N",
    help="The local port for the editor.",
)
@click.option("--host", type=click.IntRange(min=0), default=0, metavar="N", help="Use host N of a slice.  [default: 0]")
def debug(handle: JobHandle, port: int, host: int) -> None:
    """Attach a debugger to a job that was submitted with debug=True.

    Waits for the job's debug server, prints the launch.json for VS Code, and forwards the port until the job ends.
    Ctrl-C closes the port and does not end the job.

    Example: kinetic jobs debug @last --port 5679
    """
    from kinetic._inspect import debugger, port_forward
    from kinetic._jobs import wait

    with error_output.job_keeps_running(handle):
        process = debugger.attach(handle, local_port=port, host=host)
        try:
            seen = wait.wait(handle)
        finally:
            port_forward.stop(process)
    click.echo(f"{handle.job_id} has ended: {seen.status.value}", err=True)


@click.command
@shared_options.job_argument
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--host", type=click.IntRange(min=0), default=0, metavar="N", help="Use host N of a slice.  [default: 0]")
@click.pass_context
def shell(ctx: click.Context, /, handle: JobHandle, command: tuple[str, ...], host: int) -> None:
    """Open a shell in a running job, or run a command there.

    It has the job's environment variables and working directory; on a cluster it runs in the job's container. The job
    is not affected. The exit code is the one of the shell or the command.

    Example: kinetic jobs shell @last -- nvidia-smi
    """
    from kinetic._inspect import debugger

    sys.stdout.flush()
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    ctx.exit(debugger.run_in(handle, command, host=host, tty=tty))


@click.command
@shared_options.job_argument
@click.option("--host", default="all", metavar="N|all", help="Show host N of a slice.  [default: all]")
@shared_options.json_option
@click.pass_context
def stacks(ctx: click.Context, /, handle: JobHandle, host: str, as_json: bool) -> None:
    """Print the stack of each thread of a running job.

    The job keeps running, and a job that hangs in C code answers as well. The innermost call comes
    first. The exit code is 1 if a host did not answer.

    Example: kinetic jobs stacks @last
    """
    from kinetic._inspect import debugger

    found = debugger.stacks(handle, host=_host(handle, host))
    if as_json:
        output_format.print_document(job_id=handle.job_id, hosts=[each._asdict() for each in found])
    else:
        _print_stacks(found)
    for each in found:
        if each.why:
            error_output.print_parts(
                f"host {each.host} of {handle.job_id} did not answer",
                code="no-stacks",
                why=each.why,
                next=f"kinetic jobs explain {handle.job_id}",
            )
    ctx.exit(error_output.ERROR if any(each.why for each in found) else 0)


def _host(handle: JobHandle, wanted: str) -> int | None:
    """Return which host is meant; None for all.

    Raises:
        OptionError: It is no number.
    """
    if wanted == "all":
        return None
    if wanted.isdecimal():
        return int(wanted)
    from kinetic.errors import OptionError

    raise OptionError(
        f"{wanted!r} is not a valid host",
        why="a host is a number, from 0, or all",
        next=f"kinetic jobs stacks {handle.job_id} --host all",
    )


def _print_stacks(found: list[Stacks]) -> None:
    for each in found:
        if each.text and len(found) > 1:
            sys.stdout.write(f"host {each.host}\n\n")
        if each.text:
            sys.stdout.write(each.text if each is found[-1] else f"{each.text.rstrip()}\n\n")
    sys.stdout.flush()
