"""The fields of a job's handle, wherever a page has them: a record, the manifest of a batch, a page of the history."""

from __future__ import annotations

from typing import Any

from kinetic._wire import fields, names, pages

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
_LOG = {"attempt": names.ATTEMPT, "host": fields.whole(0, 100_000), "size_bytes": fields.whole(0, fields.BYTES)}
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
    "logs": fields.array_of(fields.some(_LOG, _LOG), 100_000),
}


def _past(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_PAST, page, what, ("job_id",))


HISTORY = pages.Kind("history", "the history", _past, 4 << 20)
