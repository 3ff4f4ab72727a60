"""Detached jobs: the handle, and how to find one again from any machine."""

from __future__ import annotations

from kinetic._jobs.collect import attach_remote_traceback
from kinetic._jobs.find import attach, list_jobs
from kinetic._jobs.handle import JobHandle
from kinetic.job_status import JobStatus

__all__ = ["JobHandle", "JobStatus", "attach", "attach_remote_traceback", "list_jobs"]
