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
from typing import Any

from kinetic._wire import digests, pages

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
    return digests.of_bytes(pages.write(made))[:24]


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
