"""``kinetic run FILE.py::func``: import the file as its own project would, and find the function in it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import shutil
import sys
import traceback
import types
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from kinetic._cli import error_output
from kinetic._output.format import names_text
from kinetic._remote.callable import RemoteCallable
from kinetic._wire import NamedTuple
from kinetic.errors import KineticError, OptionError

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MANY = 10  # functions named in one message


class Target(NamedTuple):
    """A function in a file, decorated or not, and how it can be typed again: "train.py::train"."""

    written: str
    function: Any


def find_function(written: str, words: Sequence[str]) -> Target:
    """Import a file and return the function; `words` is what the file finds in ``sys.argv`` after its own name."""
    place, _, name = written.partition("::")
    file = Path(place)
    check_file(file, name, words)
    module = _load(file, words)
    if not name:
        return _only_one(module, place)
    return Target(written, _attribute(module, name, place))


def check_file(file: Path, name: str, words: Sequence[str], *, command: str = "kinetic run") -> None:
    """Refuse what is not a Python file; `command` is what was typed before it."""
    if file.is_file() and file.suffix == ".py":
        return
    alone, colon, rest = str(file).rpartition(":")
    if colon and not name and Path(alone).is_file():
        next_ = f"{command} {alone}::{rest}"
        raise OptionError(f"{file} is not a file", why="the function follows two colons", next=next_)
    if file.exists():
        is_program = file.is_file() and os.access(file, os.X_OK)
        program = [os.path.join(".", file)] if is_program else ["python" if file.is_dir() else "sh", str(file)]
        next_ = f"as a command: kinetic run -- {shlex.join([*program, *words])}"
        why = "its name does not end in .py"
        raise OptionError(f"{file} is not a Python file", why=why, next=None if name else next_)
    if not name and shutil.which(str(file)):
        typed = shlex.join([str(file), *words])
        raise OptionError(f"there is no file {file}", why="it is a program", next=f"kinetic run -- {typed}")
    others = sorted(file.parent.glob("*.py")) if file.parent.is_dir() else []
    near = get_close_matches(str(file), [str(file.parent / other.name) for other in others], 1)
    raise OptionError(
        f"there is no file {file}",
        why=f"looked in {file.parent.absolute()}",
        next=f"{command} {near[0]}{'::' if name else ''}{name}"
        if near
        else "correct the path; a function is named as in train.py::train",
    )


def _load(file: Path, words: Sequence[str]) -> types.ModuleType:
    """Import a file with ``sys.path`` and ``sys.argv`` as ``python FILE.py`` would have them."""
    import kinetic._jobs.submit  # noqa: F401 - ours first: the folder may hold a file named like a standard module
    from kinetic._cli import main

    main.freeze_own_objects()
    real = os.path.realpath(file)
    name, base = _module_name(real)
    _set_first_path(os.path.dirname(real), base)
    sys.argv = [str(file), *words]
    sys.modules["__main__"].__dict__.pop("__file__", None)  # the kinetic command is no script of the job's
    try:
        if _is_importable_as(name, real):
            return importlib.import_module(name)
        # The name already means another module, e.g. json.py; what the file defines is pickled by value.
        own = "kinetic_run_" + "".join(letter if letter.isalnum() else "_" for letter in name)
        spec = importlib.util.spec_from_file_location(own, real)
        assert spec is not None  # noqa: S101 - it ends in .py
        assert spec.loader is not None  # noqa: S101 - as above
        module = sys.modules[own] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's file may raise anything, SystemExit too
        raise _import_error(error, file, real) from None
    return module


def _module_name(file: str) -> tuple[str, str]:
    """Return the name under which a project imports a file, and the folder that must be on ``sys.path`` for it."""
    base, parts = os.path.dirname(file), [Path(file).stem]
    while os.path.isfile(f"{base}/__init__.py") and base != os.path.dirname(base):
        parts.insert(0, os.path.basename(base))
        base = os.path.dirname(base)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts), base


def _is_importable_as(name: str, file: str) -> bool:
    """Return whether Python would import this file under this name; packages above it are imported for that."""
    if name == "__main__" or "." in Path(file).stem:
        return False
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == file


def _set_first_path(folder: str, base: str) -> None:
    """Put the file's folder first in sys.path, in place of what Python put there for the ``kinetic`` command."""
    command = getattr(sys.modules["__main__"], "__file__", None)
    put_there = {os.getcwd(), os.path.dirname(os.path.realpath(command)) if command else os.getcwd()}
    if sys.path and not sys.flags.safe_path and os.path.abspath(sys.path[0]) in put_there:
        del sys.path[0]
    sys.path[:0] = dict.fromkeys((folder, base))


def _attribute(module: types.ModuleType, name: str, place: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    if found is not None:
        raise OptionError(
            f"{name} in {place} cannot be called",
            why=f"it is of type {type(found).__qualname__}",
            next=f"name a function: {program()} {place}::FUNCTION",
        )
    known = [*_decorated(module), *_plain(module)]
    near = get_close_matches(name, known, 1)
    raise OptionError(
        f"there is no function {name!r} in {place}",
        why=f"it has {names_text(known, _MANY) or 'no functions'}",
        next=f"{program()} {place}::{(near or known)[0]}" if known else f"define a function in {place}",
    )


def _only_one(module: types.ModuleType, place: str) -> Target:
    decorated = _decorated(module)
    if len(decorated) == 1:
        return Target(f"{place}::{decorated[0]}", getattr(module, decorated[0]))
    known = decorated or _plain(module)
    why = f"{len(decorated)} of its functions are decorated: " if decorated else "it has "
    next_ = f"{program()} {place}::{known[0]}" if known else f"define a function in {place}"
    raise OptionError(
        f"{place} has {'more than one candidate' if decorated else 'no decorated'} function",
        why=why + (names_text(known, _MANY) or "no functions"),
        next=next_ if decorated else f"{next_}     or, as a command: kinetic run -- python {shlex.quote(place)}",
    )


def _decorated(module: types.ModuleType) -> list[str]:
    """Return the names of the functions that ``kinetic.run`` decorates, each once, in order."""
    found = {
        id(value): name
        for name, value in reversed(list(vars(module).items()))
        if isinstance(value, RemoteCallable) and value.__module__ == module.__name__
    }
    return list(found.values())[::-1]


def _plain(module: types.ModuleType) -> list[str]:
    """Return the names of the public functions that a module itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def _import_error(error: BaseException, file: Path, real: str) -> KineticError:
    """Return an error for an error of the user's file, with the user's part of the traceback as its note."""
    if isinstance(error, KineticError):  # of a decorator, for example: its parts say all; --debug shows the frames
        return error
    page = traceback.TracebackException.from_exception(error)
    _trim(page)
    last, why = (page.stack[-1] if page.stack else None), None
    if last is not None:
        name = str(file) if os.path.realpath(last.filename) == real else last.filename
        why = f"line {last.lineno} of {name}: {last.line}"
    if isinstance(error, SystemExit):
        what = f"{file} ended the program while it was imported: exit({error.code!r})"
        next_ = 'put what runs the script below: if __name__ == "__main__":'
        next_ += f"     or, as a command: kinetic run -- python {shlex.quote(str(file))}"
    elif isinstance(error, ModuleNotFoundError) and error.name:
        what = f"{file} cannot be imported: there is no module {error.name}"
        package = error.name.partition(".")[0]
        next_ = f"if it is yours, correct its name or folder; else: {_installer(sys.prefix)} {package}"
        if other := other_environment(os.path.dirname(real)):
            what += f" in the environment of this kinetic, {sys.prefix}"
            next_ = f"the project has another one: {with_kinetic_of(other)}"
    else:
        first, *_ = str(error).splitlines() or [""]
        what = f"{file} cannot be imported: {type(error).__name__}: {first}".removesuffix(": ")
        next_ = f"correct the file; to see it alone: python {file}"
    found = KineticError(what, why=why, next=next_, code="import-failed")
    found.add_note("".join(page.format()))
    return found


def other_environment(folder: str) -> str:
    """Return the environment that is active, or else the project's ``.venv``, where it is not that of this kinetic.

    As with a kinetic that ``pipx`` or ``uv tool`` has installed for itself.
    """
    own, variables = os.path.realpath(sys.prefix), [os.environ.get(each) for each in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    if own in (os.path.realpath(each) for each in variables if each):
        return ""
    above = [folder, *map(str, Path(folder).parents)]
    found = [variables[0]] if variables[0] else [f"{each}/.venv" for each in above if each != str(Path.home())]
    other = next((each for each in found if os.path.exists(f"{each}/bin/python")), "")
    return "" if os.path.realpath(other) == own else other


def with_kinetic_of(environment: str) -> str:
    """Return what is typed to use the kinetic of an environment, or to install it there."""
    context = click.get_current_context()
    words = [context.info_name or "", "…"] if context.info_name == "dev" else context.meta[error_output.WORDS]
    typed = shlex.join([f"{environment}/bin/kinetic", *words]).replace("'…'", "…")
    has_it = os.path.exists(f"{environment}/bin/kinetic")
    return typed if has_it else f"{_installer(environment)} kinetic-jobs     then: {typed}"


def _installer(environment: str) -> str:
    """Return the command that installs packages into an environment; those of uv have no pip."""
    is_own = environment == sys.prefix
    has_pip = importlib.util.find_spec("pip") if is_own else [*Path(environment).glob("lib/python*/site-packages/pip")]
    python = shlex.quote(sys.executable if is_own else f"{environment}/bin/python")
    return f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"


def _trim(page: traceback.TracebackException) -> None:
    """Keep the frames of the user's code and of what it calls, without the importer's and ours."""
    theirs = [frame for frame in page.stack if not _is_machinery(frame.filename)]
    page.stack = traceback.StackSummary.from_list(theirs)
    for inner in _pages_in(page):
        _trim(inner)


def files_of(error: BaseException | None) -> Iterator[str]:
    """Yield the files of the user's code, and of what it calls, in which an error and those before it were raised."""
    pages = [traceback.TracebackException.from_exception(error, lookup_lines=False)] if error is not None else []
    while pages:  # each error has one page, also one that was raised from itself
        page = pages.pop()
        named = [getattr(page, "filename", None), *(frame.filename for frame in page.stack)]  # the first of bad syntax
        yield from (file for file in named if file is not None and not _is_machinery(file))
        pages += _pages_in(page)


def _pages_in(page: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield what led to an error, and what it groups."""
    yield from filter(None, (page.__cause__, page.__context__, *(getattr(page, "exceptions", None) or ())))


def _is_machinery(file: str) -> bool:
    machinery = file.startswith("<frozen ") or os.path.dirname(file) == os.path.dirname(importlib.__file__)
    return machinery or file.startswith(_OURS + os.sep)


def program() -> str:
    """Return what was typed before the function: kinetic run, or kinetic dev."""
    context = click.get_current_context(silent=True)
    return "kinetic dev" if context is not None and context.info_name == "dev" else "kinetic run"
