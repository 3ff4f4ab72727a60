"""Packages that a function imports here, and that the environment of its job will not have.

A job that lacks one fails when its machine has started, which on a cluster can take minutes. What is imported is found
without running anything; what is not certain is left out, such as an import inside ``try``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType

from kinetic._project import modules, root
from kinetic._project.dependencies import Dependencies, name_of
from kinetic._project.requirements import normalised, parsed
from kinetic._project.root import Plan
from kinetic._wire import references

_NEED = r"^Requires-Dist:\s*([\w.-]+)\s*(?:\[([^\]]*)\])?([^\n]*)$"  # name, extras, version and marker
_FOR_AN_EXTRA = r"""extra\s*==\s*["']([\w.-]+)["']"""
_asked: set[tuple[object, tuple[str, ...]]] = set()  # what this process has looked at
_OURS = frozenset({"kinetic", "cloudpickle"})  # every job has them


def warning(function: object, plan: Plan, found: Dependencies) -> tuple[str, str, str] | None:
    """Return what to tell where a function imports packages that its dependencies, with all that they need, lack.

    That is what is wrong, why, and what to do; None if nothing is known to be missing.
    """
    asked = plan.source or getattr(root.innermost(function), "__code__", None), found.lines
    if found.brought is None or asked in _asked:
        return None
    _asked.add(asked)
    imports: dict[str, str] = {}
    with contextlib.suppress(Exception):  # objects of strangers raise anything when they are looked at
        imports |= _Imports(plan).of_script(plan.source) if plan.source else _Imports(plan).of(function)
    named = [parsed(line) for line in found.lines if not line.startswith("-")]
    for requirement in named:
        if requirement is None:  # an address, and nothing tells what it brings
            return None
        imports.pop(requirement.name.replace("-", "_"), None)  # most packages are imported by their names
    if not imports:
        return None
    here = _Installed()
    known = {*found.brought, *map(name_of, found.projects)}
    roots = [(each.name, each.extras) for each in named if each is not None and normalised(each.name) not in known]
    brought = here.all_of([*roots, *((name, ()) for name in known)], known if found.kind != "lock" else None)
    missing = {name: by for name, by in imports.items() if brought is not None and not here.has(brought, name)}
    packages = sorted(filter(None, (here.package_of(name) for name in missing)))
    if not packages:
        return None
    listed = ", ".join(f"{name} (imported by {by})" for name, by in sorted(missing.items()))
    what = f"the environment of the job will lack what is installed here: {listed}"
    installed = {normalised(each.partition("-")[0]) for each in modules.own_distributions(plan)}
    if own := [each for each in packages if each in installed]:
        return (
            what,
            f"{' '.join(own)} is this project's own, and its compiled files are not in the project",
            "install it as editable (pip install -e .), which leaves all of it in the project",
        )
    names, file = " ".join(packages), found.source or plan.root / "requirements.txt"
    add = f"add {names} to {file}"
    if found.kind == "lock":
        of_script = f"--script {file.with_suffix('')} " if file.stem.endswith(".py") else ""
        add = f"uv add {of_script}{names}"
    if plan.sends_nothing:
        add = f"start it in a folder with a requirements.txt that names {names}"
    return (
        what,
        f"{found.source} does not bring {names}" if found.source else "the project has no file that names dependencies",
        add,
    )


class _Imports:
    """What a function imports, and the modules of the project that its job imports for it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._found: dict[str, str] = {}
        self._seen: set[int] = set()

    def of(self, function: object) -> Mapping[str, str]:
        """Return the installed modules that are imported, by their first names, and who imports each."""
        waiting = [function]
        while waiting:
            thing = root.innermost(waiting.pop())
            if id(thing) in self._seen:
                continue
            self._seen.add(id(thing))
            if isinstance(thing, ModuleType):
                waiting += self._of_module(thing)
            elif isinstance(thing, FunctionType | type):
                kind = self._kind(thing.__module__)
                if kind in {"ships", "installed"}:
                    waiting.append(sys.modules[thing.__module__])
                if kind in {"ships", "by-value"}:
                    waiting += self._of_code(thing) if isinstance(thing, FunctionType) else vars(thing).values()
        return self._found

    def of_script(self, file: str) -> Mapping[str, str]:
        """Return the same of a script that a command runs, without what modules of the project import for it."""
        with contextlib.suppress(OSError, SyntaxError, ValueError), open(file, "rb") as page:
            code = compile(page.read(), file, "exec", dont_inherit=True)
            for each in (code, *modules.inner_code(code)):
                for name in _imported(each):
                    self._note(name, os.path.basename(file))
        return self._found

    def _of_module(self, module: ModuleType) -> Iterator[object]:
        """Note what a module imports at its top level; yield the modules of the project among it."""
        kind = self._kind(module.__name__)
        if kind == "installed":
            self._note(module.__name__, "the function")
        if kind != "ships":
            return
        with contextlib.suppress(Exception):  # a stranger's loader
            code = module.__spec__.loader.get_code(module.__name__)  # type: ignore[union-attr]
            for name in _imported(code):
                if name in sys.modules:  # what was not imported here is not needed there
                    self._note(name, module.__name__)
                    yield sys.modules[name]
        for value in list(vars(module).values()):
            above = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(above, str) and self._kind(above) == "ships":
                yield sys.modules[above]

    def _of_code(self, function: FunctionType) -> Iterator[object]:
        """Note what a function imports itself; yield the globals that it uses."""
        for code in (function.__code__, *modules.inner_code(function.__code__)):
            for name in _imported(code):
                self._note(name, function.__qualname__)
            used = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
            for value in map(modules.imported, used):
                if isinstance(value, ModuleType) and self._kind(value.__name__) == "installed":
                    self._note(value.__name__, function.__qualname__)
                if type(value) is references.LAZY_IMPORT:
                    self._note(modules.first_of(value), function.__qualname__)
                yield value

    def _kind(self, name: str) -> str:
        module = sys.modules.get(name)
        return modules.classify(module, self._plan).kind if isinstance(module, ModuleType) else ""

    def _note(self, name: str, by: str) -> None:
        first = name.partition(".")[0]
        if first in sys.stdlib_module_names or first in _OURS or first in self._found:
            return
        with contextlib.suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(first)
            places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
            is_sent = modules.classifier(self._plan).holds(first) and not any(map(modules.is_compiled, places))
            if not is_sent and any(root.is_installed(place) for place in places):
                self._found[first] = by


def _imported(code: CodeType) -> Iterator[str]:
    """Yield the modules that some code imports by their full names, outside of ``try`` and ``with``."""
    import dis  # cloudpickle loads it anyway

    listed = dis.Bytecode(code)
    guarded = [(each.start, each.end) for each in getattr(listed, "exception_entries", ())]
    before: list[object] = [0, None]  # arguments of the two instructions before: the level, and what is taken
    for step in listed:
        if step.opname == "IMPORT_NAME":
            is_certain = not any(start <= step.offset < end for start, end in guarded)
            if is_certain and before[0] == 0:
                yield str(step.argval)
        if step.opname not in {"CACHE", "EXTENDED_ARG"}:
            before = [before[1], step.argval]


class _Installed:
    """The packages that this Python finds; ``importlib.metadata`` would take some ten milliseconds for each."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        for folder in modules.package_folders():
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    if name.endswith(".dist-info"):
                        self._folders.setdefault(normalised(name.partition("-")[0]), f"{folder}/{name}")

    def all_of(self, named: Iterable[tuple[str, Iterable[str]]], known: Collection[str] | None) -> set[str] | None:
        """Return these packages, given with their extras, and all that they need; None if one is not installed here.

        That does not matter for those that are ``known`` to be complete, or for all where that is None, as of a lock.
        """
        waiting = [(normalised(name), frozenset(map(normalised, extras))) for name, extras in named]
        seen: set[tuple[str, frozenset[str]]] = set()
        while waiting:
            name, extras = waiting.pop()
            if (name, extras) in seen:
                continue
            seen.add((name, extras))
            if name not in self._folders:
                if known is not None and name not in known:
                    return None
                continue
            fields = self._read(name, "METADATA").partition("\n\n")[0]  # and a description below
            for need, inner, marker in re.findall(_NEED, fields, re.MULTILINE):
                extra = re.search(_FOR_AN_EXTRA, marker)
                if extra is None or normalised(extra[1]) in extras:
                    wanted = (normalised(each.strip()) for each in inner.split(",") if each.strip())
                    waiting.append((normalised(need), frozenset(wanted)))
        return {name for name, _ in seen}

    def has(self, packages: Iterable[str], module: str) -> bool:
        """Return whether one of these packages brings a module."""
        return any(normalised(module) == name or self._brings(name, module) for name in packages)

    def package_of(self, module: str) -> str:
        """Return the package that brings a module, or ""."""
        return next((name for name in self._folders if self._brings(name, module)), "")

    def _brings(self, package: str, module: str) -> bool:
        if module in self._read(package, "top_level.txt").split():
            return True
        files = "\n" + self._read(package, "RECORD")
        return any(f"\n{module}{end}" in files for end in ("/", ".py,", ".cpython", ".abi3"))

    def _read(self, package: str, file: str) -> str:
        with contextlib.suppress(OSError, KeyError):
            path = f"{self._folders[package]}/{file}"
            with open(path, encoding="utf-8", errors="replace") as page:  # an old one may be in another encoding
                return page.read()
        return ""
