"""Finding jobs again: by id, by the beginning of one, or all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinetic import _settings as settings
from kinetic._backends import choosing
from kinetic._jobs import places, record, retention, tombstones
from kinetic._jobs.handle import JobHandle
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import keys, names
from kinetic.errors import BackendUnavailableError, JobNotFoundError, KeyMissingError, KineticError, OptionError

if TYPE_CHECKING:
    import logging

_MANY = 5


@dataclass(frozen=True)
class Known:
    """What this machine and the stores know: jobs that can be worked with, and those that are history."""

    live: list[JobHandle]
    past: list[dict[str, Any]]


def attach(job_id: str, project: str | None = None, cluster: str | None = None) -> JobHandle:
    """Rebuild the handle of a job from its durable record.

    Args:
        job_id: The id, or the beginning of it if only one job begins so.
        project: Google Cloud project; falls back to KINETIC_PROJECT, the profile, then GOOGLE_CLOUD_PROJECT.
        cluster: GKE cluster; falls back to KINETIC_CLUSTER, then the profile.

    Returns:
        A handle, ready for status(), result() and the rest.

    Raises:
        JobNotFoundError: No job has this id; nearest ones are named.
        OptionError: This cannot be an id, or several jobs begin so.
    """
    names.check_job_id(job_id)
    store = _local_store()
    with contextlib.suppress(KeyMissingError):
        return _load(store, job_id)
    found = [name for name in _ids(store) if name.startswith(job_id)]
    if len(found) > 1:
        raise OptionError(
            f"{job_id!r} is the beginning of {len(found)} job ids",
            why=", ".join(found[:_MANY]),
            next="give more of it",
            code="ambiguous-id",
        )
    if found:
        with contextlib.suppress(KeyMissingError):  # half submitted, or half removed
            return _load(store, found[0])
    _refuse_other_places(project, cluster)
    raise _not_found(store, job_id)


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
    _warn_of_other_places(settings.resolve(project=project, zone=zone, cluster=cluster, namespace=namespace))
    return _newest_first(_live(_local_store()))


def kept(project: str | None = None, zone: str | None = None, cluster: str | None = None) -> list[JobHandle]:
    """List every job of which something is kept: the live ones, and those that were cancelled, whose log stays.

    Args:
        project: Google Cloud project; every argument falls back as in ``kinetic.run``.
        zone: Google Cloud zone.
        cluster: GKE cluster.
    """
    _warn_of_other_places(settings.resolve(project=project, zone=zone, cluster=cluster))
    return _newest_first(_kept(_local_store()))


def newest(project: str | None = None, zone: str | None = None, cluster: str | None = None) -> JobHandle | None:
    """Return the job that was submitted last, or None where there is none.

    One that was cancelled counts, since its log stays; one that was collected or cleaned up does not: nothing is left
    that could be looked at.

    Args:
        project: Google Cloud project; every argument falls back as in ``kinetic.run``.
        zone: Google Cloud zone.
        cluster: GKE cluster.
    """
    store, handles = _local_store(), kept(project=project, zone=zone, cluster=cluster)
    latest = max((handle.created_at for handle in handles), default="")
    of_one_second = [handle for handle in handles if handle.created_at == latest]
    return max(of_one_second, key=lambda handle: _recorded(store, handle), default=None)


def known() -> Known:
    """List live jobs and the history of removed ones, both newest first."""
    store = _local_store()
    live = _newest_first(_live(store))
    alive = {handle.job_id for handle in live}
    past = [page for page in tombstones.listed(store) if page.get("job_id") not in alive]
    past.sort(key=lambda page: str(page.get("created_at", "")), reverse=True)
    return Known(live, past)


def _live(store: Store) -> Iterator[JobHandle]:
    """Yield the jobs that nobody removed: of this machine's queue, of other machines, and of a queue that is lost."""
    backend = choosing.choose("local", places.runtime())
    here = {seen.name for seen in backend.find()}
    scratch = getattr(store, "scratch", None)
    backend.sweep(scratch() if scratch is not None else None)
    retention.sweep_if_due(store, places.home(), places.runtime())
    for handle in _kept(store):
        if handle.job_id in here or not tombstones.exists(store, handle.job_id):
            yield handle


def _kept(store: Store) -> Iterator[JobHandle]:
    """Yield every job that has a record: the live ones, and those that were cancelled."""
    for job_id in _ids(store):
        try:
            yield _load(store, job_id)
        except KeyMissingError:
            continue  # being submitted, or removed this moment
        except KineticError as error:
            _log().warning("%s is not listed: %s", job_id, error.what)


def _load(store: Store, job_id: str) -> JobHandle:
    data = store.get(keys.record(job_id))
    handle = JobHandle.from_dict(record.from_bytes(data, job_id, None))
    if not places.trusts_the_store():
        record.from_bytes(data, job_id, places.key_of(job_id, handle.key_id or ""))
    return handle


def _recorded(store: Store, handle: JobHandle) -> tuple[float, str]:
    """Say when a record was written, by the store: it is written once, so this is the order of submission."""
    record_key = keys.record(handle.job_id)
    times = (entry.modified for entry in store.entries(keys.job(handle.job_id)) if entry.key == record_key)
    return next(times, 0.0), handle.job_id


def _ids(store: Store) -> list[str]:
    return [name for name in store.folders("") if name not in keys.RESERVED]


def _local_store() -> Store:
    return open_store(settings.resolve(backend="local").store.value)


def _newest_first(handles: Iterator[JobHandle]) -> list[JobHandle]:
    from kinetic._jobs import listing

    return listing.newest_first(list(handles))


def _log() -> logging.Logger:
    import logging  # 5 ms; only when there is something to tell

    return logging.getLogger("kinetic.jobs")


def _warn_of_other_places(target: settings.Target) -> None:
    try:
        if target.backend.value != "local":
            choosing.choose(target.backend.value, places.runtime())
    except BackendUnavailableError as error:
        _log().warning("only jobs of this machine are listed: %s", error.what)


def _refuse_other_places(project: str | None, cluster: str | None) -> None:
    """Say plainly when the job may well exist in a place that this release does not reach."""
    target = settings.resolve(project=project, cluster=cluster)
    if target.backend.value != "local":
        choosing.choose(target.backend.value, places.runtime())


def _not_found(store: Store, job_id: str) -> JobNotFoundError:
    page = tombstones.read(store, job_id)
    if page is not None:
        return JobNotFoundError(
            f"{job_id} was removed",
            why=f"it was {page.get('status')} and created at {page.get('created_at')}",
            next="kinetic jobs list --all",
        )
    import difflib  # 5 ms; only on the way to an error

    near = difflib.get_close_matches(job_id, _ids(store), 3)
    return JobNotFoundError(
        f"no job {job_id} was found",
        why=f"looked in {store.url}" + (f"; nearest: {', '.join(near)}" if near else ""),
        next="kinetic jobs list --all",
    )
