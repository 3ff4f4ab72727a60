"""The manifest of a batch: written once, before the first child; its children are keys of their own.

Everything that another process needs to take the batch over is here, or named here by its digest: the Order that all
children share, and the table of inputs. Values of captured variables are not: they never enter a store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from kinetic._wire import digests, names, pages, seal
from kinetic._wire.data import DataRef
from kinetic._wire.order import Artifact, Child
from kinetic.errors import IntegrityError

PURPOSE = "group"


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
        return names.child_id(self.slug, self.submit_fn_name, self.group_id, self.created, index, attempt)

    def to_bytes(self, key: bytes) -> bytes:
        """Write the page, sealed with the key that is derived for this batch."""
        fields = {"schema": pages.SCHEMA, **asdict(self), "created_at": names.utc(self.created)}
        return pages.write(seal.sealed(fields, key, PURPOSE))

    @classmethod
    def from_bytes(cls, data: bytes, group_id: str, key: bytes | None) -> Group:
        """Read the page and verify its seal.

        Args:
            data: The page.
            group_id: The batch that it must be about.
            key: The batch's key, or None where it cannot be had: then nothing is verified, and nothing is collected.

        Raises:
            IntegrityError: It is damaged, about another batch, or its seal is wrong.
        """
        fields = pages.read(data, f"the manifest of {group_id}")
        if fields.get("group_id") != group_id:
            raise IntegrityError(f"the manifest of {group_id} is about {fields.get('group_id')!r}")
        seal.check(fields, key, PURPOSE, f"the manifest of {group_id}")
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        known["settings"] = Settings(**fields["settings"])
        return cls(**known)


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
        return json.dumps({"schema": pages.SCHEMA, "packs": packs, "inputs": rows}, separators=(",", ":")).encode()

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
        page = pages.read(data, "the table of inputs")
        return cls(tuple(_input(row, page["packs"]) for row in page["inputs"]))

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


def _row(item: Input, number: dict[str, int]) -> list[Any]:
    if item.arguments is None:
        return [item.shown, item.error]
    place = item.arguments
    row = [item.shown, number[place.key], place.start, place.size, place.sha256]
    return [*row, [ref.to_json() for ref in item.data]] if item.data else row


def _input(row: list[Any], packs: list[str]) -> Input:
    if len(row) == 2:
        return Input(row[0], error=row[1])
    shown, pack, start, size, sha256, *data = row
    refs = tuple(DataRef.from_json(page) for page in (data[0] if data else ()))
    return Input(shown, Artifact(sha256, size, key=packs[pack], start=start), refs)
