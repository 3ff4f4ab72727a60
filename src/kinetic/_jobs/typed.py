"""Values of job options as people write them into files and terminals: read, and checked, each by its own rule."""

from __future__ import annotations

from kinetic._settings.job_options import BY_NAME
from kinetic.errors import OptionError, OptionTypeError

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def of_text(name: str, text: str) -> object:
    """Read the value of an option that was typed into a terminal.

    Raises:
        OptionError: There is no such option, or the value cannot work.
    """
    option = BY_NAME.get(name)
    if option is None:
        raise OptionError(
            f"{name!r} is not an option that a profile can hold",
            why=f"options: {', '.join(BY_NAME)}",
            next=f"write {_nearest(name)}=…",
        )
    if option.kinds == (bool,):
        return _flag(name, text)
    return checked(name, _number(name, text) if option.kinds == (int,) else text)


def checked(name: str, value: object) -> object:
    """Return a value if its option can have it.

    Raises:
        OptionError: It cannot.
        OptionTypeError: It is of the wrong kind.
    """
    if not BY_NAME[name].is_argument:  # a flag: there is no other of them
        if isinstance(value, bool):
            return value
        raise OptionTypeError(f"{name}={value!r} is neither true nor false", next=f"write {name} = false")
    from kinetic._jobs.options import Options

    return getattr(Options.checked(**{name: value}), name)


def _flag(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise OptionError(f"{name}={text} is neither true nor false", next=f"write {name}=true or {name}=false")


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionTypeError(f"{name}={text} is not a whole number", next=f"write {name}=3") from None


def _nearest(name: str) -> str:
    from difflib import get_close_matches  # 2 ms; only on the way to an error

    return get_close_matches(name, BY_NAME, 1, 0)[0]
