"""From a name to a backend. Nothing else knows how many there are."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.errors import BackendUnavailableError, OptionError

if TYPE_CHECKING:
    from kinetic._backends.local.backend import LocalBackend

KNOWN = ("local", "gke", "pathways")
_opened: dict[tuple[str, ...], LocalBackend] = {}
_lock = threading.Lock()
_READ = ("KINETIC_LOCAL_SLOTS", "KINETIC_LOCAL_GPUS", "KINETIC_PORTABLE")


def choose(name: str, runtime: Path, environ: Mapping[str, str] | None = None, *, strict: bool = False) -> LocalBackend:
    """Open a backend.

    Args:
        name: "local", "gke" or "pathways".
        runtime: Folder for host-local state.
        environ: The environment that it reads its own settings from.
        strict: True when the user asked for it by name.

    Raises:
        OptionError: No backend has this name.
        BackendUnavailableError: It exists, but not in this release.
    """
    environ = os.environ if environ is None else environ
    if name not in KNOWN:
        raise OptionError(f"Unknown backend {name!r}", why=f"backends are {', '.join(KNOWN)}", code="unknown-backend")
    if name != "local":
        raise BackendUnavailableError(
            f"the {name} backend is not part of this release of kinetic",
            why="a project, a profile, KINETIC_BACKEND or backend= selected it",
            next='KINETIC_BACKEND=local, or backend="local", runs the same function on this machine',
            code="not-yet",
        )
    from kinetic._backends.local.backend import LocalBackend

    key = (str(runtime), str(strict), *(environ.get(variable, "") for variable in _READ))
    with _lock:
        if key not in _opened:
            _opened[key] = LocalBackend(runtime, environ, strict=strict)
        return _opened[key]
