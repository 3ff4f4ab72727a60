"""The history of a collected job: how its log and its record move there, how they are removed, and what they tell.

``result()`` removes the value, the inputs and what the job has on a cluster. Its log and its record stay for 30 days:
the logs are written first, then the page that names them, then the job is removed. Whoever dies in between leaves the
job as it was, or a job that counts as collected and that the next sweep removes.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._jobs import logs, places, tombstones
from kinetic._jobs.logs import GZIP, KEPT_BYTES, StoredLog
from kinetic._wire import digests, keys, seal
from kinetic.errors import KeyMissingError, KineticError

if TYPE_CHECKING:
    from kinetic._backends.protocol import LiveLog
    from kinetic._stores.protocol import Entry, Store
    from kinetic._wire.handles import JobRecord
    from kinetic._wire.outcome import Outcome

_BLOCK = 1 << 20
_LEVEL = 1  # 10 MiB in 60 ms; somebody waits for the value of this job


def keep_logs(job: JobRecord, inside: Sequence[Entry], outcome: Outcome | None) -> list[dict[str, Any]]:
    """Write the end of every log of a job into the history.

    Args:
        job: The job; it has ended.
        inside: What the store has of it.
        outcome: Its verdict. Of a job that left a value the log is in the store, or it printed nothing: no cluster is
            asked.

    Returns:
        Attempt, host, size and digest of each, for the page, and whether it was changed after the job had ended; [] as
        well where another process removed the job meanwhile.
    """
    store, kept, succeeded = places.store_of(job), [], outcome is not None and outcome.succeeded
    try:
        for attempt, host, log in _logs_of(job, store, inside, succeeded=succeeded):
            sealed = logs.sealed_digest(job, attempt=attempt, host=host, outcome=outcome)
            checked = logs.checked(log, sealed, job.job_id)
            data = _end_of(checked)
            if data and not _is_being_deleted(store, job.job_id):  # then only a part of it may have been read
                store.put(keys.history_log(job.job_id, attempt, host), _packed(data))
                found = {"size_bytes": len(data), "sha256": digests.of_bytes(data)}
                changed = isinstance(checked, logs.CheckedLog) and checked.is_changed
                kept.append({"attempt": attempt, "host": host, **found, "changed": changed})
    except KeyMissingError:  # another process collected it, and deletes it
        return []
    return kept


def _is_being_deleted(store: Store, job_id: str) -> bool:
    return bool((tombstones.seen(store, job_id) or {}).get("artifacts_removed"))


def forget(store: Store, job_id: str) -> None:
    """Delete the logs of a collected job; of its page, what is left of every removed job stays."""
    page = tombstones.seen(store, job_id)
    if page is None or not tombstones.is_collected(page):
        return
    for found in logs.kept_in(page):
        store.delete(keys.history_log(job_id, found["attempt"], found["host"]))
    key = places.key_for(job_id, page.get("key_id") or "", page.get("store") or "")  # or the user trusts the store
    tombstones.write(store, {**page, "collected": None, "logs": []}, key or bytes(seal.KEY_BYTES), again=True)


def _logs_of(
    job: JobRecord, store: Store, inside: Sequence[Entry], *, succeeded: bool
) -> Iterator[tuple[int, int, LiveLog]]:
    """Yield attempt, host and log of all that a job printed; on this machine first where the job wrote it."""
    backend, job_id = places.backend_of(job), job.job_id
    attempts = max(1, sum(entry.key.startswith(keys.attempts(job_id)) for entry in inside))
    stored, here = _stored(job_id, inside), set[tuple[int, int]]()
    if backend.is_here:
        places_ = [(attempt, host) for attempt in range(attempts) for host in range(places.hosts_of(job))]
        for attempt, host in places_:
            live = backend.live_log(job_id, host=host, attempt=attempt)
            if live is not None:
                here.add((attempt, host))
                yield attempt, host, live
        if not {*places_} <= here | stored.keys():  # its supervisor has moved one into the store this moment
            stored = _stored(job_id, store.entries(f"{job_id}/logs/"))
    elif not stored and not succeeded:  # its pod may have been cut off before it sent anything
        with contextlib.suppress(KineticError, OSError):
            live = logs.open_log(backend, store, job_id, attempt=attempts - 1, host=0)
            if live is not None:
                yield attempts - 1, 0, live
    for (attempt, host), entries in stored.items():
        if (attempt, host) not in here:
            yield attempt, host, StoredLog(store, keys.logs(job_id, attempt, host), entries)


def _stored(job_id: str, inside: Iterable[Entry]) -> dict[tuple[int, int], list[Entry]]:
    """Group what the store has of a job's logs by attempt and host."""
    found: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in inside:
        if entry.key.startswith(f"{job_id}/logs/"):
            attempt, host = map(int, entry.key.split("/")[-3:-1])
            found[attempt, host].append(entry)
    return found


def _end_of(log: LiveLog) -> bytes:
    """Read the end of a log, from the beginning of a line on, below a line that says what is missing."""
    try:
        size = log.size()
        start = max(0, size - KEPT_BYTES)
        found = bytearray()
        while start + len(found) < size and (piece := log.read(start + len(found), _BLOCK)):
            found += piece
    finally:
        logs.close(log)
    if start == 0:
        return bytes(found)
    cut = found.find(b"\n", 0, _BLOCK) + 1  # 0 where that line is longer
    return f"kinetic: the first {start + cut} bytes of this log were not kept\n".encode() + found[cut:]


def _packed(data: bytes) -> bytes:
    writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, GZIP)
    return writer.compress(data) + writer.flush()
