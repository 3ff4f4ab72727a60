"""Children of a batch: derived from its manifest, so that no process needs to be told about them one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._jobs.handle import JobHandle
from kinetic._wire import names
from kinetic._wire.group import Group

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend

LONGEST_NAME = "longest_name"  # beside the fields of a handle that all children of a batch share


def longest_name(backend: Backend, hosts: int) -> int:
    """Return how long the name of a job's object may be where it runs, so that a handle needs no cluster to know it."""
    return len(backend.name_of("x" * names.MOST_OF_AN_OBJECT, hosts))


def handle_of(group: Group, index: int, attempt: int, machine: str = "") -> JobHandle:
    """Return the handle of one attempt at one input, launched on a machine; "" where the batch was made."""
    job_id = group.child_id(index, attempt)
    own: dict[str, object] = {
        "job_id": job_id,
        "k8s_name": names.object_name(job_id, int(group.handle.get(LONGEST_NAME) or names.MOST_OF_AN_OBJECT)),
        "display_name": f"kinetic-{group.submit_fn_name}-{job_id}",
        "group_id": group.group_id,
        "group_kind": group.group_kind,
        "group_index": index,
        "group_attempt": attempt,
        "output_dir": f"{group.outputs}/{group.group_id}/{index}",
    }
    if machine:
        own["host"] = machine
    return JobHandle.from_dict({**group.handle, **own})
