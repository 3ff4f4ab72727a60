"""What a look at thousands of jobs need not read again: records and outcomes as they were verified, and rows of a list.

Everything here was read from the store and verified once. What is lost or damaged is read again. It is kept in the
home, whose files are as trusted as its keys, and only used while the key that sealed a job is in the key ring.

{home}/index/{store}.json                   records and outcomes
{home}/index/{store and machine}.rows       what a list shows of jobs that have ended; .history.rows: of removed ones
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kinetic._config import home as config_home
from kinetic._jobs import environment
from kinetic._stores.protocol import Entry, Store
from kinetic._version import __version__
from kinetic._wire import NamedTuple, folders, keys

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic._wire.outcomes import Outcome

_SCHEMA = 1
_RECORD, _OUTCOME, _FOREIGN = "record", "outcome", "foreign"
OF_OTHERS = "of others"  # in the place of a status
_ERROR_FIELDS = ("type", "message", "value_type")  # what a list shows; logs and tracebacks stay in the store
_WORTH_WRITING = 0.02  # of the entries: writing thousands again for each new job would cost more than it saves
_indexes: dict[Path, Index] = {}
_rows: dict[Path, RowFile] = {}

# ------------------------------------------------------------------------------------------------ names in the history


def page_entries(store: Store) -> Iterator[Entry]:
    """Yield the pages of the history as a listing shows them, without what is kept beside them."""
    for entry in store.entries(keys.HISTORY):
        if not keys.job_of_history(entry.key):
            return
        yield entry


def page_names(store: Store) -> set[str]:
    """Return the names of the pages of the history, which need not be ids; of a folder only the names are read."""
    if store.local is not None:
        with contextlib.suppress(OSError), folders.opened(store.local.root, keys.HISTORY) as at:
            return {name[:-5] for name in os.listdir(at) if name.endswith(".json")}
    return {keys.job_of_history(entry.key) for entry in page_entries(store)}


def page_ids(store: Store) -> set[str]:
    """Return the jobs that have a page of the history."""
    return set(filter(keys.is_job_id, page_names(store)))


# ------------------------------------------------------------------------------------------------ records and outcomes


def index_of(store: Store) -> Index:
    """Return the index of a store; where the user trusts a store unverified, one that knows and keeps nothing."""
    return _index_at(store.url)


def _index_at(url: str) -> Index:
    if environment.trusts_the_store():
        return Index(None, url)
    import hashlib  # 3 ms; only for jobs that the rows do not know

    path = environment.home() / "index" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"
    if path not in _indexes:
        _indexes[path] = Index(path, url)
    _indexes[path].key_ids = environment.key_ids()
    return _indexes[path]


def known_jobs(url: str) -> dict[str, tuple[str | None, str | None]]:
    """Return the jobs of a store that was looked at before, with their names and batches; the store is not asked."""
    found = _index_at(url)
    records = {job_id: found.record(job_id) or {} for job_id in found.jobs() if found.foreign(job_id) is None}
    rows = _rows_at(url, "").rows.values()
    return {job_id: (page.get("name"), page.get("group_id")) for job_id, page in records.items()} | {
        row.job_id: (row.name, row.group_id) for row in rows
    }


class Index:
    """What is known of the jobs of one store; without a path it is not kept."""

    def __init__(self, path: Path | None, store_url: str) -> None:
        self._store, self._path = store_url, path
        self._jobs = {} if path is None else self._load(path)
        self._new = 0
        self.key_ids: frozenset[str] = frozenset()  # of this home, as they are now: what others sealed is not believed

    def jobs(self) -> list[str]:
        """Return the jobs of which something is known."""
        return [*self._jobs]

    def record(self, job_id: str) -> dict[str, Any] | None:
        """Return the record of a job as it was verified; None where it must be read."""
        found = self._of(job_id).get(_RECORD)
        return found if isinstance(found, dict) and found.get("key_id") in self.key_ids else None

    def note_record(self, job_id: str, record: dict[str, Any]) -> None:
        """Keep a record that was read and verified."""
        self._note(job_id, _RECORD, record)

    def foreign(self, job_id: str) -> tuple[str, str, str] | None:
        """Return what is shown of a job of others, whose key is still not here: function, time and key."""
        found = self._of(job_id).get(_FOREIGN)
        if not isinstance(found, list) or len(found) != 3 or not all(isinstance(each, str) for each in found):
            return None
        function, created_at, key_id = found
        return None if key_id in self.key_ids else (function, created_at, key_id)

    def note_foreign(self, job_id: str, function: str, created_at: str, key_id: str) -> None:
        """Keep what was read of a job that is sealed with a key of others: in a team, most jobs of a store are."""
        self._note(job_id, _FOREIGN, [function, created_at, key_id])

    def outcome(self, job_id: str) -> Outcome | None:
        """Return the verdict of a job, without its log and traceback; None where it must be read."""
        from kinetic._wire.outcomes import Outcome  # 3 ms, as above

        found = self._of(job_id).get(_OUTCOME)
        with contextlib.suppress(TypeError):  # of another version
            return Outcome(**found) if isinstance(found, dict) and self.record(job_id) is not None else None
        return None

    def note_outcome(self, job_id: str, outcome: Outcome) -> None:
        """Keep a verdict that was read and verified."""
        from dataclasses import asdict

        error = {name: outcome.error[name] for name in _ERROR_FIELDS if name in outcome.error}
        self._note(job_id, _OUTCOME, asdict(outcome) | {"phases": {}, "files": (), "error": error})

    def write(self, listed: Callable[[], Iterable[str]]) -> None:
        """Write what is new, once it is worth it, and drop the jobs that the store no longer lists."""
        if self._path is None or self._new <= _WORTH_WRITING * len(self._jobs):
            return
        import json  # 2 ms, as above

        kept = set(listed())
        page = {name: page for name, page in [*self._jobs.items()] if name in kept}
        data = json.dumps({"schema": _SCHEMA, "store": self._store, "jobs": page}).encode()
        with contextlib.suppress(OSError):  # a full or read-only disk: then the next list reads the store
            folders.write_whole(self._path, data)
            self._new = 0

    def _of(self, job_id: str) -> dict[str, Any]:
        found = self._jobs.get(job_id)
        return found if isinstance(found, dict) else {}

    def _note(self, job_id: str, kind: str, page: object) -> None:
        self._jobs[job_id] = {**self._of(job_id), kind: page}
        self._new += 1

    def _load(self, path: Path) -> dict[str, Any]:
        import json

        with contextlib.suppress(OSError, ValueError, RecursionError):
            page = json.loads(path.read_bytes())
            if isinstance(page, dict) and page.get("schema") == _SCHEMA and page.get("store") == self._store:
                return dict(page["jobs"]) if isinstance(page.get("jobs"), dict) else {}
        return {}


# ------------------------------------------------------------------------------------------------------ rows of a list


class Row(NamedTuple):
    """What a list shows of a job: the fields of its JSON by their names, and then what they depend on."""

    job_id: str
    function: str
    status: str
    reason: str
    accelerator: str
    emulation: str | None
    group_id: str | None
    group_index: int | None
    backend: str
    where: str
    attempt: int | None
    created_at: str
    collected_at: str | None
    removed_at: str | None
    started_at: str | None
    ended_at: str | None
    duration_seconds: float | None
    created: float | None  # Unix time; None where the text cannot be read
    removed: float | None
    store: str  # the address of the store that it is in
    key_id: str | None  # that sealed what this was read from; None if nothing did
    zone: str = ""  # by which its hardware is priced
    precise: float = 0.0  # of the history: when the job was made (Unix time), with fractions
    stamp: tuple[int, float] | None = None  # of the history: size and time of the page
    dollars: float | None = None  # what it cost so far, where that was asked for; never kept
    name: str | None = None  # the user's own, as are the tags; shown as well
    tags: Mapping[str, str] = {}
    command: list[str] | None = None
    progress: dict[str, Any] | None = None  # of a running job; never kept
    after: list[str] = []  # noqa: RUF012 - never changed

    @classmethod
    def of(cls, page: Mapping[str, Any], store: str, key_id: str | None, zone: str = "") -> Row:
        """Return the row of the fields of its JSON."""
        created, removed = keys.parse_utc(page["created_at"]), page["removed_at"]
        gone = keys.parse_utc(removed) if removed is not None else None
        return cls(**page, created=created, removed=gone, store=store, key_id=key_id, zone=zone)

    @classmethod
    def of_others(cls, job_id: str, store: str, key_id: str, stamp: tuple[int, float]) -> Row:
        """Return the place of a page of the history that is sealed with a key of others: it is not shown."""
        nothing = (None,) * 3
        return cls(job_id, "", OF_OTHERS, "", "", *nothing, "", "", None, "", *nothing, *nothing, None, store, key_id,
                   stamp=stamp)  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the fields of its JSON."""
        own = {"name": self.name, "tags": self.tags, "command": self.command}
        own |= {"after": self.after, "progress": self.progress}
        return dict(zip(self._fields[:_SHOWN_FIELDS], self, strict=False)) | own


_SHOWN_FIELDS = Row._fields.index("created")


# Of the form below, this version and Python's marshal; with a checksum, since marshal must not be given damaged bytes.
_ROWS = f"kinetic rows 4 {__version__}\n".encode()
_MARSHAL = 4
_CHECKSUM_BYTES = 4


def rows_of(store: Store, part: str = "") -> RowFile:
    """Return the rows that are known of a store; where the user trusts a store unverified, none are, and none kept."""
    return _rows_at(store.url, part)


def _rows_at(url: str, part: str) -> RowFile:
    if environment.trusts_the_store():
        return RowFile(None, "")
    about = f"{environment.machine()}\n{url}"  # a row says whether its job is on this machine
    path = environment.home() / "index" / f"{config_home.short_digest(about)}{part}.rows"
    if path not in _rows:
        _rows[path] = RowFile(path, about)
    return _rows[path]


class RowFile:
    """The rows of one store, by job; without a path they are not kept."""

    def __init__(self, path: Path | None, about: str) -> None:
        self._path, self._about = path, about
        self.folder: tuple[int, ...] | None = None  # its stamp, if these are all of its rows; None if not certain
        self.rows: dict[str, Row] = {}  # what is known; of jobs that are gone as well, until the next write
        self._new = 0
        if path is not None:
            self._load(path)

    def note(self, row: Row) -> None:
        """Keep a row of a job that has ended; what it says was verified."""
        self.rows[row.job_id] = row
        self._new += 1

    def write(self, listed: Callable[[], Iterable[str]]) -> None:
        """Write what is new, once it is worth it, and drop the jobs that are not listed any more."""
        if self._path is None or self._new <= _WORTH_WRITING * len(self.rows):
            return
        kept = set(listed())
        self.replace([row for name, row in self.rows.items() if name in kept], None)

    def replace(self, rows: Iterable[Row], folder: tuple[int, ...] | None) -> None:
        """Write these rows, in this order, in place of all others."""
        self.rows, self.folder, self._new = {row.job_id: row for row in rows}, folder, 0
        if self._path is None:
            return
        import marshal  # read in a fifth of the time of JSON
        import zlib

        same: dict[str, str] = {}  # equal texts become one, and are written once
        plain = [
            tuple([same.setdefault(each, each) if isinstance(each, str) else each for each in row])
            for row in self.rows.values()
        ]
        data = marshal.dumps((self._about, folder, plain), _MARSHAL)
        with contextlib.suppress(OSError):  # a full or read-only disk: then the next list reads the store
            folders.write_whole(self._path, _ROWS + zlib.crc32(data).to_bytes(_CHECKSUM_BYTES) + data)

    def _load(self, path: Path) -> None:
        import marshal
        import zlib

        with contextlib.suppress(OSError):
            data = path.read_bytes()
            start = len(_ROWS) + _CHECKSUM_BYTES
            body = memoryview(data)[start:]
            if data[:start] != _ROWS + zlib.crc32(body).to_bytes(_CHECKSUM_BYTES):
                return
            about, folder, rows = marshal.loads(body)  # noqa: S302 - a file of this home, as its keys are
            if about == self._about:
                self.folder = folder
                make = functools.partial(tuple.__new__, Row)  # of thousands, in a third of the time of Row._make
                self.rows = {row[0]: row for row in map(make, rows)}
