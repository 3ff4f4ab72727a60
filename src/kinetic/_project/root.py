"""Which folder is sent: from a function to the root of its project, and how it is laid out for the job."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import Any

from kinetic._config import home as homes
from kinetic._project.ignore import is_environment
from kinetic._wire import dataclass, folders, references
from kinetic.errors import ProjectRootError

INSTALLABLE = ("pyproject.toml", "setup.py", "setup.cfg")  # a project that can be installed has one of these
MARKERS = (*INSTALLABLE, "requirements.txt", ".git")
INSTALLED = frozenset({"site-packages", "dist-packages"})
_LAYERS = 100  # decorators around one function; an object that invents attributes must not hold us for ever
BESIDE = ".kinetic-beside"  # the folder of a job's copy that holds the other projects that it imports from
_ELSEWHERE = "move the code into a folder of its own, or set KINETIC_PACKAGE_ROOT to the folder to send"


@dataclass(frozen=True)
class Plan:
    """The folder that is sent, and where in it the job starts."""

    root: Path  # the project's folder, absolute
    entry_rel: str  # the folder of the function's module below root; "" is the root itself
    cwd_rel: str | None  # the current directory below root; None when it is elsewhere
    # the entries of ``sys.path`` below root, in the client's order; "" is the root itself
    sys_path_rel: tuple[str, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)  # what the user should know about the choice; not sent
    # the file whose own metadata says what is installed; "" for none, None for the function's. Not sent
    source: str | None = field(default=None, compare=False)
    sends_nothing: bool = field(default=False, compare=False)  # the root is an empty folder. Not sent
    # the job searches the root after installed packages: it has modules with the names of some
    root_last: bool = False
    same_python: bool = False  # the job begins as this process did: with PYTHONPATH, and what is editable. Not sent
    # other projects that are sent with it: the folder of each, by where it is in the job's copy
    beside: tuple[tuple[str, str], ...] = ()

    def folders(self) -> list[str]:
        """Return the folders that the job starts in and imports from, absolute."""
        return [self.here(folder) for folder in (self.entry_rel, self.cwd_rel or "", *self.sys_path_rel)]

    def sent(self) -> list[tuple[str, str]]:
        """Return the folders that are sent, by where each is in the job's copy, where "" is the copy itself."""
        return [("", os.fspath(self.root)), *self.beside]

    def here(self, relative: str) -> str:
        """Return where a path of the job's copy is on this machine, absolute."""
        for name, folder in self.beside:
            if (inside := _below(relative, name)) is not None:
                return os.path.join(folder, inside).rstrip("/")
        return os.path.join(self.root, relative).rstrip("/")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "root": str(self.root),
            "entry_rel": self.entry_rel,
            "cwd_rel": self.cwd_rel,
            "sys_path_rel": [entry for entry in self.sys_path_rel if entry or not self.root_last],
            **({"beside": dict(self.beside)} if self.beside else {}),
        }


def find_root(function: object, *, environ: Mapping[str, str] = os.environ, cwd: Path | None = None) -> Plan:
    """Find the project that a function belongs to.

    From the folder of the function's module up out of its packages, then up to the first folder that looks like a
    project (MARKERS). ``KINETIC_PACKAGE_ROOT`` overrides that.
    """
    return _plan(source_file(function), environ, cwd)


def plan_for_file(path: str | os.PathLike[str], *, environ: Mapping[str, str] = os.environ) -> Plan:
    """Find the project that a script belongs to, as if a function of it were submitted by ``python path``."""
    return _plan(os.path.abspath(path), environ, None)


def plan_for_command(script: str | None) -> Plan:
    """Find the project of a command that starts in the current directory; ``script``: the Python file that it runs."""
    return replace(_plan(None, os.environ, None), source=os.path.abspath(script) if script else "")


def _plan(file: str | None, environ: Mapping[str, str], cwd: Path | None) -> Plan:
    """Plan for the file of a module, or for the current directory where there is none."""
    here = os.path.abspath(cwd or current_folder())
    known = os.path.expanduser(environ.get("HOME") or "~")
    home = os.path.abspath(known) if known != "~" else "/"  # of a user whom the system does not know
    notes, nothing = tuple[str, ...](), ""
    if file and os.path.islink(file) and _is_script(file) and below(here, _detect(os.path.dirname(file), home)) is None:
        file = os.path.realpath(file)  # as Python, which imports from there: a program in ~/bin that links to a project
    chosen = environ.get("KINETIC_PACKAGE_ROOT", "")
    entry = os.path.dirname(file) if file else here
    if chosen:
        path = home + chosen[1:] if chosen == "~" or chosen.startswith("~/") else os.path.expanduser(chosen)
        root, entry = _chosen_root(os.path.abspath(path), entry, here, installed=is_installed(file))
    elif file and is_installed(file):
        root, entry = _detect(here, home), here
        sent = f"the current directory is sent: {here}"
        if nothing := _too_wide(root, home):  # where cron, systemd and containers start programs
            root = entry = os.fspath(homes.ensure_home(environ, "empty"))
            sent = f"no files are sent, because the current directory is {nothing}: {here}"
        notes = (f"the function is in an installed package ({file}); {sent}",)
    else:
        root = _detect(entry, home)
    _refuse_too_wide(root, home, chosen=bool(chosen))
    plan = Plan(Path(root), below(entry, root) or "", below(here, root), _search_path(root, here), notes)
    plan = replace(plan, sends_nothing=bool(nothing), root_last=_hides_installed(root, here))
    why, next_ = folders.why_not_utf8("".join(plan.folders()))
    if why:
        raise ProjectRootError(f"the project's folder cannot be used: {root}", why=why, next=next_)
    return plan


def current_folder() -> str:
    """Return the current directory; raises ProjectRootError if it was removed meanwhile."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ProjectRootError(
            "the current directory does not exist",
            why="it was removed, or removed and made again, after this shell or program had entered it",
            next='cd "$PWD"     or enter another folder',
        ) from None


def source_file(function: object) -> str | None:
    """Return the file of the module that defines what is really called, or None where there is no file.

    Of what an installed package defines or has made, as ``click.command`` does, it is the script that calls it.
    """
    called = innermost(function)
    name = getattr(called, "__module__", None) or ""
    file = getattr(sys.modules.get(name), "__file__", None)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(file, str) and is_installed(os.path.abspath(file)) and str(script).endswith(".py"):
        file = file if is_installed(os.path.abspath(str(script))) else script
    if name == "__main__":  # what runs a script may be another file, as the program that PEX makes of an environment
        file = getattr(called, "__globals__", {}).get("__file__") or file
    if name == "__main__" and isinstance(file, str) and is_program(os.path.abspath(file)):  # a console, joblib
        file = getattr(getattr(called, "__code__", None), "co_filename", file)
    if not isinstance(file, str):
        return None
    file = os.path.abspath(file)
    return file if os.path.isfile(file) else None  # inside a zip, or gone: the folder cannot ship


def innermost(function: object) -> object:
    """Return what is really called, without the partials, bound methods and wrappers around it."""
    for _ in range(_LAYERS):
        function, outer = references.plain(function), function
        if isinstance(function, functools.partial | functools.partialmethod):
            function = function.func
        elif isinstance(function, MethodType | staticmethod | classmethod):
            function = function.__func__
        else:
            function = getattr(function, "__wrapped__", None) or function
        if function is outer:
            break
    return function


def is_installed(file: str | None) -> bool:
    """Return whether a file belongs to the interpreter or to an installed package, not to a project."""
    if file is None:
        return False
    return bool(INSTALLED.intersection(file.split(os.sep))) or is_standard(file)


def is_program(file: str | None) -> bool:
    """Return whether a script is an installed program, as ``pytest`` or ``ptpython`` beside the interpreter."""
    return is_installed(file) or (file is not None and os.path.dirname(file) == os.path.dirname(sys.executable))


@functools.lru_cache(maxsize=10_000)  # links are resolved, and each submission asks for all modules
def is_standard(file: str) -> bool:
    """Return whether a file belongs to the standard library."""
    return any(below(file, library) is not None for library in _libraries())


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of the standard library, also as the file system spells them."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    return tuple({library, os.path.realpath(library)})


def _is_script(file: str) -> bool:
    return file == os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or "")


def script_of(plan: Plan) -> str:
    """Return the path of the user's script below the root, or "" in a notebook or a console."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file and is_standard(os.path.abspath(file)):  # as cProfile or trace, which have put the script into sys.argv
        file = next((word for word in getattr(sys, "argv", ())[:1] if os.path.isfile(word)), file)
    inside = below(os.path.abspath(file), str(plan.root)) if file else None  # links stay as they are
    return inside or ""


def module_of_script() -> str:
    """Return the module that the user's script is, as after ``python -m project.train``, or ""."""
    name = str(getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", ""))
    return "" if name.endswith("__main__") else name  # processes do not import a ``__main__.py`` by its name


def with_others(plan: Plan, others: Mapping[str, str]) -> Plan:
    """Return a plan that also sends other projects; ``others`` has the project of each folder to import from."""
    used, beside, places = set[str](), dict[str, str](), dict[str, str]()
    for search, folder in sorted(others.items()):
        inside = below(search, os.fspath(plan.root))
        if inside is None:
            if folder not in beside:
                name = f"{BESIDE}/{os.path.basename(folder)}"
                while name in used:
                    name += "-"
                used.add(name)
                beside[folder] = name
            inside = "/".join(filter(None, (beside[folder], below(search, folder))))
        places[search] = inside
    found = _search_path(os.fspath(plan.root), current_folder(), places)
    return replace(plan, sys_path_rel=found, beside=tuple((name, folder) for folder, name in beside.items()))


def below(path: str, root: str) -> str | None:
    """Return the path below a folder ("" is the folder itself), or None; links are resolved if need be."""
    found = _below(path, root)
    return _below(os.path.realpath(path), os.path.realpath(root)) if found is None else found


def _below(path: str, root: str) -> str | None:
    if path == root:
        return ""
    start = root.rstrip("/") + "/"
    return path[len(start) :] if path.startswith(start) else None


def _chosen_root(root: str, entry: str, here: str, *, installed: bool) -> tuple[str, str]:
    """Check KINETIC_PACKAGE_ROOT, and return it with the entry folder."""
    if not os.path.isdir(root):
        raise ProjectRootError(
            f"KINETIC_PACKAGE_ROOT is not a folder: {root}",
            why="it names the folder that is sent with every job",
            next="correct it, or unset it to let kinetic find the folder",
        )
    if below(entry, root) is not None:
        return root, entry
    if installed:
        return root, here if below(here, root) is not None else root
    raise ProjectRootError(
        f"KINETIC_PACKAGE_ROOT does not contain the function: {root}",
        why=f"the function's module is in {entry}",
        next="point it at a folder above the module, or unset it",
    )


def _detect(entry: str, home: str) -> str:
    """Go up out of the packages, then to the first folder with a marker; never to or past home or the top."""
    start = entry
    while os.path.isfile(f"{start}/__init__.py") and not _is_end(os.path.dirname(start), home):
        start = os.path.dirname(start)
    folder = start
    while not _is_end(folder, home):
        if any(os.path.exists(f"{folder}/{marker}") for marker in MARKERS):
            return folder
        folder = os.path.dirname(folder)
    return start


def _is_end(folder: str, home: str) -> bool:
    return folder == os.path.dirname(folder) or folder == home or os.path.realpath(folder) == os.path.realpath(home)


def _too_wide(root: str, home: str) -> str:
    """Return what a folder is, where it holds the home folder, or ""."""
    if below(home, root) is None:
        return ""
    return "the home folder" if below(root, home) == "" else "the whole disk" if root == "/" else "the home folders"


def _refuse_too_wide(root: str, home: str, *, chosen: bool) -> None:
    if what := _too_wide(root, home):
        why = "KINETIC_PACKAGE_ROOT names it" if chosen else f"the code is directly in {root}, not in a project folder"
        raise ProjectRootError(f"{what} would be sent with the job: {root}", why=why, next=_ELSEWHERE)


def _search_path(root: str, here: str, others: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
    """Return the entries of sys.path below root, in order; without environments and what does not exist.

    ``others``: where further folders are in the job, which finders may search instead of ``sys.path``.
    """
    found: dict[str, None] = {}
    real_root = os.path.realpath(root)
    for item in [item for item in (*sys.path, *others) if isinstance(item, str)]:
        path = os.path.normpath(os.path.join(here, item)) if item else here
        relative = others.get(path, _below(path, root))
        if relative is None:
            relative = _below(os.path.realpath(path), real_root)
        if relative is not None and os.path.exists(path) and not _in_environment(root, relative):
            found.setdefault(relative)
    found.setdefault("")  # last, so that it shadows nothing the client found elsewhere
    return tuple(found)


def _hides_installed(root: str, here: str) -> bool:
    """Return whether the root has modules that this process finds among installed ones, which it searches before it."""
    path = [os.path.normpath(os.path.join(here, item)) for item in sys.path if isinstance(item, str)]
    libraries = list(filter(is_installed, path))
    before = path[: path.index(libraries[0])] if libraries else path
    if any(below(folder, root) == "" for folder in before):
        return False
    known = {_module_of(entry) for folder in libraries for entry in _entries_of(folder)}
    own = [(name, f"{root}/{entry}") for entry in _entries_of(root) if (name := _module_of(entry)) in known]
    return any(
        (file.endswith(".py") or os.path.isfile(f"{file}/__init__.py"))
        and getattr(sys.modules.get(name), "__file__", "") not in {file, f"{file}/__init__.py"}  # as pytest imports it
        for name, file in own
    )


def _entries_of(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _module_of(entry: str) -> str:
    """Return the top-level module that a file or folder may be."""
    return entry.partition(".")[0]


def _in_environment(root: str, relative: str) -> bool:
    parts = [part for part in relative.split("/") if part]
    if INSTALLED.intersection(parts):
        return True
    folders = ["/".join([root, *parts[: count + 1]]) for count in range(len(parts))]
    return any(is_environment(folder) for folder in folders)
