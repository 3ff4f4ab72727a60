"""The hosts of a slice: JAX joins them by itself, without a line in the user's code.

A hook waits for the import of jax. Until then nothing is loaded and nothing is paid; right after it, before any
computation can begin, the hook calls ``jax.distributed.initialize`` for this host. A call of the user's own, or of
Keras, then finds the work done.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from kinetic._wire.task import DETECT

_JOIN_SECONDS = 300  # JAX's own default: the slowest host may still be importing


@dataclass(frozen=True)
class JaxProcess:
    """One host's place in a slice.

    Attributes:
        host: Its index, from 0.
        hosts: How many hosts there are.
        coordinator: ``address:port`` at which host 0 listens; DETECT to let JAX find it; "" to leave JAX alone.
    """

    host: int
    hosts: int
    coordinator: str


def join_when_jax_is_imported(seat: JaxProcess) -> None:
    """Install the hook; a slice of one host needs none, and neither does one without a coordinator."""
    if seat.hosts > 1 and seat.coordinator:
        sys.meta_path.insert(0, _JaxFinder(seat))


class _JaxFinder(MetaPathFinder):
    """Finds jax once, as everybody else would, and adds a last step to its import."""

    def __init__(self, seat: JaxProcess) -> None:
        self._seat = seat

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "jax":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _JaxLoader(spec.loader, self._seat)
        return spec


class _JaxLoader(Loader):
    """Loads jax, then takes this host's seat."""

    def __init__(self, loader: Loader, seat: JaxProcess) -> None:
        self._loader = loader
        self._seat = seat

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _take(module, self._seat)


def _take(jax: ModuleType, seat: JaxProcess) -> None:
    distributed = __import__("jax.distributed").distributed
    if seat.coordinator == DETECT:
        distributed.initialize(initialization_timeout=_JOIN_SECONDS)
    else:
        distributed.initialize(
            coordinator_address=seat.coordinator,
            num_processes=seat.hosts,
            process_id=seat.host,
            coordinator_bind_address=_bind_address(seat.coordinator),
            initialization_timeout=_JOIN_SECONDS,
        )
    distributed.initialize = _already_done
    jax.distributed = distributed  # type: ignore[attr-defined] # as its own import would


def _bind_address(coordinator: str) -> str | None:
    """Keep a coordinator on this machine to this machine; JAX's default, for pods, binds every interface."""
    return coordinator if coordinator.startswith("127.") else None


def _already_done(*_: object, **__: object) -> None:
    """Stand in for ``jax.distributed.initialize``: kinetic has called it for this host."""
