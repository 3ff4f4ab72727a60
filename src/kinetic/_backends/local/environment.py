"""The variables of a job on this machine: an allow-list, as in a pod, never all that the shell happened to hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kinetic._backends.local.soil import OF_ONE_INTERPRETER
from kinetic._stores.opening import CREDENTIAL_VARIABLES
from kinetic._wire import outputs, threads

if TYPE_CHECKING:
    from kinetic._hardware.placement import Placement
    from kinetic._wire.order import Order

_NAMES = frozenset(  # a string is read more easily than forty quoted words
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TERM COLUMNS NO_COLOR VIRTUAL_ENV CONDA_PREFIX "
    "CONDA_DEFAULT_ENV SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY "
    "http_proxy https_proxy no_proxy XLA_FLAGS".split()
) | frozenset(threads.VARIABLES)
_OURS = ("KINETIC_HOME", "KINETIC_RUNTIME_DIR", "KINETIC_PORTABLE", "KINETIC_VOLUME_ROOT")
_PREFIXES = ("LC_", "XDG_", "PYTHON", "LD_", "DYLD_", "CUDA_", "NVIDIA_", *_OURS)


def of_job(
    order: Order,
    placement: Placement,
    captured: Mapping[str, str],
    environ: Mapping[str, str],
    interpreter: str = "",
    *,
    store_url: str = "",
) -> dict[str, str]:
    """Return everything that a job's process will have in its environment; what the user captured wins.

    Args:
        order: The job.
        placement: Its hardware.
        captured: The variables that the user wants along.
        environ: This client's environment.
        interpreter: The Python of an isolated environment, or "" for this client's own.
        store_url: Where the job's order lies; for a store in the cloud its credentials go along, as a pod has them.
    """
    chosen = allowed(environ, cloud=is_cloud(store_url, *(ref.uri for ref in order.data)))
    if interpreter:
        chosen = _inside(chosen, interpreter)
    frameworks = {"KERAS_BACKEND": "jax"}  # as on a cluster
    if placement.kind != "gpu":
        frameworks |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(max(1, placement.chips_per_host))}
    if order.cpu is not None:
        frameworks |= {name: value for name, value in threads.variables(order.cpu).items() if name not in chosen}
    own = {
        "KINETIC_JOB_ID": order.job_id,
        "KINETIC_OUTPUT_DIR": order.output_dir,
        "KINETIC_CHECKPOINT_DIR": outputs.checkpoints_of(order),
        "KINETIC_HOST_INDEX": "0",
        "KINETIC_HOST_COUNT": str(order.hosts),
    }
    return chosen | frameworks | dict(captured) | own


def allowed(environ: Mapping[str, str], *, cloud: bool = False) -> dict[str, str]:
    """Return what of a client's environment every job gets; with what opens stores in the cloud, where it needs one."""
    names = _NAMES | frozenset(CREDENTIAL_VARIABLES) if cloud else _NAMES
    return {name: value for name, value in environ.items() if name in names or name.startswith(_PREFIXES)}


def is_cloud(*addresses: str) -> bool:
    """Say whether one of some addresses needs credentials."""
    return any(address.startswith(("gs://", "s3://")) for address in addresses)


def _inside(chosen: Mapping[str, str], interpreter: str) -> dict[str, str]:
    """Make variables of this client's environment fit another one: as if it had been activated."""
    binaries = os.path.dirname(interpreter)
    kept = {
        name: value
        for name, value in chosen.items()
        if name not in OF_ONE_INTERPRETER and not name.startswith("CONDA_")
    }
    return kept | {
        "VIRTUAL_ENV": os.path.dirname(binaries),
        "PATH": os.pathsep.join(filter(None, (binaries, chosen.get("PATH", "")))),
    }
