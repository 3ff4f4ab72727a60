"""Modules of libraries that were imported before a process forked its workers, hidden until a worker imports them.

They are imported under the variables that the last jobs had, since libraries read them at that moment. A job that
changes variables itself, before it imports one of these libraries, begins again in an interpreter that has imported
nothing.

Where importing has started threads, such a process forks once to see which are left: OpenBLAS ends its own before a
fork, and jemalloc starts its own again after one. With any other thread, or with an open device, it is of no use: it
says which package that was, and the next one leaves it to the tasks.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import gc
import itertools
import json
import os
import sys
import time
import typing
from _thread import RLock
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kinetic._runner.worker import import_trace, process_setup
from kinetic._wire import NamedTuple, folders, python_runtime

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # as in ``import_hooks``

IMPORTS_FILE = "imports.json"  # in the folder of a job: what its worker had imported of installed packages
# Variables that are read when something works, or by a new interpreter, and not when a library is imported: functions
# set them, often by what a library offers, as ``lightning.seed_everything``, and so does PyTorch while it compiles.
_READ_LATER = frozenset({
    "CUBLAS_WORKSPACE_CONFIG", "MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS", "PYTHONHASHSEED",
    "TOKENIZERS_PARALLELISM", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "_RJEM_MALLOC_CONF",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
})  # fmt: skip
# Those that PyTorch sets to folders of its own: the cache of the job has others, and sets them when that is imported.
_OF_COMPILERS = frozenset({"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})
_STREAMS = 1, 2  # the numbers of standard output and errors
_OF_PYTHON = f"{os.path.dirname(os.__file__)}/"
_FOLDERS = ("site-packages", "dist-packages")  # of installed packages
_NEVER = ("kinetic", "obstore", "cloudpickle", "__main__", "antigravity")  # obstore starts threads
_MOST_NAMES, _MOST_BYTES, _MOST_PRINTED = 20_000, 2 << 20, 1 << 20
_loaded: set[str] = set()  # all modules that were imported here before the fork
_of_python: set[str] = set()  # modules of Python that importing them brought
trace = import_trace.ImportTrace()  # of all that was imported here before the fork
_left_out: set[str] = set()  # packages that each task imports itself


class Imports(NamedTuple):
    """What a task had imported of installed packages when it ended."""

    names: tuple[str, ...] = ()  # of modules, in their order
    set_before: dict[str, str | None] = {}  # noqa: RUF012 - variables that it set, or removed, before the first of them
    changed: frozenset[str] = frozenset()  # names of variables that changed between two of them
    settings: dict[str, Any] | None = None  # of libraries, as of ``process_setup``; None where they are not compared


class Spoiler(NamedTuple):
    """A package after whose import no worker can be forked, or none that is as one that imports for itself."""

    package: str
    why: str


def preload(
    imports: Imports,
    variables: Mapping[str, str],
    packages: str = "",
    left_out: frozenset[str] = frozenset(),
    *,
    forks: bool = True,
) -> Spoiler | None:
    """Import modules and hide them; libraries may keep the streams that are there.

    Args:
        imports: What a task had imported.
        variables: Under which it is imported.
        packages: A folder to import from as well, see ``kept_packages``.
        left_out: Packages that each task is to import itself.
        forks: Whether this process is to fork the tasks.

    Returns:
        The first package that makes this process useless for that, or None.
    """
    _left_out.update(left_out)
    hidden.set_before, hidden.settings = imports.set_before, imports.settings
    names = [name for name in imports.names if name.partition(".")[0] not in left_out]
    with _printing_into_files(), _settings_of(imports), trace.noting() as read:
        before = import_trace.state_of_process() if forks else None
        spoiler = _import_all(names, _applied(variables, imports.set_before), packages, before)
        _empty_caches()
        if forks and (numbers := hidden.module("numpy.random")):
            trace.find_generators(numbers)
    files = [_origin_of(module) for group in hidden.groups for module in group.modules.values()]
    trace.keep((*read, *(path for path in files if path.startswith("/"))), filter(_is_of_packages, sys.path))
    return spoiler


@contextlib.contextmanager
def _settings_of(imports: Imports) -> Iterator[None]:
    """Tell libraries when they are imported what the job's client has told them, as in a job."""
    if not imports.settings:
        yield
        return
    from kinetic._runner.worker import import_hooks  # few scripts tell them anything

    process_setup.library_settings.update(imports.settings)
    try:
        import_hooks.ImportHooks(import_hooks.JaxProcess(0, 1, ""), {}, lambda: None).install()
        finder = sys.meta_path[0]
        yield
        sys.meta_path.remove(finder)
    finally:
        process_setup.library_settings.clear()


def _strange_module(modules: Mapping[str, object]) -> str:
    """Say which of some modules is of no installed package, as of a project, of which each job has its own copy."""
    for name, module in modules.items():
        origin = _origin_of(module)
        if origin.startswith("/") and not origin.startswith(_OF_PYTHON) and not _is_of_packages(origin):
            return f"importing brought {name} from {origin}, which is not a folder of packages"
    return ""


def _is_of_packages(path: str) -> bool:
    return any(folder in path for folder in _FOLDERS)


def variables_of_imports() -> list[str]:
    """Return the names of the variables that these modules set or removed when they were imported."""
    return sorted({name for group in hidden.groups for name in group.changed})


def get_ready_to_fork() -> None:
    """Note what is there, and let no collection of a fork copy it."""
    _loaded.update(sys.modules, *(group.modules for group in hidden.groups))
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def _printing_into_files() -> Iterator[None]:
    """Keep what libraries print while they are imported for the logs of the tasks that import them."""
    with contextlib.ExitStack() as files:
        kept = [os.dup(number) for number in _STREAMS]
        for number in _STREAMS:
            os.dup2(files.enter_context(_file_of_nobody_else()).fileno(), number)
        try:
            yield
        finally:
            _flush()
            for number, was in zip(_STREAMS, kept, strict=True):
                os.dup2(was, number)
                os.close(was)


def _file_of_nobody_else() -> Any:
    if hasattr(os, "memfd_create"):  # no disk is full for it
        return open(os.memfd_create("printed"), "wb")
    import tempfile

    return tempfile.TemporaryFile()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # of a task, which may have put None there, or what has only write()
            stream.flush()


def _lengths() -> list[int]:
    _flush()
    return [os.fstat(number).st_size for number in _STREAMS]


def _printed_since(lengths: Sequence[int]) -> tuple[bytes, ...]:
    """Return what was printed since the files had these lengths, of very much the beginning."""
    _flush()
    return tuple(os.pread(number, _MOST_PRINTED, length) for number, length in zip(_STREAMS, lengths, strict=True))


def _import_all(
    names: Sequence[str], variables: Mapping[str, str], packages: str, state: set[str] | None = None
) -> Spoiler | None:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    if packages:
        from kinetic._runner.pod import kept_packages  # as above

        kept_packages.use(Path(packages))
    exit_handlers = list[Callable[..., object]]()
    register, atexit.register = atexit.register, _noting(atexit.register, exit_handlers)
    try:
        for name in names:  # filters of warnings that they add are the next task's, as if it had imported them
            if name not in sys.modules:
                there, variables, lengths = set(sys.modules), dict(os.environ), _lengths()
                trace.forget_copied()
                exit_handlers.clear()
                with contextlib.suppress(BaseException):  # of a library that does not like it: it is imported later
                    __import__(name)
                new = {name: sys.modules[name] for name in list(sys.modules) if name not in there}
                found = {name: module for name, module in new.items() if _may_be_hidden(name)}
                hidden.packages.update(each.partition(".")[0] for each in found)
                _of_python.update(new.keys() - found.keys())
                handlers = tuple(each for each in exit_handlers if getattr(each, "__module__", "") in found)
                hidden.groups.append(
                    _Group(found, _changes(variables, _OF_COMPILERS), _printed_since(lengths), handlers)
                )
                if state is not None and (why := _strange_module(found) or trace.what_it_did(state)):
                    return Spoiler(name.partition(".")[0], why)
    finally:
        atexit.register = register
        for group in hidden.groups:
            for name in group.modules:
                sys.modules.pop(name, None)
        os.environ.clear()
        os.environ.update(before)
        time.tzset()
    return None


def _noting(register: Callable[..., Any], functions: list[Callable[..., object]]) -> Callable[..., Any]:
    """Return what registers an exit handler and notes it; modules may keep it."""

    def noting(function: Callable[..., object], *arguments: object, **named: object) -> Any:
        functions.append(function)
        return register(function, *arguments, **named)

    return noting


def _may_be_hidden(name: str) -> bool:
    """Return whether a module is of a library: what is Python's own reads no variable that matters.

    Nor what all libraries that Cython compiled have in common: the first one makes it, which may be the task's.
    """
    package = name.partition(".")[0]
    is_shared = package in {"kinetic", "cython_runtime"} or package.startswith("_cython_")
    return package not in sys.stdlib_module_names and not is_shared


def _changes(before: Mapping[str, str], but: frozenset[str] = _READ_LATER) -> dict[str, str | None]:
    """Return which variables are others now, but these; None: removed."""
    return {name: os.environ.get(name) for name, _ in before.items() ^ os.environ.items() if name not in but}


def _empty_caches() -> None:
    """Empty what libraries empty when an interpreter ends: each task does that, and would copy all that is in there."""
    jax = hidden.module("jax")
    for clear in (*getattr(typing, "_cleanups", ()), getattr(jax, "clear_caches", int)):
        with contextlib.suppress(Exception):
            clear()


# ---------------------------------------------------------------------------------------------------- in the worker


class _Group(NamedTuple):
    """What one import before the fork brought."""

    modules: dict[str, ModuleType]
    changed: dict[str, str | None]  # variables that it set, as jax does, or removed
    printed: tuple[bytes, ...] = ()  # to its standard output, and as errors
    exit_handlers: tuple[Callable[..., object], ...] = ()  # that its modules registered


class _HiddenModule(Loader):
    """Loads one of them, which is there; whatever else is asked of it, the module's own loader answers."""

    _spec: ModuleSpec | None = None

    def __init__(self, module: ModuleType, asked_for: dict[str, ModuleType]) -> None:
        self._module, self._spec, self._asked_for = module, _spec_of(module), asked_for

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec and self._spec.loader, name)

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        self._asked_for.pop(module.__name__, None)
        if getattr(_spec_of(module), "loader", None) is self:
            module.__spec__ = self._spec


class _HiddenModules:
    """Finds what was imported before the fork, and lets a task have it as soon as it imports it.

    What was imported before that comes along, and nothing else, since variables may change until that is imported.
    """

    def __init__(self) -> None:
        self.groups: list[_Group] = []  # in their order
        self.packages: set[str] = set()  # what they are of: to look at 2,000 names in a worker is to copy their memory
        self.noted: list[str] = []  # what a task has imported itself before it got the last of them
        self._asked_for: dict[str, ModuleType] = {}  # and not imported yet, as by ``importlib.util.find_spec``
        self._variables: dict[str, str] | None = None  # of a task, as its function finds them
        self.set_before: dict[str, str | None] = {}  # variables as they were set for the first of them
        self.settings: dict[str, Any] | None = None  # of libraries, which they were told; None if that is not compared
        self.there: dict[str, ModuleType] = {}  # what the task has got
        self.found: set[str] = set()  # all modules that were looked for
        self._lock = RLock()  # threads may import at the same time
        self._path: list[str] = []  # where it looks for modules
        self.root_handlers: list[Any] = []  # of ``logging``, which came with them, while a task has none of them
        self._begin_again: Callable[[str], object] = str
        self._shown: Callable[[], object] = lambda: None

    def module(self, name: str) -> ModuleType | None:
        return next((group.modules[name] for group in self.groups if name in group.modules), None)

    def install(self) -> None:
        """Begin to find them, in a worker."""
        if self.groups:
            sys.meta_path.insert(0, self)
            python_runtime.free_in_child(self._lock)
            trace.draw_seeds()
            with contextlib.suppress(Exception):  # somebody's own module of that name
                self.module("torch").default_generator.seed()  # type: ignore[union-attr]
            self.root_handlers = list(getattr(getattr(sys.modules.get("logging"), "root", None), "handlers", ()))

    def watch(self, begin_again: Callable[[str], object], shown: Callable[[], object]) -> None:
        """Compare variables from now on; what comes next is the user's.

        Args:
            begin_again: Gets what is different from when they were imported, as the names of variables; it returns only
                in a process in which nothing can begin again.
            shown: Called when there are modules that were not there.
        """
        if self.groups:
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)  # before hooks for the same libraries, which would import them once more
            self._variables, self._begin_again, self._shown = dict(os.environ), begin_again, shown
            self._variables = _applied(self._variables, self.set_before)
            self._path = list(sys.path)
            if file := next(filter(os.path.lexists, trace.looked_for), ""):
                begin_again(f"libraries were imported ahead of it without the file {file}, which is in its folder")
            if self.settings is not None and self.settings != process_setup.library_settings:
                begin_again("libraries were imported ahead of it with other settings than the script has told them")

    def accept(self, before: Mapping[str, str]) -> None:
        """Note that what has changed of the variables since they were these is our doing, and not the task's."""
        if self._variables is not None:
            self._variables = _applied(self._variables, _changes(before))

    def find_spec(  # others' finders, as cirq's, pass these by their names
        self,
        name: str,
        path: object = None,  # noqa: ARG002
        target: object = None,
    ) -> ModuleSpec | None:
        self.found.add(name)
        with self._lock:
            is_shown = self._bring(name)
        if is_shown:
            self._shown()  # which imports, and so it may wait for a thread that waits here
            if self._variables is not None:
                self._variables = dict(os.environ)
        # Of this import, or one that another thread has just brought: it would be executed again. A reload is that.
        if is_shown or (target is None and name in self.there and self.there[name] is sys.modules.get(name)):
            self._asked_for[name] = sys.modules.pop(name)
        found = self._asked_for.get(name)
        if found is None:
            return None
        was = _spec_of(found)
        spec = copy.copy(was) if was is not None else ModuleSpec(name, None)
        spec.loader = _HiddenModule(found, self._asked_for)
        return spec

    def _bring(self, name: str) -> bool:
        """Show what was imported until this module was; return whether it is one of them."""
        if self._variables is not None and self._path != sys.path:
            self._look_at_path()
        known = [number for number, group in enumerate(self.groups) if name in group.modules]
        if known:
            if self._variables is not None:
                self._compare(name, known[0] + 1, self._variables)
            self._show(known[0] + 1)
        return bool(known)

    def _compare(self, name: str, many: int, variables: Mapping[str, str]) -> None:
        """Begin again if these groups are not what the task would import now."""
        if changed := _changes(variables):
            self._begin_again(f"{name} was imported ahead of it with another value of {', '.join(sorted(changed))}")
        together = itertools.chain.from_iterable(group.modules for group in self.groups[:many])
        if its_own := sys.modules.keys() & together:
            self._begin_again(f"{name} was imported ahead of it without its own {', '.join(sorted(its_own))}")
        if sys.meta_path[0] is not self:
            self._begin_again(f"{name} was imported ahead of it without its own finder of modules")

    def _show(self, many: int) -> None:
        self.noted += itertools.takewhile(lambda name: name not in _loaded, reversed(sys.modules))
        for group in self.groups[:many]:
            sys.modules.update(group.modules)
            self.there.update(group.modules)
            _print(group.printed)
            os.environ.update(_applied({}, group.changed))
            for name in [name for name, value in group.changed.items() if value is None]:
                os.environ.pop(name, None)
        self.groups, self.root_handlers = self.groups[many:], []

    def _look_at_path(self) -> None:
        """Let what the task has put before a library on the path be found instead of it."""
        was, self._path = set(self._path), list(sys.path)
        last = max((at for at, folder in enumerate(sys.path) if folder in was), default=0)
        drop_shadowed([folder for folder in sys.path[:last] if folder not in was])

    def drop_exit_handlers(self) -> None:
        """Forget the exit handlers of what the task has not imported: those of JAX copy 5 MB."""
        for group in self.groups:
            for function in group.exit_handlers:
                with contextlib.suppress(Exception):  # it is compared with the task's own, which may raise
                    atexit.unregister(function)

    def drop(self, packages: set[str]) -> None:
        """Forget packages: they will be imported from somewhere else."""
        for group in self.groups if packages & self.packages else ():
            for name in [name for name in group.modules if name.partition(".")[0] in packages]:
                del group.modules[name]


hidden = _HiddenModules()


def _print(printed: Sequence[bytes]) -> None:
    if any(printed):
        _flush()
        with contextlib.suppress(OSError):  # the task has closed one
            for number, text in zip(_STREAMS, printed, strict=True):
                with open(number, "wb", closefd=False) as stream:
                    stream.write(text)


def _applied(variables: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**variables, **changes}.items() if value is not None}


class VariableWatch:
    """Notes which variables a task has changed before it imports a library, in a process that has imported nothing."""

    def __init__(self) -> None:
        self._was = self._last = dict(os.environ)
        self._changes: dict[str, str | None] = {}
        self._seen: list[tuple[str, dict[str, str | None]]] = []  # for each package: what had changed by then
        self.found: set[str] = set()  # all modules that were looked for

    def install(self) -> VariableWatch:
        """Begin to watch."""
        sys.meta_path.insert(0, self)
        return self

    def accept(self, before: Mapping[str, str]) -> None:
        """Note that what has changed of the variables since they were these is our doing, and not the task's."""
        self._was, self._last = _applied(self._was, _changes(before)), {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - as above
        """Find nothing, and look."""
        self.found.add(name)
        if "." not in name and name not in sys.stdlib_module_names:
            if os.environ != self._last:
                self._last, self._changes = dict(os.environ), _changes(self._was)
            self._seen.append((name, self._changes))

    def imports(self, names: Sequence[str]) -> Imports:
        """Return some modules of installed packages with the variables that changed before and between them."""
        installed = {name for name in names if "." not in name}
        before, *others = [changes for name, changes in self._seen if name in installed] or [{}]
        changed = {name for other in others for name, _ in before.items() ^ other.items()}
        return Imports(tuple(names), before, frozenset(changed))


def note_imports(path: Path, own: Sequence[str], watch: VariableWatch | None = None, *, few: int = 0) -> None:
    """Write down what this process has imported of installed packages; nothing of the folders in ``own``.

    A task that imported none writes nothing: to look at a module, or at its name, is to copy its memory, and JAX brings
    2,000. What was imported last comes last. ``few``: so many new modules are not worth it, nor so many that were
    imported ahead and that the task had no use of, where no other task may have.
    """
    with contextlib.suppress(Exception):  # a full disk; a thread that imports; a module that raises what it likes
        new = [*itertools.takewhile(lambda name: name not in _loaded, reversed(sys.modules)), *hidden.noted]
        new = [name for name in new if name.partition(".")[0] not in _left_out]
        unused = sum(len(group.modules) for group in hidden.groups)
        if 0 < few < unused or (len(new) > few and any(_is_installed(name, own) for name in new)):
            path.write_text(json.dumps(imports_here(watch, own)._asdict(), default=sorted))


def imports_here(watch: VariableWatch | None, own: Sequence[str]) -> Imports:
    """Return what this process has imported of installed packages, but not of the folders in ``own``.

    Without what a library loads past all finders, as Hydra its plugins: it would load them once more.
    """
    found = {*_loaded, *hidden.there, *(watch or hidden).found}
    names = [name for name in list(sys.modules) if name in found and _is_installed(name, own)][:_MOST_NAMES]
    imports = watch.imports(names) if watch is not None else Imports(tuple(names), hidden.set_before)
    return imports._replace(settings=process_setup.library_settings)


def _is_installed(name: str, own: Sequence[str]) -> bool:
    origin = _origin_of(sys.modules.get(name))
    return name.partition(".")[0] not in _NEVER and not origin.startswith(tuple(own)) and _is_of_packages(origin)


def _spec_of(module: object) -> Any:
    """Return the spec of a module, if it has one, without loading a lazy module, as any other look at it does."""
    try:
        return object.__getattribute__(module, "__spec__")
    except Exception:  # noqa: BLE001 - libraries put objects of other kinds into ``sys.modules`` as well
        return None


def _origin_of(module: object) -> str:
    origin = getattr(_spec_of(module), "origin", None)
    return origin if isinstance(origin, str) else ""


def drop_shadowed(folders: Sequence[str]) -> None:
    """Forget packages that were imported before the fork, and of which a task's project has one of the same name."""
    for folder in folders if hidden.groups else ():
        with contextlib.suppress(OSError):
            names = {name.partition(".")[0] for name in os.listdir(folder)}
            hidden.drop(names)
            for name in names & _of_python:  # a folder or a file of another kind would not be imported instead
                if getattr(PathFinder.find_spec(name, [folder]), "has_location", False):
                    for module in [name, *(each for each in _of_python if each.startswith(f"{name}."))]:
                        sys.modules.pop(module, None)


def noted_imports(folder: Path) -> Imports:
    """Return what a task's worker wrote down, if anything: of names only, whatever user code made of the file."""
    try:
        found = json.loads(folders.read_file(folder, IMPORTS_FILE, _MOST_BYTES))
        return imports_from(found)
    except (OSError, ValueError, RecursionError):
        return Imports()


def imports_from(page: Any) -> Imports:
    """Read what was written as plain JSON, whatever became of it; raises ValueError if nothing is left of it."""
    try:
        names, changed = ([name for name in page[key] if isinstance(name, str)] for key in ("names", "changed"))
        before = {name: value for name, value in page["set_before"].items() if value is None or isinstance(value, str)}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("this is not a page of imports") from error
    parts = [name for name in names[:_MOST_NAMES] if all(part.isidentifier() for part in name.split("."))]
    settings = page.get("settings")
    return Imports(tuple(parts), before, frozenset(changed), settings if isinstance(settings, dict) else None)
