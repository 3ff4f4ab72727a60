"""Finding jobs again: by id, by the start of one, or all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._backends.registry import is_here
from kinetic._config import target as settings
from kinetic._jobs import environment, index, job_list, locate
from kinetic._output import tracebacks
from kinetic._output.format import names_text, plain
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import keys
from kinetic._wire.records import JobRecord
from kinetic.errors import JobNotFoundError, KeyMissingError, KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._config.target import Target
    from kinetic._jobs.handle import JobHandle

_NAMED = 5  # in a message


@tracebacks.hides_frames
def attach(job_id: str, project: str | None = None, cluster: str | None = None) -> JobHandle:
    """Rebuild the handle of a job from its durable record; of a collected job, from the history.

    Args:
        job_id: The id, or the start of it if only one job's id starts so, or the name that only one job has.
        project: Google Cloud project; falls back to KINETIC_PROJECT, the profile, then GOOGLE_CLOUD_PROJECT.
        cluster: GKE cluster; falls back to KINETIC_CLUSTER, then the profile.

    Returns:
        A handle, ready for status(), result() and the rest. Of a job that was collected in the last 30 days, status()
        is NOT_FOUND, and logs(), tail() and history() return what there was.

    Raises:
        JobNotFoundError: No job has this id, or it was removed by hand; nearest ones are named.
        OptionError: This is neither an id nor a name of a job, or several jobs match.
    """
    return handle_of(find_record(job_id, settings.resolve(project=project, cluster=cluster)))


def find_record(job_id: str, target: Target) -> JobRecord:
    """Return the record of a job, with its page of the history if it was collected; see ``attach``."""
    if not isinstance(job_id, str):
        keys.check_job_id(job_id)
    stores = job_list.stores(target)
    for store in reversed(stores) if keys.is_job_id(job_id) else ():  # this machine's own needs no network
        if (found := _known(store, job_id)) is not None:
            return found
    if (found := _by_word(stores, job_id)) is not None:
        return found
    is_made = keys.is_made(job_id)
    found, elsewhere = job_list.look_elsewhere(
        stores, lambda store: _known(store, job_id) if is_made else _by_word([store], job_id)
    )
    if found is not None:
        return found
    if not keys.is_job_id(job_id.rstrip("-")):
        keys.check_job_id(job_id)
    raise _not_found(stores, job_id, elsewhere)


def _by_word(stores: Sequence[Store], word: str) -> JobRecord | None:
    """Return the job whose id begins with a word, else the one that has it as its name; None where there is none."""

    def begun(names: Iterable[str]) -> list[str]:
        return [name for name in names if name.startswith(word)]

    def begun_in_history(store: Store) -> Iterable[JobRecord]:
        pages = (locate.read_page(store, name) for name in begun(index.page_ids(store)))
        return filter(None, (_collected(store, page) for page in pages))

    if keys.is_job_id(word.rstrip("-")):  # the beginning of an id may end with one
        stored = job_list.everywhere(stores, lambda store: begun(job_list.ids(store)))
        if name := keys.only_match(word, [name for name, _ in stored]):
            with contextlib.suppress(KeyMissingError):  # half submitted, or half removed
                return locate.read_job(stored[0][1], name)
        past = job_list.everywhere(stores, begun_in_history)
        if keys.only_match(word, [job.job_id for job, _ in past], "ids of collected jobs"):
            return past[0][0]
    named = [] if not word or keys.is_made(word) or keys.is_group_id(word) else job_list.named(stores, word)
    if len(named) > 1:
        raise ambiguous_name(word, [job.job_id for job in named], "jobs", "kinetic jobs list --all")
    for job in named:
        if isinstance(job, JobRecord):
            return job
        if (found := _known(open_store(job.store), job.job_id)) is not None:
            return found
    return None


def ambiguous_name(name: str, ids: Sequence[str], what: str, command: str) -> OptionError:
    """Return the error that several jobs or batches, newest first, have a name; ``command`` lists them."""
    return OptionError(
        f"{len(ids)} {what} have the name {name!r}",
        why=f"newest first: {names_text(ids, _NAMED)}",
        next=f"use the id of one of them     to see them: {command}",
        code="ambiguous-name",
    )


def _known(store: Store, job_id: str) -> JobRecord | None:
    """Return the record of a job of a store, also if it was collected; None where there is none."""
    with contextlib.suppress(KeyMissingError):
        return locate.read_job(store, job_id)
    return _collected(store, locate.read_page(store, job_id))


@tracebacks.hides_frames
def list_jobs(
    project: str | None = None, zone: str | None = None, cluster: str | None = None, namespace: str | None = None
) -> list[JobHandle]:
    """List the live jobs, newest first: those whose resource was not removed yet.

    Args:
        project: Google Cloud project; every argument falls back as in ``kinetic.run``.
        zone: Google Cloud zone.
        cluster: GKE cluster.
        namespace: Kubernetes namespace; if given, jobs in other ones are left out.

    Returns:
        Handles. A backend that cannot be listed, or a job whose record cannot be read, is a warning; so is a store that
        cannot be read, if this machine has jobs.
    """
    target = settings.resolve(project=project, zone=zone, cluster=cluster, namespace=namespace)
    found, unread = job_list.readable(target, live_at)
    if unread is not None:
        locate.log().warning("only jobs of this machine are listed: %s", unread.what)
    if namespace is not None:  # a store may have the jobs of several
        found = [job for job in found if is_here(job.backend) or job.namespace == namespace]
    from kinetic._jobs import notifications  # 2 ms; not to look at one job

    notifications.look(found)
    return found


def list_stored_jobs(target: Target) -> list[JobHandle]:
    """List every job of which something is stored: the live ones, and those that were cancelled, whose log stays."""
    return _handles(locate.read_records((store, job_list.ids(store)) for store in job_list.stores(target)))


def newest_record(target: Target) -> JobRecord | None:
    """Return the job that was submitted last, which may be a cancelled or collected one; None where there is none."""
    newest = job_list.newest(target)
    return newest if newest is None or isinstance(newest, JobRecord) else find_record(newest.job_id, target)


def live_at(target: Target, *, alone: bool = False) -> list[JobHandle]:
    """List the live jobs of one target; ``alone``: without those of this machine, unless it is the target."""
    return _handles(locate.read_records((store, ids) for store, ids, _ in job_list.unremoved(target, alone=alone)))


def has_history(target: Target) -> bool:
    """Return whether there were jobs that are history now, also of a store that this machine used before."""
    found = job_list.stores(target)
    if any(map(index.page_ids, found)):
        return True
    for store, _ in environment.noted_stores(found):
        with contextlib.suppress(KineticError):  # the search for the newest job has named it
            if index.page_ids(store):
                return True
    return False


def _collected(store: Store, page: dict[str, Any] | None) -> JobRecord | None:
    """Return the record of a collected job from its page of the history; None for any other page."""
    if page is None or not locate.is_collected(page):
        return None
    return record_in_history(store, page)


def record_in_history(store: Store, page: dict[str, Any]) -> JobRecord | None:
    """Return the record of a job that was removed or collected; None where its page does not say enough."""
    if not isinstance(page.get("job_id"), str):
        return None
    try:
        job = locate.record_of({**page, "store": store.url})  # where it was found, whatever the page says
    except TypeError:
        locate.log().warning("%s is not listed: its page of the history is incomplete", plain(str(page.get("job_id"))))
        return None
    job._past = page  # noqa: SLF001 - one room
    return job


def _handles(jobs: Iterable[JobRecord]) -> list[JobHandle]:
    """Return the handles of jobs, newest first."""
    by_id = {job.job_id: job for job in jobs}
    return [handle_of(by_id[each.job_id]) for each in job_list.newest_first(by_id.values())]


def handle_of(job: JobRecord) -> JobHandle:
    """Return the handle of a job; see ``handle``."""
    from kinetic._jobs import handle  # 6 ms; a look at a job needs its record only

    return handle.handle_of(job)


def _not_found(stores: Sequence[Store], job_id: str, elsewhere: Sequence[Store]) -> JobNotFoundError:
    looked_in = [*stores, *elsewhere]
    page = next((page for store in looked_in if (page := locate.read_page(store, job_id)) is not None), None)
    if page is not None:
        return JobNotFoundError(
            f"{job_id} was removed",
            why=f"it was {page.get('status')} and created at {page.get('created_at')}",
            next="kinetic jobs list --all",
        )
    if keys.is_group_id(job_id):
        why, next_ = "it is the id of a batch, and not of a job", f'kinetic.attach_batch("{job_id}")'
        return JobNotFoundError(f"no job {job_id} was found", why=why, next=next_)
    import difflib  # 5 ms; only on the way to an error

    near = difflib.get_close_matches(job_id, [name for store in stores for name in job_list.ids(store)], 3)
    return JobNotFoundError(
        f"no job {job_id} was found",
        why=f"looked in {' and '.join(store.url for store in looked_in)}"
        + (f"; nearest: {', '.join(near)}" if near else ""),
        next="kinetic jobs list --all",
    )
