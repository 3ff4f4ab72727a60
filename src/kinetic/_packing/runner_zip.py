"""The runner as one file, for pods: the same bytes wherever the same kinetic and the same Python are installed.

It travels in one ConfigMap for each content and namespace, which is shared and immutable. What is in it is a list: a
module that is not on it stays with the client, and a job finds a stand-in for it that says so when it is used, see
``_runner/stand_ins.py``. What every job loads travels as bytecode for the client's Python, so that no pod compiles it;
what few jobs load travels as source without docstrings, which takes half as much.

The container starts it with ``python3 /kinetic/runner.zip PAGE``. It unpacks itself first: a folder can be used by a
second interpreter, which a job with a store in the cloud needs when its image has obstore.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from kinetic import _settings as settings
from kinetic._packing import bytecode, runner
from kinetic._wire import folders
from kinetic._wire.pod import LEFT_OUT
from kinetic.errors import PackingError

MOST_BYTES = 1_000_000  # 1 MiB for the whole ConfigMap, less what Kubernetes writes around it; a test allows a quarter

# What travels: whole rooms, and of the other rooms what applying a decorator in a job loads.
ROOMS = (
    "cloudpickle",
    "kinetic._blobs",
    "kinetic._data",
    "kinetic._hardware",
    "kinetic._output",
    "kinetic._remote",
    "kinetic._runner",
    "kinetic._stores",
    "kinetic._wire",
)
MODULES = (
    "kinetic",
    "kinetic._backends",
    "kinetic._backends.registry",
    "kinetic._jobs",
    "kinetic._jobs.defaults",
    "kinetic._jobs.options",
    "kinetic._jobs.referring",
    "kinetic._jobs.resources",
    "kinetic._packing",
    "kinetic._packing.environment",
    "kinetic._settings",
    "kinetic._settings.cluster",
    "kinetic._settings.home",
    "kinetic._settings.job_options",
    "kinetic._settings.profiles",
    "kinetic._settings.target",
    "kinetic._settings.variables",
    "kinetic._version",
    "kinetic.collections",
    "kinetic.debug",
    "kinetic.errors",
    "kinetic.job_status",
    "kinetic.jobs",
    "kinetic.testing",
)
# Of these, what only few jobs load: it travels as source.
SELDOM = (
    "kinetic._blobs.scan",
    "kinetic._data",
    "kinetic._jobs.referring",
    "kinetic._runner.asking",
    "kinetic._runner.data",
    "kinetic._runner.debug_adapter",
    "kinetic._runner.debugging",
    "kinetic._runner.entering",
    "kinetic._runner.mounts",
    "kinetic._runner.relocating",
    "kinetic._stores.memory",
    "kinetic.collections",
    "kinetic.debug",
    "kinetic.jobs",
    "kinetic.testing",
)
_FILES = "files.xz"
_COMPILE_SECONDS = 120.0
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold
_FILE_MODE = 0o100644 << 16
_UNIX = 3

# In words that any Python 3 understands, so that one that is too old can say so. 82 is FAILED_EXIT of _wire/pod.py, 83
# INFRASTRUCTURE_EXIT.
_START = '''"""Start the runner of a pod: unpack, then import; see kinetic/_runner/pod/starting.py."""
import os
import sys

def refuse(why):
    sys.stdout.write("kinetic| " + why + "\\n")
    sys.stdout.flush()
    os._exit(82)

if sys.version_info[:2] != VERSION or sys.implementation.cache_tag != TAG:
    both = sys.version_info[:2] + VERSION
    refuse("this image has Python %d.%d, and the job was submitted with Python %d.%d: "
           "choose another container_image, or submit with the Python of the image" % both)
try:
    import lzma
    import zlib
except ImportError as error:
    refuse("the Python of this image has no lzma or no zlib (%s): choose another container_image" % error)

import signal
import tempfile

import unpack

signal.signal(signal.SIGTERM, lambda *_: os._exit(83))  # a first process ignores it until it says otherwise
base = os.path.join(tempfile.gettempdir(), "kinetic-pod")
try:
    os.mkdir(base, 0o700)  # in each pod of a job the same: an editor that debugs it maps folders by their paths
except OSError:  # it is not this container's first process, or the folder is not its own
    base = tempfile.mkdtemp(prefix="kinetic-")
folder = os.path.join(base, "runners", "pod")
unpack.write(folder)
sys.path[0] = folder

from kinetic._runner.pod.starting import main

main(sys.argv[1:], base, folder)
'''
_UNPACK = '''"""The files of the runner: written into a folder, or imported from memory by a short process."""
import importlib.util
import lzma
import marshal
import os
import sys
import types
import zipfile


def files():
    with zipfile.ZipFile(os.path.dirname(__file__)) as archive:
        return marshal.loads(lzma.decompress(archive.read("files.xz")))


def write(folder):
    made = set()
    for name, content in files().items():
        path = os.path.join(folder, name)
        above = os.path.dirname(path)
        if above not in made:
            os.makedirs(above, exist_ok=True)
            made.add(above)
        if isinstance(content, types.CodeType):  # the file of a frame tells whether it is ours
            content = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(_placed(content, path))
            path += "c"
        with open(path, "wb") as file:
            file.write(content)


def install():
    sys.meta_path.insert(0, _Importer(files()))


class _Importer:
    def __init__(self, found):
        self.found = found

    def find_spec(self, name, path=None, target=None):
        stem = name.replace(".", "/")
        for file, is_package in ((stem + "/__init__.py", True), (stem + ".py", False)):
            if file in self.found:
                return importlib.util.spec_from_loader(name, self, origin=file, is_package=is_package)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        content = self.found[module.__spec__.origin]
        if not isinstance(content, types.CodeType):
            content = compile(content, module.__spec__.origin, "exec")
        exec(content, module.__dict__)


def _placed(code, file):
    inner = tuple(_placed(each, file) if isinstance(each, types.CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=file, co_consts=inner)
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
    """Return the zip of this installation, as it was built before for the same content and Python, or built now.

    Raises:
        PackingError: It is too large, or could not be compiled.
    """
    if not _built:
        found = contents()
        data = _kept(digest := _digest(found))
        if data is None:
            data = _zipped(found)
            _keep(digest, data)
        if len(data) > MOST_BYTES:
            raise PackingError(
                "the code that carries out jobs is too large for a cluster",
                why=f"{len(data)} bytes, and a ConfigMap holds {MOST_BYTES}",
                code="runner-too-large",
            )
        _built.append(RunnerZip(hashlib.sha256(data).hexdigest(), data))
    return _built[0]


def contents() -> dict[str, Path]:
    """Return what travels: the name of each file in the runner's folder, and the file."""
    return {name: path for name, path in runner.contents() if name.endswith(".py") and is_listed(module_of(name))}


def left_out() -> list[str]:
    """Return the modules of kinetic that stay with the client."""
    return [module_of(name) for name, _ in runner.contents() if not is_listed(module_of(name)) and name.endswith(".py")]


def is_listed(module: str) -> bool:
    """Return whether a module travels."""
    return module in MODULES or _is_below(module, ROOMS)


def module_of(name: str) -> str:
    """Return the module that a file of the runner's folder holds."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def write(folder: Path) -> Path:
    """Write the zip into a folder under a name with its digest, and return its path."""
    built = build()
    path = folder / f"runner-{built.sha256[:24]}.zip"
    path.write_bytes(built.data)
    return path


def _is_below(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def _digest(found: dict[str, Path]) -> str:
    """Return what a built zip is kept under: other bytes of any part have another one."""
    digest = hashlib.sha256(f"{sys.version}\0{_START}{_UNPACK}{left_out()}\0".encode())
    for name, path in [*sorted(found.items()), ("bytecode", Path(bytecode.__file__)), ("zip", Path(__file__))]:
        data = path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:32]


def _places() -> list[Path]:
    """Return where built zips are kept: beside the bytecode of this installation, or else in the home's cache."""
    beside = Path(importlib.util.cache_from_source(__file__)).parent
    return [beside, settings.kinetic_home(os.environ) / "cache" / "runner"]


def _kept(digest: str) -> bytes | None:
    for place in _places():
        with contextlib.suppress(OSError, zipfile.BadZipFile, EOFError):
            data = (place / _name(digest)).read_bytes()
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if archive.testzip() is None:
                    return data
    return None


def _keep(digest: str, data: bytes) -> None:
    """Keep a zip for the next process, instead of those of other versions; without room, that one builds it again."""
    for place in _places():
        with contextlib.suppress(OSError):
            folders.write_whole(place / _name(digest), data)
            for other in place.glob(_name("*")):
                if other.name != _name(digest):
                    other.unlink()
            return


def _name(digest: str) -> str:
    return f"runner.{sys.implementation.cache_tag}.{digest}.zip"


def _zipped(found: dict[str, Path]) -> bytes:
    start = _START.replace("VERSION", repr(sys.version_info[:2])).replace("TAG", repr(sys.implementation.cache_tag))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in (("__main__.py", start.encode()), (_FILES, _packed(found)), ("unpack.py", _UNPACK.encode())):
            about = zipfile.ZipInfo(name, _EPOCH)
            about.compress_type = zipfile.ZIP_STORED if name == _FILES else zipfile.ZIP_DEFLATED
            about.external_attr, about.create_system = _FILE_MODE, _UNIX
            archive.writestr(about, data, compresslevel=9)
    return buffer.getvalue()


def _packed(found: dict[str, Path]) -> bytes:
    """Compile and compress what travels, in an interpreter of its own; see ``bytecode.py``."""
    asked: dict[str, dict[str, str]] = {"compile": {}, "keep": {}}
    for name, path in found.items():
        asked["keep" if _is_below(module_of(name), SELDOM) else "compile"][name] = os.fspath(path)
    asked["texts"] = {"worker.py": runner.WORKER, LEFT_OUT: json.dumps(left_out())}
    words = [sys.executable, "-I", "-S", "-X", "no_debug_ranges", bytecode.__file__]
    try:
        done = subprocess.run(
            words, input=json.dumps(asked).encode(), capture_output=True, check=True, timeout=_COMPILE_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip().splitlines()
        raise PackingError(
            "the code that carries out jobs could not be compiled for a cluster",
            why=said[-1] if said else str(error),
            next="pip install --force-reinstall kinetic-jobs",
        ) from error
    return done.stdout
