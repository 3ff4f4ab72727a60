"""Bytecode of wheels, compiled once for each: importing JAX and Keras in a fresh container takes a third of the time.

The bytecode of a wheel is a zip file beside it in the cache, so a layer is written from it like one of wheels. Wheels
are compiled in other processes, several at once; a client's own program is never imported there. The marshal format
is not the same in every run, therefore bytecode has layers of its own, and those of wheels can be verified.

Run as a program: ``python -m kinetic._images.bytecode WHEEL TARGET PREFIX``.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: by hash, never compared with the source: no file is read for it
_TIME = (1980, 1, 1, 0, 0, 0)
_MOST_SOURCE = 8 << 20  # bytes of one module; generated tables beyond that are better compiled where they are needed


def path_for(wheel: Path) -> Path:
    """Return where the bytecode of a wheel is, for the Python that runs this."""
    return wheel.with_suffix(f".{sys.implementation.cache_tag}.zip")


def compile_wheels(wheels: Iterable[Path], roots: Mapping[Path, str] | str) -> None:
    """Compile the wheels whose bytecode is missing; a wheel that cannot be compiled gets an empty zip file."""
    missing = [wheel for wheel in wheels if not path_for(wheel).exists()]
    if not missing:
        return
    with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1), "kinetic-bytecode") as pool:
        list(pool.map(lambda wheel: _start(wheel, roots if isinstance(roots, str) else roots[wheel]), missing))


def _start(wheel: Path, packages: str) -> None:
    source = str(Path(__file__).parents[2])
    subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, source, str(wheel), str(path_for(wheel)), packages],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )


# -I leaves the folder of the project off the path, where a file may have the name of a standard module.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from kinetic._images import bytecode; bytecode.main(*sys.argv[2:])"
)


def main(wheel: str, target: str, packages: str) -> None:
    """Compile the modules of a wheel into a zip file, which appears when it is complete."""
    beside = f"{target}.{os.getpid():x}"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as zip_,
        ):
            for info in archive.infolist():
                path = PurePosixPath(info.filename)
                top, *below = path.parts
                if top.endswith(".data"):
                    if len(below) < 2 or below[0] not in {"purelib", "platlib"}:
                        continue
                    path = PurePosixPath(*below[1:])
                if path.suffix == ".py" and info.file_size <= _MOST_SOURCE:
                    code = _compiled(archive.read(info), f"{packages}/{path}")
                    if code:
                        name = f"{path.parent}/__pycache__/{path.stem}.{sys.implementation.cache_tag}.pyc"
                        zip_.writestr(_info(name.removeprefix("./")), code)
        os.replace(beside, target)
    finally:
        Path(beside).unlink(missing_ok=True)


def _compiled(source: bytes, path: str) -> bytes:
    """Return a .pyc file, or nothing for what is no Python of this version: templates, tests of syntax."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, UnicodeDecodeError):
        return b""
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info
