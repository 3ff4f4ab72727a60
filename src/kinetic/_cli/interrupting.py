"""Ctrl-C lets go of a job and never ends it; whoever presses it is told how to do that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle


@contextmanager
def job_goes_on(handle: JobHandle) -> Iterator[None]:
    """Say on Ctrl-C that the job goes on, and how to cancel it."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\n{handle.job_id} goes on; cancel it with: kinetic jobs cancel {handle.job_id}", err=True)
        raise
