"""The runner as one file, for pods: the same bytes wherever the same kinetic is installed.

It travels in one ConfigMap for each content and namespace, which is shared and immutable. Kubernetes allows such a map
1 MiB; this takes less than half. The container starts it with ``python3 /kinetic/runner.zip PAGE``. It unpacks itself
first: an import out of a zip is as slow as that (measured: 0.21 s against 0.20 s), and a folder can keep bytecode for a
second interpreter, which a job with a store in the cloud needs when its image has obstore.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

from kinetic._packing import runner
from kinetic.errors import PackingError

MOST_BYTES = 1_000_000  # 1 MiB for the whole ConfigMap, less what Kubernetes writes around it
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold
_FILE_MODE = 0o100644 << 16
_UNIX = 3

# In words that any Python 3 understands, so that one that is too old can say so. 82 is FAILED_EXIT of _wire/pod.py, 83
# INFRASTRUCTURE_EXIT.
_START = '''"""Start the runner of a pod: unpack, then import; see kinetic/_runner/pod/starting.py."""
import os
import sys

if sys.version_info < (3, 11):
    sys.stdout.write("kinetic| this image has Python %d.%d, and kinetic needs 3.11\\n" % sys.version_info[:2])
    sys.stdout.write("kinetic| choose a container_image with the Python that you submit from\\n")
    sys.stdout.flush()
    os._exit(82)

import signal
import tempfile
import zipfile

signal.signal(signal.SIGTERM, lambda *_: os._exit(83))  # a first process ignores it until it says otherwise
base = os.path.join(tempfile.gettempdir(), "kinetic-pod")
try:
    os.mkdir(base, 0o700)  # in each pod of a job the same: an editor that debugs it maps folders by their paths
except OSError:  # it is not this container's first process, or the folder is not its own
    base = tempfile.mkdtemp(prefix="kinetic-")
folder = os.path.join(base, "runners", "pod")
with zipfile.ZipFile(sys.argv[0]) as file:
    file.extractall(folder)
sys.path[0] = folder

from kinetic._runner.pod.starting import main

main(sys.argv[1:], base, folder)
'''


class RunnerZip(NamedTuple):
    """The runner for pods.

    Attributes:
        sha256: Its digest; the name of the ConfigMap follows from it.
        data: The file.
    """

    sha256: str
    data: bytes


_built: list[RunnerZip] = []


def build() -> RunnerZip:
    """Return the zip of this installation; made once in a process.

    Raises:
        PackingError: It is too large for a ConfigMap.
    """
    if not _built:
        data = _zipped({name: path.read_bytes() for name, path in runner.contents()})
        if len(data) > MOST_BYTES:
            raise PackingError(
                "the code that carries out jobs is too large for a cluster",
                why=f"{len(data)} bytes, and a ConfigMap holds {MOST_BYTES}",
                code="runner-too-large",
            )
        _built.append(RunnerZip(hashlib.sha256(data).hexdigest(), data))
    return _built[0]


def write(folder: Path) -> Path:
    """Write the zip into a folder under a name with its digest, and return its path."""
    built = build()
    path = folder / f"runner-{built.sha256[:24]}.zip"
    path.write_bytes(built.data)
    return path


def _zipped(files: dict[str, bytes]) -> bytes:
    texts = {"__main__.py": _START.encode(), "worker.py": runner.WORKER.encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in sorted({**files, **texts}.items()):
            about = zipfile.ZipInfo(name, _EPOCH)
            about.compress_type, about.external_attr, about.create_system = zipfile.ZIP_DEFLATED, _FILE_MODE, _UNIX
            archive.writestr(about, data, compresslevel=9)
    return buffer.getvalue()
