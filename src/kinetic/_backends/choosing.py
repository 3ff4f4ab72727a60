"""From a name to a backend. Nothing else knows how many there are."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kinetic.errors import BackendUnavailableError, OptionError

if TYPE_CHECKING:
    from kinetic._backends.local.backend import LocalBackend
    from kinetic._backends.protocol import Backend

KNOWN = ("local", "gke", "pathways")
LOCAL = "local"
_opened: dict[tuple[str, ...], LocalBackend] = {}
_clusters: dict[tuple[str, ...], Backend] = {}
_lock = threading.Lock()
_READ = ("KINETIC_LOCAL_SLOTS", "KINETIC_LOCAL_GPUS", "KINETIC_PORTABLE")
_READ_FOR_CLUSTERS = ("KUBECONFIG", "KINETIC_OWNER", "HOME")


class Address(NamedTuple):
    """Which cluster, and where in it; nothing of it means anything on this machine.

    Attributes:
        project: Of Google Cloud, or "".
        zone: A zone or a region.
        cluster: Its name.
        namespace: Of Kubernetes.
        context: A kubeconfig context, or "" for GKE's own endpoint.
    """

    project: str = ""
    zone: str = ""
    cluster: str = ""
    namespace: str = ""
    context: str = ""


def local(runtime: Path, environ: Mapping[str, str] | None = None, *, strict: bool = False) -> LocalBackend:
    """Open the backend of this machine.

    Args:
        runtime: Folder for host-local state.
        environ: The environment that it reads its own settings from.
        strict: True when the user asked for it by name.
    """
    from kinetic._backends.local.backend import LocalBackend

    environ = os.environ if environ is None else environ
    key = (str(runtime), str(strict), *(environ.get(variable, "") for variable in _READ))
    with _lock:
        if key not in _opened:
            _opened[key] = LocalBackend(runtime, environ, strict=strict)
        return _opened[key]


def choose(name: str, runtime: Path, address: Address, *, strict: bool = False) -> Backend:
    """Open a backend.

    Args:
        name: "local", "gke" or "pathways".
        runtime: Folder for host-local state.
        address: Which cluster.
        strict: True when the user asked for it by name.

    Raises:
        OptionError: No backend has this name.
        BackendUnavailableError: A library that it needs is not installed.
    """
    if name not in KNOWN:
        raise OptionError(f"Unknown backend {name!r}", why=f"backends are {', '.join(KNOWN)}", code="unknown-backend")
    return local(runtime, strict=strict) if name == LOCAL else _on_a_cluster(name, address)


def _on_a_cluster(name: str, address: Address) -> Backend:
    import importlib.util

    if importlib.util.find_spec("httpx2") is None:
        raise BackendUnavailableError(
            f"the {name} backend needs a library that is not installed here",
            why="it speaks to clusters over httpx2, which comes with the extra gke",
            next='pip install "kinetic-jobs[gke]"     or backend="local" to run on this machine',
            code="extra-missing",
        )
    from kinetic._backends.kube.backend import KubeBackend
    from kinetic._backends.kube.where import Where

    key = (name, *address, *(os.environ.get(variable, "") for variable in _READ_FOR_CLUSTERS))
    with _lock:
        if key not in _clusters:
            _clusters[key] = KubeBackend(name, Where(**address._asdict()))
        return _clusters[key]
