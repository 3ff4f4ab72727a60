"""The history of removed and collected jobs, kept for 30 days, and the index: what lists need not read again.

A page of the history has status, times and reason; no payload, no secret. Of a *collected* job it says so: its log is
kept beside it, and it can be attached. Of a job that was removed by hand the page is all that is left.

The index is two files in the home for each store: one of its jobs, and one of its history, loaded only where that is
listed. Records and outcomes are written once and never replaced, so what it has of them holds as long as the job is
listed; a page of the history counts only with the size and time that it had.
Only verified pages get in and the home is private, so the index needs no seal. A missing, old or damaged one is made
again from the store, and what acts on a job reads the job itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kinetic._jobs import locate
from kinetic._stores.protocol import Entry, Store
from kinetic._wire import documents, folders, keys
from kinetic._wire.outcomes import Outcome
from kinetic._wire.records import HISTORY
from kinetic.errors import IntegrityError, KeyMissingError

_SCHEMA = 1
_RECORD, _OUTCOME, _PAST = "record", "outcome", "past"
_ERROR_FIELDS = ("type", "message", "value_type")  # what a list shows; logs and tracebacks stay in the store
_WORTH_WRITING = 0.02  # of the entries: writing thousands again for each new job would cost more than it saves
_indexes: dict[Path, Index] = {}


def write_page(store: Store, fields: dict[str, Any], key: bytes, *, again: bool = False) -> bool:
    """Write the page of a job, once, sealed with the job's key; ``again`` replaces the page that is there."""
    at = keys.history(fields["job_id"])
    data = documents.seal_page(HISTORY, {"removed": time.time(), **fields, "store": store.url}, at, key)
    if store.put(at, data, if_absent=not again):
        return True
    return read_page(store, fields["job_id"]) is None and store.put(at, data)


def read_page(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return the page of a job; None where there is none, or none that can be read and verified here.

    A forged page says nothing: neither that a job was removed, nor where its outputs are.
    """
    with contextlib.suppress(KeyMissingError, IntegrityError):
        page = locate.open_claimed(HISTORY, store, keys.history(job_id), job_id)
        if not isinstance(page, locate.Untrusted) and page["job_id"] == job_id:
            return page
    return None


def is_collected(page: Mapping[str, Any] | None) -> bool:
    """Return whether a page is of a job that was collected: then its log is kept, and it can be attached."""
    return page is not None and bool(page.get("collected"))


def page_entries(store: Store) -> Iterator[Entry]:
    """Yield the pages as a listing shows them, without what is kept beside them."""
    for entry in store.entries(keys.HISTORY):
        if not keys.job_of_history(entry.key):
            return
        yield entry


def page_ids(store: Store) -> set[str]:
    """Return the jobs that have a page; of a folder only the names are read."""
    if store.local is not None:
        with contextlib.suppress(OSError), folders.opened(store.local.root, keys.HISTORY) as at:
            names = (name.removesuffix(".json") for name in os.listdir(at) if name.endswith(".json"))
            return set(filter(keys.is_job_id, names))
    return set(filter(keys.is_job_id, (keys.job_of_history(entry.key) for entry in page_entries(store))))


def read_pages(store: Store) -> Iterator[dict[str, Any]]:
    """Yield every page that can be read and verified."""
    index = index_of(store, ".history")
    stamps = {keys.job_of_history(entry.key): (entry.size, entry.modified) for entry in page_entries(store)}
    for job_id in sorted(filter(keys.is_job_id, stamps)):
        page = index.past(job_id, stamps[job_id], functools.partial(read_page, store, job_id))
        if page is not None:
            yield page
    index.write(lambda: stamps)


def index_of(store: Store, part: str = "") -> Index:
    """Return the index of a store; where the user trusts a store unverified, one that knows and keeps nothing."""
    if locate.trusts_the_store():
        return Index(None, store.url)
    path = locate.home() / "index" / f"{hashlib.sha256(store.url.encode()).hexdigest()[:16]}{part}.json"
    if path not in _indexes:
        _indexes[path] = Index(path, store.url)
    _indexes[path].key_ids = locate.key_ids()
    return _indexes[path]


class Index:
    """What is known of the jobs of one store; without a path it is not kept."""

    def __init__(self, path: Path | None, store_url: str) -> None:
        self._store, self._path = store_url, path
        self._jobs = {} if path is None else self._load(path)
        self._new = 0
        self.key_ids: frozenset[str] = frozenset()  # of this home, as they are now: what others sealed is not believed

    def record(self, job_id: str) -> dict[str, Any] | None:
        """Return the record of a job as it was verified; None where it must be read."""
        found = self._of(job_id).get(_RECORD)
        return found if isinstance(found, dict) and self._is_ours(found) else None

    def note_record(self, job_id: str, record: dict[str, Any]) -> None:
        """Keep a record that was read and verified."""
        self._note(job_id, _RECORD, record)

    def outcome(self, job_id: str) -> Outcome | None:
        """Return the verdict of a job, without its log and traceback; None where it must be read."""
        found = self._of(job_id).get(_OUTCOME)
        with contextlib.suppress(TypeError):  # of another version
            return Outcome(**found) if isinstance(found, dict) and self.record(job_id) is not None else None
        return None

    def note_outcome(self, job_id: str, outcome: Outcome) -> None:
        """Keep a verdict that was read and verified."""
        error = {name: outcome.error[name] for name in _ERROR_FIELDS if name in outcome.error}
        self._note(job_id, _OUTCOME, asdict(outcome) | {"phases": {}, "files": (), "error": error})

    def past(self, job_id: str, stamp: tuple[int, float], read: Callable[[], dict[str, Any] | None]) -> Any:
        """Return the page of the history of a job, and read it where size or time differ from the known one's."""
        found = self._of(job_id).get(_PAST)
        if isinstance(found, list) and tuple(found[:2]) == stamp and self._is_ours(found[2]):
            return found[2]
        page = read()
        if page is not None:
            self._note(job_id, _PAST, [*stamp, page])
        return page

    def write(self, listed: Callable[[], Iterable[str]]) -> None:
        """Write what is new, once it is worth it, and drop the jobs that the store no longer lists."""
        if self._path is None or self._new <= _WORTH_WRITING * len(self._jobs):
            return
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

    def _is_ours(self, page: object) -> bool:
        return isinstance(page, dict) and page.get("key_id") in self.key_ids

    def _load(self, path: Path) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            page = json.loads(path.read_bytes())
            if isinstance(page, dict) and page.get("schema") == _SCHEMA and page.get("store") == self._store:
                return dict(page["jobs"]) if isinstance(page.get("jobs"), dict) else {}
        return {}
