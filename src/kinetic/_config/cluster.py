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
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kinetic._config.variables import read as read_variable

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


class Found(NamedTuple):
    """Hold the value of one field and where it came from.

    Attributes:
        value: Checked; None where nothing is said.
        source: The name of a variable, "profile NAME", or "default".
    """

    value: object
    source: str


def read(profile: Profile | None, environ: Mapping[str, str]) -> ClusterSettings:
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


def look_up(field: str, profile: Profile | None, environ: Mapping[str, str]) -> Found:
    """Say what one of ``FIELDS`` is, and who says so.

    Raises:
        OptionError: As for ``read``.
    """
    from kinetic._config import cluster_values  # only for jobs on a cluster

    variable = f"KINETIC_{field.upper()}"
    if text := read_variable(variable, environ):
        way = f"export {variable}={cluster_values.example(field)}     or unset it"
        return Found(cluster_values.checked(field, text, f"{variable}={text!r}", way), variable)
    text = cast("str", getattr(profile, field, ""))
    if profile is None or not text:
        return Found(None, "default")
    source = f"profile {profile.name}"
    example = cluster_values.example(field)
    way = f"give {variable} a value that can be used, or correct it in {source}, for example to {example}"
    return Found(cluster_values.checked(field, text, f"{field}={text!r} in {source}", way), source)


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
