"""Recording: what a callable of the user's would submit, for a batch that submits it all together.

``collections.map(lambda x: train.run_async(x, epochs=3), inputs)`` calls the lambda once for each input, and nothing is
submitted: each ``run_async`` is written down instead. The calls then become the inputs of one batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from kinetic.errors import CallableError, OptionError

if TYPE_CHECKING:
    from kinetic._batches.request import Arguments

_SUBMITTING = frozenset({"run_async", "submit"})
_calls: ContextVar[list[Call] | None] = ContextVar("kinetic_recorded_calls", default=None)


class Remote(Protocol):
    """What submits: a RemoteCallable, as far as recording knows it."""

    def is_alike(self, other: Any) -> bool: ...


class Call(NamedTuple):
    """A job that would have been submitted."""

    remote: Remote
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _NotYet:
    """Stands for the handle of a job that its batch is going to submit."""

    def __getattr__(self, name: str) -> NoReturn:
        raise CallableError(
            f"{name} was asked of a job that is not submitted yet",
            why="collections.map submits the jobs of all inputs together, after it has called the function for each",
            next="let the function return what run_async returns, and use the batch: batch.jobs, batch.results()",
        )


def take(remote: Remote, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Write a call down and return what stands for its handle; None where nothing is recorded."""
    calls = _calls.get()
    if calls is None:
        return None
    calls.append(Call(remote, args, kwargs))
    return _NotYet()


def refuse_to_block(name: str) -> None:
    """Refuse a blocking call while calls are recorded: it would run one input after the other.

    Raises:
        CallableError: Calls are being recorded.
    """
    if _calls.get() is not None:
        raise CallableError(
            f"{name} was called and not submitted",
            why="collections.map takes a function that submits one job for each input",
            next=f"write {name}.run_async(…) in it",
        )


def record(function: Callable[..., Any], inputs: Sequence[Any], mode: str) -> tuple[Any, list[Arguments]]:
    """Call a function for each input, and return whose batch that is, and the arguments of each job.

    Args:
        function: Submits one job when it is called.
        inputs: What it is called with.
        mode: How an input becomes its arguments; see ``run_async_map``.

    Raises:
        CallableError: It submits nothing, or more than one job; whatever the function itself raises is let through.
        OptionError: The jobs are of several functions, or have different options.
    """
    from kinetic._batches import request

    if not _may_submit(function):
        raise _undecorated(function)
    found: list[Arguments] = []
    first: Remote | None = None
    for index, item in enumerate(inputs):
        arguments = request.arguments_of(item, mode)
        with _recorded() as calls:
            function(*arguments.args, **arguments.kwargs)
        if len(calls) != 1:
            raise CallableError(
                f"input {index} submits {len(calls) or 'no'} jobs",
                why="a batch has one job for each input",
                next="call run_async exactly once, and return what it returns",
            )
        remote, args, kwargs = calls[0]
        first = first or remote
        if not first.is_alike(remote):
            raise OptionError(
                f"input {index} is for another function, or has other options, than input 0",
                why=f"a batch runs one function with one set of options: {first!r}, {remote!r}",
                next="make one batch for each",
            )
        found.append(request.Arguments(args, kwargs))
    if first is None:
        request.listed(found)  # says that there are no inputs
        raise AssertionError
    return first, found


@contextmanager
def _recorded() -> Iterator[list[Call]]:
    calls: list[Call] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def _may_submit(function: object) -> bool:
    """Say whether a callable names what submits: one that does not would run here, for nothing."""
    while isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "__name__", "") in _SUBMITTING:
        return True
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is not None and bool(_SUBMITTING & _names(code))


def _names(code: Any) -> set[str]:
    nested = (_names(constant) for constant in code.co_consts if hasattr(constant, "co_names"))
    return {*code.co_names, *code.co_freevars}.union(*nested)


def _undecorated(function: object) -> CallableError:
    return CallableError(
        f"{function!r} cannot be run as a batch",
        why="it was not decorated with kinetic.run, and calls no run_async",
        next="put @kinetic.run(...) above it, or pass a function that returns f.run_async(...)",
    )
