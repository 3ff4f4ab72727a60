"""Detached jobs: the handle, and how to find one again from any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._jobs.find import attach, list_jobs
from kinetic._jobs.handle import JobHandle
from kinetic._jobs.results import attach_remote_traceback
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._jobs.resource_usage import DeviceSample, HostUsage, Usage, UsageDevice, UsageSample, UsageSummary
    from kinetic._jobs.wait import JobEvent
    from kinetic._remote.current_job import CurrentJob
    from kinetic._wire.progress import Progress

_LATER = {
    "CurrentJob": "_remote.current_job",
    "JobEvent": "_jobs.wait",
    "Progress": "_wire.progress",
    **dict.fromkeys(
        ("DeviceSample", "HostUsage", "Usage", "UsageDevice", "UsageSample", "UsageSummary"), "_jobs.resource_usage"
    ),
}

__all__ = [
    "CurrentJob",
    "DeviceSample",
    "HostUsage",
    "JobEvent",
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
    """Import what few programs need on its first use: six dataclasses of the usage of jobs take 4 ms."""
    if name not in _LATER:
        raise AttributeError(f"module 'kinetic.jobs' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"kinetic.{_LATER[name]}"), name)
