"""The runner is this client's own code: the installed package without its dashboard, and its cloudpickle.

So client and job never have different versions, and upgrading kinetic while a job runs does not affect it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from kinetic._config import target as settings
from kinetic._wire import NamedTuple, folders, python_runtime
from kinetic._wire.task import LEFT_OUT
from kinetic.errors import PackingError

_PACKAGES = "/site-packages/", "/dist-packages/"
_FACES = {"_dashboard", "_cluster", "__pycache__"}
_START = '''"""Start a supervisor: detach, then import; see kinetic/_backends/local/supervisor.py."""
import os
import sys

if os.fork():
    os._exit(0)

writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, False  # of the runner it is written once
try:
    from kinetic._backends.local.supervisor import main
except (EOFError, ValueError, TypeError):  # a full disk cut a file of bytecode short: CPython issue 126606
    for folder, _, names in os.walk(sys.path[0]):
        for name in names:
            if name.endswith(".pyc"):
                os.unlink(os.path.join(folder, name))
    for name in [name for name in sys.modules if name.partition(".")[0] == "kinetic"]:
        del sys.modules[name]
    from kinetic._backends.local.supervisor import main
sys.dont_write_bytecode = writes_none

main(sys.argv[1:])
'''
WORKER = '''"""Start a worker in an interpreter of its own; see kinetic/_runner/worker/worker.py."""
import sys

from kinetic._runner.worker.worker import main

main(sys.argv[1:])
'''
_made: dict[Path, Path] = {}
_making = threading.RLock()  # threads of one process submit at once; other processes make a folder of another name
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


def folder(runners: Path) -> Path:
    """Return a folder below ``runners`` with the runner's code, made once for each installation and Python."""
    with _making:
        if runners not in _made or not _made[runners].exists():
            _made[runners] = _make(runners)
        return _made[runners]


def _make(runners: Path) -> Path:
    own = Path(__file__).parents[2]
    if own.parent == runners and (own / "complete").exists():  # a job submits another one
        return own
    files = _files()
    target = runners / f"{_digest(_START + WORKER, files)[:24]}-{sys.implementation.cache_tag}"
    if not (target / "complete").exists():
        beside = f".{target.name}.{os.urandom(6).hex()}"  # no number of a process: in containers all have the same
        try:
            _fill(files, runners / beside)
            with contextlib.suppress(OSError):  # another client was faster
                (runners / beside).rename(target)
        except OSError as error:
            raise PackingError(
                f"the code that runs jobs could not be written to {runners}",
                why=str(error),
                next="free some space there, or point KINETIC_RUNTIME_DIR at a folder on another local disk",
            ) from error
        finally:
            folders.remove(runners, beside)
    return target


def repair(runners: Path) -> None:
    """Write anew what differs from this installation: no file is forced to the disk, so a power cut cuts it short."""
    target = folder(runners)
    if Path(__file__).is_relative_to(target):  # this is its code
        return
    wanted = {name: path.read_bytes() for name, path in contents().items()}
    for name, data in {**wanted, "supervisor.py": _START.encode(), "worker.py": WORKER.encode()}.items():
        place = target / name
        if not place.exists() or place.read_bytes() != data:
            folders.write_whole(place, data)


def contents() -> dict[str, Path]:
    """Return the files of the runner: path inside the folder, and the file."""
    return {name: Path(path) for name, path in _files().items()}


def _files() -> dict[str, str]:
    """Return the same without making 300 paths, for which the first call of each process would wait."""
    if getattr(sys, "frozen", False):  # its executable starts the user's program again, and not Python
        raise PackingError(
            f"no job can be submitted from {sys.executable}",
            why="PyInstaller or a similar tool made it: jobs need a Python and source files, and it has none",
            next="run the script with a Python that has kinetic-jobs, or make a program with PEX or shiv",
        )
    spec = importlib.util.find_spec("cloudpickle")
    if spec is None or not spec.origin:
        raise PackingError("cloudpickle is not installed", next="pip install --force-reinstall kinetic-jobs")
    packages = {"kinetic": os.path.dirname(os.path.dirname(__file__)), "cloudpickle": os.path.dirname(spec.origin)}
    for name, path in packages.items():
        if os.path.isfile(archive := path.rpartition("/")[0]):
            raise PackingError(
                f"no job can be submitted from {archive}",
                why=f"{name} is inside this file, and jobs read its files from folders",
                next="pip install kinetic-jobs, or make a program that unpacks its packages, as PEX and shiv do",
            )
    return dict(sorted(file for name, path in packages.items() for file in _sources(name, path)))


def _sources(name: str, folder_: str) -> Iterator[tuple[str, str]]:
    with os.scandir(folder_) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield f"{name}/{entry.name}", entry.path
            elif entry.name not in _FACES and entry.is_dir():
                yield from _sources(f"{name}/{entry.name}", entry.path)


def _digest(texts: str, files: Mapping[str, str | Path]) -> str:
    """Return a digest that changes when a text or a file does; the files are not read, which would take 20 ms.

    A link to a file, as uv gives all environments and ``_fill`` a runner, changes the time of its last change.
    """
    found = [texts]
    for name, path in files.items():
        about = os.stat(path)
        changed = about.st_ctime_ns if about.st_nlink == 1 and not _may_be_linked(os.fspath(path)) else 0
        found.append(f"{name} {about.st_size} {about.st_mtime_ns} {changed} {about.st_ino}")
    return hashlib.sha256("\0".join(found).encode()).hexdigest()


def _fill(files: Mapping[str, str], beside: Path) -> None:
    """Put the sources there, and the bytecode that there is of them; what it lacks, the first supervisor writes."""
    made = set[Path]()
    for name, path in files.items():
        place = beside / name
        if place.parent not in made:
            (place.parent / "__pycache__").mkdir(parents=True)
            made.add(place.parent)
        about = os.stat(path)
        _link_or_copy(path, place)
        with contextlib.suppress(FileNotFoundError, NotImplementedError):
            cached = importlib.util.cache_from_source(path)
            stamp = [number & 0xFFFFFFFF for number in (0, int(about.st_mtime), about.st_size)]
            with open(cached, "rb") as compiled:
                is_of_it = compiled.read(16)[4:] == b"".join(number.to_bytes(4, "little") for number in stamp)
            if is_of_it:
                _link_or_copy(cached, place.parent / "__pycache__" / os.path.basename(cached))
    (beside / "supervisor.py").write_text(_START)
    (beside / "worker.py").write_text(WORKER)
    (beside / "complete").write_text("")


def _link_or_copy(path: str, place: Path) -> None:
    if _may_be_linked(path):
        with contextlib.suppress(OSError):  # another disk, or the file of another user
            os.link(path, place)
            return
    about = os.stat(path)
    place.write_bytes(Path(path).read_bytes())
    os.utime(place, ns=(about.st_mtime_ns, about.st_mtime_ns))


def _may_be_linked(path: str) -> bool:
    """Return whether a file is of an installed package: an upgrade replaces it, and nobody edits it."""
    return any(folder in path for folder in _PACKAGES)


MOST_BYTES = 1_000_000  # 1 MiB for the whole ConfigMap, less what Kubernetes writes around it; a test allows 350 kB

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
    "kinetic._config",
    "kinetic._config.home",
    "kinetic._config.options",
    "kinetic._config.variables",
    "kinetic._google",
    "kinetic._google.default_credentials",
    "kinetic._google.login",
    "kinetic._jobs",
    "kinetic._jobs.data_refs",
    "kinetic._jobs.job_options",
    "kinetic._project",
    "kinetic._version",
    "kinetic.collections",
    "kinetic.debug",
    "kinetic.errors",
    "kinetic.job_status",
    "kinetic.jobs",
    "kinetic.testing",
)
# What of a room only clients and tests load.
_NOT_SENT = frozenset(
    {
        "kinetic._blobs.sender",
        "kinetic._data.ship",
        "kinetic._hardware.prices",
        "kinetic._output.job_text",
        "kinetic._output.notebook",
        "kinetic._output.signal_handlers",
        "kinetic._runner.worker.code_coverage",
        "kinetic._stores.memory",
        "kinetic._wire.input_table",
    }
)
# Of these, what only few jobs load: it travels as source.
SELDOM = (
    "kinetic._blobs.file_tree",
    "kinetic._config.home",
    "kinetic._config.variables",
    "kinetic._data",
    "kinetic._google.login",
    "kinetic._jobs.data_refs",
    "kinetic._output.colors",
    "kinetic._output.format",
    "kinetic._output.terminal",
    "kinetic._remote.recorded_calls",
    "kinetic._runner.data",
    "kinetic._runner.pod.cleanup",
    "kinetic._runner.pod.fork_server",
    "kinetic._runner.pod.cluster_api",
    "kinetic._runner.pod.inspect_process",
    "kinetic._runner.pod.install",
    "kinetic._runner.pod.kept_packages",
    "kinetic._runner.pod.rendezvous",
    "kinetic._runner.pod.unpacked_layers",
    "kinetic._runner.pod.usage_upload",
    "kinetic._runner.pod.waiting_jobs",
    "kinetic._runner.supervisor.device_metrics",
    "kinetic._runner.supervisor.meter",
    "kinetic._runner.supervisor.predecessors",
    "kinetic._runner.pod.warm_clients",
    "kinetic._runner.pod.warm_pod",
    "kinetic._runner.pod.warm_slice",
    "kinetic._runner.pod.warm_task",
    "kinetic._runner.supervisor.bindings",
    "kinetic._runner.worker.command",
    "kinetic._runner.worker.command_cache",
    "kinetic._runner.worker.compile_cache",
    "kinetic._runner.worker.compilers",
    "kinetic._runner.worker.debug_server",
    "kinetic._runner.worker.import_trace",
    "kinetic._runner.worker.mount_namespace",
    "kinetic._runner.worker.preloaded_modules",
    "kinetic._runner.worker.small_programs",
    "kinetic._stores.azure",
    "kinetic._stores.files",
    "kinetic._stores.large_upload",
    "kinetic._stores.store_errors",
    "kinetic._wire.cache_entries",
    "kinetic._wire.device_tensors",
    "kinetic._wire.http_client",
    "kinetic._wire.inspection",
    "kinetic._wire.measurements",
    "kinetic._wire.pickle_diagnosis",
    "kinetic._wire.progress",
    "kinetic._wire.proxies",
    "kinetic._wire.records",
    "kinetic._wire.warm_pods",
    "kinetic.collections",
    "kinetic.debug",
    "kinetic.job_status",
    "kinetic.jobs",
    "kinetic.testing",
)
_FILES = "files.xz"
_COMPILER = Path(__file__).with_name("runner_compiler.py")
_COMPILE_SECONDS = 120.0
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold
_FILE_MODE = 0o100644 << 16
_UNIX = 3

# In words that any Python 3 understands, so that one that is too old can say so. 84 is IMAGE_EXIT of _wire/task.py, 83
# INFRASTRUCTURE_EXIT.
_ZIP_START = '''"""Start the runner of a pod: unpack, then import; see kinetic/_runner/pod/entrypoint.py."""
import os
import sys

def refuse(why):
    sys.stdout.write("kinetic| " + why + "\\n")
    sys.stdout.flush()
    os._exit(84)

# Where GKE mounts the driver of a GPU. The loader looks there only if an image says so, as those made for CUDA do.
driver, known = "/usr/local/nvidia/lib64", os.environ.get("LD_LIBRARY_PATH", "")
if os.path.isdir(driver) and driver not in known.split(":"):
    os.environ["LD_LIBRARY_PATH"] = known + ":" + driver if known else driver
    os.execv(sys.executable, [sys.executable] + sys.argv)  # which reads it when it starts

# The home of a user that the image does not know, as in OpenShift, is /, and that of 65534 is missing in Debian; a
# policy may make the whole image read-only. uv, among others, keeps its cache there.
home = os.path.expanduser("~")
unfit = home == "/" or not os.path.isdir(home) or os.statvfs(home).f_flag & os.ST_RDONLY
if unfit and not os.access(home, os.W_OK):
    os.environ["HOME"] = "/tmp"
    os.environ.setdefault("USER", "kinetic")

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
try:
    base = os.path.join(tempfile.gettempdir(), "kinetic-pod")
except OSError:
    refuse("this container has no folder to write to, as where a policy of the cluster makes its root file system "
           "read-only: mount a volume at /tmp (KINETIC_VOLUME_CLAIMS), or submit with the right to create pods, "
           "with which kinetic finds out about the policy and mounts one")
try:
    os.mkdir(base, 0o700)  # in each pod of a job the same: an editor that debugs it maps folders by their paths
except OSError:  # it is not this container's first process, or the folder is not its own
    base = tempfile.mkdtemp(prefix="kinetic-")
folder = os.path.join(base, "runners", "pod")
unpack.write(folder)
sys.path[0] = folder

from kinetic._runner.pod.entrypoint import main

main(sys.argv[1:], base, folder)
'''
_UNPACK = '''"""The files of the runner: written into a folder, or imported from memory by a short process."""
import importlib.util
import io
import itertools
import lzma
import marshal
import os
import sys

EMPTY = compile("", "", "exec")


class Files:
    def __init__(self):
        packed = __loader__.get_data(os.path.join(os.path.dirname(__file__), "files.xz"))
        joined, self.columns, self.found = marshal.loads(lzma.decompress(packed))
        for name, (lengths, column) in joined.items():
            self.columns[name] = list(map(io.BytesIO(column).read, lengths))

    def code(self, rows, file):  # the file of a frame tells whether it is ours
        row = next(rows)
        fields = {name: column[row] for name, column in self.columns.items()}
        consts = tuple(self.code(rows, file) if each == [] else each for each in fields.pop("co_consts"))
        return EMPTY.replace(co_filename=file, co_qualname=fields["co_name"], co_consts=consts, **fields)

    def find_spec(self, name, path=None, target=None):
        stem = name.replace(".", "/")
        for file, is_package in ((stem + "/__init__.py", True), (stem + ".py", False)):
            if file in self.found:
                return importlib.util.spec_from_loader(name, self, origin=file, is_package=is_package)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        file = module.__spec__.origin
        content = self.found[file]
        is_code = isinstance(content, int)
        code = self.code(itertools.count(content), file) if is_code else compile(content, file, "exec")
        exec(code, module.__dict__)


def write(folder):
    files = Files()
    made = set()
    for name, content in files.found.items():
        path = os.path.join(folder, name)
        above = os.path.dirname(path)
        if above not in made:
            os.makedirs(above, exist_ok=True)
            made.add(above)
        if isinstance(content, int):
            content = marshal.dumps(files.code(itertools.count(content), path))
            content = importlib.util.MAGIC_NUMBER + bytes(12) + content
            path += "c"
        with open(path, "wb") as file:
            file.write(content)


def install():
    sys.meta_path.insert(0, Files())
'''


class RunnerZip(NamedTuple):
    """The runner for pods."""

    sha256: str  # its digest; the name of the ConfigMap follows from it
    data: bytes  # the file


_built: list[RunnerZip] = []


def build() -> RunnerZip:
    """Return the zip of this installation; built once for the same content and Python."""
    with _making:
        if not _built:
            found = contents()
            data = _kept(digest := _pod_digest(found))
            if data is None:
                data = _zipped(found)
                _keep(digest, data)
            if len(data) > MOST_BYTES:
                raise PackingError(
                    "the code that runs jobs is too large for a cluster",
                    why=f"{len(data)} bytes, and a ConfigMap holds {MOST_BYTES}",
                    code="runner-too-large",
                )
            _built.append(RunnerZip(hashlib.sha256(data).hexdigest(), data))
        return _built[0]


def pod_contents(found: dict[str, Path]) -> dict[str, Path]:
    """Return what of the runner's ``contents`` is sent to pods."""
    return {name: path for name, path in found.items() if is_listed(module_of(name))}


def left_out(found: dict[str, Path]) -> list[str]:
    """Return the modules of kinetic that stay with the client, of the runner's ``contents``."""
    return [module for name in found if not is_listed(module := module_of(name))]


def is_listed(module: str) -> bool:
    """Return whether a module is sent to pods."""
    return module in MODULES or (_is_below(module, ROOMS) and module not in _NOT_SENT)


def module_of(name: str) -> str:
    """Return the module that a file of the runner's folder holds."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_below(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def _pod_digest(found: dict[str, Path]) -> str:
    """Return the digest under which a built zip is kept."""
    parts = pod_contents(found) | {"compiler": _COMPILER, "zip": Path(__file__)}
    return _digest(f"{sys.version}\0{_ZIP_START}{_UNPACK}{left_out(found)}\0", parts)[:32]


def _places() -> list[Path]:
    """Return where built zips are kept: beside the bytecode of this installation, else in the home's cache."""
    beside = Path(importlib.util.cache_from_source(__file__)).parent
    return [beside, settings.kinetic_home(os.environ) / "cache" / "runner"]


def _kept(digest: str) -> bytes | None:
    """Return a zip that was built before; its name has its digest too, for it may have been cut short."""
    for place in _places():
        for path in place.glob(_name(digest, "*")):
            with contextlib.suppress(OSError):
                data = path.read_bytes()
                if path.name == _name(digest, hashlib.sha256(data).hexdigest()):
                    return data
    return None


def _keep(digest: str, data: bytes) -> None:
    """Keep a zip for the next process, instead of those of other versions; on a full disk it is built again."""
    name = _name(digest, hashlib.sha256(data).hexdigest())
    for place in _places():
        with contextlib.suppress(OSError):
            folders.write_whole(place / name, data)
            for other in place.glob(_name("*", "*")):
                if other.name != name:
                    other.unlink()
            return


def _name(digest: str, of_zip: str) -> str:
    return f"runner.{sys.implementation.cache_tag}.{digest}.{of_zip}.zip"


def _zipped(found: dict[str, Path]) -> bytes:
    import io
    import zipfile  # 5 ms; only for clusters, and once for an installation

    start = _ZIP_START.replace("VERSION", repr(sys.version_info[:2])).replace("TAG", repr(sys.implementation.cache_tag))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in (("__main__.py", start.encode()), (_FILES, _packed(found)), ("unpack.py", _UNPACK.encode())):
            about = zipfile.ZipInfo(name, _EPOCH)
            about.compress_type = zipfile.ZIP_STORED if name == _FILES else zipfile.ZIP_DEFLATED
            about.external_attr, about.create_system = _FILE_MODE, _UNIX
            archive.writestr(about, data, compresslevel=9)
    return buffer.getvalue()


def _packed(found: dict[str, Path]) -> bytes:
    """Compile and compress what travels, in an interpreter of its own; see ``runner_compiler.py``."""
    import json
    import subprocess

    asked: dict[str, dict[str, str]] = {"compile": {}, "keep": {}}
    for name, path in pod_contents(found).items():
        asked["keep" if _is_below(module_of(name), SELDOM) else "compile"][name] = os.fspath(path)
    asked["texts"] = {"worker.py": WORKER, LEFT_OUT: json.dumps(left_out(found))}
    words = [python_runtime.own_python(), "-I", "-S", "-X", "no_debug_ranges", str(_COMPILER)]
    try:
        done = subprocess.run(
            words, input=json.dumps(asked).encode(), capture_output=True, check=True, timeout=_COMPILE_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip().splitlines()
        raise PackingError(
            "the code that runs jobs could not be compiled for a cluster",
            why=said[-1] if said else str(error),
            next="pip install --force-reinstall kinetic-jobs",
        ) from error
    return done.stdout
