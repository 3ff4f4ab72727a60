"""What this machine remembers of a folder: the digests of unchanged files, and small pages about what went where.

A cache and nothing more: whatever is missing, foreign or damaged in it is found out again, and a folder that cannot be
written only costs time. Digests lie in one file for each folder that is scanned: a line of JSON, then the records of
its files, then their digests, 32 bytes each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinetic._wire import folders

VERSION = 1
_BETWEEN = "\0\0"  # no record is empty, holds two NULs, or begins or ends with one
# A file that changed this shortly before it was read may change again without another time stamp. Linux stamps every
# 1 to 10 ms; a time in whole seconds shows a file system that stamps every second, or every other one.
_RACY_NS = 20_000_000
_RACY_COARSE_NS = 2_000_000_000


def is_settled(about: os.stat_result, read_at: int) -> bool:
    """Return whether an equal stamp will mean equal content: the file had held still when its reading began.

    Args:
        about: What the system says about the file.
        read_at: When its reading began, in nanoseconds.
    """
    changed = max(about.st_mtime_ns, about.st_ctime_ns)
    coarse = changed % 1_000_000_000 == 0
    return changed < read_at - (_RACY_COARSE_NS if coarse else _RACY_NS)


def name_of(*parts: str) -> str:
    """Return the name under which something is remembered about a folder, or about a folder and a store together."""
    return hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()[:32]


def read_page(path: str | Path) -> dict[str, Any]:
    """Return a page of JSON that ``write_page`` wrote; an empty one when there is none of this version."""
    try:
        with open(path, "rb") as file:
            page = json.loads(file.read())
        return page if page.pop("kinetic-cache") == VERSION else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def write_page(path: str | Path, page: dict[str, Any]) -> None:
    """Write a page of JSON; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError):
        folders.write_whole(path, json.dumps({"kinetic-cache": VERSION, **page}, separators=(",", ":")).encode())


class Digests:
    """The digests of one folder's files by their records: words that change whenever the file does.

    Args:
        path: The file in which they lie, or None to remember nothing.
        root: The folder.
        records: Those of the files that are there now, in their order.
    """

    def __init__(self, path: str | None, root: str, records: Sequence[str]) -> None:
        self._path = path
        self._root = os.fsencode(root).hex()
        self.records = records
        self._joined, self._digests = self._load()

    def whole(self) -> bytes | None:
        """Return the digests of all files one after the other if nothing changed, else None."""
        return self._digests if self._joined and self._joined == _joined(self.records) else None

    def each(self) -> dict[str, bytes]:
        """Return the digest that is known for each record."""
        records = os.fsdecode(self._joined).split(_BETWEEN) if self._joined else []
        return {record: self._digests[32 * i : 32 * i + 32] for i, record in enumerate(records)}

    def write(self, records: Sequence[str], digests: Sequence[bytes]) -> None:
        """Remember files that can be trusted, and forget all others."""
        joined, together = _joined(records), b"".join(digests)
        if self._path is None or (joined, together) == (self._joined, self._digests):
            return
        head = {
            "kinetic-cache": VERSION,
            "root": self._root,
            "records": len(joined),
            "sha256": hashlib.sha256(joined + together).hexdigest(),
        }
        with contextlib.suppress(OSError):
            folders.write_whole(self._path, json.dumps(head).encode() + b"\n" + joined + together)

    def _load(self) -> tuple[bytes, bytes]:
        try:
            with open(self._path or os.devnull, "rb") as file:
                head, body = json.loads(file.readline()), file.read()
            sound = head["kinetic-cache"] == VERSION and head["root"] == self._root
            if sound and hashlib.sha256(body).hexdigest() == head["sha256"]:
                joined, digests = body[: head["records"]], body[head["records"] :]
                if len(digests) == 32 * (joined.count(_BETWEEN.encode()) + 1):
                    return joined, digests
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return b"", b""


def _joined(records: Sequence[str]) -> bytes:
    return os.fsencode(_BETWEEN.join(records))
