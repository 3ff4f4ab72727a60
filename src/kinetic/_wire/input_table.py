"""The table of a batch's inputs: where the arguments of each are, and which data it reads."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from kinetic._wire import dataclass, digests, documents, fields, keys

if TYPE_CHECKING:
    from kinetic._wire.order import Artifact, Child, DataRef
    from kinetic._wire.records import Group


@dataclass(frozen=True)
class Input:
    """One input of a batch as the table has it."""

    shown: str  # a short text of it, for humans
    arguments: Artifact | None = None  # pickled; None when it could not be submitted
    data: tuple[DataRef, ...] = ()  # what only this input reads
    error: str = ""  # why it could not be submitted; "" when it could


class Inputs(Sequence[Input]):
    """Rows of a table in 70 bytes each; an ``Input`` is made when one is asked for."""

    _ROW = struct.Struct("=IQQ32sQ")  # number of its pack, start and size there, digest; the end of its text

    def __init__(self, items: Iterable[Input] = ()) -> None:
        self._rows, self._texts = bytearray(), bytearray()
        self._packs: dict[str, int] = {}
        self._names: list[str] = []  # of the packs, by their numbers
        self._others: dict[int, Input] = {}  # what has more than a row has: data, an error, its arguments inline
        for item in items:
            self.append(item)

    def append(self, item: Input) -> None:
        """Add a row."""
        place = item.arguments
        if place is None or place.inline or item.data or item.error:
            self._others[len(self)] = item
            row = 0, 0, 0, b"", len(self._texts)
        else:
            number = self._packs.setdefault(place.key, len(self._names))
            if number == len(self._names):
                self._names.append(place.key)
            self._texts += item.shown.encode(errors="surrogatepass")
            row = number, place.start, place.size, bytes.fromhex(place.sha256), len(self._texts)
        self._rows += self._ROW.pack(*row)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._rows) // self._ROW.size

    def __getitem__(self, index: int) -> Input:  # type: ignore[override] # no slices
        """Return one row; an IndexError says that there is none."""
        from kinetic._wire.order import Artifact  # 3 ms, here and below; the result of one job needs none

        index = range(len(self))[index]
        if (other := self._others.get(index)) is not None:
            return other
        number, start, size, digest, end = self._ROW.unpack_from(self._rows, index * self._ROW.size)
        before = self._ROW.unpack_from(self._rows, (index - 1) * self._ROW.size)[-1] if index else 0
        shown = self._texts[before:end].decode(errors="surrogatepass")
        return Input(shown, Artifact(digest.hex(), size, key=self._names[number], start=start))

    def __setitem__(self, index: int, item: Input) -> None:
        """Replace a row."""
        self._others[range(len(self))[index]] = item

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same rows."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # rows are added


@dataclass(frozen=True)
class Table:
    """Where every input of a batch is."""

    inputs: Sequence[Input] = field(repr=False)

    def to_bytes(self) -> bytes:
        """Write the page: packs are named once, data is written where there is some."""
        packs = list(dict.fromkeys(item.arguments.key for item in self.inputs if item.arguments))
        number = {key: place for place, key in enumerate(packs)}
        rows = [_row(item, number) for item in self.inputs]
        return json.dumps({"schema": documents.SCHEMA, "packs": packs, "inputs": rows}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, sha256: str) -> Table:
        """Read the page that the manifest promised."""
        changed = "the inputs of the batch are not what was submitted; nothing more of it was launched"
        action = "look at who can write to the store, and submit the batch again"
        digests.check(digests.of_bytes(data), sha256, changed, "the manifest", next=action)
        what = "the table of inputs"
        page = documents.parse(data, what, most_bytes=TABLE_BYTES, any_name=True)
        found = fields.checked(_TABLE, page, what, _TABLE)
        packs, rows = found["packs"], found["inputs"]
        read, row_name = _input_of(packs), f"a row of {what}"
        return cls(Inputs(fields.read_one(read, row, row_name) for row in rows))

    def addresses(self) -> set[str]:
        """Return the addresses of the data of all inputs."""
        return {ref.uri for item in self.inputs for ref in item.data}

    def child(self, group: Group, index: int, attempt: int) -> Child:
        """Return what the launch of one child adds to the order."""
        from kinetic._wire.order import Child

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
    """Read the table of a batch's inputs."""
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


def _input_of(packs: Sequence[str]) -> fields.Reader[Input]:
    """Return what reads a row of the table."""
    from kinetic._wire.order import REF, Artifact

    refs = fields.list_of(REF, 100_000)

    def read(row: object) -> Input:
        items = fields.list_of(fields.any_value, 6)(row)
        if len(items) == 2:
            return Input(_SHOWN(items[0]), error=_SHOWN(items[1]))
        if len(items) < 5:
            raise fields.FieldError(f"must have 2, 5 or 6 items, and has {len(items)}")
        number, start, size = fields.integer(0, len(packs) - 1)(items[1]), _SIZE(items[2]), _SIZE(items[3])
        arguments = Artifact(fields.sha256(items[4]), size, key=packs[number], start=start)
        return Input(_SHOWN(items[0]), arguments, refs(items[5]) if len(items) == 6 else ())

    return read


_SHOWN, _SIZE = fields.text(fields.TEXT), fields.integer(0, fields.BYTES)
TABLE_BYTES, _ROW_BYTES = 4 << 30, 1 << 18  # a row names the data of its input
_TABLE = {
    "packs": fields.list_of(fields.text(), keys.MOST_INPUTS),
    "inputs": fields.list_of(fields.any_value, keys.MOST_INPUTS),
}
