"""The record of a job: its fields, wherever a page has them: in the store, the manifest of a batch, the history."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, cast

from kinetic._wire import dataclass, documents, fields, keys


@dataclass
class JobRecord:
    """What names a job and says where it is. Plain values: nothing is opened, asked or remembered here.

    ``JobHandle`` tells what each field means; it is a record that can also be waited for. What works on jobs takes the
    record, and changes nothing in it.
    """

    job_id: str
    backend: str
    project: str
    cluster_name: str
    zone: str
    namespace: str
    bucket_name: str
    k8s_name: str
    image_uri: str
    accelerator: str
    func_name: str
    display_name: str
    created_at: str
    group_id: str | None = None
    group_kind: str | None = None
    group_index: int | None = None
    debug: bool = False
    store: str | None = None
    context: str | None = None
    host: str | None = None
    key_id: str | None = None
    output_dir: str | None = None
    group_attempt: int | None = None
    name: str | None = None
    tags: dict[str, str] | None = None
    command: list[str] | None = None
    after: list[str] | None = None
    _past = cast("dict[str, Any] | None", None)  # its page of the history; no field, so all fields are JSON values


_FIELDS = tuple(JobRecord.__dataclass_fields__)


def known(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a page are fields of a record; the others are passed over."""
    return {name: page[name] for name in _FIELDS if name in page}


def plain(job: JobRecord) -> dict[str, Any]:
    """Return a record as JSON values, without the fields that are None."""
    return {name: value for name in _FIELDS if (value := getattr(job, name)) is not None}


_NAME, _LINE = fields.text(fields.NAME), fields.text()
HANDLE: dict[str, fields.Reader[Any]] = {
    "job_id": keys.JOB_ID,
    **fields.each(_NAME, "backend", "accelerator", "created_at"),
    **fields.each(_LINE, "project", "cluster_name", "zone", "namespace", "k8s_name", "image_uri", "func_name"),
    **fields.each(fields.text(fields.PATH), "bucket_name", "display_name"),
    "group_id": fields.optional(keys.GROUP_ID),
    "group_index": fields.optional(keys.INDEX),
    "group_attempt": fields.optional(keys.ATTEMPT),
    "debug": fields.boolean,
    **fields.each(fields.optional(fields.text(fields.PATH)), "store", "output_dir"),
    **fields.each(fields.optional(_NAME), "group_kind", "host", "key_id"),
    **fields.each(fields.optional(_LINE), "context", "name"),
    "tags": fields.optional(fields.map_of(fields.text(), 1000)),
    "command": fields.optional(fields.array_of(fields.text(fields.TEXT), 10_000)),
    "after": fields.optional(fields.array_of(_NAME, 10_000)),
}
# Of every handle; a child of a batch adds its own to what all have in common.
SHARED = (
    *("backend", "project", "cluster_name", "zone", "namespace", "bucket_name", "image_uri", "accelerator"),
    *("func_name", "created_at"),
)
REQUIRED = (*SHARED, "job_id", "k8s_name", "display_name")
_LOG = {
    "attempt": keys.ATTEMPT,
    "host": fields.integer(0, 100_000),
    "size_bytes": fields.integer(0, fields.BYTES),
    "sha256": fields.sha256,
    "changed": fields.boolean,
    "left_out": fields.integer(0, fields.BYTES),  # bytes of its beginning
}
_TIME = fields.optional(fields.number(0, fields.SECONDS))
_PAST = {
    **HANDLE,
    "status": _NAME,
    "emulation": fields.optional(_NAME),
    "reason": _LINE,
    **fields.each(_TIME, "created", "started", "ended", "removed", "collected"),
    "attempts": fields.integer(0, keys.MOST_ATTEMPTS),
    **fields.each(fields.boolean, "artifacts_removed", "resource_removed"),
    "logs": fields.array_of(fields.known_fields(_LOG, ("attempt", "host", "size_bytes")), 100_000),
    "usage": fields.array_of(fields.map_of(fields.any_value, 64), 100_000),  # see measurements.py; checked when shown
}


def _past(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_PAST, page, what, ("job_id",))


HISTORY = documents.PageKind("history", "the history", _past, 4 << 20)


@dataclass(frozen=True)
class Settings:
    """How a batch is driven."""

    max_concurrent: int | None = 64  # how many children may be active at once; None for no limit
    retries: int = 0  # further attempts at an input that failed
    fail_fast: bool = False  # whether nothing more is launched after a failure
    cancel_running_on_fail: bool = False  # whether what runs then is cancelled as well


@dataclass(frozen=True)
class Group:
    """What a batch is."""

    group_id: str  # ``grp-`` and 8 hexadecimal digits
    group_name: str | None  # as the user calls it
    tags: dict[str, str]  # the user's own
    created: float  # Unix time
    total_expected: int  # how many inputs
    submit_fn_name: str  # the function
    slug: str  # the accelerator's short word, for the ids of children
    handle: dict[str, Any]  # what the handles of all children have in common
    more: dict[str, Any]  # what the records of all children have in common besides
    settings: Settings
    order_sha256: str  # of the order that the children share
    table_sha256: str  # of the table of inputs
    outputs: str  # below which address each child has its outputs
    key_id: str  # which key seals it, and its children
    spot: bool = False
    group_kind: str = "map"
    created_at: str = ""
    first_seconds: float = 0.0  # how long the first child is expected to compile; 0 where no other one waits for it
    first_index: int = 0  # that child's input

    def child_id(self, index: int, attempt: int) -> str:
        """Return the id of one child's attempt."""
        return keys.child_id(self.slug, self.submit_fn_name, self.group_id, self.created, index, attempt)

    @property
    def store(self) -> str:
        """The address of the store that it was made for."""
        return str(self.handle["store"])

    def to_bytes(self, key: bytes) -> bytes:
        """Write the page, sealed with the key that is derived for this batch."""
        page = {**asdict(self), "created_at": keys.format_utc(self.created), "store": self.store}
        return documents.seal_page(MANIFEST, page, keys.group_manifest(self.group_id), key)


_SETTINGS = {
    "max_concurrent": fields.optional(fields.integer(1, fields.BYTES)),
    "retries": fields.integer(0, fields.BYTES),
    "fail_fast": fields.boolean,
    "cancel_running_on_fail": fields.boolean,
}
_GROUP_READERS = {
    "group_id": keys.GROUP_ID,
    "group_name": fields.optional(fields.text()),
    "tags": fields.map_of(fields.text(), 1000),
    "created": fields.number(0, fields.SECONDS),
    "total_expected": fields.integer(0, keys.MOST_INPUTS),
    "submit_fn_name": fields.text(),
    **fields.each(_NAME, "slug", "key_id", "group_kind", "created_at"),
    "handle": fields.known_fields(HANDLE, (*SHARED, "store")),
    "more": fields.known_fields({"spot": fields.boolean, **fields.each(fields.text(), "machine", "python", "lock")}),
    "settings": fields.nested(Settings, _SETTINGS),
    **fields.each(fields.sha256, "order_sha256", "table_sha256"),
    "outputs": fields.text(fields.PATH),
    "spot": fields.boolean,
    "first_seconds": fields.number(0, fields.SECONDS),
    "first_index": keys.INDEX,
}
MANIFEST = documents.PageKind("group", "the manifest", fields.builder(Group, _GROUP_READERS), 4 << 20)


# ------------------------------------------------------------------------------------------------ a batch's control log

STOP, RETRY = "stop", "again"
STOPPED_BY_USER, FAIL_FAST = "cancelled", "fail-fast"  # why it was stopped


@dataclass(frozen=True)
class ControlEntry:
    """One entry of the control log."""

    word: str  # STOP or RETRY
    why: str = ""  # of a stop: STOPPED_BY_USER or FAIL_FAST
    allowed: dict[str, int] = field(default_factory=dict)  # of a retry: how many attempts each input may have


_ENTRY = {
    "word": fields.one_of(STOP, RETRY),
    "why": fields.one_of("", STOPPED_BY_USER, FAIL_FAST),
    "allowed": fields.map_of(keys.ATTEMPT, keys.MOST_INPUTS, fields.text(7, re.compile("[0-9]{1,7}"))),
}
CONTROL_ENTRY = documents.PageKind("turn", "the control entry", fields.builder(ControlEntry, _ENTRY), 64 << 20)
