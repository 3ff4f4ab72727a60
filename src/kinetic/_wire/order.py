"""The Order: one page that tells a runner everything.

What to fetch, every digest, the names of environment variables, and where the Outcome goes. The launch carries the
digest of the Order, and the Order carries the digest of every artifact: one chain, checked link by link.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from kinetic._wire import digests, documents, fields, keys
from kinetic.errors import IntegrityError

Kind = Literal["shipped", "object", "prefix", "hf", "view"]


@dataclass(frozen=True)
class DataRef:
    """Where one piece of data lies, and where the job wants it.

    Attributes:
        kind: How the runner gets it.
            "shipped": a local file or folder that lies in the store ``uri``, described by a manifest.
            "object": one object of a bucket, e.g. gs://bucket/dir/weights.h5.
            "prefix": everything under a prefix of a bucket, e.g. gs://bucket/dir/ or gs://bucket/.
            "hf": a Hugging Face data set, loaded inside the job.
            "view": a path of this very machine that is shown read-only and not copied (``fuse=True`` here).
        uri: Address of the store, of the object, of the prefix or of the data set; for a view, an absolute path.
        path: What the user wrote; for messages.
        name: Last component of the path: the name of a single file in the job.
        is_dir: Whether the job gets a folder; otherwise a file.
        hash: Content hash of shipped data, in hexadecimal.
        manifest: SHA-256 of the manifest page of shipped data.
        mount: Absolute path at which a volume appears; "" for an argument.
        fuse: Whether it is to be mounted instead of copied, where the place can do that.
        writable: Whether the job asked for a copy that it may change.
        trust: Whether a Hugging Face data set may execute code of its own.
    """

    kind: Kind
    uri: str
    path: str
    name: str
    is_dir: bool
    hash: str = ""
    manifest: str = ""
    mount: str = ""
    fuse: bool = False
    writable: bool = False
    trust: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, page: dict[str, Any]) -> DataRef:
        """Rebuild a reference; fields that it does not know are passed over.

        Raises:
            IntegrityError: One of them has a value that it cannot have.
        """
        return fields.build(cls, _REFERENCE_READERS, page, "a reference to data")


_REFERENCE_READERS = {
    "kind": fields.one_of("shipped", "object", "prefix", "hf", "view"),
    "uri": fields.text(fields.PATH),
    "path": fields.text(fields.PATH),
    "name": fields.text(fields.LINE),
    "is_dir": fields.boolean,
    "hash": fields.text(fields.NAME),
    "manifest": fields.text(fields.NAME),
    "mount": fields.text(fields.PATH),
    "fuse": fields.boolean,
    "writable": fields.boolean,
    "trust": fields.boolean,
}
REF = fields.nested(DataRef, _REFERENCE_READERS)


INLINE_BYTES = 16_384  # what is smaller travels inside the Order: one object less to write and to fetch


@dataclass(frozen=True)
class Artifact:
    """Bytes that a runner needs: inside the Order, or under a key of the store.

    Attributes:
        sha256: Their digest, lower-case hexadecimal.
        size: Their length in bytes.
        key: Where they lie in the store, or "".
        inline: The bytes in base 64, or "".
        start: Where they begin in the object, for what shares one with others.
    """

    sha256: str
    size: int
    key: str = ""
    inline: str = ""
    start: int = 0

    @classmethod
    def within(cls, data: bytes) -> Artifact:
        """Make an artifact that travels inside the Order."""
        return cls(digests.of_bytes(data), len(data), inline=base64.b64encode(data).decode())

    def unwrap(self, what: str) -> bytes:
        """Return the verified bytes of an artifact that travelled inside the Order."""
        data = base64.b64decode(self.inline)
        self.verify(digests.of_bytes(data), what)
        return data

    def verify(self, found: str, what: str) -> None:
        """Refuse bytes whose digest is another.

        Raises:
            IntegrityError: They are not the bytes that were submitted; they were not used.
        """
        if found != self.sha256:
            raise IntegrityError(
                f"{what} is not what was submitted; it was not used",
                why=f"its SHA-256 is {found[:16]}…, the order says {self.sha256[:16]}…",
                next="submit again; if it happens twice, look at who can write to the store",
            )


@dataclass(frozen=True)
class Child:
    """What the launch of a batch's child adds to the order that it shares.

    Attributes:
        job_id: The child.
        index: Its input.
        attempt: Which attempt at that input, from 0.
        arguments: Its pickled arguments.
        data: What only this child reads; follows the order's own data.
        output_dir: Value of KINETIC_OUTPUT_DIR.
    """

    job_id: str
    index: int
    attempt: int
    arguments: Artifact
    data: tuple[DataRef, ...] = ()
    output_dir: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, page: dict[str, Any]) -> Child:
        """Rebuild it.

        Raises:
            IntegrityError: It is none.
        """
        return fields.build(cls, _CHILD, page, "what the launch says of a batch's child")


@dataclass(frozen=True)
class Order:
    """What one runner is to do.

    Attributes:
        job_id: The job.
        function_name: As a human knows it.
        function: The pickled function.
        arguments: The pickled positional and keyword arguments.
        tree: Root digest of the project, or "" when nothing ships.
        packs: Packs that hold the project's files.
        plan: How the project lay on the client: root, entry_rel, cwd_rel, sys_path_rel.
        script: Path of the user's ``__main__`` below the root, or "".
        environment: Names of captured variables; their values never enter a store.
        output_dir: Value of KINETIC_OUTPUT_DIR.
        accelerator: As resolved, e.g. "tpu-v5litepod-1".
        hosts: How many hosts run this order.
        deadline: Seconds the function may run, or None.
        fingerprint: Versions on the client: python, cloudpickle, kinetic.
        debug: Seconds to wait for a debugger before the function begins; None without one.
        data: What the job reads. An argument refers to its data by the position in here; volumes have a mount path.
        group: The batch whose children share this page, or "".
        index: Of a child, its input's index; None in the page itself.
        group_attempt: Of a child, which attempt at this input it is, from 0.
        cpu: Cores that each host asked for, or None.
        memory_bytes: Memory that each host asked for, or None.
        retries: How many more times a job that failed is tried; its batch does so for a child.
    """

    job_id: str
    function_name: str
    function: Artifact
    arguments: Artifact
    tree: str = ""
    packs: tuple[str, ...] = ()
    plan: dict[str, Any] = field(default_factory=dict)
    script: str = ""
    environment: tuple[str, ...] = ()
    output_dir: str = ""
    accelerator: str = "cpu"
    hosts: int = 1
    deadline: float | None = None
    fingerprint: dict[str, str] = field(default_factory=dict)
    debug: float | None = None
    data: tuple[DataRef, ...] = ()
    group: str = ""
    index: int | None = None
    group_attempt: int = 0
    cpu: float | None = None
    memory_bytes: int | None = None
    retries: int = 0

    @property
    def key(self) -> str:
        """Where the page lies in the store: the children of a batch share one."""
        return keys.group_order(self.group) if self.group else keys.order(self.job_id)

    @property
    def mark(self) -> str:
        """Stem of the key that tells of a batch's child how it ended; "" for a job of its own."""
        return keys.mark(self.group, self.index, self.group_attempt) if self.index is not None else ""

    def data_to_mount(self) -> list[dict[str, Any]] | None:
        """Return what a job reads, if any of it needs a mount: mounts are made before the worker opens any store.

        A store in the cloud brings threads, and a process with threads cannot enter a place of its own.
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
        """Read the page that the launch promised.

        Raises:
            IntegrityError: It is another page, or damaged; nothing of it was used.
        """
        found = digests.of_bytes(data)
        if found != sha256:
            raise IntegrityError(
                "the order is not the one that was launched; it was not carried out",
                why=f"its SHA-256 is {found[:16]}…, the launch says {sha256[:16]}…",
            )
        return fields.build(cls, _READERS, documents.read(data, "the order"), "the order")


def read(store: documents.Readable, key: str, sha256: str) -> Order:
    """Read the order that a launch, a record or a manifest promised.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is another page, or damaged.
    """
    return Order.from_bytes(documents.fetch(store, key, documents.MOST_BYTES, "the order"), sha256=sha256)


_REFS = fields.list_of(REF, 100_000)
ARTIFACT = fields.nested(
    Artifact,
    {
        "sha256": fields.sha256,
        "size": fields.integer(0, fields.BYTES),
        "key": fields.text(fields.LINE),
        "inline": fields.text(2 * INLINE_BYTES),
        "start": fields.integer(0, fields.BYTES),
    },
)
_CHILD = {
    "job_id": keys.JOB_ID,
    "index": keys.INDEX,
    "attempt": keys.ATTEMPT,
    "arguments": ARTIFACT,
    "data": _REFS,
    "output_dir": fields.text(fields.PATH),
}
_READERS = {
    "job_id": keys.JOB_ID_OR_NONE,
    "function_name": fields.text(),
    "function": ARTIFACT,
    "arguments": ARTIFACT,
    "tree": fields.text(64),
    "packs": fields.list_of(fields.sha256, 1_000_000),
    "plan": fields.map_of(fields.any_value, 64),
    "script": fields.text(fields.PATH),
    "environment": fields.list_of(fields.text(), 100_000),
    "output_dir": fields.text(fields.PATH),
    "accelerator": fields.text(fields.NAME),
    "hosts": fields.integer(1, 100_000),
    "deadline": fields.optional(fields.number(0, fields.SECONDS)),
    "fingerprint": fields.map_of(fields.text(), 64),
    "debug": fields.optional(fields.number(0, fields.SECONDS)),
    "data": _REFS,
    "group": keys.GROUP_ID_OR_NONE,
    "index": fields.optional(keys.INDEX),
    "group_attempt": keys.ATTEMPT,
    "cpu": fields.optional(fields.number(0, fields.BYTES)),
    "memory_bytes": fields.optional(fields.integer(0, fields.BYTES)),
    "retries": fields.integer(0, fields.BYTES),
}
