"""``kinetic jobs cancel`` and ``kinetic jobs cleanup``: ending jobs, and removing what is left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from kinetic._cli import completing, durations, options, tables

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle


@click.command
@options.on_a_job
@options.confirmation
def cancel(handle: JobHandle, cleanup_timeout: float, cleanup_poll_interval: float) -> None:  # noqa: ARG001 - documented
    """Cancel a job; its log stays.

    A job that has ended already stays as it is, and its result with it.

    Example: kinetic jobs cancel @last
    """
    from kinetic._jobs import removing

    if removing.cancel(handle, wait=cleanup_timeout):
        click.echo(f"{handle.job_id} is cancelled; its log: kinetic jobs logs {handle.job_id}", err=True)
    else:
        click.echo(removing.why_not_cancelled(handle), err=True)


@click.command
@click.argument("job_id", required=False, metavar="[JOB_ID]", shell_complete=completing.jobs)
@click.option("--all", "everything", is_flag=True, help="All jobs that have ended, instead of one.")
@click.option(
    "--older-than", type=durations.Duration(), metavar="AGE", help="With --all: those that ended before then, as in 7d."
)
@click.option("--dry-run", is_flag=True, help="With --all: show which, and remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="With --all: do not ask.")
@click.option("--k8s/--no-k8s", default=True, help="The resource: here the queue's row, processes, working folder.")
@click.option("--gcs/--no-gcs", default=True, help="The stored artifacts: result, log and record.")
@options.confirmation
@options.where
@options.as_json
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
    """Remove a job and what is stored of it, or many.

    A job that still runs is ended first. With --all instead of an id: every job that has ended; those that wait or run
    are left alone. The files that a job wrote into KINETIC_OUTPUT_DIR always stay.

    Example: kinetic jobs cleanup --all --older-than 7d
    """
    wishes = Wishes(k8s, gcs, cleanup_timeout)
    if everything and job_id is None:
        from kinetic._cli import clearing

        clearing.clear(wishes, older_than=older_than, dry_run=dry_run, yes=yes, as_json=as_json, place=place)
        return
    if job_id is None:
        raise click.UsageError("name a job, or add --all for every job that has ended")
    if everything or older_than is not None or dry_run:
        raise click.UsageError("--all, --older-than and --dry-run do not go together with the id of one job")
    _cleanup_one(options.find(job_id, **place), wishes, as_json=as_json)


class Wishes(NamedTuple):
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
                why="--no-k8s and --no-gcs together leave everything as it is",
                next=command,
            )


def _cleanup_one(handle: JobHandle, wishes: Wishes, *, as_json: bool) -> None:
    from kinetic._jobs import removing
    from kinetic._jobs.status import observe_many

    wishes.check(f"kinetic jobs cleanup {handle.job_id}")
    (seen,) = observe_many([handle])  # a damaged result is no obstacle: removing needs no reading
    removing.remove(handle, seen, resource=wishes.resource, artifacts=wishes.artifacts, wait=wishes.timeout)
    ended = "" if seen.status.is_final else f"it was {seen.status.value} and was ended; "
    both = wishes.resource and wishes.artifacts
    kept = "" if both else "its stored artifacts stay; " if wishes.resource else "its resource stays; "
    click.echo(f"{handle.job_id} is removed; {ended}{kept}its history: kinetic jobs list --all", err=True)
    if as_json:
        tables.document(removed=[handle.job_id])
