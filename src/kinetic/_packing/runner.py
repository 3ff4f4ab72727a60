"""The runner is this client's own code: the installed package without its faces, and its cloudpickle.

Client and job can never have different versions, and upgrading kinetic under a running job changes nothing for it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from kinetic.errors import PackingError

_FACES = {"_cli", "_dashboard", "_cluster", "__pycache__"}
_START = '''"""Start a keeper: detach, then import; see kinetic/_backends/local/keeper.py."""
import os
import sys

if os.fork():
    os._exit(0)

from kinetic._backends.local.keeper import main

main(sys.argv[1:])
'''
WORKER = '''"""Start a worker in an interpreter of its own; see kinetic/_runner/working.py."""
import sys

from kinetic._runner.working import main

main(sys.argv[1:])
'''
_HEADER_BYTES = 16  # of a file of bytecode
_ROOM_BYTES = 256 << 10  # more than any file of bytecode here takes
_made: dict[Path, Path] = {}


def folder(runners: Path) -> Path:
    """Return a folder with the runner's code and bytecode, made once for each content and Python version.

    Args:
        runners: Where such folders lie.
    """
    if runners in _made and _made[runners].exists():
        return _made[runners]
    files = dict(contents())
    name = f"{_digest(files)[:24]}-{sys.implementation.cache_tag}"
    target = runners / name
    if not (target / "complete").exists():
        _make(files, target)
    _made[runners] = target
    return target


def contents() -> list[tuple[str, Path]]:
    """List what the runner is made of: path inside the folder, and the file."""
    found = list(_package("kinetic", Path(__file__).parents[1]))
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or not spec.origin:
        raise PackingError("cloudpickle is not installed", next="pip install --force-reinstall kinetic-jobs")
    return sorted([*found, *_package("cloudpickle", Path(spec.origin).parent)])


def _package(name: str, root: Path) -> list[tuple[str, Path]]:
    found = []
    for folder_, folders, files in os.walk(root):
        folders[:] = [item for item in folders if item not in _FACES]
        inside = os.path.relpath(folder_, root)
        prefix = name if inside == "." else f"{name}/{inside}"
        found += [(f"{prefix}/{file}", Path(folder_) / file) for file in files if file.endswith((".py", ".typed"))]
    return found


def _digest(files: dict[str, Path]) -> str:
    digest = hashlib.sha256((_START + WORKER).encode())
    for name, path in files.items():
        data = path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _make(files: dict[str, Path], target: Path) -> None:
    import shutil  # here and below: 10 ms; once for each version of kinetic

    beside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        _fill(files, beside, target)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise PackingError(
            f"the code that carries out jobs could not be put into {target.parent}",
            why=str(error),
            next="free some space there, or point KINETIC_RUNTIME_DIR at a folder on another local disk",
        ) from error
    try:
        beside.rename(target)
    except OSError:  # another client was faster
        shutil.rmtree(beside, ignore_errors=True)


def _fill(files: dict[str, Path], beside: Path, target: Path) -> None:
    import compileall
    import shutil

    for name, path in files.items():
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, beside / name)
    (beside / "keeper.py").write_text(_START)
    (beside / "worker.py").write_text(WORKER)
    whole = compileall.compile_dir(
        beside, quiet=2, optimize=sys.flags.optimize, stripdir=str(beside), prependdir=str(target)
    )
    _check_bytecode(beside, whole=bool(whole))
    (beside / "complete").write_text("")


def _check_bytecode(folder_: Path, *, whole: bool) -> None:
    """Raise what a full disk should have raised: Python writes bytecode without asking how much of it was written.

    A file that was cut short would be met by every keeper, long after there is room again. (CPython issue 126606.)
    """
    import errno
    import marshal

    for path in folder_.rglob("*.pyc"):
        try:
            marshal.loads(path.read_bytes()[_HEADER_BYTES:])  # noqa: S302 - ours, written a moment ago
        except (EOFError, ValueError, TypeError) as error:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
    if not whole:  # files are missing: harmless in themselves, and most likely there is no room for them
        room = folder_ / "room"
        room.write_bytes(bytes(_ROOM_BYTES))
        room.unlink()
