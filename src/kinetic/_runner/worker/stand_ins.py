"""Modules of kinetic that stay with the client: in a pod, stand-ins that say so when they are used.

A module of the user's may say ``from kinetic import attach`` at its top and never call it in a job; so importing must
work. On the client's own machine every module is there, and nothing of this is needed.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Sequence
from importlib import machinery
from importlib.abc import Loader
from pathlib import Path
from typing import Any, NoReturn

from kinetic._wire.task import LEFT_OUT
from kinetic.errors import CallableError


def prepare(runner: str) -> None:
    """Let this process find stand-ins for what the runner in this folder leaves out, if it leaves anything out."""
    try:
        names = frozenset(json.loads((Path(runner) / LEFT_OUT).read_bytes()))
    except FileNotFoundError:  # not a pod's
        return
    sys.meta_path.append(_Finder(names))


class _Finder(Loader):
    """Finds a stand-in for each module that is left out, after everything else has been asked."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: types.ModuleType | None = None
    ) -> machinery.ModuleSpec | None:
        """Return what imports a stand-in; None for every other name."""
        return machinery.ModuleSpec(name, self, is_package=True) if name in self._names else None

    def create_module(self, spec: machinery.ModuleSpec) -> types.ModuleType:
        """Return the stand-in of a module."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: a stand-in is complete."""


class _Module(types.ModuleType):
    """Has a stand-in for every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        made = type(name, (_StandIn,), {"__module__": self.__name__, "__qualname__": name})
        setattr(self, name, made)
        return made


class _StandIn:
    """Stands for a class or a function: an annotation can name it, and nothing can call it."""

    def __new__(cls, *_: object, **__: object) -> NoReturn:
        """Say that it is not here."""
        raise CallableError(
            f"{cls.__name__} cannot be used inside a job on a cluster",
            why=f"{cls.__module__} does not travel into a pod: it looks at jobs from the machine that submits them",
            next="call it where the job is submitted, and pass what it returns as an argument",
        )

    def __class_getitem__(cls, _item: object) -> type[_StandIn]:
        """Stay what it is, as JobHandle[int]."""
        return cls
