"""A real container registry on this machine: distribution, built once from its Go module; its blobs are in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kinetic._images.container_registry import Login

SOURCE = Path(__file__).parent / "registry_server"
CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
{more}"""


def program() -> Path:
    """Return where the registry belongs; another source has another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    recipe = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in ("go.mod", "main.go")))
    return cache / "kinetic-test-registry" / recipe.hexdigest()[:16] / "registry"


def build() -> str:
    """Build the registry where it is missing, in about a minute; return why it cannot be built, or ""."""
    if program().exists():
        return ""
    if shutil.which("go") is None:
        return "the registry of these tests is built with Go, and there is no go on the PATH"
    program().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program().parent) as scratch:
        for name in ("go.mod", "main.go"):
            shutil.copy(SOURCE / name, scratch)
        command = [
            "go",
            "build",
            "-mod=mod",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            "-s -w",
            "-o",
            "registry",
            ".",
        ]
        environ = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
        built = subprocess.run(command, cwd=scratch, env=environ, capture_output=True, text=True, check=False)
        if built.returncode:
            return f"the registry could not be built: {built.stderr.strip().splitlines()[-1:]}"
        (Path(scratch) / "registry").replace(program())
    return ""


@contextlib.contextmanager
def started(folder: Path, more: str = "") -> Iterator[str]:
    """Run the registry with its blobs in a folder; yield its address, e.g. "127.0.0.1:5000"."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(CONFIG.format(folder=folder / "blobs", port=port, more=more))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([str(program()), "serve", str(config)], stdout=log, stderr=log)
    try:
        _wait_for(process, port, folder / "registry.log")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    limit = time.monotonic() + 30
    while time.monotonic() < limit and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.request("GET", "/v2/")
            connection.getresponse().read()
            return
        time.sleep(0.02)
    raise RuntimeError(f"the registry did not start:\n{log.read_text()[-2000:]}")


def anonymous(*, again: bool) -> Login:
    """Log in as nobody."""
    return Login()
