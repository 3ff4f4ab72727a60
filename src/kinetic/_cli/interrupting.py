"""Ctrl-C detaches from a job and never ends it; it says how to do that."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kinetic._jobs.handle import JobHandle


def job_goes_on(handle: JobHandle) -> AbstractContextManager[None]:
    """Say on Ctrl-C that the job keeps running, and how to follow and to cancel it."""
    from kinetic._jobs.waiting import detaching  # 20 ms; who waits has it already

    return detaching(handle)
