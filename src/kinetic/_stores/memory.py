"""A store in this process's memory: for users' tests and for ours."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kinetic._stores.protocol import Entry, Source, check_key, check_prefix, is_hidden
from kinetic.errors import KeyMissingError


class MemoryStore:
    """Keep objects in a dictionary; gone with the process."""

    def __init__(self, name: str = "default") -> None:
        self.url = f"memory://{name}"
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    @property
    def local(self) -> None:
        """None: no folder of this machine."""

    def put(self, key: str, source: Source, *, if_absent: bool = False) -> bool:
        """Write an object; see the protocol."""
        check_key(key)
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
        else:
            data = Path(source).read_bytes() if isinstance(source, os.PathLike) else b"".join(source)
        with self._lock:
            if if_absent and key in self._objects:
                return False
            self._objects[key] = (data, time.time())
            return True

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of an object; see the protocol."""
        found = self._find(key)
        if found is None:
            raise KeyMissingError(f"nothing is stored under {key!r}", why=f"looked in {self.url}")
        return found[0][start:] if length is None else found[0][start : start + length]

    def fetch(self, key: str, to: os.PathLike[str]) -> None:
        """Copy an object into a local file; see the protocol."""
        data = self.get(key)
        target = Path(to)
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        beside.write_bytes(data)
        beside.replace(target)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None; see the protocol."""
        found = self._find(key)
        return None if found is None else len(found[0])

    def entry(self, key: str) -> Entry | None:
        """Return size and age of an object, or None; see the protocol."""
        found = self._find(key)
        return None if found is None else Entry(key, len(found[0]), found[1])

    def touch(self, key: str) -> bool:
        """Make an object young again; see the protocol."""
        check_key(key)
        with self._lock:
            if key in self._objects:
                self._objects[key] = (self._objects[key][0], time.time())
            return key in self._objects

    def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        """List objects under a prefix in key order; see the protocol."""
        check_prefix(prefix)
        with self._lock:
            found = [(key, value) for key, value in self._objects.items() if key.startswith(prefix) and key > after]
        return iter([Entry(key, len(data), at) for key, (data, at) in sorted(found) if prefix or not is_hidden(key)])

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders directly below a prefix; see the protocol."""
        below = (entry.key[len(prefix) :] for entry in self.entries(prefix))
        return iter(sorted({key.split("/", 1)[0] for key in below if "/" in key}))

    def delete(self, prefix: str) -> int:
        """Delete one key or everything under a prefix; see the protocol."""
        check_key(prefix.removesuffix("/"))
        with self._lock:
            doomed = [key for key in self._objects if key == prefix or (prefix[-1:] == "/" and key.startswith(prefix))]
            for key in doomed:
                del self._objects[key]
            return len(doomed)

    def sweep(self, *, older_than_seconds: float = 86400.0) -> int:  # noqa: ARG002 - of the protocol
        """Delete nothing: an interrupted writer leaves nothing here; see the protocol."""
        return 0

    def _find(self, key: str) -> tuple[bytes, float] | None:
        check_key(key)
        with self._lock:
            return self._objects.get(key)
