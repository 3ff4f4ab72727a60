"""The status of jobs, read in one place, of any number at once, from two witnesses: the store, then the backend.

The store is the truth, so it is read first: a job that has an outcome needs no backend. Of the others each backend is
asked once, whatever their number. What neither sees now may have ended in between, so the store is read once more.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kinetic._backends.protocol import Sighting
from kinetic._jobs import history, index, locate, logs, results
from kinetic._wire import attempt as notes
from kinetic._wire import keys
from kinetic._wire import outcome as outcomes
from kinetic._wire.attempt import AttemptNote
from kinetic._wire.outcome import Outcome
from kinetic.errors import IntegrityError, KeyMissingError, KineticError, StoreUnreachableError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Diagnosis
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import JobRecord

_NOTES = 10  # so many are tried: others than ours may have put something there
_CODES = {"": "lost", "unknown": "lost", "failed": "job-failed"}  # of a cluster, where errors have other ones
_LOG_BYTES = 8192
_LOG_LINES = 20  # of the log of a job whose runner was killed: as many as a runner puts into its verdict


@dataclass(frozen=True)
class Snapshot:
    """What was seen of a job at one moment.

    Attributes:
        status: PENDING where it could not be judged at all: such a job must not be taken for one that has ended.
        outcome: From the store, or None.
        sighting: From the backend, or None.
        past: The job's page of the history, or None where kinetic did not remove it.
        error: What kept us from seeing more, or None.
        is_elsewhere: Only another machine sees how it runs.
    """

    status: JobStatus
    outcome: Outcome | None = None
    sighting: Sighting | None = None
    past: dict[str, Any] | None = None
    error: Exception | None = None
    is_elsewhere: bool = False

    @property
    def reason(self) -> str:
        """One line: what a waiting job waits for, or how one failed; "" when there is nothing to say."""
        if (error := self.error) is not None:
            return (
                error.what if isinstance(error, KineticError) else f"it cannot be read: {type(error).__name__}: {error}"
            )
        outcome = self.outcome
        if outcome is None:
            if self.sighting is not None and self.sighting.reason:
                return self.sighting.reason
            if self.is_elsewhere:
                return "only the machine that runs it can see it"
            return "its process ended without a result" if self.status is JobStatus.FAILED else ""
        if outcome.succeeded:
            return ""
        if outcome.status == outcomes.CANCELLED:
            return "it was cancelled"
        message, *_ = str(outcome.error.get("message", "")).splitlines() or [""]
        kind = outcome.error.get("type")
        if outcome.cause == "serialization":
            return f"it returned a {outcome.error.get('value_type')} that cannot be pickled"
        return f"{kind}: {message}".removesuffix(": ") if kind else message


def observe(job: JobRecord) -> Snapshot:
    """Look at one job, and ask its backend why it failed if it left no outcome.

    Raises:
        KineticError: It cannot be judged: its outcome is damaged, its store or its backend cannot be reached.
    """
    (seen,) = observe_many([job], thorough=True)
    if seen.error is not None:
        raise seen.error
    return seen


def observe_many(jobs: Sequence[JobRecord], *, from_index: bool = False, thorough: bool = False) -> list[Snapshot]:
    """Look at jobs, in their order. One that cannot be judged does not hide the others: its snapshot has the error.

    Args:
        jobs: The jobs.
        from_index: Take outcomes that were read before from the index; they lack logs and tracebacks.
        thorough: Ask the backend why a job failed that left no outcome: several questions for each of them.
    """
    present = [job for job in jobs if past_of(job) is None]  # one that is history needs nothing
    found, listed = _outcomes_by_index(present) if from_index else ({job.job_id: _outcome(job) for job in present}, {})
    seen = _ask_backends([job for job in present if found[job.job_id] is None and locate.can_be_seen(job)])
    return [
        listed.get(job.job_id) or _judge(job, found.get(job.job_id), seen.get(job.job_id), thorough=thorough)
        for job in jobs
    ]


def value_since(store: Store, job_id: str) -> float | None:
    """Return when a job ended that left a value; 0.0 if it cannot be read, so it may be one; None if it failed."""
    try:  # nothing but its age is told, so it need not be verified
        outcome = index.of(store).outcome(job_id) or results.read_outcome_of(store, job_id, lambda: None)
    except KineticError:
        return 0.0
    if outcome is None:
        return 0.0
    return (outcome.ended or 0.0) if outcome.succeeded else None


def decide(
    *,
    outcome: Outcome | None,
    sighting: Sighting | None,
    removed: bool = False,
    attempted: bool = False,
    elsewhere: bool = False,
) -> JobStatus:
    """Decide what a job's status is.

    Args:
        outcome: What the store says, read after the sighting if the sighting was final or absent.
        sighting: What the backend sees; None when it knows nothing of the job.
        removed: kinetic itself removed the job: it has a page of the history.
        attempted: An attempt had begun: there is a Note.
        elsewhere: The job belongs to another machine that shares the store, and cannot be seen from here.

    | removed | outcome   | sighting | else      | status                                          |
    |---------|-----------|----------|-----------|-------------------------------------------------|
    | yes     |           |          |           | NOT_FOUND                                       |
    | no      | cancelled |          |           | NOT_FOUND                                       |
    | no      | succeeded |          |           | SUCCEEDED, whatever became of the process       |
    | no      | failed    |          |           | FAILED                                          |
    | no      | none      | seen     |           | as seen                                         |
    | no      | none      | none     | elsewhere | RUNNING once attempted, else PENDING; never FAILED |
    | no      | none      | none     | attempted | FAILED: it began, and nothing of it is left     |
    | no      | none      | none     |           | NOT_FOUND: it was never launched                |
    """
    if removed or (outcome is not None and outcome.status == outcomes.CANCELLED):
        return JobStatus.NOT_FOUND
    if outcome is not None:
        return JobStatus.SUCCEEDED if outcome.succeeded else JobStatus.FAILED
    if sighting is not None:
        return sighting.status
    if elsewhere:
        return JobStatus.RUNNING if attempted else JobStatus.PENDING
    return JobStatus.FAILED if attempted else JobStatus.NOT_FOUND


def past_of(job: JobRecord) -> dict[str, Any] | None:
    """Return the page of the history that a record was made from, or that its own collection wrote; else None."""
    return job._past  # noqa: SLF001 - a field of the record that no page of it has


def _outcome(job: JobRecord) -> Outcome | Exception | None:
    """Read what the store says of a job, or why that cannot be used."""
    try:
        return results.read_outcome(job)
    except KineticError as error:
        return error


def _outcomes_by_index(
    jobs: Sequence[JobRecord],
) -> tuple[dict[str, Outcome | Exception | None], dict[str, Snapshot]]:
    """Return how jobs ended, from the index or else from the store; and the snapshots of those that are judged by that.

    A job that has an outcome and no page of the history is what its outcome says. Which have one, a listing tells.
    """
    by_store: dict[str | None, list[JobRecord]] = {}
    for job in jobs:
        by_store.setdefault(job.store, []).append(job)
    found: dict[str, Outcome | Exception | None] = {}
    judged: dict[str, Snapshot] = {}
    for theirs in by_store.values():
        try:
            store = locate.store_of(theirs[0])
        except KineticError as error:  # of a kind that this kinetic does not know
            found |= dict.fromkeys((job.job_id for job in theirs), error)
            continue
        known, removed = index.of(store), history.page_ids(store)
        for job in theirs:
            told: Outcome | Exception | None = known.outcome(job.job_id)
            if told is None and isinstance(told := _outcome(job), Outcome):
                known.note_outcome(job.job_id, told)
            found[job.job_id] = told
            if isinstance(told, Outcome) and job.job_id not in removed:
                judged[job.job_id] = Snapshot(decide(outcome=told, sighting=None), told)
        known.write(functools.partial(history.job_ids, store))
    return found, judged


def _ask_backends(jobs: Sequence[JobRecord]) -> dict[str, Sighting | Exception]:
    """Ask each backend about its jobs, once; one that does not answer hides no jobs of others."""
    by_backend: dict[Backend, list[JobRecord]] = {}
    seen: dict[str, Sighting | Exception] = {}
    for job in jobs:
        try:
            by_backend.setdefault(locate.backend_of(job), []).append(job)
        except KineticError as error:  # one that this kinetic does not know, or that nothing here leads to
            seen[job.job_id] = error
    for backend, theirs in by_backend.items():
        try:
            seen |= backend.observe([job.job_id for job in theirs])
        except KineticError as error:
            if backend.is_here:
                raise
            seen |= dict.fromkeys((job.job_id for job in theirs), error)
    return seen


def _judge(
    job: JobRecord, outcome: Outcome | Exception | None, sighting: Sighting | Exception | None, *, thorough: bool
) -> Snapshot:
    """Put together what was read and seen of a job. Whatever is wrong with it costs its own row a sentence."""
    if (past := past_of(job)) is not None:
        return Snapshot(JobStatus.NOT_FOUND, past=past)
    if isinstance(sighting, Exception):
        return Snapshot(JobStatus.PENDING, error=sighting)
    try:
        return _put_together(job, outcome, sighting, thorough=thorough)
    except Exception as error:  # noqa: BLE001 - as above
        return Snapshot(JobStatus.PENDING, None, sighting, error=error)


def _put_together(
    job: JobRecord, outcome: Outcome | Exception | None, sighting: Sighting | None, *, thorough: bool
) -> Snapshot:
    if outcome is None and sighting is not None and not sighting.status.is_final:
        with contextlib.suppress(StoreUnreachableError):  # what the cluster says of it stays true
            sighting = with_its_claim(job, locate.backend_of(job), sighting)
        return Snapshot(decide(outcome=None, sighting=sighting), None, sighting)
    if outcome is None:
        outcome = _outcome(job)  # the second look: it may have come in between
    store = locate.store_of(job)
    if thorough and outcome is None and sighting is not None and sighting.status is JobStatus.FAILED:
        backend = locate.backend_of(job)
        sighting, found = _with_a_reason(backend, sighting)
        outcome = _unwritten(backend, store, sighting, found) if sighting.reason else None
    error = outcome if isinstance(outcome, Exception) else None
    outcome = None if isinstance(outcome, Exception) else outcome
    past = history.read_page(store, job.job_id)
    attempt = begun(job) if outcome is None else {}
    status = decide(outcome=outcome, sighting=sighting, removed=past is not None, **attempt)
    is_elsewhere = outcome is None and not status.is_final and not locate.can_be_seen(job)
    return Snapshot(status, outcome, sighting, past, error, is_elsewhere)


def with_its_claim(job: JobRecord, backend: Backend, sighting: Sighting) -> Sighting:
    """Say that a job runs whose attempt is claimed: a cluster counts the pods that are ready a second later.

    A claim outlives a machine that lost its power, so the pod that claimed must still be there.
    """
    if backend.is_here or sighting.status is not JobStatus.PENDING:
        return sighting
    note = last_note(job)
    if note is None or "ended" in note.details:
        return sighting
    try:
        pod = backend.debug_addresses(sighting.name, hosts=[0]).get(0)
    except KineticError:  # we may not look at pods
        return sighting
    # The note has the pod's hostname; Kubernetes appends six characters to it in the names of indexed pods.
    runs = pod is not None and pod.machine.startswith(str(note.details.get("pod") or note.machine))
    return replace(sighting, status=JobStatus.RUNNING, reason="", started=note.started) if runs else sighting


def begun(job: JobRecord) -> Mapping[str, bool]:
    """Return whether a job began, and whether on another machine: a batch's child may have been launched on both."""
    note = last_note(job)
    elsewhere = not locate.can_be_seen(job)
    if note is not None and not elsewhere:
        elsewhere = note.details.get("machine_id") not in {None, "", locate.machine()}
    return {"attempted": note is not None, "elsewhere": elsewhere}


def last_note(job: JobRecord) -> AttemptNote | None:
    """Return what is known of a job's last attempt; None while none began. What cannot be verified does not count."""
    store = locate.store_of(job)
    noted = keys.numbered(store.entries(keys.attempts(job.job_id)))
    key = locate.key_to_read(job) if noted else None
    for attempt, _ in reversed(noted[-_NOTES:]):
        with contextlib.suppress(KeyMissingError, IntegrityError):
            return notes.read(store, job.job_id, attempt, key)
    return None


def _with_a_reason(backend: Backend, sighting: Sighting) -> tuple[Sighting, Diagnosis | None]:
    """Ask the backend why a job failed that left no outcome."""
    found = None
    if not backend.is_here:
        with contextlib.suppress(KineticError):
            found = backend.explain(sighting.name)
    if found is None:
        return sighting, None
    words = found.what.removeprefix(f"{sighting.name}: ") + (f" ({found.why})" if found.why else "")
    return replace(sighting, reason=words), found


def _unwritten(backend: Backend, store: Store, sighting: Sighting, found: Diagnosis | None) -> Outcome:
    """Return the outcome of a job that left none: its store could not take one, or its runner was killed.

    In which phase it was is not known; its last lines are, as long as the backend has them.
    """
    job_id, log = sighting.name, ""
    with contextlib.suppress(KineticError):
        attempt = logs.noted(store, job_id) if sighting.attempt is None else sighting.attempt
        log = logs.tail(logs.keep_what_is_left(backend, store, job_id, attempt=attempt), _LOG_LINES, most=_LOG_BYTES)
    error = {"message": sighting.reason, "next": found.next if found else "", "log": log}
    return Outcome(
        job_id=job_id,
        status=outcomes.FAILED,
        attempt=sighting.attempt or 0,
        cause=_CODES.get(found.code, found.code) if found is not None else "lost",
        phase="",
        error={name: text for name, text in error.items() if text},
        started=sighting.started,
        ended=sighting.ended,
        witness="observer",
    )
