"""What can be decorated, and the reason where something cannot."""

from __future__ import annotations

import re
from typing import Any

from kinetic.errors import CallableError

_COROUTINE, _GENERATOR, _ASYNC_GENERATOR = 0x80, 0x20, 0x200  # inspect.CO_…; importing inspect costs 8 ms
_NAME = 40


def check(function: object) -> None:
    """Refuse what cannot run as a job.

    Raises:
        CallableError: With the reason and the way out.
    """
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        raise CallableError(
            f"@kinetic.run cannot decorate a {kind}",
            why=f"@{kind} stands below it, so it receives a descriptor and not a function",
            next=f"swap the two lines: @{kind} first, @kinetic.run(...) below it",
        )
    if not callable(function):
        raise CallableError(f"{function!r} cannot run as a job", why=f"a {type(function).__qualname__} is not callable")
    if hasattr(function, "cache_clear") and hasattr(function, "cache_info"):
        raise CallableError(
            "@kinetic.run cannot decorate a cached function",
            why="its cache lives in this process, and the job has another",
            next="put the cache above: @functools.cache first, @kinetic.run(...) below it",
        )
    _check_kind(function)


def name_of(function: object) -> str:
    """Return a name for humans and ids: of a partial, the innermost function's; of an instance, its class's."""
    while not hasattr(function, "__name__") and hasattr(function, "func"):
        function = function.func
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        name = type(function).__name__
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")[:_NAME] or "job"


def _check_kind(function: Any) -> None:
    flags = _flags(function)
    kind = {_COROUTINE: "a coroutine function (async def)", _GENERATOR: "a generator function (it yields)"}
    found = next((words for flag, words in kind.items() if flags & flag), None)
    if flags & _ASYNC_GENERATOR:
        found = "an asynchronous generator function"
    if found:
        raise CallableError(
            f"{name_of(function)} is {found} and cannot run as a job",
            why="a job returns one value, and this returns an object that lives only where it was made",
            next="decorate a plain function that calls asyncio.run(...) or list(...) on it, and return what that gives",
        )


def _flags(function: Any) -> int:
    for _ in range(100):  # partials of partials, bound methods, decorated functions
        inner = getattr(function, "func", None) or getattr(function, "__func__", None)
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        code = getattr(type(function).__call__, "__code__", None)
    return int(getattr(code, "co_flags", 0))
