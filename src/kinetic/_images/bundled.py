"""The image of a job's dependencies: found with one request where nothing changed, else built by this client.

    store      locks/{key}                sealed: the lock of some requirement lines, and the base that it was made for
    machine    {cache}/images/{key}       the same, so that a submission that changes nothing asks the store nothing

A lock decides which programs run in pods. It is believed only with the seal of this home's key; what somebody else
wrote is resolved anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kinetic._config import home
from kinetic._images import base_image, builders, image, inventory
from kinetic._images import lock as locks
from kinetic._images.base_image import BaseImage
from kinetic._images.builders import CollectedError, RemoteBuilder
from kinetic._images.docker_login import GoogleToken, find_login
from kinetic._images.image import BuiltImage, ImageBuilder
from kinetic._images.inventory import ImageNote
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform, Source
from kinetic._images.registry import Login, Reference, Registry
from kinetic._images.request import BuildRequest, plain_wheel
from kinetic._images.uplink import Uplinks
from kinetic._images.wheels import WheelCache
from kinetic._output import terminal as output
from kinetic._output.format import count_text, duration_text, size_text
from kinetic._stores.protocol import Store
from kinetic._wire import digests, documents, folders, keys
from kinetic.errors import IntegrityError, KeyMissingError

GLIBC = locks.GLIBC[base_image.SUITE]
POD_PACKAGES = ("obstore", "uv")  # without them a pod would install them at each start, to reach its store


@dataclass(frozen=True)
class Locked:
    """A lock and the base image that it is for.

    Attributes:
        lock: Which wheels.
        base: On which image.
        source: Where the base was found, "registry/name@sha256:…".
    """

    lock: Lock
    base: BaseImage
    source: str


@dataclass(frozen=True)
class Bundled:
    """The image of a job.

    Attributes:
        uri: By digest.
        lock_key: Where its lock is in the store.
        lock: What is in it.
        built: What was done for it.
    """

    uri: str
    lock_key: str
    lock: Lock
    built: BuiltImage


def _build_locked(page: dict[str, Any], what: str) -> Locked:
    try:
        platform = Platform(str(page["python"]), str(page["machine"]), str(page["glibc"]))
        lock = locks.with_built(
            locks.read(platform, str(page["pylock"])), [Wheel(**each) for each in page.get("built", ())]
        )
        return Locked(lock, BaseImage.from_json(page["base"]), str(page["source"]))
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


def ensure(
    lines: Sequence[str],
    repository: str,
    *,
    python: str,
    machine: str,
    store: Store,
    environ: Mapping[str, str],
    google_token: GoogleToken | None = None,
    project: str = "",
    upgrade: bool = False,
    base: str = "",
    remotes: Callable[[], Sequence[RemoteBuilder]] = tuple,
    waits: bool = True,
) -> Bundled:
    """Return the image of some requirement lines in a registry; build it if it is missing.

    Args:
        lines: Of a requirements file: what the project needs, and base packages for the hardware.
        repository: Where images go, e.g. "us-docker.pkg.dev/team/kinetic/kinetic".
        python: X.Y of the client, and so of the pod.
        machine: "x86_64" or "aarch64", as the accelerator's hosts are.
        store: Where locks are kept.
        environ: Of this client: its home, and where logins are.
        google_token: Returns a token of Google's for its registries; None without such a login.
        project: Names the project whose last lock's versions are kept where they still fit; "" for none.
        upgrade: Resolve anew, with the newest versions that the lines allow.
        base: An image of the user's to build on instead of the official one.
        remotes: Returns builders elsewhere, for what this machine cannot send or compile; the preferred one first.
        waits: Whether a build elsewhere is waited for.

    Raises:
        ImageBuildError: No solution, no network, or the registry refuses.
        NotWaitingError: ``waits`` is false, and the image is being built elsewhere.
        AccessDeniedError: This account may not write to the repository.
        CredentialsError: The registry wants a login.
    """
    target = Reference.parse(f"{repository}:env")
    platform = Platform(python, machine, GLIBC)
    wanted = [*lines, *POD_PACKAGES]
    name = locks.key_of([*wanted, base], platform, environ)
    connect = connector(google_token, environ)
    locked = None if upgrade else _known(name, store, environ)
    if locked is None:
        with output.phase("resolving the image's packages", summary=False):
            last = _file(f"last-{digests.of_bytes(f'{project} {platform.tag} {python}'.encode())[:32]}", environ)
            before = "" if upgrade or not project else _last_lock(last)
            locked = _resolve(wanted, platform, connect, base, before)
            _keep(locked, name, store, environ)
            folders.write_whole(last, locked.lock.text.encode())
    cache = WheelCache(home.kinetic_home(environ) / "cache" / "wheels", environ)
    if locked.lock.to_build:
        locked = replace(locked, lock=_with_known_wheels(locked.lock, store, environ))
    with connect(target) as registry:
        builder = ImageBuilder(registry, cache)
        if locked.lock.to_build or (built := builder.find(locked.lock, locked.base)) is None:
            _fetch_built(locked.lock, cache, store)
            request = BuildRequest(locked.lock, locked.base, locked.source, repository)
            uplinks = Uplinks(home.kinetic_home(environ) / "cache" / "images" / "uplink.json")
            progress = _Lines()
            show = partial(output.phase, "building the image", summary=False, detail=progress.detail)
            try:
                made = builders.build(request, builder, connect, progress, uplinks, remotes(), waits=waits, phase=show)
            except CollectedError:  # another client was waiting for the same build, and has kept its lock
                locked = _known(name, store, environ, here=False) or locked
                found = None if locked.lock.to_build else builder.find(locked.lock, locked.base)
                if found is None:
                    raise
                built = found
            else:
                built = made.built
                if made.wheels:
                    locked = replace(locked, lock=_keep_built(locked.lock, made.wheels, store, environ))
                    _keep(locked, name, store, environ)
                made.finish()
                written = count_text(built.built_layers, "layer")
                sent = size_text(built.sent_bytes)
                output.report(f"built the image in {duration_text(built.seconds)}: {written} written, {sent} sent")
                for path, winner in built.conflicts:
                    output.warn_once(f"two packages bring /{path} with different contents; the one of {winner} is used")
    size = sum(wheel.size_bytes for wheel in locked.lock.wheels)
    about = (python, machine, len(locked.lock.wheels), size, time.time(), keys.lock(name))
    inventory.note_use(ImageNote(built.uri, built.tag, *about), store, environ)
    return Bundled(built.uri, keys.lock(name), locked.lock, built)


def _resolve(lines: Sequence[str], platform: Platform, connect: base_image.Connect, named: str, before: str) -> Locked:
    base, source = base_image.find(platform.python, platform.machine, connect, named=named)
    lock = locks.resolve(lines, platform, lambda _: None, before=before)
    return Locked(lock, base, f"{source.host}/{source.name}@{base.digest}")


def _with_known_wheels(lock: Lock, store: Store, environ: Mapping[str, str]) -> Lock:
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


def _keep_built(lock: Lock, made: Sequence[tuple[Wheel, bytes]], store: Store, environ: Mapping[str, str]) -> Lock:
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


def _fetch_built(lock: Lock, cache: WheelCache, store: Store) -> None:
    """Bring wheels that no index has into the cache, verified by the hashes of the lock."""
    for wheel in cache.missing(each for each in lock.wheels if each.url.startswith("store:")):
        data = store.get(keys.built_wheel(wheel.sha256))
        if digests.of_bytes(data) != wheel.sha256:
            raise IntegrityError(f"the wheel of {wheel.name} in the store is damaged", next="resolve again: --upgrade")
        folders.make(cache.folder)
        folders.write_whole(cache.path_of(wheel), data)


def _known(name: str, store: Store, environ: Mapping[str, str], *, here: bool = True) -> Locked | None:
    """Return a lock of this home's, from this machine (unless ``here`` is false) or from the store."""
    at, file = keys.lock(name), _file(name, environ)
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


def _keep(locked: Locked, name: str, store: Store, environ: Mapping[str, str]) -> None:
    _, key = home.own_key(home.ensure_home(environ))
    platform = locked.lock.platform
    page = {
        "python": platform.python,
        "machine": platform.machine,
        "glibc": platform.glibc,
        "pylock": locked.lock.text,
        "built": [plain_wheel(wheel) for wheel in locked.lock.wheels if wheel.url.startswith("store:")],
        "base": locked.base.to_json(),
        "source": locked.source,
    }
    data = documents.seal_page(LOCK, page, keys.lock(name), key)
    store.put(keys.lock(name), data)
    folders.write_whole(_file(name, environ), data)


def _file(name: str, environ: Mapping[str, str]) -> Path:
    return home.kinetic_home(environ) / "cache" / "images" / name


def _last_lock(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def connector(google_token: GoogleToken | None, environ: Mapping[str, str]) -> base_image.Connect:
    """Return what opens the registry of a reference, with the login that this machine has for it."""

    def connect(reference: Reference) -> Registry:
        found: list[Login] = []

        def login(*, again: bool) -> Login:
            if again or not found:
                rejected = found[-1].token if found else ""
                found.append(find_login(reference.host, google_token, environ, rejected))
            return found[-1]

        return Registry(reference.host, reference.name, login)

    return connect


class _Lines(image.Progress):
    """How far a build is, for one line of a terminal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetched = self._to_fetch = self._sent = self._to_send = 0

    def detail(self) -> str:
        with self._lock:
            parts = []
            if self._fetched < self._to_fetch:
                parts.append(f"{size_text(self._fetched)} of {size_text(self._to_fetch)} fetched")
            if self._to_send:
                parts.append(f"{size_text(self._sent)} of {size_text(self._to_send)} sent")
            return ", ".join(parts)

    def fetching(self, size_bytes: int) -> None:
        self._add("_to_fetch", size_bytes)

    def fetched(self, size_bytes: int) -> None:
        self._add("_fetched", size_bytes)

    def sending(self, size_bytes: int) -> None:
        self._add("_to_send", size_bytes)

    def sent(self, size_bytes: int) -> None:
        self._add("_sent", size_bytes)

    def _add(self, name: str, size_bytes: int) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + size_bytes)


def publish(found: Bundled, tags: Sequence[str], google_token: GoogleToken | None, environ: Mapping[str, str]) -> None:
    """Let more tags name an image, e.g. those of prebuilt images: "0.1.0-py3.12" and "0.1.0"."""
    name, _, digest = found.uri.partition("@")
    with connector(google_token, environ)(Reference.parse(f"{name}:env")) as registry:
        for tag in tags:
            registry.tag(digest, tag)
