"""The compile cache of a command: the worker fetches and sends, and each Python of the command waits and reports.

A command is another program, so the worker sees none of its imports. A module named sitecustomize, behind all that the
user has on PYTHONPATH, notices in each Python that one of the libraries is imported. That process then writes into
a named pipe, on which a thread of the worker begins the cache; it holds a lock until the folder is filled, for which
the first compilation waits. JAX's reports come by the same pipe. Until then there is no request and nothing is loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from kinetic._runner.worker import compilers
from kinetic._wire import python_runtime
from kinetic._wire.task import COMPILERS, Task

if TYPE_CHECKING:
    from kinetic._runner.worker.compile_cache import CompileCache

_PIPE, _END = "events", b"end\n"
_LAST_SECONDS = 1.0  # for reports that are still in the pipe when the command has ended
_SITE = """# Written by kinetic: what this process compiles is kept for later jobs, see its page "Compile cache".
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

FOLDER, NAMES = {folder!r}, {names!r}


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in NAMES or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            from kinetic._runner.worker import command_cache

            command_cache.join(FOLDER)
            return sys.meta_path[0].find_spec(name, path, target)
        except Exception:  # of another Python, for one
            return None


sys.meta_path.insert(0, Finder())
other = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != FOLDER])
if other is not None and other.loader is not None:
    other.loader.exec_module(module_from_spec(other))
"""


class CommandCache:
    """The worker's end; ``begin`` makes the compile cache, or returns None where that is not possible."""

    def __init__(self, task: Task, begin: Callable[[], CompileCache | None]) -> None:
        self._begin = begin
        self._cache: CompileCache | None = None
        self._folder = task.data / "compiled" / "command"
        shutil.rmtree(self._folder, ignore_errors=True)  # of another attempt
        self._folder.mkdir(parents=True, mode=0o700)
        self._locks: dict[str, int] = {}
        for name, library in compilers.LIBRARIES.items():
            folder = compilers.folder_of(task, library)
            if folder is not None and compilers.set_variables(library, folder):
                self._locks[name] = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._locks[name], fcntl.LOCK_EX)
        os.mkfifo(self._folder / _PIPE, 0o600)
        self._pipe = os.open(self._folder / _PIPE, os.O_RDWR | os.O_CLOEXEC)  # both: it never comes to its end
        (self._folder / "sitecustomize.py").write_text(_SITE.format(folder=str(self._folder), names=tuple(COMPILERS)))
        above = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (above, str(self._folder))))
        self._reader = python_runtime.start_thread(self._read, "kinetic-compiled-command")
        if self._reader is None:
            self._release(*self._locks)

    def finish(self, *, succeeded: bool = True) -> None:
        """End it when the command has ended: send what is not in the store yet, and say what the cache was worth."""
        for name in compilers.LIBRARIES:
            compilers.note_end(name)
        if self._reader is not None:  # else nobody would make room in the pipe
            os.write(self._pipe, _END)
            self._reader.join(_LAST_SECONDS)
        if self._cache is not None:
            self._cache.finish(succeeded=succeeded)
        for name in compilers.LIBRARIES:
            compilers.give_back(name)

    def _read(self) -> None:
        with os.fdopen(os.dup(self._pipe), "rb") as lines:
            for line in lines:
                if line == _END:
                    return
                with contextlib.suppress(Exception):  # the pipe is the user's to write into; and the job compiles
                    self._take(*line.decode(errors="replace").split())

    def _take(self, word: str, *rest: str) -> None:
        if word == "begin" and rest[0] in self._locks:
            self._cache = self._cache or self._begin()
            if self._cache is not None:
                self._cache.begin(rest[0])
        elif word == "wait" and rest[0] in self._locks:
            self._release_when_filled(rest[0])
        elif self._cache is not None and (library := self._cache.libraries.get("jax")):
            if word == "event":
                library.tally.on_event(rest[1], rest[0])
            elif word == "took":
                library.take_duration(rest[1], float(rest[2]), rest[0])

    def _release_when_filled(self, name: str) -> None:
        library = self._cache.libraries.get(name) if self._cache is not None else None

        def release() -> None:
            try:
                if library is not None:
                    library.wait()
            finally:
                self._release(name)

        if python_runtime.start_thread(release, f"kinetic-compiled-{name}-wait") is None:
            self._release(name)

    def _release(self, *names: str) -> None:
        for name in names:
            fcntl.flock(self._locks[name], fcntl.LOCK_UN)


# ------------------------------------------------------------------------------------------- in a Python of the command


def join(folder: str) -> None:
    """Let the libraries that this process imports use the cache of its job."""
    from kinetic._runner.worker import import_hooks  # only where such a library is imported

    def begin() -> _Far | None:
        try:
            return _Far(folder)
        except OSError:  # the job has ended, and this process has not
            return None

    process = import_hooks.JaxProcess(0, 1, "")
    import_hooks.ImportHooks(process, COMPILERS, begin).install()


class _Far:
    """The compile cache, as far as it is in the worker."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pipe = os.open(f"{folder}/{_PIPE}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def begin(self, name: str) -> _FarLibrary | None:
        if not os.path.exists(f"{self._folder}/{name}"):
            return None  # the user's own settings
        self.send("begin", name)
        return _FarLibrary(self, name, f"{self._folder}/{name}")

    def send(self, *words: str) -> None:
        with contextlib.suppress(OSError):  # it is full, or nobody reads it any more: what is lost is only a count
            os.write(self._pipe, (" ".join(words) + "\n").encode())


class _FarLibrary:
    """One library of it."""

    def __init__(self, cache: _Far, name: str, lock: str) -> None:
        self._cache, self._name, self._lock = cache, name, lock
        self._is_filled = False

    def wait(self) -> None:
        """Wait until the folder is filled, or the worker is gone."""
        if not self._is_filled:
            self._cache.send("wait", self._name)
            with contextlib.suppress(OSError), open(self._lock) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
            self._is_filled = True

    def listen(self, jax: ModuleType) -> None:
        def on_event(event: str) -> None:
            if event == compilers.REQUEST:
                self.wait()
            elif event in {compilers.HIT, compilers.WRITE}:
                self._cache.send("event", _me(), event)

        def on_duration(event: str, seconds: float) -> None:
            if event in {compilers.SAVED, compilers.TOOK}:
                self._cache.send("took", _me(), event, f"{seconds:.3f}")

        compilers.listen(jax, on_event, on_duration)


def _me() -> str:
    return f"{os.getpid()}:{threading.get_ident()}"
