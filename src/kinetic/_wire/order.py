"""The Order: one page that tells a runner everything.

What to fetch, every digest, the names of environment variables, and where the outcome goes. The launch carries the
digest of the order, and the order carries the digest of every artifact: one chain, checked link by link.

It begins with the manifests in which that chain ends, and ends with the rule for where outputs and checkpoints are.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, Literal

from kinetic._wire import NamedTuple, dataclass, digests, documents, fields, keys
from kinetic.errors import IntegrityError, OptionError

if TYPE_CHECKING:
    from pathlib import Path


# ------------------------------------------------------------------------------------------------------------ manifests
# The manifest of a tree of files, of a project or of data: every file, and the blobs of a store that hold its bytes. A
# blob is an object named by the SHA-256 of its bytes. Small files share one, a pack; a large file is cut into blobs of
# its own, chunks. A pack whose name ends with ".z" is stored compressed; the rest of the name is of its raw bytes.
#
# The manifest of data is written last, so its presence promises that every blob is there: it is the marker of the
# cache. An order carries its SHA-256. A file's digest is the documented one: SHA-256 of its relative path, one NUL
# byte, and its bytes. Files of a pack are verified against it; a chunk is verified against its own name.
#
# The manifest of a project is at the end of its last pack. The order names its packs, so the manifest refers to them by
# number, and says no digests of files: a job reads whole packs, and verifies each against its name.

COMPRESSED = ".z"
MOST_COMPRESSED_BYTES = 4 << 20  # of a pack before it is compressed; a larger one is not
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
    if not isinstance(text, str) or not digests.is_hexadecimal(text, 64):
        raise ValueError(f"{text!r} is not a digest")
    return text


# --------------------------------------------------------------------------------------------------------------- orders

Kind = Literal["shipped", "object", "prefix", "hf", "view"]
INLINE_BYTES = 16_384  # what is smaller travels inside the order: one object less to write and to fetch


@dataclass(frozen=True)
class DataRef:
    """Where one piece of data is, and where the job wants it.

    Its kind says how the runner gets it:
        "shipped": a local file or folder that is in the store ``uri``, described by a manifest.
        "object": one object of a bucket, e.g. gs://bucket/dir/weights.h5.
        "prefix": everything under a prefix of a bucket, e.g. gs://bucket/dir/ or gs://bucket/.
        "hf": a Hugging Face data set, loaded inside the job.
        "view": a path of this very machine that is shown read-only and not copied (``fuse=True`` here).
    """

    kind: Kind
    uri: str  # of the store, of the object, of the prefix or of the data set; for a view, an absolute path
    path: str  # what the user wrote; for messages
    name: str  # last component of the path: the name of a single file in the job
    is_dir: bool  # whether the job gets a folder; otherwise a file
    hash: str = ""  # content hash of shipped data, in hexadecimal
    manifest: str = ""  # SHA-256 of the manifest page of shipped data
    mount: str = ""  # absolute path at which a volume appears; "" for an argument
    fuse: bool = False  # whether it is to be mounted instead of copied, where that is possible
    writable: bool = False  # whether the job asked for a copy that it may change
    trust: bool = False  # whether a Hugging Face data set may execute code of its own

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, page: dict[str, Any]) -> DataRef:
        """Rebuild a reference; unknown fields are ignored."""
        return fields.build(cls, _REFERENCE_READERS, page, "a reference to data")


_REFERENCE_READERS = {
    "kind": fields.one_of("shipped", "object", "prefix", "hf", "view"),
    **fields.each(fields.text(fields.PATH), "uri", "path", "mount"),
    "name": fields.text(fields.LINE),
    **fields.each(fields.text(fields.NAME), "hash", "manifest"),
    **fields.each(fields.boolean, "is_dir", "fuse", "writable", "trust"),
}
REF = fields.nested(DataRef, _REFERENCE_READERS)
_REFS = fields.list_of(REF, 100_000)


@dataclass(frozen=True)
class Artifact:
    """Bytes that a runner needs: inside the order, or under a key of the store."""

    sha256: str
    size: int  # bytes
    key: str = ""  # in the store, or ""
    inline: str = ""  # the bytes in base 64, or ""
    start: int = 0  # where they begin in the object, for what shares one with others

    @classmethod
    def within(cls, data: bytes) -> Artifact:
        """Make an artifact that travels inside the order."""
        return cls(digests.of_bytes(data), len(data), inline=base64.b64encode(data).decode())

    def unwrap(self, what: str) -> bytes:
        """Return the verified bytes of an artifact that travelled inside the order."""
        data = base64.b64decode(self.inline)
        self.verify(digests.of_bytes(data), what)
        return data

    def verify(self, found: str, what: str) -> None:
        """Refuse bytes whose digest is another."""
        problem = f"{what} is not what was submitted; it was not used"
        action = "submit again; if it happens twice, look at who can write to the store"
        digests.check(found, self.sha256, problem, "the order", next=action)


ARTIFACT = fields.nested(
    Artifact,
    {
        "sha256": fields.sha256,
        **fields.each(fields.integer(0, fields.BYTES), "size", "start"),
        "key": fields.text(fields.LINE),
        "inline": fields.text(2 * INLINE_BYTES),
    },
)


@dataclass(frozen=True)
class Child:
    """What the launch of a batch's child adds to the order that it shares."""

    job_id: str
    index: int  # of its input
    attempt: int  # at that input, from 0
    arguments: Artifact
    data: tuple[DataRef, ...] = ()  # what only this child reads; follows the order's own data
    output_dir: str = ""  # value of KINETIC_OUTPUT_DIR

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; not `asdict`, which copies each value, in 0.2 ms for each child."""
        return {**vars(self), "arguments": dict(vars(self.arguments)), "data": [asdict(each) for each in self.data]}

    @classmethod
    def from_json(cls, page: dict[str, Any]) -> Child:
        """Rebuild it."""
        return fields.build(cls, _CHILD, page, "what the launch says of a batch's child")


_CHILD = {
    "job_id": keys.JOB_ID,
    "index": keys.INDEX,
    "attempt": keys.ATTEMPT,
    "arguments": ARTIFACT,
    "data": _REFS,
    "output_dir": fields.text(fields.PATH),
}


@dataclass(frozen=True)
class Predecessor:
    """A job, or a batch, that must succeed before another job starts."""

    job_id: str  # of the job, or of the batch
    function: str = ""  # its name, for messages
    group: str = ""  # the batch, or the batch that the job is a child of; "" for a job of its own
    inputs: int = 0  # of a batch, how many it has; 0 for a job
    attempts: int = 1  # of a batch, how many each input may have
    retried: int = 0  # of a batch whose inputs were tried again by hand, how many the one with the most may have
    slug: str = ""  # of a batch: with its time, what the ids of its children are derived from
    created: float = 0.0  # of a batch, Unix time
    key_id: str = ""  # which key it is sealed with
    value: bool = False  # whether an argument of the job that waits is what it returned

    @property
    def owner(self) -> str:
        """Below which id the keys of those are that wait for it; see ``keys.followers``."""
        return self.group or self.job_id

    @property
    def shown(self) -> str:
        """What it is, for humans."""
        what = f"batch {self.job_id}" if self.inputs else self.job_id
        return f"{what} ({self.function})" if self.function else what

    def ids(self) -> Iterator[str]:
        """Yield the names whose keys verify it: of a job itself; of a batch its own, and then of each attempt."""
        yield self.job_id
        for index in range(self.inputs):
            for attempt in range(max(self.attempts, self.retried)):
                yield self.child_id(index, attempt)

    def child_id(self, index: int, attempt: int) -> str:
        """Return the id of one attempt at an input of the batch."""
        return keys.child_id(self.slug, self.function, self.job_id, self.created, index, attempt)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, page: dict[str, Any]) -> Predecessor:
        """Rebuild it."""
        return fields.build(cls, _PREDECESSOR, page, "what a job waits for")


_PREDECESSOR = {
    "job_id": keys.JOB_ID,
    "function": fields.text(),
    "group": keys.GROUP_ID_OR_NONE,
    "inputs": fields.integer(0, keys.MOST_INPUTS),
    "attempts": fields.integer(1, keys.MOST_ATTEMPTS),
    "retried": fields.integer(0, keys.MOST_ATTEMPTS),
    "slug": fields.text(fields.NAME),
    "created": fields.number(0, fields.SECONDS),
    "key_id": fields.text(fields.NAME),
    "value": fields.boolean,
}
MOST_PREDECESSORS = 1000
MOST_PREDECESSOR_KEYS = 16_000  # 512 KB: in one Secret with the job's own key and its captured values


@dataclass(frozen=True)
class Order:
    """What one runner is to do."""

    job_id: str
    function_name: str  # for humans
    function: Artifact  # the pickled function
    arguments: Artifact  # the pickled positional and keyword arguments
    manifest: Artifact | None = None  # of the project, in the last of its blobs; None when nothing is sent
    packs: tuple[str, ...] = ()  # the blobs that contain the project
    plan: dict[str, Any] = field(default_factory=dict)  # of the client: Plan.to_json, logging, settings
    script: str = ""  # path of the user's ``__main__`` below the root, or ""
    environment: tuple[str, ...] = ()  # names of captured variables; their values never enter a store
    output_dir: str = ""  # value of KINETIC_OUTPUT_DIR
    accelerator: str = "cpu"  # as resolved, e.g. "tpu-v5litepod-1"
    hosts: int = 1
    deadline: float | None = None  # seconds the function may run
    fingerprint: dict[str, str] = field(default_factory=dict)  # versions on the client: python, cloudpickle, kinetic
    debug: float | None = None  # seconds to wait for a debugger before the function begins
    data: tuple[DataRef, ...] = ()  # what the job reads; an argument refers to it by its position in here
    group: str = ""  # the batch whose children share this page, or ""
    index: int | None = None  # of a child, its input's index; None in the page itself
    group_attempt: int = 0  # of a child, which attempt at this input it is, from 0
    cpu: float | None = None  # cores that each host asked for
    memory_bytes: int | None = None  # that each host asked for
    retries: int = 0  # how many times a failed job is retried; its batch does so for a child
    is_command: bool = False  # whether the function starts a program, which has no stacks of Python to show
    # what must have succeeded before it starts; an argument refers to what one returned by its position in here
    after: tuple[Predecessor, ...] = ()

    @property
    def key(self) -> str:
        """Where the page is in the store: the children of a batch share one."""
        return keys.group_order(self.group) if self.group else keys.order(self.job_id)

    @property
    def mark(self) -> str:
        """Stem of the key that tells how a batch's child ended; "" for a job of its own."""
        return keys.mark(self.group, self.index, self.group_attempt) if self.index is not None else ""

    def data_to_mount(self) -> list[dict[str, Any]] | None:
        """Return what a job reads, if any of it needs a mount: mounts are made before the worker opens any store.

        A store in the cloud brings threads, and a process with threads cannot enter a mount namespace of its own.
        """
        needs_it = any(ref.mount or ref.kind == "view" for ref in self.data)
        return [ref.to_json() for ref in self.data] if needs_it else None

    def of_child(self, child: Child) -> Order:
        """Return the order of one child of the batch that this page is for."""
        return replace(
            self,
            job_id=child.job_id,
            index=child.index,
            group_attempt=child.attempt,
            arguments=child.arguments,
            data=(*self.data, *child.data),
            output_dir=child.output_dir,
        )

    def to_bytes(self) -> bytes:
        """Write the page."""
        return documents.write({"schema": documents.SCHEMA, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, *, sha256: str) -> Order:
        """Read the page that the launch promised."""
        what = "the order is not the one that was launched; it was not used"
        digests.check(digests.of_bytes(data), sha256, what, "the launch")
        return fields.build(cls, _READERS, documents.read(data, "the order"), "the order")


def read(store: documents.Readable, key: str, sha256: str) -> Order:
    """Read the order that a launch, a record or a manifest promised."""
    return Order.from_bytes(documents.fetch(store, key, documents.MOST_BYTES, "the order"), sha256=sha256)


_READERS = {
    "job_id": keys.JOB_ID_OR_NONE,
    "function_name": fields.text(),
    **fields.each(ARTIFACT, "function", "arguments"),
    "manifest": fields.optional(ARTIFACT),
    "packs": fields.list_of(fields.text(pattern=BLOB), 1_000_000),
    "plan": fields.map_of(fields.any_value, 64),
    **fields.each(fields.text(fields.PATH), "script", "output_dir"),
    "environment": fields.list_of(fields.text(), 100_000),
    "accelerator": fields.text(fields.NAME),
    "hosts": fields.integer(1, 100_000),
    **fields.each(fields.optional(fields.number(0, fields.SECONDS)), "deadline", "debug"),
    "fingerprint": fields.map_of(fields.text(), 64),
    "data": _REFS,
    "group": keys.GROUP_ID_OR_NONE,
    "index": fields.optional(keys.INDEX),
    "group_attempt": keys.ATTEMPT,
    "cpu": fields.optional(fields.number(0, fields.BYTES)),
    "memory_bytes": fields.optional(fields.integer(0, fields.BYTES)),
    "retries": fields.integer(0, fields.BYTES),
    "is_command": fields.boolean,
    "after": fields.list_of(fields.nested(Predecessor, _PREDECESSOR), MOST_PREDECESSORS),
}


# ---------------------------------------------------------------------------------------------- outputs and checkpoints
# One rule for the client that submits, the runner, and the user's function:
#     {output_dir}/…                               what the function writes
#     {output_dir}/checkpoints/                    KINETIC_CHECKPOINT_DIR of a single job, and of every attempt at it
#     {output_dir}/{group}/{index}/checkpoints/    of one child of a batch: children must not overwrite each other's

# What a script got from its command line, absl and gin included, as JSON; the worker takes it out of its environment.
WORDS_VARIABLE = "KINETIC_SCRIPT_WORDS"
ORIGIN = "KINETIC_PACKAGE_ORIGIN"  # the user's project of which a job has a copy, KINETIC_PACKAGE_ROOT
CHECKPOINTS = "checkpoints"
OUTPUT_PAGES = ".kinetic-files/"  # below an output directory that is an address: what hosts wrote there with open()
DEFAULT_OUTPUT_FOLDER = "outputs"  # below the current folder: where a function writes outside of a job by default
OUTPUT_MARKER = ".gitignore"
_MARKER_TEXT = "# made by kinetic.output_dir(), for what functions write outside of jobs\n*\n"
_ONE_SLASH = re.compile(r"([a-z][a-z0-9]+):/(?!/)(.*)", re.DOTALL)  # what pathlib makes of "gs://bucket"


def output_address(written: str) -> str:
    """Return an output directory as an absolute path, or as an address such as "gs://b/x" without a last slash."""
    if lost := _ONE_SLASH.fullmatch(written):
        raise OptionError(
            f"output_dir={written!r} is neither a path nor an address",
            why="a pathlib.Path cannot hold an address: it drops one of the two slashes",
            next=f'output_dir="{lost[1]}://{lost[2]}"',
        )
    scheme, separator, rest = written.partition("://")
    if separator and scheme.lower() != "file":
        if not rest.strip("/"):
            raise OptionError(f"output_dir={written!r} has no bucket", next=f'output_dir="{scheme}://bucket/folder"')
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    return os.path.abspath(os.path.expanduser(rest if separator else written))


def resolve_output_dir(argument: str | None, environ: Mapping[str, str]) -> str:
    """Return the output directory that a user chose for a job: the argument, else KINETIC_OUTPUT_DIR; "" for none.

    A job that submits others has that variable as well: there it is a choice only once the function has changed it.
    A folder in the job's copy of the project is the one of the project itself, as the copy goes with the job.
    """
    said = environ.get("KINETIC_OUTPUT_DIR", "")
    if "KINETIC_JOB_ID" in environ and environ.get("KINETIC_CHECKPOINT_DIR") == checkpoint_dir(said):
        said = ""
    return outside_of_a_copy(output_address(argument or said), environ) if argument or said else ""


def outside_of_a_copy(path: str, environ: Mapping[str, str]) -> str:
    """Return the path in the user's project of one in a job's copy of it; any other path as it is."""
    origin, copy = environ.get(ORIGIN, ""), environ.get("KINETIC_PACKAGE_ROOT", "")
    for folder in (copy, os.path.realpath(copy)) if origin and copy else ():
        if f"{path}/".startswith(f"{folder}/"):
            return origin.rstrip("/") + path[len(folder) :]
    return path


def is_output_page(path: str) -> bool:
    """Return whether a file below an output directory is ours, and not an output."""
    return f"/{OUTPUT_PAGES}" in f"/{path}"


def local_folder(output_dir: str) -> str:
    """Return the local folder of an address, or "" when it is elsewhere."""
    path = output_dir.removeprefix("file://")
    return path if path.startswith("/") else ""


def checkpoint_dir(output_dir: str, group: str = "", index: int | None = None) -> str:
    """Return where checkpoints belong: the same for every attempt, and for every call with the same output directory.

    The output directory of a batch's child may be the child's own already: then nothing is added twice.
    """
    if not output_dir:
        return ""
    base, own = output_dir.rstrip("/"), f"/{group}/{index}" if group and index is not None else ""
    return f"{base.removesuffix(own)}{own}/{CHECKPOINTS}"


def checkpoints_of(order: Order) -> str:
    """Return where the checkpoints of an order belong."""
    return checkpoint_dir(order.output_dir, order.group, order.index)


def why_not_made(output_dir: str) -> str:
    """Return why a local folder cannot be made, or written to, by this user; "" if it can, or is elsewhere."""
    found = local_folder(output_dir)
    while found and not os.path.lexists(found):
        found = os.path.dirname(found)
    if not found or (os.path.isdir(found) and os.access(found, os.W_OK | os.X_OK)):
        return ""
    return f"{found} is {'a folder that you may not write to' if os.path.isdir(found) else 'not a folder'}"


def make_output_dir(output_dir: str) -> str:
    """Make the folder if it is a local one, and return the address: a function may write there at once."""
    if folder := local_folder(output_dir):
        os.makedirs(folder, exist_ok=True)  # as the user's umask has it: the files are the user's
    return output_dir


def make_default_output_dir() -> str:
    """Make the folder below the current one, with a marker that keeps it out of git and of this project's jobs."""
    folder = os.path.abspath(DEFAULT_OUTPUT_FOLDER)
    if not os.path.isdir(folder):
        os.mkdir(folder)
        with open(os.path.join(folder, OUTPUT_MARKER), "w") as sign:  # plain: the user's own folder
            sign.write(_MARKER_TEXT)
    return folder


def excluded_output_folders(output_dir: str, needed: Iterable[str]) -> list[Path]:
    """Return the folders of outputs in a project: what jobs wrote is not sent with the next job.

    A folder that holds one of the ``needed`` folders, which the job starts in or imports from, is sent.
    """
    from pathlib import Path  # only for a client; a job that asks for its folder need not load it

    here = os.path.abspath(DEFAULT_OUTPUT_FOLDER)
    found = [local_folder(output_dir), here if _has_marker(here) else ""]
    starts = [f"{folder}/" for folder in needed]
    return [Path(folder) for folder in found if folder and not any(each.startswith(f"{folder}/") for each in starts)]


def _has_marker(folder: str) -> bool:
    try:
        with open(os.path.join(folder, OUTPUT_MARKER)) as sign:  # plain
            return sign.read() == _MARKER_TEXT
    except (OSError, ValueError):
        return False
