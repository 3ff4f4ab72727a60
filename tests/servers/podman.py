"""A real container runtime: podman with runc, as installed or from Debian's packages, unpacked into a cache.

It runs as root, with storage and settings of its own, the network of the host, and plain HTTP to loopback alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGES = (
    "podman", "conmon", "runc", "golang-github-containers-common", "golang-github-containers-image", "libgpgme11",
    "libsubid4", "libassuan0",
)  # fmt: skip
# conmon leaves its parent, and podman waits until it has ended: somebody must take notice of that.
REAPER = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
child = subprocess.Popen(sys.argv[1:])
while True:
    pid, status = os.wait()
    if pid == child.pid:
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
"""
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
conmon_path = ["{conmon}"]
conmon_env_vars = {environ}
[engine.runtimes]
runc = ["{runc}"]
"""
STORAGE = """\
[storage]
driver = "overlay"
runroot = "{folder}/run"
graphroot = "{folder}/graph"
"""


def unavailable() -> str:
    """Fetch what is missing; return why no runtime can run here, or ""."""
    if not sys.platform.startswith("linux"):
        return "containers need Linux"
    if os.geteuid() != 0:
        return "podman is run as root here, and this user is not"
    if _is_installed() or (_cache() / "usr/bin/podman").exists():
        return ""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "podman is not installed, and there is no apt-get to fetch Debian's package"
    _cache().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_cache().parent) as scratch:
        fetch = ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", *PACKAGES]
        done = subprocess.run(fetch, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"Debian's packages could not be fetched; try apt-get update: {done.stderr.strip()[-300:]}"
        for package in Path(scratch).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), f"{scratch}/made"], check=True)
        shutil.rmtree(_cache(), ignore_errors=True)
        os.rename(f"{scratch}/made", _cache())
    return ""


class Podman:
    """Podman with its images and containers in a folder.

    Args:
        folder: Empty; remove it afterwards.
        registries: Hosts that are asked without TLS.
    """

    def __init__(self, folder: Path, registries: Sequence[str]) -> None:
        cache, installed = _cache(), _is_installed()
        find = shutil.which if installed else lambda name: str(cache / "usr/bin" / name)
        self._program = find("podman") or ""
        conmon = find("conmon") or "/usr/libexec/podman/conmon"
        self._policy = folder / "policy.json"
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        }
        if not installed:
            self._environ["LD_LIBRARY_PATH"] = str(cache / "usr/lib" / f"{os.uname().machine}-linux-gnu")
        # conmon starts another podman, which writes down how the container ended; this one waits 20 s for that.
        words = json.dumps([f"{name}={value}" for name, value in self._environ.items()])
        files = {
            "containers.conf": CONTAINERS.format(conmon=conmon, runc=find("runc") or "", environ=words),
            "storage.conf": STORAGE.format(folder=folder),
            "registries.conf": "".join(f'[[registry]]\nlocation = "{each}"\ninsecure = true\n' for each in registries),
            "policy.json": json.dumps({"default": [{"type": "insecureAcceptAnything"}]}),
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)

    def pull(self, image: str) -> subprocess.CompletedProcess[str]:
        return self._run("pull", "--quiet", "--signature-policy", str(self._policy), image)

    def run(self, image: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a new container of an image that was pulled."""
        return self._run("run", "--rm", "--pull=never", "--network=host", image, *command)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", REAPER, self._program, *words]
        return subprocess.run(
            command, env=self._environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )


def _is_installed() -> bool:
    return all(shutil.which(name) for name in ("podman", "runc"))


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "kinetic-test-podman" / hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:16]
