"""Resources: how much processor, memory and disk a job asks for. This machine holds a job to its memory only.

| name | what | written as |
|---|---|---|
| cpu | cores | a number, as in 4 or 0.5, or thousandths of a core: "500m" |
| memory | the memory of a host | a size with its unit, as in "16Gi" |
| disk | room for files beside those of the image | a size |
| shm | shared memory, ``/dev/shm``: data loaders of several processes need it | a size |

Sizes count in Ki, Mi, Gi and Ti (powers of 1024) or k, M, G and T (powers of 1000), as Kubernetes does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kinetic.errors import OptionError, OptionTypeError

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
        return of_text(written)
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


def of_text(text: str) -> dict[str, object]:
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
