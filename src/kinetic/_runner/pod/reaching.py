"""The store client: installed at the start of a pod whose image lacks it; without it not even a log arrives."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

from kinetic._runner.pod import requiring
from kinetic._runner.pod.telling import say
from kinetic.errors import KineticError, StoreUnreachableError

_LONGEST = 600  # characters of what an installer says


def see_to_a_client(requirement: str, base: Path) -> None:
    """Install a client for the store into a folder of this container's own, unless the image has one.

    Args:
        requirement: What is needed, e.g. "obstore==0.12.1"; "" for a store in a folder.
        base: A folder of this container's own.

    Raises:
        StoreUnreachableError: It cannot be installed; another pod may fare better.
    """
    if not requirement or _is_there(requirement):
        return
    folder = base / "clients"
    say(f"this image cannot open the job's store: installing {requirement}")
    try:
        words = [
            *requiring.uv(base),
            "pip",
            "install",
            "--python",
            sys.executable,
            "--target",
            str(folder),
            requirement,
        ]
        done = subprocess.run(
            words, env={**os.environ, "UV_NO_PROGRESS": "1"}, check=False, capture_output=True, text=True
        )
    except (KineticError, OSError) as error:
        raise _failed(requirement, str(error)) from error
    if done.returncode:
        raise _failed(requirement, done.stderr.strip()[-_LONGEST:])
    requiring.show(folder)
    sys.modules.pop(_module(requirement), None)


def _is_there(requirement: str) -> bool:
    try:
        importlib.import_module(_module(requirement))
    except ImportError:
        return False
    return True


def _module(requirement: str) -> str:
    return requirement.partition("=")[0]


def _failed(requirement: str, why: str) -> StoreUnreachableError:
    return StoreUnreachableError(
        f"{requirement}, which opens the job's store, could not be installed into this pod",
        why=why,
        next=f"add the line RUN pip install '{requirement}' to the container_image, or give the pod a package index",
    )
