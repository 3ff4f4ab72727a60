"""A board for handles that somebody put together by hand: jobs without a batch's manifest, looked at one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinetic._batches.board import REMOVED, End
from kinetic._jobs import places, tombstones
from kinetic._jobs.status import observe_many
from kinetic._wire import outcome as outcomes
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot
    from kinetic._stores.protocol import Store
    from kinetic._wire.handles import JobRecord

_PAUSE_SECONDS = 0.05
_WORDS = {JobStatus.SUCCEEDED: outcomes.SUCCEEDED, JobStatus.FAILED: outcomes.FAILED}


class Loose:
    """What ``Board`` tells of a batch, of jobs that only a list holds together."""

    key: bytes | None = None

    def __init__(self, jobs: Sequence[JobHandle | None]) -> None:
        self._jobs = jobs
        self._found: dict[int, End] = {}
        self._statuses: dict[int, JobStatus] = {}
        self.attempts = [-1 if job is None else job.group_attempt or 0 for job in jobs]
        self.ended: list[int] = []
        self.stopped = True  # nothing more comes

    @property
    def store(self) -> Store:
        """The store of the first job."""
        return places.store_of(self._first())

    @property
    def backend(self) -> Backend:
        """The backend of the first job."""
        return places.backend_of(self._first())

    @property
    def unlaunched(self) -> list[int]:
        """None: a handle is of a job that was submitted."""
        return []

    @property
    def active(self) -> frozenset[int]:
        """The jobs that have not ended."""
        return frozenset(index for index, job in enumerate(self._jobs) if job is not None and index not in self._found)

    def status(self, index: int) -> JobStatus | None:
        """Return the status of a job as it was seen last, or None where there is none."""
        return self._statuses.get(index)

    def end(self, index: int) -> End | None:
        """Return how a job ended, or None."""
        return self._found.get(index)

    def may_launch(self, index: int) -> bool:  # noqa: ARG002 - as the board has it
        """Say no: nothing follows."""
        return False

    def is_final(self, index: int) -> bool:
        """Say whether a job has ended: nothing follows it."""
        return index in self._found

    def unseen(self) -> list[int]:
        """Return nothing: whoever has a handle has a job."""
        return []

    def record(self, index: int) -> JobRecord | None:
        """Return the handle that was given."""
        return self._jobs[index]

    def note_end(self, index: int, attempt: int, word: str) -> None:
        """Do nothing: indexes are those of the jobs' own batches here, and the next look finds it."""

    def forget_kept(self) -> None:
        """Do nothing: nothing was kept for them."""

    def refresh(self, *, whole: bool = False) -> None:  # noqa: ARG002 - as the board has it
        """Look at every job."""
        present = [(index, job) for index, job in enumerate(self._jobs) if job is not None]
        for (index, _), seen in zip(present, observe_many([job for _, job in present]), strict=True):
            self._statuses[index] = seen.status
            if seen.status.is_final and index not in self._found:
                at = seen.outcome.ended if seen.outcome is not None else None
                self._found[index] = End(_word_of(seen), at or time.time())
                self.ended.append(index)

    def wait(self, seconds: float, *, read: int | None = None) -> None:  # noqa: ARG002 - as the board has it
        """Wait for a moment."""
        first = next(iter(self.active), None)
        job = self._jobs[first] if first is not None else None
        if job is None:
            time.sleep(min(seconds, _PAUSE_SECONDS))
        else:
            places.backend_of(job).watch(job.job_id, seconds=min(seconds, _PAUSE_SECONDS * 4))

    def _first(self) -> JobHandle:
        return next(job for job in self._jobs if job is not None)


def _word_of(seen: Snapshot) -> str:
    """Say how a job ended; of one that was collected, how the history says it did."""
    if seen.status in _WORDS:
        return _WORDS[seen.status]
    told = str((seen.past or {}).get("status", "")).lower()
    if tombstones.is_collected(seen.past) and told in _WORDS.values():
        return told
    return outcomes.CANCELLED if seen.past is None else REMOVED
