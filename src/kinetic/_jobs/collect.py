"""Removing jobs, when they were collected or are not wanted any more: what goes, and what remains as history."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._jobs import locate, logs, notifications
from kinetic._jobs import status as job_status
from kinetic._jobs.logs import GZIP, HISTORY_LOG_BYTES, StoredLog
from kinetic._jobs.status import Snapshot, has_ended, observe
from kinetic._output import terminal as output
from kinetic._stores import put_many
from kinetic._stores.protocol import Store
from kinetic._wire import digests, documents, keys, order, records
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import CANCELLED, Outcome
from kinetic.errors import KeyMissingError, KineticError, StoreError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import LiveLog
    from kinetic._stores.protocol import Entry
    from kinetic._wire.records import JobRecord

_MEASURED_SECONDS = 1.0  # a job that took less time was not measured
_LISTED_SECONDS = 0.5  # how long a listing is believed: a job that follows may have come since
_PIECE = 1 << 20
_LOGS_IN_MEMORY = 16 << 20  # of many hosts, or many jobs that are collected together
_LONG_LOGS = 1 << 20  # bytes of a job that are read by themselves, and not beside those of others
_PAGES_AT_ONCE = 500
_LEVEL = 1  # 10 MiB in 60 ms; a user waits for the value of this job

T = TypeVar("T")


def _history_logs(
    job: JobRecord, store: Store, inside: Sequence[Entry], outcome: Outcome | None
) -> tuple[list[dict[str, Any]], list[tuple[str, bytes]]]:
    """Return what the history says of every log of an ended job, and the ends of these logs, by their keys."""

    def keep(attempt: int, host: int, log: LiveLog) -> tuple[dict[str, Any], tuple[str, bytes]] | None:
        sealed = logs.sealed_digest(job, attempt=attempt, host=host, outcome=outcome)
        checked = logs.checked_log(log, sealed, job.job_id)
        data, left_out = _end_of(checked)
        # A job that is being deleted is not kept: only a part of its log may have been read.
        if not data or (locate.read_page(store, job.job_id) or {}).get("artifacts_removed"):
            return None
        writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, GZIP)
        found = {"size_bytes": len(data), "sha256": digests.of_bytes(data)}
        changed = isinstance(checked, logs.CheckedLog) and checked.is_changed
        said = {"attempt": attempt, "host": host, **found, "changed": changed, "left_out": left_out}
        return said, (keys.history_log(job.job_id, attempt, host), writer.compress(data) + writer.flush())

    try:
        found = [*_logs_of(job, store, inside, outcome)]
        are_few = sum(min(log.size(), HISTORY_LOG_BYTES) for _, _, log in found) <= _LOGS_IN_MEMORY
        reads = [(store.url if are_few else "", functools.partial(keep, *each)) for each in found]
        kept = [each for each in locate.in_order(reads) if each is not None]
    except KeyMissingError:  # another process collected it, and deletes it
        return [], []
    return [said for said, _ in kept], [written for _, written in kept]


def delete_history_logs(store: Store, job_id: str) -> None:
    """Delete the logs of a collected job; its page stays, without what names them."""
    page = locate.read_page(store, job_id)
    if page is None or not locate.is_collected(page):
        return
    for found in logs.logs_in_history(page):
        store.delete(keys.history_log(job_id, found["attempt"], found["host"]))
    key = locate.key_for(job_id, page.get("key_id") or "", page.get("store") or "")  # or the user trusts the store
    locate.write_page(store, {**page, "collected": None, "logs": []}, key or bytes(documents.KEY_BYTES), again=True)


def _logs_of(
    job: JobRecord, store: Store, inside: Sequence[Entry], outcome: Outcome | None
) -> Iterator[tuple[int, int, LiveLog]]:
    """Yield attempt, host and log of all that a job printed; on this machine first where the job wrote it."""
    backend, job_id = locate.backend_of(job), job.job_id
    count = max(1, _count_attempts(job_id, inside))
    stored, here = _stored_logs(job_id, inside), set[tuple[int, int]]()
    if backend.is_here:
        expected = [(attempt, host) for attempt in range(count) for host in range(locate.hosts_of(job))]
        for attempt, host in expected:
            live = backend.live_log(job_id, host=host, attempt=attempt)
            if live is not None:
                here.add((attempt, host))
                yield attempt, host, live
        if not {*expected} <= here | stored.keys():  # its supervisor has moved one into the store this moment
            stored = _stored_logs(job_id, store.entries(f"{job_id}/logs/"))
    elif not stored and (outcome is None or not outcome.succeeded):  # its pod may have been cut off before it sent any
        with contextlib.suppress(KineticError, OSError):
            live = logs.open_log(backend, store, job_id, attempt=count - 1, host=0)
            if live is not None:
                yield count - 1, 0, live
    last = logs.until_verdict(outcome, max((attempt for attempt, _ in stored), default=0))
    for (attempt, host), entries in stored.items():
        if (attempt, host) not in here and attempt <= last:
            yield attempt, host, StoredLog(store, keys.logs(job_id, attempt, host), entries)


def _stored_logs(job_id: str, inside: Iterable[Entry]) -> dict[tuple[int, int], list[Entry]]:
    """Group what the store has of a job's logs by attempt and host."""
    found: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in inside:
        match entry.key.removeprefix(keys.job(job_id)).split("/"):
            case ["logs", attempt, host, _] if keys.is_number(attempt) and keys.is_number(host):  # not .DS_Store
                found[int(attempt), int(host)].append(entry)
    return found


def _count_attempts(job_id: str, inside: Iterable[Entry]) -> int:
    return len(keys.numbered(entry for entry in inside if entry.key.startswith(keys.attempts(job_id))))


def _end_of(log: LiveLog) -> tuple[bytes, int]:
    """Read the end of a log, from the start of a line on, below a line that says what is missing; and that in bytes."""
    try:
        size = log.size()
        start = max(0, size - HISTORY_LOG_BYTES)
        found = bytearray()
        while start + len(found) < size and (piece := log.read(start + len(found), _PIECE)):
            found += piece
    finally:
        logs.close(log)
    if start == 0:
        return bytes(found), 0
    cut = found.find(b"\n", 0, _PIECE) + 1  # 0 where that line is longer
    line = f"kinetic: the first {start + cut} bytes of this log were not kept\n".encode()
    return line + found[cut:], start + cut - len(line)


def remove(job: JobRecord, seen: Snapshot, *, resource: bool, artifacts: bool, wait: float) -> None:
    """Remove the backend's resource, the stored artifacts, or both; a page of the history remains.

    The page comes first: if we die in between, the job is known as removed, and removing again finishes it. Of a job
    that was collected before, its log is removed as well. Output directories are never touched.
    """
    backend = locate.backend_of(job)  # raises before anything is changed
    if not (resource or artifacts):
        return
    if resource and not seen.status.is_final:
        backend.check_stop()
    store = locate.store_of(job)
    notifications.see(job, seen)
    notifications.forget(job.job_id)  # of a job that runs: who removes it knows of its end
    if seen.status is not JobStatus.NOT_FOUND or store.size(keys.record(job.job_id)) is not None:
        write_removed_page(job, store, history_page(job, seen), resource=resource, artifacts=artifacts)
    if artifacts:
        delete_history_logs(store, job.job_id)
    step("client:history-written")
    _delete(job, seen, resource=resource, artifacts=artifacts, wait=wait)
    if artifacts and job.after:
        remove_kept_predecessors(job, store, wait=wait)


def write_removed_page(job: JobRecord, store: Store, page: dict[str, Any], *, resource: bool, artifacts: bool) -> None:
    """Write the page of a job into the history before it is removed, and the mark by which its batch sees that."""

    def write() -> None:
        key = locate.key_to_seal(job)
        locate.write_page(store, page | {"artifacts_removed": artifacts, "resource_removed": resource}, key)
        if mark := mark_of(job):
            store.put(documents.sealed_name(mark, "removed", key), b"")

    write_in_any_case(job, store, write, spare=() if artifacts else ("",))


def write_in_any_case(job: JobRecord, store: Store, write: Callable[[], T], *, spare: tuple[str, ...]) -> T:
    """Write what comes before a removal; where the store is full, some of what is removed makes room for it.

    ``spare``: how what must stay until then begins, below the job's folder; its record stays in any case.
    """
    try:
        return write()
    except StoreError as error:
        if error.code != "store-full":
            raise
    make_room(job, store, spare=spare)
    return write()


def make_room(job: JobRecord, store: Store, *, spare: tuple[str, ...] = ()) -> None:
    """Remove what a job has in the store, but for its record: it is about to be removed as a whole; see above."""
    folder = keys.job(job.job_id)
    for entry in list(store.entries(folder)):
        if entry.key != keys.record(job.job_id) and not entry.key.removeprefix(folder).startswith(spare):
            store.delete(entry.key)


def mark_of(job: JobRecord) -> str:
    """Return the stem of the keys by which a batch sees in a listing what became of its child; "" without a batch."""
    if not job.group_id or job.group_index is None:
        return ""
    return keys.mark(job.group_id, job.group_index, job.group_attempt or 0)


def _delete(
    job: JobRecord, seen: Snapshot, *, resource: bool, artifacts: bool, wait: float, later: bool = False
) -> None:
    """Remove what the history says is removed; ``later``: perhaps while the caller continues."""
    backend, store = locate.backend_of(job), locate.store_of(job)

    def delete_artifacts() -> None:
        store.delete(keys.job(job.job_id))
        folder = job.output_dir or ""
        if folder.startswith("/") and folder.endswith(f"/{keys.outputs(job.job_id).rstrip('/')}"):
            for made in (order.checkpoint_dir(folder), folder):  # for a job that wrote nothing into them
                with contextlib.suppress(OSError):  # what holds a file stays
                    os.rmdir(made)
        step("client:artifacts-deleted")

    if resource:
        ended = seen.outcome is not None and seen.outcome.witness != "client"  # then its worker is gone already
        if (not ended or not artifacts) and not backend.stop([job.job_id], wait=wait):
            locate.log().warning("%s was asked to end and has not ended within %g s", job.job_id, wait)
        backend.remove([job.job_id], then=delete_artifacts if artifacts and later else None)
        if not seen.status.is_final:
            report_another_host(job)
    if artifacts and not (resource and later):
        delete_artifacts()


def after_collection(job: JobRecord, seen: Snapshot, *, wait: float) -> dict[str, Any] | None:
    """Remove a job whose value is in memory, and keep its log and its record as history."""
    step("client:collected")
    try:
        store = locate.store_of(job)
        inside = _inside(job, seen, store)
        if is_kept_for_followers(job, store, inside):
            return None
        page = collected_page(job, seen, inside)
        step("client:history-written")
        _delete(job, seen, resource=True, artifacts=True, wait=wait, later=True)
        if job.after:
            remove_kept_predecessors(job, store, wait=wait)
    except Exception as error:  # noqa: BLE001 - also a signal handler's: the value, which is in memory, must arrive
        locate.log().warning("%s was collected, and could not be removed: %s", job.job_id, error)
        return None
    return page


def _inside(job: JobRecord, seen: Snapshot, store: Store) -> Sequence[Entry]:
    """List what a job has in the store, or take what was listed with its verdict, if that was a moment ago.

    A listing without the verdict is from before it, and may lack the end of the log.
    """
    found = seen.inside
    is_of_now = found is not None and time.monotonic() - found.at < _LISTED_SECONDS
    if found is not None and is_of_now and any(entry.key == keys.result(job.job_id) for entry in found.entries):
        return found.entries
    return list(store.entries(keys.job(job.job_id)))


def is_kept_for_followers(
    job: JobRecord, store: Store, inside: Sequence[Entry] = (), *, collected: Sequence[str] = ()
) -> bool:
    """Return whether a job that was collected stays, because another one that has not ended may read its value.

    ``inside``: what a listing of the job has. ``collected``: all children of its batch that were collected with it.
    """
    readers = readers_of(job, store, inside)
    if readers:
        from kinetic._jobs import after  # only where a job is followed

        after.keep_for(store, job.group_id or job.job_id, readers, collected or [job.job_id])
    return bool(readers)


def readers_of(job: JobRecord, store: Store, inside: Sequence[Entry] = ()) -> list[str]:
    """Return the jobs and batches that have not ended and may read its value, or its batch's.

    ``inside``: what a listing of the job has. Those who follow a batch's child are listed with the batch.
    """
    owner = job.group_id or job.job_id
    followers = inside if owner == job.job_id else [*store.entries(keys.followers(owner))]
    if not any(entry.key.startswith(keys.followers(owner)) for entry in followers):
        return []
    from kinetic._jobs import after  # as above

    return after.readers_of(store, owner, followers, has_ended)


def remove_kept_predecessors(job: JobRecord, store: Store, *, wait: float) -> None:
    """Remove what was collected before and kept for this job."""
    from kinetic._jobs import after  # as above

    for name in after.kept_before(job, store, has_ended):
        with contextlib.suppress(KeyMissingError):
            if (predecessor := locate.verified_job(store, name)) is not None:
                after_collection(predecessor, observe(predecessor), wait=wait)


def collected_page(job: JobRecord, seen: Snapshot, inside: Sequence[Entry] | None = None) -> dict[str, Any]:
    """Write logs, page and mark of a collected job into the history, and return the page."""
    store = locate.store_of(job)
    pages = _CollectedPages(store)
    pages.keep(*pages.read(job, seen, inside))
    (page,) = write_in_any_case(job, store, pages.write, spare=("logs/",))
    return page


def write_collected_pages(collected: Sequence[tuple[JobRecord, Callable[[], Snapshot]]], store: Store) -> None:
    """Write the same of many collected jobs of one store, which share their forced writes.

    Each comes with what returns how it ended, on any thread: that may be a question to the store.
    """
    from kinetic._stores import parallel  # 1 ms, with threads' queues

    pages = _CollectedPages(store)
    tasks = (functools.partial(pages.begin, job, look) for job, look in collected)
    for finish in parallel.in_shares(tasks, most=1 if store.local is not None else len(collected)):
        pages.keep(*finish())
        if pages.are_many():
            pages.write()
    pages.write()


_ReadPage = tuple["JobRecord", dict[str, Any], list[tuple[str, bytes]]]


class _CollectedPages:
    """Pages for the history, with the logs that they name and the marks that name them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logs: list[tuple[str, bytes]] = []
        self._sealed: list[tuple[str, bytes]] = []
        self._marks: list[tuple[str, bytes]] = []
        self._pages: dict[str, tuple[JobRecord, dict[str, Any]]] = {}

    def begin(self, job: JobRecord, look: Callable[[], Snapshot]) -> Callable[[], _ReadPage]:
        """Make the page of a collected job, on any thread, or only list the job if its logs are long.

        What is returned returns the page; it reads these logs, for which many threads would need too much memory.
        """
        seen, inside = look(), list(self._store.entries(keys.job(job.job_id)))
        stored = sum(sum(entry.size for entry in entries) for entries in _stored_logs(job.job_id, inside).values())
        sealed = sum(each.size_bytes for each in seen.outcome.logs) if seen.outcome is not None else 0
        make = functools.partial(self.read, job, seen, inside)
        if max(stored, sealed) > _LONG_LOGS:
            return make
        made = make()
        return lambda: made

    def read(self, job: JobRecord, seen: Snapshot, inside: Sequence[Entry] | None = None) -> _ReadPage:
        """Make the page of a collected job; ``inside``: what a listing of it has."""
        inside = list(self._store.entries(keys.job(job.job_id))) if inside is None else inside
        logs_of_it, kept = _history_logs(job, self._store, inside, seen.outcome)
        page = history_page(job, seen, inside)
        page |= {"collected": time.time(), "artifacts_removed": True, "resource_removed": True, "logs": logs_of_it}
        if usage := _usage_to_keep(job, inside, seen.outcome):
            page["usage"] = usage
        return job, page, kept

    def keep(self, job: JobRecord, page: dict[str, Any], kept: Sequence[tuple[str, bytes]]) -> None:
        """Take a page that was made, and the ends of the logs that it names."""
        key = locate.key_to_seal(job)
        at, data = locate.sealed_page(self._store, page, key)
        self._logs += kept
        self._sealed.append((at, data))
        self._pages[at] = job, page
        if mark := mark_of(job):
            self._marks.append((documents.sealed_name(mark, "removed", key), b""))

    def are_many(self) -> bool:
        """Return whether it is time to write them."""
        return len(self._sealed) >= _PAGES_AT_ONCE or sum(len(data) for _, data in self._logs) > _LOGS_IN_MEMORY

    def write(self) -> list[dict[str, Any]]:
        """Write logs, then the pages that name them, then the marks; return the pages that are there."""
        put_many(self._store, self._logs)
        step("client:log-kept")
        pages = {at: page for at, (_, page) in self._pages.items()}
        for at in put_many(self._store, self._sealed, if_absent=True):
            pages[at] = _page_beside_another(self._pages[at][0], self._store, pages[at])
        put_many(self._store, self._marks)
        for each in (self._logs, self._sealed, self._marks, self._pages):
            each.clear()
        return [*pages.values()]


def _page_beside_another(job: JobRecord, store: Store, page: dict[str, Any]) -> dict[str, Any]:
    """Return the page that another process wrote of a collected job, or replace what is there."""
    before = locate.read_page(store, job.job_id)
    if before is not None and locate.is_collected(before):  # by another process, which saw more of it
        return before
    locate.write_page(store, page, locate.key_to_seal(job), again=True)  # it was cleaned up in part before
    return page


def _usage_to_keep(job: JobRecord, inside: Sequence[Entry], outcome: Outcome | None) -> list[dict[str, Any]]:
    if outcome is None or outcome.started is None or outcome.ended is None:
        return []
    is_kept = any(entry.key.startswith(keys.usage(job.job_id, 0, 0)[:-3]) for entry in inside)  # a short one's progress
    if outcome.ended - outcome.started < _MEASURED_SECONDS and not is_kept and not _is_usage_coming(job, outcome):
        return []
    from kinetic._jobs import resource_usage  # only of jobs that were measured

    return resource_usage.to_keep(job, inside, outcome)


def _is_usage_coming(job: JobRecord, outcome: Outcome) -> bool:
    """Return whether a job of this machine has usage that the listing did not: it follows the verdict."""
    if not locate.is_here(job):
        return False
    if locate.backend_of(job).live_usage(job.job_id, host=0, attempt=outcome.attempt) is not None:
        return True
    store = locate.store_of(job)  # it came there since, unless that would be a request
    return store.local is not None and store.size(keys.usage(job.job_id, outcome.attempt, 0)) is not None


def report_another_host(job: JobRecord) -> None:
    """Print that a job elsewhere ends a little later: only its own supervisor can end it, and checks once a minute."""
    if not locate.can_be_seen(job):
        output.report(f"{job.job_id} runs on {job_status.place_of(job)}; its processes there end within a minute")


def history_page(job: JobRecord, seen: Snapshot, inside: Sequence[Entry] | None = None) -> dict[str, Any]:
    """Return what is remembered of a job: no payload, no secret."""
    outcome, emulation, reason = seen.outcome, None, ""
    status = (seen.past or {}).get("status") or seen.status.value  # removed in part before, it is NOT_FOUND
    if outcome is not None:
        ended = job_status.decide(outcome=outcome, observation=None)
        status = "CANCELLED" if outcome.status == CANCELLED else ended.value
    if outcome is not None and not outcome.succeeded:
        kind = outcome.error.get("type")
        message = str(outcome.error.get("message", ""))
        reason = f"{kind}: {message}".removesuffix(": ") if kind else message
    if inside is None:
        with contextlib.suppress(KineticError):
            inside = list(locate.store_of(job).entries(keys.job(job.job_id)))
    with contextlib.suppress(KineticError):
        emulation = job_status.emulation_of(job)
    recorded = [entry.modified for entry in inside or () if entry.key == keys.record(job.job_id)]
    return {
        **records.plain(job),
        "created": recorded[0] if recorded else None,
        "emulation": emulation,
        "status": status,
        "reason": reason.splitlines()[0][:500] if reason else "",
        "started": outcome.started if outcome else None,
        "ended": outcome.ended if outcome else None,
        "attempts": logs.until_verdict(outcome, _count_attempts(job.job_id, inside or ()) - 1) + 1,
    }
