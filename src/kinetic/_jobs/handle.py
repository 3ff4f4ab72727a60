"""JobHandle: a job as a live object over durable data."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

from kinetic._backends.registry import is_here
from kinetic._jobs import collect, locate, logs, results
from kinetic._jobs import wait as job_wait
from kinetic._jobs.status import Snapshot, decide, history_of, is_far, observe, observe_many, of_each
from kinetic._output import tracebacks
from kinetic._wire import records
from kinetic._wire.keys import format_utc
from kinetic._wire.records import JobRecord
from kinetic.errors import (
    JobCancelledError,
    KeyMissingError,
    KineticError,
    OptionError,
    OptionTypeError,
    ResultMissingError,
    StoreUnreachableError,
)
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path
    from subprocess import Popen

    from typing_extensions import TypeVar

    from kinetic._jobs.done_callbacks import End
    from kinetic._jobs.resource_usage import Usage
    from kinetic._jobs.wait import JobEvent
    from kinetic._wire.order import Predecessor
    from kinetic._wire.outcomes import Outcome
    from kinetic._wire.progress import Progress

    R = TypeVar("R", default=Any)  # what the function returns; by default, "JobHandle" alone says no more than before
else:
    from typing import TypeVar

    R = TypeVar("R")


class _NOTHING:  # a class, because a pickled handle must find the same one
    """Stands for a value that is not here yet."""


_OTHER_NAMES = {  # what futures and the handles of other libraries have, and how it is written here
    **dict.fromkeys(("get", "output"), "result()"),
    **dict.fromkeys(("stdout", "stderr"), "logs()"),
    **dict.fromkeys(("kill", "terminate", "stop"), "cancel()"),
    **dict.fromkeys(("cancelled", "state", "successful"), "status()"),
    "id": "job_id",
    "join": "wait()",
    "ready": "done()",
    "_condition": "job.wait(); concurrent.futures waits for its own futures only, and asyncio for these too",
}


def no_attribute(owner: object, name: str, others: Mapping[str, str]) -> AttributeError:
    """Return Python's error about an attribute that is not there, with what stands in its place, if anything does."""
    here = f"; here it is {others[name]} (docs/moving.md)" if name in others else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{here}", name=name, obj=owner)


@tracebacks.hides_frames_of_methods
@dataclass
class JobHandle(JobRecord, Generic[R]):
    """Durable description of a submitted job, and what can be done with it from any machine.

    Every field is a JSON value; functions and closures are not kept. ``to_dict()`` and ``from_dict()`` carry a handle
    anywhere. On this machine the cluster's fields are "local".

    Attributes:
        job_id: E.g. "cpu-train-20261120-143000-1a2b3c4".
        backend: "local", "gke" or "pathways".
        project: Google Cloud project.
        cluster_name: GKE cluster.
        zone: Google Cloud zone.
        namespace: Kubernetes namespace.
        bucket_name: Bucket, or folder, of the store.
        k8s_name: Name of the backend's resource.
        image_uri: Image, or "" when there is none.
        accelerator: As the user wrote it.
        func_name: Name of the function.
        display_name: For humans.
        created_at: UTC, ISO 8601, whole seconds, ending in Z.
        group_id: The batch it belongs to.
        group_kind: "map" for a batch.
        group_index: Its input's index.
        debug: It waits for a debugger.
        store: Address of the store.
        context: Kubeconfig context.
        host: The machine it runs on, for jobs on a machine.
        key_id: Which key seals its result.
        output_dir: Where its outputs are kept.
        group_attempt: Which attempt at its batch's input it is, from 0.
        name: The user's own name for it.
        tags: The user's own tags.
        after: The jobs and batches that it follows.
        command: The words of its command; None for a function. Of a batch with {name} for what its inputs replace.
    """

    # No fields, so that ``dataclasses.asdict`` gives JSON values only.
    _value = cast("Any", _NOTHING)
    _exception = cast("BaseException | None", None)
    _ended = cast("Snapshot | None", None)
    _left = cast("Snapshot | None", None)  # where a removal broke off
    _is_kept = False  # result() left the job where it is, so the next one may remove it

    @classmethod
    def from_job_context(cls, ctx: Any, backend_name: str, namespace: str, k8s_name: str) -> JobHandle:
        """Build a handle from any object with the attributes of a job's context.

        Args:
            ctx: Has job_id, project, cluster_name, zone, bucket_name, image_uri (may be None), accelerator, func,
                display_name and debug.
            backend_name: The backend.
            namespace: The Kubernetes namespace.
            k8s_name: Name of the backend's resource.
        """
        return cls(
            job_id=ctx.job_id,
            backend=backend_name,
            project=ctx.project,
            cluster_name=ctx.cluster_name,
            zone=ctx.zone,
            namespace=namespace,
            bucket_name=ctx.bucket_name,
            k8s_name=k8s_name,
            image_uri=ctx.image_uri or "",
            accelerator=ctx.accelerator,
            func_name=ctx.func.__name__,
            display_name=ctx.display_name,
            created_at=format_utc(time.time()),
            debug=bool(ctx.debug),
        )

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> JobHandle:
        """Rebuild a handle from plain data; keys that it does not know are passed over.

        Raises:
            TypeError: A mandatory field is missing.
        """
        return cls(**records.known(d))

    def __hash__(self) -> int:
        """Let a handle be the key of a dict, as futures are; equal ones name the same job."""
        return hash(self.job_id)

    def to_dict(self) -> dict[str, Any]:
        """Return the handle as JSON values, without the fields that are None."""
        return records.plain(self)

    def status(self) -> JobStatus:
        """Return the status of the job now.

        Raises:
            OptionError: The handle names no known backend (also a ValueError).
        """
        return observe(self).status

    def history(self) -> dict[str, Any]:
        """Return the state of the job or how it ended, also after it was collected or removed, for 30 days.

        Returns:
            JSON values under the names of ``kinetic jobs status --json``. ``status`` is how the job ended: SUCCEEDED or
            FAILED if it was collected, CANCELLED if it was cancelled. ``collected_at`` and ``removed_at`` are when it
            was collected or removed.
        """
        return history_of(self, observe_many([self])[0])

    def done(self) -> bool:
        """Return whether the job has ended."""
        return self.status().is_final

    def running(self) -> bool:
        """Return whether the function is executing now."""
        return self.status() is JobStatus.RUNNING

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait for the end of the job without collecting anything, and return its final status.

        Raises:
            JobTimeoutError: The time is over; the job keeps running (also a TimeoutError).
        """
        with job_wait.detaching(self):
            return job_wait.wait(self, timeout=timeout).status

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end and return the exception that ``result()`` would raise, or None; removes nothing.

        Raises:
            JobTimeoutError: The time is over; the job keeps running.
            CredentialsError: It failed, and the key without which its exception cannot be verified is not here.
        """
        if self._exception is None and self._value is _NOTHING:
            with job_wait.detaching(self):
                seen = job_wait.wait(self, timeout=timeout)
            if seen.outcome is None:
                return self._missing(seen)
            if seen.outcome.succeeded:
                return None
            locate.key_to_read(self)  # an exception is unpickled, too
            self._exception = results.failure_of(locate.store_of(self), seen.outcome, self.func_name)
        return self._exception

    def logs(self, follow: bool = False) -> str | None:
        """Return the whole log, "" while the job is pending; or print it as it grows until the job ends.

        The log of a collected job stays for 30 days, up to 10 MiB of its end.

        Args:
            follow: Print to stdout and return None.
        """
        job_wait.check_flags(follow=follow)
        if follow:
            with job_wait.detaching(self):
                job_wait.wait(self, follow=job_wait.to_stdout)
            return None
        return logs.text_of(logs.log_of(self))

    def log_lines(self, follow: bool = False) -> Iterator[str]:
        """Yield the lines of the log one by one, without line breaks; with ``follow``, until the job has ended.

        It needs no more memory than a line. Of a retried job, ``follow`` gives the lines of the newest attempt and of
        those that come after it. A loop that is left early leaves the job alone.

        Example:
            ``losses = [line for line in job.log_lines(follow=True) if line.startswith("loss")]``
        """
        job_wait.check_flags(follow=follow)
        is_live = follow and locate.past_of(self) is None
        with job_wait.detaching(self):
            found = (data for _, data in job_wait.follow_logs(self)) if is_live else logs.pieces_of(logs.log_of(self))
            yield from logs.lines_of(found)

    def events(self, timeout: float | None = None) -> Iterator[JobEvent]:
        """Yield how the job is now, and then each change of its status, attempt or reason, until it has ended.

        Args:
            timeout: Seconds for all of it; None means no limit.

        Raises:
            JobTimeoutError: The time is over; the job keeps running (also a TimeoutError).

        Example:
            ``next(event for event in job.events() if event.status is not kinetic.JobStatus.PENDING)``
        """
        with job_wait.detaching(self):
            yield from job_wait.events(self, timeout=timeout)

    def tail(self, n: int = 100) -> str:
        """Return exactly the last ``n`` lines of the log, "" while the job is pending; of the last 10 MiB at most."""
        if not hasattr(type(n), "__index__"):
            raise OptionTypeError(f"n={n!r} is not a whole number", next="job.tail(100)")
        if n.__index__() < 0:
            raise OptionError(f"n must be 0 or more, got {n}", next="job.tail(100)")
        return logs.tail(logs.log_of(self), n.__index__())

    def usage(self, attempt: int | None = None) -> Usage:
        """Return what the job used so far, or in all: CPU, memory, disk, GPUs and TPU chips of each host.

        It works while the job runs, afterwards, and once it was collected, for 30 days with fewer samples. On a
        cluster, what is returned of a running job is up to 10 s old, after ten minutes up to 30 s. A job that runs on
        another machine is seen once it has ended. Of a job that takes less than a second nothing is measured.

        Args:
            attempt: Which attempt, from 0; None means the last one that began. One that has not begun has no hosts.

        Raises:
            OptionError: The attempt is not a number from 0.
            IntegrityError: What is stored of it was changed.
            CredentialsError: The key without which it cannot be verified is not here.
        """
        from kinetic._jobs import resource_usage  # most handles are never asked

        return resource_usage.usage_of(self, attempt=attempt)

    def progress(self) -> Progress | None:
        """Return what the job's own code reported last with ``kinetic.progress``; None if it reported nothing.

        It works while the job runs, afterwards, and once it was collected, for 30 days. On this machine, that of a
        running job is half a second old at most; on a cluster up to 10 s, after ten minutes up to 30 s.

        Raises:
            IntegrityError: What is stored of it was changed.
            CredentialsError: The key without which it cannot be verified is not here.
        """
        from kinetic._jobs import activity  # most handles are never asked

        return activity.progress_of(self)

    def get_outputs(
        self, path: str | os.PathLike[str] = "", to: str | os.PathLike[str] | None = None, *, force: bool = False
    ) -> Path:
        """Copy files that the job wrote into its output folder to this machine, as ``kinetic outputs get`` does.

        It works while the job runs, and after it was collected or removed. Files that are there already with the same
        size and time are not copied again; each appears when it is complete.

        Args:
            path: A file or folder below the output folder; "" for all of it.
            to: The folder in which each file has its path below the output folder; None means ``outputs/JOB_ID`` below
                the current folder, which is sent with no job.
            force: Replace files there that differ.

        Returns:
            Where the file or folder is now: ``torch.load(job.get_outputs("model.pt"))``.

        Raises:
            DataMissingError: The job has written nothing there (also a FileNotFoundError).
            OptionError: The folder has other files under these names, and ``force`` is not set.
            KineticError: Something could not be written there; what was copied stays.
        """
        from kinetic._jobs import outputs  # most handles are never asked

        job_wait.check_flags(force=force)
        for name, value in {"path": path, "to": to}.items():
            if not isinstance(value, str | os.PathLike) and (value is not None or name == "path"):
                raise OptionTypeError(
                    f"{name}={value!r} is not a path", next='job.get_outputs("model.pt", to="models")'
                )
        copy = outputs.Copy.of(outputs.location_of(self), os.fspath(path), to, force=force)
        copy.run()
        return copy.to / outputs.relative_path(os.fspath(path))

    def forward(self, port: int, local_port: int | None = None, *, host: int = 0) -> AbstractContextManager[int]:
        """Connect a port of this machine to one of the job, while a ``with`` block runs.

        A program that listens in the job, such as TensorBoard, is reached as from where it runs: on a cluster, through
        the API server with your permissions. Several connections at a time are fine; after a preemption new ones lead
        to the new pod. ``kinetic jobs forward`` does it in the terminal.

        Example:
            ``with job.forward(6006) as port: page = urlopen(f"http://127.0.0.1:{port}")``

        Args:
            port: On which a program of the job listens, on 127.0.0.1 or on all addresses.
            local_port: On 127.0.0.1 of this machine; None means the same number, or a free one where that is in use.
            host: Which host of a slice, from 0.

        Returns:
            What yields the local port. At the end of the block no connection is accepted any more.

        Raises:
            OptionError: The job has no such host, or a number is not a port.
            BackendError: The job has ended, or is on another machine (also a RuntimeError).
            DebugError: The local port is taken; the message names a free one.
        """
        from kinetic._inspect import debugger  # as below

        return debugger.forwarded(self, port, host=host, local_port=local_port)

    def debug_attach(self, local_port: int = 5678, working_dir: str | None = None, *, host: int = 0) -> Popen[bytes]:
        """Wait for the job's debug server, forward a port to it, and print what an editor needs to attach.

        Args:
            local_port: Where the editor connects on this machine.
            working_dir: The project's folder on this machine; None means where it was when the job was submitted.
            host: Which host of a slice, from 0.

        Returns:
            The process that forwards the port; it outlives this one. ``kinetic.debug.cleanup_port_forward`` ends it.

        Raises:
            DebugError: The job has no debug server, or has ended (also a RuntimeError).
            DebugError: The port is taken; the message names a free one.
        """
        from kinetic._inspect import debugger  # subprocess among what it needs

        return debugger.attach(self, local_port=local_port, working_dir=working_dir, host=host)

    def result(
        self,
        timeout: float | None = None,
        cleanup: bool | None = None,
        cleanup_timeout: float = 180,
        cleanup_poll_interval: float = 2,  # noqa: ARG002 - the documented signature; deletion is watched, not polled
        stream_logs: bool | None = None,
        on_status_change: Callable[[JobStatus], None] | None = None,
    ) -> R:
        """Wait for the job, and return its value or raise its exception.

        Args:
            timeout: Seconds to wait; None means no limit. The job keeps running when the time is over.
            cleanup: After a success, remove the resource and the artifacts once the value is in memory: None or True
                do, False keeps everything. After a failure nothing is removed unless this is True. Outputs always stay.
            cleanup_timeout: Seconds to wait for the removal to be confirmed; afterwards it only warns.
            cleanup_poll_interval: Accepted for compatibility: the end of a removal is watched, not polled.
            stream_logs: Print the job's log while waiting; None means no.
            on_status_change: Called with the first status, each change, and the final one; what it raises is logged.

        Returns:
            The function's value. A handle that has it already returns it again.

        Raises:
            TimeoutError: The time is over; the handle stays valid.
            RuntimeError: The job failed without an exception of its own, was cancelled, or left no result.
            Exception: The function's own exception, with its remote traceback as a note.
        """
        job_wait.check_flags(cleanup=cleanup, stream_logs=stream_logs)
        if on_status_change is not None:
            job_wait.check_callback("on_status_change", on_status_change, "it is given each status")
        most = job_wait.seconds_to_wait(cleanup_timeout, "cleanup_timeout") or 0.0
        if self._value is not _NOTHING:
            job_wait.notify(on_status_change, JobStatus.SUCCEEDED)
            if cleanup or (cleanup is None and not self.debug and self._is_kept):
                self._remove_kept(wait=most)
            return self._value  # type: ignore[no-any-return] # what the function returned
        if self._exception is not None:
            job_wait.notify(on_status_change, JobStatus.FAILED)
            if cleanup:
                self._remove_kept(wait=most)
            raise self._exception
        follow = job_wait.BesideValue(self.job_id) if stream_logs else None
        with job_wait.detaching(self):
            collects = cleanup or (cleanup is None and not self.debug)
            seen = job_wait.wait(
                self, timeout=timeout, on_change=on_status_change, follow=follow, collects=bool(collects)
            )
        self._is_kept = cleanup is False
        return self._deliver(seen, cleanup=cleanup, wait=most, body=seen.body)  # type: ignore[no-any-return] # as above

    def add_done_callback(self, fn: Callable[[JobHandle[R]], object]) -> None:
        """Call a function with this handle once the job has ended, in whatever way.

        It is called on a thread of this process, or at once if this handle knows the result. A program that ends
        before the job does not wait for it. It collects nothing: the function may call ``result()``.

        Args:
            fn: What it raises is logged, and nothing more.
        """
        from kinetic._jobs import done_callbacks  # few programs need it, as below

        is_known = self._value is not _NOTHING or self._exception is not None
        done_callbacks.call(fn, self, self._end(), at_once=is_known)

    @tracebacks.hides_frames
    def __await__(self) -> Generator[Any, None, R]:
        """Wait in a coroutine, and return or raise what ``result()`` does; cancelling the await only detaches.

        Example:
            ``first, second = await asyncio.gather(train.run_async(0.1), train.run_async(0.01))``
        """
        from kinetic._jobs import done_callbacks

        report = partial(job_wait.report_detached, self)
        return (yield from done_callbacks.Value(self._end(), self.result, report).__await__())

    def _end(self) -> End:
        from kinetic._jobs.done_callbacks import End

        turn = 1.0 if is_here(self.backend) else 15.0  # there, a turn costs a request
        return End(self.job_id, lambda check: job_wait.wait(self, check=check), turn)

    def cancel(self, cleanup_timeout: float = 180, cleanup_poll_interval: float = 2) -> None:  # noqa: ARG002 - documented
        """Cancel the job; its artifacts stay. A job that has ended already stays as it is, and a line says so.

        Args:
            cleanup_timeout: Seconds to wait until its processes are gone.
            cleanup_poll_interval: Accepted for compatibility: the end is watched, not polled.
        """
        from kinetic._jobs import cancellation  # only where a job is cancelled
        from kinetic._output import terminal as output

        if not cancellation.cancel(self, wait=job_wait.seconds_to_wait(cleanup_timeout, "cleanup_timeout") or 0.0):
            output.report(cancellation.why_not_cancelled(self))

    def cleanup(
        self,
        k8s: bool = True,
        gcs: bool = True,
        cleanup_timeout: float = 180,
        cleanup_poll_interval: float = 2,  # noqa: ARG002
    ) -> None:
        """Remove the backend's resource and/or the stored artifacts; a running job is ended. Outputs always stay.

        Args:
            k8s: Remove the resource: on this machine the queue's row, the processes and the working folder.
            gcs: Remove the stored artifacts: the result, the log, the handle.
            cleanup_timeout: Seconds to wait until the processes are gone.
            cleanup_poll_interval: Accepted for compatibility.
        """
        job_wait.check_flags(k8s=k8s, gcs=gcs)
        most = job_wait.seconds_to_wait(cleanup_timeout, "cleanup_timeout") or 0.0
        collect.remove(self, observe_many([self])[0], resource=bool(k8s), artifacts=bool(gcs), wait=most)
        self._past = None

    def _followed(self) -> tuple[Predecessor, dict[str, Any]]:
        """Return what a job is to one that follows it, and where it is."""
        from kinetic._wire.order import Predecessor  # only for a job that is followed

        return Predecessor(self.job_id, self.func_name, self.group_id or ""), records.plain(self)

    def _deliver(self, seen: Snapshot, *, cleanup: bool | None, wait: float, body: bytes | None = None) -> Any:
        """Return the value or raise the exception; ``body``: what was read together with the verified outcome."""
        outcome = seen.outcome
        if outcome is None:
            return self._taken_meanwhile(seen)
        if body is None:
            locate.key_to_read(self)  # nothing of a store is unpickled unverified
        if outcome.succeeded:
            try:
                value = results.body_of(locate.store_of(self), outcome, body)
            except KeyMissingError as error:  # somebody else collected and removed it between our two looks
                return self._taken_meanwhile(Snapshot(JobStatus.NOT_FOUND), error)
            self._ended = seen if seen.body is None else replace(seen, body=None, inside=None)  # the value is enough
            self._value = value  # before it is removed: another thread may look for it
            if cleanup or (cleanup is None and not self.debug):
                self._remove_collected(seen, wait=wait)
            return value
        failure = results.failure_of(locate.store_of(self), outcome, self.func_name)
        if not isinstance(failure, JobCancelledError):
            self._exception = failure
            if cleanup:
                self._remove_collected(seen, wait=wait)
        raise failure

    def _remove_collected(self, seen: Snapshot, *, wait: float) -> None:
        """Remove a job whose value this handle keeps; if Ctrl-C breaks it off, the next result() removes the rest."""
        try:
            self._past, self._left = collect.after_collection(self, seen, wait=wait), None
        except BaseException:
            self._left, self._is_kept = seen, True
            raise
        self._is_kept = False

    def _remove_kept(self, *, wait: float) -> None:
        """Remove a job that an earlier call left, unless it is gone; what this handle has is returned in any case."""
        try:
            seen = self._left or seen_if_ended(self)
        except (KineticError, OSError) as error:
            locate.log().warning("%s could not be removed: %s", self.job_id, error)
            return
        if seen is not None:
            self._remove_collected(seen, wait=wait)

    def _taken_meanwhile(self, seen: Snapshot, error: BaseException | None = None) -> Any:
        """Return or raise what another thread has collected through this handle; if none has, say what is missing."""
        if self._exception is not None:
            raise self._exception
        if self._value is _NOTHING:
            raise self._missing(seen) from error
        return self._value

    def _missing(self, seen: Snapshot) -> ResultMissingError:
        place = f"{self.store or self.bucket_name}/{self.job_id}/result.pkl"
        past = seen.past
        with contextlib.suppress(KineticError):  # what a collection left may be gone since this handle was made
            past = locate.read_page(locate.store_of(self), self.job_id) or past
        if past is not None and locate.is_collected(past):
            when, how = format_utc(float(past["collected"])), past.get("status")
            return ResultMissingError(
                f"{self.job_id} was collected at {when}, and its result is no longer stored",
                why=f"it ended as {how}; collecting a result removes {place}, and keeps the log for 30 days",
                next=f"kinetic jobs logs {self.job_id}     and what it wrote: kinetic outputs ls {self.job_id}",
                code="collected",
            )
        removed = "it was removed together with its result, or it was never launched"
        if past:
            removed = f"its status was {past.get('status')} when it was removed at {format_utc(float(past['removed']))}"
        why = {
            JobStatus.NOT_FOUND: removed,
            JobStatus.FAILED: seen.reason,
            JobStatus.SUCCEEDED: "it succeeded, and its result is not in the store",
        }[seen.status]
        return ResultMissingError(
            f"{self.job_id} is {seen.status.value} and has no result",
            why=f"{why}; looked for {place}",
            next="kinetic jobs list --all     shows what became of it",
        )

    if not TYPE_CHECKING:  # for a type checker, any name would be one

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _OTHER_NAMES)

    def __repr__(self) -> str:
        """Return one line: which job, of which function, on what and where."""
        of = f" of {self.group_id!r}" if self.group_id else ""
        return (
            f"JobHandle(job_id={self.job_id!r}, func_name={self.func_name!r}, accelerator={self.accelerator!r}, "
            f"backend={self.backend!r}{of})"
        )

    def _ipython_display_(self) -> None:
        """Show a card in a notebook, which changes until the job has ended; elsewhere IPython takes what follows."""
        from kinetic._output import notebook  # only in notebooks, as below

        if not notebook.is_kernel():
            raise NotImplementedError
        from kinetic._jobs import job_card

        job_card.show(self)

    def _repr_html_(self) -> str:
        """Return a card for pages that do not change."""
        from kinetic._jobs import job_card

        return job_card.draw(self).html


def take_value(job: JobHandle, *, light: bool = False, ended: tuple[Outcome, bytes | None] | None = None) -> Any:
    """Return or raise what ``result(cleanup=False)`` does, without asking the backend of a job that has ended.

    Args:
        job: The job.
        light: The handle keeps nothing of how the job ended, which is 1.6 KB; its removal reads that again.
        ended: What ``read_ended`` returned for it a moment ago.
    """
    is_taken = job._value is not _NOTHING or job._exception is not None  # noqa: SLF001 - one file
    found = (ended or locate.read_ended(job)) if not is_taken and locate.past_of(job) is None else None
    try:
        if found is None:
            return job.result(cleanup=False)
        outcome, body = found
        seen = Snapshot(decide(outcome=outcome, observation=None), outcome)
        return job._deliver(seen, cleanup=False, wait=0.0, body=body)  # noqa: SLF001 - as above
    finally:
        if light:
            job._ended = None  # noqa: SLF001 - as above


def read_ahead(jobs: Sequence[JobHandle]) -> dict[str, tuple[Outcome, bytes | None] | None]:
    """Read what ``take_value`` needs of several jobs, by their ids; of none whose store is near, or that has failed."""
    is_away = False

    def read(job: JobRecord) -> tuple[Outcome, bytes | None] | None:
        nonlocal is_away
        try:
            return locate.read_ended(job) if not is_away else None
        except Exception as error:  # noqa: BLE001 - it is read again, and what is wrong with it is this job's failure
            is_away = is_away or isinstance(error, StoreUnreachableError)  # else each would wait minutes for the store
            return None

    wanted = [job for job in jobs if job._value is _NOTHING and job._exception is None and is_far(job)]  # noqa: SLF001 - one file
    return of_each([job for job in wanted if locate.past_of(job) is None], read) if len(wanted) > 1 else {}


def seen_if_ended(job: JobRecord) -> Snapshot | None:
    """Return what the store says of a job that has an outcome and is not history; None for any other."""
    outcome = locate.read_outcome(job) if locate.past_of(job) is None else None
    return Snapshot(decide(outcome=outcome, observation=None), outcome) if outcome is not None else None


def handle_of(job: JobRecord) -> JobHandle:
    """Return the handle of a job; a handle is returned as it is."""
    if isinstance(job, JobHandle):
        return job
    handle: JobHandle = JobHandle(**records.known(vars(job)))
    handle._past = locate.past_of(job)  # noqa: SLF001 - a field that no page has
    return handle
