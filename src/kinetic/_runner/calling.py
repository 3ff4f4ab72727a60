"""Calling the user's function: what its end means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_REPR_CHARACTERS = 20_000
_MESSAGE_CHARACTERS = 4_000
_TRACEBACK_CHARACTERS = 200_000
_ADDRESSES = ("gs:/", "s3:/")  # also with one slash, which is what pathlib leaves of two
_NO_PATH = (
    "kinetic: this is an address in a bucket, as the output and checkpoint folders of a job on a cluster are. open() "
    "and pathlib do not understand it; write through something that knows buckets (docs/clusters.md, Files of a job)"
)


@dataclass(frozen=True)
class Value:
    """The function returned.

    Attributes:
        value: What it returned.
        exited: True when it called ``sys.exit()`` instead, as a handler of SIGTERM may.
    """

    value: Any
    exited: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Failure:
    """The function raised.

    Attributes:
        exception: What is delivered to the caller.
        error: The same in words, for whoever cannot open the exception.
        cause: "exception" or "exit".
    """

    exception: BaseException
    error: dict[str, Any]
    cause: str = "exception"


def call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value | Failure:
    """Call the function and say how it ended.

    ``sys.exit()``, ``sys.exit(0)`` and ``sys.exit(None)`` are success with the value None; any other code is a failure
    that names the code. Exceptions that are not an ``Exception`` (KeyboardInterrupt, …) arrive as a RuntimeError.
    """
    try:
        return Value(function(*args, **kwargs))
    except SystemExit as error:
        if error.code is None or error.code == 0:
            return Value(None, exited=True)
        return _failure(RuntimeError(f"the function called sys.exit({error.code!r})"), error, "exit")
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises belongs to the user
        return _failure(error, error, "exception")
    except BaseException as error:  # noqa: BLE001 - the same
        return _failure(RuntimeError(f"{type(error).__name__}: {text_of(error)}"), error, "exception")


def describe(error: BaseException, *, skip: int = 0) -> dict[str, Any]:
    """Put an exception into words.

    Args:
        error: The exception.
        skip: How many of the outermost frames are ours and not the user's.
    """
    import traceback  # 5 ms; a keeper's start is what a first call waits for

    trace = error.__traceback__
    for _ in range(skip):
        trace = trace.tb_next if trace and trace.tb_next else trace
    lines = traceback.format_exception(type(error), error, trace)
    return {
        "type": type(error).__qualname__,
        "module": type(error).__module__,
        "message": text_of(error)[:_MESSAGE_CHARACTERS],
        "traceback": "".join(lines)[-_TRACEBACK_CHARACTERS:],
    }


def text_of(error: BaseException) -> str:
    """Return an exception's text, whatever its ``__str__`` does."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - user code
        return f"<its text cannot be had: {type(broken).__name__}>"


def repr_of(value: object) -> str:
    """Return a value's repr, whatever its ``__repr__`` does, cut at 20,000 characters."""
    try:
        return repr(value)[:_REPR_CHARACTERS]
    except Exception as broken:  # noqa: BLE001 - user code
        return f"<{type(value).__qualname__} whose repr fails: {type(broken).__name__}>"


def _failure(delivered: BaseException, raised: BaseException, cause: str) -> Failure:
    name = getattr(raised, "filename", None)
    if isinstance(raised, OSError) and isinstance(name, str) and name.startswith(_ADDRESSES):
        raised.add_note(_NO_PATH)
    return Failure(delivered, describe(raised, skip=1), cause)
