"""Packs on their way into the store: filled, closed when they are large enough, and handed over whole."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from kinetic._packing.packs import Finished, PackWriter
from kinetic._packing.reading import Read
from kinetic._stores.protocol import Store, put_file
from kinetic._wire import folders, trees

_LEFT_BEHIND_SECONDS = 24 * 3600  # a scratch file this old belongs to a process that was killed


class Sender:
    """Put blobs into packs, and packs into the store.

    Attributes:
        held: For each digest in the store, the pack that holds it; grows as packs are sent.
        indexes: The index of each pack that was written here.
        sizes: The size of each of them in bytes.
        sent_bytes: What the store did not have before.
    """

    def __init__(self, store: Store, there: Mapping[str, int], held: dict[bytes, str], cache: str) -> None:
        self._store = store
        self._there = there
        self._folder = cache if store.local is None else os.fspath(store.local.scratch())
        self._writer: PackWriter | None = None
        self._placed: set[bytes] = set()
        self.held = held
        self.indexes: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.sent_bytes = 0

    def holds(self, digest: bytes) -> bool:
        """Say whether a blob is in the store, or on its way."""
        return digest in self.held or digest in self._placed

    def writer(self) -> PackWriter:
        """Return the pack that is being filled."""
        if self._writer is None:
            self._prepare()
            self._writer = PackWriter(self._folder)
        return self._writer

    def add(self, read: Read) -> None:
        """Add a file that was read; a large one lies in the pack already."""
        if read.data is not None and not self.holds(read.digest):
            self.writer().add(read.digest, read.data)
        if read.digest not in self.held:
            self._placed.add(read.digest)
        if self.writer().size >= trees.SPLIT_BYTES:
            self.close()

    def add_node(self, digest: bytes, data: bytes) -> bytes:
        """Add a folder, unless it is held already; return its digest."""
        if not self.holds(digest):
            self.writer().add_node(digest, data)
            self._placed.add(digest)
        return digest

    def close(self) -> None:
        """Complete the pack that is being filled and put it into the store."""
        if self._writer is None:
            return
        finished = self._writer.finish()
        if finished:
            self._deliver(finished)
            self.indexes[finished.id] = finished.listed
            self.sizes[finished.id] = finished.size
            self.held.update((blob.digest, finished.id) for blob in finished.blobs)
        self._placed.clear()
        self._writer = None

    def discard(self) -> None:
        """Leave no unfinished pack behind."""
        if self._writer is not None:
            self._writer.discard()

    def _deliver(self, pack: Finished) -> None:
        """Hand a pack over; one that is there with another size was damaged, and is replaced."""
        key, size_there = trees.pack_key(pack.id), self._there.get(trees.pack_key(pack.id))
        try:
            if size_there == pack.size:
                return
            if put_file(self._store, key, Path(pack.path), if_absent=size_there is None):
                self.sent_bytes += pack.size
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(pack.path)

    def _prepare(self) -> None:
        """Make the scratch folder, and sweep what killed processes left in it."""
        folders.make(self._folder)
        before = time.time() - _LEFT_BEHIND_SECONDS
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".pack"):
                    with contextlib.suppress(OSError):
                        if entry.stat().st_mtime < before:
                            os.unlink(entry.path)
