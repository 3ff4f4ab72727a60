"""BatchHandle: many jobs as one live object; and how to find a batch again."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from kinetic._batches import collection, display, driver, removal, state
from kinetic._batches.collection import completions, detaching
from kinetic._batches.state import Batch, Poll
from kinetic._config import target as settings
from kinetic._jobs import environment, job_list, locate
from kinetic._jobs.handle import JobHandle, R, no_attribute
from kinetic._jobs.locate import Untrusted, of_another_version, set_aside, untrusted_warnings
from kinetic._jobs.wait import check_flags, seconds_to_wait
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic._wire import keys
from kinetic._wire.records import Group
from kinetic.errors import BatchNotFoundError, JobTimeoutError, KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

_CHECK_SECONDS = 1.0  # between two looks whether an await was cancelled
_ID_PREFIX = re.compile(r"g(r(p(-[0-9a-f]{0,8})?)?)?")


_OTHER_NAMES = {  # as of a job's handle, see there
    **dict.fromkeys(("get", "result", "outputs"), "results()"),
    **dict.fromkeys(("kill", "terminate", "stop"), "cancel()"),
    "id": "group_id",
    "join": "wait()",
    "status": "statuses(), status_counts() or summary()",
    "retry": "retry_failed()",
    **dict.fromkeys(("ready", "done"), "summary()"),
}


@tracebacks.hides_frames_of_methods
@dataclass
class BatchHandle(Batch[R]):
    """A collection of submitted jobs: observe it, collect from it, end it.

    Made by ``run_async_map`` or by ``attach_batch``. Everything can be called from several threads.

    Attributes:
        group_id: E.g. "grp-a1b2c3d4".
        name: As the user calls it, or None.
        tags: The user's own strings.
        jobs: For each input the handle of its latest attempt; None while it was not submitted.
    """

    def __hash__(self) -> int:
        """Let a handle be the key of a dict, like that of a job."""
        return hash(self.group_id)

    def statuses(self) -> list[tuple[int, JobStatus]]:
        """Return (index, status) of each submitted job, in the order of the inputs."""
        tracker = self._refreshed()
        found = ((index, tracker.status(index)) for index in range(len(self.jobs)))
        return [(index, status) for index, status in found if status is not None]

    def status_counts(self) -> dict[str, int]:
        """Return how many submitted jobs have each status, by its name."""
        return dict(Counter(status.value for _, status in self.statuses()))

    def summary(self) -> dict[str, int]:
        """Return how many inputs are in which state; also after the batch was collected.

        Returns:
            Counts of the states that occur, e.g. {"succeeded": 8, "failed": 1, "running": 1}. Further ones are
            "cancelled", "removed" (by hand), "waiting", "to be tried again", "refused" and "not submitted".
        """
        counts = state.count_states(self._refreshed(), self._submission_errors)
        return {state: counts[state] for state in state.STATES if counts[state]}

    def wait(self, *, timeout: float | None = None) -> None:
        """Wait until every job has ended and nothing more will be submitted.

        Args:
            timeout: Seconds; None means no limit.

        Raises:
            JobTimeoutError: The time is over; the jobs keep running (also a TimeoutError).
        """
        with detaching(self), display.show_progress(self) as shown:
            for _ in completions(self, timeout, shown):
                pass
        if self._poll.attached:  # else it was said when it was submitted
            collection.warn_of_submission_failures(self)

    def as_completed(self, *, poll_interval: float = 5.0, timeout: float | None = None) -> Iterator[JobHandle[R]]:  # noqa: ARG002 - documented
        """Yield jobs as they end, in that order, also while inputs are still being submitted.

        With retries, the attempt that counts is yielded: the one that succeeded, or the last one.

        Args:
            poll_interval: Accepted for compatibility: ends are watched, not polled.
            timeout: Seconds; None means no limit.

        Raises:
            JobTimeoutError: The time is over; the jobs keep running (also a TimeoutError).
        """
        if self._poll.attached:  # as in ``wait``
            collection.warn_of_submission_failures(self)
        with detaching(self):  # Ctrl-C in the caller's own loop does not come here
            for index in completions(self, timeout):
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
            timeout: Seconds to wait; None means no limit. The jobs keep running when the time is over.
            ordered: In the order of the inputs; otherwise in the order in which the jobs ended.
            cleanup: Remove the resources and artifacts of jobs that succeeded, once every value is in memory. Failed
                ones keep theirs, so that their logs can be read; the manifest and all outputs stay. Nothing is
                removed where this raises.
            return_exceptions: Put exceptions in the places of jobs that failed, instead of raising.

        Raises:
            BatchError: Some jobs failed, or were never submitted.
            JobTimeoutError: The time is over (also a TimeoutError).
        """
        check_flags(ordered=ordered, cleanup=cleanup, return_exceptions=return_exceptions)
        return collection.results(
            self, timeout=timeout, ordered=ordered, cleanup=cleanup, return_exceptions=return_exceptions
        )

    def add_done_callback(self, fn: Callable[[BatchHandle[R]], object]) -> None:
        """Call a function with this handle once every job has ended; like that of a job, on a thread of this process.

        Args:
            fn: What it raises is logged, and nothing more.
        """
        from kinetic._jobs import done_callbacks  # few programs need it, as below

        done_callbacks.call(fn, self, done_callbacks.End(self.group_id, self._until_end))

    @tracebacks.hides_frames
    def __await__(self) -> Generator[Any, None, list[R]]:
        """Wait in a coroutine, and return or raise what ``results()`` does; cancelling the await only detaches."""
        from kinetic._jobs import done_callbacks

        end, report = done_callbacks.End(self.group_id, self._until_end), partial(collection.report_detached, self)
        return (yield from done_callbacks.Value(end, self.results, report).__await__())

    def _until_end(self, check: Callable[[], object]) -> None:
        while True:
            with contextlib.suppress(JobTimeoutError):
                for _ in completions(self, _CHECK_SECONDS):
                    pass
                return
            check()

    def failures(self) -> list[JobHandle[R]]:
        """Return the handles of jobs that failed: as ``results()`` found them, if it has been called, else now."""
        if self._cached_failures is not None:
            return list(self._cached_failures)
        failed = [index for index, status in self.statuses() if status is JobStatus.FAILED]
        return [job for index in failed if (job := self.jobs[index]) is not None]

    @property
    def submission_failures(self) -> dict[int, Exception]:
        """Why inputs could not be submitted, by index; their places in ``jobs`` are None. A copy."""
        return dict(self._submission_errors)

    def cancel(self) -> None:
        """Cancel every job that has not ended, submit nothing more, and try nothing again; artifacts stay."""
        removal.cancel(self)

    def cleanup(self, *, k8s: bool = True, gcs: bool = True) -> None:
        """Remove all jobs, and with ``gcs`` the manifest as well; outputs always stay.

        Args:
            k8s: Remove the resources of each job; a running job is ended.
            gcs: Remove the artifacts of each job, and what makes the batch findable: it cannot be attached afterwards.
        """
        check_flags(k8s=k8s, gcs=gcs)
        removal.cleanup(self, resources=bool(k8s), artifacts=bool(gcs))

    def retry_failed(self) -> BatchHandle[R]:
        """Run again what failed, and only that, each once more, with the code of the submission; return this handle.

        Raises:
            BackendError: Another process drives this batch right now.
        """
        driver.retry_failed(self)
        return self

    if not TYPE_CHECKING:  # as of a job's handle

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _OTHER_NAMES)

    def __repr__(self) -> str:
        """Return three lines: which batch, its state when this process looked last, and how to look now."""
        name = f", name={self.name!r}" if self.name else ""
        tracker, submitted = self._tracker, sum(job is not None for job in self.jobs)
        seen = state.summary_text(state.count_states(tracker, self._submission_errors)) if tracker is not None else ""
        now = f"kinetic batch status {self.group_id}" if self.group_id else "kinetic jobs list"
        return (
            f"BatchHandle(group_id={self.group_id!r}{name}, {len(self.jobs)} inputs)\n"
            f"  when last seen: {seen or f'{submitted} submitted'}\n"
            f"  now: {now}"
        )

    def _ipython_display_(self) -> None:
        """Show a grid of states in a notebook, which changes until all have ended; elsewhere what follows is shown."""
        from kinetic._output import notebook  # only in notebooks

        if not notebook.is_kernel() or not self.group_id:
            raise NotImplementedError
        notebook.live_cells(self.group_id).show(lambda: display.draw(self), lambda: display.PAUSE_SECONDS)

    def _repr_html_(self) -> str:
        """Return the grid for pages that do not change."""
        return display.html_of(self)


def handle_of_group(group: Group) -> BatchHandle:
    """Build the handle of a batch from its manifest, without a tracker."""
    return BatchHandle(
        group_id=group.group_id,
        name=group.group_name,
        tags=dict(group.tags),
        jobs=[None] * group.total_expected,
        _bucket_name=str(group.handle.get("bucket_name", "")),
        _project=str(group.handle.get("project", "")),
    )


@tracebacks.hides_frames
def attach_batch(
    group_id: str,
    project: str | None = None,
    cluster: str | None = None,
    poll_interval: float = 10.0,
    poll_timeout: float | None = None,
    *,
    resume: bool = False,
) -> BatchHandle:
    """Rebuild the handle of a batch from its manifest.

    Args:
        group_id: E.g. "grp-a1b2c3d4"; or a unique beginning of it, or the name that only one batch has.
        project: Google Cloud project; falls back to KINETIC_PROJECT, the profile, then GOOGLE_CLOUD_PROJECT.
        cluster: GKE cluster; falls back to KINETIC_CLUSTER, then the profile.
        poll_interval: Seconds between two checks who submits, while inputs are still missing.
        poll_timeout: Seconds after which only what was submitted is waited for; None means no limit.
        resume: Take over the submission of what is missing, if the process that submitted it is gone.

    Returns:
        A handle, with None in ``jobs`` for inputs that were not submitted.

    Raises:
        BatchNotFoundError: There is no batch with this id or name (also a FileNotFoundError).
        CredentialsError: ``resume`` needs values of captured variables, or a key, that this machine does not have.
        OptionError: This is the id of a job, or several batches match; or the batch cannot be resumed.
    """
    if not isinstance(group_id, str):
        keys.check_group_id(group_id)
    check_flags(resume=resume)
    interval = seconds_to_wait(poll_interval, "poll_interval") or 0.0
    poll = Poll(interval, seconds_to_wait(poll_timeout, "poll_timeout"), attached=True)
    stores = job_list.stores(settings.resolve(project=project, cluster=cluster))
    group, store = find_batch(group_id, stores)
    batch = attached_handle(group, store, poll)
    batch._refreshed()
    if resume:
        driver.resume_batch(batch, group)
        return batch
    missing = sum(job is None for job in batch.jobs) - len(batch._submission_errors)
    if missing > 0:
        output.warn(f"{missing} of {len(batch.jobs)} inputs of {group.group_id} were not submitted so far")
    return batch


def attached_handle(group: Group, store: Store, poll: Poll | None = None) -> BatchHandle:
    """Build a handle that only watches; it has not looked yet."""
    batch = handle_of_group(group)
    state.connect(batch, group, store)
    batch._poll = poll or Poll(attached=True)
    return batch


def find_batch(word: str, stores: Sequence[Store]) -> tuple[Group, Store]:
    """Return the batch with this id, the only one whose id starts so, or the only one with this name; and its store.

    Raises:
        BatchNotFoundError: There is none.
        OptionError: It is empty or the id of a job, or several batches match.
    """
    is_name = _ID_PREFIX.fullmatch(word) is None
    if is_name and keys.is_made(word):  # the id of a job
        keys.check_group_id(word)
    look = _with_name if is_name else _with_id
    if (found := look(stores, word)) is not None:
        return found
    found, elsewhere = job_list.look_elsewhere(stores, lambda store: look([store], word))
    if found is not None:
        return found
    if not word:
        keys.check_group_id(word)
    raise BatchNotFoundError(
        f"no batch has the name {word!r}" if is_name else f"no batch {word} was found",
        why=f"looked in {' and '.join(store.url for store in (*stores, *elsewhere))}; "
        "a batch that was cleaned up can no longer be attached",
        next="kinetic batch list",
    )


def _with_id(stores: Sequence[Store], word: str) -> tuple[Group, Store] | None:
    if keys.is_group_id(word):
        for store in reversed(stores):  # this machine's own needs no network
            with contextlib.suppress(BatchNotFoundError):
                return state.load_group(store, word), store
        return None
    found = job_list.everywhere(stores, lambda store: [name for name in ids(store) if name.startswith(word)])
    one = keys.only_match(word, [name for name, _ in found], "ids of batches")
    return (state.load_group(found[0][1], one), found[0][1]) if one else None


def _with_name(stores: Sequence[Store], name: str) -> tuple[Group, Store] | None:
    of_others: list[Untrusted] = []
    found = job_list.everywhere(stores, partial(list_groups, of_others=of_others)) if name else []
    found = [(group, store) for group, store in found if group.group_name == name]
    if len(found) > 1:
        from kinetic._jobs import find  # to submit, nothing is looked for

        newest_first = sorted((group for group, _ in found), key=lambda group: group.created, reverse=True)
        raise find.ambiguous_name(name, [group.group_id for group in newest_first], "batches", "kinetic batch list")
    return _unless_none(found[0] if found else None, of_others)


def _unless_none(found: tuple[Group, Store] | None, of_others: list[Untrusted]) -> tuple[Group, Store] | None:
    """Return what was looked for; batches of colleagues, which may be it, are only named where nothing was found."""
    if found is None:
        _warn_of(of_others)
    return found


def _warn_of(untrusted: list[Untrusted]) -> None:
    for line in untrusted_warnings(untrusted, "batch"):
        output.warn(line)


def newest_batch(stores: Sequence[Store]) -> tuple[Group, Store] | None:
    """Return the batch that was made last and its store, or None where there is none; see ``job_list.newest``."""
    last = _newest_of(stores)
    for store, noted in environment.noted_stores(stores):
        if last is not None and noted < last[0].created:
            break
        try:
            last = max(filter(None, (last, _newest_of([store]))), key=_created, default=None)
        except KineticError as error:
            job_list.warn_unread(store, error)
    return last


def _newest_of(stores: Sequence[Store]) -> tuple[Group, Store] | None:
    of_others: list[Untrusted] = []
    groups = ((group, store) for store in stores for group in list_groups(store, of_others))
    return _unless_none(max(groups, key=_created, default=None), of_others)


def _created(found: tuple[Group, Store]) -> float:
    return found[0].created


def ids(store: Store) -> list[str]:
    """Return the batches of which something is stored."""
    return [name for name in store.folders(keys.GROUPS) if keys.is_group_id(name)]


def list_groups(store: Store, of_others: list[Untrusted] | None = None) -> Iterator[Group]:
    """Yield the batches of a store; one that cannot be read is a warning, or of a colleague and in ``of_others``."""

    def read(name: str) -> Group | Untrusted | None:
        try:
            return state.read_manifest(store, name)
        except BatchNotFoundError:  # being made or removed this moment
            return None
        except KineticError as error:
            if (other := of_another_version(name, error)) is None:
                output.warn(f"{name} is not listed: {error.what}")
            return other

    found = locate.in_order([(store.url, partial(read, name)) for name in ids(store)])
    yield from (each for each in found if each is not None and not isinstance(each, Untrusted))
    untrusted = [each for each in found if isinstance(each, Untrusted)]
    _warn_of(untrusted if of_others is None else set_aside(untrusted, of_others))
