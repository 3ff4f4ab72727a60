"""From ``FILE.py::func`` to the function: the file is imported under its real name, as its own project would."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from kinetic._remote.callable import RemoteCallable
from kinetic.errors import KineticError, OptionError

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MANY = 10  # functions named in one message


class Target(NamedTuple):
    """A function in a file.

    Attributes:
        written: As it can be typed again, e.g. "train.py::train".
        function: What was found: decorated or not.
    """

    written: str
    function: Any


def find(written: str, words: Sequence[str]) -> Target:
    """Import a file and return the function that is meant.

    Args:
        written: ``FILE.py::func``, or ``FILE.py`` when exactly one function in it is decorated.
        words: What the file shall find in ``sys.argv`` behind its own name.

    Raises:
        OptionError: There is no such file or function, or several are decorated.
        KineticError: The file cannot be imported; the note holds the user's part of the traceback.
    """
    place, _, name = written.partition("::")
    file = Path(place)
    _check_file(file, name)
    module = _load(file, words)
    if not name:
        return _only_one(module, place)
    return Target(written, _attribute(module, name, place))


def _check_file(file: Path, name: str) -> None:
    if file.is_file() and file.suffix == ".py":
        return
    alone, colon, rest = str(file).rpartition(":")
    if colon and not name and Path(alone).is_file():
        raise OptionError(
            f"{file} is not a file", why="the function follows two colons", next=f"kinetic run {alone}::{rest}"
        )
    if file.exists():
        raise OptionError(f"{file} is not a Python file", why="its name does not end in .py")
    beside = (
        [str(file.parent / other.name) for other in sorted(file.parent.glob("*.py"))] if file.parent.is_dir() else []
    )
    near = get_close_matches(str(file), beside, 1)
    raise OptionError(
        f"there is no file {file}",
        why=f"looked in {file.parent.absolute()}",
        next=f"kinetic run {near[0]}{'::' if name else ''}{name}" if near else "pass a file, such as train.py::train",
    )


def _load(file: Path, words: Sequence[str]) -> ModuleType:
    """Import a file with ``sys.path`` and ``sys.argv`` as ``python FILE.py`` would have them."""
    import kinetic._jobs.submit  # noqa: F401 - ours first: the folder may hold a file named like a standard module

    real = os.path.realpath(file)
    name, base = _name_of(real)
    _stand_in(os.path.dirname(real), base)
    sys.argv = [str(file), *words]
    sys.modules["__main__"].__dict__.pop("__file__", None)  # the kinetic command is no script of the job's
    try:
        return importlib.import_module(name) if _is_found_as(name, real) else _load_by_itself(name, real)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's file may raise anything, SystemExit too
        raise _told(error, file, real) from None


def _name_of(file: str) -> tuple[str, str]:
    """Return the name under which a project imports a file, and the folder that must be on ``sys.path`` for it."""
    base, parts = os.path.dirname(file), [Path(file).stem]
    while os.path.isfile(f"{base}/__init__.py") and base != os.path.dirname(base):
        parts.insert(0, os.path.basename(base))
        base = os.path.dirname(base)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts), base


def _is_found_as(name: str, file: str) -> bool:
    """Say whether Python would import this file under this name; packages above it are imported on the way."""
    if name == "__main__" or "." in Path(file).stem:
        return False
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == file


def _stand_in(folder: str, base: str) -> None:
    """Put the file's folder first, in the place of what Python put there for the ``kinetic`` command."""
    command = getattr(sys.modules["__main__"], "__file__", None)
    put_there = {os.getcwd(), os.path.dirname(os.path.realpath(command)) if command else os.getcwd()}
    if sys.path and not sys.flags.safe_path and os.path.abspath(sys.path[0]) in put_there:
        del sys.path[0]
    sys.path[:0] = dict.fromkeys((folder, base))


def _load_by_itself(name: str, file: str) -> ModuleType:
    """Load a file whose name already means another module, e.g. ``json.py``; what it defines travels by value."""
    own = "kinetic_run_" + "".join(letter if letter.isalnum() else "_" for letter in name)
    spec = importlib.util.spec_from_file_location(own, file)
    assert spec is not None  # noqa: S101 - it ends in .py
    assert spec.loader is not None  # noqa: S101 - as above
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, name: str, place: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    if found is not None:
        raise OptionError(f"{name} in {place} cannot be called", why=f"it is a {type(found).__qualname__}")
    known = [*_decorated(module), *_plain(module)]
    near = get_close_matches(name, known, 1)
    raise OptionError(
        f"there is no function {name!r} in {place}",
        why=f"it has {_listed(known)}",
        next=f"kinetic run {place}::{near[0]}" if near else f"kinetic run {place}::{known[0]}" if known else None,
    )


def _only_one(module: ModuleType, place: str) -> Target:
    decorated = _decorated(module)
    if len(decorated) == 1:
        return Target(f"{place}::{decorated[0]}", getattr(module, decorated[0]))
    known = decorated or _plain(module)
    raise OptionError(
        f"{place} has more than one candidate function",
        why=f"{len(decorated) or 'none'} of its functions {'are' if decorated else 'is'} decorated: {_listed(known)}",
        next=f"kinetic run {place}::{known[0]}" if known else f"define a function in {place}",
    )


def _decorated(module: ModuleType) -> list[str]:
    """Name the functions of a module that ``kinetic.run`` decorates, each once, in its order."""
    found = {
        id(value): name
        for name, value in reversed(list(vars(module).items()))
        if isinstance(value, RemoteCallable) and value.__module__ == module.__name__
    }
    return list(found.values())[::-1]


def _plain(module: ModuleType) -> list[str]:
    """Name the public functions that a module itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return ", ".join(names[:_MANY]) + more if names else "no functions"


def _told(error: BaseException, file: Path, real: str) -> KineticError:
    """Return what stands for an error of the user's file, with the user's part of the traceback as its note."""
    page = traceback.TracebackException.from_exception(error)
    _trim(page)
    if isinstance(
        error, KineticError
    ):  # of a decorator, for example: its three parts say all; --debug shows the frames
        return error
    told = _in_words(error, file, page, real)
    told.add_note("".join(page.format()))
    return told


def _in_words(error: BaseException, file: Path, page: traceback.TracebackException, real: str) -> KineticError:
    last = page.stack[-1] if page.stack else None
    why = f"line {last.lineno} of {_short(last.filename, real, file)}: {last.line}" if last else None
    if isinstance(error, SystemExit):
        what, way = (
            f"{file} ended the program while it was imported: exit({error.code!r})",
            ('put what runs the script below: if __name__ == "__main__":'),
        )
    elif isinstance(error, ModuleNotFoundError) and error.name:
        what, way = (
            f"{file} cannot be imported: there is no module {error.name}",
            (f"install it: {sys.executable} -m pip install {error.name.partition('.')[0]}"),
        )
    else:
        (text, *_), kind = str(error).splitlines() or [""], type(error).__name__
        what, way = (
            f"{file} cannot be imported: {kind}: {text}".removesuffix(": "),
            f"correct the file; to see it alone: python {file}",
        )
    return KineticError(what, why=why, next=way, code="import-failed")


def _short(name: str, real: str, file: Path) -> str:
    return str(file) if os.path.realpath(name) == real else name


def _trim(page: traceback.TracebackException) -> None:
    """Keep the frames of the user's code and of what it calls: neither the importer's nor ours."""
    theirs = [frame for frame in page.stack if not _is_machinery(frame.filename)]
    page.stack = traceback.StackSummary.from_list(theirs)
    for inner in (page.__cause__, page.__context__, *(getattr(page, "exceptions", None) or ())):
        if inner is not None:
            _trim(inner)


def _is_machinery(file: str) -> bool:
    machinery = file.startswith("<frozen ") or os.path.dirname(file) == os.path.dirname(importlib.__file__)
    return machinery or file.startswith(_OURS + os.sep)
