"""What a keeper grows in: interpreter, flags, start-up variables, limits, affinity and the runner's code.

A worker is a fork of its keeper, so whatever takes effect when an interpreter starts must already be right in the
keeper. Jobs with the same soil can share keepers; its digest is written in each row.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._stores.opening import CREDENTIAL_VARIABLES
from kinetic._wire import digests, documents, output_paths, threads

if TYPE_CHECKING:
    from kinetic._hardware.placement import Placement
    from kinetic._wire.order import Order


_PREFIXES = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "KINETIC_PORTABLE")
OF_ONE_INTERPRETER = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE"})  # would lead out of another one
_LIMITS = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
_FLAGS = {
    "optimize": "O",
    "dont_write_bytecode": "B",
    "no_user_site": "s",
    "no_site": "S",
    "ignore_environment": "E",
    "bytes_warning": "b",
}


def recipe(runner: Path, environ: Mapping[str, str], interpreter: str = "") -> dict[str, Any]:
    """Say how a keeper for this client's jobs is started.

    Args:
        runner: The folder with the runner's code.
        environ: This client's environment.
        interpreter: The Python of an isolated environment, or "" for this client's own.

    Returns:
        arguments (a command line), environment (variables that work at start-up), limits and affinity (which
        a keeper inherits from whoever starts it, or takes on itself).
    """
    import resource  # POSIX only, as is everything in this room

    limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS if _has(resource, name)}
    return {
        "arguments": [interpreter or sys.executable, *_flags(), str(runner / "keeper.py")],
        "environment": {
            name: value
            for name, value in environ.items()
            if name.startswith(_PREFIXES) and not (interpreter and name in OF_ONE_INTERPRETER)
        },
        "limits": limits,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
    }


def name(made: dict[str, Any]) -> str:
    """Return the digest that stands for a recipe."""
    return digests.of_bytes(documents.write(made))[:24]


def become(made: Mapping[str, Any]) -> None:
    """Take on a recipe's limits and affinity, as far as this process may: whoever started it may have had others."""
    import resource

    for limit, (soft, hard) in made.get("limits", {}).items():
        number = getattr(resource, f"RLIMIT_{limit}", None)
        if number is None or resource.getrlimit(number) == (soft, hard):
            continue
        with contextlib.suppress(ValueError, OSError):  # only root raises a hard limit
            resource.setrlimit(number, (soft, hard))
            continue
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
    cores = made.get("affinity")
    if cores and hasattr(os, "sched_setaffinity") and sorted(os.sched_getaffinity(0)) != cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


def _has(module: object, limit: str) -> bool:
    return hasattr(module, f"RLIMIT_{limit}")


def _flags() -> list[str]:
    """Return the interpreter's own flags, so that a job runs under the same ones."""
    found = []
    for attribute, letter in _FLAGS.items():
        found += [f"-{letter * count}"] if (count := getattr(sys.flags, attribute)) else []
    found += [f"-W{option}" for option in sys.warnoptions]
    for option, value in sys._xoptions.items():  # noqa: SLF001 - the documented way to read -X
        found.append(f"-X{option}" if value is True else f"-X{option}={value}")
    return found


_NAMES = frozenset(  # a string is read more easily than forty quoted words
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TERM COLUMNS NO_COLOR VIRTUAL_ENV CONDA_PREFIX "
    "CONDA_DEFAULT_ENV SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY "
    "http_proxy https_proxy no_proxy XLA_FLAGS".split()
) | frozenset(threads.VARIABLES)
_OURS = ("KINETIC_HOME", "KINETIC_RUNTIME_DIR", "KINETIC_PORTABLE", "KINETIC_VOLUME_ROOT")
_COPIED_PREFIXES = ("LC_", "XDG_", "PYTHON", "LD_", "DYLD_", "CUDA_", "NVIDIA_", *_OURS)


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
        "KINETIC_CHECKPOINT_DIR": output_paths.checkpoints_of(order),
        "KINETIC_HOST_INDEX": "0",
        "KINETIC_HOST_COUNT": str(order.hosts),
    }
    return chosen | frameworks | dict(captured) | own


def allowed(environ: Mapping[str, str], *, cloud: bool = False) -> dict[str, str]:
    """Return what of a client's environment every job gets; with what opens stores in the cloud, where it needs one."""
    names = _NAMES | frozenset(CREDENTIAL_VARIABLES) if cloud else _NAMES
    return {name: value for name, value in environ.items() if name in names or name.startswith(_COPIED_PREFIXES)}


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
