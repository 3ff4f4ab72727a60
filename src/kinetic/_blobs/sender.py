"""Files on their way into a store, for projects and for data: what the store has already is not sent again.

A *blob* is an object named by the SHA-256 of its bytes. Small files share a blob, a *pack*; a large file is cut into
blobs of its own, *chunks*. What is known to be in a store is remembered by its content, so a file that is in a project
and in a data folder is sent once. Everything that is read here is digested: nothing says more than what was sent.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from kinetic._blobs import file_tree
from kinetic._blobs.file_tree import File, Selection, TransferProgress
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Entry, Store
from kinetic._wire import NamedTuple, digests, folders, keys, order
from kinetic._wire.order import Part

SMALL_BYTES = 8 << 20  # a file below this is sent in a pack
PACK_BYTES = 16 << 20
CHUNK_BYTES = 64 << 20
COMPRESS_BELOW = (
    order.MOST_COMPRESSED_BYTES
)  # of a pack of a project: then it is an edit, not a first time, and source text shrinks well
_UNFORCED_SECONDS = 60.0  # kernels write files to the disk by themselves after about 30 s
OLD_SECONDS = 7 * 24 * 3600.0  # buckets often delete after 30 days: what a job will need must be younger than this
_CHUNKS_IN_MEMORY = 5
_ATTEMPTS = 3
_MANY_PACKS = 16
_EMPTY = hashlib.sha256().digest()


def is_old(entry: Entry) -> bool:
    """Return whether an object must be made young before a job may rely on it."""
    return abs(time.time() - entry.modified) > OLD_SECONDS  # from the future: a clock is wrong, so rather once more


def is_new(entry: Entry) -> bool:
    """Return whether an object is so young that the process which wrote it may not have forced it to the disk yet."""
    return abs(time.time() - entry.modified) < _UNFORCED_SECONDS


def make_young(store: Store, entry: Entry) -> bool:
    """Make an object young if it is old; False when it is gone."""
    return not is_old(entry) or store.touch(entry.key)


class SentFile(NamedTuple):
    """A file whose content is in the store."""

    file: File  # the file as it was when it was read
    # stands for its bytes: equal contents, equal digest. Of one that was cut, it is made of its chunks'
    content: bytes
    packed: bool  # whether it is in a pack; otherwise its parts are chunks
    parts: tuple[Part, ...]  # where its bytes are; none when it is empty
    trusted: bool = True  # whether an equal stamp will mean equal content
    steady: bool = True  # whether it did not change while it was read


class Contents:
    """Where contents are in one store, as far as this machine remembers; a cache, so each blob is still looked for."""

    _RECORD = struct.Struct(">32s32sQQQB")  # content, blob, offset, length, size of the blob as stored, flags
    _PACKED, _COMPRESSED = 1, 2
    _MOST = 50_000  # records; the oldest are forgotten

    def __init__(self, cache: Path, url: str) -> None:
        self._path, self._url = cache / f"{file_tree.name_of(url)}.contents", url
        self._places: dict[bytes, tuple[bool, tuple[Part, ...]]] = {}
        self.sizes: dict[str, int] = {}
        for content, blob, offset, length, stored, flags in self._RECORD.iter_unpack(self._read()):
            name = blob.hex() + order.COMPRESSED * bool(flags & self._COMPRESSED)
            before = self._places.get(content, (True, ()))[1]
            self._places[content] = bool(flags & self._PACKED), (*before, Part(name, offset, length))
            self.sizes[name] = stored

    def find(self, content: bytes) -> tuple[bool, tuple[Part, ...]] | None:
        """Return whether a content is in a pack, and where."""
        return self._places.get(content)

    def write(self, sent: Iterable[SentFile], sizes: Mapping[str, int]) -> None:
        """Remember what was sent, the latest last; ``sizes`` are those of blobs as they are stored."""
        for each in sent:
            self._places.pop(each.content, None)
            if each.parts:
                self._places[each.content] = each.packed, each.parts
        records = [
            self._RECORD.pack(
                content,
                bytes.fromhex(part.blob[:64]),
                part.offset,
                part.length,
                sizes[part.blob],
                packed * self._PACKED | part.blob.endswith(order.COMPRESSED) * self._COMPRESSED,
            )
            for content, (packed, parts) in self._places.items()
            for part in parts
        ]
        first = max(0, len(records) - self._MOST)
        while 0 < first < len(records) and records[first][:32] == records[first - 1][:32]:  # no part of a content alone
            first += 1
        file_tree.write_block(self._path, self._url, len(records), b"".join(records[first:]))

    def _read(self) -> bytes:
        body = file_tree.read_block(self._path, self._url)[1]
        return body if len(body) % self._RECORD.size == 0 else b""


class _Pack:
    """Small files that become one blob."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.files: dict[int, SentFile] = {}
        self._places: dict[bytes, tuple[Part, ...]] = {}

    def add(self, number: int, sent: SentFile, data: bytes) -> None:
        if sent.content not in self._places:
            self._places[sent.content] = (Part("", len(self.data), len(data)),)
            self.data += data
        self.files[number] = sent._replace(parts=self._places[sent.content])

    def named(self, blob: str) -> dict[int, SentFile]:
        return {n: sent._replace(parts=(sent.parts[0]._replace(blob=blob),)) for n, sent in self.files.items()}


class PlacedPage(NamedTuple):
    """A page that was sent with files: all blobs that it refers to, where it is, and its digest."""

    blobs: list[str]
    part: Part
    sha256: str


class Sender:
    """Brings files into one store.

    Args:
        store: Where to.
        cache: The folder of this machine in which kinetic remembers what it sent.
        selection: How files are opened, and what happens to those that cannot be read.
        progress: Counts files and bytes.
        compress: Whether small packs are compressed.
    """

    def __init__(
        self,
        store: Store,
        cache: Path,
        selection: Selection,
        *,
        progress: TransferProgress | None = None,
        compress: bool = False,
    ) -> None:
        self._store = store
        self._selection = selection
        self._progress = progress
        self._compress = compress
        self._cache = cache
        self._there: dict[str, bool] = {}
        self._sent: dict[int, SentFile] = {}  # as the next one, filled by many threads, each its own numbers
        self._cut: dict[int, tuple[SentFile, list[Part]]] = {}
        self._placing: dict[str, threading.Lock] = {}  # two equal chunks at once are sent once
        self._buffers = threading.BoundedSemaphore(_CHUNKS_IN_MEMORY)
        self.sizes: dict[str, int] = {}  # of blobs, as they are stored
        self.sent_bytes = 0

    @functools.cached_property
    def _known(self) -> Contents:
        found = Contents(self._cache, self._store.url)
        self.sizes = found.sizes | self.sizes
        return found

    def find(self, files: Mapping[int, File], contents: Mapping[int, bytes]) -> dict[int, SentFile]:
        """Return those files whose content is known and in the store; they need not be read."""
        found = {number: SentFile(file, _EMPTY, True, ()) for number, file in files.items() if not file.size}  # noqa: FBT003
        for number, content in contents.items():
            place = self._known.find(content)
            if place and number not in found:
                found[number] = SentFile(files[number], content, *place)
        found = {number: found[number] for number in files if number in found}
        sparse = sparse_packs([sent.parts[0] for sent in found.values() if sent.packed and sent.parts])
        self.avoid(sparse)
        there = self.are_there({part.blob for sent in found.values() for part in sent.parts} - sparse)
        return {number: sent for number, sent in found.items() if all(part.blob in there for part in sent.parts)}

    def avoid(self, blobs: Iterable[str]) -> None:
        """Send what is in these blobs again."""
        self._there.update(dict.fromkeys(blobs, False))

    def are_there(self, blobs: Iterable[str], sizes: Mapping[str, int] | None = None) -> set[str]:
        """Return those of some blobs that are in the store with their sizes, and make old ones young."""
        self.sizes.update(sizes or {})
        one = 1 if self._store.local is not None else None  # a look at a file is not worth a thread
        for _ in in_parallel(self._store, [functools.partial(self._is_there, blob) for blob in blobs], limit=one):
            pass
        return {blob for blob in blobs if self._there[blob]}

    def send(self, files: Mapping[int, File], expected: Callable[[int], str]) -> dict[int, SentFile]:
        """Send files that were hashed before."""
        self._run(self._tasks(files, list(_groups(files)), expected))
        self._known.write(self._sent.values(), self.sizes)
        return self._sent

    def send_with_page(
        self, files: Mapping[int, File], page_of: Callable[[Mapping[int, SentFile]], tuple[list[str], bytes] | None]
    ) -> tuple[dict[int, SentFile], PlacedPage | None]:
        """Send files as they are now, and a page about them at the end of the last pack: it costs no request.

        Args:
            files: By their numbers.
            page_of: Returns the other blobs that the page refers to, and the page. Parts in the last pack have no name
                yet; the page refers to blobs by their position, and the last pack follows the others. None: neither
                the page nor the last pack is needed.
        """
        groups = list(_groups(files))
        last = groups.pop() if groups else []
        self._run(self._tasks(files, groups, None))
        pack = self._fill(files, last, None)
        found = page_of({**self._sent, **pack.files})
        placed = None
        if found is not None:
            blobs, page = found
            start = len(pack.data)
            pack.data += page
            name = self._place(pack.data, packed=True)
            self._sent |= pack.named(name)
            self._known.write(self._sent.values(), self.sizes)
            placed = PlacedPage([*blobs, name], Part(name, start, len(page)), digests.of_bytes(page))
        return {**pack.files, **self._sent}, placed

    # ------------------------------------------------------------------------------------------------------- small

    def _tasks(
        self, files: Mapping[int, File], groups: Iterable[Sequence[int]], expected: Callable[[int], str] | None
    ) -> Iterator[Callable[[], None]]:
        for group in groups:
            yield functools.partial(self._send_pack, files, group, expected)
        for number, file in files.items():
            if file.size >= SMALL_BYTES:
                yield from self._chunks(number, file, expected)
            elif not file.size:
                if expected and order.file_digest(file.relative).hexdigest() != expected(number):
                    raise file_tree.changed_error(file, "its content is not what was hashed")
                self._sent[number] = SentFile(file, _EMPTY, True, ())  # noqa: FBT003 - a field
                self._count(files=1)

    def _send_pack(
        self, files: Mapping[int, File], numbers: Sequence[int], expected: Callable[[int], str] | None
    ) -> None:
        pack = self._fill(files, numbers, expected)
        if pack.data:
            self._sent |= pack.named(self._place(pack.data, packed=True))
        self._count(files=len(numbers))

    def _fill(self, files: Mapping[int, File], numbers: Sequence[int], expected: Callable[[int], str] | None) -> _Pack:
        """Read small files into a pack, without those whose content is in the store."""
        pack = _Pack()
        for number in numbers:
            read = self._read(files[number])
            if read is None:
                continue
            sent, data = read
            if expected:
                found = order.file_digest(sent.file.relative)
                found.update(data)
                if found.hexdigest() != expected(number):
                    raise file_tree.changed_error(sent.file, "its content is not what was hashed")
            place = self._known.find(sent.content)
            if not data:
                self._sent[number] = sent
            elif place and place[0] and self._is_there(place[1][0].blob):
                self._sent[number] = sent._replace(parts=place[1])
                self._count(there=len(data))
            else:
                pack.add(number, sent, data)
        return pack

    def _read(self, file: File) -> tuple[SentFile, bytes] | None:
        """Read a small file; one that changes meanwhile is read again, and taken as it was if it never stops."""
        try:
            for _ in range(_ATTEMPTS):
                read_at = time.time_ns()
                with folders.closing(file_tree.open_regular(self._selection, file)) as descriptor:
                    before = os.fstat(descriptor)
                    data = _read_up_to(descriptor, min(before.st_size, max(file.size, SMALL_BYTES)))
                    after = os.fstat(descriptor)
                stamp = file_tree.stamp_of(before)
                steady = len(data) == before.st_size and stamp == file_tree.stamp_of(after)
                if stamp != file.stamp:
                    file = file_tree.file_of(file.relative, file.path, before)
                if steady:
                    break
        except OSError as error:
            self._selection.lost(file, error)
            return None
        trusted = steady and folders.is_settled(folders.changed_ns(before), read_at)
        file = file._replace(size=len(data))
        return SentFile(file, hashlib.sha256(data).digest(), True, (), trusted, steady), data  # noqa: FBT003 - a field

    # ------------------------------------------------------------------------------------------------------- large

    def _chunks(self, number: int, file: File, expected: Callable[[int], str] | None) -> Iterator[Callable[[], None]]:
        """Read a large file once, from front to end, and yield its chunks as tasks; again if it changed meanwhile."""
        for _ in range(1 if expected else _ATTEMPTS):
            read_at = time.time_ns()
            promised = order.file_digest(file.relative)
            try:
                with folders.closing(file_tree.open_regular(self._selection, file)) as descriptor:
                    before = os.fstat(descriptor)
                    starts = range(0, before.st_size, CHUNK_BYTES)
                    parts = [Part("", 0, 0)] * len(starts)
                    for index, start in enumerate(starts):
                        data = _read_up_to(descriptor, min(CHUNK_BYTES, before.st_size - start))
                        if expected:
                            promised.update(data)
                        self._buffers.acquire()
                        yield functools.partial(self._send_chunk, parts, index, data)
                    after = os.fstat(descriptor)
            except OSError as error:
                return self._selection.lost(file, error)
            if expected and promised.hexdigest() != expected(number):
                raise file_tree.changed_error(file, "its content is not what was hashed")
            steady = file_tree.stamp_of(before) == file_tree.stamp_of(after)
            file = file_tree.file_of(file.relative, file.path, before)
            if steady:
                break
        trusted = steady and folders.is_settled(folders.changed_ns(before), read_at)
        self._cut[number] = SentFile(file, b"", False, (), trusted, steady), parts  # noqa: FBT003 - a field
        self._count(files=1)
        return None

    def _send_chunk(self, parts: list[Part], index: int, data: bytes) -> None:
        try:
            parts[index] = Part(self._place(data, packed=False), 0, len(data))
        finally:
            self._buffers.release()

    def _run(self, tasks: Iterator[Callable[[], None]]) -> None:
        for _ in in_parallel(self._store, tasks):
            pass
        for number, (sent, parts) in self._cut.items():
            found = tuple(part for part in parts if part.length)  # it may have been cut short meanwhile
            names = b"".join(bytes.fromhex(part.blob) for part in found)
            content = names if len(found) == 1 else hashlib.sha256(names).digest()
            file = sent.file._replace(size=sum(part.length for part in found))
            self._sent[number] = sent._replace(file=file, content=content, parts=found)

    # ------------------------------------------------------------------------------------------------------- blobs

    def _place(self, data: bytes | bytearray, *, packed: bool) -> str:
        """Put a blob into the store unless it is there, and return its name."""
        name, body = digests.of_bytes(data), data
        if self._compress and packed and len(data) < COMPRESS_BELOW:
            import zlib  # not where nothing is sent

            body = zlib.compress(data, 1)
            name += order.COMPRESSED
        self.sizes[name] = len(body)
        with self._placing.setdefault(name, threading.Lock()):
            self._put(name, body, only_new=packed and self._compress)
        return name

    def _put(self, name: str, body: bytes | bytearray, *, only_new: bool) -> None:
        key = keys.data_blob(name)
        if only_new and name not in self._there and self._store.put(key, body, if_absent=True):
            pass  # one request, where it is new
        elif self._is_there(name):
            self._count(there=len(body))
            return
        else:  # not if_absent: over one of another size, which was damaged; over an equal one it does no harm
            self._store.put(key, body)
        if (local := self._store.local) and (entry := local.entry(key)) is not None:
            local.note_forced(entry)
        self._there[name] = True
        self.sent_bytes += len(body)
        self._count(done=len(body))

    def _is_there(self, blob: str) -> bool:
        """Return whether a blob is in the store as large as it must be, and make it young if it is old."""
        if blob not in self._there:
            entry = self._store.entry(keys.data_blob(blob))
            same = entry is not None and entry.size == self.sizes.get(blob)
            self._there[blob] = entry is not None and same and make_young(self._store, entry)
            if self._there[blob] and entry and self._store.local and is_new(entry):
                self._store.local.force(entry)
        return self._there[blob]

    def _count(self, **counts: int) -> None:
        if self._progress is not None:
            self._progress.add(**counts)


def _groups(files: Mapping[int, File]) -> Iterator[list[int]]:
    """Group small files into packs: the same files, the same packs."""
    group: list[int] = []
    size = 0
    for number, file in files.items():
        if 0 < file.size < SMALL_BYTES:
            if group and size + file.size > PACK_BYTES:
                yield group
                group, size = [], 0
            group.append(number)
            size += file.size
    if group:
        yield group


def sparse_packs(parts: Iterable[Part]) -> set[str]:
    """Return packs that are mostly waste by now, once there are so many packs that a job would notice."""
    live = Counter[str]()
    for part in parts:
        live[part.blob] += part.length
    needed = -(-live.total() // PACK_BYTES)
    if len(live) <= 2 * needed + _MANY_PACKS:
        return set()
    return {pack for pack, size in live.items() if size < PACK_BYTES // 2}


def _read_up_to(descriptor: int, size: int) -> bytes:
    """Return the next bytes of an open file: ``size`` of them, fewer only at its end."""
    data = os.read(descriptor, size)
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data
