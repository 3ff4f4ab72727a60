"""A store in this process's memory: for users' tests and for ours."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kinetic._stores.protocol import Entry, Source, check_key, check_prefix, is_hidden
from kinetic.errors import KeyMissingError

_Folder = dict[str, Any]  # by name: the bytes of an object and its age, or a further folder


class MemoryStore:
    """Keep objects in a dictionary; gone with the process."""

    def __init__(self, name: str = "default") -> None:
        self.url = f"memory://{name}"
        self._root: _Folder = {}  # folders, so that a listing costs what is below its prefix, and nothing else
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
        *above, name = key.split("/")
        with self._lock:
            folder = self._root
            for each in above:
                folder = folder.setdefault(f"{each}/", {})
            if if_absent and name in folder:
                return False
            folder[name] = (data, time.time())
            return True

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of an object; see the protocol."""
        found = self._find(key)
        if found is None:
            raise KeyMissingError(f"nothing is stored under {key!r}", why=f"looked in {self.url}")
        return found[0][start:] if length is None else found[0][start : start + length]

    def fetch(self, key: str, to: os.PathLike[str], received: Callable[[int], object] | None = None) -> None:
        """Copy an object into a local file; see the protocol."""
        data = self.get(key)
        target = Path(to)
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        beside.write_bytes(data)
        beside.replace(target)
        if received is not None:
            received(len(data))

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
        inside, slash, name = key.rpartition("/")
        with self._lock:
            folder = self._folder(inside + slash)
            if name in folder:
                folder[name] = (folder[name][0], time.time())
            return name in folder

    def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        """List objects under a prefix in key order; see the protocol."""
        check_prefix(prefix)
        with self._lock:
            found = [entry for entry in _entries_below(self._folder(prefix), prefix) if entry.key > after]
        return iter([entry for entry in found if prefix or not is_hidden(entry.key)])

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders directly below a prefix; see the protocol."""
        check_prefix(prefix)
        with self._lock:
            found = sorted(name[:-1] for name in self._folder(prefix) if name.endswith("/"))
        return iter([name for name in found if prefix or not is_hidden(name)])

    def delete(self, prefix: str) -> int:
        """Delete one key or everything under a prefix; see the protocol."""
        check_key(prefix.removesuffix("/"))
        *above, name = prefix.removesuffix("/").split("/")
        with self._lock:
            way = [self._root]
            for each in above:
                way.append(way[-1].get(f"{each}/", {}))
            gone = way[-1].pop(f"{name}/" if prefix.endswith("/") else name, {})
            for folder, each in zip(reversed(way[:-1]), reversed(above), strict=True):
                if not folder.get(f"{each}/", True):
                    del folder[f"{each}/"]
            return sum(1 for _ in _entries_below(gone, prefix)) if isinstance(gone, dict) else 1

    def sweep(self, *, older_than_seconds: float = 86400.0) -> int:  # noqa: ARG002 - of the protocol
        """Delete nothing: an interrupted writer leaves nothing here; see the protocol."""
        return 0

    def _find(self, key: str) -> tuple[bytes, float] | None:
        check_key(key)
        inside, slash, name = key.rpartition("/")
        with self._lock:
            found: tuple[bytes, float] | None = self._folder(inside + slash).get(name)
            return found

    def _folder(self, prefix: str) -> _Folder:
        folder = self._root
        for each in prefix.split("/")[:-1]:
            folder = folder.get(f"{each}/", {})
        return folder


def _entries_below(folder: _Folder, prefix: str) -> Iterator[Entry]:
    for name, found in sorted(folder.items()):
        if isinstance(found, dict):
            yield from _entries_below(found, f"{prefix}{name}")
        else:
            yield Entry(f"{prefix}{name}", len(found[0]), found[1])
