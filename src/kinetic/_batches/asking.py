"""Asking for a batch: what run_async_map was given, checked before anything is packed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic import _output as output
from kinetic._batches import inputs as inputs_
from kinetic._settings.job_options import UNSET
from kinetic._wire.group import Settings
from kinetic.errors import OptionError, OptionTypeError

if TYPE_CHECKING:
    from kinetic._jobs.options import Options

MAX_CONCURRENT = 64  # documented
_MANY = 100  # documented: more than this without a limit is worth a warning


class Wish(NamedTuple):
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


def wish_of(
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
) -> Wish:
    """Check what run_async_map was given, before anything is packed."""
    inputs_.check_mode(input_mode)
    given = retries is not UNSET
    settings = _settings(
        max_concurrent, retries if given else 0, fail_fast=fail_fast, cancel_running_on_fail=cancel_running_on_fail
    )
    text, words = _names(group_name, tags)
    collected = inputs_.collected(inputs)
    if max_concurrent is None and len(collected) > _MANY:
        output.warn(f"{len(collected)} jobs are submitted at once; max_concurrent=64 would submit them bit by bit")
    return Wish(function, leading, name, options, collected, input_mode, settings, given, text, words)


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
