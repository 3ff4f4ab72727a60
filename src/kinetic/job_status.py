"""The five states a job can be seen in, and which of them are final."""

from __future__ import annotations

from enum import Enum

__all__ = ["FINAL", "JobStatus"]


class JobStatus(Enum):
    """Observable status of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    NOT_FOUND = "NOT_FOUND"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in FINAL


FINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.NOT_FOUND})
