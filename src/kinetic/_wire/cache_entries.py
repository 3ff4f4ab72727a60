"""Entries of the compile cache: where compiled programs are in a store, and how one is told from a forged one.

    data/compiled/entries/{library}/{hardware}/{versions}/{machine}/{path}/{sha256}.{size}.{seal}    empty
    data/compiled/blobs/{sha256}                                                                     the bytes

An entry is the name of an empty object, so one listing tells a job everything; the seal in that name is of the compile
cache's own key, and covers the rest of it. The bytes are written first and have the name of their digest: equal
programs are stored once, and an entry never means half of one. An entry's age tells when it was last used.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from kinetic._wire import NamedTuple, dataclass, digests, documents, fields, keys
from kinetic.errors import IntegrityError

if TYPE_CHECKING:
    from kinetic._wire.order import Order

MOST_BYTES = 2 << 30  # of one program
_PART = re.compile(r"[A-Za-z0-9_+=,@~-][A-Za-z0-9_.+=,@~-]{0,249}")
_TAIL = re.compile(r"([0-9a-f]{64})\.([0-9]{1,12})\.[0-9a-f]{24}")
_GROUP_PARTS = 4
_MOST_CHARACTERS = 900  # of a key; stores take 1,024 bytes


class Group(NamedTuple):
    """Programs that one job could use: what made them, and for which hardware; each is a part of a key."""

    library: str  # "jax", "torch" or "vllm"
    hardware: str  # the accelerator as its placement names it, with its topology
    versions: str  # of library and compilers
    machine: str  # a digest of what the host's processor can do, for which hosts' code is compiled

    @property
    def prefix(self) -> str:
        """What the keys of its entries begin with."""
        return f"{keys.COMPILED_ENTRIES}{'/'.join(self)}/"


class CacheEntry(NamedTuple):
    """One compiled program, or another file of a compiler's cache."""

    group: Group
    path: str  # below the library's folder
    sha256: str
    size: int  # bytes
    key: str  # the whole key of the entry in the store


def word(text: str) -> str:
    """Return a text as one part of a key."""
    return re.sub(r"[^A-Za-z0-9_.+=,@~-]+", "-", text).strip(".-")[:120] or "none"


def sealed(group: Group, path: str, sha256: str, size: int, key: bytes) -> CacheEntry | None:
    """Return the entry for a file, or None for one whose name cannot be part of a key."""
    if not is_path(path):
        return None
    name = documents.sealed_name(f"{group.prefix}{path}/{sha256}", str(size), key)
    return CacheEntry(group, path, sha256, size, name) if len(name) <= _MOST_CHARACTERS else None


def is_path(path: str) -> bool:
    """Return whether a file of this name can be stored: no part is hidden, or leads elsewhere."""
    return all(_PART.fullmatch(part) for part in path.split("/"))


def parse(key: str) -> CacheEntry | None:
    """Take the key of an entry apart, without believing it; None if it is no such key."""
    if not key.startswith(keys.COMPILED_ENTRIES):
        return None
    *parts, tail = key.removeprefix(keys.COMPILED_ENTRIES).split("/")
    found = _TAIL.fullmatch(tail)
    path = "/".join(parts[_GROUP_PARTS:])
    if found is None or len(parts) <= _GROUP_PARTS or not all(parts[:_GROUP_PARTS]) or not is_path(path):
        return None
    return CacheEntry(Group(*parts[:_GROUP_PARTS]), path, found[1], int(found[2]), key)


def verified(key: str, seal_key: bytes) -> CacheEntry | None:
    """Return the entry of a key, or None if its seal is wrong."""
    found = parse(key)
    if found is None or found.size > MOST_BYTES:
        return None
    ours = sealed(found.group, found.path, found.sha256, found.size, seal_key)
    return found if ours is not None and hmac.compare_digest(ours.key.encode(), key.encode()) else None


# --------------------------------------------------------------------------------------------- how long compiling took


@dataclass(frozen=True)
class Measurement:
    """How long compiling took in the newest job of a function, on its hardware."""

    code: str  # a digest of the function and its project
    compile_seconds: float  # for all programs that the cache keeps, as if none had been found
    seconds: float  # of the whole job, from its first import of JAX, as if none had been found

    @property
    def is_mostly_compiling(self) -> bool:
        """Whether compiling was the larger part of the job, and long enough that waiting for it may be shorter."""
        return self.compile_seconds >= max(LEAST_COMPILE_SECONDS, self.seconds / 2)


LEAST_COMPILE_SECONDS = 60.0  # a job that waits for another one still has to wait for its own pod afterwards
_SECONDS = fields.number(0, fields.SECONDS)
MEASUREMENT = documents.PageKind(
    "compiling",
    "a measurement of the compile cache",
    fields.builder(Measurement, {"code": fields.sha256, "compile_seconds": _SECONDS, "seconds": _SECONDS}),
    1 << 12,
)


def function_digest(order: Order) -> str:
    """Return what tells an order's function and hardware from others: its name and project, whatever its code is."""
    project = PurePath(str(order.plan.get("root", ""))).name
    about = (project, str(order.plan.get("entry_rel", "")), order.function_name, order.accelerator)
    return digests.of_bytes("\n".join(about).encode())[:32]


def measurement_key(order: Order) -> str:
    """Return where the measurement of an order's function is."""
    return keys.compiled_measurement(function_digest(order))


def differs_key(order: Order) -> str:
    """Return the key which says that children of a batch compiled other programs than the first one did."""
    return f"{measurement_key(order)}.differs"


def code_of(order: Order) -> str:
    """Return a digest of what an order runs, without its arguments."""
    project = order.manifest.sha256 if order.manifest is not None else ""
    return digests.of_bytes(f"{order.function.sha256} {project}".encode())


# ------------------------------------------------------------------------------------------------ the state of a slice


def _state(page: dict[str, Any], what: str) -> tuple[str, ...]:
    found = page.get("entries")
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise fields.damaged(what, "it has no list of entries")
    return tuple(found)


# What the first host of a slice found; all its hosts use these entries and no others.
SLICE_STATE = documents.PageKind("compiled", "the compile cache of a slice", _state, 8 << 20)


def read_state(store: documents.Readable, at: str, key: bytes) -> tuple[CacheEntry, ...]:
    """Return the entries that the hosts of a slice use.

    Raises:
        KeyMissingError: The first host did not write them.
        IntegrityError: They cannot be verified.
    """
    found = tuple(verified(each, key) for each in documents.open_page(SLICE_STATE, store, at, key))
    if None in found:
        raise IntegrityError(SLICE_STATE.at(at), why="an entry in it has a wrong seal", code="seal")
    return tuple(each for each in found if each is not None)


def state_page(entries: Iterable[CacheEntry], at: str, key: bytes) -> bytes:
    """Write that page."""
    return documents.seal_page(SLICE_STATE, {"entries": [each.key for each in entries]}, at, key)
