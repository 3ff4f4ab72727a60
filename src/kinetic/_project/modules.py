"""How each imported module reaches the job: with the project, as an installed package, or by value."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.machinery
import importlib.util
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Container, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal

from kinetic._project import ignore, root
from kinetic._project.ignore import Rules, is_environment, is_inside
from kinetic._project.root import Plan
from kinetic._wire import NamedTuple, folders, references


def is_stale(module: ModuleType) -> bool:
    """Return whether a module's source is no longer what was imported."""
    file = getattr(module, "__file__", None) or ""
    try:
        if not file.endswith(".py"):
            return False
        with open(file, "rb") as source:
            text = source.read()
        page = ast.parse(text, file)
        code = compile(page, file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):  # gone or broken: certainly not what was imported
        return True
    inside = list(inner_code(code))
    written = {(inner.co_qualname, _essence(inner)) for inner in inside} | {_position(inner) for inner in inside}
    live = (
        _position(function.__code__)
        if _is_rewritten(function.__code__)
        else (_qualname(function), _essence(function.__code__))
        for function in _live_functions(module)
    )
    return any(each not in written for each in live) or _constants_differ(module, page)


def _is_rewritten(code: CodeType) -> bool:
    """Return whether pytest has rewritten an ``assert`` in some code, or in a function inside of it."""
    return any("@pytest_ar" in each.co_names for each in (code, *inner_code(code)))


def _position(code: CodeType) -> tuple[object, ...]:
    """Return what pytest leaves of a function whose ``assert`` it has rewritten."""
    return code.co_qualname, code.co_firstlineno, code.co_freevars


def _qualname(function: FunctionType) -> str:
    """Return the name that a function's code has in its file; ``%autoreload`` compiles methods in another class."""
    name = function.__code__.co_qualname
    return function.__qualname__ if name.startswith("__autoreload_class__.") else name


def _constants_differ(module: ModuleType, page: ast.Module) -> bool:
    """Compare the plain constants at the top of a module, as in ``RATE = 0.1``; the last assignment counts."""
    written: dict[str, object] = {}
    for line in page.body:
        if isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
            name = line.targets[0].id
            written.pop(name, None)
            if isinstance(line.value, ast.Constant):
                written[name] = line.value.value
    live = vars(module)
    return any(name in live and repr(live[name]) != repr(value) for name, value in written.items())


def as_written(code: CodeType) -> CodeType:
    """Return the code of a function as its file has it, where pytest has rewritten its ``assert``.

    What such a statement calls is in the modules that pytest has imported, and not in those of the job.
    """
    if "@pytest_ar" not in code.co_names:
        return code
    try:
        with open(code.co_filename, "rb") as source:
            whole = compile(source.read(), code.co_filename, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return code
    return next((each for each in inner_code(whole) if _position(each) == _position(code)), code)


def inner_code(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions and classes that are defined inside of some code, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner_code(constant)


def first_of(lazy: object) -> str:
    """Return the first name of the module that a ``lazy import`` leads to."""
    return repr(lazy).partition("'")[2].rstrip("'>").partition(".")[0]


def imported(value: Any, by_value: Container[str] = ()) -> object:
    """Return a value; where it is a ``lazy import`` that nothing has used, what that imports, except of a package.

    A package, installed here or only in the job, is imported in the job once it is used, and never here. How the job
    gets any other module is known once it is imported.
    """
    if type(value) is not references.LAZY_IMPORT:
        return value
    first = first_of(value)
    with contextlib.suppress(ImportError, ValueError, AttributeError):  # the job says so, once it is used
        spec = importlib.util.find_spec(first)
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        is_package = not places or first in sys.stdlib_module_names or any(map(root.is_installed, places))
        if first in by_value or not is_package:
            return value.resolve()
    return value


def _live_functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions that a module's own file defines: at its top and in its classes."""
    seen: set[int] = set()
    waiting = list(vars(module).values())
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, FunctionType):
            if found.__code__.co_filename == module.__file__ and "<locals>" not in found.__code__.co_qualname:
                yield found
        elif isinstance(found, type) and found.__module__ == module.__name__:
            waiting.extend(vars(found).values())
        waiting.extend(_wrapped(found))


def _wrapped(found: object) -> Iterator[object]:
    """Yield what is under decorators, without running the user's code."""
    if isinstance(found, property):
        yield from (found.fget, found.fset, found.fdel)
    elif isinstance(found, staticmethod | classmethod):
        yield found.__func__
    elif isinstance(found, functools.partial | functools.partialmethod | functools.cached_property):
        yield found.func
    elif not isinstance(found, type | ModuleType):
        yield references.plain(found)
        try:
            inside = object.__getattribute__(found, "__dict__")
        except AttributeError:
            return
        yield inside.get("__wrapped__") if isinstance(inside, dict) else None


def _essence(code: CodeType) -> tuple[object, ...]:
    """Return what a function does, without its position."""
    constants = tuple(
        _essence(constant) if isinstance(constant, CodeType) else (type(constant), repr(constant))
        for constant in code.co_consts
    )
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return code.co_code, constants, names, counts


@functools.cache
def started() -> float:
    """Return when this process started, in seconds since the epoch; a little early rather than late."""
    return time.time() - _age() - 1.0  # 1 s: what the sources below are rounded to


def _age() -> float:
    """Return for how many seconds this process has run."""
    if sys.platform == "linux":
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    import subprocess  # macOS has no /proc; 5 ms, once

    shown = subprocess.run(["/bin/ps", "-o", "etime=", "-p", str(os.getpid())], capture_output=True, check=False)
    days, _, clock = shown.stdout.decode().strip().rpartition("-")
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return int(days or 0) * 86400.0 + seconds


Kind = Literal["ships", "installed", "by-value", "compiled"]
_BUNDLED = frozenset({"kinetic", "cloudpickle"})  # the runner brings them along
_COMPILED = tuple(importlib.machinery.EXTENSION_SUFFIXES)
_SUFFIXES = (*_COMPILED, ".py", ".pyc")  # the order in which the importer looks


class ModuleOrigin(NamedTuple):
    """How a module reaches the job."""

    # "ships": its file is in the project and the job imports it under the same name; "installed": the job's environment
    # has it; "by-value": neither, so what it defines must travel inside the pickle; "compiled": neither, and it cannot
    kind: Kind
    reason: str  # why, in a few words; for the last two a user reads it


_SHIPS = ModuleOrigin("ships", "its file is in the project")
FOUND = ModuleOrigin("installed", "the job's Python finds it where this one does")


def classify(module: ModuleType, plan: Plan, name: str = "") -> ModuleOrigin:
    """Return how a module reaches the job that a plan describes; ``name``: under which it is imported."""
    return classifier(plan).classify(module, name)


def classifier(plan: Plan) -> Classifier:
    """Return what classifies many modules, while neither ``sys.path`` nor what is left out of the project changes."""
    return _classifier(plan, _ignore_stamps(plan), tuple(map(str, sys.path)))


def stale_modules(plan: Plan, *, since: float | None = None) -> list[str]:
    """Name the imported modules of the project whose source is no longer what was imported, sorted."""
    start = started() if since is None else since
    return sorted(
        name
        for name, module in _inside(plan)
        if name != "__main__"
        and _changed_since(str(module.__file__), start)  # a stat; to classify a module costs 100 us
        and classify(module, plan).kind == "ships"
        and is_stale(module)
    )


def shipped(plan: Plan) -> list[ModuleType]:
    """Return the imported modules that the job imports from its copy of the project, or as its Python finds them."""
    kinds = classifier(plan)
    return [module for _, module in _inside(plan) if kinds.classify(module) in {_SHIPS, FOUND}]


def _inside(plan: Plan) -> list[tuple[str, ModuleType]]:
    """Return the imported modules of files below the root; a lazy one that nothing has used is not imported yet."""
    plain = ModuleType.__getattribute__  # a lazy one's own loads it, or raises
    folders = [folder for _, folder in plan.sent()] + (startup_path(os.getcwd())[0] if plan.same_python else [])
    below = tuple(f"{folder}/" for folder in folders)
    return [  # of some thousand, so without a call for each
        (name, module)
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and type(module).__getattribute__ is plain
        and str(getattr(module, "__file__", None)).startswith(below)
    ]


def _changed_since(file: str, since: float) -> bool:
    """Return whether a file was changed since then, or may have been: times of a file system may be whole seconds."""
    try:
        return not folders.is_settled(os.stat(file).st_mtime_ns, int(since * 1e9))
    except OSError:
        return False


class _Found(NamedTuple):
    """A folder in a project that is sent."""

    inside: str  # its path below the project
    real_root: str  # the project's folder, without links
    rules: Rules  # what of the project is not sent
    is_environment: bool  # it is in a virtual environment


class Classifier:
    """What is the same for all modules of a plan."""

    def __init__(self, plan: Plan, path: tuple[str, ...]) -> None:
        self._sent = [(folder, os.path.realpath(folder), ignore.read_rules(folder)[0]) for _, folder in plan.sent()]
        self._searched = [plan.here(part) for part in plan.sys_path_rel]
        self._libraries = frozenset(item for item in path if item and _holds_packages(item))
        self._same_python = plan.same_python
        self._found: dict[str, _Found | None] = {}

    def classify(self, module: ModuleType, name: str = "") -> ModuleOrigin:
        name = name or module.__name__  # of its own it may have the last part only, as those of PyO3
        if name.partition(".")[0] in _BUNDLED:
            return ModuleOrigin("installed", "it comes with kinetic")
        if name in {"__main__", "__mp_main__"}:
            return ModuleOrigin("by-value", "it is the script itself")
        place = _place(module)
        if place is None:
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            if name in sys.builtin_module_names or origin in {"built-in", "frozen"}:
                return ModuleOrigin("installed", "built in")
            if name.startswith("_cython_"):  # in which what it compiles has the class of its functions
                return ModuleOrigin("installed", "Cython makes it")
            above_name = name.rpartition(".")[0]  # an extension module may make modules, as jaxlib's does
            above = sys.modules.get(above_name)
            if isinstance(above, ModuleType) and self.classify(above, above_name).kind == "installed":
                return ModuleOrigin("installed", f"{above_name} makes it")
            return ModuleOrigin("by-value", "it has no file")
        found = self._sent_with(place)
        is_sent, reason = False, f"its file is outside the project: {place}"
        if found is not None and not found.is_environment:
            is_sent, reason = True, self._why_not_shipped(name, place, found) or ""
        if not reason:
            return _SHIPS
        if self._in_library(place) or (not is_sent and root.is_installed(place)):
            return ModuleOrigin("installed", "it belongs to an installed package")
        is_compiled = place.endswith(_COMPILED)
        if self._same_python and (is_compiled or not is_sent) and self._is_found_by_python(name, place):
            return FOUND
        return ModuleOrigin("compiled" if is_compiled else "by-value", reason)

    def _sent_with(self, place: str) -> _Found | None:
        """Return where a file is in what is sent; asked once for each folder, since links have to be resolved."""
        folder = os.path.dirname(place)
        if folder not in self._found:
            self._found[folder] = None if root.is_standard(folder) else self._look_for(folder)
        found = self._found[folder]
        if found and os.path.islink(place) and not is_inside(os.path.realpath(place), found.real_root):
            return None
        return found

    def _look_for(self, folder: str) -> _Found | None:
        for project, real_root, rules in self._sent:
            inside = root.below(folder, project)
            # Links that lead out of it are not sent.
            if inside is not None and is_inside(os.path.realpath(folder), real_root):
                parts = inside.split("/") if inside else []
                above = ["/".join([project, *parts[: count + 1]]) for count in range(len(parts))]
                named = bool(root.INSTALLED.intersection(parts))
                return _Found(inside, real_root, rules, named or any(map(is_environment, above)))
        return None

    def _why_not_shipped(self, name: str, place: str, found: _Found) -> str | None:
        relative = "/".join(filter(None, (found.inside, os.path.basename(place))))
        if rule := found.rules.above(f"{relative}/__init__.py" if os.path.isdir(place) else relative):
            return f"its file is not sent: {rule.reason}"
        there = self._find(name)
        if there is None:
            return f"no folder of the project that is on sys.path holds it under the name {name}"
        if there != place and not (os.path.exists(there) and os.path.samefile(there, place)):
            return f"the job would find another file under the name {name}: {there}"
        return None

    def is_sent(self, folder: str) -> bool:
        """Return whether a folder is of a project that is sent, and not left out by a rule."""
        found = self._look_for(folder)
        return found is not None and (not found.inside or not found.rules.above(f"{found.inside}/__init__.py"))

    def holds(self, top: str) -> bool:
        """Return whether a job imports a top-level module from its copy of the project, imported here or not."""
        return any(_file_of(f"{folder}/{top}") for folder in self._searched)

    def _find(self, name: str) -> str | None:
        """Do what the job's importer will do: the first folder that has the top-level name decides."""
        top, _, rest = name.partition(".")
        for folder in self._searched:
            if _file_of(f"{folder}/{top}"):
                return _file_of(f"{folder}/{name.replace('.', '/')}")
        parts = [_file_of(f"{folder}/{name.replace('.', '/')}", bare=True) for folder in self._searched]
        return next(filter(None, parts), None) if rest or any(parts) else None

    def _is_found_by_python(self, name: str, place: str) -> bool:
        """Return whether the job finds a module outside the project there, where functions may import it as well."""
        top, path = name.partition(".")[0], name.replace(".", "/")
        folders, finders = startup_path(os.getcwd())
        if self.holds(top):
            # The project comes before all but such finders as those of meson-python and scikit-build-core.
            first = itertools.takewhile(lambda finder: finder is not importlib.machinery.PathFinder, sys.meta_path)
            folders, finders = [], [finder for finder in first if finder in finders]
        found = [_file_of(f"{folder}/{path}", bare=True) for folder in folders]
        for finder in finders:
            with contextlib.suppress(Exception):  # a stranger's
                found.append(getattr(finder.find_spec(name, None), "origin", None))
        return any(file and os.path.exists(file) and os.path.samefile(file, place) for file in found)

    def _in_library(self, place: str) -> bool:
        return any(root.below(place, library) is not None for library in self._libraries)


@functools.lru_cache(maxsize=4)
def _classifier(plan: Plan, _ignore_stamp: object, path: tuple[str, ...]) -> Classifier:
    return Classifier(plan, path)


def _ignore_stamps(plan: Plan) -> tuple[tuple[int, int] | None, ...]:
    """Change when the ignore file of a project that is sent does."""
    return tuple(_stamp(f"{folder}/{ignore.FILE}") for _, folder in plan.sent())


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        about = os.stat(file)
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def _settled_stamp(folder: str) -> object:
    """Change when something is added to a folder or taken away, and always while that may be under way."""
    stamp, now = _stamp(folder), time.time_ns()
    return stamp if stamp and folders.is_settled(stamp[0], now) else now


def _place(module: ModuleType) -> str | None:
    """Return the file of a module, or the folder of a package that has none (a namespace package)."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and (os.path.isabs(file) or os.path.exists(file)):  # ``torch.ops`` names one like that
        return os.path.abspath(file)
    try:
        folders = [str(folder) for folder in getattr(module, "__path__", ())]
    except Exception:  # noqa: BLE001 - a stranger's object: some lazy modules raise anything when touched
        return None
    return os.path.abspath(folders[0]) if folders else None


def _file_of(stem: str, *, bare: bool = False) -> str | None:
    """Return the file that a module or package of this path is loaded from; with ``bare`` also a bare folder."""
    for start in (f"{stem}/__init__", stem):
        for suffix in _SUFFIXES:
            if os.path.isfile(start + suffix):
                return start + suffix
    return stem if bare and os.path.isdir(stem) else None


@functools.lru_cache(maxsize=1)
def startup_path(here: str) -> tuple[list[str], list[Any]]:
    """Return the folders and the finders with which a Python like this one begins, besides its own libraries.

    That is PYTHONPATH, relative to the current directory, ``here``, and what is installed as editable: ``*.pth`` files
    name the folders of such a project, or import a finder for it.
    """
    named = _python_path(here)
    words: set[str] = set()
    for file in _path_files():
        folder = os.path.dirname(file)
        with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as page:
            lines = page.read().splitlines()
            named += [os.path.normpath(os.path.join(folder, line.rstrip())) for line in lines if line]
            words.update(re.findall(r"\w+", "\n".join(line for line in lines if line.startswith("import"))))
    taken = set(sys.path)
    folders = [path for path in named if path in taken and not sys.prefix.startswith(path)]
    return folders, [finder for finder in sys.meta_path if getattr(finder, "__module__", "") in words]


def package_folders() -> list[str]:
    """Return the folders of ``sys.path`` with installed packages, and the standard library."""
    return [folder for folder in map(str, sys.path) if root.is_installed(folder)]


def _path_files() -> Iterator[str]:
    for folder in package_folders():
        with contextlib.suppress(OSError):
            yield from (f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".pth"))


def _python_path(here: str, *, relative: bool = False) -> list[str]:
    """Return the folders that PYTHONPATH names, or those that it names relative to the current directory, absolute."""
    named = os.environ.get("PYTHONPATH", "")
    wanted = [entry for entry in named.split(os.pathsep) if not (relative and os.path.isabs(entry))] if named else []
    return [os.path.normpath(os.path.join(here, entry)) for entry in wanted]


def relative_path(plan: Plan) -> list[str]:
    """Return the folders outside the project that PYTHONPATH names relative to the current directory, absolute."""
    found = _python_path(os.getcwd(), relative=True)
    return [folder for folder in found if folder in sys.path and root.below(folder, str(plan.root)) is None]


def added_libraries(plan: Plan) -> list[str]:
    """Return the folders with installed packages that a program has put into ``sys.path``, or PYTHONPATH has.

    Those of the project that are not sent are among them: ``pip install --target`` a folder that .kineticignore names.
    """
    project, found = classifier(plan), []
    for entry in filter(None, map(str, sys.path)):
        folder = os.path.abspath(entry)
        if not _is_of_this_python(folder) and (
            root.is_installed(folder) or (not project.is_sent(folder) and _holds_packages(folder))
        ):
            found.append(folder)
    return found


@functools.lru_cache(maxsize=100)
def _is_of_this_python(folder: str) -> bool:
    return any(root.below(folder, prefix) is not None for prefix in (sys.prefix, sys.base_prefix))


def _holds_packages(folder: str) -> bool:
    """Return whether packages were installed into a folder, as with ``pip install --target``."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(".dist-info") for entry in entries)
    except OSError:
        return False


_ABOUT = ("METADATA", "entry_points.txt")


def own_distributions(plan: Plan) -> dict[str, dict[str, str]]:
    """Return what tells ``importlib.metadata`` of the packages that are installed here from the folders that are sent.

    Files by their names, by the name of the folder that holds them. Of METADATA, the fields and no description.
    """
    own, found = "", dict[str, dict[str, str]]()
    with contextlib.suppress(OSError), open(plan.root / "pyproject.toml", encoding="utf-8", errors="replace") as file:
        if line := re.search(r"""^name\s*=\s*["']([^"']+)""", file.read(), re.MULTILINE):  # of [project], or Poetry's
            own = re.sub(r"[-_.]+", "_", line.group(1)).lower()
    for folder in package_folders():
        for name, origin in _distributions(folder, _settled_stamp(folder)):
            is_own = name.partition("-")[0].lower() == own
            if (is_own or (origin and _is_sent(plan, origin))) and name not in found:
                found[name] = {each: text for each in _ABOUT if (text := _fields(f"{folder}/{name}/{each}"))}
    return found


def installed_from(plan: Plan) -> list[str]:
    """Return the folders of the project from which packages without compiled modules are installed here.

    Those of a package that was not installed as editable are not on ``sys.path`` here, and what it consists of is sent.
    """
    return [
        origin
        for folder in package_folders()
        for name, origin in _distributions(folder, _settled_stamp(folder))
        if origin and root.below(origin, os.fspath(plan.root)) is not None and not _is_compiled(f"{folder}/{name}")
    ]


def _is_compiled(about: str) -> bool:
    with contextlib.suppress(OSError), open(f"{about}/RECORD", encoding="utf-8", errors="replace") as record:
        return any(line.partition(",")[0].endswith(_COMPILED) for line in record)
    return False


def is_compiled(place: str | None) -> bool:
    """Return whether a module, or one in the folder of a package, is compiled."""
    if place is None or os.path.isfile(place):
        return str(place).endswith(_COMPILED)
    return any(file.endswith(_COMPILED) for _, _, files in os.walk(place) for file in files)


@functools.lru_cache(maxsize=8)
def _distributions(folder: str, _stamp: object) -> list[tuple[str, str]]:
    """Return what is installed in a folder, and from which folder each was, by the ``direct_url.json`` of PEP 610."""
    from urllib.parse import unquote  # only for jobs in another environment

    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(".dist-info"):
                url = _url_of(f"{folder}/{name}/direct_url.json")
                is_folder = url.startswith("file:///")
                found.append((name, os.path.normpath(unquote(url.removeprefix("file://"))) if is_folder else ""))
    return found


def _url_of(file: str) -> str:
    with contextlib.suppress(OSError, ValueError, AttributeError), open(file, encoding="utf-8") as page:
        return str(json.loads(page.read()).get("url"))
    return ""


def _is_sent(plan: Plan, origin: str) -> bool:
    """Return whether a package was installed from a folder that is sent."""
    from_there = any(root.below(origin, folder) is not None for _, folder in plan.sent())
    is_around = any(root.below(folder, origin) is not None for _, folder in plan.beside)  # its ``src`` is sent
    return from_there or is_around


def _fields(file: str) -> str:
    with contextlib.suppress(OSError, ValueError), open(file, encoding="utf-8") as page:
        text = page.read()
        return text if file.endswith(".txt") else text.partition("\n\n")[0] + "\n"
    return ""
