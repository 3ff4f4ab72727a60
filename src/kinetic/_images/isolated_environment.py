"""Isolated environments: installed by uv from a lock, once, and used by every job that needs the same.

    {cache}/{digest}/{build}/bin/python     one build; its name is random, so that no other process writes there
    {cache}/{digest}/complete               the name of the build that is complete
    {cache}/{digest}/used                   touched at each use
    {cache}/{digest}.lock                   held during a build
    {cache}/{digest}/bin/python             a copy of an environment that `uv run --with` removes; no build

An environment contains its own absolute path, so it cannot be built beside and moved. Each build has a folder of its
own instead: if its builder is killed, the uv that it started may keep writing for a while, and harms nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kinetic._wire import NamedTuple, digests, documents, folders, keys
from kinetic.errors import ImageBuildError, OptionError

if TYPE_CHECKING:
    from kinetic._images.lock import Lock
    from kinetic._stores.protocol import Store

VARIABLE = "KINETIC_LOCAL_ENV"
UNUSED_SECONDS = 30 * 24 * 3600.0
_NAME_LENGTH = 24  # hexadecimal digits

Say = Callable[[str], None]
_gates: dict[str, threading.Lock] = {}  # by lock file: the lock excludes other processes, this one other threads


def wanted(environ: Mapping[str, str]) -> Literal["same", "isolated"]:
    """Return where jobs on this machine run: in the interpreter that submits them, or in an isolated environment."""
    value = environ.get(VARIABLE) or "same"
    if value == "isolated":
        return "isolated"
    if value != "same":
        raise OptionError(
            f"{VARIABLE}={value!r} is not valid",
            why="same: jobs run in the interpreter that submits them; isolated: in an environment built for them",
            next=f"export {VARIABLE}=isolated, or unset it",
        )
    return "same"


class Environment(NamedTuple):
    """An environment that is complete."""

    python: Path  # its interpreter
    lock: str  # where its lock is in the store; "" for an environment without packages


def ready(
    lines: Sequence[str],
    *,
    cache: Path,
    python: str,
    say: Say,
    store: Store,
    environ: Mapping[str, str],
    project: str = "",
    base: Sequence[str] = (),
    source: Path | None = None,
) -> Environment:
    """Return an environment with these dependencies; lock and build it if there is none.

    Args:
        lines: Requirements and options, one line each, as ``_project.dependencies`` returns them.
        cache: The folder of environments; on a local disk, because of its locks.
        python: The client's Python, X.Y.Z; its base interpreter goes into the environment.
        say: Receives what the user should know while it is built, line by line; uv's own output too.
        store: Where locks are kept.
        environ: Names the home, and what applies to the package index.
        project: Whose last lock counts, also one for a cluster: its versions are kept where they still fit.
        base: Packages that a base image would bring, e.g. ``jax`` where the project's own was filtered out.
        source: The file that the lines come from, for messages.

    Raises:
        ImageBuildError: uv is missing, there is no solution, or it could not build it. Nothing is left of the attempt.
        AccessDeniedError: A package index wants a login.
    """
    from kinetic._images import lock as locks  # 40 ms with what reads locks of images; the rest of this file is light
    from kinetic._images import lock_store, uv
    from kinetic._images.lock import Lock

    wanted = [*(" ".join(line.split()) for line in lines), *base]
    platform = locks.here(".".join(python.split(".")[:2]))
    name = locks.key_of([*wanted, uv.base_interpreter()], platform, environ)

    def locked() -> Lock:
        if not wanted:
            return Lock(platform, (), (), "")
        request = lock_store.LockRequest(wanted, platform.python, platform.machine, store, environ, project)
        known = lock_store.known(request, name)
        if known is None:
            uv.uv_command()  # before anything is announced
            say(f"resolving the packages{f' of {source}' if source else ''} for this machine")
            known = lock_store.make(request, platform, name, source=source, say=say)
        return known.lock

    try:
        with _alone(cache / f"{name[:24]}.lock", say):  # two that need the same lock resolve once
            lock = locked()
        settings = locks.install_settings(lines)
        place = cache / _digest(lock, settings)
        found = _complete(place)
        if found is None:
            with _alone(place.with_suffix(".lock"), say):
                indexes = locks.indexes(lines, environ)
                with_indexes = replace(lock, text=locks.with_indexes(lock.text, lines, cache, indexes))
                found = _complete(place) or _build(place, with_indexes, python, say, source, indexes, settings)
        (place / "used").touch()
    except OSError as error:
        raise ImageBuildError(
            "the isolated environment could not be built",
            why=f"{type(error).__name__}: {error}",
            next=f"check free space and permissions: df -h {cache}; ls -ld {cache}",
        ) from error
    return Environment(found, keys.lock(name) if wanted else "")


def lasting_copy(cache: Path) -> Path:
    """Return the interpreter of a copy of this environment that stays; see ``python_runtime.is_overlay``."""
    own, base = Path(sys.prefix), os.path.realpath(sys.executable)
    found = [own / "pyvenv.cfg", *sorted(Path(sysconfig.get_path("purelib")).glob("*.pth"))]
    files = {file.relative_to(own): file.read_bytes() for file in found}
    place = cache / digests.of_bytes(b"\0".join([base.encode(), *files.values()]))[:_NAME_LENGTH]
    python = place / "bin" / "python"
    if not python.exists():
        for name, data in files.items():
            folders.write_whole(place / name, data)
        folders.make(python.parent)
        with contextlib.suppress(FileExistsError):  # of another process
            python.symlink_to(base)
    (place / "used").touch()
    return python


def stale(cache: Path, now: float) -> list[Path]:
    """Return the folders of environments that were not used for 30 days before ``now`` (Unix time).

    Where the home is a folder that the user had, there may be others beside ours.
    """
    try:
        places = sorted(
            place for place in cache.iterdir() if digests.is_hexadecimal(place.name, _NAME_LENGTH) and place.is_dir()
        )
    except FileNotFoundError:
        return []
    return [place for place in places if now - _last_use(place) > UNUSED_SECONDS]


def _digest(lock: Lock, settings: str = "") -> str:
    from kinetic._images import uv

    page = {
        "lock": lock.text,
        "python": lock.platform.python,
        "interpreter": uv.base_interpreter(),  # two builds of the same X.Y need not be alike
        "platform": [sysconfig.get_platform(), sys.implementation.cache_tag, sys.abiflags],
        "schema": 3,
        **({"settings": settings} if settings else {}),
    }
    return digests.of_bytes(documents.write(page))[:_NAME_LENGTH]


def _complete(place: Path) -> Path | None:
    """Return the interpreter of a complete build; None also if the Python below it is gone."""
    try:
        python = place / (place / "complete").read_text() / "bin" / "python"
    except FileNotFoundError:
        return None
    return python if python.exists() else None


@contextlib.contextmanager
def _alone(lock: Path, say: Say) -> Iterator[None]:
    """Hold a lock, which is released when its holder ends, however that happens."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    gate, flags = _gates.setdefault(str(lock), threading.Lock()), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with gate, folders.closing(os.open(lock, flags, 0o600)) as descriptor:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another kinetic process that builds the same environment")
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield


def _build(
    place: Path, lock: Lock, python: str, say: Say, source: Path | None, indexes: Sequence[str], settings: str
) -> Path:
    from kinetic._images import uv

    uv.uv_command()  # before anything is announced
    begun = time.monotonic()
    shutil.rmtree(place, ignore_errors=True)  # what a killed builder left behind
    build = place / os.urandom(4).hex()
    build.mkdir(mode=0o700, parents=True)
    say(f"building an environment for Python {python}{f' from {source}' if source else ''}; it is kept for later jobs")
    try:
        _create(build, say)
        if lock.text:
            _install(build, lock, say, source, indexes, settings)
        _mark(place, build.name)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    say(f"built the environment in {time.monotonic() - begun:.1f} s")
    return build / "bin" / "python"


def _create(build: Path, say: Say) -> None:
    from kinetic._images import uv

    interpreter = uv.base_interpreter()
    done = uv.run_uv(["venv", "--quiet", "--no-project", "--allow-existing", "--python", interpreter, "."], build, say)
    if done.status:
        raise ImageBuildError(
            "the isolated environment could not be created",
            why=done.reason,
            next=f"run it by hand: {' '.join(uv.uv_command())} venv --python {interpreter} /tmp/try",
        )


def _install(build: Path, lock: Lock, say: Say, source: Path | None, indexes: Sequence[str], settings: str) -> None:
    from kinetic._images import lock as locks
    from kinetic._images import uv
    from kinetic._wire import http_client

    (build / locks.FILE).write_text(lock.text)
    if settings:
        (build / "pyproject.toml").write_text(settings)  # uv reads the one of the folder that it is run in
    python = str(build / "bin" / "python")
    words = ["pip", "install", "--preview-features", "pylock", "--python", python, "--requirement", locks.FILE]
    done = uv.run_uv(words, build, say, indexes=indexes, from_lock=True)  # a lock has addresses of files, and no login
    if done.status and (refused := locks.refusal(done)):
        raise refused
    if done.status:
        advice = locks.suggest_line(done.reason, [f"{name}=={at}" for name, at in lock.versions().items()], source)
        if any(f"(os error {number})" in done.reason for number in http_client.DISK_FULL):  # which names a package, too
            advice = f"free some space on the disk: df -h {build.parent.parent}"
        raise ImageBuildError(
            f"the isolated environment{f' for {source}' if source else ''} could not be built",
            why=done.reason,
            next=advice,
        )


def _mark(place: Path, build: str) -> None:
    """Mark a build as complete, atomically."""
    scratch = place / f"{build}.tmp"
    scratch.write_text(build)
    scratch.replace(place / "complete")


def _last_use(place: Path) -> float:
    for path in (place / "used", place):
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_mtime
    return float("inf")
