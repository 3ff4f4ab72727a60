"""Bytes by key: the stores that hold everything durable, and how one is opened by its address."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from kinetic._stores.protocol import (
    ACCESS_VARIABLES,
    CLOUDS,
    Entry,
    LocalStore,
    Source,
    Store,
    put_file,
    put_hint,
    put_many,
    scratch_folder,
)
from kinetic._wire import python_runtime
from kinetic.errors import KineticError, OptionError

__all__ = [
    "Entry",
    "LocalStore",
    "Source",
    "Store",
    "connect",
    "is_loaded",
    "open_anew",
    "open_store",
    "preload",
    "put_file",
    "put_hint",
    "put_many",
    "scratch_folder",
]

_NO_KEY = "connection"  # nothing is written there

_memory: dict[str, Store] = {}
_open: dict[tuple[str | None, ...], Store] = {}  # connections and tokens are worth keeping
_unused: dict[tuple[str | None, ...], Store] = {}  # with a client that sent nothing yet, also for what is forked
_lock = python_runtime.free_in_child(threading.Lock())


def open_store(url: str) -> Store:
    """Open the store at an address.

    Args:
        url: ``gs://bucket/prefix``, ``s3://bucket/prefix``, ``az://container@account/prefix``,
            ``file:///absolute/folder``, an absolute folder, or ``memory://name`` (this process only).
    """
    if url.startswith("memory://"):
        from kinetic._stores.memory import MemoryStore  # only tests use it

        return _memory.setdefault(url, MemoryStore(url.removeprefix("memory://")))
    if url.startswith(CLOUDS):
        # Once per process, and anew when the credentials of the environment change.
        around = _around(url)
        known = (*around, str(os.getpid()))
        with _lock:
            if known not in _open:
                _open[known] = _unused.pop(around) if around in _unused else _open_bucket(url)
            return _open[known]
    path = url.removeprefix("file://")
    if path.startswith("/"):
        from kinetic._stores.files import FileStore

        return FileStore(path)
    from kinetic._wire import addresses  # on the way to an error

    raise OptionError(
        f"{addresses.without_secrets(url)!r} is not a store that kinetic can open",
        why="stores: gs://bucket/prefix, s3://bucket/prefix, az://container@account/prefix, file:///folder, memory://name",
        next="unset KINETIC_STORE, or give it such an address",
    )


def open_anew(url: str) -> Store:
    """Open a store whose credentials expired: those that are there now count, as after another login."""
    with _lock:
        for each in (_open, _unused):
            for known in [known for known in each if known[0] == url]:
                del each[known]
    return open_store(url)


def preload(url: str) -> None:
    """Import what opens the store at an address, if it is there, and make its client for what this process forks.

    That takes 15 ms of CPU time where a machine trusts many certificates. No thread starts, so a process may fork
    afterwards.
    """
    if url.startswith(CLOUDS):
        with contextlib.suppress(ImportError):
            import obstore.exceptions
            import obstore.store  # noqa: F401 - 20 ms

            from kinetic._stores.bucket import BucketStore

            with contextlib.suppress(KineticError):  # who uses it hears of that
                store = BucketStore(url)
                store.make_client()
                _unused[_around(url)] = store


def connect(url: str) -> None:
    """Begin to connect to a store in the cloud, on a thread: TLS and a token are some round trips."""

    def ask() -> None:
        with contextlib.suppress(Exception):  # who needs it hears of that
            open_store(url).size(_NO_KEY)

    if is_loaded(url) and url.startswith(CLOUDS):
        python_runtime.start_thread(ask, "kinetic-connection")


def _around(url: str) -> tuple[str | None, ...]:
    """Return an address with what decides on the credentials that are used there."""
    found = [os.environ.get(name) for name in ACCESS_VARIABLES]
    stamp = None
    with contextlib.suppress(OSError):  # a file that is replaced in a Secret, which a client has read once
        about = os.stat(found[0] or "")
        stamp = f"{about.st_ino} {about.st_mtime_ns}"
    return (url, *found, stamp)


def is_loaded(url: str) -> bool:
    """Return whether ``preload`` found what opens the store at an address."""
    return "obstore.store" in sys.modules or not url.startswith(CLOUDS)


def _open_bucket(url: str) -> Store:
    try:
        import obstore  # noqa: F401 - 12 ms; whether it is there
    except ImportError as error:
        raise OptionError(
            f"{url!r} cannot be opened here",
            why=f"obstore, which opens {', '.join(CLOUDS)}, is missing: {error}",
            next="pip install obstore; in an image of your own, add the line RUN pip install obstore",
        ) from error
    from kinetic._stores.bucket import BucketStore

    return BucketStore(url)
