"""The Order: one page that tells a runner everything.

What to fetch, every digest, the names of environment variables, and where the outcome goes. The launch carries the
digest of the order, and the order carries the digest of every artifact: one chain, checked link by link.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, field, replace
from typing import Any, Literal

from kinetic._wire import dataclass, digests, documents, fields, keys, trees

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
        """Return plain JSON values."""
        return asdict(self)

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
class Order:
    """What one runner is to do."""

    job_id: str
    function_name: str  # for humans
    function: Artifact  # the pickled function
    arguments: Artifact  # the pickled positional and keyword arguments
    manifest: Artifact | None = None  # of the project, in the last of its blobs; None when nothing is sent
    packs: tuple[str, ...] = ()  # the blobs that contain the project
    plan: dict[str, Any] = field(default_factory=dict)  # of the client: root, entry_rel, cwd_rel, sys_path_rel
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
    "packs": fields.list_of(fields.text(pattern=trees.BLOB), 1_000_000),
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
}
