"""``kinetic jobs stacks``: what the threads of a running job are doing, for the job that hangs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kinetic._cli import failures, options, tables

if TYPE_CHECKING:
    from kinetic._backends.protocol import Stacks
    from kinetic._jobs.handle import JobHandle


@click.command
@options.on_a_job
@click.option("--host", default="all", metavar="N|all", help="Show host N of a slice.  [default: all]")
@options.as_json
@click.pass_context
def stacks(ctx: click.Context, /, handle: JobHandle, host: str, as_json: bool) -> None:
    """Print the stack of each thread of a running job.

    The job keeps running, and a job that hangs in C code answers as well. The innermost call comes
    first. The exit code is 1 if a host did not answer.

    Example: kinetic jobs stacks @last
    """
    from kinetic._jobs import visiting

    found = visiting.stacks(handle, host=_host(handle, host))
    if as_json:
        tables.document(job_id=handle.job_id, hosts=[each._asdict() for each in found])
    else:
        _print(found)
    for each in found:
        if each.why:
            failures.block(
                f"host {each.host} of {handle.job_id} did not answer",
                code="no-stacks",
                why=each.why,
                next=f"kinetic jobs explain {handle.job_id}",
            )
    ctx.exit(failures.ERROR if any(each.why for each in found) else 0)


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
