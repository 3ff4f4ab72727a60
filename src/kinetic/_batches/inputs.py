"""Inputs of a batch: each becomes the arguments of one call, or the reason why it cannot."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic.errors import CallableError, OptionError, OptionTypeError

MODES = ("auto", "single", "args", "kwargs")
_SHOWN = 80  # characters of an input in tables and errors


class Arguments(NamedTuple):
    """The arguments of one child's call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def collected(inputs: Iterable[Any]) -> list[Any]:
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
