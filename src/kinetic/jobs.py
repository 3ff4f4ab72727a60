"""Detached jobs: the handle, and how to find one again from any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._jobs.collect import attach_remote_traceback
from kinetic._jobs.find import attach, list_jobs
from kinetic._jobs.handle import JobHandle
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._jobs.resource_usage import DeviceSample, HostUsage, Usage, UsageDevice, UsageSample, UsageSummary
    from kinetic._wire.progress import Progress

_USAGE = ("DeviceSample", "HostUsage", "Usage", "UsageDevice", "UsageSample", "UsageSummary")

__all__ = [
    "DeviceSample",
    "HostUsage",
    "JobHandle",
    "JobStatus",
    "Progress",
    "Usage",
    "UsageDevice",
    "UsageSample",
    "UsageSummary",
    "attach",
    "attach_remote_traceback",
    "list_jobs",
]


def __getattr__(name: str) -> object:
    """Import what describes the usage of jobs on its first use: six dataclasses take 4 ms."""
    if name == "Progress":
        from kinetic._wire.progress import Progress

        return Progress
    if name not in _USAGE:
        raise AttributeError(f"module 'kinetic.jobs' has no attribute {name!r}")
    from kinetic._jobs import resource_usage

    return getattr(resource_usage, name)
