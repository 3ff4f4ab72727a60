"""What became of a job, for standard output: its value as text or JSON, or its failure as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetic._output import format as output_format

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.outcome import Outcome
    from kinetic.errors import KineticError


def value_of(handle: JobHandle, outcome: Outcome) -> Any:
    """Open the value; where its modules are missing, say how they can be had."""
    from kinetic._jobs import locate, results
    from kinetic.errors import ResultUnreadableError

    try:
        return results.value_of(locate.store_of(handle), outcome, handle.func_name)
    except ResultUnreadableError as error:
        error.next = (
            f"run in the project's folder: PYTHONPATH=. kinetic jobs result {handle.job_id}     "
            f"or save it without loading: kinetic jobs result {handle.job_id} --save result.pkl"
        )
        raise


def head(handle: JobHandle, outcome: Outcome | None, *, status: str = "SUCCEEDED") -> dict[str, Any]:
    """Return which job it was, and when."""
    from kinetic._wire import names

    return {
        "job_id": handle.job_id,
        "function": handle.func_name,
        "status": status,
        "started_at": names.utc(outcome.started) if outcome and outcome.started else None,
        "ended_at": names.utc(outcome.ended) if outcome and outcome.ended else None,
    }


def page_of(value: Any) -> dict[str, Any]:
    """Return the value if JSON can hold it, else what Python writes for it; and its type in any case."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return {"type": kind, "value": value} if output_format.jsonable(value) else {"type": kind, "repr": repr_of(value)}


def repr_of(value: object) -> str:
    """Return what Python writes for a value; that may itself fail."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - the value's class is the user's
        return f"<{type(value).__qualname__} whose repr fails: {type(error).__name__}>"


def failure(handle: JobHandle, seen: Snapshot, told: KineticError) -> dict[str, Any]:
    """Return what is known of a job that left no value."""
    error = dict(seen.outcome.error) if seen.outcome is not None else {}
    error = error if output_format.jsonable(error) else {"message": str(error.get("message", ""))}
    return {**head(handle, seen.outcome, status=seen.status.value), "error": {**error, "told": told.what}}
