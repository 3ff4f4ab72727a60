"""Buckets in memory, as cloud storage keeps them: generations, preconditions, pages, uploads in parts."""

from __future__ import annotations

import base64
import bisect
import itertools
import threading
import time
from typing import NamedTuple

SMALLEST_PART = 5 << 20  # all but the last part of an upload in parts; real services refuse smaller ones


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """An answer that is an error.

    Attributes:
        status: The HTTP status.
        code: The word of the XML API.
    """

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Item(NamedTuple):
    """An object as it lies there."""

    name: str
    data: bytes
    generation: int
    updated: float
    metadata: dict[str, str]
    content_type: str

    @property
    def etag(self) -> str:
        return f'"{self.generation}"'


class Page(NamedTuple):
    """A part of a listing; ``token`` leads on to the next one."""

    items: list[Item]
    prefixes: list[str]
    token: str


class Bucket:
    """Objects by name, in order."""

    _generations = itertools.count(int(time.time() * 1e6))

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.uploads: dict[str, Upload] = {}
        self._names: list[str] = []
        self._lock = threading.Lock()  # tests look in from other threads

    def put(
        self,
        name: str,
        data: bytes,
        *,
        only_if: int | None = None,
        metadata: dict[str, str] | None = None,
        content_type: str = "application/octet-stream",
    ) -> Item:
        """Write an object; ``only_if`` is the generation that must be there, 0 for none."""
        if not name or len(name.encode()) > 1024 or {"\r", "\n"} & set(name):
            raise Refused(400, "InvalidObjectName")
        with self._lock:
            self.check(name, only_if)
            if name not in self.items:
                bisect.insort(self._names, name)
            item = Item(name, data, next(self._generations), time.time(), metadata or {}, content_type)
            self.items[name] = item
            return item

    def check(self, name: str, only_if: int | None) -> None:
        """Refuse unless this generation is there."""
        if only_if is not None:
            there = self.items[name].generation if name in self.items else 0
            if there != only_if:
                raise Refused(412, "PreconditionFailed")

    def get(self, name: str) -> Item:
        if name not in self.items:
            raise Refused(404, "NoSuchKey")
        return self.items[name]

    def delete(self, name: str) -> None:
        with self._lock:
            if name not in self.items:
                raise Refused(404, "NoSuchKey")
            del self.items[name]
            del self._names[bisect.bisect_left(self._names, name)]

    def page(
        self, prefix: str, *, delimiter: str = "", start: str = "", after: str = "", token: str = "", limit: int = 1000
    ) -> Page:
        """List names from ``start`` on, or after ``after``; the token stands for the last name of the page before."""
        last = base64.urlsafe_b64decode(token).decode() if token else ""
        with self._lock:
            place = bisect.bisect_left(self._names, max(prefix, start))
            place = max(place, bisect.bisect_right(self._names, max(after, last)) if after or last else 0)
            items: list[Item] = []
            prefixes: list[str] = []
            seen = last
            while place < len(self._names) and (name := self._names[place]).startswith(prefix):
                if len(items) + len(prefixes) == limit:
                    return Page(items, prefixes, base64.urlsafe_b64encode(seen.encode()).decode())
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    items.append(self.items[name])
                    seen = name
                    place += 1
                else:
                    prefixes.append(name[: cut + len(delimiter)])
                    seen = prefixes[-1] + "\U0010ffff"
                    place = bisect.bisect_right(self._names, seen)
            return Page(items, prefixes, "")


class Upload:
    """An upload in parts, or in order; no object yet."""

    def __init__(self, name: str, metadata: dict[str, str], content_type: str, only_if: int | None = None) -> None:
        self.name = name
        self.metadata = metadata
        self.content_type = content_type
        self.only_if = only_if
        self.parts: dict[int, bytes] = {}
        self.received: list[bytes] = []
        self.arrived = 0
        self.finished: Item | None = None

    def joined(self, numbers: list[int]) -> bytes:
        """Return the object that these parts make."""
        if numbers != sorted(self.parts):
            raise Refused(400, "InvalidPart")
        if any(len(self.parts[number]) < SMALLEST_PART for number in numbers[:-1]):
            raise Refused(400, "EntityTooSmall")
        return b"".join(self.parts[number] for number in numbers)
