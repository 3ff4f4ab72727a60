"""Bytes by key: the stores that hold everything durable, and how one is opened by its address."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from kinetic._stores.protocol import (
    CREDENTIAL_VARIABLES,
    Entry,
    LocalStore,
    Source,
    Store,
    put_file,
    put_hint,
    put_many,
    scratch_folder,
)
from kinetic.errors import OptionError

__all__ = [
    "Entry",
    "LocalStore",
    "Source",
    "Store",
    "is_loaded",
    "open_anew",
    "open_store",
    "preload",
    "put_file",
    "put_hint",
    "put_many",
    "scratch_folder",
]

_memory: dict[str, Store] = {}
_open: dict[tuple[str | None, ...], Store] = {}  # connections and tokens are worth keeping
_lock = threading.Lock()


def open_store(url: str) -> Store:
    """Open the store at an address.

    Args:
        url: ``gs://bucket/prefix``, ``s3://bucket/prefix``, ``file:///absolute/folder``, an absolute folder, or
            ``memory://name`` (this process only).
    """
    if url.startswith("memory://"):
        from kinetic._stores.memory import MemoryStore  # only tests use it

        return _memory.setdefault(url, MemoryStore(url.removeprefix("memory://")))
    if url.startswith(("gs://", "s3://")):
        # Once per process, and anew when the credentials of the environment change.
        known = (url, str(os.getpid()), *(os.environ.get(name) for name in CREDENTIAL_VARIABLES))
        with _lock:
            if known not in _open:
                _open[known] = _open_bucket(url)
            return _open[known]
    path = url.removeprefix("file://")
    if path.startswith("/"):
        from kinetic._stores.files import FileStore

        return FileStore(path)
    raise OptionError(
        f"{url!r} is not a store that kinetic can open",
        why="stores: gs://bucket/prefix, s3://bucket/prefix, file:///folder, memory://name",
        next="unset KINETIC_STORE, or give it such an address",
    )


def open_anew(url: str) -> Store:
    """Open a store whose credentials expired: those that are there now count, as after another login."""
    with _lock:
        for known in [known for known in _open if known[0] == url]:
            del _open[known]
    return open_store(url)


def preload(url: str) -> None:
    """Import what opens the store at an address, if it is there; no thread starts, so a process may fork afterwards."""
    if url.startswith(("gs://", "s3://")):
        with contextlib.suppress(ImportError):
            import obstore.exceptions
            import obstore.store  # noqa: F401 - 20 ms

            from kinetic._stores import bucket  # noqa: F401 - as above


def is_loaded(url: str) -> bool:
    """Return whether ``preload`` found what opens the store at an address."""
    return "obstore.store" in sys.modules or not url.startswith(("gs://", "s3://"))


def _open_bucket(url: str) -> Store:
    try:
        import obstore  # noqa: F401 - 12 ms; whether it is there
    except ImportError as error:
        raise OptionError(
            f"{url!r} cannot be opened here",
            why=f"obstore, which opens gs:// and s3://, is missing: {error}",
            next="pip install obstore; in an image of your own, add the line RUN pip install obstore",
        ) from error
    from kinetic._stores.bucket import BucketStore

    return BucketStore(url)
