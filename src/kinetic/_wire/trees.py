"""The manifest of a tree of files, of a project or of data: every file, and the blobs of a store that hold its bytes.

A *blob* is an object named by the SHA-256 of its bytes. Small files share one, a *pack*; a large file is cut into blobs
of its own, *chunks*. A pack whose name ends with ".z" is stored compressed; the rest of the name is of its raw bytes.

The manifest of data is written last, so its presence promises that every blob is there: it is the marker of the cache.
An order carries its SHA-256. A file's digest is the documented one: SHA-256 of its relative path, one NUL byte, and its
bytes. Files of a pack are verified against it; a chunk is verified against its own name.

The manifest of a project is at the end of its last pack. The order names its packs, so the manifest refers to them by
number, and says no digests of files: a job reads whole packs, and verifies each against its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kinetic._wire import digests, documents
from kinetic.errors import IntegrityError

COMPRESSED = ".z"
MOST_COMPRESSED_BYTES = 4 << 20  # of a pack before it is compressed; a larger one is not
_HEX = frozenset("0123456789abcdef")
BLOB = re.compile(r"[0-9a-f]{64}(?:\.z)?")


def inflate(data: bytes) -> bytes:
    """Return the raw bytes of a compressed pack; never more than it may have, whatever was stored."""
    import zlib  # only small packs are compressed

    inflater = zlib.decompressobj()
    try:
        return inflater.decompress(data, MOST_COMPRESSED_BYTES + 1)
    except zlib.error:
        return b""  # what no name of a blob fits


MANIFEST_VERSION = 1
MOST_MANIFEST_BYTES = 4 << 30  # of the page


class Part(NamedTuple):
    """Where some bytes of a file are: in which blob, from where, how many."""

    blob: str
    offset: int
    length: int


class ManifestFile(NamedTuple):
    """One file of a tree."""

    path: str  # relative to the top, with forward slashes; the bare name when the data is a single file
    executable: bool  # by its owner
    size: int  # bytes
    digest: str  # SHA-256 of path, NUL and bytes, in hexadecimal; "" in a project
    packed: bool  # whether it is in one pack; otherwise its parts are chunks, in order
    parts: tuple[Part, ...]  # none when it is empty


class Manifest(NamedTuple):
    """A tree of files, or a single file."""

    hash: str  # the documented content hash; of a project, of its paths, modes and contents
    is_dir: bool
    files: tuple[ManifestFile, ...]  # in the order in which the content hash visits them
    folders: tuple[str, ...] = ()  # that are empty; the others follow from the files

    def to_bytes(self, blobs: Sequence[str] | None = None) -> bytes:
        """Write the page: equal manifests are equal bytes.

        Args:
            blobs: The blobs that the order of a project names, to which the page then refers by number.
        """
        listed = [*(blobs or self.blobs())]
        number = {blob: index for index, blob in enumerate(listed)}
        files = [
            [
                file.path,
                int(file.executable),
                file.size,
                file.digest,
                int(file.packed),
                [[number[part.blob], part.offset, part.length] for part in file.parts],
            ]
            for file in self.files
        ]
        page = {
            "data": MANIFEST_VERSION,
            "hash": self.hash,
            "is_dir": self.is_dir,
            "blobs": listed if blobs is None else [],
            "files": files,
            "folders": sorted(self.folders),
        }
        return json.dumps(page, sort_keys=True, separators=(",", ":")).encode()  # ASCII: names need not be UTF-8

    @classmethod
    def from_bytes(cls, data: bytes, *, sha256: str, blobs: Sequence[str] | None = None) -> Manifest:
        """Read the page that the order promised; ``blobs`` are those that the order of a project names.

        Raises:
            IntegrityError: It is another page, damaged, of another version, or names a path outside its own tree.
        """
        what = f"the manifest of the {'data' if blobs is None else 'project'}"
        changed, action = (
            f"{what} is not what was submitted; it was not used",
            "submit again: damaged files are sent again",
        )
        digests.check(digests.of_bytes(data), sha256, changed, "the order", next=action)
        try:
            page = documents.parse(data, what, most_bytes=MOST_MANIFEST_BYTES, any_name=True)
            return _read_manifest(page, page["blobs"] if blobs is None else blobs)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise IntegrityError(f"{what} is damaged", why=f"{type(error).__name__}: {error}") from error

    def blobs(self) -> dict[str, int]:
        """Return every blob that the manifest needs, with how many bytes of it are needed at least."""
        needed: dict[str, int] = {}
        for file in self.files:
            for part in file.parts:
                needed[part.blob] = max(needed.get(part.blob, 0), part.offset + part.length)
        return needed


def file_digest(path: str) -> hashlib._Hash:
    """Begin the documented digest of a file: feed it the file's bytes."""
    return hashlib.sha256(os.fsencode(path) + b"\0")


def content_hash(file_digests: Iterable[bytes], *, is_dir: bool) -> str:
    """Return the documented content hash.

    Args:
        file_digests: Raw digests of the files: depth first, names sorted, a folder's files before its folders.
        is_dir: Whether they are the files of a folder, or one single file.
    """
    whole = hashlib.sha256(b"dir:" if is_dir else b"file:")
    for digest in file_digests:
        whole.update(digest)
    return whole.hexdigest()


def _read_manifest(page: dict[str, object], names: object) -> Manifest:
    if type(page["data"]) is not int or page["data"] != MANIFEST_VERSION:
        raise ValueError(f"its version is {page['data']!r}; this kinetic reads {MANIFEST_VERSION}")
    blobs = [_blob(name) for name in names]  # type: ignore[attr-defined] # a TypeError is what we want
    files = [
        ManifestFile(
            _inside(path),
            bool(executable),
            int(size),
            _hex(digest) if digest else "",
            bool(packed),
            tuple(Part(blobs[number], int(offset), int(length)) for number, offset, length in parts),
        )
        for path, executable, size, digest, packed, parts in page["files"]  # type: ignore[attr-defined]
    ]
    for file in files:
        if sum(part.length for part in file.parts) != file.size or any(min(part[1:]) < 0 for part in file.parts):
            raise ValueError(f"{file.path!r} has parts that do not make up its size")
    folders = tuple(_inside(path) for path in page["folders"])  # type: ignore[attr-defined]
    return Manifest(_hex(page["hash"]), bool(page["is_dir"]), tuple(files), folders)


def _inside(path: object) -> str:
    if not isinstance(path, str) or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
        raise ValueError(f"{path!r} is not a path inside a tree")
    return path


def _blob(text: object) -> str:
    if not isinstance(text, str) or not BLOB.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of a blob")
    return text


def _hex(text: object) -> str:
    if not isinstance(text, str) or len(text) != 64 or not _HEX.issuperset(text):
        raise ValueError(f"{text!r} is not a digest")
    return text
