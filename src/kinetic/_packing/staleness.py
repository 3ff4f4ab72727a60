"""Which imported modules were edited since: their source ships, and the job would run other code than this process.

Only a module whose file is newer than this process is looked at; its source is compiled and its functions are compared
with the live ones. Comments, layout and line numbers do not count: an edit counts when it can be felt.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import time
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from kinetic._wire import references


def is_stale(module: ModuleType, since: float) -> bool:
    """Say whether a module's source is no longer what was imported.

    Args:
        module: An imported module.
        since: A file that did not change after this time (seconds since the epoch) is not looked at.
    """
    file = getattr(module, "__file__", None) or ""
    try:
        if not file.endswith(".py") or os.stat(file).st_mtime < since:
            return False
        with open(file, "rb") as source:
            text = source.read()
        page = ast.parse(text, file)
        code = compile(page, file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):  # gone or broken: certainly not what was imported
        return True
    return _functions_differ(module, code) or _constants_differ(module, page)


def _functions_differ(module: ModuleType, code: CodeType) -> bool:
    written: dict[str, list[tuple[object, ...]]] = {}
    for inner in _inner(code):
        written.setdefault(inner.co_qualname, []).append(_essence(inner))
    return any(
        _essence(function.__code__) not in written.get(function.__code__.co_qualname, [])
        for function in _live_functions(module)
    )


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


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _live_functions(module: ModuleType) -> Iterator[FunctionType]:
    """Go through the functions that a module's own file defines: at its top and in its classes."""
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
    """Look under decorators, without running code of the user's."""
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
    """Return what a function does, without where it stands."""
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
