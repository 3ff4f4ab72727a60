"""Finding jobs again: by id, by the start of one, or all of them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends import registry
from kinetic._config import target as settings
from kinetic._jobs import locate
from kinetic._jobs.handle import JobHandle
from kinetic._jobs.locate import Untrusted
from kinetic._jobs.status import past_of
from kinetic._maintenance import garbage_collection
from kinetic._output import tracebacks
from kinetic._output.format import plain
from kinetic._stores import open_store, parallel
from kinetic._stores.protocol import Store
from kinetic._wire import keys
from kinetic.errors import JobNotFoundError, KeyMissingError, KineticError

if TYPE_CHECKING:
    from kinetic._config.target import Target
    from kinetic._wire.records import JobRecord

_FUTURE_SECONDS = 60.0  # clocks of two machines that share a store may differ by so much


class JobListing(NamedTuple):
    """What this machine and the stores know of jobs, newest first."""

    live: list[JobHandle]
    past: list[dict[str, Any]]  # pages of the history of the others
    order: list[str]  # the ids of all of them


@tracebacks.hides_frames
def attach(job_id: str, project: str | None = None, cluster: str | None = None) -> JobHandle:
    """Rebuild the handle of a job from its durable record; of a collected job, from the history.

    Args:
        job_id: The id, or the start of it if only one job's id starts so.
        project: Google Cloud project; falls back to KINETIC_PROJECT, the profile, then GOOGLE_CLOUD_PROJECT.
        cluster: GKE cluster; falls back to KINETIC_CLUSTER, then the profile.

    Returns:
        A handle, ready for status(), result() and the rest. Of a job that was collected in the last 30 days, status()
        is NOT_FOUND, and logs(), tail() and history() return what there was.

    Raises:
        JobNotFoundError: No job has this id, or it was removed by hand; nearest ones are named.
        OptionError: This cannot be an id, or several jobs match.
    """
    keys.check_job_id(job_id)
    stores = _stores(settings.resolve(project=project, cluster=cluster))
    for store in stores:
        with contextlib.suppress(KeyMissingError):
            return _load(store, job_id)
        if (collected := _collected(store, locate.read_page(store, job_id))) is not None:
            return collected
    for store in stores:
        found = keys.only_match(job_id, [name for name in _ids(store) if name.startswith(job_id)])
        if found:
            with contextlib.suppress(KeyMissingError):  # half submitted, or half removed
                return _load(store, found)
    for store in stores:
        pages = (locate.read_page(store, name) for name in locate.page_ids(store) if name.startswith(job_id))
        past = [handle for page in pages if (handle := _collected(store, page)) is not None]
        if keys.only_match(job_id, [handle.job_id for handle in past], "ids of collected jobs"):
            return past[0]
    raise _not_found(stores, job_id)


@tracebacks.hides_frames
def list_jobs(
    project: str | None = None, zone: str | None = None, cluster: str | None = None, namespace: str | None = None
) -> list[JobHandle]:
    """List the live jobs, newest first: those whose resource was not removed yet.

    Args:
        project: Google Cloud project; every argument falls back as in ``kinetic.run``.
        zone: Google Cloud zone.
        cluster: GKE cluster.
        namespace: Kubernetes namespace.

    Returns:
        Handles. A backend that cannot be listed, or a job whose record cannot be read, is a warning.
    """
    target = settings.resolve(project=project, zone=zone, cluster=cluster, namespace=namespace)
    return _newest_first(_live(target, _stores(target)))


def list_stored_jobs(
    project: str | None = None, zone: str | None = None, cluster: str | None = None
) -> list[JobHandle]:
    """List every job of which something is stored: the live ones, and those that were cancelled, whose log stays."""
    target = settings.resolve(project=project, zone=zone, cluster=cluster)
    return _newest_first(_records((store, _ids(store)) for store in _stores(target)))


def newest_job(project: str | None = None, zone: str | None = None, cluster: str | None = None) -> JobHandle | None:
    """Return the job that was submitted last, or None where there is none."""
    stores = _stores(settings.resolve(project=project, zone=zone, cluster=cluster))
    stored = list(_records((store, _ids(store)) for store in stores))
    known = {handle.job_id for handle in stored}
    past = (_collected(store, page) for store in stores for page in locate.read_pages(store))
    return next(iter(_newest_first([*stored, *(each for each in past if each and each.job_id not in known)])), None)


def has_history(project: str | None = None, zone: str | None = None, cluster: str | None = None) -> bool:
    """Return whether there were jobs that are history now."""
    target = settings.resolve(project=project, zone=zone, cluster=cluster)
    return any(locate.page_ids(store) for store in _stores(target))


def list_with_history(
    project: str | None = None, zone: str | None = None, cluster: str | None = None, namespace: str | None = None
) -> JobListing:
    """List live jobs and the history of removed ones, both newest first."""
    return list_at(settings.resolve(project=project, zone=zone, cluster=cluster, namespace=namespace))


def list_at(target: Target, *, alone: bool = False) -> JobListing:
    """List the jobs of one target; ``alone``: without those of this machine, unless it is the target."""
    stores = _stores(target)[: 1 if alone else None]
    live = {handle.job_id: handle for handle in _live(target, stores)}
    pages = (page for store in stores for page in locate.read_pages(store))
    past = {str(page["job_id"]): page for page in pages if page.get("job_id") and str(page["job_id"]) not in live}
    order = ids_newest_first([*live.values()], [*past.values()])
    return JobListing(
        live=[live[job_id] for job_id in order if job_id in live],
        past=[past[job_id] for job_id in order if job_id in past],
        order=order,
    )


def _live(target: Target, stores: Sequence[Store]) -> Iterator[JobHandle]:
    """Yield the jobs that were not removed: those that their backend still knows, and those without history."""
    own = locate.local_store()
    backend = locate.local()
    there = backend.names()
    with contextlib.suppress(KineticError):  # a read-only store can be listed
        backend.sweep(own.local.scratch() if own.local is not None else None, locate.read_page)
    garbage_collection.collect_if_due(own, locate.home(), locate.runtime())
    if not registry.is_here(target.backend.value):
        try:
            there |= {seen.name for seen in locate.backend_at(target).find()}
        except KineticError as error:  # its store has them all
            locate.log().warning("the cluster was not asked, only its store: %s", error.what)
    yield from _records((store, _unremoved(store, there)) for store in stores)


def _unremoved(store: Store, there: set[str]) -> list[str]:
    """Return the jobs of a store that have no history, or that a backend knows although they have one."""
    named = locate.page_ids(store)

    def is_removed(job_id: str) -> bool:
        return job_id in named and locate.read_page(store, job_id) is not None

    return [job_id for job_id in _ids(store) if job_id in there or not is_removed(job_id)]


def _records(wanted: Iterable[tuple[Store, list[str]]]) -> Iterator[JobHandle]:
    """Yield the handles of jobs, reading several records at a time where that is faster; warn of the others."""
    untrusted: list[Untrusted] = []
    for store, ids in wanted:
        index = locate.index_of(store)
        tasks = []
        for job_id in ids:
            if (page := index.record(job_id)) is not None:
                yield JobHandle.from_dict(page)
            else:
                tasks.append(functools.partial(_try_to_read, store, job_id))
        for read in parallel.in_parallel(store, tasks):
            if isinstance(read, Untrusted):
                untrusted.append(read)
            elif read is not None:
                index.note_record(read["job_id"], read)
                yield JobHandle.from_dict(read)
        index.write(functools.partial(store.folders, ""))
    for line in locate.untrusted_warnings(untrusted, "job"):
        locate.log().warning("%s", line)


def _try_to_read(store: Store, job_id: str) -> dict[str, Any] | Untrusted | None:
    """Read the record of a job; one that cannot be read is a warning."""
    try:
        return locate.read_record(store, job_id)
    except KeyMissingError:  # being submitted or removed this moment
        return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one page, the others are listed
        what = error.what if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"
        locate.log().warning("%s is not listed: %s", plain(job_id), plain(what))
        return None


def _collected(store: Store, page: dict[str, Any] | None) -> JobHandle | None:
    """Return the handle of a collected job from its page of the history; None for any other page."""
    if page is None or not locate.is_collected(page):
        return None
    return handle_in_history(store, page)


def handle_in_history(store: Store, page: dict[str, Any]) -> JobHandle | None:
    """Return the handle of a job that was removed or collected; None where its page does not say enough."""
    if not isinstance(page.get("job_id"), str):
        return None
    try:
        handle = JobHandle.from_dict({**page, "store": store.url})  # where it was found, whatever the page says
    except TypeError:
        locate.log().warning("%s is not listed: its page of the history is incomplete", plain(str(page.get("job_id"))))
        return None
    handle._past = page  # noqa: SLF001 - one room
    return handle


def _load(store: Store, job_id: str) -> JobHandle:
    """Read the record of a job; raise KeyMissingError where there is none."""
    found = locate.read_record(store, job_id)
    if isinstance(found, Untrusted):
        raise found.error()
    return JobHandle.from_dict(found)


def _stores(target: Target) -> list[Store]:
    """Return where jobs are looked for: in the store of the target, and in that of this machine."""
    found = [locate.warn_if_shared(open_store(target.store.value)), locate.local_store()]
    return found[:1] if found[0].url == found[1].url else found


def _ids(store: Store) -> list[str]:
    return [name for name in store.folders("") if keys.is_job_id(name)]


def _newest_first(handles: Iterable[JobHandle]) -> list[JobHandle]:
    by_id = {handle.job_id: handle for handle in handles}
    return [by_id[job_id] for job_id in ids_newest_first([*by_id.values()])]


class Creation(NamedTuple):
    """When a job was made, as exactly as that is known."""

    job_id: str
    created_at: str  # as its record has it: in whole seconds
    precise: float = 0.0  # Unix time with fractions, by one clock for all jobs of one second; 0.0 if not known
    sequence: int = 0  # its place in this machine's queue, which no clock changes; 0 where it has none
    group_index: int = -1  # in its batch


def ids_newest_first(jobs: Sequence[JobRecord], past: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Return the ids of jobs, and of pages of the history, newest first."""
    return [each.job_id for each in sort_newest_first(_creations(jobs, past))]


def _creations(jobs: Sequence[JobRecord], past: Sequence[Mapping[str, Any]]) -> list[Creation]:
    """Return when jobs were made; of those of one second as exactly as queue, history and store know it."""
    singles = [job for job in jobs if job.group_id is None]
    here = functools.cache(locate.is_here_by)  # the same backend and host, a thousand times
    queued = [job.job_id for job in singles if here(job.backend, job.host) and past_of(job) is None]
    rows = locate.local().queue.jobs(queued) if queued else {}
    found = {str(page["job_id"]): _of_page(page) for page in past if page.get("job_id")}
    number = Counter(job.created_at for job in singles)
    number.update(each.created_at for each in found.values() if each.job_id not in rows)
    for job in jobs:
        job_id, created_at = job.job_id, job.created_at
        if (own := past_of(job)) is not None:
            found[job_id] = _of_page({**own, "job_id": job_id, "created_at": created_at})
        elif job_id in rows:
            found[job_id] = Creation(job_id, created_at, rows[job_id].submitted, rows[job_id].seq)
        elif job.group_id is not None:
            index = job.group_index
            found[job_id] = Creation(job_id, created_at, group_index=index if isinstance(index, int) else 0)
        elif job_id not in found:
            precise = 0.0
            if number[created_at] > 1:  # its record is written once, so the store knows the order of submission
                with contextlib.suppress(KineticError):
                    entry = locate.store_of(job).entry(keys.record(job_id))
                    precise = entry.modified if entry is not None else 0.0
            found[job_id] = Creation(job_id, created_at, precise)
    return list(found.values())


def sort_newest_first(created: Iterable[Creation], *, now: float | None = None) -> list[Creation]:
    """Sort jobs, newest first: by time, and by the queue's sequence where clocks went back.

    A time in the future comes from a wrong clock, so such a job is older than all others. What was queued later is
    never older than what was queued before it.
    """
    limit = (time.time() if now is None else now) + _FUTURE_SECONDS
    when: dict[str, tuple[bool, float, float]] = {}
    latest = (False, 0.0, 0.0)
    for each in (listed := sorted(created, key=lambda each: each.sequence)):
        made = keys.parse_utc(each.created_at) or 0.0
        own = (made <= limit, made, each.precise)
        if each.sequence:
            own = latest = max(latest, own)
        when[each.job_id] = own
    return sorted(
        listed, key=lambda each: (when[each.job_id], each.sequence, each.group_index, each.job_id), reverse=True
    )


def _of_page(page: Mapping[str, Any]) -> Creation:
    job_id, created_at = str(page["job_id"]), str(page.get("created_at", ""))
    created, index = page.get("created"), page.get("group_index")
    if isinstance(index, int):
        return Creation(job_id, created_at, group_index=index)
    return Creation(job_id, created_at, float(created) if isinstance(created, int | float) else 0.0)


def _not_found(stores: Sequence[Store], job_id: str) -> JobNotFoundError:
    page = next((page for store in stores if (page := locate.read_page(store, job_id)) is not None), None)
    if page is not None:
        return JobNotFoundError(
            f"{job_id} was removed",
            why=f"it was {page.get('status')} and created at {page.get('created_at')}",
            next="kinetic jobs list --all",
        )
    import difflib  # 5 ms; only on the way to an error

    near = difflib.get_close_matches(job_id, [name for store in stores for name in _ids(store)], 3)
    return JobNotFoundError(
        f"no job {job_id} was found",
        why=f"looked in {' and '.join(store.url for store in stores)}"
        + (f"; nearest: {', '.join(near)}" if near else ""),
        next="kinetic jobs list --all",
    )
