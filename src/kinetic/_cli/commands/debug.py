"""``kinetic jobs debug``: a way for an editor to the debug server of a job, for as long as the job runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kinetic._cli import interrupting, options

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle


@click.command
@options.on_a_job
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
    from kinetic._jobs import attaching, forwarding, waiting

    with interrupting.job_goes_on(handle):
        process = attaching.attach(handle, local_port=port, host=host)
        try:
            seen = waiting.wait(handle)
        finally:
            forwarding.stop(process)
    click.echo(f"{handle.job_id} has ended: {seen.status.value}", err=True)
