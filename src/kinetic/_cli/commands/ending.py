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
    """Cancel a job; its log is kept.

    A job that has already ended, and its result, are kept.

    Example: kinetic jobs cancel @last
    """
    from kinetic._jobs import removing

    if removing.cancel(handle, wait=cleanup_timeout):
        click.echo(f"{handle.job_id} is cancelled; its log: kinetic jobs logs {handle.job_id}", err=True)
    else:
        click.echo(removing.why_not_cancelled(handle), err=True)


@click.command
@click.argument("job_id", required=False, metavar="[JOB_ID]", shell_complete=completing.jobs)
@click.option("--all", "everything", is_flag=True, help="Remove all jobs that have ended.")
@click.option(
    "--older-than",
    type=durations.Duration(),
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
    """Remove a job and its stored files, or many jobs.

    A running job is stopped first. With --all instead of an id: every job that has ended; pending and running jobs
    are not affected. Files in KINETIC_OUTPUT_DIR are always kept.

    Example: kinetic jobs cleanup --all --older-than 7d
    """
    wishes = Wishes(k8s, gcs, cleanup_timeout)
    if everything and job_id is None:
        from kinetic._cli import clearing

        clearing.clear(wishes, older_than=older_than, dry_run=dry_run, yes=yes, as_json=as_json, place=place)
        return
    if job_id is None:
        raise click.UsageError("pass a job id, or --all for all jobs that have ended")
    if everything or older_than is not None or dry_run:
        raise click.UsageError("--all, --older-than and --dry-run cannot be used with a job id")
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
                why="--no-k8s and --no-gcs together remove nothing",
                next=command,
            )


def _cleanup_one(handle: JobHandle, wishes: Wishes, *, as_json: bool) -> None:
    from kinetic._jobs import removing
    from kinetic._jobs.status import observe_many

    wishes.check(f"kinetic jobs cleanup {handle.job_id}")
    (seen,) = observe_many([handle])  # a damaged result is no obstacle: removing needs no reading
    removing.remove(handle, seen, resource=wishes.resource, artifacts=wishes.artifacts, wait=wishes.timeout)
    ended = "" if seen.status.is_final else f"it was {seen.status.value} and was stopped; "
    both = wishes.resource and wishes.artifacts
    kept = "" if both else "its stored files are kept; " if wishes.resource else "its resource is kept; "
    click.echo(f"{handle.job_id} is removed; {ended}{kept}its history: kinetic jobs list --all", err=True)
    if as_json:
        tables.document(removed=[handle.job_id])
