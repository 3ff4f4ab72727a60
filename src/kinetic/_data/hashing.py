"""The documented content hash, on all cores, and only of what changed since it was hashed last."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kinetic._blobs.cache import Digests
from kinetic._blobs.scan import File
from kinetic._data import reading, telling, walking
from kinetic._data.reading import Read
from kinetic._data.remembering import digests_of, record_of
from kinetic._wire import manifests

_FEW_BYTES = 4 << 20  # less is read before threads have started
_BATCH_FILES, _BATCH_BYTES = 512, 8 << 20  # a task for each small file would cost more than the file
_MOST_THREADS = 32
_FEWEST_THREADS = 4  # a cold disk answers several at once, however few cores there are


class Tree(NamedTuple):
    """Data, every file of it digested.

    Attributes:
        root: The absolute path.
        is_dir: Whether it is a folder.
        files: In the documented order.
        folders: Those in which nothing lies.
        left_out: What does not travel, a phrase each.
        digests: The raw digest of each file, 32 bytes, one after the other.
        hash: The documented content hash, in hexadecimal.
    """

    root: str
    is_dir: bool
    files: Sequence[File]
    folders: Sequence[str]
    left_out: Sequence[str]
    digests: bytes
    hash: str

    def digest(self, number: int) -> str:
        """Return the digest of a file by its number, in hexadecimal."""
        return self.digests[32 * number : 32 * number + 32].hex()

    @property
    def bytes(self) -> int:
        """What all files hold between them."""
        return sum(file.size for file in self.files)

    @property
    def shape(self) -> str:
        """A digest of what the content hash leaves out and a manifest says: executable bits and empty folders."""
        bits = bytes([file.executable for file in self.files])
        return hashlib.sha256(bits + os.fsencode("\0".join(sorted(self.folders)))).hexdigest()


def look(root: str, cache: Path | None) -> Tree:
    """Walk local data and digest it; files whose stamps are known are not read.

    Args:
        root: The absolute path of a file or folder.
        cache: Where stamps are remembered, or None.

    Raises:
        DataError: Something cannot be read.
        DataMissingError: The data is gone, or a link in it leads nowhere.
        DataChangedError: A file went away between walk and reading.
    """
    walked = walking.walk(root)
    stamps = digests_of(cache, walked)
    files, digests = walked.files, stamps.whole()
    if digests is None:
        files, digests = _digested(walked, stamps)
    found = manifests.content_hash([digests], is_dir=walked.is_dir)
    return Tree(root, walked.is_dir, files, walked.folders, walked.left_out, digests, found)


def _digested(walked: walking.Walked, stamps: Digests) -> tuple[list[File], bytes]:
    """Digest what is not known, and remember what can be trusted."""
    known = stamps.each()
    files, records = list(walked.files), list(stamps.records)
    digests = [known.get(record, b"") for record in records]
    racy = set()
    new = [number for number, digest in enumerate(digests) if not digest]
    for number, read in _read(files, new, walked.root):
        if read.file is not files[number]:
            files[number], records[number] = read.file, record_of(read.file)
        digests[number] = read.digest
        if not read.trusted:
            racy.add(number)
    settled = [number for number in range(len(files)) if number not in racy]
    stamps.write([records[number] for number in settled], [digests[number] for number in settled])
    return files, b"".join(digests)


def _read(files: Sequence[File], numbers: Sequence[int], root: str) -> Iterator[tuple[int, Read]]:
    """Read files, on several threads where that pays."""
    total = sum(files[number].size for number in numbers)
    stop = threading.Event()
    if total < _FEW_BYTES or not threading.main_thread().is_alive():  # after its end no pool takes anything
        yield from _read_batch(files, numbers, stop, None)
        return
    from concurrent.futures import ThreadPoolExecutor  # 8 ms, only where there is much to read

    with telling.Telling("reading", root, len(numbers), total) as told, ThreadPoolExecutor(_threads()) as pool:
        try:
            for reading_ in [pool.submit(_read_batch, files, batch, stop, told) for batch in _batches(files, numbers)]:
                yield from reading_.result()
        except BaseException:
            stop.set()  # also for Ctrl-C in the middle of a large file
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read_batch(
    files: Sequence[File], numbers: Sequence[int], stop: threading.Event, told: telling.Telling | None
) -> list[tuple[int, Read]]:
    def progress(size: int) -> None:
        if told:
            told.add(done=size)

    reader = reading.Reader(stop, progress)
    done = [(number, reader.digest(files[number])) for number in numbers]
    reader.pause()
    if told:
        told.add(files=len(done))
    return done


def _batches(files: Sequence[File], numbers: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for number in numbers:
        batch.append(number)
        size += files[number].size
        if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_THREADS, max(_FEWEST_THREADS, cores))
