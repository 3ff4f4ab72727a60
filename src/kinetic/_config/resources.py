"""What a job asks of a cluster besides hardware. A file of its own: jobs on this machine need not load it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kinetic._config.cluster import ClusterSettings
from kinetic.errors import OptionError, OptionTypeError


class ResourceRequests(NamedTuple):
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
class PodRequirements:
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
    needs: ResourceRequests = field(default_factory=ResourceRequests)
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    python: str = ""
    require_accelerator: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**asdict(self), "needs": list(self.needs), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> PodRequirements:
        """Read plain JSON, as a launch carries it; fields of other versions are passed over."""
        fields = fields or {}
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        known["needs"] = ResourceRequests(*known.get("needs") or ())
        known["settings"] = ClusterSettings.from_json(known.get("settings") or {})
        return cls(**known)


NAMES = ("cpu", "memory", "disk", "shm")
_EXAMPLES = {"cpu": "4", "memory": '"16Gi"', "disk": '"100Gi"', "shm": '"8Gi"'}
_UNITS = {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {letter: 1000**power for power, letter in enumerate("kMGT", 1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|Ti|k|M|G|T)B?")
_CORES = re.compile(r"(\d+(?:\.\d+)?)(m?)")
_THOUSANDTHS = 1000


class Resources(NamedTuple):
    """What a job asks for; None where it asks for nothing.

    Attributes:
        cpu: Cores.
        memory_bytes: Memory of a host.
        disk_bytes: Room for files.
        shm_bytes: Shared memory.
    """

    cpu: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    shm_bytes: int | None = None


def checked(written: object) -> dict[str, object]:
    """Return resources as they were written, once it is sure that they can be read.

    Raises:
        OptionError: An unknown name, or an amount that cannot work.
        OptionTypeError: It is no table.
    """
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


def read(written: Mapping[str, object]) -> Resources:
    """Read amounts.

    Raises:
        OptionError: An unknown name, or an amount that cannot work.
    """
    for name in written:
        if name not in NAMES:
            raise _unknown(name)
    cpu = _cores(written["cpu"]) if "cpu" in written else None
    sizes = [_bytes(name, written[name]) if name in written else None for name in NAMES[1:]]
    return Resources(cpu, *sizes)


def parse(text: str) -> dict[str, object]:
    """Read what was typed into a terminal: ``cpu=4,memory=16Gi``.

    Raises:
        OptionError: As for ``checked``, or a part is not NAME=AMOUNT.
    """
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
        raise _unusable("cpu", amount, 'a number of cores, as in 4 or 0.5, or thousandths of one, as in "500m"')
    cores = float(found[1]) / (_THOUSANDTHS if found[2] else 1)
    if not cores:
        raise _unusable("cpu", amount, "more than nothing")
    return cores


def _bytes(name: str, amount: object) -> int:
    found = _SIZE.fullmatch(amount.strip()) if isinstance(amount, str) else None
    if found is None:
        raise _unusable(name, amount, f"a size with its unit: {', '.join(_UNITS)}")
    size = int(float(found[1]) * _UNITS[found[2]])
    if not size:
        raise _unusable(name, amount, "more than nothing")
    return size


def _unusable(name: str, amount: object, wanted: str) -> OptionError:
    return OptionError(
        f"{name}={amount!r} is no amount of {name}", why=f"it takes {wanted}", next=f"write {name} = {_EXAMPLES[name]}"
    )


def _unknown(name: str) -> OptionError:
    from difflib import get_close_matches  # 2 ms; only on the way to an error

    nearest = get_close_matches(name, NAMES, 1, 0)[0]
    return OptionError(
        f"{name!r} is not a resource",
        why=f"resources: {', '.join(NAMES)}; GPUs and TPU chips are named by the accelerator",
        next=f"write {nearest} = {_EXAMPLES[nearest]}, or leave it out",
    )
