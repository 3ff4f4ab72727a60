"""Collecting, removing, cancelling: how a verdict becomes a value or an exception, and what goes and remains then."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from kinetic._jobs import locate, logs, notifications
from kinetic._jobs import status as job_status
from kinetic._jobs.logs import GZIP, HISTORY_LOG_BYTES, StoredLog
from kinetic._jobs.status import Snapshot, has_ended, observe
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic._runner.supervisor import attempts, predecessors
from kinetic._stores import open_store, put_many
from kinetic._stores.protocol import Store
from kinetic._wire import digests, documents, folders, keys, order, outcomes, python_runtime, records
from kinetic._wire import order as orders
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import CANCELLED, Outcome
from kinetic._wire.records import read_table
from kinetic.errors import (
    BackendError,
    CommandError,
    IntegrityError,
    JobCancelledError,
    JobError,
    KeyMissingError,
    KineticError,
    PredecessorError,
    ResultNotPicklableError,
    ResultUnreadableError,
    RunnerError,
    StoreError,
)
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import LiveLog, Observation
    from kinetic._stores.protocol import Entry
    from kinetic._wire.order import DataRef
    from kinetic._wire.records import JobRecord


_MEASURED_SECONDS = 1.0  # a job that took less time was not measured
_PIECE, _BLOCK = 1 << 20, 1 << 16
_IN_MEMORY = 16 << 20  # bodies up to 16 MiB are read once, verified and opened from the same bytes
_PAGES_AT_ONCE = 500
_COMPILED = b"_make_function"  # cloudpickle's name for what makes a function of its bytecode

T = TypeVar("T")


def body_of(store: Store, outcome: Outcome, data: bytes | None = None) -> Any:
    """Verify the whole body, which may have been read already, then unpickle it."""
    from kinetic._wire import device_tensors  # with pickle, 3 ms; only when a value is opened

    name = keys.result(outcome.job_id)
    if outcome.body_length <= _IN_MEMORY:
        data = store.get(name, length=outcome.body_length) if data is None else data
        outcomes.check_body(outcome, digests.of_bytes(data))
        if _COMPILED in data:
            _check_python(store, outcome)
        return _open(functools.partial(device_tensors.load, functools.partial(io.BytesIO, data), _moved), outcome)
    with _as_file(store, name) as file:
        verified = functools.partial(_Verified, file, outcome)
        return _open(lambda: device_tensors.load(lambda: io.BufferedReader(verified(), _BLOCK), _moved), outcome)


def _check_python(store: Store, outcome: Outcome) -> None:
    """Refuse a function that another Python compiled: calling it would end this process."""
    theirs = ours = python_runtime.python_version()
    with contextlib.suppress(KineticError):  # without a note it is opened
        theirs = outcomes.read_note(store, outcome.job_id, outcome.attempt, None).python
    if python_runtime.version_mismatch(theirs):
        raise ResultUnreadableError(
            f"the result of {outcome.job_id} cannot be opened by this Python",
            why=f"it contains a function that Python {theirs} compiled, and this is Python {ours}",
            next=f"collect it with Python {theirs}; its bytes stay in the store",
        )


def _moved() -> None:
    output.report("the tensors of this result were on a device that is not here: they are on the CPU now")


def save(store: Store, outcome: Outcome, to: Path) -> int:
    """Write the verified body, an ordinary pickle, into a file, and return its size."""
    name = keys.result(outcome.job_id)
    with _as_file(store, name) as file, folders.replaced(to, mode=0o666) as target:  # it may be removed from the store
        digest, left = hashlib.sha256(), outcome.body_length
        while left and (piece := file.read(min(left, _PIECE))):
            digest.update(piece)
            target.write(piece)
            left -= len(piece)
        outcomes.check_body(outcome, digest.hexdigest())  # of what was written, not of what is there now
    return outcome.body_length


class _Verified(io.RawIOBase):
    """A body too large for memory, read twice: no byte is returned that differs from what was verified.

    The first pass notes the digest of everything up to each piece; the second compares before it returns a piece. So a
    change of the file in between is found.
    """

    def __init__(self, file: IO[bytes], outcome: Outcome) -> None:
        self._file, self._outcome = file, outcome
        self._left, self._ready = outcome.body_length, memoryview(b"")
        digest, self._expected = hashlib.sha256(), deque[bytes]()
        file.seek(0)
        while self._left and (piece := file.read(min(self._left, _PIECE))):
            digest.update(piece)
            self._expected.append(digest.digest())
            self._left -= len(piece)
        outcomes.check_body(outcome, digest.hexdigest())
        file.seek(0)
        self._left, self._digest = outcome.body_length, hashlib.sha256()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, into: Any, /) -> int:
        """Fill a buffer with verified bytes; return how many these are."""
        if not self._ready and self._left:
            piece = self._file.read(min(self._left, _PIECE))
            self._digest.update(piece)
            if self._digest.digest() != self._expected.popleft():
                outcomes.check_body(self._outcome, self._digest.hexdigest())
            self._ready, self._left = memoryview(piece), self._left - len(piece)
        count = min(len(into), len(self._ready))
        into[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _as_file(store: Store, name: str) -> IO[bytes]:
    """Return a private, open file with an object: one descriptor for verifying and for opening."""
    if store.local is not None:
        return io.BufferedReader(io.FileIO(store.local.open(name), "rb"), 1 << 16)
    import tempfile  # 3 ms; only for large values in a store that has no files

    with tempfile.TemporaryDirectory(prefix="kinetic-") as folder:  # closed to others
        path = Path(folder, "result")
        store.fetch(name, path)
        return path.open("rb")  # the descriptor stays


def _open(load: Callable[[], Any], outcome: Outcome) -> Any:
    try:
        return load()
    except IntegrityError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, (ImportError, AttributeError)):
            name = ""
            with contextlib.suppress(AttributeError):
                name = error.name or ""  # ModuleNotFoundError and AttributeError have it
            raise ResultUnreadableError(
                f"the result of {outcome.job_id} cannot be opened here: {name or 'what it is made of'} is missing",
                why=f"{f'it is a {outcome.value_type}' if outcome.value_type else 'its type'}, and {said}",
                next="collect it from the project that submitted it; its bytes stay in the store",
            ) from error
        raise ResultUnreadableError(
            f"the result of {outcome.job_id} is whole, and cannot be opened here",
            why=said,
            next=f"kinetic jobs result {outcome.job_id} --save result.pkl     keeps its bytes",
        ) from error


_DATA_ERRORS = frozenset({"integrity", "key-missing", "data-missing"})
_broken: dict[tuple[str, str], int] = {}  # by the batch or job that failed, and the manifest: checked once


def repair_data(store: Store, outcome: Outcome) -> str:
    """Verify project and data of a job again, and remove what is damaged: the next submission sends it."""
    from kinetic._blobs import fetch  # only when something is wrong

    broken = 0
    with contextlib.suppress(KineticError), output.phase("checking the data again"):
        page = locate.read_record(store, outcome.job_id)
        if isinstance(page, locate.Untrusted):
            return ""
        complaint = str(page.get("group_id") or outcome.job_id)
        packs, refs = _sent_with(store, page)
        broken += _once((complaint, ""), lambda: fetch.remove_damaged(store, dict.fromkeys(packs, 0)))
        for ref in dict.fromkeys(refs):
            if ref.kind == "shipped":
                broken += _once((complaint, ref.manifest), functools.partial(_recheck, ref))
    return "what was damaged in the store was removed: submit again, and it is sent again" if broken else ""


def _once(which: tuple[str, str], check: Callable[[], int]) -> int:
    if which not in _broken:
        _broken[which] = check()
    return _broken[which]


def _recheck(ref: DataRef) -> int:
    from kinetic._data import ship  # only when something is wrong

    return ship.recheck(ref, open_store(ref.uri))


def _sent_with(store: Store, page: dict[str, object]) -> tuple[Iterable[str], Iterable[DataRef]]:
    """Return the blobs of a job's project, and its data; of a batch's child, also what all children share.

    Each page is the one whose digest the one before it promised, from the sealed record on: an order names addresses.
    """
    group_id, index = str(page.get("group_id") or ""), page.get("group_index")
    if not group_id:
        order = orders.read(store, keys.order(str(page["job_id"])), str(page.get("order_sha256")))
        return order.packs, order.data
    group = locate.read_group(store, group_id)
    if isinstance(group, locate.Untrusted):
        return (), ()
    shared = orders.read(store, keys.group_order(group_id), group.order_sha256)
    inputs = read_table(store, group).inputs
    own = inputs[index].data if isinstance(index, int) and index < len(inputs) else ()
    return shared.packs, (*shared.data, *own)


_LOG_LINES = 5
_OUR_FRAME = "/runners/"  # frames of the runner below the user's own: they explain nothing


def attach_remote_traceback(exception: BaseException, remote_traceback: str | None) -> BaseException:
    """Add the job's traceback to an exception as a note, where there is one, and return the same exception."""
    if remote_traceback and hasattr(exception, "add_note"):
        with contextlib.suppress(Exception):  # user classes may refuse notes
            exception.add_note(f"{tracebacks.REMOTE}{remote_traceback}")
    return exception


def value_of(store: Store, outcome: Outcome, function: str) -> Any:
    """Return the value of a job that succeeded, or raise the exception of its failure."""
    if outcome.succeeded:
        return body_of(store, outcome)
    raise failure_of(store, outcome, function)


def failure_of(store: Store, outcome: Outcome, function: str) -> BaseException:
    """Return the exception of a failed or cancelled job."""
    if outcome.status == outcomes.CANCELLED:
        return JobCancelledError(
            f"{outcome.job_id} was cancelled", why="it left no result", next=f"kinetic jobs cleanup {outcome.job_id}"
        )
    raised = None
    if outcome.body_length and not _is_of_command(outcome):  # the log says more than its exception
        with contextlib.suppress(ResultUnreadableError, IntegrityError):
            raised = body_of(store, outcome)
    if not isinstance(raised, BaseException):
        raised = _error_without_exception(outcome, function)
    failed_on_data = outcome.cause == "runner" and outcome.error.get("code") in _DATA_ERRORS
    if failed_on_data and (repaired := repair_data(store, outcome)):
        raised.add_note(repaired)
    if where := on_host(outcome):
        raised.add_note(f"It happened{where}.")
    if traceback := outcome.error.get("traceback"):
        traceback = f"{str(traceback).rstrip()}\n{tracebacks.LOG}{log_command(outcome)}"
    return attach_remote_traceback(raised, traceback)


def _error_without_exception(outcome: Outcome, function: str) -> BaseException:
    error = outcome.error
    message = str(error.get("message", ""))
    if outcome.cause == "runner":
        return RunnerError(
            error.get("what") or f"{function} did not begin: {error.get('type')}: {message}",
            phase=outcome.phase,
            why=error.get("why") or f"it failed in the phase {outcome.phase!r}",
            next=error.get("next") or log_command(outcome),
        )
    if outcome.cause == predecessors.CAUSE:
        what, why, code = error.get("what") or f"{function} did not start", error.get("why"), error.get("code")
        return PredecessorError(f"{outcome.job_id}: {what}", why=why, next=error.get("next"), code=code)
    if outcome.cause in {"exception", "exit"} and "type" in error:
        lost = error.get("not_delivered")
        return JobError(
            f"{function} raised {error.get('module')}.{error.get('type')}: {message}",
            why=f"the exception itself could not be sent: {lost}" if lost else "its class is not on this machine",
            next=log_command(outcome),
            code="exception-not-here",
        )
    if outcome.cause == "serialization":
        return _not_picklable(outcome, function)
    if _is_of_command(outcome):
        return command_error(outcome)
    lines = [line for line in error.get("log", "").splitlines() if line.strip() and _OUR_FRAME not in line]
    return JobError(
        f"{function} failed{on_host(outcome)}: {message}",
        why="the last lines of its log:\n       " + "\n       ".join(lines[-_LOG_LINES:]) if lines else None,
        next=error.get("next") or log_command(outcome),
        code=outcome.cause or "job-failed",
    )


def log_command(outcome: Outcome) -> str:
    """Return the command that shows the log of a job, or of the host of a slice that decided."""
    return f"kinetic jobs logs {outcome.job_id}" + (f" --host {outcome.host}" if outcome.host else "")


def on_host(outcome: Outcome) -> str:
    """Return which host of a slice decided, for a sentence; "" where there is one only."""
    hosts = outcome.error.get("hosts", 1)
    return f" on host {outcome.host} of {hosts}" if hosts > 1 else ""


def _is_of_command(outcome: Outcome) -> bool:
    return outcome.cause == "exit" and "what" in outcome.error


def command_error(outcome: Outcome) -> CommandError:
    """Return the error of a command that failed."""
    error, logs = outcome.error, log_command(outcome)
    lines = [line for line in str(error.get("log", "")).splitlines() if line.strip()][-_LOG_LINES:]
    why = error.get("why") or ("the last lines of its log:\n       " + "\n       ".join(lines) if lines else None)
    code, next_ = int(error.get("exit_code", 1)), error.get("next") or logs
    return CommandError(str(error["what"]), exit_code=code, why=why, next=next_, code=error.get("code"))


def _not_picklable(outcome: Outcome, function: str) -> JobError:
    error = outcome.error
    kind, path = error.get("value_type"), error.get("path")
    what = f"{function} returned a {kind} that cannot be pickled"
    why = f"{error.get('type')}: {error.get('message')}"
    if path and error.get("too_deep"):
        what = f"{function} returned a {kind}, and {path} is nested too deeply to be pickled"
    elif path:
        why = f"{path} is {error.get('culprit')}, a {error.get('culprit_type')}: {why}"
    advice = "return plain data, or write it into KINETIC_OUTPUT_DIR"
    failed = ResultNotPicklableError(what, why=why, next=advice, code="not-picklable")
    failed.add_note(f"The value was: {error.get('repr')}")
    return failed


_LEVEL = 1  # 10 MiB in 60 ms; a user waits for the value of this job


def _history_logs(
    job: JobRecord, store: Store, inside: Sequence[Entry], outcome: Outcome | None
) -> tuple[list[dict[str, Any]], list[tuple[str, bytes]]]:
    """Return what the history says of every log of an ended job, and the ends of these logs, by their keys."""
    kept: list[dict[str, Any]] = []
    written: list[tuple[str, bytes]] = []
    succeeded = outcome is not None and outcome.succeeded
    try:
        for attempt, host, log in _logs_of(job, store, inside, succeeded=succeeded):
            sealed = logs.sealed_digest(job, attempt=attempt, host=host, outcome=outcome)
            checked = logs.checked_log(log, sealed, job.job_id)
            data, left_out = _end_of(checked)
            # A job that is being deleted is not kept: only a part of its log may have been read.
            if data and not (locate.read_page(store, job.job_id) or {}).get("artifacts_removed"):
                writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, GZIP)
                written.append((keys.history_log(job.job_id, attempt, host), writer.compress(data) + writer.flush()))
                found = {"size_bytes": len(data), "sha256": digests.of_bytes(data)}
                changed = isinstance(checked, logs.CheckedLog) and checked.is_changed
                kept.append({"attempt": attempt, "host": host, **found, "changed": changed, "left_out": left_out})
    except KeyMissingError:  # another process collected it, and deletes it
        return [], []
    return kept, written


def delete_history_logs(store: Store, job_id: str) -> None:
    """Delete the logs of a collected job; its page stays, without what names them."""
    page = locate.read_page(store, job_id)
    if page is None or not locate.is_collected(page):
        return
    for found in logs.logs_in_history(page):
        store.delete(keys.history_log(job_id, found["attempt"], found["host"]))
    key = locate.key_for(job_id, page.get("key_id") or "", page.get("store") or "")  # or the user trusts the store
    locate.write_page(store, {**page, "collected": None, "logs": []}, key or bytes(documents.KEY_BYTES), again=True)


def _logs_of(
    job: JobRecord, store: Store, inside: Sequence[Entry], *, succeeded: bool
) -> Iterator[tuple[int, int, LiveLog]]:
    """Yield attempt, host and log of all that a job printed; on this machine first where the job wrote it."""
    backend, job_id = locate.backend_of(job), job.job_id
    count = max(1, _count_attempts(job_id, inside))
    stored, here = _stored_logs(job_id, inside), set[tuple[int, int]]()
    if backend.is_here:
        expected = [(attempt, host) for attempt in range(count) for host in range(locate.hosts_of(job))]
        for attempt, host in expected:
            live = backend.live_log(job_id, host=host, attempt=attempt)
            if live is not None:
                here.add((attempt, host))
                yield attempt, host, live
        if not {*expected} <= here | stored.keys():  # its supervisor has moved one into the store this moment
            stored = _stored_logs(job_id, store.entries(f"{job_id}/logs/"))
    elif not stored and not succeeded:  # its pod may have been cut off before it sent anything
        with contextlib.suppress(KineticError, OSError):
            live = logs.open_log(backend, store, job_id, attempt=count - 1, host=0)
            if live is not None:
                yield count - 1, 0, live
    for (attempt, host), entries in stored.items():
        if (attempt, host) not in here:
            yield attempt, host, StoredLog(store, keys.logs(job_id, attempt, host), entries)


def _stored_logs(job_id: str, inside: Iterable[Entry]) -> dict[tuple[int, int], list[Entry]]:
    """Group what the store has of a job's logs by attempt and host."""
    found: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in inside:
        match entry.key.removeprefix(keys.job(job_id)).split("/"):
            case ["logs", attempt, host, _] if keys.is_number(attempt) and keys.is_number(host):  # not .DS_Store
                found[int(attempt), int(host)].append(entry)
    return found


def _count_attempts(job_id: str, inside: Iterable[Entry]) -> int:
    return len(keys.numbered(entry for entry in inside if entry.key.startswith(keys.attempts(job_id))))


def _end_of(log: LiveLog) -> tuple[bytes, int]:
    """Read the end of a log, from the start of a line on, below a line that says what is missing; and that in bytes."""
    try:
        size = log.size()
        start = max(0, size - HISTORY_LOG_BYTES)
        found = bytearray()
        while start + len(found) < size and (piece := log.read(start + len(found), _PIECE)):
            found += piece
    finally:
        logs.close(log)
    if start == 0:
        return bytes(found), 0
    cut = found.find(b"\n", 0, _PIECE) + 1  # 0 where that line is longer
    line = f"kinetic: the first {start + cut} bytes of this log were not kept\n".encode()
    return line + found[cut:], start + cut - len(line)


def remove(job: JobRecord, seen: Snapshot, *, resource: bool, artifacts: bool, wait: float) -> None:
    """Remove the backend's resource, the stored artifacts, or both; a page of the history remains.

    The page comes first: if we die in between, the job is known as removed, and removing again finishes it. Of a job
    that was collected before, its log is removed as well. Output directories are never touched.
    """
    locate.backend_of(job)  # raises before anything is changed
    store = locate.store_of(job)
    notifications.see(job, seen)
    notifications.forget(job.job_id)  # of a job that runs: who removes it knows of its end
    if seen.status is not JobStatus.NOT_FOUND or store.size(keys.record(job.job_id)) is not None:
        page = _history_page(job, seen) | {"artifacts_removed": artifacts, "resource_removed": resource}

        def write() -> None:
            locate.write_page(store, page, locate.key_to_seal(job))
            mark_as_removed(job, store)

        write_in_any_case(job, store, write, spare=() if artifacts else ("",))
    if artifacts:
        delete_history_logs(store, job.job_id)
    step("client:history-written")
    _delete(job, seen, resource=resource, artifacts=artifacts, wait=wait)
    if artifacts and job.after:
        _remove_kept_predecessors(job, store, wait=wait)


def write_in_any_case(job: JobRecord, store: Store, write: Callable[[], T], *, spare: tuple[str, ...]) -> T:
    """Write what comes before a removal; where the store is full, some of what is removed makes room for it.

    ``spare``: how what must stay until then begins, below the job's folder; its record stays in any case.
    """
    try:
        return write()
    except StoreError as error:
        if error.code != "store-full":
            raise
    make_room(job, store, spare=spare)
    return write()


def make_room(job: JobRecord, store: Store, *, spare: tuple[str, ...] = ()) -> None:
    """Remove what a job has in the store, but for its record: it is about to be removed as a whole; see above."""
    folder = keys.job(job.job_id)
    for entry in list(store.entries(folder)):
        if entry.key != keys.record(job.job_id) and not entry.key.removeprefix(folder).startswith(spare):
            store.delete(entry.key)


def mark_as_removed(job: JobRecord, store: Store) -> None:
    """Set the mark by which a batch sees in a listing that its child was removed."""
    if mark := mark_of(job):
        store.put(documents.sealed_name(mark, "removed", locate.key_to_seal(job)), b"")


def mark_of(job: JobRecord) -> str:
    """Return the stem of the keys by which a batch sees in a listing what became of its child; "" without a batch."""
    if not job.group_id or job.group_index is None:
        return ""
    return keys.mark(job.group_id, job.group_index, job.group_attempt or 0)


def _delete(
    job: JobRecord, seen: Snapshot, *, resource: bool, artifacts: bool, wait: float, later: bool = False
) -> None:
    """Remove what the history says is removed; ``later``: perhaps while the caller continues."""
    backend, store = locate.backend_of(job), locate.store_of(job)

    def delete_artifacts() -> None:
        store.delete(keys.job(job.job_id))
        folder = job.output_dir or ""
        if folder.startswith("/") and folder.endswith(f"/{keys.outputs(job.job_id).rstrip('/')}"):
            for made in (order.checkpoint_dir(folder), folder):  # for a job that wrote nothing into them
                with contextlib.suppress(OSError):  # what holds a file stays
                    os.rmdir(made)
        step("client:artifacts-deleted")

    if resource:
        ended = seen.outcome is not None and seen.outcome.witness != "client"  # then its worker is gone already
        if (not ended or not artifacts) and not backend.stop([job.job_id], wait=wait):
            locate.log().warning("%s was asked to end and has not ended within %g s", job.job_id, wait)
        backend.remove([job.job_id], then=delete_artifacts if artifacts and later else None)
        if not seen.status.is_final:
            _report_another_host(job)
    if artifacts and not (resource and later):
        delete_artifacts()


def after_collection(job: JobRecord, seen: Snapshot, *, wait: float) -> dict[str, Any] | None:
    """Remove a job whose value is in memory, and keep its log and its record as history."""
    step("client:collected")
    try:
        store = locate.store_of(job)
        inside = list(store.entries(keys.job(job.job_id)))
        if is_kept_for_followers(job, store, inside):
            return None
        page = collected_page(job, seen, inside)
        mark_as_removed(job, store)
        step("client:history-written")
        _delete(job, seen, resource=True, artifacts=True, wait=wait, later=True)
        if job.after:
            _remove_kept_predecessors(job, store, wait=wait)
    except (KineticError, OSError) as error:
        locate.log().warning("%s was collected, and could not be removed: %s", job.job_id, error)
        return None
    return page


def _settle_followers(job: JobRecord, store: Store) -> None:
    """Look at what follows a job on a cluster that was cancelled, which closes it; on this machine supervisors do."""
    prefix = keys.followers(job.group_id or job.job_id)
    for entry in list(store.entries(prefix)):
        name = entry.key.removeprefix(prefix)
        if keys.is_job_id(name) and not keys.is_group_id(name):
            with contextlib.suppress(KineticError):  # it is closed by the next look
                record = locate.read_record(store, name)
                if not isinstance(record, locate.Untrusted):
                    has_ended(locate.record_of(record))


def is_kept_for_followers(job: JobRecord, store: Store, inside: Sequence[Entry] = ()) -> bool:
    """Return whether a job that was collected stays, because another one that has not ended may read its value.

    ``inside``: what a listing of the job has. Those who follow a batch's child are listed with the batch.
    """
    owner = job.group_id or job.job_id
    followers = inside if owner == job.job_id else [*store.entries(keys.followers(owner))]
    if not any(entry.key.startswith(keys.followers(owner)) for entry in followers):
        return False
    from kinetic._jobs import after  # only where a job is followed

    readers = after.readers_of(store, owner, followers, has_ended)
    if readers:
        after.keep_for(store, owner, readers)
    return bool(readers)


def _remove_kept_predecessors(job: JobRecord, store: Store, *, wait: float) -> None:
    """Remove what was collected before and kept for this job."""
    from kinetic._jobs import after  # as above

    for name in after.kept_before(job, store, has_ended):
        with contextlib.suppress(KeyMissingError):
            record = locate.read_record(store, name)
            if not isinstance(record, locate.Untrusted):
                predecessor = locate.record_of(record)
                after_collection(predecessor, observe(predecessor), wait=wait)


def collected_page(job: JobRecord, seen: Snapshot, inside: Sequence[Entry] | None = None) -> dict[str, Any]:
    """Write logs and page of a collected job into the history, and return the page."""
    store = locate.store_of(job)
    page, kept = _page_and_logs(job, store, seen, inside)

    def write() -> bool:
        put_many(store, kept)
        step("client:log-kept")
        return locate.write_page(store, page, locate.key_to_seal(job))

    if not write_in_any_case(job, store, write, spare=("logs/",)):
        return _page_beside_another(job, store, page)
    return page


def write_collected_pages(collected: Iterable[tuple[JobRecord, Snapshot]], store: Store) -> None:
    """Write logs, pages and marks of many collected jobs of one store, which share their forced writes."""
    pages: dict[str, tuple[JobRecord, dict[str, Any]]] = {}
    kept: list[tuple[str, bytes]] = []
    sealed: list[tuple[str, bytes]] = []
    marks: list[tuple[str, bytes]] = []
    for job, seen in collected:
        page, logs_of_it = _page_and_logs(job, store, seen)
        key = locate.key_to_seal(job)
        at, data = locate.sealed_page(store, page, key)
        pages[at] = job, page
        kept += logs_of_it
        sealed.append((at, data))
        if mark := mark_of(job):
            marks.append((documents.sealed_name(mark, "removed", key), b""))
        if len(sealed) >= _PAGES_AT_ONCE or sum(len(data) for _, data in kept) > _IN_MEMORY:
            _write_together(store, kept, sealed, marks, pages)
    _write_together(store, kept, sealed, marks, pages)


def _write_together(
    store: Store,
    kept: list[tuple[str, bytes]],
    sealed: list[tuple[str, bytes]],
    marks: list[tuple[str, bytes]],
    pages: dict[str, tuple[JobRecord, dict[str, Any]]],
) -> None:
    """Write logs, then the pages that name them, then the marks; and take them out."""
    put_many(store, kept)
    step("client:log-kept")
    for at in put_many(store, sealed, if_absent=True):
        job, page = pages[at]
        _page_beside_another(job, store, page)
    put_many(store, marks)
    for each in (kept, sealed, marks, pages):
        each.clear()


def _page_and_logs(
    job: JobRecord, store: Store, seen: Snapshot, inside: Sequence[Entry] | None = None
) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """Return the page of a collected job for the history, and its logs, by their keys."""
    inside = list(store.entries(keys.job(job.job_id))) if inside is None else inside
    logs_of_it, kept = _history_logs(job, store, inside, seen.outcome)
    page = _history_page(job, seen, inside)
    page |= {"collected": time.time(), "artifacts_removed": True, "resource_removed": True, "logs": logs_of_it}
    if usage := _usage_to_keep(job, inside, seen.outcome):
        page["usage"] = usage
    return page, kept


def _page_beside_another(job: JobRecord, store: Store, page: dict[str, Any]) -> dict[str, Any]:
    """Return the page that another process wrote of a collected job, or replace what is there."""
    before = locate.read_page(store, job.job_id)
    if before is not None and locate.is_collected(before):  # by another process, which saw more of it
        return before
    locate.write_page(store, page, locate.key_to_seal(job), again=True)  # it was cleaned up in part before
    return page


def _usage_to_keep(job: JobRecord, inside: Sequence[Entry], outcome: Outcome | None) -> list[dict[str, Any]]:
    if outcome is None or outcome.started is None or outcome.ended is None:
        return []
    is_kept = any(entry.key.startswith(keys.usage(job.job_id, 0, 0)[:-3]) for entry in inside)  # a short one's progress
    if outcome.ended - outcome.started < _MEASURED_SECONDS and not is_kept and not _is_usage_coming(job, outcome):
        return []
    from kinetic._jobs import resource_usage  # only of jobs that were measured

    return resource_usage.to_keep(job, inside, outcome)


def _is_usage_coming(job: JobRecord, outcome: Outcome) -> bool:
    """Return whether a job of this machine has usage that the listing did not: it follows the verdict."""
    if not locate.is_here(job):
        return False
    if locate.backend_of(job).live_usage(job.job_id, host=0, attempt=outcome.attempt) is not None:
        return True
    store = locate.store_of(job)  # it came there since, unless that would be a request
    return store.local is not None and store.size(keys.usage(job.job_id, outcome.attempt, 0)) is not None


def cancel(job: JobRecord, *, wait: float) -> bool:
    """Cancel a job: first the verdict, then the processes; False when the job had ended already."""
    store = locate.store_of(job)
    try:
        seen = observe(job)
    except IntegrityError:  # its result is damaged: it has ended, unless it runs all the same
        observation = locate.backend_of(job).observe([job.job_id]).get(job.job_id)
        if observation is None or observation.status.is_final:
            return False
        _finish_cancel(job, outcome_of(job, observation=observation), wait=wait)
        return True
    verdict = seen.outcome
    if verdict is not None and verdict.status == CANCELLED and locate.read_page(store, job.job_id) is None:
        _finish_cancel(job, verdict, wait=wait)  # the process that cancelled it died before it was done
        return True
    if seen.status.is_final:
        return False
    verdict = outcome_of(job, observation=seen.observation)
    if not seal_outcome_of(job, store, verdict):
        return False
    step("canceller:sealed")
    _finish_cancel(job, verdict, wait=wait)
    return True


def outcome_of(
    job: JobRecord,
    status: str = CANCELLED,
    cause: str = "cancelled",
    *,
    message: str = "",
    observation: Observation | None = None,
) -> Outcome:
    """Return the outcome that a client gives to a job that has none: it is cancelled, or nothing is left of it."""
    return Outcome(
        job_id=job.job_id,
        status=status,
        attempt=observation.attempt if observation and observation.attempt is not None else -1,
        cause=cause,
        phase="",
        error={"message": message} if message else {},
        started=observation.started if observation else None,
        ended=time.time(),
        witness="client",
        key_id=job.key_id or "",
    )


def seal_outcome_of(job: JobRecord, store: Store, outcome: Outcome) -> bool:
    """Create the outcome of a job, and the mark that its batch sees; False when it has another outcome already."""
    return attempts.seal_outcome(store, outcome, locate.key_to_seal(job), mark=mark_of(job))


def why_not_cancelled(job: JobRecord) -> str:
    """Return why there was nothing to cancel, after ``cancel`` returned False."""
    job_id = job.job_id
    try:
        seen = observe(job)
    except IntegrityError as error:
        return f"{job_id} has ended, and {error.what}; kinetic jobs cleanup {job_id} removes it"
    if locate.is_collected(seen.past):
        how = f"it was {(seen.past or {}).get('status')}, and was collected afterwards"
    elif seen.status is not JobStatus.NOT_FOUND:
        how = f"it is {seen.status.value}"
    elif seen.outcome is None:
        was_removed = locate.read_page(locate.store_of(job), job_id) is not None
        return f"{job_id} was {'removed before' if was_removed else 'never launched'}: there is nothing to cancel"
    elif seen.outcome.status == CANCELLED:
        return f"{job_id} was cancelled before"
    else:
        how = f"it was {seen.outcome.status.upper()}, and was removed afterwards"
    return f"{job_id} had ended before it could be cancelled: {how}"


def _finish_cancel(job: JobRecord, verdict: Outcome, *, wait: float) -> None:
    """End the processes of a cancelled job and forget it; its artifacts stay."""
    store, backend = locate.store_of(job), locate.backend_of(job)
    if not backend.stop([job.job_id], wait=wait):
        raise BackendError(
            f"{job.job_id} is cancelled, but its processes have not ended within {wait:g} s",
            why="they were asked to end, and are killed 5 s after that",
            next=f"kinetic jobs status {job.job_id}",
            code="still-ending",
        )
    step("canceller:stopped")
    page = _history_page(job, Snapshot(JobStatus.NOT_FOUND, verdict))
    locate.write_page(store, page, locate.key_to_seal(job))
    step("canceller:history-written")
    backend.remove([job.job_id])
    if not backend.is_here:
        _settle_followers(job, store)
        if job.group_id:
            from kinetic._jobs import after  # as above

            with contextlib.suppress(KineticError):  # the next look does it
                after.start_others(job, store)
    notifications.see(job, Snapshot(JobStatus.NOT_FOUND, verdict))
    _report_another_host(job)


def _report_another_host(job: JobRecord) -> None:
    """Print that a job elsewhere ends a little later: only its own supervisor can end it, and checks once a minute."""
    if not locate.can_be_seen(job):
        output.report(f"{job.job_id} runs on {job_status.place_of(job)}; its processes there end within a minute")


def _history_page(job: JobRecord, seen: Snapshot, inside: Sequence[Entry] | None = None) -> dict[str, Any]:
    """Return what is remembered of a job: no payload, no secret."""
    outcome, emulation, reason = seen.outcome, None, ""
    if outcome is not None and not outcome.succeeded:
        kind = outcome.error.get("type")
        reason = f"{kind}: {outcome.error.get('message', '')}" if kind else str(outcome.error.get("message", ""))
    if inside is None:
        with contextlib.suppress(KineticError):
            inside = list(locate.store_of(job).entries(keys.job(job.job_id)))
    with contextlib.suppress(KineticError):
        emulation = job_status.emulation_of(job)
    recorded = [entry.modified for entry in inside or () if entry.key == keys.record(job.job_id)]
    return {
        **records.plain(job),
        "created": recorded[0] if recorded else None,
        "emulation": emulation,
        "status": "CANCELLED" if outcome is not None and outcome.status == CANCELLED else seen.status.value,
        "reason": reason.splitlines()[0][:500] if reason else "",
        "started": outcome.started if outcome else None,
        "ended": outcome.ended if outcome else None,
        "attempts": _count_attempts(job.job_id, inside or ()),
    }
