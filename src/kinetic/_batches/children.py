"""Children of a batch: derived from its manifest, so that no process needs to be told about them one by one."""

from __future__ import annotations

from kinetic._jobs import record
from kinetic._wire.group import Group
from kinetic._wire.handles import JobRecord


def record_of(group: Group, index: int, attempt: int, machine: str = "") -> JobRecord:
    """Return the record of one attempt at one input, launched on a machine; "" where the batch was made."""
    own: dict[str, object] = {
        "group_id": group.group_id,
        "group_kind": group.group_kind,
        "group_index": index,
        "group_attempt": attempt,
        "output_dir": f"{group.outputs}/{group.group_id}/{index}",
    }
    return record.make(group.handle, group.child_id(index, attempt), **own, **({"host": machine} if machine else {}))
