"""What holds for all jobs of one cluster: as whom they run, in which queue, on which nodes, for how long.

    field            environment                 profile           default
    service_account  KINETIC_SERVICE_ACCOUNT     service_account   "kinetic" where it exists, else "default"
    queue            KINETIC_QUEUE               queue             none
    priority_class   KINETIC_PRIORITY_CLASS      priority_class    none
    pull_secrets     KINETIC_PULL_SECRETS        pull_secrets      none
    store_secret     KINETIC_STORE_SECRET        store_secret      none: workload identity
    node_selector    KINETIC_NODE_SELECTOR       node_selector     Google's labels for the accelerator
    ttl_seconds      KINETIC_TTL_HOURS           ttl_hours         24 h
    most_attempts    KINETIC_MOST_ATTEMPTS       most_attempts     no limit

The first that says something wins; an empty string says nothing. In a profile these may also be what JSON has for them:
a list, an object, a number.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kinetic._config.options import read_variable
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._config.profiles import Profile


DAY_SECONDS = 86_400
HOUR_SECONDS = 3600
FIELDS = (  # as profiles, and config, name them
    *("service_account", "queue", "priority_class", "pull_secrets", "store_secret"),
    *("node_selector", "ttl_hours", "most_attempts"),
)
_LOGIN_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # as getpass asks for them


class ClusterSettings(NamedTuple):
    """What holds for all jobs of one cluster.

    Attributes:
        service_account: Whom a pod is to its cluster and its cloud; "" for "kinetic" where it exists, else "default".
        queue: A LocalQueue of Kueue, or "".
        priority_class: How important its pods are, or "".
        pull_secrets: Names of Secrets with which images are pulled.
        store_secret: Name of a Secret with credentials for the store, or "".
        node_selector: Labels of nodes instead of Google's; None for Google's.
        ttl_seconds: After a job's end, when the cluster removes what is left.
        most_attempts: After so many attempts that were cut short a job fails; None for no limit.
    """

    service_account: str = ""
    queue: str = ""
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    store_secret: str = ""
    node_selector: Mapping[str, str] | None = None
    ttl_seconds: int = DAY_SECONDS
    most_attempts: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**self._asdict(), "pull_secrets": list(self.pull_secrets)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ClusterSettings:
        """Read plain JSON; fields of other versions are passed over."""
        known = {name: fields[name] for name in cls._fields if name in fields}
        return cls(**{**known, "pull_secrets": tuple(known.get("pull_secrets") or ())})


class SettingValue(NamedTuple):
    """Hold the value of one field and where it came from.

    Attributes:
        value: Checked; None where nothing is said.
        source: The name of a variable, "profile NAME", or "default".
    """

    value: object
    source: str


def read_settings(profile: Profile | None, environ: Mapping[str, str]) -> ClusterSettings:
    """Return what holds for the jobs of a cluster.

    Args:
        profile: The profile that holds, or None.
        environ: The environment.

    Raises:
        OptionError: A value cannot be used; the variable or the profile that it came from is named.
    """
    said = {field: look_up(field, profile, environ).value for field in FIELDS}
    fields: dict[str, Any] = {field: value for field, value in said.items() if value is not None}
    if "ttl_hours" in fields:
        fields["ttl_seconds"] = max(1, round(fields.pop("ttl_hours") * HOUR_SECONDS))
    return ClusterSettings(**fields)


def look_up(field: str, profile: Profile | None, environ: Mapping[str, str]) -> SettingValue:
    """Say what one of ``FIELDS`` is, and who says so.

    Raises:
        OptionError: As for ``read``.
    """
    variable = f"KINETIC_{field.upper()}"
    if text := read_variable(variable, environ):
        way = f"export {variable}={example_of(field)}     or unset it"
        return SettingValue(checked_value(field, text, f"{variable}={text!r}", way), variable)
    text = cast("str", getattr(profile, field, ""))
    if profile is None or not text:
        return SettingValue(None, "default")
    source = f"profile {profile.name}"
    example = example_of(field)
    way = f"give {variable} a value that can be used, or correct it in {source}, for example to {example}"
    return SettingValue(checked_value(field, text, f"{field}={text!r} in {source}", way), source)


def as_written(value: object) -> str | None:
    """Return what a profile says as one would write it into a variable; None for what cannot be written so."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    if isinstance(value, Mapping) and all(isinstance(word, str) for word in value.values()):
        return ",".join(f"{name}={word}" for name, word in value.items()) or "none"
    return None


def owner(environ: Mapping[str, str]) -> str:
    """Return who submits: KINETIC_OWNER, else the name that the user has on this machine."""
    names = (read_variable("KINETIC_OWNER", environ), *map(environ.get, _LOGIN_NAMES))
    for name in names:
        if name and name.strip():
            return name.strip()
    with contextlib.suppress(ImportError, LookupError, OSError):  # a container's user need not be in any list
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    return f"user-{os.getuid()}" if hasattr(os, "getuid") else "unknown"


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


def checked_value(field: str, text: str, said: str, way: str) -> object:
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


def example_of(field: str) -> str:
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
