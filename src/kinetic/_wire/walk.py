"""One walk through the arguments of a call, for both sides: finds what stands for data, and puts paths in its place.

It goes through lists, tuples, dicts, sets, their subclasses, and the fields of dataclasses; anything else is a leaf.
Finding keeps a list of its own instead of calling itself, so that depth is no limit.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Where = Literal["value", "set", "key"]


class Spot(NamedTuple):
    """Where one object was found.

    Attributes:
        position: As a human writes it, e.g. "argument 0[2]['train']" or "argument 'config'.path".
        found: The object.
        where: "value", or "set" or "key" where nothing can be put in its place.
    """

    position: str
    found: object
    where: Where


def find(args: Sequence[object], kwargs: Mapping[str, object], is_wanted: Callable[[object], bool]) -> Iterator[Spot]:
    """Find every wanted object; an object that is reached in several ways is named by the first."""
    pending: list[tuple[str, object, Where]] = [(f"argument {n}", value, "value") for n, value in enumerate(args)]
    pending += [(f"argument {name!r}", value, "value") for name, value in kwargs.items()]
    pending.reverse()
    seen: dict[tuple[int, bool], object] = {}  # holds what it has seen: a field may make its value on each access
    while pending:
        position, value, where = pending.pop()
        if (id(value), where == "value") in seen:
            continue
        if is_wanted(value):
            yield Spot(position, value, where)
        elif _is_container(value):
            pending += reversed(list(_parts(position, value, where)))
        else:
            continue
        seen[id(value), where == "value"] = value


def replaced(value: object, swap: Callable[[object], object]) -> Any:
    """Return a copy of the containers of a value in which ``swap`` has put something else for some leaves.

    Types, shared objects and cycles stay as they are: Python's own pickling does the walk, and every leaf passes it by
    as a reference.

    Args:
        value: Anything.
        swap: Returns what shall stand in the place of a leaf: mostly the leaf itself.
    """
    leaves: list[object] = []
    file = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> int | None:
            if _is_container(obj):
                return None
            leaves.append(swap(obj))
            return len(leaves) - 1

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> object:
            return leaves[pid]

    Pickler(file, protocol=5).dump(value)
    file.seek(0)
    return Unpickler(file).load()


def _is_container(value: object) -> bool:
    if isinstance(value, list | tuple | dict | set | frozenset):
        return True
    return hasattr(type(value), "__dataclass_fields__")


def _parts(position: str, value: object, where: Where) -> Iterator[tuple[str, object, Where]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{position} (a key)", key, "key"
            yield f"{position}[{key!r}]", item, where
    elif isinstance(value, set | frozenset):
        for item in value:
            yield f"{position} (a set)", item, "set"
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield f"{position}[{number}]", item, where
    for name in getattr(type(value), "__dataclass_fields__", ()):
        if hasattr(value, name):
            yield f"{position}.{name}", getattr(value, name), where
