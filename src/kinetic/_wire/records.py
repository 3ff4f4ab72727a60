"""The record of a job: its fields, wherever a page has them: in the store, the manifest of a batch, the history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kinetic._wire import digests, documents, fields, keys
from kinetic._wire.order import REF, Artifact, Child, DataRef
from kinetic.errors import IntegrityError


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
    "job_id": keys.JOB_ID,
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
    "group_id": fields.optional(keys.GROUP_ID),
    "group_kind": fields.optional(_NAME),
    "group_index": fields.optional(keys.INDEX),
    "group_attempt": fields.optional(keys.ATTEMPT),
    "debug": fields.boolean,
    "store": fields.optional(fields.text(fields.PATH)),
    "context": fields.optional(_LINE),
    "host": fields.optional(_NAME),
    "key_id": fields.optional(_NAME),
    "output_dir": fields.optional(fields.text(fields.PATH)),
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
}
_TIME = fields.optional(fields.number(0, fields.SECONDS))
_PAST = {
    **HANDLE,
    "status": _NAME,
    "emulation": fields.optional(_NAME),
    "reason": _LINE,
    "created": _TIME,
    "started": _TIME,
    "ended": _TIME,
    "removed": _TIME,
    "collected": _TIME,
    "attempts": fields.integer(0, keys.MOST_ATTEMPTS),
    "artifacts_removed": fields.boolean,
    "resource_removed": fields.boolean,
    "logs": fields.array_of(fields.known_fields(_LOG, ("attempt", "host", "size_bytes")), 100_000),
}


def _past(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_PAST, page, what, ("job_id",))


HISTORY = documents.PageKind("history", "the history", _past, 4 << 20)


@dataclass(frozen=True)
class Settings:
    """How a batch is driven.

    Attributes:
        max_concurrent: How many children may be active at once; None means no limit.
        retries: Further attempts at an input that failed.
        fail_fast: Whether nothing more is launched after a failure.
        cancel_running_on_fail: Whether what runs then is cancelled as well.
    """

    max_concurrent: int | None = 64
    retries: int = 0
    fail_fast: bool = False
    cancel_running_on_fail: bool = False


@dataclass(frozen=True)
class Group:
    """What a batch is.

    Attributes:
        group_id: ``grp-`` and 8 hexadecimal digits.
        group_name: As the user calls it, or None.
        tags: The user's own words.
        created: Unix time.
        total_expected: How many inputs.
        submit_fn_name: The function.
        slug: The accelerator's short word, for the ids of children.
        handle: What the handles of all children have in common.
        more: What the records of all children have in common besides.
        settings: How it is driven.
        order_sha256: Digest of the Order that the children share.
        table_sha256: Digest of the table of inputs.
        spot: Whether its hosts may be taken away.
        outputs: Below which address each child has its outputs.
        key_id: Which key seals it, and its children.
    """

    group_id: str
    group_name: str | None
    tags: dict[str, str]
    created: float
    total_expected: int
    submit_fn_name: str
    slug: str
    handle: dict[str, Any]
    more: dict[str, Any]
    settings: Settings
    order_sha256: str
    table_sha256: str
    outputs: str
    key_id: str
    spot: bool = False
    group_kind: str = "map"
    created_at: str = ""

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


@dataclass(frozen=True)
class Input:
    """One input of a batch as the table has it.

    Attributes:
        shown: A short text of it, for humans.
        arguments: Its pickled arguments; None when it could not be submitted.
        data: What only this input reads.
        error: Why it could not be submitted; "" when it could.
    """

    shown: str
    arguments: Artifact | None = None
    data: tuple[DataRef, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Table:
    """Where every input of a batch lies."""

    inputs: tuple[Input, ...] = field(repr=False)

    def to_bytes(self) -> bytes:
        """Write the page: packs are named once, data is written where there is some."""
        packs = list(dict.fromkeys(item.arguments.key for item in self.inputs if item.arguments))
        number = {key: place for place, key in enumerate(packs)}
        rows = [_row(item, number) for item in self.inputs]
        return json.dumps({"schema": documents.SCHEMA, "packs": packs, "inputs": rows}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, sha256: str) -> Table:
        """Read the page that the manifest promised.

        Raises:
            IntegrityError: It is another page.
        """
        found = digests.of_bytes(data)
        if found != sha256:
            raise IntegrityError(
                "the inputs of the batch are not what was submitted; nothing more of it was launched",
                why=f"the SHA-256 of their table is {found[:16]}…, the manifest says {sha256[:16]}…",
                next="look at who can write to the store, and submit the batch again",
            )
        what = "the table of inputs"
        page = documents.parse(data, what, most_bytes=TABLE_BYTES, any_name=True)
        packs = fields.read_one(fields.list_of(fields.text(), keys.MOST_INPUTS), _of(page, "packs"), what)
        rows = fields.read_one(fields.list_of(fields.any_value, keys.MOST_INPUTS), _of(page, "inputs"), what)
        return cls(tuple([fields.read_one(_input_of(packs), row, f"a row of {what}") for row in rows]))

    def addresses(self) -> set[str]:
        """Return where the data of all inputs lies."""
        return {ref.uri for item in self.inputs for ref in item.data}

    def child(self, group: Group, index: int, attempt: int) -> Child:
        """Return what the launch of one child adds to the order."""
        item = self.inputs[index]
        assert item.arguments is not None  # noqa: S101 - whoever launches has asked
        return Child(
            job_id=group.child_id(index, attempt),
            index=index,
            attempt=attempt,
            arguments=item.arguments,
            data=item.data,
            output_dir=f"{group.outputs}/{group.group_id}/{index}",
        )


def read_table(store: documents.Readable, group: Group) -> Table:
    """Read the table of a batch's inputs.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is another page than the manifest promised.
    """
    most = min(TABLE_BYTES, (4 << 20) + group.total_expected * _ROW_BYTES)
    return Table.from_bytes(
        documents.fetch(store, keys.group_table(group.group_id), most, "the table of inputs"), sha256=group.table_sha256
    )


def _row(item: Input, number: dict[str, int]) -> list[Any]:
    if item.arguments is None:
        return [item.shown, item.error]
    place = item.arguments
    row = [item.shown, number[place.key], place.start, place.size, place.sha256]
    return [*row, [ref.to_json() for ref in item.data]] if item.data else row


def _of(page: object, name: str) -> object:
    return page.get(name) if isinstance(page, dict) else None


def _input_of(packs: Sequence[str]) -> fields.Reader[Input]:
    """Return what reads a row of the table."""

    def read(row: object) -> Input:
        items = fields.list_of(fields.any_value, 6)(row)
        if len(items) == 2:
            return Input(_SHOWN(items[0]), error=_SHOWN(items[1]))
        if len(items) < 5:
            raise fields.FieldError(f"must have 2, 5 or 6 items, and has {len(items)}")
        number, start, size = fields.integer(0, len(packs) - 1)(items[1]), _SIZE(items[2]), _SIZE(items[3])
        arguments = Artifact(fields.sha256(items[4]), size, key=packs[number], start=start)
        return Input(_SHOWN(items[0]), arguments, _REFS(items[5]) if len(items) == 6 else ())

    return read


_SHOWN, _SIZE, _REFS = fields.text(fields.TEXT), fields.integer(0, fields.BYTES), fields.list_of(REF, 100_000)
TABLE_BYTES, _ROW_BYTES = 4 << 30, 1 << 18  # a row names the data of its input
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
    "slug": fields.text(fields.NAME),
    "handle": fields.known_fields(HANDLE, (*SHARED, "store")),
    "more": fields.known_fields({"spot": fields.boolean, "machine": fields.text(), "python": fields.text()}),
    "settings": fields.nested(Settings, _SETTINGS),
    "order_sha256": fields.sha256,
    "table_sha256": fields.sha256,
    "outputs": fields.text(fields.PATH),
    "key_id": fields.text(fields.NAME),
    "spot": fields.boolean,
    "group_kind": fields.text(fields.NAME),
    "created_at": fields.text(fields.NAME),
}


def _group(page: dict[str, Any], what: str) -> Group:
    return fields.build(Group, _GROUP_READERS, page, what)


MANIFEST = documents.PageKind("group", "the manifest", _group, 4 << 20)
