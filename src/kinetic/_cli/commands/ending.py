"""``kinetic jobs cancel`` and ``kinetic jobs cleanup``: ending jobs, and removing what is left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kinetic._cli import options

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
        status = handle.status().value
        click.echo(f"{handle.job_id} had ended before it could be cancelled: it is {status}", err=True)


@click.command
@options.on_a_job
@click.option("--k8s/--no-k8s", default=True, help="The resource: here the queue's row, processes, working folder.")
@click.option("--gcs/--no-gcs", default=True, help="The stored artifacts: result, log and record.")
@options.confirmation
def cleanup(
    handle: JobHandle,
    k8s: bool,
    gcs: bool,
    cleanup_timeout: float,
    cleanup_poll_interval: float,  # noqa: ARG001 - documented; the end is told, not polled
) -> None:
    """Remove a job and what is stored of it.

    A job that still runs is ended first. The files that it wrote into KINETIC_OUTPUT_DIR always stay.

    Example: kinetic jobs cleanup @last --no-gcs
    """
    from kinetic._jobs import looking, removing
    from kinetic.errors import OptionError

    if not (k8s or gcs):
        raise OptionError(
            "there is nothing to remove",
            why="--no-k8s and --no-gcs together leave everything as it is",
            next=f"kinetic jobs cleanup {handle.job_id}",
        )
    seen = looking.look(handle)
    removing.remove(handle, seen, resource=k8s, artifacts=gcs, wait=cleanup_timeout)
    ended = "" if seen.status.is_final else f"it was {seen.status.value} and was ended; "
    kept = "" if k8s and gcs else "its stored artifacts stay; " if k8s else "its resource stays; "
    click.echo(f"{handle.job_id} is removed; {ended}{kept}its history: kinetic jobs list --all", err=True)
