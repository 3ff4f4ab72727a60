"""Saved places: the file with the profiles, and which of them holds now. Reading only; ``profile_store`` writes.

    {"current": "team",
     "profiles": {"team": {"project": "acme", "zone": "us-west4-a", "cluster": "main", "namespace": "default",
                           "backend": "gke", "store": "gs://…", "context": "…", "queue": "…", "ttl_hours": 24,
                           "options": {"accelerator": "gpu-l4"}}}}

``project``, ``zone`` and ``cluster`` must be there, except in a profile for this machine (``backend`` is local) or
for a kubeconfig context (``context``), which need none of them. What holds for all jobs of a cluster, ``queue`` and the
like, is explained in ``cluster``. Whatever else a profile holds is left to the version of kinetic that wrote it. The
name "local" is built in and means this machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kinetic._backends import registry
from kinetic._config import cluster
from kinetic._config.home import kinetic_home, path_of
from kinetic._config.options import read_variable
from kinetic.errors import OptionError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable


REQUIRED = ("project", "zone", "cluster")
FIELDS = (*REQUIRED, "namespace", "backend", "store", "context", *cluster.FIELDS)
_LONGEST_NAME = 64  # characters
_TYPED = {  # these may be what JSON has for them, as well as a string
    "pull_secrets": "a list of names",
    "node_selector": "an object with a string for each label",
    "ttl_hours": "a number of hours",
    "most_attempts": "a number of attempts",
}


class Profile(NamedTuple):
    """Hold what one profile says; "" where it says nothing.

    Attributes:
        name: Under which name it was saved.
        project: The Google Cloud project.
        zone: The zone of the cluster.
        cluster: The name of the cluster.
        namespace: The Kubernetes namespace.
        backend: The place where jobs run, as written: not yet checked.
        store: The address of the store.
        context: A kubeconfig context.
        options: Job options, as written: not yet checked.
        service_account: This and the rest hold for all jobs of a cluster; as written, and not yet checked.
        queue: A LocalQueue of Kueue.
        priority_class: How important its pods are.
        pull_secrets: Names of Secrets with which images are pulled, separated by commas.
        store_secret: Name of a Secret with credentials for the store.
        node_selector: Labels of nodes: key=value,key2=value2.
        ttl_hours: After a job's end, when the cluster removes what is left.
        most_attempts: After so many attempts that were cut short a job fails.
    """

    name: str
    project: str = ""
    zone: str = ""
    cluster: str = ""
    namespace: str = ""
    backend: str = ""
    store: str = ""
    context: str = ""
    options: Mapping[str, object] = {}  # shared, and a Mapping: nobody may write to it
    service_account: str = ""
    queue: str = ""
    priority_class: str = ""
    pull_secrets: str = ""
    store_secret: str = ""
    node_selector: str = ""
    ttl_hours: str = ""
    most_attempts: str = ""


class Profiles(NamedTuple):
    """Hold all that the file says.

    Attributes:
        file: Where it lies, or would lie.
        current: The name of the profile in use, "" for none.
        saved: By name.
    """

    file: Path
    current: str
    saved: Mapping[str, Profile]

    @property
    def names(self) -> list[str]:
        """Every name that can be asked for, in order."""
        return sorted({*self.saved, LOCAL.name})

    def get(self, name: str) -> Profile | None:
        """Return the profile of this name, or None."""
        return LOCAL if name == LOCAL.name else self.saved.get(name)


class Choice(NamedTuple):
    """Hold the profile that is in force, and what its reader should be told.

    Attributes:
        profile: The profile, or None.
        source: What chose it: "argument", "KINETIC_PROFILE", "current", or "default" for none.
        notes: Plain sentences.
    """

    profile: Profile | None
    source: str
    notes: tuple[str, ...] = ()


LOCAL = Profile(registry.HERE.name, backend=registry.HERE.name)  # built in


def profiles_file(environ: Mapping[str, str]) -> Path:
    """Return where the profiles are saved; the file need not exist.

    Raises:
        SettingsError: No home folder is known for this user.
    """
    chosen = read_variable("KINETIC_PROFILES_FILE", environ)
    return path_of(chosen, environ) if chosen is not None else kinetic_home(environ) / "profiles.json"


def load(environ: Mapping[str, str]) -> Profiles:
    """Read the profiles; without a file there are none.

    Raises:
        SettingsError: The file cannot be read, or does not say what a profiles file must say.
    """
    return load_page(environ)[1]


def load_page(environ: Mapping[str, str]) -> tuple[dict[str, Any], Profiles]:
    """Read the profiles, and give the whole page as well: with what only other versions of kinetic understand.

    Raises:
        SettingsError: As for ``load``.
    """
    file = profiles_file(environ)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return {}, Profiles(file, "", {})
    except OSError as error:
        raise _unreadable(file, f"{type(error).__name__}: {error.strerror or error}") from error
    return _parsed(file, content)


def choose(environ: Mapping[str, str], name: str | None = None) -> Choice:
    """Say which profile holds: the one that is named, else KINETIC_PROFILE, else the current one.

    Raises:
        SettingsError: No profile has the name, or the file is not as it should be.
    """
    profiles = load(environ)
    from_environment = read_variable("KINETIC_PROFILE", environ)
    wanted, source = (name, "argument") if name else (from_environment, "KINETIC_PROFILE")
    if wanted:
        profile = profiles.get(wanted)
        if profile is None:
            asked_by = "" if source == "argument" else source
            way = f"export {source}={{nearest}}     or unset it" if asked_by else 'write profile="{nearest}"'
            raise unknown_profile_error(wanted, profiles, way=way, asked_by=asked_by)
        return Choice(profile, source, _hidden(profile, profiles))
    if not profiles.current:
        return Choice(None, "default")
    profile = profiles.get(profiles.current)
    if profile is None:
        return Choice(None, "default", (_lost_current(profiles),))
    return Choice(profile, "current", _hidden(profile, profiles))


def check_name(name: str) -> str:
    """Return a name for a profile if it may be one.

    Raises:
        OptionError: A letter or digit must come first, then letters, digits, "-" and "_"; at most 64 characters.
    """
    plain = name.replace("-", "").replace("_", "")
    if name.isascii() and name[:1].isalnum() and plain.isalnum() and len(name) <= _LONGEST_NAME:
        return name
    raise OptionError(
        f"{name!r} cannot be the name of a profile",
        why=f"a name begins with a letter or digit, goes on with letters, digits, '-' and '_', "
        f"and has at most {_LONGEST_NAME} characters",
        next="use a plain word, such as team or team-west4",
    )


def unknown_profile_error(name: str, profiles: Profiles, *, way: str, asked_by: str = "") -> SettingsError:
    """Say that no profile has a name, and which there are.

    Args:
        name: What was asked for.
        profiles: Those there are.
        way: What to do, with ``{nearest}`` in the place of the name that looks most like it.
        asked_by: The variable that asks for it, "" where the user just did.
    """
    from difflib import get_close_matches  # 2 ms; only when something is wrong

    nearest = get_close_matches(name, profiles.names, n=1, cutoff=0)[0]
    saved = _listed(sorted(profiles.saved)) or "none"
    return SettingsError(
        f"no profile is named {name!r}" + (f", which {asked_by} asks for" if asked_by else ""),
        why=f"profiles in {profiles.file}: {saved}; built in: {LOCAL.name}",
        next=way.format(nearest=nearest),
    )


def _parsed(file: Path, content: bytes) -> tuple[dict[str, Any], Profiles]:
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
    texts = {field: _text(file, name, entry, field) for field in FIELDS}
    missing = [field for field in REQUIRED if not texts[field]]
    if missing and not registry.is_here(texts["backend"]) and not texts["context"]:
        raise _unreadable(file, f"profile {name!r} has no {_listed(missing)}")
    options = entry.get("options")
    if not (options is None or isinstance(options, dict)):
        raise _unreadable(file, f'"options" of profile {name!r} is {_kind(options)}, not an object')
    return Profile(name, **texts, options=cast("dict[str, object]", options or {}))  # JSON has no other keys


def _text(file: Path, name: str, entry: Mapping[str, object], field: str) -> str:
    value = entry.get(field)
    text = cluster.as_written(value) if field in _TYPED else value
    if text is None and value is None:
        return ""
    if not isinstance(text, str):
        raise _unreadable(file, f'"{field}" of profile {name!r} is {_kind(value)}, not {_TYPED.get(field, "a string")}')
    return text


def _hidden(profile: Profile, profiles: Profiles) -> tuple[str, ...]:
    if profile is not LOCAL or LOCAL.name not in profiles.saved:
        return ()
    return (f'the profile "{LOCAL.name}" in {profiles.file} is not used: the name is built in and means this machine',)


def _lost_current(profiles: Profiles) -> str:
    return (
        f"no profile is in use: the current one in {profiles.file} is {profiles.current!r}, "
        f"and there is only {_listed(profiles.names)}"
    )


def _unreadable(file: Path, why: str) -> SettingsError:
    return SettingsError(
        f"the profiles in {file} cannot be read",
        why=why,
        next="correct the file, move it away, or set KINETIC_PROFILES_FILE to another one",
    )


def _kind(value: object) -> str:
    """Name the kind of a JSON value with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    kinds = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    return kinds[type(value)]


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_PATIENCE_SECONDS = 10.0  # for another writer, which needs some milliseconds
_LOOK_SECONDS = 0.01
_BUSY = {errno.EACCES, errno.EAGAIN}
# What a file system says that has no record locks, such as Lustre mounted without them. Then two writers at the same
# moment may lose one of two changes; refusing every change would be worse.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}

_gate = threading.Lock()  # a record lock does not keep threads of one process apart


def save(environ: Mapping[str, str], profile: Profile, *, replace: bool = False) -> bool:
    """Save a profile; the very first one becomes the current one.

    Args:
        environ: The environment.
        profile: What to save. Fields of ours that it leaves empty are not written.
        replace: Overwrite one of the same name. What a later version of kinetic wrote into that one stays.

    Returns:
        Whether it became the current one.

    Raises:
        OptionError: It cannot have this name, or the name is taken.
        SettingsError: The file cannot be read or written.
    """
    check_name(profile.name)
    _refuse_built_in(profile.name)
    with _change(environ) as (page, before):
        if profile.name in before.saved and not replace:
            raise OptionError(
                f"there is a profile {profile.name!r} already",
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
    """Make a profile the current one, and return it.

    Raises:
        SettingsError: None has this name, or the file cannot be read or written.
    """
    with _change(environ) as (page, before):
        profile = _existing(before, name, "kinetic profile use {nearest}")
        page["current"] = name
        return profile


def unset(environ: Mapping[str, str]) -> str:
    """Leave no profile the current one; return the name of the one that was, "" for none.

    Raises:
        SettingsError: The file cannot be read or written.
    """
    current = load(environ).current
    if not current:
        return ""  # nothing to write; there need not even be a file
    with _change(environ) as (page, before):
        page["current"] = None
        return before.current


def remove(environ: Mapping[str, str], name: str) -> bool:
    """Remove a profile; say whether it was the current one. Then none is.

    Raises:
        OptionError: It is built in.
        SettingsError: None has this name, or the file cannot be read or written.
    """
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
            why="it means this machine, always; it cannot be created, replaced or removed",
            next=f"kinetic profile use {LOCAL.name}",
        )


@contextlib.contextmanager
def _change(environ: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], Profiles]]:
    """Give the file's page, to be changed in place, and what it says; write it back unless the body raises.

    A file that cannot be read is never written.
    """
    file = Path(os.path.realpath(profiles_file(environ)))
    with _writing(file), _gate, _locked(file):
        page, before = load_page(environ)
        yield page, before
        _write(file, page)


@contextlib.contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Tell in our words what the system refuses."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"the profiles in {file} cannot be written",
            why=f"{error.filename or file}: {error.strerror or error}",
            next="see to it that you may write there, or set KINETIC_PROFILES_FILE to another file",
        ) from error


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock beside a file. It is free the moment its holder is gone, so a killed one stops nobody."""
    file.parent.mkdir(_PRIVATE_FOLDER, parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.lock")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
    try:
        if _take(descriptor, beside):
            _remove_leftovers(file)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, beside: Path) -> bool:
    """Wait for the lock; False where the file system has no locks."""
    limit = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno not in _BUSY:
                raise
        else:
            return True
        if time.monotonic() > limit:
            raise SettingsError(
                "the profiles are being written by another process",
                why=f"it has held {beside} for {_PATIENCE_SECONDS:g} s",
                next="try again; if it never ends, look for a process of kinetic that is stopped",
            )
        time.sleep(_LOOK_SECONDS)


def _remove_leftovers(file: Path) -> None:
    """Remove what killed writers left: whoever holds the lock is the only writer."""
    for left in file.parent.glob(f".{file.name}.*.new"):
        left.unlink(missing_ok=True)


def _write(file: Path, page: dict[str, Any]) -> None:
    beside = file.with_name(f".{file.name}.{os.urandom(4).hex()}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)
    try:
        with open(descriptor, "w", encoding="utf-8") as new:
            json.dump(page, new, indent=2, sort_keys=True)
            new.write("\n")
            new.flush()
            os.fsync(new.fileno())
        os.replace(beside, file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """Keep the new name through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
