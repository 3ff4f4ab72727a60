"""A base image made of the Python that runs the tests and the libraries that it needs: what python:X.Y-slim is."""

from __future__ import annotations

import io
import platform
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from servers.image_fixtures import PYTHON, put_base

from kinetic._images.base_image import BaseImage
from kinetic._images.container_registry import Registry
from kinetic._images.layers import LayerWriter

LEFT_OUT = {"test", "tests", "site-packages", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "__pycache__"}
LIBRARY = re.compile(r"(/\S+)(?= \(0x)")


def push(registry: Registry) -> BaseImage:
    """Push it under the tag "base"; its Python is in /usr/local, as in the official images, with no bytecode."""
    library = Path(sysconfig.get_path("stdlib"))
    program = Path(sys.base_prefix) / "bin" / f"python{PYTHON}"
    files = {f"usr/local/bin/python{PYTHON}": program}
    native = [program]
    for file in sorted(library.rglob("*")):
        inner = file.relative_to(library)
        if file.is_file() and not LEFT_OUT.intersection(inner.parts) and not inner.parts[0].startswith("config-"):
            files[f"usr/local/lib/python{PYTHON}/{inner}"] = file
            native += [file] if file.suffix == ".so" else []
    for needed in sorted(_libraries(native)):
        files[needed.lstrip("/")] = Path(needed)
    sink = io.BytesIO()
    writer = LayerWriter(sink)
    for path, file in sorted(files.items()):
        writer.add_bytes(path, file.read_bytes(), executable=file.suffix != ".py")
    for folder in ("tmp", "proc", "dev", "sys", "root"):
        writer.add_bytes(f"{folder}/.keep", b"", executable=False)
    writer.add_bytes("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", executable=False)
    written = writer.finish()
    environ = ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", f"PYTHON_VERSION={platform.python_version()}"]
    return put_base(registry, sink.getvalue(), written.diff_id, {"Env": environ, "Cmd": ["python3"]})


def _libraries(files: list[Path]) -> set[str]:
    done = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False)
    return set(LIBRARY.findall(done.stdout))
