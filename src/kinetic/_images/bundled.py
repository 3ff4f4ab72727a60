"""The image of a job's dependencies: found with one request where nothing changed, else built by this client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from kinetic._config import home
from kinetic._images import base_image, builders, image, image_notes, lock_store
from kinetic._images import lock as locks
from kinetic._images.builders import CollectedError, RemoteBuilder
from kinetic._images.container_registry import MANIFEST, Login, Reference, Registry
from kinetic._images.docker_login import GoogleToken, KnownChallenges, find_login
from kinetic._images.image import BuiltImage, ImageBuilder
from kinetic._images.image_notes import ImageNote
from kinetic._images.lock import Lock, Platform
from kinetic._images.lock_store import Locked, LockRequest
from kinetic._images.request import BuildRequest
from kinetic._images.uplink import Uplinks
from kinetic._images.uv import Stop
from kinetic._images.wheels import EXTRA_INDEXES, WheelCache, with_indexes
from kinetic._output import terminal as output
from kinetic._output.format import count_text, duration_text, seconds_text, size_text
from kinetic._stores.protocol import Store
from kinetic._wire import digests, folders, keys
from kinetic.errors import ImageBuildError, ImageUnavailableError, IntegrityError

GLIBC = locks.GLIBC[base_image.SUITE]
POD_PACKAGES = ("obstore", "uv")  # without them a pod would install them at each start, to reach its store


@dataclass(frozen=True)
class Bundled:
    """The image of a job."""

    uri: str  # by digest
    lock_key: str  # where its lock is in the store
    lock: Lock  # what is in it
    built: BuiltImage  # what was done for it


def ensure(
    request: LockRequest,
    repository: str,
    *,
    google_token: GoogleToken | None = None,
    base: str = "",
    remotes: Callable[[], Sequence[RemoteBuilder]] = tuple,
    waits: bool = True,
) -> Bundled:
    """Return the image of some requirement lines in a registry; build it if it is missing.

    Args:
        request: What the project needs, and base packages for the hardware. Once it is stopped, no tag is written.
        repository: Where images go, e.g. "us-docker.pkg.dev/team/kinetic/kinetic".
        google_token: Returns a token of Google's for its registries; None without such a login.
        base: An image of the user's to build on instead of the official one.
        remotes: Returns builders elsewhere, for what this machine cannot send or compile; the preferred one first.
        waits: Whether a build elsewhere is waited for.

    Raises:
        ImageBuildError: No solution, no network, or the registry refuses.
        NotWaitingError: ``waits`` is false, and the image is being built elsewhere.
        AccessDeniedError: This account may not write to the repository.
        CredentialsError: The registry wants a login.
    """
    store, environ = request.store, request.environ
    work = _Work(store, environ, google_token, request.stop or Stop())
    locked, name = work.lock(request, base)
    work.environ = with_indexes(environ, locks.indexes(request.lines, environ))  # their logins fetch wheels, too
    if locked.lock.to_build:
        locked = replace(locked, lock=lock_store.with_known_wheels(locked.lock, store, environ))
    with work.builder(f"{repository}:env") as builder:
        built = None if locked.lock.to_build else builder.find(locked.lock, _base_of(locked))
        if built is None:
            builder.registry.check_writable()
            locked, built = work.build(locked, name, repository, builder, remotes, waits=waits)
    work.note_use(built, locked, keys.lock(name))
    return Bundled(built.uri, keys.lock(name), locked.lock, built)


def find(
    request: BuildRequest, *, environ: Mapping[str, str], google_token: GoogleToken | None = None
) -> BuiltImage | None:
    """Return the image of a request if its registry has it."""
    with connector(google_token, environ)(Reference.parse(f"{request.repository}:env")) as registry:
        return ImageBuilder(registry, _wheel_cache(environ)).find(request.lock, request.base)


def rebuild(
    uri: str, lock_key: str, store: Store, environ: Mapping[str, str], google_token: GoogleToken | None = None
) -> bool:
    """Build an image again that was removed from its registry; return whether it has the same digest.

    Raises:
        KeyMissingError: Its lock is not in the store any more.
        IntegrityError: Another home built it.
        ImageBuildError: As ``ensure``.
    """
    locked = lock_store.read_lock(store, lock_key, environ)
    work, name = _Work(store, environ, google_token, Stop()), lock_key.rpartition("/")[2]
    work.environ = locked.with_logins(environ)
    with work.builder(uri) as builder:
        locked, built = work.build(locked, name, uri.partition("@")[0], builder, tuple, waits=True)
    work.note_use(built, locked, lock_key)
    return built.uri == uri


def lock_without_image(request: LockRequest) -> tuple[Lock, str]:
    """Return the lock of some lines for pods of Python's own image, and its key in the store.

    Raises:
        ImageBuildError: No solution, or no uv.
    """
    platform = Platform(request.python, request.machine, GLIBC)
    name = locks.key_of([*request.lines, "# without an image"], platform, request.environ)
    make = partial(lock_store.make, request, platform, name)
    return (lock_store.known(request, name) or _resolve(make, "resolving packages")).lock, keys.lock(name)


class _Work:
    """What finds or builds the image of a lock: with a store, the registries, and what ends it."""

    def __init__(self, store: Store, environ: Mapping[str, str], google_token: GoogleToken | None, stop: Stop) -> None:
        self._store, self.environ, self._stop = store, environ, stop
        self._connect = connector(google_token, environ, stop)

    @contextmanager
    def builder(self, reference: str) -> Iterator[ImageBuilder]:
        with self._connect(Reference.parse(reference)) as registry:
            yield ImageBuilder(registry, _wheel_cache(self.environ, self._stop))

    def lock(self, request: LockRequest, named: str) -> tuple[Locked, str]:
        """Return the lock of some lines and its name; the platform is that of the base image, which may be named."""
        request = replace(request, lines=[*request.lines, *POD_PACKAGES], stop=self._stop)
        python, machine = request.python, request.machine
        name = locks.key_of([*request.lines, named], Platform(python, machine, GLIBC), request.environ)

        def make() -> Locked:
            cache = lock_store.folder(request.environ)
            base, source = base_image.find(python, machine, self._connect, named=named, cache=cache)
            self._stop.check()
            platform, place = Platform(python, machine, base.glibc), f"{source.host}/{source.name}@{base.digest}"
            return lock_store.make(request, platform, name, base=(base, place))

        return lock_store.known(request, name) or _resolve(make, "resolving the image's packages"), name

    def build(
        self,
        locked: Locked,
        name: str,
        repository: str,
        builder: ImageBuilder,
        remotes: Callable[[], Sequence[RemoteBuilder]],
        *,
        waits: bool,
    ) -> tuple[Locked, BuiltImage]:
        """Build the image of a lock, here or elsewhere; return its lock with the wheels that were built for it."""
        store, environ = self._store, self.environ
        _fetch_built(locked.lock, builder.cache, store)
        indexes = tuple(environ.get(EXTRA_INDEXES, "").split())
        request = BuildRequest(locked.lock, _base_of(locked), locked.source, repository, indexes)
        uplinks = Uplinks(lock_store.folder(environ) / "uplink.json")
        progress = _Lines(self._stop)
        show = partial(output.phase, "building the image", summary=False, detail=progress.detail)
        try:
            made = builders.build(
                request, builder, self._connect, progress, uplinks, remotes(), waits=waits, phase=show
            )
        except CollectedError:  # another client was waiting for the same build, and has kept its lock
            locked = lock_store.find(name, store, environ, here=False) or locked
            found = None if locked.lock.to_build else builder.find(locked.lock, _base_of(locked))
            if found is None:
                raise
            return locked, found
        if made.wheels:
            locked = replace(locked, lock=lock_store.keep_built(locked.lock, made.wheels, store, environ))
            lock_store.keep(locked, name, store, environ)
        made.finish()
        built = made.built
        written, sent = count_text(built.built_layers, "layer"), size_text(built.sent_bytes)
        output.report(f"built the image in {seconds_text(built.seconds)}: {written} written, {sent} sent")
        for path, winner in built.conflicts:
            output.warn_once(f"two packages bring /{path} with different contents; the one of {winner} is used")
        return locked, built

    def note_use(self, built: BuiltImage, locked: Locked, key: str) -> None:
        lock = locked.lock
        size = sum(wheel.size_bytes for wheel in lock.wheels)
        about = (lock.platform.python, lock.platform.machine, len(lock.wheels), size, time.time(), key)
        image_notes.note_use(ImageNote(built.uri, built.tag, *about), self._store, self.environ)


def _resolve(make: Callable[[], Locked], doing: str) -> Locked:
    begun = time.monotonic()
    with output.phase(doing, summary=False):
        lock = (locked := make()).lock
    size = sum(wheel.size_bytes for wheel in lock.wheels)
    count = count_text(len(lock.versions()), "package")
    output.report(f"resolved {count}, {size_text(size)}, in {seconds_text(time.monotonic() - begun)}")
    return locked


def _wheel_cache(environ: Mapping[str, str], stop: Stop | None = None) -> WheelCache:
    cache = WheelCache(home.kinetic_home(environ) / "cache" / "wheels", environ)
    if stop is not None:
        stop.when_set(cache.hang_up)
    return cache


def _fetch_built(lock: Lock, cache: WheelCache, store: Store) -> None:
    """Bring wheels that no index has into the cache, verified by the hashes of the lock."""
    for wheel in cache.missing(each for each in lock.wheels if each.url.startswith("store:")):
        data = store.get(keys.built_wheel(wheel.sha256))
        if digests.of_bytes(data) != wheel.sha256:
            raise IntegrityError(
                f"the wheel of {wheel.name} in the store is damaged", next="resolve again: KINETIC_UPGRADE=1"
            )
        folders.make(cache.folder)
        folders.write_whole(cache.path_of(wheel), data)


def _base_of(locked: Locked) -> base_image.BaseImage:
    if locked.base is None:
        raise ImageBuildError("this lock is for no image", why="it was made for jobs on one machine")
    return locked.base


class _StoppableRegistry(Registry):
    """A registry into which no tag is written once the work is to stop."""

    stop = Stop()  # never set

    def put_manifest(self, reference: str, data: bytes, media_type: str = MANIFEST) -> str:
        self.stop.check()
        return super().put_manifest(reference, data, media_type)


def connector(
    google_token: GoogleToken | None, environ: Mapping[str, str], stop: Stop | None = None
) -> base_image.Connect:
    """Return what opens the registry of a reference, with the login that this machine has for it."""
    challenges = KnownChallenges(lock_store.folder(environ) / "registries.json")

    def connect(reference: Reference) -> Registry:
        found: list[Login] = []

        def login(*, again: bool) -> Login:
            if again or not found:
                rejected = found[-1].token if found else ""
                found.append(find_login(reference.host, google_token, environ, rejected, repository=reference.name))
            return found[-1]

        found_registry = _StoppableRegistry(reference.host, reference.name, login, challenges=challenges)
        if stop is not None:
            found_registry.stop = stop
            stop.when_set(found_registry.hang_up)
        return found_registry

    return connect


class _Lines(image.Progress):
    """How far a build is, for one line of a terminal; where it ends the build if that is to stop."""

    def __init__(self, stop: Stop, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop, self._clock = stop, clock
        self._lock = threading.Lock()
        self._fetched = self._to_fetch = self._sent = self._to_send = 0
        self._begun = 0.0  # when the first layer was to be sent

    def detail(self) -> str:
        with self._lock:
            parts = []
            if self._fetched < self._to_fetch:
                parts.append(f"{size_text(self._fetched)} of {size_text(self._to_fetch)} fetched")
            if self._to_send:
                parts.append(f"{size_text(self._sent)} of {size_text(self._to_send)} sent{self._pace()}")
            return ", ".join(parts)

    def _pace(self) -> str:
        """Say how fast it goes and how long the rest takes, once that means something."""
        took = self._clock() - self._begun
        if self._sent <= 0 or took < 1:
            return ""
        rate = self._sent / took
        left = (self._to_send - self._sent) / rate
        return f" at {size_text(rate)}/s" + (f", {duration_text(left)} left" if left >= 1 else "")

    def fetching(self, size_bytes: int) -> None:
        self._add("_to_fetch", size_bytes)

    def fetched(self, size_bytes: int) -> None:
        self._add("_fetched", size_bytes)

    def sending(self, size_bytes: int) -> None:
        self._begun = self._begun or self._clock()
        self._add("_to_send", size_bytes)

    def sent(self, size_bytes: int) -> None:
        self._add("_sent", size_bytes)

    def _add(self, name: str, size_bytes: int) -> None:
        if size_bytes > 0:  # a negative number takes back what an attempt that failed had sent
            self._stop.check()
        with self._lock:
            setattr(self, name, getattr(self, name) + size_bytes)


def find_published(
    name: str, version: str, python: str, google_token: GoogleToken | None, environ: Mapping[str, str]
) -> str:
    """Return the tag of a prebuilt image, of those that ``publish`` writes: with its Python, else the plain one.

    Raises:
        ImageUnavailableError: The registry has neither.
        KineticError: The registry cannot be asked from here; the nodes may be able to.
    """

    def give_up(_: float) -> None:
        raise OSError("it does not answer")  # nodes may reach what this client cannot: it is not waited for

    reference = Reference.parse(f"{name}:{version}")
    with connector(google_token, environ)(reference) as registry:
        registry.sleep = give_up
        for tag in (f"{version}-py{python}", version):
            if registry.find_manifest(tag):
                return tag
    raise ImageUnavailableError(
        f"there is no prebuilt image {name}:{version}",
        why=f"{reference.host} has neither this tag nor {version}-py{python}",
        next=f"kinetic build-image --repo {name.rpartition('/')[0]} --category {name.rpartition('/base-')[2]}",
    )


def publish(found: Bundled, tags: Sequence[str], google_token: GoogleToken | None, environ: Mapping[str, str]) -> None:
    """Let more tags name an image, e.g. those of prebuilt images: "0.1.0-py3.12" and "0.1.0"."""
    name, _, digest = found.uri.partition("@")
    with connector(google_token, environ)(Reference.parse(f"{name}:env")) as registry:
        for tag in tags:
            registry.tag(digest, tag)
