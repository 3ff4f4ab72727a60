"""The images of a real node, made without any registry: of Debian's packages and the Python that runs this.

Standard library only: `make node` reads this before any environment exists.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from cluster import binaries

PAUSE = "localhost/pause:1"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = f"docker.io/library/python:{VERSION}-slim"
SITE_PACKAGES = f"/usr/local/lib/python{VERSION}/site-packages"
OF_CLUSTER_TESTS = "docker.io/library/python:3-test"  # the same, as pods of the cluster's own tests name it
# runc runs containers, the plugins connect them, busybox is the pause image, debootstrap makes the rest.
PACKAGES = ("runc", "containernetworking-plugins", "busybox-static", "debootstrap")
# What a slim image has no use for, below the root of Debian and below Python's own folder.
_NOT_OF_DEBIAN = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache",
    "var/lib/apt/lists",
)
_NOT_OF_PYTHON = ("site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "__pycache__")
_NOT_BUILT = ("_tkinter",)  # needs X11


def debian() -> Path:
    """Return the folder with the unpacked packages."""
    return binaries.NODE.folder() / "debian"


def pause_tar() -> Path:
    return binaries.NODE.folder() / "images" / "pause.tar"


def python_tar() -> Path:
    """Return the image with this version of Python."""
    return binaries.NODE.folder() / "images" / f"python-{VERSION}.tar"


def why_debian_will_not_do() -> str:
    """Return why the packages of this system cannot be used here, or ""."""
    release = Path("/etc/os-release")
    if not release.exists() or not re.search(r"^ID=debian$", release.read_text(), re.MULTILINE):
        return "the real node is made of Debian's packages, and this system is not Debian"
    if os.geteuid() != 0:
        return "the real node needs root"
    absent = [name for name in ("apt-get", "dpkg-deb", "dpkg-query", "chroot", "ldd") if shutil.which(name) is None]
    return f"the real node needs {', '.join(absent)}" if absent else ""


def unpack_packages() -> None:
    """Fetch Debian's packages and unpack them beside the programs: the system itself is not changed."""
    with tempfile.TemporaryDirectory(dir=binaries.NODE.folder()) as scratch:
        # Without APT's own user, who may not enter root's folders.
        fetch = ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", *PACKAGES]
        if subprocess.run(fetch, cwd=scratch, stdout=subprocess.DEVNULL, check=False).returncode:
            subprocess.run(["apt-get", "update", "-q"], stdout=subprocess.DEVNULL, check=True)
            subprocess.run(fetch, cwd=scratch, stdout=subprocess.DEVNULL, check=True)
        made = Path(scratch) / "debian"
        for package in Path(scratch).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(made)], check=True)
        made.replace(debian())


def make_pause() -> None:
    """Make the image of the process that holds a pod's namespaces: busybox, asleep."""
    with tempfile.TemporaryDirectory(dir=binaries.NODE.folder()) as scratch:
        shutil.copy(debian() / "bin" / "busybox", scratch)
        _write_image(pause_tar(), PAUSE, Path(scratch), ["/busybox", "sleep", "2147483647"])


def make_python() -> None:
    """Make `python:X.Y-slim`: a minimal Debian with this Python in /usr/local."""
    with tempfile.TemporaryDirectory(dir=binaries.NODE.folder()) as scratch:
        root = Path(scratch) / "root"
        words = ["--variant=minbase", f"--include={','.join(_library_packages())}", _suite(), str(root)]
        environment = {**os.environ, "DEBOOTSTRAP_DIR": str(debian() / "usr" / "share" / "debootstrap")}
        with (Path(scratch) / "log").open("w") as log:
            program = ["sh", str(debian() / "usr" / "sbin" / "debootstrap"), *words]
            done = subprocess.run(program, env=environment, stdout=log, stderr=log, check=False)
        if done.returncode:
            print((Path(scratch) / "log").read_text()[-2000:], file=sys.stderr)
            done.check_returncode()
        for name in _NOT_OF_DEBIAN:
            shutil.rmtree(root / name, ignore_errors=True)
        _copy_python(root / "usr" / "local")
        subprocess.run(["chroot", str(root), "/sbin/ldconfig"], check=True)
        subprocess.run(["chroot", str(root), "/usr/local/bin/python3", "-c", "import ssl, sqlite3, ctypes"], check=True)
        _write_image(python_tar(), PYTHON, root, ["python3"])


def _suite() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
    assert found, "/etc/os-release does not name Debian's suite"
    return found.group(1)


def _library_packages() -> list[str]:
    """List the packages that hold the libraries of this Python."""
    own = Path(sysconfig.get_path("platstdlib")) / "lib-dynload"
    files = [sys.executable, *(str(each) for each in own.glob("*.so") if not each.name.startswith(_NOT_BUILT))]
    linked = subprocess.run(["ldd", *files], capture_output=True, text=True, check=True).stdout
    found = {"ca-certificates"}
    for path in sorted(set(re.findall(r"=> (/\S+)", linked))):
        for name in {path, os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")}:
            answer = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True, check=False)
            found.update(re.findall(r"^([\w.+-]+)(?::\w+)?: ", answer.stdout, re.MULTILINE))
    return sorted(found)


def _copy_python(local: Path) -> None:
    base = Path(sys.base_prefix)
    name = f"python{VERSION}"
    shutil.copytree(base / "lib" / name, local / "lib" / name, symlinks=True,
                    ignore=shutil.ignore_patterns(*_NOT_OF_PYTHON, "*.a", "_tkinter*"), dirs_exist_ok=True)  # fmt: skip
    (local / "lib" / name / "site-packages").mkdir(exist_ok=True)
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy(library, local / "lib", follow_symlinks=False)
    shutil.copy(base / "bin" / name, local / "bin" / name)
    for link in ("python", "python3"):
        (local / "bin" / link).symlink_to(name)


def _write_image(at: Path, name: str, root: Path, command: list[str]) -> None:
    """Write a folder as an image of one layer, the way `docker save` does; whole or not at all."""
    at.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=at.parent) as scratch:
        layer = Path(scratch) / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            tar.add(root, arcname=".", filter=_of_root)
        with layer.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
        config = {
            "architecture": "arm64" if os.uname().machine == "aarch64" else "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": command},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        made = Path(scratch) / "image.tar"
        with tarfile.open(made, "w") as tar:
            tar.add(layer, arcname="layer.tar")
            for member, page in (("config.json", config), ("manifest.json", manifest)):
                data = json.dumps(page).encode()
                (entry := tarfile.TarInfo(member)).size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        made.replace(at)


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Keep numbers of owners, drop names: the image has users of its own. Devices come from the runtime."""
    entry.uname = entry.gname = ""
    return None if entry.isdev() else entry


STEPS: tuple[tuple[str, Callable[[], Path], Callable[[], None]], ...] = (
    ("Debian's packages", debian, unpack_packages),
    ("the pause image", pause_tar, make_pause),
    (f"the image python:{VERSION}-slim", python_tar, make_python),
)


def missing() -> list[str]:
    """Name what is still to be made."""
    return [what for what, at, _ in STEPS if not at().exists()]
