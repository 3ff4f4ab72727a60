"""What importing modules reads, keeps and does to its process: by that, a fork of it is known to be as a fresh one."""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import io
import os
import random
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import MethodType
from typing import Any

from kinetic._runner import processes
from kinetic._wire import folders

OF_ONE_JOB = frozenset(
    {"KINETIC_JOB_ID", "KINETIC_ATTEMPT", "KINETIC_OUTPUT_DIR", "KINETIC_CHECKPOINT_DIR", "KINETIC_SCRIPT_WORDS"}
)
_OF_ONE_WORKER = frozenset({"KINETIC_PROGRESS_FILE", "KINETIC_PACKAGE_ROOT", "KINETIC_PACKAGE_ORIGIN"})  # set by itself
_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
_Stamp = tuple[int, int, int]  # of a file: time of its last change in nanoseconds, size and inode
_FOLDER = (-2, -2, -2)  # of a folder that was only looked for, whatever is in it
_CHANGED = (-1, -1, -1)  # the stamp of a file that changed while something was imported, which may have read it before
_LOOKS = (os.path, "exists"), (os.path, "isfile"), (os.path, "isdir"), (os.path, "lexists"), (Path, "stat")
_LISTS = (os, "listdir"), (os, "scandir")
_MOST_CHOSEN_SEED = 1 << 64  # NumPy draws a seed of 128 bits where it gets none


class ImportTrace:
    """What was read and made while something was imported."""

    def __init__(self) -> None:
        self._begun = 0  # Unix time in nanoseconds
        self._read: set[str] | None = None  # while something is imported: the files that it has opened or looked for
        self._listed: set[str] = set()  # folders whose entries it depended on
        self._asked: set[str] = set()  # what is one job's own, such as variables, and was read
        self._copied: list[str] = []  # variables that are read next only because somebody copies all, as for a process
        self._made: list[str] = []  # temporary folders
        self._generators: list[random.Random] = []  # that drew their seed
        self._of_numpy: list[Any] = []  # generators of its kinds that did so
        self._stamps: dict[str, _Stamp | None] = {}  # of all files and folders that it depended on; None: not there
        self.looked_for: list[str] = []  # files that it looked for in the folder of the process, where they were not

    @contextlib.contextmanager
    def noting(self) -> Iterator[set[str]]:
        """Collect the paths of files that are opened or looked for.

        Not with an audit hook, which nothing removes: with one, each ``id`` of the next jobs takes six times as long.
        """
        import tempfile  # 4 ms, and most processes import nothing ahead

        self._begun = time.time_ns()
        found = self._read = set[str]()
        wrapped: list[tuple[Any, str, Any]] = [
            (place, name, self._noting(getattr(place, name))) for place, name in _LOOKS
        ]
        # As a function of C, none of them becomes a method of a class that keeps it.
        wrapped += [(place, name, MethodType(self._list, getattr(place, name))) for place, name in _LISTS]
        wrapped += [(place, "open", MethodType(self._open, open)) for place in (builtins, io)]
        wrapped += [(tempfile, "mkdtemp", MethodType(self._make_folder, tempfile.mkdtemp))]
        wrapped += [(random.Random, "seed", self._noting_seed(random.Random.seed))]
        variables: Any = type(os.environ)
        wrapped += [(variables, "__getitem__", self._noting_variable(variables.__getitem__))]
        wrapped += [(variables, "__iter__", self._copying(variables.__iter__))]
        was = [getattr(place, name) for place, name, _ in wrapped]
        for place, name, noting in wrapped:
            setattr(place, name, noting)
        try:
            yield found
        finally:
            self._read = None
            for (place, name, _), look in zip(wrapped, was, strict=True):
                setattr(place, name, look)

    def keep(self, read: Iterable[str], packages: Iterable[str]) -> None:
        """Keep how files are that were read, and the folders of packages."""
        self._listed.update(packages)
        here = os.getcwd()
        for path in {*read, *self._listed}:
            self._stamps[path] = self._stamp_of(path, self._begun)
            if os.path.dirname(path) == here and not self._stamps[path]:
                self.looked_for.append(os.path.basename(path))

    def changed_file(self) -> str:
        """Return a file that is another one than when these modules were imported, or "".

        Some 10 ms for JAX and Keras, which take seconds to import.
        """
        return next((path for path, was in self._stamps.items() if self._stamp_of(path) != was), "")

    def what_it_did(self, before: set[str]) -> str:
        """Return in words what importing did to this process that a forked worker has not, or ""; before: its state."""
        made = filter(os.path.lexists, self._made)  # and not removed again, as by who only tried something
        did = {f"made the temporary folder {folder}, which the first task would remove" for folder in made}
        did |= state_of_process() - before
        if self._asked:
            did.add(f"read {', '.join(sorted(self._asked))}, another one in each job")
        if processes.children_of(os.getpid()):
            did.add("started processes")
        if _threads():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
            os.waitpid(pid, 0)
        if threads := _threads():
            did.add(f"started threads: {', '.join(sorted(threads))}")
        return "; ".join(f"importing {each}" for each in sorted(did))

    def forget_copied(self) -> None:
        """Forget what the last module copied of the variables: what the next one reads, it wants."""
        self._copied.clear()

    def find_generators(self, numbers: Any) -> None:
        """Find the generators of NumPy that nobody gave a seed, as modules of libraries keep them, by its module."""
        kinds = getattr(numbers, "Generator", None), getattr(numbers, "RandomState", None)  # it may be half imported
        self._of_numpy += [each for each in gc.get_objects() if type(each) in kinds and _has_drawn_seed(each)]

    def draw_seeds(self) -> None:
        """Have all generators that drew a seed draw another one; else each task would draw the same numbers."""
        for generator in self._generators:
            random.Random.seed(generator)
        for generator_of_numpy in self._of_numpy:
            _draw_seed(generator_of_numpy)

    # ------------------------------------------------------------------------------------- in the place of a function

    def _noting(self, look: Callable[..., Any]) -> Any:
        @functools.wraps(look)
        def noting(path: Any, *arguments: Any, **named: Any) -> Any:
            self._note(path)
            return look(path, *arguments, **named)

        return noting

    def _open(self, was: Callable[..., Any], file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if "r" in mode:
            self._note(file)
        return was(file, mode, *arguments, **named)

    def _list(self, was: Callable[..., Any], path: Any = ".") -> Any:
        self._note(path, self._listed)
        if isinstance(path, str | os.PathLike) and self._read is not None and os.path.abspath(path) == os.getcwd():
            self._asked.add("the working folder")
        return was(path)

    def _noting_variable(self, look: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(look)
        def noting(variables: Any, name: str) -> str:
            if name in self._copied:
                self._copied.remove(name)
            elif self._read is not None and (name in OF_ONE_JOB or name in _OF_ONE_WORKER):
                self._asked.add(name)
            return look(variables, name)

        return noting

    def _copying(self, iterate: Callable[[Any], Iterator[str]]) -> Callable[[Any], Iterator[str]]:
        @functools.wraps(iterate)
        def copying(variables: Any) -> Iterator[str]:
            for name in iterate(variables):
                if name in OF_ONE_JOB:
                    self._copied.append(name)
                yield name

        return copying

    def _make_folder(self, was: Callable[..., str], *arguments: Any, **named: Any) -> str:
        made = was(*arguments, **named)
        if self._read is not None:
            self._made.append(made)
        return made

    def _noting_seed(self, seed: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(seed)
        def noting(generator: random.Random, a: Any = None, *arguments: Any, **named: Any) -> None:
            self._generators[:] = [each for each in self._generators if each is not generator]
            if a is None and self._read is not None:
                self._generators.append(generator)
            seed(generator, a, *arguments, **named)

        return noting

    def _note(self, path: object, *also: set[str]) -> None:
        """Note a file; bytecode belongs to a module, whose source is looked at."""
        if self._read is not None and isinstance(path, str | bytes | os.PathLike):
            found = os.path.abspath(os.fsdecode(path))
            if not found.endswith(".pyc") and not found.startswith(("/proc/", "/dev/", "/sys/")):
                for each in (self._read, *also):
                    each.add(found)

    def _stamp_of(self, path: str, begun: int = sys.maxsize) -> _Stamp | None:
        """Return what tells a file from another one; what it never is again, if it has changed since a time."""
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return None
        if stat.S_ISDIR(found.st_mode) and path not in self._listed:
            return _FOLDER
        is_as_read = folders.is_settled(found.st_ctime_ns, begun)
        return (found.st_mtime_ns, found.st_size, found.st_ino) if is_as_read else _CHANGED


def state_of_process() -> set[str]:
    """Return what a worker has otherwise than this process, and each open file, which it has not, in words."""
    os.umask(umask := os.umask(0))
    found = {f"set the working folder to {os.getcwd()}", f"set the umask to {umask:o}"}
    found |= {f"set what {number.name} does to {signal.getsignal(number)}" for number in signal.Signals}
    with contextlib.suppress(FileNotFoundError):  # macOS, where nothing is forked
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of this list
                found.add(f"opened {os.readlink(f'/proc/self/fd/{number}')} as descriptor {number}")
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            _, rights, *_, place = line.split(None, 5)
            if "w" in rights and "s" in rights:  # as of a lock of multiprocessing, which all jobs would have in common
                found.add(f"shared the memory {place}")
    return found


def _threads() -> set[str]:
    """Return the names of threads that a fork would leave behind."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            with contextlib.suppress(OSError):
                found.add(Path(f"/proc/self/task/{thread}/comm").read_text().strip())
    return found - _SAFE_THREADS


def _has_drawn_seed(generator: Any) -> bool:
    seed = getattr(getattr(generator, "_bit_generator", None), "_seed_seq", None)  # ``numpy.random.seed`` leaves None
    entropy = getattr(seed, "entropy", None)
    return isinstance(entropy, int) and entropy >= _MOST_CHOSEN_SEED


def _draw_seed(generator: Any) -> None:
    bits = generator._bit_generator  # noqa: SLF001 - the name that both kinds have for it
    new = type(bits)()
    bits.state = new.state
    with contextlib.suppress(Exception):  # NumPy 1 has no way to say what it spawns others from
        bits.__setstate__((new.state, new.seed_seq))
