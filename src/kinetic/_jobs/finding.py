"""Finding jobs again: by id, by the beginning of one, or all of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinetic import _settings as settings
from kinetic._jobs import history, index, places, record, retention, tombstones, trust
from kinetic._jobs.handle import JobHandle
from kinetic._jobs.trust import Untrusted
from kinetic._output import tracebacks
from kinetic._output.gate import plain
from kinetic._stores import open_store, transfer
from kinetic._stores.protocol import Store
from kinetic._wire import names
from kinetic.errors import JobNotFoundError, KeyMissingError, KineticError

if TYPE_CHECKING:
    import logging

    from kinetic._settings import Target


@dataclass(frozen=True)
class Known:
    """What this machine and the stores know: jobs that can be worked with, and those that are history.

    Attributes:
        live: Those that can be worked with, newest first.
        past: Pages of the history of the others, newest first.
        order: The ids of all of them, newest first.
    """

    live: list[JobHandle]
    past: list[dict[str, Any]]
    order: list[str]


@tracebacks.door
def attach(job_id: str, project: str | None = None, cluster: str | None = None) -> JobHandle:
    """Rebuild the handle of a job from its durable record; of a collected job, from the history.

    Args:
        job_id: The id, or the beginning of it if only one job begins so.
        project: Google Cloud project; falls back to KINETIC_PROJECT, the profile, then GOOGLE_CLOUD_PROJECT.
        cluster: GKE cluster; falls back to KINETIC_CLUSTER, then the profile.

    Returns:
        A handle, ready for status(), result() and the rest. Of a job that was collected in the last 30 days, status()
        is NOT_FOUND and logs(), tail() and history() tell what there was.

    Raises:
        JobNotFoundError: No job has this id, or it was removed by hand; nearest ones are named.
        OptionError: This cannot be an id, or several jobs begin so.
    """
    names.check_job_id(job_id)
    stores = _stores(settings.resolve(project=project, cluster=cluster))
    for store in stores:
        with contextlib.suppress(KeyMissingError):
            return _load(store, job_id)
        if (collected := _collected(store, tombstones.seen(store, job_id))) is not None:
            return collected
    for store in stores:
        found = names.the_one(job_id, [name for name in _ids(store) if name.startswith(job_id)])
        if found:
            with contextlib.suppress(KeyMissingError):  # half submitted, or half removed
                return _load(store, found)
    for store in stores:
        pages = (tombstones.seen(store, name) for name in tombstones.ids(store) if name.startswith(job_id))
        past = [handle for page in pages if (handle := _collected(store, page)) is not None]
        found = names.the_one(job_id, [handle.job_id for handle in past], "ids of collected jobs")
        if found:
            return past[0]
    raise _not_found(stores, job_id)


@tracebacks.door
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
    return _newest_first(_live(target))


def kept(project: str | None = None, zone: str | None = None, cluster: str | None = None) -> list[JobHandle]:
    """List every job of which something is kept: the live ones, and those that were cancelled, whose log stays.

    Args:
        project: Google Cloud project; every argument falls back as in ``kinetic.run``.
        zone: Google Cloud zone.
        cluster: GKE cluster.
    """
    target = settings.resolve(project=project, zone=zone, cluster=cluster)
    return _newest_first(_records((store, _ids(store)) for store in _stores(target)))


def newest(project: str | None = None, zone: str | None = None, cluster: str | None = None) -> JobHandle | None:
    """Return the job that was submitted last, or None where there is none.

    One that was cancelled or collected counts, since its log stays; one that was removed by hand does not: nothing is
    left that could be looked at.

    Args:
        project: Google Cloud project; every argument falls back as in ``kinetic.run``.
        zone: Google Cloud zone.
        cluster: GKE cluster.
    """
    target = settings.resolve(project=project, zone=zone, cluster=cluster)
    stores = _stores(target)
    there = list(_records((store, _ids(store)) for store in stores))
    known = {handle.job_id for handle in there}
    past = (_collected(store, page) for store in stores for page in tombstones.listed(store))
    found = _newest_first([*there, *(handle for handle in past if handle and handle.job_id not in known)])
    return found[0] if found else None


def were_removed(project: str | None = None, zone: str | None = None, cluster: str | None = None) -> bool:
    """Say whether there were jobs that are history now.

    Args:
        project: Google Cloud project; every argument falls back as in ``kinetic.run``.
        zone: Google Cloud zone.
        cluster: GKE cluster.
    """
    target = settings.resolve(project=project, zone=zone, cluster=cluster)
    return any(tombstones.ids(store) for store in _stores(target))


def known(
    project: str | None = None, zone: str | None = None, cluster: str | None = None, namespace: str | None = None
) -> Known:
    """List live jobs and the history of removed ones, both newest first.

    Args:
        project: Google Cloud project; every argument falls back as in ``kinetic.run``.
        zone: Google Cloud zone.
        cluster: GKE cluster.
        namespace: Kubernetes namespace.
    """
    from kinetic._jobs import listing

    target = settings.resolve(project=project, zone=zone, cluster=cluster, namespace=namespace)
    live = {handle.job_id: handle for handle in _live(target)}
    pages = (page for store in _stores(target) for page in tombstones.listed(store))
    past = {str(page["job_id"]): page for page in pages if page.get("job_id") and str(page["job_id"]) not in live}
    order = [each.job_id for each in listing.in_order(listing.births([*live.values()], [*past.values()]))]
    return Known(
        [live[job_id] for job_id in order if job_id in live],
        [past[job_id] for job_id in order if job_id in past],
        order,
    )


def _live(target: Target) -> Iterator[JobHandle]:
    """Yield the jobs that nobody removed: those that their place still knows, and those that left no tombstone."""
    own = _local_store()
    backend = places.local()
    there = {seen.name for seen in backend.find()}
    scratch = getattr(own, "scratch", None)
    with contextlib.suppress(KineticError):  # a store that cannot be written can be listed
        backend.sweep(scratch() if scratch is not None else None, tombstones.seen)
    retention.sweep_if_due(own, places.home(), places.runtime())
    if target.backend.value != "local":
        there |= _on_the_cluster(target)
    yield from _records((store, _unremoved(store, there)) for store in _stores(target))


def _on_the_cluster(target: Target) -> set[str]:
    """Return the jobs that a cluster knows; one that does not answer is a warning, and its store has them all."""
    try:
        return {seen.name for seen in places.backend_at(target).find()}
    except KineticError as error:
        _log().warning("the cluster was not asked, only its store: %s", error.what)
        return set()


def _unremoved(store: Store, there: set[str]) -> list[str]:
    """Return the jobs of a store that have no tombstone, or are still there although they have one."""
    named = tombstones.ids(store)

    def is_removed(job_id: str) -> bool:
        return job_id in named and tombstones.seen(store, job_id) is not None

    return [job_id for job_id in _ids(store) if job_id in there or not is_removed(job_id)]


def _records(wanted: Iterable[tuple[Store, list[str]]]) -> Iterator[JobHandle]:
    """Yield the handles of jobs, several records at a time where that is quicker; of the others, a warning tells."""
    untrusted: list[Untrusted] = []
    for store, ids in wanted:
        known = index.of(store)
        tasks = []
        for job_id in ids:
            if (page := known.record(job_id)) is not None:
                yield JobHandle.from_dict(page)
            else:
                tasks.append(functools.partial(_try_to_load, store, job_id))
        for read in transfer.in_parallel(store, tasks):
            if isinstance(read, Untrusted):
                untrusted.append(read)
            elif read is not None:
                known.note_record(read["job_id"], read)
                yield JobHandle.from_dict(read)
        known.write(functools.partial(tombstones.named, store))
    for line in trust.told(untrusted, "job"):
        _log().warning("%s", line)


def _try_to_load(store: Store, job_id: str) -> dict[str, Any] | Untrusted | None:
    """Read the record of a job; one that cannot be read is a warning."""
    try:
        return record.read(store, job_id)
    except KeyMissingError:  # being submitted, or removed this moment
        return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one page, the others are listed
        what = error.what if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"
        _log().warning("%s is not listed: %s", plain(job_id), plain(what))
        return None


def _collected(store: Store, page: dict[str, Any] | None) -> JobHandle | None:
    """Return the handle of a collected job from its page of the history; None of a page that is of no such job."""
    if page is None or not history.is_collected(page) or not isinstance(page.get("job_id"), str):
        return None
    try:
        handle = JobHandle.from_dict({**page, "store": store.url})  # where it was found, whatever the page says
    except TypeError:
        _log().warning("%s is not listed: its page of the history is incomplete", plain(str(page.get("job_id"))))
        return None
    handle._past = page  # noqa: SLF001 - one room
    return handle


def _load(store: Store, job_id: str) -> JobHandle:
    """Read the record of a job.

    Raises:
        KeyMissingError: There is none.
        KineticError: It is damaged, or cannot be verified here.
    """
    found = record.read(store, job_id)
    if isinstance(found, Untrusted):
        raise found.error()
    return JobHandle.from_dict(found)


def _stores(target: Target) -> list[Store]:
    """Return where jobs are looked for: in the store of the target, and in that of this machine."""
    found = [open_store(target.store.value), _local_store()]
    return found[:1] if found[0].url == found[1].url else found


def _ids(store: Store) -> list[str]:
    return [name for name in store.folders("") if names.is_job_id(name)]


def _local_store() -> Store:
    return open_store(settings.resolve(backend="local").store.value)


def _newest_first(handles: Iterable[JobHandle]) -> list[JobHandle]:
    from kinetic._jobs import listing

    return listing.newest_first(list(handles))


def _log() -> logging.Logger:
    import logging  # 5 ms; only when there is something to tell

    return logging.getLogger("kinetic.jobs")


def _not_found(stores: Sequence[Store], job_id: str) -> JobNotFoundError:
    page = next((page for store in stores if (page := tombstones.seen(store, job_id)) is not None), None)
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
