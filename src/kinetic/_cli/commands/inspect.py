"""``kinetic jobs debug``: a way for an editor to the debug server of a job, for as long as the job runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kinetic._cli import error_output, shared_options
from kinetic._output import format as output_format

if TYPE_CHECKING:
    from kinetic._backends.protocol import Stacks
    from kinetic._jobs.handle import JobHandle


@click.command
@shared_options.on_a_job
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
@shared_options.on_a_job
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--host", type=click.IntRange(min=0), default=0, metavar="N", help="Use host N of a slice.  [default: 0]")
@click.pass_context
def shell(ctx: click.Context, /, handle: JobHandle, command: tuple[str, ...], host: int) -> None:
    """Open a shell in a running job, or run a command there.

    It has the job's environment variables and working directory; on a cluster it runs in the job's container. The job
    is not affected. The exit code is the one of the shell or the command.

    Example: kinetic jobs shell @last -- nvidia-smi
    """
    from kinetic._inspect import shell as inspect_shell

    sys.stdout.flush()
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    ctx.exit(inspect_shell.run_in(handle, command, host=host, tty=tty))


@click.command
@shared_options.on_a_job
@click.option("--host", default="all", metavar="N|all", help="Show host N of a slice.  [default: all]")
@shared_options.as_json
@click.pass_context
def stacks(ctx: click.Context, /, handle: JobHandle, host: str, as_json: bool) -> None:
    """Print the stack of each thread of a running job.

    The job keeps running, and a job that hangs in C code answers as well. The innermost call comes
    first. The exit code is 1 if a host did not answer.

    Example: kinetic jobs stacks @last
    """
    from kinetic._inspect import shell as inspect_shell

    found = inspect_shell.stacks(handle, host=_host(handle, host))
    if as_json:
        output_format.document(job_id=handle.job_id, hosts=[each._asdict() for each in found])
    else:
        _print(found)
    for each in found:
        if each.why:
            error_output.block(
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


def _print(found: list[Stacks]) -> None:
    for each in found:
        if each.text and len(found) > 1:
            sys.stdout.write(f"host {each.host}\n\n")
        if each.text:
            sys.stdout.write(each.text if each is found[-1] else f"{each.text.rstrip()}\n\n")
    sys.stdout.flush()
