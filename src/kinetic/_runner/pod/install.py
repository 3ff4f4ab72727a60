"""Requiring: what the user's project needs is installed before anything of it is opened; see the page on images.

For images that do not hold it: uv installs it, into the image's own environment where that can be written, else into a
folder of the container's own. An image without uv gets one from pip, into a folder where no user's code sees it.
"""

from __future__ import annotations

import importlib
import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinetic._runner.pod.log_pump import say
from kinetic._stores.protocol import Store
from kinetic._wire import digests, distribution
from kinetic._wire.order import Artifact
from kinetic.errors import KineticError, RunnerError, StoreUnreachableError

_UV = {"UV_NO_PROGRESS": "1", "UV_LINK_MODE": "copy"}


def install_requirements(store: Store, artifact: Mapping[str, Any], base: Path) -> None:
    """Install the requirements of a job; what the installer says goes into the log.

    Args:
        store: Where the file lies, if it does not travel with the launch page.
        artifact: The file, as plain JSON.
        base: A folder of this container's own.

    Raises:
        RunnerError: It did not work; the log has the installer's words.
        IntegrityError: The file is not the one that was submitted.
    """
    file = base / "requirements.txt"
    file.write_bytes(_verified(store, Artifact(**artifact)))
    if not _asks_for_something(file):
        return
    folder = Path(sysconfig.get_path("purelib"))
    words = ["pip", "install", "--python", sys.executable, "--requirements", str(file)]
    if os.access(folder, os.W_OK):
        words.append("--break-system-packages")  # the image is this job's own
    else:
        folder = base / "packages"
        words += ["--target", str(folder)]
    overrides = base / "overrides.txt"
    overrides.write_text(distribution.OVERRIDES)
    _run([*uv(base), *words], distribution.with_overrides({**os.environ, **_UV}, str(overrides)))
    add_to_path(folder)


def install_beside(folder: Path, base: Path, name: str) -> None:
    """Install what is no dependency of the user's into a folder of its own, searched last.

    Args:
        folder: Where it goes.
        base: A folder of this job's own, for uv where there is none.
        name: A package whose version and files are pinned.

    Raises:
        RunnerError: It did not work; the log has the installer's words.
    """
    file = _pinned(base, name)
    words = ["pip", "install", "--python", sys.executable, "--target", str(folder)]
    # In a folder of ours: the project, in which this process may be by now, has no say in what we fetch.
    _run([*uv(base), *words, "--require-hashes", "--requirements", file], {**os.environ, **_UV}, folder=base)
    sys.path.append(str(folder))
    importlib.invalidate_caches()


def _pinned(base: Path, name: str) -> str:
    """Write the file that stands for one version of a package, and say which in the log."""
    file = base / f"{name}.txt"
    file.write_text(distribution.pinned(name))
    sys.stdout.write(f"kinetic: fetching {name}=={distribution.INSTALLER_VERSIONS[name]}\n")
    return str(file)


def _verified(store: Store, artifact: Artifact) -> bytes:
    what = "the file with the requirements"
    if artifact.inline or not artifact.key:
        return artifact.unwrap(what)
    data = store.get(artifact.key)
    artifact.verify(digests.of_bytes(data), what)
    return data


def _asks_for_something(file: Path) -> bool:
    lines = (line.strip() for line in file.read_text(errors="replace").splitlines())
    return any(line and not line.startswith("#") for line in lines)


def uv(base: Path) -> list[str]:
    """Return how uv is called; an image without one gets it from pip."""
    found = distribution.find_installer()
    if found:
        return [found]
    own = base / "uv"
    if not (own / "bin" / "uv").exists():
        # -I: neither the folder that we are in nor PYTHONPATH may bring a pip of its own.
        words = ["-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(own)]
        exactly = ["--only-binary", ":all:", "--no-deps", "--require-hashes", "--requirement", _pinned(base, "uv")]
        _run([sys.executable, *words, *exactly], dict(os.environ))
    return [str(own / "bin" / "uv")]


def _run(words: list[str], environ: dict[str, str], folder: Path | None = None) -> None:
    sys.stdout.write(f"kinetic: {' '.join(words)}\n")
    sys.stdout.flush()
    code = subprocess.run(words, env=environ, cwd=folder, check=False).returncode
    if code != 0:
        raise RunnerError(
            "the requirements of this job could not be installed",
            why=f"{' '.join(words[:3])} … ended with exit code {code}; its words are in the log",
            next="look into the job's log, and correct the project's dependencies or choose another image",
            code="dependency-install",
        )


def add_to_path(folder: Path) -> None:
    """Let this process, and those that it starts, import what was installed."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        above = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), above)))
    site.addsitedir(str(folder))
    importlib.invalidate_caches()


_LONGEST = 600  # characters of what an installer says


def install_store_client(requirement: str, base: Path) -> None:
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
            *uv(base),
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
    add_to_path(folder)
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
