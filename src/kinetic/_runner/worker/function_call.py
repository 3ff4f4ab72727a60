"""Calling the user's function: what its end means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
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
        exit_status: With which a process of its own would have ended.
    """

    exception: BaseException
    error: dict[str, Any]
    cause: str = "exception"
    exit_status: int = field(default=1, compare=False)


def call_function(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value | Failure:
    """Call the function and say how it ended.

    ``sys.exit()``, ``sys.exit(0)`` and ``sys.exit(None)`` are success with the value None; any other code is a failure
    that names the code. Exceptions that are not an ``Exception`` (KeyboardInterrupt, …) arrive as a RuntimeError.
    """
    try:
        return Value(function(*args, **kwargs))
    except SystemExit as error:
        if error.code is None or error.code == 0:
            return Value(None, exited=True)
        said = RuntimeError(f"the function called sys.exit({repr_of(error.code)})")
        return replace(_failure(said, error, "exit"), exit_status=_exit_status(error.code))
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises belongs to the user
        return _failure(error, error, "exception")
    except BaseException as error:  # noqa: BLE001 - the same
        return _failure(RuntimeError(f"{type(error).__name__}: {text_of(error)}"), error, "exception")


def describe(error: BaseException, *, skip: int = 0) -> dict[str, Any]:
    """Put an exception into words, whatever its own code does.

    Args:
        error: The exception.
        skip: How many of the outermost frames are ours and not the user's.
    """
    trace = error.__traceback__
    for _ in range(skip):
        trace = trace.tb_next if trace and trace.tb_next else trace
    return {
        "type": _word_of(type(error), "__qualname__"),
        "module": _word_of(type(error), "__module__"),
        "message": text_of(error)[:_MESSAGE_CHARACTERS],
        "traceback": _traceback_of(error, trace)[-_TRACEBACK_CHARACTERS:],
    }


def _traceback_of(error: BaseException, trace: TracebackType | None) -> str:
    try:
        import traceback  # 5 ms; a keeper's start is what a first call waits for

        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as broken:  # noqa: BLE001 - user code: the class, its text, or a module that it patched
        return f"{type(error).__name__}: {text_of(error)}\n<its traceback failed: {type(broken).__name__}>\n"


def text_of(error: BaseException) -> str:
    """Return an exception's text, whatever its ``__str__`` does."""
    try:
        return str(error)
    except BaseException as broken:  # noqa: BLE001 - user code
        return f"<its __str__ raised {type(broken).__name__}>"


def repr_of(value: object) -> str:
    """Return a value's repr, whatever its ``__repr__`` does, cut at 20,000 characters."""
    try:
        return repr(value)[:_REPR_CHARACTERS]
    except BaseException as broken:  # noqa: BLE001 - user code
        return f"<{_word_of(type(value), '__qualname__')} whose repr fails: {type(broken).__name__}>"


def type_name(value: object) -> str:
    """Return module and name of a value's type, whatever its metaclass does."""
    return f"{_word_of(type(value), '__module__')}.{_word_of(type(value), '__qualname__')}"


def _word_of(kind: type, name: str) -> str:
    try:
        return str(getattr(kind, name))
    except BaseException:  # noqa: BLE001 - user code
        return "?"


def failure_of(error: BaseException) -> Failure:
    """Return how Python would end a process that this came out of."""
    if isinstance(error, SystemExit):
        status = _exit_status(error.code) if error.code is not None else 0
        return replace(_failure(error, error, "exit"), exit_status=status)
    return _failure(error, error, "exception")


def _exit_status(code: object) -> int:
    """Return the status with which Python ends after ``sys.exit(code)``."""
    return code & 0xFF if isinstance(code, int) else 1


def _failure(delivered: BaseException, raised: BaseException, cause: str) -> Failure:
    name = getattr(raised, "filename", None)
    if isinstance(raised, OSError) and isinstance(name, str) and name.startswith(_ADDRESSES):
        raised.add_note(_NO_PATH)
    return Failure(delivered, describe(raised, skip=1), cause)
