"""Why a job is pending or failed: a sentence with its evidence and the next command; and the error of a failed job."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic._jobs import activity, locate, logs, results
from kinetic._jobs import status as job_status
from kinetic._output.format import plain
from kinetic._wire import NamedTuple
from kinetic.errors import CommandError, JobError, KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Diagnosis
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import JobRecord

_CAUSES_WITH_A_REASON = frozenset({"runner", "serialization"})  # of the others, the log is the evidence
_MOST_LOOKS = 3  # at a job that changes meanwhile
_LINES = 10  # of the log of a failed job
_LOG_BYTES = 16 << 10
_LONGEST_SENTENCE = 500  # characters of a job's own message; the traceback has all of it


class Explanation(NamedTuple):
    """Why a job is in its state: a sentence, evidence, and for a failed job where it was and the end of its log."""

    what: str
    why: str = ""
    phase: str = ""
    log: tuple[str, ...] = ()
    next: str = ""


def observe_and_explain(handle: JobRecord) -> tuple[Snapshot, Explanation]:
    """Explain a job as it was at one moment: look again if it changed in between."""
    for _ in range(_MOST_LOOKS):
        seen = job_status.observe(handle)
        found = _diagnosis(handle, seen)
        is_gone = found is None or (found.status is not None and found.status.is_final)
        if seen.status.is_final or not is_gone:
            break
    if found is not None and found.status is not None and not found.status.is_final:
        seen = replace(seen, status=found.status)  # the diagnosis is the newer of the two
    return seen, _explain(handle, seen, found)


def _diagnosis(handle: JobRecord, seen: Snapshot) -> Diagnosis | None:
    """Ask the backend of a job that has not ended."""
    if seen.status.is_final or not locate.can_be_seen(handle):
        return None
    return locate.backend_of(handle).explain(handle.job_id)


def _explain(handle: JobRecord, seen: Snapshot, diagnosis: Diagnosis | None) -> Explanation:
    log_command = f"kinetic jobs logs {handle.job_id}"
    if seen.past is not None and seen.past.get("collected"):
        if seen.past.get("status") == "SUCCEEDED":
            return Explanation("it succeeded and was collected; its log is kept", next=log_command)
        why = str(seen.past.get("reason") or "")
        log = _last_lines(handle)
        return Explanation("it failed and was collected; its log is kept", why, log=log, next=log_command)
    match seen.status.value:
        case "PENDING" | "RUNNING":
            return _explain_live(handle, seen, diagnosis)
        case "FAILED":
            return _explain_failed(handle, seen)
        case "SUCCEEDED":
            next_ = f"kinetic jobs result {handle.job_id}"
            return Explanation("it succeeded, and its result is ready", next=next_)
    if seen.outcome is not None and seen.outcome.status == "cancelled":
        return Explanation("it was cancelled; its log is kept", next=log_command)
    return Explanation("it was removed, or never launched", next="kinetic jobs list --all")


def _explain_live(handle: JobRecord, seen: Snapshot, diagnosis: Diagnosis | None) -> Explanation:
    if not locate.can_be_seen(handle):
        what = f"it is on {job_status.place_of(handle)}, and only there more of it can be seen"
        next_, show = "on that machine: ", f"kinetic jobs explain {handle.job_id}"
        if handle.host == locate.machine():
            next_ = "with the KINETIC_HOME that submitted it: "
        elif handle.host and (locate.runtime().parent / handle.host).is_dir():  # a renamed machine, or a container
            same = f"KINETIC_MACHINE_ID={handle.host} {show}"
            next_ = f"if this machine is the same under a new name: {same}     or {next_}"
        return Explanation(what, next=next_ + show)
    if handle.debug and seen.status.value == "RUNNING" and (debugged := _explain_debugged(handle)) is not None:
        return debugged
    if seen.observation is not None and seen.observation.warm and seen.observation.reason:
        why = "if its client has ended, who looks at it three minutes after that starts it in a pod of its own"
        return Explanation(seen.observation.reason, why, next=f"kinetic jobs wait {handle.job_id}")
    if diagnosis is None:  # not in the queue yet, or not any more
        return Explanation(seen.reason or "it is about to start", next="kinetic jobs list")
    what = diagnosis.what.removeprefix(f"{handle.job_id} ").removeprefix(f"{handle.job_id}: ")
    why, next_ = diagnosis.why, diagnosis.next
    if diagnosis.code == "image-missing" and job_status.lock_key(handle):
        why, next_ = "it was removed from the registry; who waits builds it again", f"kinetic jobs wait {handle.job_id}"
    is_startable = seen.status.value == "PENDING" and not what.startswith("waits for its ")
    if locate.is_here(handle) and is_startable and not locate.is_supervised():
        why = "no supervisor is running; the next command starts one"
    if seen.status.value == "RUNNING" and not why:
        why, next_ = _activity(handle, next_)
    return Explanation(what, why, next=next_)


def _activity(handle: JobRecord, next_: str) -> tuple[str, str]:
    """Return whether a running job seems to hang, or else how far it is; and what to do."""
    activity.stall_seconds(os.environ)  # a setting that cannot be read is an error of its own
    with contextlib.suppress(KineticError):
        if stalled := activity.stall_of(handle, os.environ):
            return stalled, f"kinetic jobs stacks {handle.job_id}"
        if (found := activity.progress_of(handle)) is not None:
            return activity.progress_text(found), next_
    return "", next_


def _explain_debugged(handle: JobRecord) -> Explanation | None:
    """Explain a job that waits for a debugger or has one; None for one that continued without."""
    from kinetic._inspect import port_forward  # subprocess among what it needs

    count = locate.hosts_of(handle)
    addresses = port_forward.debug_addresses(handle, range(count))
    attached = [host for host, address in addresses.items() if address.state == "attached"]
    waiting = [host for host, address in addresses.items() if address.state == "waiting"]
    if attached:
        to = "it" if count == 1 else _host_names(attached, count)
        return Explanation(f"a debugger is attached to {to}", next=f"kinetic jobs logs {handle.job_id} --follow")
    if not waiting:
        return None
    who = "it waits" if count == 1 else f"{_host_names(waiting, count)} {'wait' if waiting[1:] else 'waits'}"
    until = time.strftime("%H:%M:%S UTC", time.gmtime(max(addresses[host].until for host in waiting)))
    why = f"it was submitted with debug=True; its function starts when a debugger attaches, or at {until}"
    which = f" --host {waiting[0]}" if waiting[0] else ""
    return Explanation(f"{who} for a debugger", why, next=f"kinetic jobs debug {handle.job_id}{which}")


def _host_names(hosts: Sequence[int], count: int) -> str:
    """Name hosts of a slice: "hosts 0 to 5 and 7 of 8"."""
    words: list[str] = []
    left = list(hosts)
    while left:
        row = [host for at, host in enumerate(left) if host == left[0] + at]
        words += [f"{row[0]} to {row[-1]}"] if len(row) > 3 else map(str, row)
        del left[: len(row)]
    *most, last = words
    some = f"hosts {', '.join(most)} and {last}" if most else f"{'hosts' if hosts[1:] else 'host'} {last}"
    return f"{some} of {count}"


def _explain_failed(handle: JobRecord, seen: Snapshot) -> Explanation:
    error, outcome = job_error(handle, seen, log_is_shown=True), seen.outcome
    log = _last_lines(handle, outcome.host if outcome is not None else 0)
    log_command = results.log_command(outcome) if outcome is not None else f"kinetic jobs logs {handle.job_id}"
    phase = results.PHASES.get(outcome.phase, outcome.phase) if outcome is not None else ""
    has_reason = not log or outcome is None or outcome.cause in _CAUSES_WITH_A_REASON
    advice = str(outcome.error.get("next") or "") if outcome is not None else ""
    what = error.what.removeprefix(f"{handle.job_id}: ")  # what is explained begins with the id
    return Explanation(what, (error.why or "") if has_reason else "", phase, log, advice or log_command)


def _last_lines(handle: JobRecord, host: int = 0) -> tuple[str, ...]:
    log = logs.log_of(handle, host=host)
    lines = logs.tail(log, 4 * _LINES, most=_LOG_BYTES).splitlines()
    return tuple(plain(line) for line in lines if not results.is_our_frame(line))[-_LINES:]


def job_error(handle: JobRecord, seen: Snapshot, *, log_is_shown: bool = False) -> KineticError:
    """Return an error for a job that ended without a value; the user's exception is quoted and not loaded."""
    outcome = seen.outcome
    if outcome is None:
        if seen.status is JobStatus.FAILED:
            next_ = f"kinetic jobs logs {handle.job_id}"
            return JobError(f"{handle.func_name} was lost", why=seen.reason, next=next_, code="lost")
        from kinetic._jobs.handle import handle_of  # 6 ms; rare

        failed = handle_of(handle).exception(timeout=0) or JobError(f"{handle.job_id} has no result")
        return failed if isinstance(failed, KineticError) else JobError(str(failed))
    error = outcome.error
    if outcome.cause in {"exception", "exit"} and "type" in error:
        kind = error["type"] if error.get("module") in {None, "builtins"} else f"{error['module']}.{error['type']}"
        first, *_ = str(error.get("message", "")).splitlines() or [""]
        raised = JobError(
            f"{handle.func_name} raised {kind}{results.on_host(outcome)}"
            + (f": {first[:_LONGEST_SENTENCE]}" if first else ""),
            why="it was raised in the job; the traceback above is the job's",
            next=results.log_command(outcome),
            code="job-failed",
        )
        if not log_is_shown:
            results.attach_remote_traceback(raised, error.get("traceback"))
        return raised
    failed = results.failure_of(locate.store_of(handle), replace(outcome, body_length=0), handle.func_name)
    if log_is_shown and isinstance(failed, CommandError) and failed.code == CommandError.default_code:
        failed.why = None  # the last lines of a log that was just printed
    return failed if isinstance(failed, KineticError) else JobError(str(failed))
