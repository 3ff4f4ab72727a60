"""The list of jobs, newest first: which there are, and what is known of them without opening a page.

What the index does not know is read as for a handle. The queue says in which order jobs were submitted; whoever looks
also starts what the queue needs and removes what has expired, if there is any of it.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._backends import registry
from kinetic._config import home as config_home
from kinetic._config import target as settings
from kinetic._jobs import environment
from kinetic._jobs.index import OF_OTHERS, Row, page_entries, page_names, rows_of
from kinetic._stores import open_store
from kinetic._stores.protocol import CLOUDS, SCRATCH
from kinetic._wire import NamedTuple, folders, keys
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._config.target import Target
    from kinetic._jobs.locate import Untrusted
    from kinetic._jobs.status import Snapshot
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import JobRecord

    Job = Row | JobRecord  # of the list: its row, or where its status must be read, its record
    _Places = Mapping[str, tuple[float, int]]  # when jobs were submitted, and their numbers in the queue

T = TypeVar("T")
_FUTURE_SECONDS = 60.0  # clocks of two machines that share a store may differ by so much


def function_of(job: Job) -> str:
    """Return the name of a job's function."""
    return job.function if isinstance(job, Row) else job.func_name


def made(job: Job) -> float:
    """Return when a job was made (Unix time); 0.0 where the text cannot be read."""
    return (job.created if isinstance(job, Row) else keys.parse_utc(job.created_at)) or 0.0


def readable(target: Target, look: Callable[[Target], list[T]]) -> tuple[list[T], KineticError | None]:
    """Look at a target; where its store cannot be read, at this machine alone.

    Returns:
        What was found, and why the target could not be read.

    Raises:
        KineticError: The target could not be read, and nothing was found on this machine.
    """
    try:
        return look(target), None
    except KineticError as error:
        here = settings.resolve(backend=registry.HERE.name)
        found = look(here) if here.store.value != target.store.value else []
        if not found:
            raise
        return found, error


def live(target: Target) -> list[Job]:
    """List the jobs that were not removed, newest first."""
    return newest_first(_known(unremoved(target)))


def live_and_past(target: Target) -> list[Job]:
    """List the jobs that were not removed and those of the history, newest first."""
    return newest_first(_known(unremoved(target)), *_past(target))


def newest(target: Target, *, removed: bool = False) -> Job | None:
    """Return the job that was submitted last, which may be a cancelled or collected one, or ``removed`` as well.

    A store to which a job was sent later than the newest one here is looked at, too, though it is not the target's.
    """
    found = stores(target)
    last = _newest_of(found, removed=removed)
    for store, noted in environment.noted_stores(found):
        if last is not None and noted < made(last):
            break
        try:
            last = _newest_of([*found, store], removed=removed)
            found.append(store)
        except KineticError as error:
            warn_unread(store, error)
    return last


def warn_unread(store: Store, error: KineticError) -> None:
    """Say that the newest job may be in a store that cannot be read; one that was deleted is not asked again."""
    if error.code == "store-missing":
        environment.forget_store(store.url)
    environment.log().warning("something newer was sent to %s, which cannot be read: %s", store.url, error.what)


def has_unlisted(target: Target) -> bool:
    """Return whether jobs are stored, of which a list that is empty could show none."""
    return any(_unremoved_of(store, page_names(store), set()) for store in stores(target))


def last_store_elsewhere(target: Target) -> str:
    """Return the address of the store to which this machine sent a job last, of those where none are listed; or ""."""
    return next((store.url for store, _ in environment.noted_stores(stores(target))), "")


def named(found: Iterable[Store], name: str) -> list[Job]:
    """Return the jobs to which the user gave this name and that were not removed, newest first."""
    of_others: list[Untrusted] = []
    found = list(found)
    stored = _known(((store, ids(store), page_names(store)) for store in found), of_others)
    past = [
        [row for row in history_rows(store) if row.collected_at is not None and row.name == name] for store in found
    ]
    return _unless_none(newest_first([job for job in stored if job.name == name], *past), of_others)


def _newest_of(found: Sequence[Store], *, removed: bool) -> Job | None:
    of_others: list[Untrusted] = []
    stored = _known(((store, ids(store), page_names(store)) for store in found), of_others)
    past = [_last([row for row in history_rows(store) if removed or row.collected_at is not None]) for store in found]
    places = _places(stored)
    last = _unless_none(newest_first(_latest(stored, places), *past, places=places), of_others)
    return next(iter(last), None)


def _unless_none(jobs: list[Job], of_others: Sequence[Untrusted]) -> list[Job]:
    """Return what was looked for; jobs of colleagues, which may be it, are only named where nothing was found."""
    if of_others and not jobs:
        from kinetic._jobs import locate

        locate.warn_of_jobs(of_others)
    return jobs


def _latest(stored: list[Job], places: _Places) -> list[Job]:
    """Return those among which the newest is: sorting thousands takes 10 ms. See ``ages``."""
    if any(job.group_id is None and job.job_id not in places for job in stored):
        return stored  # how exactly its time must be known depends on the others
    queued = [job for job in stored if job.group_id is None]
    if len(queued) < 2:
        return stored
    limit = _limit()

    def age(job: Job) -> tuple[bool, float, float]:
        when = made(job)
        return when <= limit, when, places[job.job_id][0]

    last = max(queued, key=lambda job: places[job.job_id][1])
    return [last, max(queued, key=age), *(job for job in stored if job.group_id is not None)]


def _last(past: list[Row]) -> list[Row]:
    """Return the newest row of a history, oldest first; all, if a clock was wrong."""
    return past[-1:] if past and made(past[-1]) <= _limit() else past


def stores(target: Target) -> list[Store]:
    """Return where jobs are looked for: in the store of the target, and in that of this machine."""
    found = [environment.warn_if_shared(open_store(target.store.value)), environment.local_store()]
    return found[:1] if found[0].url == found[1].url else found


def everywhere(stores: Sequence[Store], find: Callable[[Store], Iterable[T]]) -> list[tuple[T, Store]]:
    """Return what is found in stores, each with its store; one that is away is left out if others have something."""
    found: list[tuple[T, Store]] = []
    for store in reversed(stores):  # this machine's own needs no network
        try:
            found += ((each, store) for each in find(store))
        except KineticError:
            if not found:
                raise
    return found


def look_elsewhere(known: Sequence[Store], look: Callable[[Store], T | None]) -> tuple[T | None, list[Store]]:
    """Look in the stores to which jobs were sent lately; return what was found first, and where it was not."""
    looked_in: list[Store] = []
    for store, _ in environment.noted_stores(known):
        try:
            found = look(store)
        except OptionError:  # several match
            raise
        except KineticError:  # it may be of a cluster that is gone
            continue
        if found is not None:
            return found, looked_in
        looked_in.append(store)
    return None, looked_in


def ids(store: Store) -> list[str]:
    """Return the jobs of which something is stored."""
    return [name for name in store.folders("") if keys.is_job_id(name)]


def unremoved(target: Target, *, alone: bool = False) -> Iterator[tuple[Store, list[str], set[str]]]:
    """Yield stores, their jobs that have no history or that a backend knows all the same, and the names in the history.

    Before, the queue of this machine gets what it needs, and what has expired is removed. ``alone``: without this
    machine's store, unless it is the target's.
    """
    own = environment.local_store()
    backend = environment.local()
    backend.advance()
    with contextlib.suppress(KineticError):  # a read-only store can be listed
        scratch = own.local.root / SCRATCH if own.local is not None else None
        backend.sweep(scratch if scratch is not None and scratch.is_dir() else None, _read_page)  # none is made
    mark = config_home.collection_mark(environment.runtime(), own.url)
    if folders.is_due(mark, time.time(), config_home.COLLECT_SECONDS, note=False):
        from kinetic._maintenance import garbage_collection  # 4 ms; once a day

        garbage_collection.collect_if_due(own, environment.home(), environment.runtime())
    there: set[str] = set()
    if not registry.is_here(target.backend.value):
        from kinetic._jobs import locate  # 20 ms; below, wherever more than the rows of the index is needed

        try:
            there |= {seen.name for seen in locate.backend_at(target).find()}
        except KineticError as error:  # its store has them all
            environment.log().warning("the cluster was not asked, only its store: %s", error.what)
    for store in stores(target)[: 1 if alone else None]:
        named = page_names(store)
        yield store, _unremoved_of(store, named, there), named


def _unremoved_of(store: Store, named: set[str], there: set[str]) -> list[str]:
    """Return the jobs of a store whose names are not in its history, or that are in ``there`` all the same."""
    jobs = ids(store)
    if not named.isdisjoint(jobs):
        there |= environment.local().places().keys()
        jobs = [name for name in jobs if name not in named or name in there or not _has_page(store, name)]
    return jobs


def _read_page(store: Store, job_id: str) -> dict[str, Any] | None:
    from kinetic._jobs import locate

    return locate.read_page(store, job_id)


def _has_page(store: Store, job_id: str) -> bool:
    """Return whether a job was removed: it has a page that is believed."""
    row, entry = rows_of(store, _HISTORY).rows.get(job_id), store.entry(keys.history(job_id))
    if row is not None and entry is not None and row.stamp == (entry.size, entry.modified):
        is_ours = row.key_id in environment.key_ids()
        if not (is_ours and row.status == OF_OTHERS):  # whose seal was not looked at
            return is_ours
    return _read_page(store, job_id) is not None


# ------------------------------------------------------------------------------------------------ what the index knows


_HISTORY = ".history"  # the part of the index that has rows of the history


def _known(wanted: Iterable[tuple[Store, list[str], set[str]]], of_others: list[Untrusted] | None = None) -> list[Job]:
    """Return the rows of jobs, or the records of those that the index has no row of; see ``locate.read_records``.

    A row says nothing of a job that became history meanwhile.
    """
    found: list[Job] = []
    unknown: list[tuple[Store, list[str]]] = []
    own = environment.key_ids()
    for store, names, removed in wanted:
        rows, missing = rows_of(store).rows, []
        for name in names:
            row = rows.get(name)
            if row is None or row.key_id not in own or name in removed:
                missing.append(name)
            else:
                found.append(row)
        unknown.append((store, missing))
    if any(missing for _, missing in unknown):
        from kinetic._jobs import locate

        found += locate.read_records(unknown, of_others=of_others)
    return found


def noted(jobs: Sequence[JobRecord], seen: Sequence[Snapshot]) -> Iterator[tuple[str, Row | Exception]]:
    """Yield the rows of jobs that were looked at, or what is wrong with one, and keep those that will not change."""
    from kinetic._jobs import locate, status

    changed = {}
    for job, snapshot in zip(jobs, seen, strict=True):
        try:
            store = locate.store_of(job)
            row = Row.of(status.job_to_json(job, snapshot), store.url, job.key_id, job.zone)
        except Exception as error:  # noqa: BLE001 - one job hides no other
            yield job.job_id, error
            continue
        if status.is_settled(job, snapshot):
            rows_of(store).note(row)
            changed[store.url] = store
        yield job.job_id, row
    for store in changed.values():
        rows_of(store).write(functools.partial(store.folders, ""))


def _past(target: Target) -> list[list[Row]]:
    """Return the rows of the history of each store, oldest first."""
    return [history_rows(store) for store in stores(target)]


def history_rows(store: Store) -> list[Row]:
    """Return the rows of the history of a store, oldest first; pages that did not change are not read again."""
    index, own, stamp = rows_of(store, _HISTORY), environment.key_ids(), _stamp(store)
    sealed = {(row.key_id, row.status == OF_OTHERS) for row in index.rows.values()}
    if stamp is not None and stamp == index.folder and all((key in own) is not others for key, others in sealed):
        return _shown([*index.rows.values()])
    found, unread = [], []
    for entry in page_entries(store):
        job_id, about = keys.job_of_history(entry.key), (entry.size, entry.modified)
        row = index.rows.get(job_id)
        if row is not None and row.stamp == about and (row.key_id in own) is (row.status != OF_OTHERS):
            found.append(row)
        elif keys.is_job_id(job_id):
            unread.append(functools.partial(_read_past, store, job_id, about))
    if unread:
        from kinetic._jobs import locate

        found += filter(None, locate.in_parallel(store, unread))
    found.sort(key=_age_of_past)
    if stamp != index.folder or found != [*index.rows.values()]:
        index.replace(found, stamp)
    return _shown(found)


def _shown(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.status != OF_OTHERS]


def _stamp(store: Store) -> tuple[int, ...] | None:
    """Return what changes with the pages of the history; None where that is not known, or may change unseen."""
    if store.local is None:
        return None
    now = time.time_ns()
    try:
        about = os.lstat(store.local.root / keys.HISTORY)
    except OSError:
        return None
    return (about.st_mtime_ns, about.st_ctime_ns, about.st_ino) if folders.is_settled(about.st_mtime_ns, now) else None


def _read_past(store: Store, job_id: str, stamp: tuple[int, float]) -> Row | None:
    from kinetic._jobs import locate, status

    page = locate.claimed_page(store, job_id)
    if isinstance(page, locate.Untrusted) and page.is_of_others:
        return Row.of_others(job_id, store.url, page.key_id, stamp)
    if page is None or isinstance(page, locate.Untrusted):
        return None
    row = Row.of(status.history_to_json(page), store.url, page.get("key_id"), str(page.get("zone") or ""))
    created = page.get("created")
    precise = float(created) if isinstance(created, int | float) and row.group_index is None else 0.0
    return row._replace(precise=precise, stamp=stamp)


# ---------------------------------------------------------------------------------------------------------------- order


class Creation(NamedTuple):
    """When a job was made, as exactly as that is known."""

    job_id: str
    made: float  # Unix time, as its record has it: in whole seconds; 0.0 if that cannot be read
    precise: float = 0.0  # Unix time with fractions, by one clock for all jobs of one second; 0.0 if not known
    sequence: int = 0  # its place in this machine's queue, which no clock changes; 0 where it has none
    group_index: int = -1  # in its batch


_Age = tuple[bool, float, float, int, int, str]  # what jobs are sorted by


def ages(created: Iterable[Creation], *, now: float | None = None) -> Iterator[tuple[_Age, Creation]]:
    """Yield jobs with what they are sorted by: time, and the queue's sequence where clocks went back.

    A time in the future comes from a wrong clock, so such a job is older than all others. What was queued later is
    never older than what was queued before it.
    """
    limit = _limit(now)
    latest = (False, 0.0, 0.0)
    for each in sorted(created, key=lambda each: each.sequence):
        job_id, made, precise, sequence, group_index = each
        own = (made <= limit, made, precise)
        if sequence:
            own = latest = max(latest, own)
        yield (*own, sequence, group_index, job_id), each


def _limit(now: float | None = None) -> float:
    """Return the time after which no job can have been made."""
    return (time.time() if now is None else now) + _FUTURE_SECONDS


def _first(pair: tuple[_Age, object]) -> _Age:
    return pair[0]


def _age_of_past(row: Row, limit: float = math.inf) -> _Age:
    made, index = row.created or 0.0, row.group_index
    return made <= limit, made, row.precise, 0, -1 if index is None else index, row.job_id


def newest_first(stored: Iterable[Job], *past: list[Row], places: _Places | None = None) -> list[Job]:
    """Sort jobs.

    Args:
        stored: Those of which something is stored.
        past: The history of each store, oldest first; what is stored as well, or in two of them, is there once.
        places: Of this machine's queue, where they are known already.
    """
    by_id = {job.job_id: job for job in stored}
    history = _once(past, by_id)
    found = [(age, by_id[each.job_id]) for age, each in ages(_creations([*by_id.values()], history, places))]
    limit = _limit()
    # Of thousands in the history most are older than all others, and sorted.
    is_plausible = not history or made(history[-1]) <= limit
    older = bisect.bisect_left(history, min(found)[0], key=_age_of_past) if found and is_plausible else 0
    older = len(history) if is_plausible and not found else older
    found += [(_age_of_past(row, limit), row) for row in history[older:]]
    found.sort(key=_first)
    return [*history[:older], *(job for _, job in found)][::-1]


def _once(past: Sequence[list[Row]], stored: Mapping[str, Job]) -> list[Row]:
    """Return the history of all stores, oldest first, without the jobs that are stored."""
    filled = [rows for rows in past if rows]
    if len(filled) == 1 and not any(row.job_id in stored for row in filled[0]):
        return filled[0]
    rows = {row.job_id: row for rows in filled for row in rows if row.job_id not in stored}
    return sorted(rows.values(), key=_age_of_past)


def _places(stored: Sequence[Job]) -> _Places:
    return environment.local().places() if stored else {}


def _creations(stored: Sequence[Job], past: Sequence[Row], places: _Places | None) -> Iterator[Creation]:
    """Yield when jobs were made; those of one second as exactly as queue and store know it."""
    places = _places(stored) if places is None else places
    singles = [job for job in stored if job.group_id is None]
    number = Counter[float]()
    if any(job.job_id not in places for job in singles):
        number.update(map(made, singles))
        number.update(made(row) for row in past if row.job_id not in places)
    for job in stored:
        when, index = made(job), job.group_index
        if job.group_id is not None:
            yield Creation(job.job_id, when, group_index=index if isinstance(index, int) else 0)
        elif job.job_id in places:
            yield Creation(job.job_id, when, *places[job.job_id])
        else:
            precise = 0.0
            if number[when] > 1:
                with contextlib.suppress(KineticError):
                    precise = _recorded(job)
            yield Creation(job.job_id, when, precise)


def _recorded(job: Job) -> float:
    """Return when the record of a job was written: once, so the store knows the order of submission.

    Buckets know whole seconds: there, the record says by the clock of its client when it was made.
    """
    store = open_store(job.store) if job.store else environment.local_store()
    if store.url.startswith(CLOUDS):
        from kinetic._jobs import locate

        page = locate.read_record(store, job.job_id)
        if isinstance(page, dict) and "created" in page:
            return float(page["created"])
    entry = store.entry(keys.record(job.job_id))
    return entry.modified if entry is not None else 0.0
