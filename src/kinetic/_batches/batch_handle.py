"""BatchHandle: many jobs as one live object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from kinetic._batches import as_completed as batch_as_completed
from kinetic._batches import collection, display, removal, state
from kinetic._batches.as_completed import Detaching
from kinetic._batches.batch import Batch
from kinetic._jobs.handle import JobHandle
from kinetic._output import tracebacks
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from kinetic._wire.records import Group

    R = TypeVar("R", default=Any)  # as in JobHandle
else:
    from typing import TypeVar

    R = TypeVar("R")


@tracebacks.hides_frames_of_methods
@dataclass
class BatchHandle(Batch[R]):
    """A collection of submitted jobs: observe it, collect from it, end it.

    Made by ``run_async_map`` or by ``attach_batch``. Everything can be called from several threads.

    Attributes:
        group_id: E.g. "grp-a1b2c3d4".
        name: As the user calls it, or None.
        tags: The user's own words.
        jobs: For each input the handle of its latest attempt; None while it was not submitted.
    """

    def statuses(self) -> list[tuple[int, JobStatus]]:
        """Return (index, status) of each submitted job, in the order of the inputs."""
        tracker = self._refreshed()
        found = ((index, tracker.status(index)) for index in range(len(self.jobs)))
        return [(index, status) for index, status in found if status is not None]

    def status_counts(self) -> dict[str, int]:
        """Return how many submitted jobs have each status, by its name."""
        return dict(Counter(status.value for _, status in self.statuses()))

    def summary(self) -> dict[str, int]:
        """Return how many inputs are in which state, in words: also after the batch was collected.

        Returns:
            Counts of the states that occur, e.g. {"succeeded": 8, "failed": 1, "running": 1}. Further ones are
            "cancelled", "removed" (by hand), "waiting", "to be tried again", "refused" and "not submitted".
        """
        counts = state.count_states(self._refreshed(), self._refused())
        return {state: counts[state] for state in state.STATES if counts[state]}

    def wait(self, *, timeout: float | None = None) -> None:
        """Wait until every job has ended and nothing more will be submitted.

        Args:
            timeout: Seconds; None waits for ever.

        Raises:
            JobTimeoutError: The seconds are over; the jobs go on (also a TimeoutError).
        """
        with Detaching(self), display.show_progress(self) as shown:
            for _ in batch_as_completed.completions(self, timeout, shown):
                pass
        batch_as_completed.tell_of_submission_failures(self)

    def as_completed(self, *, poll_interval: float = 5.0, timeout: float | None = None) -> Iterator[JobHandle[R]]:  # noqa: ARG002 - documented
        """Yield jobs as they end, in that order, also while inputs are still being submitted.

        With retries, the attempt that counts is yielded: the one that succeeded, or the last one.

        Args:
            poll_interval: Accepted for compatibility: ends are told, not polled.
            timeout: Seconds; None waits for ever.

        Raises:
            JobTimeoutError: The seconds are over; the jobs go on (also a TimeoutError).
        """
        with Detaching(self):  # Ctrl-C in the caller's own loop does not come here
            for index in batch_as_completed.completions(self, timeout):
                job = self.jobs[index]
                if job is not None:
                    yield job

    @overload
    def results(
        self,
        *,
        timeout: float | None = None,
        ordered: bool = True,
        cleanup: bool = True,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def results(
        self,
        *,
        timeout: float | None = None,
        ordered: bool = True,
        cleanup: bool = True,
        return_exceptions: bool,
    ) -> list[R | BaseException]: ...
    def results(
        self,
        *,
        timeout: float | None = None,
        ordered: bool = True,
        cleanup: bool = True,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Wait for all jobs and return their values.

        Args:
            timeout: Seconds to wait; None waits for ever. The jobs go on when they are over.
            ordered: In the order of the inputs; otherwise in the order in which the jobs ended.
            cleanup: Remove the resources and artifacts of jobs that succeeded, once every value is in memory. Failed
                ones keep theirs, so that their logs can be read; the manifest and all outputs stay.
            return_exceptions: Put exceptions in the places of jobs that failed, instead of raising.

        Raises:
            BatchError: Some jobs failed, or were never submitted.
            JobTimeoutError: The seconds are over (also a TimeoutError).
        """
        return collection.results(
            self, timeout=timeout, ordered=ordered, cleanup=cleanup, return_exceptions=return_exceptions
        )

    def failures(self) -> list[JobHandle[R]]:
        """Return the handles of jobs that failed: as ``results()`` found them, if it has been called, else now."""
        if self._cached_failures is not None:
            return list(self._cached_failures)
        failed = [index for index, status in self.statuses() if status is JobStatus.FAILED]
        return [job for index in failed if (job := self.jobs[index]) is not None]

    @property
    def submission_failures(self) -> dict[int, Exception]:
        """Why inputs could not be submitted, by index; their places in ``jobs`` are None. A copy."""
        return self._refused()

    def cancel(self) -> None:
        """Cancel every job that has not ended, submit nothing more, and try nothing again; artifacts stay."""
        removal.cancel(self)

    def cleanup(self, *, k8s: bool = True, gcs: bool = True) -> None:
        """Remove all jobs, and with ``gcs`` the manifest as well; outputs always stay.

        Args:
            k8s: Remove the resources of each job; one that runs is ended.
            gcs: Remove the artifacts of each job, and what makes the batch findable: it cannot be attached afterwards.
        """
        removal.cleanup(self, resources=k8s, artifacts=gcs)

    def retry_failed(self) -> BatchHandle[R]:
        """Run again what failed, and only that, each once more; return this handle.

        Raises:
            BackendError: Somebody else drives this batch right now.
        """
        from kinetic._batches import resume

        resume.retry_failed(self)
        return self

    def __repr__(self) -> str:
        """Return three lines: which batch, how it stood when this process looked last, and how to look now."""
        name = f", name={self.name!r}" if self.name else ""
        tracker, submitted = self._tracker, sum(job is not None for job in self.jobs)
        seen = state.summary_of(state.count_states(tracker, self._submission_errors)) if tracker is not None else ""
        now = f"kinetic batch status {self.group_id}" if self.group_id else "kinetic jobs list"
        return (
            f"BatchHandle(group_id={self.group_id!r}{name}, {len(self.jobs)} inputs)\n"
            f"  when last seen: {seen or f'{submitted} submitted'}\n"
            f"  now: {now}"
        )

    def _repr_html_(self) -> str:
        """Return a grid of statuses for notebooks."""
        return display.html_of(self)


def of_group(group: Group) -> BatchHandle:
    """Build the handle of a batch from its manifest; whoever asked for it gives it what shows how it goes."""
    return BatchHandle(
        group_id=group.group_id,
        name=group.group_name,
        tags=dict(group.tags),
        jobs=[None] * group.total_expected,
        _bucket_name=str(group.handle.get("bucket_name", "")),
        _project=str(group.handle.get("project", "")),
    )
