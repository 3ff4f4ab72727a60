"""The status of jobs, read in one place, of any number at once, from two witnesses: the store, then the backend.

The store is the truth, so it is read first: a job that has an outcome needs no backend. Of the others each backend is
asked once, whatever their number. What neither sees now may have ended in between, so the store is read once more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._backends import registry
from kinetic._backends.protocol import Observation
from kinetic._jobs import index, locate, logs
from kinetic._stores.protocol import CLOUDS
from kinetic._wire import NamedTuple, dataclass, keys, outcomes, records
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic.errors import IntegrityError, KeyMissingError, KineticError, StoreUnreachableError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Diagnosis
    from kinetic._stores.protocol import Entry, Store
    from kinetic._wire.records import JobRecord


WAS_CANCELLED = "it was cancelled"  # the reason of a cancelled job that is still stored, whose status is NOT_FOUND
_NOTES = 10  # so many are tried: others than ours may have put something there
_CODES = {"": "lost", "unknown": "lost", "failed": "job-failed"}  # of a cluster, where errors have other ones
_NEARLY_ALL = 0.8  # of the memory
_UNREAD = Exception()  # in the place of a page

T = TypeVar("T")


class Listing(NamedTuple):
    """What a job had in the store, and when."""

    entries: Sequence[Entry]
    at: float  # by ``time.monotonic``


@dataclass(frozen=True)
class Snapshot:
    """What was seen of a job at one moment."""

    status: JobStatus  # PENDING where it could not be judged at all: such a job must not be taken for an ended one
    outcome: Outcome | None = None  # from the store
    observation: Observation | None = None  # from the backend
    past: dict[str, Any] | None = None  # the job's page of the history; None where kinetic did not remove it
    error: Exception | None = None  # what kept us from seeing more
    is_elsewhere: bool = False  # only another machine sees how it runs
    body: bytes | None = field(default=None, repr=False, compare=False)  # of the result, if it was read with its page
    inside: Listing | None = field(default=None, repr=False, compare=False)  # if it was listed at the same time

    @property
    def reason(self) -> str:
        """One line: what a waiting job waits for, or how one failed; "" when there is nothing to say."""
        error, outcome = self.error, self.outcome
        if error is not None:
            unknown = f"it cannot be read: {type(error).__name__}: {error}"
            return error.what if isinstance(error, KineticError) else unknown
        if outcome is None:
            if self.observation is not None and self.observation.reason:
                return self.observation.reason
            if self.is_elsewhere:
                return "only the machine and home that run it can see it"
            return "its process ended without a result" if self.status is JobStatus.FAILED else ""
        if outcome.succeeded:
            return ""
        if outcome.status == outcomes.CANCELLED:
            return WAS_CANCELLED
        message, *_ = str(outcome.error.get("message", "")).splitlines() or [""]
        kind = outcome.error.get("type")
        if outcome.cause == "serialization":
            return f"it returned a {outcome.error.get('value_type')} that cannot be pickled"
        return f"{kind}: {message}".removesuffix(": ") if kind else message


def observe(job: JobRecord, *, expected: bool = False, collects: bool = False) -> Snapshot:
    """Look at one job, and ask its backend why it failed if it left no outcome; raise what makes that impossible.

    Args:
        job: The job.
        expected: It has probably ended: what is read of a job that has, is read side by side in a distant store.
        collects: It is removed then: what it has there is listed as well.
    """
    if locate.past_of(job) is not None:
        return observe_many([job])[0]
    more: dict[str, Any] = {}
    if expected and locate.store_of(job).local is None:
        more = _read_side_by_side(job, collects=collects)
    outcome, body = more["ended"] if more else _outcome_and_body(job)
    observed = {} if outcome is not None or not locate.can_be_seen(job) else _ask_backends([job])
    pages = {"page": more["page"]} if more and outcome is not None else {}  # else it may have been written since
    seen = _judge(job, outcome, observed.get(job.job_id), thorough=True, **pages)
    if seen.error is not None:
        raise seen.error
    return seen if outcome is None else replace(seen, body=body, inside=more.get("inside"))


def _read_side_by_side(job: JobRecord, *, collects: bool) -> dict[str, Any]:
    store = locate.store_of(job)

    def listing() -> Listing | None:
        now = time.monotonic()
        with contextlib.suppress(KineticError):  # it is listed again where it is needed
            return Listing([*store.entries(keys.job(job.job_id))], now)
        return None

    questions: dict[str, Callable[[], object]] = {
        "ended": functools.partial(_outcome_and_body, job),
        "page": functools.partial(_page, job),
        **({"inside": listing} if collects else {}),
    }
    return dict(zip(questions, locate.in_order([(store.url, ask) for ask in questions.values()]), strict=True))


def is_far(job: JobRecord) -> bool:
    """Return whether each request to a job's store takes as long as many of them."""
    return _address_of(job).startswith(CLOUDS)


def _address_of(job: JobRecord) -> str:
    with contextlib.suppress(KineticError):  # of a kind that this kinetic does not know
        return locate.store_of(job).url
    return ""


def observe_many(jobs: Sequence[JobRecord], *, from_index: bool = False, thorough: bool = False) -> list[Snapshot]:
    """Look at jobs, in their order. One that cannot be judged does not hide the others: its snapshot has the error."""
    present = [job for job in jobs if locate.past_of(job) is None]  # a job that is history needs nothing
    found, listed = _outcomes_by_index(present) if from_index else (of_each(present, _outcome), {})
    seen = _ask_backends([job for job in present if found[job.job_id] is None and locate.can_be_seen(job)])
    ended = [job for job in present if isinstance(found[job.job_id], Outcome) and job.job_id not in listed]
    pages = of_each(ended, _page_or_error) if len(ended) > 1 else {}
    waiting = [job for job in present if _may_be_claimed(job, seen.get(job.job_id))]
    claimed = of_each(waiting, lambda job: _with_claim(job, seen[job.job_id])) if len(waiting) > 1 else {}

    def judge(job: JobRecord) -> Snapshot:
        name, page = job.job_id, pages.get(job.job_id, _UNREAD)
        known = {} if isinstance(page, Exception) else {"page": page}
        observation = claimed.get(name, seen.get(name))
        return _judge(job, found.get(name), observation, thorough=thorough, is_claimed=name in claimed, **known)

    return [listed.get(job.job_id) or judge(job) for job in jobs]


def of_each(jobs: Sequence[JobRecord], read: Callable[[JobRecord], T]) -> dict[str, T]:
    """Return what is read of each job, by its id: of many at once where their store is far away."""
    found = locate.in_order([(_address_of(job), functools.partial(read, job)) for job in jobs])
    return dict(zip((job.job_id for job in jobs), found, strict=True))


def value_age(store: Store, job_id: str) -> float | None:
    """Return when a job ended that left a value; 0.0 if it cannot be read, so it may be one; None if it failed."""
    try:  # only its age is used, so it need not be verified
        outcome = index.index_of(store).outcome(job_id) or outcomes.find(store, job_id, lambda: None)
    except KineticError:
        return 0.0
    if outcome is None:
        return 0.0
    return (outcome.ended or 0.0) if outcome.succeeded else None


def decide(
    *,
    outcome: Outcome | None,
    observation: Observation | None,
    removed: bool = False,
    attempted: bool = False,
    elsewhere: bool = False,
) -> JobStatus:
    """Decide what a job's status is.

    Args:
        outcome: What the store says, read after the observation if that was final or absent.
        observation: What the backend sees; None when it does not know the job.
        removed: kinetic itself removed the job: it has a page of the history.
        attempted: An attempt had begun: there is a note.
        elsewhere: The job belongs to another machine that shares the store, and cannot be seen from here.

    | removed | outcome   | observation | else      | status                                             |
    |---------|-----------|-------------|-----------|----------------------------------------------------|
    | yes     |           |             |           | NOT_FOUND                                          |
    | no      | cancelled |             |           | NOT_FOUND                                          |
    | no      | succeeded |             |           | SUCCEEDED, whatever became of the process          |
    | no      | failed    |             |           | FAILED                                             |
    | no      | none      | seen        |           | as seen                                            |
    | no      | none      | none        | elsewhere | RUNNING once attempted, else PENDING; never FAILED |
    | no      | none      | none        | attempted | FAILED: it began, and nothing of it is left        |
    | no      | none      | none        |           | NOT_FOUND: it was never launched                   |
    """
    if removed or (outcome is not None and outcome.status == outcomes.CANCELLED):
        return JobStatus.NOT_FOUND
    if outcome is not None:
        return JobStatus.SUCCEEDED if outcome.succeeded else JobStatus.FAILED
    if observation is not None:
        return observation.status
    if elsewhere:
        return JobStatus.RUNNING if attempted else JobStatus.PENDING
    return JobStatus.FAILED if attempted else JobStatus.NOT_FOUND


def is_settled(job: JobRecord, seen: Snapshot) -> bool:
    """Return whether all that a list shows of a job was decided by its outcome, and so stays as it is."""
    is_decided = seen.outcome is not None and seen.observation is None and seen.past is None and seen.error is None
    return is_decided and not (registry.is_here(job.backend) and _kind_of(job.accelerator) == "gpu")  # see emulation_of


def _outcome(job: JobRecord) -> Outcome | Exception | None:
    """Read what the store says of a job, or why that cannot be used."""
    try:
        return locate.read_outcome(job)
    except KineticError as error:
        return error


def _page(job: JobRecord) -> dict[str, Any] | None:
    return locate.read_page(locate.store_of(job), job.job_id)


def _page_or_error(job: JobRecord) -> dict[str, Any] | Exception | None:
    try:
        return _page(job)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is read again and becomes this job's error
        return error


def _outcome_and_body(job: JobRecord) -> tuple[Outcome | Exception | None, bytes | None]:
    """Read the same of a job that is waited for, and its result with it where that is small: one request."""
    try:
        return locate.read_ended(job) or (None, None)
    except KineticError as error:
        return error, None


def _outcomes_by_index(
    jobs: Sequence[JobRecord],
) -> tuple[dict[str, Outcome | Exception | None], dict[str, Snapshot]]:
    """Return how jobs ended, from the index or else from the store, and the snapshots that this decides."""
    by_store: dict[str | None, list[JobRecord]] = {}
    for job in jobs:
        by_store.setdefault(job.store, []).append(job)
    found: dict[str, Outcome | Exception | None] = {}
    decided: dict[str, Snapshot] = {}
    for theirs in by_store.values():
        try:
            store = locate.store_of(theirs[0])
        except KineticError as error:  # of a kind that this kinetic does not know
            found |= dict.fromkeys((job.job_id for job in theirs), error)
            continue
        known, removed = index.index_of(store), index.page_names(store)
        read = of_each([job for job in theirs if known.outcome(job.job_id) is None], _outcome)
        for job in theirs:
            outcome = read[job.job_id] if job.job_id in read else known.outcome(job.job_id)
            if job.job_id in read and isinstance(outcome, Outcome):
                known.note_outcome(job.job_id, outcome)
            found[job.job_id] = outcome
            if isinstance(outcome, Outcome) and job.job_id not in removed:
                decided[job.job_id] = Snapshot(decide(outcome=outcome, observation=None), outcome)
        known.write(functools.partial(store.folders, ""))
    return found, decided


def _ask_backends(jobs: Sequence[JobRecord]) -> dict[str, Observation | Exception]:
    """Ask each backend about its jobs, once; one that does not answer does not hide the jobs of others.

    Clusters, and namespaces of one, are asked side by side: one that is away is waited for, for 20 s.
    """
    by_backend: dict[Backend, list[JobRecord]] = {}
    seen: dict[str, Observation | Exception] = {}
    for job in jobs:
        try:
            by_backend.setdefault(locate.backend_of(job), []).append(job)
        except KineticError as error:  # one that this kinetic does not know, or that cannot be reached from here
            seen[job.job_id] = error
    here = [functools.partial(_ask, *each) for each in by_backend.items() if each[0].is_here]
    clusters = [functools.partial(_ask, *each) for each in by_backend.items() if not each[0].is_here]
    for found in (*[ask() for ask in here], *locate.in_parallel(None, clusters)):
        seen |= found
    return seen


def _ask(backend: Backend, jobs: Sequence[JobRecord]) -> Mapping[str, Observation | Exception]:
    names = [job.job_id for job in jobs]
    try:
        return backend.observe(names)
    except KineticError as error:
        if backend.is_here:
            raise
        return dict.fromkeys(names, error)


def _judge(
    job: JobRecord,
    outcome: Outcome | Exception | None,
    observation: Observation | Exception | None,
    *,
    thorough: bool,
    is_claimed: bool = False,
    **pages: dict[str, Any] | None,
) -> Snapshot:
    """Put together what was read and seen of a job. Whatever is wrong with it becomes the error of its snapshot."""
    if (past := locate.past_of(job)) is not None:
        return Snapshot(JobStatus.NOT_FOUND, past=past)
    if isinstance(observation, Exception):
        return Snapshot(JobStatus.PENDING, error=observation)
    try:
        if outcome is not None or observation is None or observation.status.is_final:
            return _judge_ended(job, outcome, observation, thorough=thorough, **pages)
        if observation.waits_for_others and _settle(job):
            return _judge(job, _outcome(job), _ask_backends([job]).get(job.job_id), thorough=thorough)
        with contextlib.suppress(StoreUnreachableError):  # what the cluster says of it stays true
            if observation.warm:
                from kinetic._jobs import cold_start  # few jobs are in a warm pod

                observation = cold_start.start_if_left(job, observation)
            observation = observation if is_claimed else with_claim(job, locate.backend_of(job), observation)
        return Snapshot(decide(outcome=None, observation=observation), None, observation)
    except Exception as error:  # noqa: BLE001 - as above
        return Snapshot(JobStatus.PENDING, None, observation, error=error)


def _settle(job: JobRecord) -> bool:
    """Start or close a job on a cluster, if what it follows has ended; return whether anything changed."""
    from kinetic._jobs import after  # only for a job that waits

    with contextlib.suppress(KineticError):  # out of reach, or without the right: the next look tries again
        return after.settle(job, has_ended)
    return False


def has_ended(job: JobRecord) -> bool:
    """Look at a job, which settles what it follows, and return whether it has ended."""
    return observe_many([job])[0].status.is_final


def _judge_ended(
    job: JobRecord,
    outcome: Outcome | Exception | None,
    observation: Observation | None,
    *,
    thorough: bool,
    **pages: dict[str, Any] | None,
) -> Snapshot:
    """``pages``: of the history, where it was read already, as "page"."""
    if outcome is None:
        outcome = _outcome(job)  # the second look: it may have come in between
    if outcome is None and observation is None and locate.can_be_seen(job) and not registry.is_here(job.backend):
        from kinetic._jobs import cold_start  # few jobs are gone from their cluster

        if (observation := cold_start.find_without_job(job)) is not None:
            observation = with_claim(job, locate.backend_of(job), observation)
    if thorough and outcome is None and observation is not None and observation.status is JobStatus.FAILED:
        observation, outcome = _explain_failure(job, locate.backend_of(job), observation)
    error = outcome if isinstance(outcome, Exception) else None
    outcome = None if isinstance(outcome, Exception) else outcome
    past = pages["page"] if pages else _page(job)
    if past is not None and outcome is not None and outcome.status == outcomes.CANCELLED:
        outcome = replace(outcome, ended=past.get("ended") or outcome.ended)  # when its processes were gone
    attempt = attempt_state(job) if outcome is None else {}
    status = decide(outcome=outcome, observation=observation, removed=past is not None, **attempt)
    is_elsewhere = outcome is None and not status.is_final and not locate.can_be_seen(job)
    if status is JobStatus.FAILED and outcome is None and observation is None and not registry.is_here(job.backend):
        place = f"the namespace {job.namespace} of {job.context or job.cluster_name}"
        gone = f"its Job is no longer in {place}: it was deleted there, or removed some time after its end"
        observation = Observation(job.job_id, status, attempt=None, reason=gone)
    return Snapshot(status, outcome, observation, past, error, is_elsewhere)


def with_claim(job: JobRecord, backend: Backend, observation: Observation) -> Observation:
    """Observe as running a job whose attempt is claimed: a cluster counts the pods that are ready a second later.

    A claim outlives a machine that lost its power, so the pod that claimed must still be there. A job that a warm pod
    has not claimed waits, though that pod runs.
    """
    if observation.warm and observation.status is JobStatus.RUNNING and not observation.is_told:
        if last_attempt_note(job) is None:
            reason = f"its warm pod {observation.warm} has not begun with it"
            return replace(observation, status=JobStatus.PENDING, reason=reason)
        return observation
    if backend.is_here or observation.status is not JobStatus.PENDING:
        return observation
    note = last_attempt_note(job)
    if note is None or "ended" in note.details:
        return observation
    try:
        pod = backend.debug_addresses(observation.name, hosts=[0]).get(0)
    except KineticError:  # we may not look at pods
        return observation
    # The note has the pod's hostname; Kubernetes appends six characters to it in the names of indexed pods.
    runs = pod is not None and pod.machine.startswith(str(note.details.get("pod") or note.machine))
    return replace(observation, status=JobStatus.RUNNING, reason="", started=note.started) if runs else observation


def _may_be_claimed(job: JobRecord, observation: Observation | Exception | None) -> bool:
    """Return whether ``with_claim`` asks the store, and nothing is done before that."""
    if not isinstance(observation, Observation) or observation.warm or observation.waits_for_others:
        return False
    return observation.status is JobStatus.PENDING and not registry.is_here(job.backend)


def _with_claim(job: JobRecord, observation: Observation | Exception) -> Observation | Exception:
    if isinstance(observation, Exception):
        return observation
    try:
        return with_claim(job, locate.backend_of(job), observation)
    except StoreUnreachableError:  # what the cluster says of it stays true
        return observation
    except Exception as error:  # noqa: BLE001 - it becomes the error of this job's snapshot
        return error


def attempt_state(job: JobRecord) -> Mapping[str, bool]:
    """Return whether a job began, and whether on another machine: a batch's child may have been launched on both."""
    note = last_attempt_note(job)
    elsewhere = not locate.can_be_seen(job)
    if note is not None and not elsewhere:
        elsewhere = note.details.get("machine_id") not in {None, "", locate.machine()}
    return {"attempted": note is not None, "elsewhere": elsewhere}


def last_attempt_note(job: JobRecord) -> AttemptNote | None:
    """Return what is known of a job's last attempt; None while none began. What cannot be verified does not count."""
    store = locate.store_of(job)
    noted = keys.numbered(store.entries(keys.attempts(job.job_id)))
    key = locate.key_to_read(job) if noted else None
    for attempt, _ in reversed(noted[-_NOTES:]):
        with contextlib.suppress(KeyMissingError, IntegrityError):
            return outcomes.read_note(store, job.job_id, attempt, key)
    return None


def _explain_failure(job: JobRecord, backend: Backend, observation: Observation) -> tuple[Observation, Outcome | None]:
    """Ask the backend why a job failed that left no outcome: its store could not take one, or its runner was killed."""
    found, log, attempt = None, "", observation.attempt or 0
    if not backend.is_here:
        with contextlib.suppress(KineticError):
            found = backend.explain(job.job_id)
    if found is not None:
        if found.code == "killed":
            found = _with_memory(job, found)
        reason = found.what.removeprefix(f"{job.job_id}: ") + (f" ({found.why})" if found.why else "")
        observation = replace(observation, reason=reason)
    if not observation.reason:
        return observation, None
    with contextlib.suppress(KineticError):
        store = locate.store_of(job)
        if observation.attempt is None:
            attempt = logs.latest_noted_attempt(store, job.job_id)
        last = logs.store_last_log(backend, store, job.job_id, attempt=attempt)
        log = logs.tail(last, outcomes.LOG_LINES, most=outcomes.LOG_BYTES)  # its runner was killed
    error = {"message": observation.reason, "next": found.next if found else "", "log": log}
    outcome = Outcome(
        job_id=job.job_id,
        status=outcomes.FAILED,
        attempt=attempt,
        cause=_CODES.get(found.code, found.code) if found is not None else "lost",
        phase="",
        error={name: text for name, text in error.items() if text},
        started=observation.started,
        ended=observation.ended,
        witness="observer",
    )
    return observation, outcome


def _with_memory(job: JobRecord, found: Diagnosis) -> Diagnosis:
    """Say how much memory a job that was killed held when it was last measured, on the host where it was fullest."""
    from kinetic._jobs import resource_usage  # rare
    from kinetic._output.format import size_text
    from kinetic._wire.measurements import MEMORY
    from kinetic._wire.task import MORE_MEMORY

    with contextlib.suppress(KineticError):
        hosts = [each for each in resource_usage.measurements_of(job)[1] if each.rows and each.memory_limit_bytes]
        rows = [(float(each.rows[-1][MEMORY] or 0), each.memory_limit_bytes) for each in hosts]
        if rows:
            held, limit = max(rows, key=lambda row: row[0] / row[1])
            why = f"{found.why}; it held {size_text(held)} of {size_text(limit)} of memory when last measured"
            if held < _NEARLY_ALL * limit:
                return replace(found, why=why)
            what = "it was killed, most likely because it ran out of memory"
            return replace(found, what=what, why=why, next=MORE_MEMORY)
    return found


def job_to_json(job: JobRecord, seen: Snapshot) -> dict[str, Any]:
    """Return what was seen of a job as JSON values with stable names."""
    if seen.past is not None and locate.is_collected(seen.past):
        return history_to_json({**records.plain(job), **seen.past})
    times = seen.outcome or seen.observation
    started, ended = (times.started, times.ended) if times else (None, None)
    now = {
        "status": seen.status.value,
        "reason": seen.reason,
        "emulation": emulation_of(job),
        "where": place_of(job),
        "attempt": times.attempt if times and started is not None else None,
        "started": started,
        "ended": ended,
    }
    return _to_json({**vars(job), **now}, until=time.time() if seen.status is JobStatus.RUNNING else ended)


def history_of(job: JobRecord, seen: Snapshot) -> dict[str, Any]:
    """Return the same as the history has it: of a job that was removed or cancelled, how it had ended."""
    if seen.past is not None:
        return history_to_json({**records.plain(job), **seen.past})
    cancelled = seen.outcome is not None and seen.outcome.status == outcomes.CANCELLED
    return job_to_json(job, seen) | ({"status": "CANCELLED"} if cancelled else {})


def details_of(job: JobRecord, seen: Snapshot) -> dict[str, Any]:
    """Return what only ``show`` needs: the rest of the record, the verdict's details, the log."""
    outcome, log = seen.outcome, logs.log_of(job)
    # In job_to_json, some under other names:
    known = frozenset("job_id func_name accelerator backend created_at name tags command after".split())
    return {
        "cause": outcome.cause if outcome else None,
        "phase": outcome.phase if outcome else None,
        "phases_seconds": dict(outcome.phases) if outcome else {},
        "value_type": (outcome.value_type or None) if outcome else None,
        "result_bytes": locate.store_of(job).size(keys.result(job.job_id)),
        "log_bytes": log.size() if log is not None else 0,
        "files_left": list(outcome.files) if outcome else [],
        "lock": _lock_of(job),
        **{name: value for name, value in records.plain(job).items() if name not in known},
    }


def lock_key(job: JobRecord) -> str:
    """Return where the lock that a job runs with is in its store, or ""."""
    if job.group_id is None:
        return str(_recorded(job).get("lock") or "")
    with contextlib.suppress(KineticError):
        group = locate.verified_group(locate.store_of(job), job.group_id)
        return str(group.more.get("lock") or "") if group is not None else ""
    return ""


def is_spot(job: JobRecord) -> bool:
    """Return whether a job asked for Spot; False where its record does not say."""
    return bool(_recorded(job).get("spot"))


def _recorded(job: JobRecord) -> dict[str, Any]:
    """Return the record of a job, with what it has besides the fields of a handle; {} where it cannot be read here."""
    with contextlib.suppress(KineticError):
        return locate.verified_record(locate.store_of(job), job.job_id) or {}
    return {}


def _lock_of(job: JobRecord) -> dict[str, Any] | None:
    """Return the lock that a job runs with: the version of each package, and its text."""
    at = lock_key(job)
    if not at:
        return None
    from kinetic._images import lock_store  # 40 ms; only to show a job with an environment of its own

    with contextlib.suppress(KineticError):  # a lock of another home, or one that is gone, is not believed
        locked = lock_store.read_lock(locate.store_of(job), at, os.environ)
        lock = locked.lock
        about = {"key": at, "platform": lock.platform.tag, "python": lock.platform.python}
        return {**about, "named": list(locked.named), "packages": lock.versions(), "pylock": lock.text}
    return None


def history_to_json(page: dict[str, Any]) -> dict[str, Any]:
    """Return what remains of a removed or collected job as the same values; removal cancels what had not ended."""
    attempts = page.get("attempts")
    last = {"attempt": attempts - 1 if attempts else None, "where": _place_in_history(page)}
    if page.get("resource_removed") and page.get("status") in {JobStatus.PENDING.value, JobStatus.RUNNING.value}:
        last["status"] = "CANCELLED"
    return _to_json({**page, **last}, until=page.get("ended"))


def _to_json(of: Mapping[str, Any], *, until: float | None) -> dict[str, Any]:
    """Return what is shown of a job, by the fields of its record and what is known besides, as its history has it."""
    started = of.get("started")
    return {
        "job_id": of["job_id"],
        "function": of.get("func_name", ""),
        "name": of.get("name"),
        "tags": of.get("tags") or {},
        "command": of.get("command"),
        "after": of.get("after") or [],
        "status": of.get("status", ""),
        "reason": of.get("reason", ""),
        "accelerator": of.get("accelerator", ""),
        "emulation": of.get("emulation"),
        "group_id": of.get("group_id"),
        "group_index": of.get("group_index"),
        "backend": of.get("backend", ""),
        "where": of["where"],
        "attempt": of["attempt"],
        "created_at": of.get("created_at", ""),
        "collected_at": _utc(of.get("collected")),
        "removed_at": _utc(of.get("removed")),
        "started_at": _utc(started),
        "ended_at": _utc(of.get("ended")),
        "duration_seconds": round(max(until - started, 0.0), 3) if started and until else None,
    }


def _utc(when: float | None) -> str | None:
    return keys.format_utc(when) if when else None


def emulation_of(job: JobRecord) -> str | None:
    """Return what replaces a job's accelerator on this machine: "emulated", "on CPU"; None where it is real."""
    if job.accelerator == "cpu" or not registry.is_here(job.backend):
        return None
    kind = _kind_of(job.accelerator)
    if kind == "gpu" and locate.is_here(job):
        row = locate.local().queue.jobs([job.job_id]).get(job.job_id)
        return "on CPU" if row is not None and not row.gpus else None
    return "emulated" if kind == "tpu" else None


@functools.cache
def _kind_of(accelerator: str) -> str:
    from kinetic import _hardware as hardware

    try:
        return hardware.place(accelerator).kind
    except KineticError:  # of another version of kinetic
        return ""


def place_of(job: JobRecord) -> str:
    """Return where a job runs, for humans; another machine by the name that its record in the store has."""
    if not registry.is_here(job.backend):
        return cluster_of(vars(job))
    if locate.is_here(job):
        return "this machine"
    if job.host in {None, "", locate.machine()}:
        return "another home of this machine"
    return f"host {_recorded(job).get('machine') or job.host}"


def cluster_of(fields: Mapping[str, Any]) -> str:
    """Return which cluster, and where in it, the fields of a record name."""
    project, cluster = fields.get("project"), fields.get("cluster_name")
    where = f"{project}/{cluster}" if project else fields.get("context") or cluster
    return f"{fields.get('backend')} {where}/{fields.get('namespace')}"


def _place_in_history(page: dict[str, Any]) -> str:
    if not registry.is_here(page.get("backend", registry.HERE.name)):
        return cluster_of(page)
    return "this machine" if page.get("host") in {None, locate.machine()} else f"host {page.get('host')}"
