"""All the data of one job, brought to where the job can get it: arguments first, then volumes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kinetic import _settings as settings
from kinetic._data import clouds, shipping
from kinetic._data import data as data_
from kinetic._data.clouds import Opener
from kinetic._data.data import Data
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire.data import DataRef
from kinetic.errors import OptionError, OptionTypeError

_OURS = "/_kinetic"
_EXAMPLE = 'volumes={"/data": kinetic.Data("./set")}'


def ship_all(
    found: Sequence[Data],
    volumes: Mapping[str, Data],
    store: Store,
    *,
    cache: Path,
    is_here: bool = False,
    opener: Opener = open_store,
    environ: Mapping[str, str] = os.environ,
) -> tuple[DataRef, ...]:
    """Bring everything that a job reads to where the job can get it; see the room's door.

    The same data is sent once, however often it is referred to.
    """
    mounts = check_volumes(volumes)
    writable = settings.read("KINETIC_DATA_WRITABLE", environ) == "1"
    sent: dict[tuple[str, bool], DataRef] = {}
    references = []
    for data, mount in [*((data, "") for data in found), *((data, mount) for mount, data in mounts.items())]:
        which = data.path, data.fuse
        if which not in sent:
            if data.is_local:
                sent[which] = shipping.ship(data, store, cache=cache, is_here=is_here)
            else:
                sent[which] = clouds.refer(data, opener=opener)
        shipping.check_frozen(data, sent[which].hash)
        path, trust = data_.raw_of(data), data.hf_trust_remote_code
        references.append(replace(sent[which], path=path, trust=trust, mount=mount, writable=writable))
    return tuple(references)


def check_volumes(volumes: Mapping[str, Data]) -> dict[str, Data]:
    """Return volumes by their paths, without slashes at the end.

    Raises:
        OptionTypeError: A path is no str, or what it leads to is no ``Data``.
        OptionError: A path is relative, is not normalised, is "/" or kinetic's own, or lies in another one.
    """
    found: dict[str, Data] = {}
    for path, data in volumes.items():
        if not isinstance(path, str) or not isinstance(data, Data):
            raise OptionTypeError(f"volumes={{{path!r}: {data!r}}} is not a path and a Data", next=_EXAMPLE)
        mount = path.rstrip("/")
        if why := _problem(path, mount, found):
            raise OptionError(f"a volume cannot be mounted at {path!r}", why=why, next=_EXAMPLE)
        found[mount] = data
    return found


def _problem(path: str, mount: str, others: Mapping[str, Data]) -> str | None:
    if not path.startswith("/"):
        return "the path is not absolute"
    if not mount:
        return "that is the root of everything"
    plain = "/" + posixpath.normpath(mount).lstrip("/").replace("\0", "")
    if plain != mount:
        return f"the path is not in its plain form, {plain!r}"
    if mount == _OURS or mount.startswith(f"{_OURS}/"):
        return f"what lies below {_OURS}/ is kinetic's own"
    for other in others:
        if f"{mount}/".startswith(f"{other}/") or other.startswith(f"{mount}/"):
            return f"another volume is mounted at {other!r}" + (", and one cannot lie in the other" * (other != mount))
    return None
