"""What the tests of data share: shipping by hand, jobs in processes of their own, and a user without powers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from kinetic._stores import open_store
from kinetic._wire import keys, order
from kinetic._wire.order import DataRef

SOURCE = Path(order.__file__).parents[2]
NOBODY = 65534

# Who becomes nobody cannot read the standard library of a Python below /root, so all of it is loaded before; and who
# changes his user is not "dumpable", which an ordinary process of an ordinary user is.
AS_NOBODY = f"""
import ctypes, encodings.ascii, encodings.idna, json, os, random, shutil, subprocess, sys, tempfile, threading
import kinetic._runner.data.provision, kinetic._runner.worker.process_setup
import kinetic._stores.files, kinetic._stores.memory
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""
COMMON = """
import json, os, sys, time
from pathlib import Path
from kinetic._runner.data import provision
from kinetic._runner.worker import mount_namespace as mounts
from kinetic._runner.data import mounted_data as releasing
from kinetic._runner.data.file_cache import Cache, stamp_of
from kinetic._wire.order import DataRef
from kinetic.errors import KineticError

def say(value):
    print(json.dumps(value), flush=True)

def provide(job, *refs, **more):
    where = dict(folder=top / "jobs" / job / "data-0-0", cache=top / "cache", environ=os.environ)
    return provision.provide([DataRef.from_json(ref) for ref in refs], releasing.JobFolders(**{**where, **more}))

top = Path(sys.argv[1])
given = json.loads(sys.argv[2])
os.makedirs(top / "work", exist_ok=True)
os.chdir(top / "work")
"""


@pytest.fixture
def top() -> Iterator[Path]:
    """Return a folder that any user may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="kinetic-test-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def spawn(top: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that runs code as a job would: ``top`` and ``given`` are there, ``provide`` and ``say``."""
    with contextlib.ExitStack() as ending:

        def run(
            code: str, given: object = None, *, nobody: bool = False, environ: Mapping[str, str] = {}
        ) -> subprocess.Popen[str]:
            if nobody and os.geteuid() == 0:
                for folder, _, names in os.walk(top):  # without what processes that run already have just removed
                    for path in (folder, *(f"{folder}/{name}" for name in names)):
                        with contextlib.suppress(FileNotFoundError):
                            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
                    with contextlib.suppress(FileNotFoundError):
                        os.chmod(folder, 0o755)
            head = AS_NOBODY if nobody and os.geteuid() == 0 else ""
            clean = {name: value for name, value in os.environ.items() if not name.startswith("KINETIC_")}
            process = subprocess.Popen(
                [sys.executable, "-c", head + COMMON + code, str(top), json.dumps(given)],
                env={**clean, "PYTHONPATH": str(SOURCE), "HOME": "/nonexistent", **environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ending.callback(_end, process)
            return process

        yield run


@pytest.fixture
def job(spawn: Callable[..., subprocess.Popen[str]]) -> Callable[..., object]:
    """Return a function that runs code in a process and returns what it said last."""

    def run(code: str, given: object = None, **options: object) -> object:
        out, err = spawn(code, given, **options).communicate()
        assert out, err
        return json.loads(out.splitlines()[-1])

    return run


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def ship() -> Callable[..., DataRef]:
    """Return a function that puts data into a store as the client does: packs, chunks, the manifest last."""
    return _ship


def _ship(
    url: str,
    content: Mapping[str, bytes] | bytes,
    *,
    name: str = "set",
    executable: tuple[str, ...] = (),
    folders: tuple[str, ...] = (),
    large: tuple[str, ...] = (),
    chunk: int = 1000,
    **more: object,
) -> DataRef:
    store = open_store(url)
    files, pack = [], bytearray()
    for path, data in (content if not isinstance(content, bytes) else {name: content}).items():
        parts = []
        if path in large:
            pieces = [data[start : start + chunk] for start in range(0, len(data), chunk)]
            parts = [order.Part(_put(store, piece), 0, len(piece)) for piece in pieces]
        elif data:
            parts = [order.Part("", len(pack), len(data))]
            pack += data
        digest = order.file_digest(path)
        digest.update(data)
        files.append(
            order.ManifestFile(path, path in executable, len(data), digest.hexdigest(), path not in large, tuple(parts))
        )
    blob = _put(store, bytes(pack))
    files = [file._replace(parts=tuple(part._replace(blob=part.blob or blob) for part in file.parts)) for file in files]
    is_dir = not isinstance(content, bytes)
    whole = order.content_hash((bytes.fromhex(file.digest) for file in files), is_dir=is_dir)
    page = order.Manifest(whole, is_dir, tuple(files), folders).to_bytes()
    sha256 = hashlib.sha256(page).hexdigest()
    store.put(keys.data_manifest(whole, sha256), page)
    return DataRef("shipped", url, f"./{name}", name, is_dir, whole, sha256, **more)


def _put(store, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    store.put(keys.data_blob(digest), data)
    return digest
