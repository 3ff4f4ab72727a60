"""Small programs: those that JAX compiled in less than a second, kept as one archive for each function and hardware.

A model has a few large programs and dozens of small ones, which together take as long to compile. As objects of their
own, each of them would cost every job of the namespace a request. So a job gets those that the last jobs of its own
function had, and all at once. The archive is an entry like any other: sealed, and removed when it is not used.
"""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from kinetic._wire import cache_entries
from kinetic._wire.cache_entries import CacheEntry
from kinetic._wire.order import Order

PREFIX = "functions/"  # of the paths of archives
MOST_PROGRAMS, MOST_BYTES = 1000, 64 << 20  # in one archive; those that the last job did not use go first
SEND_SECONDS = 10.0  # from a new one until the archive is sent; more may follow
_MADE = (1980, 1, 1, 0, 0, 0)  # the same programs are the same bytes


class SmallPrograms:
    """Those of one job."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.path = f"{PREFIX}{cache_entries.function_digest(order)}.zip"  # of the archive, as an entry
        self.entry: CacheEntry | None = None  # the archive that was unpacked, or sent last; None if there is none
        self.is_new = False  # whether some program is not in that archive
        self.seconds = 0.0  # how long each of those in the archive took to compile, on average; 0 if that is not known
        self._folder = folder
        self._paths: set[str] = set()
        self._unpacked = 0

    def take(self, path: str) -> None:
        """Take in a complete program."""
        self._paths.add(path)
        self.is_new = True

    def unpack(self, archive: Path, entry: CacheEntry) -> Iterator[str]:
        """Put the programs of a verified archive into their places; yield the paths of those that were not there."""
        self.entry = entry
        with zipfile.ZipFile(archive) as packed:
            self.is_new = not self._paths.issubset(packed.namelist())
            with contextlib.suppress(ValueError):
                self.seconds = float(packed.comment)
            for info in packed.infolist()[:MOST_PROGRAMS]:
                place = self._folder / info.filename
                if not cache_entries.is_path(info.filename) or place.exists():
                    continue
                part = archive.with_suffix(".program")
                part.write_bytes(packed.read(info))
                os.utime(part, (1, time.time()))  # the kernel sets the first of these when the file is read
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.replace(part, place)
                self._paths.add(info.filename)
                self._unpacked += 1
                yield info.filename

    def pack(self, archive: Path, compiled: float, seconds: float, *, shows_reads: bool | None) -> None:
        """Write the archive."""
        found: list[tuple[bool, str, int]] = []
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                about = os.stat(self._folder / path)
                found.append((bool(shows_reads) and about.st_atime < 2, path, about.st_size))
        room, chosen = MOST_BYTES, []
        for _, path, size in sorted(found)[:MOST_PROGRAMS]:
            if size <= room:
                room -= size
                chosen.append(path)
        average = (self._unpacked * self.seconds + seconds) / max(1, self._unpacked + compiled)
        with zipfile.ZipFile(archive, "w") as packed:  # JAX has compressed them
            packed.comment = f"{average:.2f}".encode()
            for path in sorted(chosen):
                with contextlib.suppress(FileNotFoundError):
                    packed.writestr(zipfile.ZipInfo(path, _MADE), _read_unnoticed(self._folder / path))


def _read_unnoticed(path: Path) -> bytes:
    """Read a file without that being noted as a use of it."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOATIME", 0))) as file:
        return file.read()
