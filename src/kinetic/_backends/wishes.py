"""What a job asks of a cluster besides hardware. A file of its own: jobs on this machine need not load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kinetic._settings.cluster import ClusterSettings


class Needs(NamedTuple):
    """What one host of a job asks for, besides chips; None where it asks for nothing in particular.

    Attributes:
        cpu: Cores.
        memory_bytes: Memory.
        disk_bytes: Room for files beside those of the image.
        shm_bytes: Shared memory, a part of the memory.
    """

    cpu: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    shm_bytes: int | None = None


@dataclass(frozen=True)
class PodWishes:
    """What a job asks of a cluster besides hardware; a machine has no use for it.

    Attributes:
        image: What its containers are made of.
        requirements: The file whose lines are installed before anything else: an Artifact as plain JSON; or None.
        needs: Processor, memory, disk and shared memory of each host.
        settings: What holds for all jobs of a cluster: service account, queue, ...
        python: The client's Python as X.Y, which the image must have.
        require_accelerator: Whether the job fails where its GPU or TPU does not come up.
    """

    image: str = ""
    requirements: dict[str, Any] | None = None
    needs: Needs = field(default_factory=Needs)
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    python: str = ""
    require_accelerator: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**asdict(self), "needs": list(self.needs), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> PodWishes:
        """Read plain JSON, as a launch carries it; fields of other versions are passed over."""
        fields = fields or {}
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        known["needs"] = Needs(*known.get("needs") or ())
        known["settings"] = ClusterSettings.from_json(known.get("settings") or {})
        return cls(**known)
