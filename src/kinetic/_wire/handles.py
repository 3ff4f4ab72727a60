"""The record of a job: its fields, wherever a page has them: in the store, the manifest of a batch, the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kinetic._wire import fields, names, pages


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
    _past: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)  # its page of the history


_FIELDS = tuple(name for name in JobRecord.__dataclass_fields__ if name != "_past")


def known(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a page are fields of a record; the others are passed over."""
    return {name: page[name] for name in _FIELDS if name in page}


def plain(job: JobRecord) -> dict[str, Any]:
    """Return a record as JSON values, without the fields that are None."""
    return {name: value for name in _FIELDS if (value := getattr(job, name)) is not None}


_NAME, _LINE = fields.text(fields.NAME), fields.text()
HANDLE: dict[str, fields.Reader[Any]] = {
    "job_id": names.JOB_ID,
    "backend": _NAME,
    "project": _LINE,
    "cluster_name": _LINE,
    "zone": _LINE,
    "namespace": _LINE,
    "bucket_name": fields.text(fields.PATH),
    "k8s_name": _LINE,
    "image_uri": _LINE,
    "accelerator": _NAME,
    "func_name": _LINE,
    "display_name": fields.text(fields.PATH),
    "created_at": _NAME,
    "group_id": fields.maybe(names.GROUP_ID),
    "group_kind": fields.maybe(_NAME),
    "group_index": fields.maybe(names.INDEX),
    "group_attempt": fields.maybe(names.ATTEMPT),
    "debug": fields.flag,
    "store": fields.maybe(fields.text(fields.PATH)),
    "context": fields.maybe(_LINE),
    "host": fields.maybe(_NAME),
    "key_id": fields.maybe(_NAME),
    "output_dir": fields.maybe(fields.text(fields.PATH)),
}
# Of every handle; a child of a batch adds its own to what all have in common.
SHARED = (
    *("backend", "project", "cluster_name", "zone", "namespace", "bucket_name", "image_uri", "accelerator"),
    *("func_name", "created_at"),
)
REQUIRED = (*SHARED, "job_id", "k8s_name", "display_name")
_LOG = {
    "attempt": names.ATTEMPT,
    "host": fields.whole(0, 100_000),
    "size_bytes": fields.whole(0, fields.BYTES),
    "sha256": fields.sha256,
    "changed": fields.flag,
}
_TIME = fields.maybe(fields.number(0, fields.SECONDS))
_PAST = {
    **HANDLE,
    "status": _NAME,
    "emulation": fields.maybe(_NAME),
    "reason": _LINE,
    "created": _TIME,
    "started": _TIME,
    "ended": _TIME,
    "removed": _TIME,
    "collected": _TIME,
    "attempts": fields.whole(0, names.MOST_ATTEMPTS),
    "artifacts_removed": fields.flag,
    "resource_removed": fields.flag,
    "logs": fields.array_of(fields.some(_LOG, ("attempt", "host", "size_bytes")), 100_000),
}


def _past(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_PAST, page, what, ("job_id",))


HISTORY = pages.Kind("history", "the history", _past, 4 << 20)
