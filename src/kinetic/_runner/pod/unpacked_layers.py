"""Unpacking layers of packages, several at once: only files and folders, below one folder.

A layer is a tar file in gzip, of one member for each file and each header between files, so that it need not be
compressed again when it is made; see ``_images/layers.py``. For many members, Python's own modules take twice the CPU
time: 9.8 s for 14,600 files (228 MB compressed), and this 4.4 (2026-11-23). zlib takes most of it, without the lock of
the interpreter, so threads help.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from kinetic._wire import folders

_BLOCK = 512
_HEADER_BYTES = 1 << 10  # compressed: what is looked at for the next headers
_PIECE = 1 << 18
_MOST_NAME = 1 << 16  # bytes of a record with a long name


class Unpacker:
    """Unpacks layers into one folder. Of a file that several have, the one of the highest number stays.

    Args:
        folder: Empty, and not used by another process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._folders = {self._folder}
        self._owners: dict[str, int] = {}  # by path: of which layer it is
        self._lock = threading.Lock()

    def unpack(self, file: Path, number: int) -> None:
        """Unpack a layer; threads may do this side by side.

        Raises:
            ValueError: It is damaged, or contains what it must not: anything but files and folders below the folder.
        """
        with file.open("rb", buffering=0) as opened:
            source = _Inflated(opened.fileno())
            for path, mode, size in _entries(source):
                whole = f"{self._folder}/{path}"
                if size is None:
                    self._make_folder(whole)
                else:
                    self._write(whole, mode, size, source, number)

    def _make_folder(self, path: str) -> None:
        if path not in self._folders:
            os.makedirs(path, exist_ok=True)
            self._folders.add(path)

    def _write(self, path: str, mode: int, size: int, source: _Inflated, number: int) -> None:
        self._make_folder(path.rpartition("/")[0])
        with self._lock:
            owner = self._owners.get(path)
            if owner is None or owner < number:
                self._owners[path] = number
        beside = path if owner is None else f"{path}.~{number}"
        if owner is not None and owner > number:
            source.skip(size)
            return
        try:
            target = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:  # that of a higher layer was faster
            source.skip(size)
            return
        with folders.closing(target):
            for piece in source.pieces(size):
                folders.write_all(target, piece)
        if beside is not path:
            with self._lock:
                if self._owners[path] == number:
                    os.replace(beside, path)
                else:
                    os.unlink(beside)


class _Inflated:
    """The bytes in a gzip file of many members, in order."""

    def __init__(self, file: int) -> None:
        self._file, self._at = file, 0
        self._member: zlib._Decompress | None = None
        self._left = b""  # inflated, and not taken yet

    def read(self, size: int) -> bytes:
        """Return so many bytes, or b"" at the end."""
        while len(self._left) < size:
            more = self._inflate(_HEADER_BYTES, _PIECE)
            if not more:
                if self._left:
                    raise ValueError("it is cut off")
                return b""
            self._left += more
        found, self._left = self._left[:size], self._left[size:]
        return found

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next so many bytes; then skip what fills the block."""
        fill = -size % _BLOCK
        while size:
            piece = self._left[:size] or self._inflate(min(size + 64, _PIECE), min(size, _PIECE))
            self._left = self._left[size:]
            if not piece:
                raise ValueError("it is cut off")
            size -= len(piece)
            yield piece
        if fill and len(self.read(fill)) < fill:
            raise ValueError("it is cut off")

    def skip(self, size: int) -> None:
        for _ in self.pieces(size):
            pass

    def _inflate(self, look_at: int, most: int) -> bytes:
        """Return up to so many bytes of the next ones; ``look_at``: how many compressed bytes they may have."""
        while True:
            given = os.pread(self._file, look_at, self._at)
            if self._member is None:
                if not given:
                    return b""
                self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            member = self._member
            found = member.decompress(given, most)
            # At the end, both may hold the same rest of the input.
            self._at += len(given) - len(member.unused_data if member.eof else member.unconsumed_tail)
            if member.eof:
                self._member = None
            elif not found and not given:
                raise ValueError("it is cut off")
            if found:
                return found


def _entries(source: _Inflated) -> Iterator[tuple[str, int, int | None]]:
    """Yield path, mode and size of each file, and None as the size of each folder; what follows it is taken outside."""
    long: dict[str, str] = {}
    while header := source.read(_BLOCK):
        if not any(header):
            return
        if header[257:263] != b"ustar\0":
            raise ValueError("it is not a tar file")
        size = int(header[124:136].rstrip(b"\0 ") or b"0", 8)
        kind = header[156:157]
        if kind == b"x" and size <= _MOST_NAME:
            long = _records(b"".join(source.pieces(size)))
            continue
        names = [header[start:end].partition(b"\0")[0].decode() for start, end in ((345, 500), (0, 100))]
        path = long.pop("path", "") or "/".join(filter(None, names))
        size = int(long.pop("size", size))
        if kind not in {b"0", b"\0", b"5"} or path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"it contains {path!r}, which it must not")
        executable = int(header[100:108].rstrip(b"\0 ") or b"0", 8) & 0o100
        yield path.rstrip("/"), 0o755 if executable else 0o644, None if kind == b"5" else size


def _records(data: bytes) -> dict[str, str]:
    """Read the records of POSIX's extended headers, lines of "LENGTH NAME=VALUE"."""
    found = {}
    while data:
        length, _, _ = data.partition(b" ")
        name, _, value = data[len(length) + 1 : int(length) - 1].decode().partition("=")
        found[name] = value
        data = data[int(length) :]
    return found
