"""Values of what holds for the jobs of a cluster: read as they are written, refused where no cluster would take them.

    a name             lower-case letters, digits, "-" and ".", as Kubernetes has them
    names              separated by commas
    labels of nodes    key=value,key2=value2, or "none": any node will do
    hours              a number, 0.5 too
    attempts           a whole number

``cluster`` says who wins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from kinetic._config.cluster import HOUR_SECONDS
from kinetic.errors import OptionError

ANY_NODE = "none"
_LONGEST_SECONDS = 2**31 - 1  # as Kubernetes counts the seconds until it removes a job
_LONGEST_NAME, _LONGEST_LABEL = 253, 63
_WORD = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_NAME = re.compile(rf"{_WORD}(?:\.{_WORD})*")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NAME_RULE = "a name has lower-case letters, digits, '-' and '.', and begins and ends with a letter or digit"
_LABELS_RULE = "it takes labels of nodes: key=value,key2=value2; or none, for any node"


class _Kind(NamedTuple):
    """What a field holds: how it is called, what would do, and what reads it (a ValueError says why not)."""

    what: str
    example: str
    reader: Callable[[str], object]


def checked(field: str, text: str, said: str, way: str) -> object:
    """Return what a text means for one of ``cluster.FIELDS``.

    Args:
        field: Which one.
        text: As it was written.
        said: The text with who says it, as in "KINETIC_TTL_HOURS='soon'".
        way: What to do if it cannot be used.

    Raises:
        OptionError: It cannot be used.
    """
    kind = _KINDS[field]
    try:
        return kind.reader(text.strip())
    except ValueError as error:
        raise OptionError(f"{said} cannot be {kind.what}", why=str(error), next=way) from None


def example(field: str) -> str:
    """Return a value that would do."""
    return _KINDS[field].example


def _name(text: str) -> str:
    if _NAME.fullmatch(text) and len(text) <= _LONGEST_NAME:
        return text
    raise ValueError(f"{_NAME_RULE}; at most {_LONGEST_NAME} characters")


def _label_name(text: str) -> str:
    """Read the name of what is named by a label, too: Kueue finds the queue of a job by one."""
    if len(_name(text)) <= _LONGEST_LABEL:
        return text
    raise ValueError(f"it has {len(text)} characters, and at most {_LONGEST_LABEL} fit into the label that names it")


def _names(text: str) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys(_name(word) for word in _parts(text))) or None


def _labels(text: str) -> dict[str, str]:
    if text == ANY_NODE:
        return {}
    found: dict[str, str] = {}
    for part in _parts(text):
        key, separator, value = (word.strip() for word in part.partition("="))
        if not separator or not _is_key(key) or not _is_value(value):
            raise ValueError(f"{part!r} is no label of a node; {_LABELS_RULE}")
        if found.setdefault(key, value) != value:
            raise ValueError(f"{key} has two values, {found[key]!r} and {value!r}: a node has one")
    if not found:
        raise ValueError(_LABELS_RULE)
    return found


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 < hours < math.inf:
        raise ValueError("it takes a number that is more than 0, as in 24 or 0.5")
    if hours * HOUR_SECONDS > _LONGEST_SECONDS:
        raise ValueError(f"a cluster counts at most {_LONGEST_SECONDS // HOUR_SECONDS} hours")
    return hours


def _attempts(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < _LONGEST_LABEL and int(text) > 0:
        return int(text)
    raise ValueError("it takes a whole number of at least 1")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    prefix_fits = bool(_NAME.fullmatch(prefix)) and len(prefix) <= _LONGEST_NAME if slash else True
    return prefix_fits and bool(name) and _is_value(name)


def _is_value(text: str) -> bool:
    return not text or (bool(_LABEL.fullmatch(text)) and len(text) <= _LONGEST_LABEL)


_KINDS = {
    "service_account": _Kind("the name of a service account", "kinetic", _name),
    "queue": _Kind("the name of a queue", "team", _label_name),
    "priority_class": _Kind("the name of a priority class", "high", _name),
    "pull_secrets": _Kind("names of Secrets", "registry,registry2", _names),
    "store_secret": _Kind("the name of a Secret", "store", _name),
    "node_selector": _Kind("a choice of nodes", "pool=gpus,zone=a", _labels),
    "ttl_hours": _Kind("a number of hours", "24", _hours),
    "most_attempts": _Kind("a number of attempts", "10", _attempts),
}
