"""The formats in which trees of files travel: a project as nodes and packs, shipped data as a manifest and blobs.

A folder of a project is a *node*: canonical bytes that list its entries. A node names the digest of every file and of
every folder below it, so the digest of the top node stands for the whole tree, and an edit changes only the nodes above
it. Nodes hold no times, owners or places: equal files make an equal digest on every machine and on every day.

Contents of files and nodes are *blobs*. Blobs travel in *packs*, objects that are written once:

    header   8 bytes   the word "kinpack" and the version of the format
    blobs              one after the other, each as it is or compressed with zlib
    index   57 bytes   for each blob: digest, offset, stored length, raw length, 1 when compressed
    footer  24 bytes   where the index begins, its length, the word and the version again

A pack's id is the digest of its index, so whoever knows the id can verify the index, and with it every blob.

Of shipped data, a *blob* is an object named by the SHA-256 of its bytes: a *pack* of small files, or a *chunk* of a
large one. The manifest lists every file, its digest and its blobs. It is written last, so its presence promises that
every blob is there. An order has the manifest's SHA-256, the manifest has the rest. A file's digest is the documented
one: SHA-256 of its relative path, one NUL byte, and its bytes. Files of a pack are verified against it; a chunk is
verified against its own name.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring as _quote
from typing import Literal, NamedTuple, cast

from kinetic._wire import digests, documents, folders
from kinetic.errors import IntegrityError, StoreError

VERSION = 1  # of nodes and of packs; a reader of version N also reads N-1
SPLIT_BYTES = 64 << 20  # a pack is closed when it holds this much
_MAGIC = b"kinpack"
_HEADER = _MAGIC + bytes([VERSION])
_FOOTER = struct.Struct(">QQ8s")
FOOTER_BYTES = _FOOTER.size
_BLOB = struct.Struct(">32sQQQB")
_PIECE = 1 << 20
_HEX = frozenset("0123456789abcdef")

Kind = Literal["f", "x", "d"]


class Entry(NamedTuple):
    """One name in a folder."""

    name: str  # as the file system shows it; never a path
    kind: Kind  # "f" a file, "x" a file that its owner may execute, "d" a folder
    size: int  # bytes of the file, or of the folder's node
    digest: str  # SHA-256 of the file, or of the folder's node, in hexadecimal


class Blob(NamedTuple):
    """Where a pack holds one blob; lengths and offset in bytes."""

    digest: bytes
    offset: int
    stored: int
    raw: int
    compressed: int


def node(entries: Iterable[Entry]) -> bytes:
    """Return the canonical bytes of a folder, whatever order its entries come in."""
    listed = [f'[{_quote(name)},"{kind}",{size},"{digest}"]' for name, kind, size, digest in sorted(entries)]
    return f'{{"kinetic-tree":{VERSION},"entries":[{",".join(listed)}]}}'.encode()


def read_node(data: bytes, where: str) -> list[Entry]:
    """Return what a folder holds, and refuse names that would lead out of it.

    Args:
        data: The bytes of the node, verified by the caller.
        where: The folder, for the message.

    Raises:
        IntegrityError: Not a folder, or one that no honest client writes.
        StoreError: Written by a later version of kinetic.
    """
    try:
        page = documents.parse(data, f"the folder {where or '.'!r} of the project", any_name=True)
        version = page["kinetic-tree"]
        if version != VERSION:
            raise _foreign(f"the folder {where or '.'!r}", version)
        entries = [Entry(name, kind, size, digest) for name, kind, size, digest in page["entries"]]
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"the folder {where or '.'!r} of the project is unreadable", why=repr(error)) from error
    last = ""
    for entry in entries:
        if not _is_sound(entry) or entry.name <= last:
            raise IntegrityError(
                f"the folder {where or '.'!r} of the project has an entry that cannot be", why=repr(tuple(entry))[:200]
            )
        last = entry.name
    return entries


def _is_sound(entry: Entry) -> bool:
    name, kind, size, digest = entry
    return (
        isinstance(name, str)
        and name not in {"", ".", ".."}
        and "/" not in name
        and "\0" not in name
        and kind in {"f", "x", "d"}
        and isinstance(size, int)
        and size >= 0
        and _is_digest(digest)
    )


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and _HEX.issuperset(text)  # SHA-256 in hexadecimal


def pack_key(pack: str) -> str:
    """Return the key under which a pack lies in the store."""
    return f"packs/{pack}"


def pack_header() -> bytes:
    """Return the bytes that begin a pack."""
    return _HEADER


def pack_end(blobs: Sequence[Blob]) -> tuple[str, bytes]:
    """Return the id of a pack and the bytes that end it, from its blobs in the order in which they lie."""
    index = b"".join([_BLOB.pack(*blob) for blob in blobs])
    start = blobs[-1].offset + blobs[-1].stored if blobs else len(_HEADER)
    return hashlib.sha256(index).hexdigest(), index + _FOOTER.pack(start, len(index), _HEADER)


def read_index(index: bytes) -> list[Blob]:
    """Return the blobs that an index lists."""
    return list(map(Blob._make, _BLOB.iter_unpack(index)))


class Pack:
    """A pack that lies in an open file; everything that leaves it has been verified."""

    def __init__(self, descriptor: int, pack: str) -> None:
        """Read the index and verify it; the descriptor then belongs to this object.

        Raises:
            IntegrityError: Not the pack of this id, or cut short.
            StoreError: Written by a later version of kinetic.
        """
        self.id = pack
        self._descriptor = descriptor
        try:
            self.index = self._read_index()
        except BaseException:
            self.close()
            raise
        self.blobs = {blob.digest: blob for blob in read_index(self.index)}

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, blob: Blob, what: str) -> bytes:
        """Return the raw bytes of a blob; ``what`` names them in the message.

        Raises:
            IntegrityError: These are not the bytes that were packed.
        """
        data = folders.read_range(self._descriptor, blob.offset, blob.stored)
        if blob.compressed:
            data = self._inflate(data, blob, what)
        if hashlib.sha256(data).digest() != blob.digest:
            raise self._damaged(what)
        return data

    def copy(self, blob: Blob, write: Callable[[bytes], object], what: str) -> None:
        """Pass the raw bytes of a blob to ``write`` piece by piece: the check comes with the last one.

        Raises:
            IntegrityError: What was written are not the bytes that were packed; the caller discards them.
        """
        if blob.compressed or blob.stored <= _PIECE:
            write(self.read(blob, what))
            return
        digest, done = hashlib.sha256(), 0
        while done < blob.stored:
            piece = os.pread(self._descriptor, min(_PIECE, blob.stored - done), blob.offset + done)
            if not piece:
                raise self._damaged(what)
            digest.update(piece)
            write(piece)
            done += len(piece)
        if digest.digest() != blob.digest:
            raise self._damaged(what)

    def _read_index(self) -> bytes:
        size = os.fstat(self._descriptor).st_size
        head = folders.read_range(self._descriptor, 0, len(_HEADER))
        if head[:-1] != _MAGIC:
            raise self._damaged("its first bytes")
        if head[-1] != VERSION:
            raise _foreign(f"the pack {self.id}", head[-1])
        foot = folders.read_range(self._descriptor, max(0, size - _FOOTER.size), _FOOTER.size)
        if len(foot) < _FOOTER.size or foot[-len(_HEADER) :] != _HEADER:
            raise self._damaged("its end")
        start, length, _ = cast("tuple[int, int, bytes]", _FOOTER.unpack(foot))
        if start + length + _FOOTER.size != size or length % _BLOB.size:
            raise self._damaged("its end")
        index = folders.read_range(self._descriptor, start, length)
        if hashlib.sha256(index).hexdigest() != self.id:
            raise self._damaged("its index")
        return index

    def _inflate(self, data: bytes, blob: Blob, what: str) -> bytes:
        import zlib  # only small packs are compressed

        try:
            inflater = zlib.decompressobj()
            return inflater.decompress(data, blob.raw + 1)  # never more memory than the index promised
        except zlib.error as error:
            raise self._damaged(what) from error

    def _damaged(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"the project cannot be read from the store: {what} is damaged",
            why=f"the bytes in {pack_key(self.id)} are not the ones that were packed",
            next=f"delete {pack_key(self.id)} from the store and submit again: missing files are sent again",
        )


def _foreign(what: str, version: object) -> StoreError:
    return StoreError(
        f"{what} was written by another version of kinetic",
        why=f"it has format {version!r}, this version reads format {VERSION}",
        next="use the newer version of kinetic on both sides: pip install --upgrade kinetic-jobs",
        code="pack-version",
    )


# ------------------------------------------------------------------------------------------- manifests of shipped data

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
    digest: str  # SHA-256 of path, NUL and bytes, in hexadecimal
    packed: bool  # whether it is in one pack; otherwise its parts are chunks, in order
    parts: tuple[Part, ...]  # none when it is empty


class Manifest(NamedTuple):
    """A tree of files, or a single file."""

    hash: str  # the documented content hash
    is_dir: bool
    files: tuple[ManifestFile, ...]  # in the order in which the content hash visits them
    folders: tuple[str, ...] = ()  # that are empty; the others follow from the files

    def to_bytes(self) -> bytes:
        """Write the page: equal manifests are equal bytes."""
        blobs = list(dict.fromkeys(part.blob for file in self.files for part in file.parts))
        number = {blob: index for index, blob in enumerate(blobs)}
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
            "blobs": blobs,
            "files": files,
            "folders": sorted(self.folders),
        }
        return json.dumps(page, sort_keys=True, separators=(",", ":")).encode()  # ASCII: names need not be UTF-8

    @classmethod
    def from_bytes(cls, data: bytes, *, sha256: str) -> Manifest:
        """Read the page that the order promised.

        Raises:
            IntegrityError: It is another page, damaged, of another version, or names a path outside its own tree.
        """
        what = "the manifest of the data is not what was submitted; it was not used"
        action = "submit again: damaged files are sent again"
        digests.check(digests.of_bytes(data), sha256, what, "the order", next=action)
        try:
            return _read_manifest(
                documents.parse(data, "the manifest of the data", most_bytes=MOST_MANIFEST_BYTES, any_name=True)
            )
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise IntegrityError(
                "the manifest of the data is damaged", why=f"{type(error).__name__}: {error}"
            ) from error

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


def _read_manifest(page: dict[str, object]) -> Manifest:
    if type(page["data"]) is not int or page["data"] != MANIFEST_VERSION:
        raise ValueError(f"its version is {page['data']!r}; this kinetic reads {MANIFEST_VERSION}")
    blobs = [_hex(blob) for blob in page["blobs"]]  # type: ignore[attr-defined] # a TypeError is what we want
    files = [
        ManifestFile(
            _inside(path),
            bool(executable),
            int(size),
            _hex(digest),
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


def _hex(text: object) -> str:
    if not _is_digest(text):
        raise ValueError(f"{text!r} is not a digest")
    return str(text)
