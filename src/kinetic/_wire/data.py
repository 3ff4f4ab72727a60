"""DataRef: what an order says about data that a job reads, in place of the ``Data`` object of the client."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from kinetic._wire import fields

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
        return fields.build(cls, _READERS, page, "a reference to data")


_READERS = {
    "kind": fields.one_of("shipped", "object", "prefix", "hf", "view"),
    "uri": fields.text(fields.PATH),
    "path": fields.text(fields.PATH),
    "name": fields.text(fields.LINE),
    "is_dir": fields.flag,
    "hash": fields.text(fields.NAME),
    "manifest": fields.text(fields.NAME),
    "mount": fields.text(fields.PATH),
    "fuse": fields.flag,
    "writable": fields.flag,
    "trust": fields.flag,
}
REF = fields.part(DataRef, _READERS)
