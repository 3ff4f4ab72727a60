"""Asking for a batch: what run_async_map was given, checked before anything is packed."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic import _output as output
from kinetic._config.options import UNSET
from kinetic._wire.records import Settings
from kinetic.errors import CallableError, OptionError, OptionTypeError

if TYPE_CHECKING:
    from kinetic._jobs.options import Options


MODES = ("auto", "single", "args", "kwargs")
_SHOWN = 80  # characters of an input in tables and errors


class Arguments(NamedTuple):
    """The arguments of one child's call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def listed(inputs: Iterable[Any]) -> list[Any]:
    """Return all inputs as a list.

    Raises:
        OptionError: There is none (also a ValueError).
        OptionTypeError: They cannot be gone through (also a TypeError).
    """
    try:
        found = list(inputs)
    except TypeError as error:
        raise OptionTypeError(
            f"inputs={inputs!r} is not a collection of inputs", why=str(error), next="run_async_map([0.1, 0.01])"
        ) from None
    if not found:
        raise OptionError("there are no inputs", why="a batch has at least one", next="run_async_map([0.1, 0.01])")
    return found


def check_mode(mode: object) -> None:
    """Refuse an input mode that is none.

    Raises:
        OptionError: It names those that are.
    """
    if mode not in MODES:
        raise OptionError(
            f"input_mode={mode!r} is not known", why=f"modes are {', '.join(MODES)}", next='input_mode="auto"'
        )


def arguments_of(item: Any, mode: str) -> Arguments:
    """Say how the function is called with one input.

    Args:
        item: The input.
        mode: "single" passes it as the one argument. "args" spreads a list or tuple, "kwargs" a dict. "auto" spreads
            lists, tuples, and dicts whose keys can all be names of parameters, and passes anything else as it is.

    Raises:
        OptionTypeError: The mode needs another type (also a TypeError).
    """
    if isinstance(item, Arguments):  # of a call that was recorded
        return item
    if mode == "args" and not isinstance(item, list | tuple):
        raise OptionTypeError(f"the input {shown(item)} is neither a list nor a tuple", next='input_mode="single"')
    if mode == "kwargs" and not isinstance(item, dict):
        raise OptionTypeError(f"the input {shown(item)} is not a dict", next='input_mode="single"')
    if mode == "kwargs" or (mode == "auto" and isinstance(item, dict) and _are_names(item)):
        return Arguments((), dict(item))
    if mode == "args" or (mode == "auto" and isinstance(item, list | tuple)):
        return Arguments(tuple(item), {})
    return Arguments((item,), {})


def fitting(
    item: Any, mode: str, leading: Sequence[Any], check: Callable[[Sequence[Any], Mapping[str, Any]], None]
) -> Arguments:
    """Return the arguments of one input, checked against the function's signature.

    Raises:
        OptionTypeError: The mode needs another type.
        CallableError: The function does not take them.
    """
    found = arguments_of(item, mode)
    whole = Arguments((*leading, *found.args), found.kwargs)
    for name in whole.kwargs:
        if not isinstance(name, str):
            raise CallableError(f"the input {shown(item)} has the key {name!r}, which is no name", code="arguments")
    check(whole.args, whole.kwargs)
    return whole


def shown(item: object) -> str:
    """Return a short text of an input, on one line."""
    try:
        text = _call_of(item) if isinstance(item, Arguments) else repr(item)
    except Exception as error:  # noqa: BLE001 - a repr is user code
        text = f"<{type(item).__name__}, whose repr raises {type(error).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _call_of(item: Arguments) -> str:
    if len(item.args) == 1 and not item.kwargs:
        return repr(item.args[0])
    return f"({', '.join([*map(repr, item.args), *(f'{name}={value!r}' for name, value in item.kwargs.items())])})"


def _are_names(item: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key) for key in item)


MAX_CONCURRENT = 64  # documented
_MANY = 100  # documented: more than this without a limit is worth a warning


class BatchRequest(NamedTuple):
    """What the user wants called, how often, and how.

    Attributes:
        function: The plain function.
        leading: Arguments that come before each input's: the instance of a bound method.
        name: The function's, for humans.
        options: How each child is to run.
        inputs: One for each child.
        input_mode: How an input becomes arguments.
        settings: How the batch is driven.
        retries_given: Whether the caller said how often to try again; else the project or the profile may.
        group_name: As the user calls it, or None.
        tags: The user's own words.
    """

    function: Callable[..., Any]
    leading: tuple[Any, ...]
    name: str
    options: Options
    inputs: Sequence[Any]
    input_mode: str
    settings: Settings
    retries_given: bool
    group_name: str | None
    tags: Mapping[str, str]


def request_of(
    function: Callable[..., Any],
    leading: tuple[Any, ...],
    name: str,
    options: Options,
    inputs: Iterable[Any],
    *,
    input_mode: str = "auto",
    max_concurrent: int | None = MAX_CONCURRENT,
    retries: int = UNSET,
    fail_fast: bool = False,
    cancel_running_on_fail: bool = False,
    group_name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> BatchRequest:
    """Check what run_async_map was given, before anything is packed."""
    check_mode(input_mode)
    given = retries is not UNSET
    settings = _settings(
        max_concurrent, retries if given else 0, fail_fast=fail_fast, cancel_running_on_fail=cancel_running_on_fail
    )
    text, words = _names(group_name, tags)
    collected = listed(inputs)
    if max_concurrent is None and len(collected) > _MANY:
        output.warn(f"{len(collected)} jobs are submitted at once; max_concurrent=64 would submit them bit by bit")
    return BatchRequest(function, leading, name, options, collected, input_mode, settings, given, text, words)


def _settings(
    max_concurrent: object, retries: object, *, fail_fast: object, cancel_running_on_fail: object
) -> Settings:
    """Check how a batch is to be driven.

    Raises:
        OptionError: A number that cannot work (also a ValueError).
        OptionTypeError: Something of the wrong type (also a TypeError).
    """
    for name, value in (("max_concurrent", max_concurrent), ("retries", retries)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise OptionTypeError(f"{name}={value!r} is not a whole number")
    for name, value in (("fail_fast", fail_fast), ("cancel_running_on_fail", cancel_running_on_fail)):
        if not isinstance(value, bool):
            raise OptionTypeError(f"{name}={value!r} is neither True nor False")
    if max_concurrent is not None and max_concurrent < 1:  # type: ignore[operator] # an int
        raise OptionError(
            f"max_concurrent={max_concurrent!r} would launch nothing",
            why="it is how many jobs of the batch may be active at once",
            next="a positive number, or None for no limit",
        )
    if retries is None or retries < 0:  # type: ignore[operator] # an int
        raise OptionError(
            f"retries={retries!r} is less than none",
            why="it is how many further attempts an input gets that failed",
            next="retries=0, or how often to try again",
        )
    return Settings(max_concurrent, retries, bool(fail_fast), bool(cancel_running_on_fail))  # type: ignore[arg-type]


def _names(name: object, tags: object) -> tuple[str | None, dict[str, str]]:
    """Check the name and the tags of a batch.

    Raises:
        OptionTypeError: The name is not a text, or the tags are not texts by texts.
    """
    if name is not None and not isinstance(name, str):
        raise OptionTypeError(f"name={name!r} is not a string")
    if tags is None:
        return name, {}
    if not isinstance(tags, Mapping) or not all(isinstance(word, str) for item in tags.items() for word in item):
        raise OptionTypeError(f"tags={tags!r} are not strings by strings", next='tags={"sweep": "lr"}')
    return name, dict(tags)
