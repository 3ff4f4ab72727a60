"""Wheels made for a test, and an index that serves them."""

from __future__ import annotations

import base64
import ensurepip
import hashlib
import json
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path

from servers.http11 import Answer, Request, Server

from kinetic._images.layers import Wheel


def made_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | str],
    *,
    tag: str = "py3-none-any",
    needs: str = "",
) -> Path:
    """Write a wheel; the file "entry" is its entry_points.txt, ``needs`` a requirement."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    contents = {f"{about}/entry_points.txt" if path == "entry" else path: data for path, data in files.items()}
    contents |= {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = ""
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner, given in contents.items():
            data = given.encode() if isinstance(given, str) else given
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            path_in_record = '"' + inner.replace('"', '""') + '"' if '"' in inner or "," in inner else inner
            record += f"{path_in_record},sha256={digest},{len(data)}\n"
            archive.writestr(zipfile.ZipInfo(inner, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(f"{about}/RECORD", (2020, 1, 1, 0, 0, 0)), record + f"{about}/RECORD,,\n")
    return path


def wheel_of(file: Path) -> Wheel:
    """Return a wheel as a lock names it."""
    data = file.read_bytes()
    name, version = file.name.split("-")[:2]
    return Wheel(name, version, file.name, hashlib.sha256(data).hexdigest(), len(data), f"file://{file}")


class Index:
    """Serves files by name; with ``login`` to nobody else. Calling it adds a file and returns its address."""

    def __init__(self) -> None:
        self.login: tuple[str, str] | None = None
        self.algorithm = "sha256"  # of the hashes that it names
        self.has_metadata = False  # beside each file, so that nobody fetches one to resolve (PEP 658)
        self.asked: list[str] = []
        self.gate = threading.Event()  # while it is not set, files do not come
        self.gate.set()
        self._files: dict[str, Path] = {}
        self._server = Server(self._answer).start()

    def __call__(self, file: Path) -> str:
        self._files[f"/{file.name}"] = file
        return f"{self._server.url}/{file.name}"

    @property
    def simple(self) -> str:
        """Return the address for uv and pip."""
        return f"{self._server.url}/simple"

    def close(self) -> None:
        self.gate.set()
        self._server.close()

    def _answer(self, request: Request) -> Answer:
        self.asked.append(request.path)
        if self.login:
            wanted = "Basic " + base64.b64encode(":".join(self.login).encode()).decode()
            if request.headers.get("authorization") != wanted:
                return Answer(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
        if request.path.startswith("/simple/"):  # PEP 691
            name = request.path.split("/")[2]
            files = [
                {
                    "filename": file.name,
                    "url": f"{self._server.url}/{file.name}",
                    "hashes": {self.algorithm: hashlib.new(self.algorithm, file.read_bytes()).hexdigest()},
                    "size": file.stat().st_size,
                    "core-metadata": self.has_metadata,
                }
                for file in self._files.values()
                if file.name.partition("-")[0].replace("_", "-") == name
            ]
            page = json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files})
            kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
            return Answer(200, page.encode(), kind) if files else Answer(404, b"", {})
        self.gate.wait(60)
        file = self._files.get(request.path.removesuffix(".metadata"))
        if file and request.path.endswith(".metadata"):
            with zipfile.ZipFile(file) as wheel:
                [about] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
                return Answer(200, wheel.read(about), {})
        return Answer(200, file.read_bytes(), {}) if file else Answer(404, b"", {})


def environment_with_pip(folder: Path) -> Path:
    """Make an environment of this Python with the pip that comes with it, unpacked; return its Python.

    `python -m venv` runs that pip to install itself, which takes twenty times as long.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    theirs = sysconfig.get_config_var("WHEEL_PKG_DIR")  # of a distribution that keeps it elsewhere
    pip = next(Path(theirs or Path(ensurepip.__file__).with_name("_bundled")).glob("pip-*.whl"))
    [packages] = folder.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(pip) as wheel:
        wheel.extractall(packages)
    return folder / "bin" / "python"
