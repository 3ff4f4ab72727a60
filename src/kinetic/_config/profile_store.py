"""Saved places: writing the file with the profiles, whole or not at all, and one writer after another.

    profiles.json               0600; what a later version of kinetic wrote into it stays there
    .profiles.json.lock         held by whoever reads the file, changes it and writes it back
    .profiles.json.{word}.new   being written; one whose writer was killed is removed by the next writer

If ``profiles.json`` is a link, the file that it leads to is replaced and the link stays.
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
from typing import Any

from kinetic._config import profiles
from kinetic._config.profiles import FIELDS, LOCAL, Profile, Profiles
from kinetic.errors import OptionError, SettingsError

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
    profiles.check_name(profile.name)
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
        profile = _found(before, name, "kinetic profile use {nearest}")
        page["current"] = name
        return profile


def unset(environ: Mapping[str, str]) -> str:
    """Leave no profile the current one; return the name of the one that was, "" for none.

    Raises:
        SettingsError: The file cannot be read or written.
    """
    current = profiles.load(environ).current
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
        _found(before, name, "kinetic profile list")
        del page["profiles"][name]
        if before.current == name:
            page["current"] = None
        return before.current == name


def _found(saved: Profiles, name: str, way: str) -> Profile:
    profile = saved.get(name)
    if profile is None:
        raise profiles.unknown(name, saved, way=way)
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
    file = Path(os.path.realpath(profiles.profiles_file(environ)))
    with _writing(file), _gate, _locked(file):
        page, before = profiles.load_page(environ)
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
            _sweep(file)
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


def _sweep(file: Path) -> None:
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
