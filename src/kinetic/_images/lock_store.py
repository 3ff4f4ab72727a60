"""Locks that were made: in the store for every machine of this user, and on this machine to ask the store nothing.

    store      data/locks/{key}            sealed: the lock of some requirement lines, and the base that it was made for
    machine    {cache}/images/{key}        the same
    machine    {cache}/images/last-{hash}  the last lock of a project: its versions are kept where they still fit
    machine    {cache}/images/export-{hash}  the lines of a project's uv.lock, and the digest of what they came from

A lock decides which programs run in jobs. It is believed only with the seal of this home's key; what somebody else
wrote is resolved anew.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kinetic._config import home
from kinetic._config.variables import read_variable
from kinetic._images import lock as locks
from kinetic._images import uv
from kinetic._images.base_image import BaseImage
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform, Source
from kinetic._images.request import plain_wheel
from kinetic._images.uv import Stop
from kinetic._images.wheels import with_indexes
from kinetic._output import terminal as output
from kinetic._stores.protocol import Store
from kinetic._wire import addresses, digests, documents, folders, keys, python_runtime
from kinetic.errors import IntegrityError, KeyMissingError

_SECRET = re.compile("PASSWORD|USERNAME|TOKEN|SECRET")  # of names of variables: they change no lines


@dataclass(frozen=True)
class LockRequest:
    """Which packages are locked, for which jobs, and where the locks of this home are."""

    lines: Sequence[str]  # of a requirements file
    python: str  # X.Y of the client, and so of the job
    machine: str  # "x86_64" or "aarch64", as the hosts of the job are
    store: Store  # where locks are kept
    environ: Mapping[str, str]  # of this client: its home, the settings of its index, and whether to resolve anew
    project: str = ""  # the versions of its last lock are kept where they still fit; "" for none
    stop: Stop | None = None  # ends it from another thread

    @property
    def is_upgrade(self) -> bool:
        """Return whether all is resolved anew, with the newest versions that the lines allow."""
        return read_variable("KINETIC_UPGRADE", self.environ) == "1"


@dataclass(frozen=True)
class Locked:
    """A lock and the base image that it is for."""

    lock: Lock  # which files
    base: BaseImage | None = None  # on which image; None for a lock of this machine itself
    source: str = ""  # where the base was found, "registry/name@sha256:…"; "" without one
    named: tuple[str, ...] = ()  # the packages that the requirement lines name themselves
    indexes: tuple[str, ...] = ()  # that they name, as "NAME=ADDRESS"; those with a password in them are left out

    def with_logins(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return variables with which its files are fetched: uv has logins by the names of indexes."""
        return with_indexes(environ, [locks.filled(each, environ) for each in self.indexes])


def _build_locked(page: dict[str, Any], what: str) -> Locked:
    try:
        platform = Platform(str(page["python"]), str(page["machine"]), str(page["glibc"]))
        base = BaseImage.from_json(page["base"]) if page["base"] else None
        named = tuple(map(str, page["named"]))
        built = [Wheel(**each) for each in page.get("built", ())]
        lock = locks.with_built(locks.read(platform, str(page["pylock"])), built)
        indexes = tuple(map(str, page.get("indexes", ())))
        return Locked(lock, base, str(page["source"]), named, indexes)
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{what} is damaged", why=f"{type(error).__name__}: {error}") from error


def _build_wheel(page: dict[str, Any], what: str) -> Wheel:
    try:
        return Wheel(**page["wheel"])
    except (KeyError, TypeError) as error:
        raise IntegrityError(f"{what} is damaged", why=f"{type(error).__name__}: {error}") from error


LOCK = documents.PageKind("lock", "the lock", _build_locked, 8 << 20)
BUILT = documents.PageKind("built-wheel", "the note of a wheel", _build_wheel, 1 << 14)


def read_lock(store: Store, at: str, environ: Mapping[str, str]) -> Locked:
    """Return the lock with which a job ran.

    Raises:
        KeyMissingError: It is not in the store.
        IntegrityError: This home did not write it.
    """
    _, key = home.own_key(home.ensure_home(environ))
    return documents.open_page(LOCK, store, at, key)


def known(request: LockRequest, name: str) -> Locked | None:
    """Return the lock that answers a request, unless that asks for a new one."""
    return None if request.is_upgrade else find(name, request.store, request.environ)


def find(name: str, store: Store, environ: Mapping[str, str], *, here: bool = True) -> Locked | None:
    """Return a lock of this home's, from this machine (unless ``here`` is false) or from the store."""
    at, file = keys.lock(name), folder(environ) / name
    _, key = home.own_key(home.ensure_home(environ))
    in_the_store = partial(documents.fetch, store, at, LOCK.most_bytes, LOCK.what)
    for read in (file.read_bytes, in_the_store) if here else (in_the_store,):
        try:
            data = read()
            found = documents.verify(LOCK, documents.read(data, LOCK.what, most_bytes=LOCK.most_bytes), at, key)
        except (FileNotFoundError, KeyMissingError, IntegrityError):
            continue
        if read is in_the_store:
            folders.write_whole(file, data)
        return found
    return None


def make(
    request: LockRequest,
    platform: Platform,
    name: str,
    *,
    say: Callable[[str], None] = lambda _: None,
    source: Path | None = None,
    base: tuple[BaseImage, str] | None = None,
) -> Locked:
    """Resolve requirement lines and keep the lock; what the project's last lock has stays, except in an upgrade.

    See ``lock.resolve``; ``base`` is the base image and where it was found.
    """
    project, environ = request.project, request.environ
    own, any_platform = (_last(project, environ, word) for word in (f"{platform.tag} {platform.python}", "any"))
    before = "" if request.is_upgrade or not project else _text(own) or _text(any_platform)
    lock = locks.resolve(request.lines, platform, say, before=before, source=source, stop=request.stop)
    if warning := locks.old_jax(lock, dt.datetime.now(dt.UTC), request.stop):
        output.warn(
            warning,
            why="no newer one fits the other requirements, this Python, or the platform",
            next="raise or remove the pins that keep it, or resolve again: KINETIC_UPGRADE=1",
        )
    image, place = base or (None, "")
    plain = (each for each in locks.indexes(request.lines, {}) if not addresses.secret_in(each, variables=True))
    found = Locked(lock, image, place, locks.named(request.lines), tuple(plain))
    keep(found, name, request.store, environ)
    if project:
        for file in (own, any_platform):
            folders.write_whole(file, lock.text.encode())
    return found


def keep(locked: Locked, name: str, store: Store, environ: Mapping[str, str]) -> None:
    """Keep a lock in the store and on this machine."""
    _, key = home.own_key(home.ensure_home(environ))
    platform = locked.lock.platform
    page = {
        "python": platform.python,
        "machine": platform.machine,
        "glibc": platform.glibc,
        "pylock": locked.lock.text,
        "built": [plain_wheel(wheel) for wheel in locked.lock.wheels if wheel.url.startswith("store:")],
        "base": locked.base.to_json() if locked.base is not None else None,
        "source": locked.source,
        "named": locked.named,
        "indexes": locked.indexes,
    }
    data = documents.seal_page(LOCK, page, keys.lock(name), key)
    store.put(keys.lock(name), data)
    folders.write_whole(folder(environ) / name, data)


def with_known_wheels(lock: Lock, store: Store, environ: Mapping[str, str]) -> Lock:
    """Return a lock with the wheels that were built from the same source before, on such a platform."""
    _, key = home.own_key(home.ensure_home(environ))
    found: list[Wheel] = []
    for source in locks.sources(lock):
        try:
            found.append(documents.open_page(BUILT, store, _built_at(source, lock), key))
        except (KeyMissingError, IntegrityError):
            continue
    held = [wheel for wheel in found if store.touch(keys.built_wheel(wheel.sha256))]
    return locks.with_built(lock, held)


def keep_built(lock: Lock, made: Sequence[tuple[Wheel, bytes]], store: Store, environ: Mapping[str, str]) -> Lock:
    """Keep wheels that were built from source, and return the lock with them; first the bytes, then what names them."""
    _, key = home.own_key(home.ensure_home(environ))
    by_name = {wheel.name: wheel for wheel, _ in made}
    for wheel, data in made:
        store.put(keys.built_wheel(wheel.sha256), data)
    for source in locks.sources(lock):
        if source.name in by_name:
            at = _built_at(source, lock)
            store.put(at, documents.seal_page(BUILT, {"wheel": plain_wheel(by_name[source.name])}, at, key))
    return locks.with_built(lock, [*by_name.values()])


def _built_at(source: Source, lock: Lock) -> str:
    about = "\0".join((source.sha256 or source.url, lock.platform.tag, lock.platform.python))
    return keys.lock(f"built-{digests.of_bytes(about.encode())}")


def exported(project: Path, extras: Sequence[str], groups: Sequence[str], *, environ: Mapping[str, str]) -> list[str]:
    """Return the uv.lock of a project, or the lock of a script, as lines; uv is started only after a change.

    Raises:
        ImageBuildError: uv is missing, or cannot read the lock.
    """
    wanted = [*extras], [*groups]
    of = _digest_of_project(project, wanted, environ)
    file = folder(environ) / f"export-{digests.of_bytes(f'{project} {wanted}'.encode())[:32]}"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        page = json.loads(file.read_bytes())
        if page["of"] == of:
            return [str(line) for line in page["lines"]]
    lines = uv.export_lock(project, *wanted)
    if not any(map(addresses.secret_in, lines)):
        with contextlib.suppress(OSError):
            folders.write_whole(file, json.dumps({"of": of, "lines": lines}).encode())
    return lines


def _digest_of_project(project: Path, wanted: tuple[list[str], list[str]], environ: Mapping[str, str]) -> str:
    """Return the digest of all that decides what uv exports: files, settings, and uv itself."""
    settings = {name: value for name, value in environ.items() if name.startswith("UV_") and not _SECRET.search(name)}
    parts = [json.dumps([sorted(settings.items()), wanted, uv.EXPORT]).encode()]
    root = next((each for each in (project, *project.parents) if (each / "uv.lock").is_file()), project)
    of_script = project, Path(f"{project}.lock")
    for name in (
        *of_script,
        project / "pyproject.toml",
        *(root / name for name in ("uv.lock", "pyproject.toml", "uv.toml")),
    ):
        try:
            parts.append(name.read_bytes())
        except OSError:
            parts.append(b"")
    program = python_runtime.find_installer()
    with contextlib.suppress(OSError):
        about = os.stat(program or "")
        parts.append(f"{program} {about.st_mtime_ns} {about.st_size}".encode())
    return digests.of_bytes(b"".join(digests.of_bytes(part).encode() for part in parts))


def folder(environ: Mapping[str, str]) -> Path:
    """Return where this machine keeps locks, and what it knows of images."""
    return home.kinetic_home(environ) / "cache" / "images"


def _last(project: str, environ: Mapping[str, str], platform: str) -> Path:
    return folder(environ) / f"last-{digests.of_bytes(f'{project} {platform}'.encode())[:32]}"


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
