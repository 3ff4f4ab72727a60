"""Bytecode of wheels, compiled once for each: importing JAX and Keras in a fresh container takes a third of the time.

The bytecode of a wheel is a zip file beside it in the cache, so a layer is written from it like one of wheels. Wheels
are compiled in other processes, several at once; a client's own program is never imported there. One Python compiles
the same bytes each time, so clients that build side by side make one layer; another release of Python may not.
Therefore bytecode has layers of its own, and those of wheels can be verified.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import subprocess
import sys
import sysconfig
import threading
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from kinetic.errors import ImageError

_CHECKED = (3).to_bytes(4, "little")  # PEP 552: by hash, compared with the source, which may be another one
_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: by hash, never compared with the source: no file is read for it
_CORES = threading.BoundedSemaphore(os.cpu_count() or 1)  # layers are made side by side, and each compiles wheels
_NICE = 5  # what is written and sent meanwhile comes first
_TIME = (1980, 1, 1, 0, 0, 0)
_NOT_IN_PODS = frozenset({"test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip", "tkinter", "site-packages"})
_MOST_SOURCE = 8 << 20  # bytes of one module; generated tables beyond that are better compiled where they are needed


def path_for(wheel: Path) -> Path:
    """Return where the bytecode of a wheel is, for the Python that runs this."""
    return wheel.with_suffix(f".{sys.implementation.cache_tag}.zip")


def compile_wheels(wheels: Iterable[Path], packages: str) -> None:
    """Compile the wheels whose bytecode is missing; of modules that cannot be compiled there is none.

    ``packages`` is the folder of their modules in the image, which tracebacks will show.

    Raises:
        ImageError: The disk is full, or a wheel is damaged.
    """
    missing = [wheel for wheel in wheels if not path_for(wheel).exists()]
    if not missing:
        return
    with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1), "kinetic-bytecode") as pool:
        list(pool.map(lambda wheel: _run("wheel", str(wheel), str(path_for(wheel)), packages), missing))


def compile_standard_library(target: Path, folder: str) -> None:
    """Compile the modules of the Python that runs this into a zip file, for a folder of an image with the same release.

    Raises:
        ImageError: The disk is full.
    """
    if not target.exists():
        _run("library", str(target), folder)


def _run(*words: str) -> None:
    """Run ``main`` in a process of its own, in which nothing but Python itself decides what is compiled to what."""
    from kinetic._wire import python_runtime  # which the process that compiles does not need

    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # -P leaves the folder of the project off the path, where a file may have the name of a standard module. -S: what
    # site-packages load decides which names are interned, and that is seen in bytecode, like the order of sets.
    command = [
        python_runtime.own_python(),
        "-S",
        "-s",
        "-P",
        "-c",
        _PROGRAM,
        os.pathsep.join(sys.modules["kinetic"].__path__),
        *words,
    ]
    environ["PYTHONHASHSEED"] = "0"
    with _CORES:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environ, check=False
        )
    if done.returncode:
        raise ImageError(
            "bytecode for an image could not be compiled",
            why=(done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300],
            next=f"make room on the disk, or remove a damaged cache: rm -r {Path(words[1]).parent}",
            code="layer",
        )


# In a pod that builds images, this room is in another folder than the rest of the package.
_PROGRAM = (
    "import os, sys, types; kinetic = sys.modules['kinetic'] = types.ModuleType('kinetic'); "
    "kinetic.__path__ = sys.argv[1].split(os.pathsep); "
    "from kinetic._images import bytecode; bytecode.main(*sys.argv[2:])"
)


def main(kind: str, *words: str) -> None:
    """Compile modules into a zip file, which appears when it is complete."""
    os.nice(_NICE)
    if kind == "wheel":
        wheel, target, folder = words
        with zipfile.ZipFile(wheel) as archive:
            _write(Path(target), folder, _modules_of_wheel(archive), _UNCHECKED)
    else:
        target, folder = words
        _write(Path(target), folder, _modules_of_library(Path(sysconfig.get_path("stdlib"))), _CHECKED)


def _write(target: Path, folder: str, modules: Iterable[tuple[PurePosixPath, bytes]], flags: bytes) -> None:
    beside = Path(f"{target}.{os.getpid():x}")
    try:
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for path, source in modules:
                if code := _compiled(source, f"{folder}/{path}", flags):
                    name = f"{path.parent}/__pycache__/{path.stem}.{sys.implementation.cache_tag}.pyc"
                    archive.writestr(_info(name.removeprefix("./")), code)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _modules_of_wheel(archive: zipfile.ZipFile) -> Iterator[tuple[PurePosixPath, bytes]]:
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        top, *below = path.parts
        if top.endswith(".data"):
            if len(below) < 2 or below[0] not in {"purelib", "platlib"}:
                continue
            path = PurePosixPath(*below[1:])
        if path.suffix == ".py" and info.file_size <= _MOST_SOURCE:
            yield path, archive.read(info)


def _modules_of_library(root: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if not _NOT_IN_PODS.intersection(path.parts) and not path.name.startswith("_sysconfigdata"):
            yield PurePosixPath(path.as_posix()), file.read_bytes()


def _compiled(source: bytes, path: str, flags: bytes) -> bytes:
    """Return a .pyc file, or nothing for what is no Python of this version: templates, tests of syntax."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, UnicodeDecodeError):
        return b""
    # Loaded once more, it has lost what distinguishes objects by who else used them while it was compiled.
    data = marshal.dumps(marshal.loads(marshal.dumps(code)))  # noqa: S302 - written in this very line
    return importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source) + data


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info
