"""Which job the running function belongs to."""

from __future__ import annotations

import os

from kinetic._wire import NamedTuple


class CurrentJob(NamedTuple):
    """The job that this process belongs to; outside of a job, what a job of one host would say.

    Attributes:
        job_id: Its id; None outside of a job.
        attempt: The number of the attempt, from 0: more than 0 after a retry or a preemption. Each attempt at an input
            of a batch is a job of its own, and begins at 0.
        host_index: The index of this host in the job, from 0; those of a slice follow each other.
        host_count: The number of hosts, 1 for most jobs.
    """

    job_id: str | None
    attempt: int
    host_index: int
    host_count: int

    @property
    def slice_count(self) -> int:
        """The number of TPU slices, 1 for most jobs."""
        return int(os.environ.get("KINETIC_SLICE_COUNT") or 1)

    @property
    def slice_index(self) -> int:
        """The index of the slice that this host is in, from 0."""
        return self.host_index * self.slice_count // self.host_count


def current() -> CurrentJob:
    """Return which job, attempt and host the running function belongs to.

    It works outside of a job as well, so that the same function can be called directly: ``job_id`` is None then, and
    the rest is as on the only host of a first attempt. Child processes of a job are part of it.

    Example:
        if kinetic.current().host_index == 0:
            save_checkpoint()
    """
    return CurrentJob(
        os.environ.get("KINETIC_JOB_ID") or None,
        int(os.environ.get("KINETIC_ATTEMPT") or 0),
        int(os.environ.get("KINETIC_HOST_INDEX") or 0),
        int(os.environ.get("KINETIC_HOST_COUNT") or 1),
    )


def is_remote() -> bool:
    """Return whether this process belongs to a job, wherever that runs; it is ``current().job_id is not None``."""
    return current().job_id is not None
