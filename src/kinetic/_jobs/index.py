"""The index of a store: what was read and verified of its jobs before, so that a list need not read it again.

One file in the home for each store. Records and Outcomes are written once and never replaced, so what the index has of
them holds as long as the job is listed; a page of the history counts only with the size and the time that it had. The
home is private, and only verified pages get in, so the index needs no seal. It is never needed: a missing, old or
damaged one is made again from the store, and what acts on a job reads the job itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._jobs import locate
from kinetic._wire import folders
from kinetic._wire.outcome import Outcome

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

_SCHEMA = 1
_RECORD, _OUTCOME, _PAST = "record", "outcome", "past"
_TOLD = ("type", "message", "value_type")  # what a list says of a failure; logs and tracebacks stay in the store
_WORTH_WRITING = 0.02  # of the entries: writing thousands again for each new job would cost more than it saves


_open: dict[Path, Index] = {}


def of(store: Store) -> Index:
    """Return the index of a store; where the user trusts a store unverified, one that knows and keeps nothing."""
    if locate.trusts_the_store():
        return Index(None, store.url)
    path = locate.home() / "index" / f"{hashlib.sha256(store.url.encode()).hexdigest()[:16]}.json"
    if path not in _open:
        _open[path] = Index(path, store.url)
    _open[path].key_ids = locate.key_ids()
    return _open[path]


class Index:
    """What is known of the jobs of one store.

    Args:
        path: Its file; None for one that is not kept.
        store_url: The store.

    Attributes:
        key_ids: The keys of this home's ring, as they are now: what another one sealed is not believed any more.
    """

    def __init__(self, path: Path | None, store_url: str) -> None:
        self._store, self._path = store_url, path
        self._jobs = {} if path is None else self._load(path)
        self._new = 0
        self.key_ids: frozenset[str] = frozenset()

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
        fields = asdict(outcome) | {"phases": {}, "files": ()}
        fields["error"] = {name: outcome.error[name] for name in _TOLD if name in outcome.error}
        self._note(job_id, _OUTCOME, fields)

    def past(self, job_id: str, stamp: tuple[int, float], read: Callable[[], dict[str, Any] | None]) -> Any:
        """Return the page of the history of a job, and read it where it is not the one that is known.

        Args:
            job_id: The job.
            stamp: Size and time of the page, from a listing.
            read: Reads and verifies it; None for a page that is not believed, which is never kept.
        """
        found = self._of(job_id).get(_PAST)
        if isinstance(found, list) and tuple(found[:2]) == stamp and self._is_ours(found[2]):
            return found[2]
        page = read()
        if page is not None:
            self._note(job_id, _PAST, [*stamp, page])
        return page

    def write(self, there: Callable[[], Iterable[str]]) -> None:
        """Write what is new, once it is worth it, and drop the jobs that are not there any more.

        Args:
            there: Lists every job that the store or its history names; asked only where something is written.
        """
        if self._path is None or self._new <= _WORTH_WRITING * len(self._jobs):
            return
        kept = set(there())
        page = {name: page for name, page in [*self._jobs.items()] if name in kept}
        with contextlib.suppress(OSError):  # a full or read-only disk: then the next list reads the store
            folders.write_whole(
                self._path, json.dumps({"schema": _SCHEMA, "store": self._store, "jobs": page}).encode()
            )
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
