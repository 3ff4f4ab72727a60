"""What a job asks of a cluster besides hardware: CPU cores, memory, disk, shared memory, and its pod's requirements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, NamedTuple

from kinetic._config.cluster import ClusterSettings
from kinetic._wire import dataclass
from kinetic.errors import OptionError, OptionTypeError


class ResourceRequests(NamedTuple):
    """What one host of a job requests besides chips; None for nothing in particular."""

    cpu: float | None = None  # cores
    memory_bytes: int | None = None
    disk_bytes: int | None = None  # for files beside those of the image
    shm_bytes: int | None = None  # shared memory, a part of the memory


@dataclass(frozen=True)
class PodRequirements:
    """What a job asks of a cluster besides hardware; a machine has no use for it."""

    image: str = ""
    requirements: dict[str, Any] | None = None  # an Artifact as plain JSON: what is installed before anything else
    needs: ResourceRequests = field(default_factory=ResourceRequests)  # of each host
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    python: str = ""  # the client's Python as X.Y, which the image must have
    require_accelerator: bool = True  # whether the job fails if its GPU or TPU is not available

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "needs": list(self.needs), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> PodRequirements:
        """Read plain JSON, as a launch carries it; fields of other versions are ignored."""
        fields = fields or {}
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        known["needs"] = ResourceRequests(*known.get("needs") or ())
        known["settings"] = ClusterSettings.from_json(known.get("settings") or {})
        return cls(**known)


_EXAMPLES = {"cpu": "4", "memory": '"16Gi"', "disk": '"100Gi"', "shm": '"8Gi"'}
NAMES = tuple(_EXAMPLES)
_UNITS = {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {letter: 1000**power for power, letter in enumerate("kMGT", 1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|Ti|k|M|G|T)B?")
_CORES = re.compile(r"(\d+(?:\.\d+)?)(m?)")


def checked(written: object) -> dict[str, object]:
    """Return resources as they were written, if they are valid."""
    if isinstance(written, str):
        return parse(written)
    if not isinstance(written, Mapping):
        raise OptionTypeError(
            f"resources={written!r} is not a table",
            why=f"it takes {', '.join(NAMES)}",
            next='write resources={"cpu": 4, "memory": "16Gi"}, or in a file resources = "cpu=4,memory=16Gi"',
        )
    read(written)
    return dict(written)


def read(written: Mapping[str, object]) -> ResourceRequests:
    """Read amounts."""
    for name in written:
        if name not in NAMES:
            from difflib import get_close_matches  # 2 ms; only on the way to an error

            nearest = get_close_matches(name, NAMES, 1, 0)[0]
            raise OptionError(
                f"{name!r} is not a resource",
                why=f"resources: {', '.join(NAMES)}; GPUs and TPU chips are named by the accelerator",
                next=f"write {nearest} = {_EXAMPLES[nearest]}, or leave it out",
            )
    cpu = _cores(written["cpu"]) if "cpu" in written else None
    return ResourceRequests(cpu, *(_bytes(name, written[name]) if name in written else None for name in NAMES[1:]))


def parse(text: str) -> dict[str, object]:
    """Read what was typed into a terminal: ``cpu=4,memory=16Gi``."""
    written: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, amount = part.partition("=")
        if not separator:
            raise OptionError(
                f"{part!r} is not NAME=AMOUNT",
                why="resources are written as a list of them",
                next="write resources=cpu=4,memory=16Gi",
            )
        written[name.strip()] = amount.strip()
    return checked(written)


def _cores(amount: object) -> float:
    found = _CORES.fullmatch(str(amount)) if isinstance(amount, str | int | float) else None
    if isinstance(amount, bool) or found is None:
        raise _invalid("cpu", amount, 'a number of cores, as in 4 or 0.5, or thousandths of one, as in "500m"')
    cores = float(found[1]) / (1000 if found[2] else 1)
    if not cores:
        raise _invalid("cpu", amount, "more than 0")
    return cores


def _bytes(name: str, amount: object) -> int:
    found = _SIZE.fullmatch(amount.strip()) if isinstance(amount, str) else None
    if found is None:
        raise _invalid(name, amount, f"a size with its unit: {', '.join(_UNITS)}")
    size = int(float(found[1]) * _UNITS[found[2]])
    if not size:
        raise _invalid(name, amount, "more than 0")
    return size


def _invalid(name: str, amount: object, wanted: str) -> OptionError:
    quantity = "CPU quantity" if name == "cpu" else f"{name} size"
    return OptionError(
        f"{name}={amount!r} is not a valid {quantity}",
        why=f"expected {wanted}",
        next=f"write {name} = {_EXAMPLES[name]}",
    )
