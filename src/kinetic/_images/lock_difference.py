"""The difference between two locks: what a warm pod lacks of a job's packages, and what the job must not see.

What is lacking goes into the store as layers, as for a job without an image of its own; the hash of each wheel is that
of the lock. What cannot be a difference is refused with a reason, and the job starts in a pod of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from kinetic._images import stored_layers
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock
from kinetic._images.lock_store import Locked
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple
from kinetic._wire.order import Artifact
from kinetic.errors import ImageBuildError

MOST_PACKAGES = 25
MOST_BYTES = 100_000_000  # of wheels; with more, a new pod is hardly later
_LOADED = frozenset({"cloudpickle", "obstore"})  # by every worker, before it knows its packages
# What drives devices: a new version may need other drivers and other libraries of the image than the pod has.
_DRIVERS = re.compile(r"jaxlib|libtpu|torch|torch-xla|triton|tensorflow|nvidia-.+|jax-(?:cuda|rocm).+")


class Difference(NamedTuple):
    """What leads from one environment to another."""

    wheels: tuple[Wheel, ...]  # what is added or replaced
    hidden: tuple[str, ...]  # names of the packages that are replaced or not wanted
    text: str  # a short list for the user, e.g. "einops 0.8.1 (was 0.8.0), without six"


def between(before: Locked, after: Locked, kind: str) -> Difference:
    """Return the difference; ``kind`` is the hardware: "cpu", "gpu" or "tpu".

    Raises:
        ImageBuildError: It is none that a pod can be given; ``why`` says it in a sentence.
    """
    old, new = before.lock, after.lock
    if old.platform != new.platform or before.base != after.base:
        raise _refused("its packages are for another base image or Python")
    if old.to_build or new.to_build:
        raise _refused(f"{(*new.to_build, *old.to_build)[0]} is built from source")
    here = {wheel.name: wheel for wheel in old.wheels}
    wanted = {wheel.name: wheel for wheel in new.wheels}
    wheels = tuple(
        wheel for name, wheel in sorted(wanted.items()) if name not in here or here[name].sha256 != wheel.sha256
    )
    removed = sorted(here.keys() - wanted.keys())
    names = [wheel.name for wheel in wheels]
    if loaded := sorted(_LOADED.intersection(names)):
        raise _refused(f"{loaded[0]} is loaded there in another version")
    if kind != "cpu" and (drivers := [name for name in (*names, *removed) if _DRIVERS.fullmatch(name)]):
        raise _refused(f"{drivers[0]}, which drives the accelerator, is there in another version")
    if len(names) + len(removed) > MOST_PACKAGES:
        raise _refused(
            f"{len(names) + len(removed)} packages are different, and a difference has up to {MOST_PACKAGES}"
        )
    if (size := sum(wheel.size_bytes for wheel in wheels)) > MOST_BYTES:
        raise _refused(f"what it lacks has {size >> 20} MiB, and a difference has up to {MOST_BYTES >> 20}")
    for wheel in wheels:
        if wheel.url.startswith("store:"):
            raise _refused(f"{wheel.name} was built from source")
    hidden = (*(name for name in names if name in here), *removed)
    shown = [
        f"{wheel.name} {wheel.version}" + (f" (was {here[wheel.name].version})" if wheel.name in here else "")
        for wheel in wheels
    ]
    return Difference(wheels, hidden, ", ".join([*shown, *(f"without {name}" for name in removed)]))


def requirements_of(
    found: Difference, lock: Lock, below: Mapping[str, Any] | None, store: Store, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return a difference as the task of a pod has it; send the layers that the store lacks.

    ``below`` is what the pod's own jobs install first, as their tasks have it; None where all is in its image.

    Raises:
        ImageBuildError: Sending would take too long, or a wheel cannot be fetched.
    """
    layers = None
    if found.wheels:
        own = replace(lock, wheels=found.wheels, text="")
        layers = asdict(Artifact.within(stored_layers.page_of(stored_layers.ensure(own, store, environ))))
    return {"layers": layers, "hidden": list(found.hidden), "text": found.text, "below": dict(below) if below else None}


def _refused(why: str) -> ImageBuildError:
    return ImageBuildError("the packages cannot be brought into the warm pod", why=why)
