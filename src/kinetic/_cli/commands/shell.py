"""``kinetic jobs shell``: a shell, or one command, where a job runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kinetic._cli import options

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle


@click.command
@options.on_a_job
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--host", type=click.IntRange(min=0), default=0, metavar="N", help="Use host N of a slice.  [default: 0]")
@click.pass_context
def shell(ctx: click.Context, /, handle: JobHandle, command: tuple[str, ...], host: int) -> None:
    """Open a shell in a running job, or run a command there.

    It has the job's environment variables and working directory; on a cluster it runs in the job's container. The job
    is not affected. The exit code is the one of the shell or the command.

    Example: kinetic jobs shell @last -- nvidia-smi
    """
    from kinetic._jobs import visiting

    sys.stdout.flush()
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    ctx.exit(visiting.run_in(handle, command, host=host, tty=tty))
