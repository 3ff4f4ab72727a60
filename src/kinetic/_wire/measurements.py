"""What one host of an attempt used while it ran, measured every few seconds: a page of rows, bounded in size.

A row has, in this order: seconds since the job began, CPU seconds so far, bytes of memory now, bytes read from and
written to disks so far, bytes used on the file system of its working folder now; and of each device how busy it was (%)
and how many bytes of its memory were used. What was not to be measured is None.

The log has rows of its own: in which seconds it was seen first and last with this length, and its length in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from kinetic._wire import dataclass, documents, fields, keys, progress
from kinetic._wire.progress import Progress

Row = tuple[float | None, ...]

SECONDS, CPU, MEMORY, READ, WRITTEN, DISK, DEVICES = range(7)  # columns; from DEVICES on, two for each device
MOST_ROWS = 240  # 20 minutes, one every 5 s; older ones are put together by twos
_SO_FAR = (SECONDS, CPU, READ, WRITTEN)  # columns that only grow
_MOST_DEVICES = 64
GPU, TPU = "gpu", "tpu"
CGROUP, PROCESSES = "cgroup", "processes"  # where the numbers come from


@dataclass(frozen=True)
class Device:
    """One accelerator of a host."""

    kind: str  # GPU or TPU
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Measurements:
    """All that was measured on one host of an attempt."""

    job_id: str
    attempt: int
    host: int
    began: float  # Unix time, from which the seconds of the rows count
    source: str
    cores: float  # that it may use
    memory_limit_bytes: int  # of the job, else of its container or machine
    disk_bytes: int  # size of the file system of its working folder; 0 where that is not known
    devices: tuple[Device, ...] = ()
    seconds: float = 0.0  # that it had run when this was written
    cpu_seconds: float = 0.0  # until then, with those of processes that had ended
    peak_cores: float = 0.0  # between two measurements
    peak_memory_bytes: int = 0
    rows: tuple[Row, ...] = field(default=(), repr=False)
    log: tuple[Row, ...] = field(default=(), repr=False)
    progress: Progress | None = None  # as its own code reported it last
    active: float = 0.0  # Unix time at which it last printed, computed or reported; 0 where that is not known

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        progress = self.progress.to_json() if self.progress is not None else None
        return {**vars(self), "devices": [vars(device) for device in self.devices], "progress": progress}

    @property
    def idle_seconds(self) -> float:
        """How long it had neither printed nor computed nor reported anything when this was written."""
        return max(self.began + self.seconds - self.active, 0.0) if self.active else 0.0

    def to_bytes(self, key: bytes) -> bytes:
        """Write the page for the store, sealed with the job's key."""
        return documents.seal_page(PAGE, self.to_json(), keys.usage(self.job_id, self.attempt, self.host), key)


def thinned(rows: Iterable[Row], most: int = MOST_ROWS) -> list[Row]:
    """Return rows, at most so many: the older half is put together by twos, as often as needed."""
    found = list(rows)
    while len(found) > most:
        half = max(len(found) // 2 // 2 * 2, 2)
        pairs = zip(found[:half:2], found[1:half:2], strict=True)
        found[:half] = [_together(first, second) for first, second in pairs]
    return found


def _together(first: Row, second: Row) -> Row:
    """Return one row for two: where the second had come to, and the larger of what went up and down in between."""

    def larger(column: int) -> float | None:
        one, other = first[column] if column < len(first) else None, second[column]
        return other if one is None or column in _SO_FAR else one if other is None else max(one, other)

    return tuple(larger(column) for column in range(len(second)))


def _rows(value: object) -> tuple[Row, ...]:
    read = fields.list_of(fields.list_of(_NUMBER, DEVICES + 2 * _MOST_DEVICES), 4 * MOST_ROWS)
    found: tuple[Sequence[float | None], ...] = read(value)
    if any(len(row) < DEVICES or row[SECONDS] is None for row in found):
        raise fields.FieldError(f"must have {DEVICES} columns or more, of which the first is a number")
    return tuple(map(tuple, found))


def _log_rows(value: object) -> tuple[Row, ...]:
    found = fields.list_of(fields.list_of(fields.number(0, fields.BYTES), 3), 4 * MOST_ROWS)(value)
    if any(len(row) != 3 for row in found):
        raise fields.FieldError("must have 3 columns")
    return found


_NUMBER = fields.optional(fields.number(0, fields.BYTES))
_AMOUNT = fields.integer(0, fields.BYTES)
_DEVICE = {"kind": fields.one_of(GPU, TPU), "name": fields.text(fields.NAME), "memory_bytes": _AMOUNT}
READERS: dict[str, fields.Reader[Any]] = {
    "job_id": keys.JOB_ID,
    "attempt": keys.ATTEMPT,
    "host": fields.integer(0, 100_000),
    "began": fields.number(0, fields.SECONDS),
    "source": fields.one_of(CGROUP, PROCESSES),
    **fields.each(fields.number(0, fields.SECONDS), "cores", "seconds", "cpu_seconds", "peak_cores"),
    **fields.each(_AMOUNT, "memory_limit_bytes", "disk_bytes", "peak_memory_bytes"),
    "devices": fields.list_of(fields.nested(Device, _DEVICE), _MOST_DEVICES),
    "rows": _rows,
    "log": _log_rows,
    "progress": fields.optional(progress.READER),
    "active": fields.number(0, fields.SECONDS),
}
PAGE = documents.PageKind("usage", "the usage", fields.builder(Measurements, READERS), 1 << 20)
