"""What pickles of kinetic call when they are opened, on either side. These names are a wire format: keep them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from kinetic.errors import rebuilt

WRAPPED = "__kinetic_wrapped__"  # set on whatever kinetic.run returned; holds the plain function


def plain(found: object) -> object:
    """Return the function behind a decorated one; anything else as it is."""
    while not isinstance(found, ModuleType) and WRAPPED in getattr(type(found), "__dict__", {}):
        found = getattr(found, WRAPPED)
    return found


def same(found: object) -> object:
    """Return what was pickled: how a decorated function of a script travels as the plain one."""
    return found


def by_name(module: str, qualname: str) -> object:
    """Import a module and return the plain function of this name in it."""
    __import__(module)
    found: object = sys.modules[module]
    for name in qualname.split("."):
        found = getattr(found, name)
    return plain(found)


def main_globals() -> dict[str, Any]:
    """Return the namespace of the script: functions of ``__main__`` live in it in the job, too."""
    return sys.modules["__main__"].__dict__


def data(number: int) -> str:
    """Return the path at which the job finds the data of this number in its order."""
    return _data_paths[number]


def put_data(paths: Sequence[str]) -> None:
    """Say where the data of this job lies, before its arguments are opened."""
    _data_paths[:] = paths


_data_paths: list[str] = []


def exception(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Rebuild an exception without calling its ``__init__``, whose parameters need not be its ``args``."""
    return rebuilt(kind, args, state)


def bound(function: Callable[..., Any], instance: object) -> Callable[..., Any]:
    """Bind a plain function to an instance or a class."""
    return function.__get__(instance, type(instance))  # type: ignore[no-any-return] # functions bind
