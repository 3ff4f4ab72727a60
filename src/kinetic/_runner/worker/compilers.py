"""The libraries that compile: how each is told where its cache is, and what JAX reports of its programs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from kinetic._wire import NamedTuple, digests
from kinetic._wire.task import Task

_ZSTD = b"\x28\xb5\x2f\xfd"  # how its frames begin
_CHUNK = 1 << 16
_OFF = frozenset({"0", "false", "off", "no"})
_ABOVE = "/tmp"  # noqa: S108 - the same on all machines and in all pods; what is not ours there is not used
_OWNER_BYTES = 8192  # of a path
_ENDING_SECONDS, _PAUSE = 5.0, 0.05  # a job that has ended sends for four, and its process ends within five
_PLACES = 32  # jobs at the same time on one machine that use one library which keeps paths
_held: dict[str, _Held] = {}  # by this process, until it ends

# Of JAX's events: a program is about to be looked up; it was found; it is written; and the whole of it took so long.
REQUEST = "/jax/compilation_cache/compile_requests_use_cache"
HIT = "/jax/compilation_cache/cache_hits"
WRITE = "/jax/compilation_cache/cache_misses"
SAVED = "/jax/compilation_cache/compile_time_saved_sec"
TOOK = "/jax/core/compile/backend_compile_duration"
PROGRAM, LAST_USE = "-cache", "-atime"  # how the names of JAX's programs end, and of files that say when one was used


class _Held(NamedTuple):
    folder: Path
    lock: int


class Library(NamedTuple):
    """A library that compiles, and how its cache is told where to be."""

    name: str
    distributions: tuple[str, ...]  # whose versions decide whether a program can be used
    folders: dict[str, str]  # variables, and the folders below ours that they get
    settings: tuple[tuple[str, str], ...] = ()  # more variables, where they are not set
    switch: str = ""  # a variable that turns the library's own cache off
    only: tuple[str, ...] = ("",)  # how the paths begin that are sent
    keeps_paths: bool = False  # in what it compiles, which it finds again in a folder of the same name only
    fails_elsewhere: bool = False  # where it finds it in another one


LIBRARIES = {
    library.name: library
    for library in (
        Library(
            "jax",
            ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin"),
            {"JAX_COMPILATION_CACHE_DIR": "jax"},
            # XLA's own caches put their path into JAX's keys: in another folder nothing would be found (JAX 0.10.2).
            # JAX keeps what compiles in a second or more. A model has dozens of smaller programs; one loads in 5 ms.
            (
                ("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none"),
                ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02"),
            ),
            switch="JAX_ENABLE_COMPILATION_CACHE",
        ),
        # Triton's list of a kernel's files has their paths: elsewhere the kernel counts as not there (Triton 3.6).
        Library(
            "torch",
            ("torch", "triton"),
            {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"},
            keeps_paths=True,
        ),
        # Its folder also gets downloads; only what it compiled is kept, and the kernels that DeepGEMM compiled for it.
        # In it are the paths of other files of it (vLLM 0.23), and a job that does not find them there fails.
        Library(
            "vllm",
            ("vllm", "torch", "triton", "deep_gemm"),
            {"VLLM_CACHE_ROOT": "vllm"},
            only=("vllm/torch_compile_cache/", "vllm/deep_gemm/"),
            keeps_paths=True,
            fails_elsewhere=True,
        ),
    )
}


def folder_of(task: Task, library: Library) -> Path | None:
    """Return where the cache of a library is: in the folder of a job's data, or in one that many jobs use in turns.

    None where there is no such folder: /tmp cannot be written, or somebody else made ours.
    """
    if not library.keeps_paths:
        return task.data / "compiled" / library.name
    if library.name not in _held:
        with contextlib.suppress(OSError):
            _hold(library.name, shared_folder(), f"{task.data_shared or task.data}", _first_place(task))
    return _held[library.name].folder if library.name in _held else None


def shared_folder() -> Path:
    """Return the folder above those that many jobs use in turns; it need not exist."""
    return Path(f"{_ABOVE}/kinetic-{os.getuid()}-compiled")


def _first_place(task: Task) -> int:
    """Return the number to begin with: jobs of two homes, whose programs differ anyway, seldom want the same one."""
    return int(digests.of_bytes(task.cache_key.encode()), 16) % _PLACES if task.pod is None else 0


def _hold(name: str, above: Path, owner: str, first: int) -> None:
    """Take the first folder from some number on that no other job has, and empty it: a job may have been killed.

    The hosts of a slice that is emulated on this machine are one owner: they would find nothing in different folders.
    """
    with contextlib.suppress(FileExistsError):
        above.mkdir(mode=0o700)
    about = above.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        return
    limit = time.monotonic() + _ENDING_SECONDS
    try:
        for number in (*range(first, _PLACES), *range(first)):
            folder = above / f"{name}-{number}"
            lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            has = ""
            try:
                while not (has := _take(lock, folder, owner)) and time.monotonic() < limit:
                    time.sleep(_PAUSE)  # its job has ended, and is sending what it compiled
            finally:
                if has != owner:  # also on a full disk: all other jobs would wait for this one's end
                    os.close(lock)
            if has == owner:
                _held[name] = _Held(folder, lock)
                break
    finally:
        for left in above.glob(f".{name}-*-{os.getpid()}"):
            shutil.rmtree(left, ignore_errors=True)


def _take(lock: int, folder: Path, owner: str) -> str:
    """Take a folder if no job has it; return whose it is then, "" where that job has ended and is not gone yet."""
    if _is_taken_alone(lock):  # for no longer than this takes: the other hosts wait below
        with contextlib.suppress(FileNotFoundError):
            folder.rename(folder.with_name(f".{folder.name}-{os.getpid()}"))
        os.ftruncate(lock, 0)
        os.pwrite(lock, owner.encode(), 0)
    fcntl.flock(lock, fcntl.LOCK_SH)  # until the descriptor goes, with the process
    has = os.pread(lock, _OWNER_BYTES, 0).decode(errors="replace")
    if not has:
        fcntl.flock(lock, fcntl.LOCK_UN)
    return has


def note_end(name: str) -> None:
    """Let the next job wait for the folder of a library: it finds what this one compiled in no other."""
    if name in _held:
        with contextlib.suppress(OSError):
            os.ftruncate(_held[name].lock, 0)


def give_back(name: str) -> None:
    """Remove the folder of a library at the end, where it is not below that of the job, and no other host uses it."""
    held = _held.pop(name, None)
    if held is not None:
        if _is_taken_alone(held.lock):
            shutil.rmtree(held.folder, ignore_errors=True)
        os.close(held.lock)


def _is_taken_alone(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def set_variables(library: Library, folder: Path) -> bool:
    """Tell a library, by variables, where its cache is; return whether it has no other wish of the user's."""
    ours = {variable: str(folder / below) for variable, below in library.folders.items()}
    if any(os.environ.get(variable) not in {None, "", path} for variable, path in ours.items()):
        return False
    if library.switch and os.environ.get(library.switch, "").lower() in _OFF:
        return False
    os.environ.update(ours)
    for variable, value in library.settings:
        os.environ.setdefault(variable, value)
    return True


def whole_seconds(file: Path) -> int | None:
    """Return for how many whole seconds JAX compiled a program in its cache; None for any other file, and half of one.

    JAX writes them as 4 bytes before the program, big-endian, and compresses the whole with zstd, or with zlib where
    Python has no zstd (compilation_cache.py of JAX 0.10).
    """
    begin = b""
    with file.open("rb") as opened:
        try:
            chunk = opened.read(_CHUNK)
            stream = _decompressor(chunk)
            while chunk and not stream.eof:
                begin += stream.decompress(chunk)[:4]
                chunk = opened.read(_CHUNK)
        except Exception:  # noqa: BLE001 - of whichever library
            return None
    return int.from_bytes(begin[:4], "big") if stream.eof and len(begin) >= 4 else None


def _decompressor(begin: bytes) -> Any:
    """Return what decompresses a file that begins so, by the library that JAX has used."""
    import importlib  # here and below: only where JAX is

    if not begin.startswith(_ZSTD):
        return importlib.import_module("zlib").decompressobj()
    try:
        return importlib.import_module("compression.zstd").ZstdDecompressor()
    except ImportError:
        return importlib.import_module("zstandard").ZstdDecompressor().decompressobj()


def listen(jax: ModuleType, on_event: Callable[[str], object], on_duration: Callable[[str, float], object]) -> None:
    """Have JAX report each program; it waits for what is called."""

    def event_came(event: str, **_: Any) -> None:
        on_event(event)

    def duration_came(event: str, seconds: float, **_: Any) -> None:
        on_duration(event, seconds)

    monitoring = getattr(jax, "monitoring", None) or __import__("jax.monitoring").monitoring
    monitoring.register_event_listener(event_came)
    monitoring.register_event_duration_secs_listener(duration_came)
