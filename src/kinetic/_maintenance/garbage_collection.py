"""Garbage collection: what is no longer needed is removed by the rules, at most once a day, when jobs are listed.

A blob may be needed by a job that is being submitted at this moment, and whose order is not written yet. Its client has
made it young if it was older than a week, so none that is old enough to be removed is among them.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from kinetic._config.home import COLLECT_SECONDS, collection_mark, unpacked_wheels
from kinetic._maintenance import compiled_programs
from kinetic._stores.protocol import Entry, LocalStore, Store
from kinetic._wire import NamedTuple, documents, folders, keys
from kinetic.errors import KeyMissingError, KineticError

DAY = 24 * 3600.0


class Rule(NamedTuple):
    """How long one kind of file stays."""

    name: str
    what: str  # one of them is
    stays: str  # until when
    seconds: float | None = None  # after which they are removed; None for what no clock removes

    @property
    def why(self) -> str:
        """Why they are here, for humans."""
        return f"{self.what}: {self.stays}" if self.what else self.stays


RULES = (
    Rule("results", "values that were not collected", "until result() or kinetic jobs cleanup"),
    Rule("failures", "how jobs failed or were cancelled", "until kinetic jobs cleanup"),
    Rule(
        "jobs",
        "records, orders and arguments",
        "as long as their job; large arguments: 7 days after its end",
        7 * DAY,
    ),
    Rule("logs", "logs of jobs that were not collected", "as long as their job"),
    Rule("data", "projects and data of jobs", "60 days after their last use, and while a job needs them", 60 * DAY),
    Rule("packages", "layers of packages, and wheels built from source", "60 days after their last use", 60 * DAY),
    Rule(
        "compiled programs",
        "what JAX and other compilers made in jobs, for the next ones",
        "60 days after their last use; of more than 10 GiB those used longest ago go first",
        compiled_programs.KEEP_SECONDS,
    ),
    Rule("image builds", "what images are built from in other places, and logs of that", "7 days", 7 * DAY),
    Rule(
        "fetched data",
        "what jobs on this machine have read, for the next one",
        "30 days after its last use",
        30 * DAY,
    ),
    Rule("batches", "manifests, inputs and marks of batches", "until kinetic batch cleanup"),
    Rule("outputs", "what jobs wrote into KINETIC_OUTPUT_DIR", "yours, never removed"),
    Rule("history", "logs and records of collected jobs, and what became of removed ones", "30 days", 30 * DAY),
    Rule("working folders", "the projects of running jobs, and of failed ones", "1 day after their end", DAY),
    Rule("runner code", "kinetic's own code for its jobs", "30 days after the last that needs it", 30 * DAY),
    Rule("environments", "isolated environments", "30 days after their last use", 30 * DAY),
    Rule("caches", "digests of files, locks, downloaded packages", "90 days after their last use", 90 * DAY),
    Rule("queue", "", "the queue, its locks and its supervisors' logs"),
    Rule("keys and settings", "keys that seal results, profiles", "until you remove them"),
    Rule("being written", "half-written files", "1 day", DAY),
    Rule("other", "", "not kinetic's, or of a later version"),
)
_BY_NAME = {rule.name: rule for rule in RULES}


def retention_seconds(name: str) -> float:
    """Return after how long a kind of file is removed."""
    found = _BY_NAME[name].seconds
    assert found is not None  # noqa: S101 - only asked where a clock removes
    return found


def data_rule(key: str) -> str:
    """Return the name of the rule for a key below data/."""
    others = {**_OF_IMAGES, keys.COMPILED: "compiled programs"}
    return next((name for prefix, name in others.items() if key.startswith(prefix)), "data")


_OF_IMAGES = {keys.LAYERS: "packages", keys.WHEELS: "packages", keys.BUILDS: "image builds"}
_CACHES = frozenset({"", "packs", "data", "images", "wheels"})
_DIGEST = r"[0-9a-f]{16}"  # in the names of its files: a user may have had a folder "cache" where the home is
_LAST_LOCK = "last-"  # of a project: its versions are kept however long it rests
ENVIRONMENTS = "environments"
_NOT_JOBS = frozenset({"history", "outputs", "data"})


class Removed(NamedTuple):
    """What was removed."""

    pages: int = 0
    environments: int = 0
    size_bytes: int = 0
    payloads: int = 0
    data: int = 0
    programs: int = 0


def collect_if_due(store: Store, home: Path, runtime: Path, *, now: float | None = None) -> None:
    """Collect unless this machine did so for the store within a day; whatever goes wrong waits for the next time."""
    now = time.time() if now is None else now
    if folders.is_due(collection_mark(runtime, store.url), now, COLLECT_SECONDS):
        with contextlib.suppress(KineticError, OSError):
            collect(store, home, runtime, now=now)


def collect(store: Store, home: Path, runtime: Path, *, now: float | None = None) -> Removed:
    """Remove what is no longer needed."""
    now = time.time() if now is None else now
    data, freed = _collect_data(store.local, now) if store.local is not None else (0, 0)
    payloads, payload_bytes = _collect_payloads(store, now)
    packages, package_bytes = _collect_packages(store, now)
    programs, program_bytes = _collect_compiled(store, now)
    pages_, page_bytes = _collect_cache(home / "cache", now)
    environments, environment_bytes = _collect_environments((home, home / "cache", runtime), now)
    store.sweep()
    _collect_history(store)
    freed += payload_bytes + package_bytes + program_bytes + page_bytes + environment_bytes
    return Removed(pages_, environments, freed, payloads, data + packages, programs)


def needed_data(store: Store) -> frozenset[str] | None:
    """Return the keys of blobs and manifests that orders in the store name; None when an order cannot be read.

    Of a project, while the order is there; of data, until the job has its verdict; of a batch, until its cleanup.
    """
    found: set[str] = set()
    manifests: set[str] = set()
    for key in _orders(store):
        try:
            page = documents.read(documents.fetch(store, key, documents.MOST_BYTES, key), key)
        except KeyMissingError:  # still being submitted, or removed this moment
            continue
        except KineticError:
            return None
        packs, data, job_id = page.get("packs"), page.get("data"), key.partition("/")[0]
        found.update(keys.DATA_BLOBS + str(pack) for pack in (packs if isinstance(packs, list) else ()))
        if data and isinstance(data, list) and (job_id in keys.RESERVED or store.size(keys.result(job_id)) is None):
            manifests.update(
                keys.data_manifest(str(each.get("hash")), str(each.get("manifest")))
                for each in data
                if isinstance(each, dict) and each.get("kind") == "shipped"
            )
    for key in manifests:
        with contextlib.suppress(KineticError, LookupError, TypeError):  # one that is gone or damaged names nothing
            data = documents.parse(documents.fetch(store, key, documents.MOST_BYTES, key), key, any_name=True)
            found.update(keys.DATA_BLOBS + str(blob) for blob in data["blobs"])
    return frozenset(found | manifests)


def _orders(store: Store) -> Iterator[str]:
    for name in store.folders(""):
        if name not in keys.RESERVED:
            yield keys.order(name)
        elif name not in _NOT_JOBS:  # groups of jobs
            yield from (entry.key for entry in store.entries(f"{name}/") if entry.key.endswith("/order.json"))


def _collect_payloads(store: Store, now: float) -> tuple[int, int]:
    """Remove what jobs that ended long ago were sent: a verdict is final, so they will not run again.

    And what killed submissions and removals of batches left: without a record or a manifest no command finds it.
    """
    gone, freed = 0, 0
    unnamed: list[tuple[str, str, list[Entry]]] = []
    for job_id in filter(keys.is_made, store.folders("")):
        entries = {entry.key: entry for entry in store.entries(keys.job(job_id))}
        verdict = entries.get(keys.result(job_id))
        if verdict is None and keys.record(job_id) not in entries:
            unnamed.append((keys.job(job_id), keys.record(job_id), [*entries.values()]))
        if verdict is None or now - verdict.modified <= retention_seconds("jobs"):
            continue
        for key in (keys.function(job_id), keys.arguments(job_id)):
            if key in entries:
                store.delete(key)
                gone, freed = gone + 1, freed + entries[key].size
    unnamed += (
        (keys.group(group_id), manifest, list(store.entries(keys.group(group_id))))
        for group_id in filter(keys.is_group_id, list(store.folders(keys.GROUPS)))
        if store.size(manifest := keys.group_manifest(group_id)) is None
    )

    def old(now: float) -> list[tuple[str, str, list[Entry]]]:
        limit = now - retention_seconds("jobs")
        return [each for each in unnamed if each[2] and all(entry.modified < limit for entry in each[2])]

    unnamed = old(now)
    for prefix, named_by, left in old(now_in(store, now)) if unnamed else ():
        if store.size(named_by) is None:  # else it was submitted since we listed it
            store.delete(prefix)
            gone, freed = gone + len(left), freed + sum(entry.size for entry in left)
    return gone, freed


def _collect_data(store: LocalStore, now: float) -> tuple[int, int]:
    """Remove what was not used in a long time and is not part of a job's project: manifests first, then their blobs."""

    def is_spare(entry: Entry | None) -> bool:
        return entry is not None and now - entry.modified > retention_seconds("data")

    spare = [entry for prefix in (keys.DATA_MANIFESTS, keys.DATA_BLOBS) for entry in store.entries(prefix)]
    spare = [entry for entry in spare if re.search(_DIGEST, folders.name_of(entry.key)) and is_spare(entry)]
    needed = needed_data(store) if spare else frozenset()
    gone, freed = 0, 0
    if needed is None:
        return 0, 0
    for entry in spare:
        # a client may have made it young since we listed it
        if entry.key not in needed and is_spare(store.entry(entry.key)):
            store.delete(entry.key)
            gone, freed = gone + 1, freed + entry.size
    return gone, freed


def _collect_packages(store: Store, now: float) -> tuple[int, int]:
    """Remove layers, wheels and builds of images that were not used in a long time, by the clock of the store.

    A client makes what it relies on young, so a job that waits has it. What is removed is sent or built again.
    """

    def old(entries: Iterable[Entry], now: float) -> list[Entry]:
        ours = (each for each in entries if each.key.startswith(keys.BUILDS) or re.search(_DIGEST, each.key))
        return [each for each in ours if now - each.modified > retention_seconds(data_rule(each.key))]

    spare = [entry for prefix in _OF_IMAGES for entry in old(store.entries(prefix), now)]
    if spare and store.local is None:
        spare = old(spare, now_in(store, now))
    gone = set(compiled_programs.delete(store, spare))
    return len(gone), sum(entry.size for entry in spare if entry.key in gone)


def _collect_compiled(store: Store, now: float) -> tuple[int, int]:
    """Remove what no job has used for long, and what is too much, by the clock of the store."""
    with contextlib.suppress(StopIteration):
        next(iter(store.entries(keys.COMPILED)))
        return compiled_programs.prune(store, now_in(store, now))
    return 0, 0


def now_in(store: Store, now: float) -> float:
    """Return the time by which objects of a store are old; a clock of ours that is ahead makes none older."""
    return now if store.local is not None else min(now, _time_of(store))


def _time_of(store: Store) -> float:
    """Return the time by a store's own clock; 0.0 if it does not tell."""
    store.put(keys.HISTORY_CLOCK, b"")
    clock = store.entry(keys.HISTORY_CLOCK)
    store.delete(keys.HISTORY_CLOCK)
    return clock.modified if clock is not None else 0.0


def _collect_history(store: Store) -> None:
    """Delete what is too old by the store's own clock: pages, and the logs beside them.

    The time now is that of an object that is written for this, never that of the newest page: one from a wrong clock
    must not take the others with it. A page whose job still has artifacts stays: without it, a job that was cancelled
    would look like one that was not.
    """
    found = [entry for entry in store.entries(keys.HISTORY) if _is_history(entry.key)]
    if not found:
        return
    limit = _time_of(store) - retention_seconds("history")
    for entry in found:
        job_id = keys.job_of_history(entry.key)
        with contextlib.suppress(KineticError):  # one that cannot be deleted does not keep the others
            if entry.modified < limit and not (job_id and store.size(keys.record(job_id)) is not None):
                store.delete(entry.key)


def _is_history(key: str) -> bool:
    """Return whether a key is one of ours: others may have a folder of that name in the same place."""
    if key.startswith(keys.HISTORY_LOGS):
        return key.endswith(".gz")
    return key == keys.history(job_id := keys.job_of_history(key)) and keys.is_made(job_id)


def _collect_cache(cache: Path, now: float) -> tuple[int, int]:
    gone, freed = 0, 0
    for place in folders.listed(unpacked_wheels(cache.parent)):
        if re.match(_DIGEST, place.name) and folders.age(place, now) > retention_seconds("caches"):
            aside = place.with_name(f"{place.name[:16]}.removed")  # half of it must not be sent if we die here
            with contextlib.suppress(OSError):
                place.rename(aside)
            gone, freed = gone + 1, freed + _remove_folder(aside)
    for path, about in folders.walk(cache):
        folder, _, name = path.rpartition("/")
        is_page = folder in _CACHES and stat.S_ISREG(about.st_mode) and not name.startswith(_LAST_LOCK)
        if (
            is_page
            and re.search(_DIGEST, name)
            and now - max(about.st_atime, about.st_mtime) > retention_seconds("caches")
        ):
            with contextlib.suppress(OSError), folders.opened(cache, folder) as at:
                os.unlink(name, dir_fd=at)
                gone, freed = gone + 1, freed + about.st_size
    return gone, freed


def _collect_environments(places: tuple[Path, ...], now: float) -> tuple[int, int]:
    gone, freed = 0, 0
    for place in places:
        if (place / ENVIRONMENTS).is_dir():
            from kinetic._images import isolated_environment

            needed = _templates_in_use(places[-1])
            for folder in isolated_environment.stale(place / ENVIRONMENTS, now):
                if any(folder.name in template for template in needed):  # of a job that waits or runs
                    continue
                gone, freed = gone + 1, freed + _remove_folder(folder)
    return gone, freed


def _remove_folder(folder: Path) -> int:
    """Remove a folder, and return its size in bytes."""
    import shutil  # 3 ms; only where there are any

    size = sum(_size(Path(above) / file) for above, _, files in os.walk(folder) for file in files)
    shutil.rmtree(folder, ignore_errors=True)
    return size


def _templates_in_use(runtime: Path) -> list[str]:
    if not (runtime / "queue.db").exists():
        return []
    from kinetic._backends.local.queue import Queue  # 10 ms; only where there are environments

    with contextlib.closing(Queue(runtime / "queue.db")) as queue:
        return queue.templates_in_use()


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
