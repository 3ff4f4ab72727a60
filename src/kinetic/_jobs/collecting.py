"""Collecting: the verdict of a job becomes a value, or the exception that the caller should see."""

from __future__ import annotations

import contextlib
from typing import Any

from kinetic._jobs import mending, reading
from kinetic._output import tracebacks
from kinetic._stores.protocol import Store
from kinetic._wire import outcome as outcomes
from kinetic._wire.outcome import Outcome
from kinetic.errors import (
    IntegrityError,
    JobCancelledError,
    JobError,
    ResultNotPicklableError,
    ResultUnreadableError,
    RunnerError,
)

_LOG_LINES = 5
_OUR_FRAME = "/runners/"  # frames of the runner below the user's own: they tell nobody anything


def attach_remote_traceback(exception: BaseException, remote_traceback: str | None) -> BaseException:
    """Add the job's traceback to an exception as a note, where there is one, and return the same exception."""
    if remote_traceback and hasattr(exception, "add_note"):
        with contextlib.suppress(Exception):  # user classes may refuse notes
            exception.add_note(f"{tracebacks.REMOTE}{remote_traceback}")
    return exception


def value_of(store: Store, outcome: Outcome, function: str) -> Any:
    """Return the value of a job that succeeded, or raise what its failure means.

    Raises:
        Exception: The user's own exception, of its own type, with the remote traceback as a note.
        JobError: A failure without one: killed, out of memory, past its deadline, not picklable.
        RunnerError: A failure before the function began; it names the phase.
        JobCancelledError: The job was cancelled.
    """
    if outcome.succeeded:
        return reading.body_of(store, outcome)
    raise failure_of(store, outcome, function)


def failure_of(store: Store, outcome: Outcome, function: str) -> BaseException:
    """Return the exception that stands for a failed or cancelled job."""
    if outcome.status == outcomes.CANCELLED:
        return JobCancelledError(
            f"{outcome.job_id} was cancelled", why="it left no result", next=f"kinetic jobs cleanup {outcome.job_id}"
        )
    raised = _users_own(store, outcome)
    if raised is None:
        raised = _in_words(outcome, function)
    if mending.is_needed(outcome) and (said := mending.mend(store, outcome)):
        raised.add_note(said)
    if outcome.error.get("hosts", 1) > 1:
        raised.add_note(f"It happened on host {outcome.host} of {outcome.error['hosts']}.")
    if traceback := outcome.error.get("traceback"):
        traceback = f"{str(traceback).rstrip()}\n{tracebacks.LOG}kinetic jobs logs {outcome.job_id}"
    return attach_remote_traceback(raised, traceback)


def _users_own(store: Store, outcome: Outcome) -> BaseException | None:
    if not outcome.body_length:
        return None
    try:
        found = reading.body_of(store, outcome)
    except (ResultUnreadableError, IntegrityError):
        return None
    return found if isinstance(found, BaseException) else None


def _in_words(outcome: Outcome, function: str) -> BaseException:
    error = outcome.error
    message = str(error.get("message", ""))
    if outcome.cause == "runner":
        return RunnerError(
            error.get("what") or f"{function} did not begin: {error.get('type')}: {message}",
            phase=outcome.phase,
            why=error.get("why") or f"it failed in the phase {outcome.phase!r}",
            next=error.get("next") or f"kinetic jobs logs {outcome.job_id}",
        )
    if outcome.cause in {"exception", "exit"} and "type" in error:
        return JobError(
            f"{function} raised {error.get('module')}.{error.get('type')}: {message}",
            why=_why_not_here(error),
            next=f"kinetic jobs logs {outcome.job_id}",
            code="exception-not-here",
        )
    if outcome.cause == "serialization":
        return _not_picklable(outcome, function)
    return JobError(
        f"{function} failed: {message}",
        why=_last_lines(error.get("log", "")),
        next=error.get("next") or f"kinetic jobs logs {outcome.job_id}",
        code=outcome.cause or "job-failed",
    )


def _why_not_here(error: dict[str, Any]) -> str:
    if error.get("not_delivered"):
        return f"the exception itself could not be brought here: {error['not_delivered']}"
    return "the exception's class is not on this machine"


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


def _last_lines(log: str) -> str | None:
    lines = [line for line in log.splitlines() if line.strip() and _OUR_FRAME not in line][-_LOG_LINES:]
    return "the last lines of its log:\n       " + "\n       ".join(lines) if lines else None
