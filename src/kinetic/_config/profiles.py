"""Saved profiles: where jobs run, and job options, under a name; which profile is active; and writing the file.

    {"current": "team",
     "profiles": {"team": {"project": "acme", "zone": "us-west4-a", "cluster": "main", "namespace": "default",
                           "backend": "gke", "store": "gs://…", "context": "…", "queue": "…", "ttl_hours": 24,
                           "options": {"accelerator": "gpu-l4"}}}}

``project``, ``zone`` and ``cluster`` are required, except in a profile for this machine (``backend`` is local) or for a
kubeconfig context (``context``). Fields that this version does not know are kept for the version that wrote them. The
name "local" is built in and means this machine.

    profiles.json                0600; if it is a link, the file that it leads to is replaced and the link stays
    .profiles.json.lock          held while the file is read, changed and written back
    .profiles.json.{word}.part   being written; the next writer removes one whose writer was killed
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kinetic._backends import registry
from kinetic._config.home import kinetic_home, path_of
from kinetic._config.variables import CLUSTER_SETTINGS, read_variable
from kinetic._wire import NamedTuple, folders
from kinetic.errors import OptionError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REQUIRED = ("project", "zone", "cluster")
FIELDS = (*REQUIRED, "namespace", "backend", "store", "context", *CLUSTER_SETTINGS)
_MAX_NAME = 64  # characters
_TYPED = {  # these may be what JSON has for them, as well as a string
    "pull_secrets": "a list of names",
    "node_selector": "an object with a string for each label",
    "tolerations": 'a list of strings, as in ["dedicated=research:NoSchedule"]',
    "labels": "an object with a string for each label",
    "annotations": "an object with a string for each annotation",
    "config_maps": "a list of names",
    "volume_claims": "an object with a claim for each path",
    "ttl_hours": "a number of hours",
    "most_attempts": "a number of attempts",
}
_LOCK_SECONDS = 10.0  # to wait for another writer, which needs some milliseconds
_POLL_SECONDS = 0.01
# What a file system says that has no record locks, such as Lustre mounted without them. Then two writers at the same
# moment may lose one of two changes; refusing every change would be worse.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
_thread_lock = threading.Lock()  # a record lock does not keep threads of one process apart


class Profile(NamedTuple):
    """What one profile says, as written and not yet checked; "" where it says nothing."""

    name: str
    project: str = ""
    zone: str = ""
    cluster: str = ""
    namespace: str = ""
    backend: str = ""
    store: str = ""
    context: str = ""  # of the kubeconfig
    options: Mapping[str, object] = {}  # job options; shared, and a Mapping: nobody may write to it
    service_account: str = ""  # this and the rest apply to all jobs of a cluster; see ``cluster``
    queue: str = ""
    priority_class: str = ""
    pull_secrets: str = ""
    image_repo: str = ""
    store_secret: str = ""
    node_selector: str = ""
    tolerations: str = ""
    labels: str = ""
    annotations: str = ""
    config_maps: str = ""
    volume_claims: str = ""
    gpu_resource: str = ""
    scheduler: str = ""
    runtime_class: str = ""
    cpu_disk: str = ""
    ttl_hours: str = ""
    most_attempts: str = ""


# Nodes of Autopilot let a pod write only as much as it requested: JAX alone has some 2 GB. More than this they do not
# have without a disk of their own. Source: GKE's page "Resource requests in Autopilot", 2026-11.
AUTOPILOT_DISK = "10Gi"
LOCAL = Profile(registry.HERE.name, backend=registry.HERE.name)  # built in


class Profiles(NamedTuple):
    """All that the file says."""

    file: Path  # whether or not it exists
    current: str  # "" for none
    saved: Mapping[str, Profile]

    @property
    def names(self) -> list[str]:
        """Every name that can be asked for, in order."""
        return sorted({*self.saved, LOCAL.name})

    def get(self, name: str) -> Profile | None:
        return LOCAL if name == LOCAL.name else self.saved.get(name)


class Choice(NamedTuple):
    """The active profile."""

    profile: Profile | None
    source: str  # "argument", "KINETIC_PROFILE", "current", or "default" for none
    notes: tuple[str, ...] = ()  # sentences for the user


def profiles_file(environ: Mapping[str, str]) -> Path:
    """Return where the profiles are saved; the file need not exist."""
    chosen = read_variable("KINETIC_PROFILES_FILE", environ)
    return path_of(chosen, environ) if chosen is not None else kinetic_home(environ) / "profiles.json"


def load(environ: Mapping[str, str]) -> Profiles:
    """Read the profiles; without a file there are none."""
    return _load_page(environ)[1]


def choose(environ: Mapping[str, str], name: str | None = None) -> Choice:
    """Return the active profile: the one that is named, else KINETIC_PROFILE, else the current one."""
    profiles = load(environ)
    wanted, source = (name, "argument") if name else (read_variable("KINETIC_PROFILE", environ), "KINETIC_PROFILE")
    if not wanted:
        wanted, source = profiles.current, "current"
    if not wanted:
        return Choice(None, "default")
    profile = profiles.get(wanted)
    if profile is None and source == "current":
        note = f"no profile is active: the current profile {wanted!r} in {profiles.file} does not exist"
        return Choice(None, "default", (f"{note}; existing: {', '.join(profiles.names)}",))
    if profile is None:
        asked_by = "" if source == "argument" else source
        way = f"export {source}={{nearest}}     or unset it" if asked_by else 'write profile="{nearest}"'
        raise unknown_profile_error(wanted, profiles, way=way, asked_by=asked_by)
    if profile is LOCAL and LOCAL.name in profiles.saved:
        note = f'the profile "{LOCAL.name}" in {profiles.file} is not used: the name is built in and means this machine'
        return Choice(profile, source, (note,))
    return Choice(profile, source)


def check_new_name(name: str) -> str:
    """Return a name for a profile that is saved: a valid one, and not that of the built-in profile."""
    _refuse_built_in(name)
    plain = name.replace("-", "").replace("_", "")
    if name.isascii() and name[:1].isalnum() and plain.isalnum() and len(name) <= _MAX_NAME:
        return name
    raise OptionError(
        f"{name!r} cannot be the name of a profile",
        why="a name starts with a letter or digit, followed by letters, digits, '-' and '_', "
        f"and has at most {_MAX_NAME} characters",
        next="use a plain word, such as team or team-west4",
    )


def unknown_profile_error(name: str, profiles: Profiles, *, way: str, asked_by: str = "") -> SettingsError:
    """Return the error that no profile has a name, for which a variable may have asked.

    ``way``: what to do, with ``{nearest}`` in the place of the most similar name.
    """
    from difflib import get_close_matches  # 2 ms; only when something is wrong

    nearest = get_close_matches(name, profiles.names, n=1, cutoff=0)[0]
    return SettingsError(
        f"no profile is named {name!r}" + (f" (set by {asked_by})" if asked_by else ""),
        why=f"profiles in {profiles.file}: {', '.join(sorted(profiles.saved)) or 'none'}; built in: {LOCAL.name}",
        next=way.format(nearest=nearest),
    )


# -------------------------------------------------------------------------------------------------------------- changes


def save(environ: Mapping[str, str], profile: Profile, *, replace: bool = False) -> bool:
    """Save a profile, and return whether it became the current one, as the very first one does.

    Fields of ours that it leaves empty are not written. With ``replace`` one of the same name is overwritten, but for
    what a later version of kinetic wrote into it.
    """
    check_new_name(profile.name)
    with _change(environ) as (page, before):
        if profile.name in before.saved and not replace:
            raise OptionError(
                f"a profile named {profile.name!r} already exists",
                why=f"it is in {before.file}",
                next=f"kinetic profile show {profile.name}     or create it with --force to replace it",
            )
        entries = page.setdefault("profiles", {})
        ours = {field: getattr(profile, field) for field in FIELDS if getattr(profile, field)}
        if profile.options:
            ours["options"] = dict(profile.options)
        theirs = {key: value for key, value in entries.get(profile.name, {}).items() if key not in {*FIELDS, "options"}}
        entries[profile.name] = theirs | ours
        is_first = not before.saved and before.get(before.current) is None
        if is_first:
            page["current"] = profile.name
        return is_first


def use(environ: Mapping[str, str], name: str) -> Profile:
    """Make a profile the current one, and return it."""
    with _change(environ) as (page, before):
        profile = _existing(before, name, "kinetic profile use {nearest}")
        page["current"] = name
        return profile


def unset(environ: Mapping[str, str]) -> str:
    """Leave no profile the current one; return the name of the one that was, "" for none."""
    if not load(environ).current:
        return ""  # nothing to write; there need not even be a file
    with _change(environ) as (page, before):
        page["current"] = None
        return before.current


def remove(environ: Mapping[str, str], name: str) -> bool:
    """Remove a profile, and return whether it was the current one; then none is."""
    _refuse_built_in(name)
    with _change(environ) as (page, before):
        _existing(before, name, "kinetic profile list")
        del page["profiles"][name]
        if before.current == name:
            page["current"] = None
        return before.current == name


def _existing(saved: Profiles, name: str, way: str) -> Profile:
    profile = saved.get(name)
    if profile is None:
        raise unknown_profile_error(name, saved, way=way)
    return profile


def _refuse_built_in(name: str) -> None:
    if name == LOCAL.name:
        raise OptionError(
            f"the profile {LOCAL.name!r} is built in",
            why="it always means this machine; it cannot be created, replaced or removed",
            next=f"kinetic profile use {LOCAL.name}",
        )


@contextlib.contextmanager
def _change(environ: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], Profiles]]:
    """Yield the file's page, to be changed in place, and what it says; write it back unless the body raises.

    A file that cannot be read is never written.
    """
    file = Path(os.path.realpath(profiles_file(environ)))
    try:
        with _thread_lock, _locked(file):
            page, before = _load_page(environ)
            yield page, before
            _write(file, page)
    except OSError as error:
        raise SettingsError(
            f"the profiles in {file} cannot be written",
            why=f"{error.filename or file}: {error.strerror or error}",
            next="make sure that you can write there, or set KINETIC_PROFILES_FILE to another file",
        ) from error


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock beside a file; a killed holder does not block others."""
    file.parent.mkdir(folders.PRIVATE_FOLDER, parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.lock")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, folders.PRIVATE_FILE)
    limit = time.monotonic() + _LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    break
                if error.errno not in {errno.EACCES, errno.EAGAIN}:
                    raise
            else:
                for leftover in file.parent.glob(f".{file.name}.*.part"):  # of killed writers: we are the only one
                    leftover.unlink(missing_ok=True)
                break
            if time.monotonic() > limit:
                raise SettingsError(
                    "the profiles are being written by another process",
                    why=f"it has held {beside} for {_LOCK_SECONDS:g} s",
                    next="try again; if this does not help, look for a stopped process of kinetic",
                )
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _write(file: Path, page: dict[str, Any]) -> None:
    import json

    with folders.replaced(file) as new:
        new.write(json.dumps(page, indent=2, sort_keys=True).encode() + b"\n")


# -------------------------------------------------------------------------------------------------------------- reading


def _load_page(environ: Mapping[str, str]) -> tuple[dict[str, Any], Profiles]:
    """Read the profiles, and the whole page as well, with what only other versions of kinetic understand."""
    file = profiles_file(environ)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return {}, Profiles(file, "", {})
    except PermissionError as error:  # as of a program that another user's HOME was left to
        where = "set KINETIC_HOME to a folder of your own, or KINETIC_PROFILES_FILE to a file that you can read"
        raise _unreadable(file, f"PermissionError: {error.strerror}", where) from error
    except OSError as error:
        raise _unreadable(file, f"{type(error).__name__}: {error.strerror or error}") from error
    import json  # 2 ms; only where there is a file

    try:
        page = json.loads(content.decode("utf-8-sig"))  # editors on Windows write a mark in front
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, f"it is not JSON: {error}") from error
    if not isinstance(page, dict):
        raise _unreadable(file, f"its top level is {_kind(page)}, not an object")
    current = page.get("current")
    if not (current is None or isinstance(current, str)):
        raise _unreadable(file, f'"current" is {_kind(current)}, not the name of a profile or null')
    entries = page.get("profiles", {})
    if not isinstance(entries, dict):
        raise _unreadable(file, f'"profiles" is {_kind(entries)}, not an object')
    saved = {name: _profile(file, name, entry) for name, entry in entries.items()}
    return page, Profiles(file, current or "", saved)


def _profile(file: Path, name: str, entry: object) -> Profile:
    if not isinstance(entry, dict):
        raise _unreadable(file, f"profile {name!r} is {_kind(entry)}, not an object")
    texts = {}
    for field in FIELDS:
        value = entry.get(field)
        text = _as_written(value) if field in _TYPED else value
        if not isinstance(text, str) and value is not None:
            wanted = _TYPED.get(field, "a string")
            raise _unreadable(file, f'"{field}" of profile {name!r} is {_kind(value)}, not {wanted}')
        texts[field] = text or ""
    missing = [field for field in REQUIRED if not texts[field]]
    if missing and not registry.is_here(texts["backend"]) and not texts["context"]:
        raise _unreadable(file, f"profile {name!r} has no {', '.join(missing)}")
    options = entry.get("options")
    if not (options is None or isinstance(options, dict)):
        raise _unreadable(file, f'"options" of profile {name!r} is {_kind(options)}, not an object')
    return Profile(name, **texts, options=cast("dict[str, object]", options or {}))  # JSON has no other keys


def _as_written(value: object) -> str | None:
    """Return a JSON value as one would write it into a variable; None where that is not possible."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    if isinstance(value, dict) and all(isinstance(word, str) for word in value.values()):
        return ",".join(f"{name}={word}" for name, word in value.items()) or "none"
    return None


def _unreadable(
    file: Path, why: str, next_: str = "correct the file, move it away, or set KINETIC_PROFILES_FILE to another one"
) -> SettingsError:
    return SettingsError(
        f"the profiles in {file} cannot be read",
        why=why,
        next=next_,
    )


def _kind(value: object) -> str:
    """Name the kind of a JSON value with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}[type(value)]
