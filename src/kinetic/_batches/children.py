"""Children of a batch: derived from its manifest, so that no process needs to be told about them one by one."""

from __future__ import annotations

from kinetic._jobs.handle import JobHandle
from kinetic._wire.group import Group


def handle_of(group: Group, index: int, attempt: int, machine: str = "") -> JobHandle:
    """Return the handle of one attempt at one input, launched on a machine; "" where the batch was made."""
    job_id = group.child_id(index, attempt)
    own: dict[str, object] = {
        "job_id": job_id,
        "k8s_name": f"kinetic-{job_id}",
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
