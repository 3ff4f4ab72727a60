"""Values of job options as people write them into files and terminals: read, and checked, each by its own rule."""

from __future__ import annotations

from collections.abc import Callable

from kinetic._jobs import defaults
from kinetic.errors import OptionError, OptionTypeError

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def of_text(name: str, text: str) -> object:
    """Read the value of an option that was typed into a terminal.

    Raises:
        OptionError: There is no such option, or the value cannot work.
    """
    if name not in defaults.NAMES:
        raise OptionError(
            f"{name!r} is not an option that a profile can hold",
            why=f"options: {', '.join(defaults.NAMES)}",
            next=f"write {_nearest(name)}=…",
        )
    readers: dict[str, Callable[[str], object]] = {
        "deadline": _seconds,
        "resources": _resources,
        "retries": _retries,
        "spot": _flag,
    }
    return checked(name, readers.get(name, str)(text))


def checked(name: str, value: object) -> object:
    """Return a value if its option can have it.

    Raises:
        OptionError: It cannot.
        OptionTypeError: It is of the wrong kind.
    """
    if name == "retries":
        return _checked_retries(value)
    if name == "resources":
        from kinetic._jobs import resources

        return resources.checked(value)
    from kinetic._jobs.options import Options

    return getattr(Options.checked(**{name: value}), name)


def _checked_retries(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionTypeError(f"retries={value!r} is not a whole number", next="write retries = 3")
    if value < 0:
        raise OptionError(
            f"retries={value} is less than nothing",
            why="it says how often a failed job of a batch is tried again",
            next="write retries = 0 for never",
        )
    return value


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise OptionError(f"spot={text} is neither true nor false", next="write spot=true or spot=false")


def _seconds(text: str) -> float:
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        raise OptionError(
            f"deadline={text} is not a number of seconds", next="write the seconds, such as deadline=3600"
        ) from None


def _retries(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionTypeError(f"retries={text} is not a whole number", next="write retries=3") from None


def _resources(text: str) -> dict[str, object]:
    from kinetic._jobs import resources

    return resources.of_text(text)


def _nearest(name: str) -> str:
    from difflib import get_close_matches  # 2 ms; only on the way to an error

    return get_close_matches(name, defaults.NAMES, 1, 0)[0]
