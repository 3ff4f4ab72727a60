"""What ``collections.map`` takes besides a decorated function: one that submits a job for each input.

``collections.map(lambda x: train.run_async(x, epochs=3), inputs)`` calls the lambda once for each input, and submits
nothing: each ``run_async`` is *recorded* instead. The calls then become the inputs of one batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kinetic._remote.callable import Call, RemoteCallable, recorded
from kinetic.errors import CallableError, OptionError

if TYPE_CHECKING:
    from kinetic._batches.submission import Arguments

_SUBMITTING = frozenset({"run_async", "submit"})


def record_inputs(function: Callable[..., Any], inputs: Sequence[Any], mode: str) -> tuple[Any, list[Arguments]]:
    """Call a function for each input; return the decorated function it submits, and the arguments of each job."""
    from kinetic._batches import submission  # this room goes into pods, and that one does not

    if not _may_submit(function):
        raise CallableError(
            f"{function!r} cannot be run as a batch",
            why="it was not decorated with kinetic.run, and calls no run_async",
            next="put @kinetic.run(...) above it, or pass a function that returns f.run_async(...)",
        )
    found: list[Arguments] = []
    first: RemoteCallable[..., Any] | None = None
    for index, item in enumerate(inputs):
        arguments = submission.arguments_of(item, mode)
        with _recording() as calls:
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
        found.append(submission.Arguments(args, kwargs))
    if first is None:
        submission.input_list(found)  # raises: there are no inputs
        raise AssertionError
    return first, found


@contextmanager
def _recording() -> Iterator[list[Call]]:
    calls: list[Call] = []
    token = recorded.set(calls)
    try:
        yield calls
    finally:
        recorded.reset(token)


def _may_submit(function: object) -> bool:
    """Return whether a callable names a method that submits: one that does not would run here, for nothing."""
    while isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "__name__", "") in _SUBMITTING:
        return True
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is not None and bool(_SUBMITTING & _names(code))


def _names(code: Any) -> set[str]:
    nested = (_names(constant) for constant in code.co_consts if hasattr(constant, "co_names"))
    return {*code.co_names, *code.co_freevars}.union(*nested)
