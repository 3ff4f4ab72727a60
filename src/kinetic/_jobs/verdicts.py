"""What a job's status is, decided in one place from two witnesses: the store, which is the truth, and the backend."""

from __future__ import annotations

from kinetic._backends.protocol import Sighting
from kinetic._wire import outcome as outcomes
from kinetic._wire.outcome import Outcome
from kinetic.job_status import JobStatus


def verdict(
    *,
    outcome: Outcome | None,
    sighting: Sighting | None,
    removed: bool = False,
    attempted: bool = False,
    elsewhere: bool = False,
) -> JobStatus:
    """Decide.

    Args:
        outcome: What the store says, read after the sighting if the sighting was final or absent.
        sighting: What the backend sees; None when it knows nothing of the job.
        removed: kinetic itself removed the job: there is a tombstone.
        attempted: An attempt had begun: there is a Note.
        elsewhere: The job belongs to another machine that shares the store, and cannot be seen from here.

    Returns:
        The status.

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
