"""``kinetic batch results``: wait for a batch, then print its values or save them.

As ``kinetic jobs result`` does for one job: what is printed is not a copy, so nothing is removed unless ``--cleanup``
asks for it, and then only what was written, after it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import batch as batch_command
from kinetic._cli import job_results, shared_options
from kinetic._output import format as output_format
from kinetic._output.format import count_text
from kinetic._wire import dataclass, folders
from kinetic.errors import JobCancelledError, JobError, KineticError, ResultMissingError

if TYPE_CHECKING:
    from kinetic._batches.report import FoundBatch
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot

_NAMED = 5  # failures in the error
_LONGEST = 200  # characters of one


@dataclass(frozen=True)
class InputResult:
    """The value of one input, or why there is none; without a job when it was not submitted."""

    index: int
    handle: JobHandle | None = None
    seen: Snapshot | None = None
    failure: KineticError | None = None
    value: Any = None


@click.command
@batch_command.batch_argument
@shared_options.timeout_option("Stop waiting")
@shared_options.save_options(
    "Save the values instead of printing them: a pickled list in input order, None for each failed one.",
    "Remove the jobs that succeeded",
)
@shared_options.json_option
def results(
    batch: FoundBatch, timeout: float | None, save: Path | None, force: bool, cleanup: bool, as_json: bool
) -> None:
    """Wait for a batch and print its values, or save them.

    One line per input, in order: its index, and the repr of the value. Failed inputs are listed on standard
    error, with exit code 125. The results are kept unless you pass --cleanup.

    Example: kinetic batch results @last --save losses.pkl
    """
    from kinetic._batches import report

    job_results.check_save_path(save, force=force)
    batch_command.wait_for(batch, timeout)
    collected: list[InputResult] = []
    pages: list[dict[str, Any]] = []
    for found in _input_results(batch):
        if as_json:
            pages.append(_result_page(batch, found, with_value=save is None))
        elif found.failure is None and save is None:
            print(f"[{found.index}] {output_format.value_repr(found.value)}")
        collected.append(found if save is not None else replace(found, value=None))
    if save is not None:
        size = _save(save, [found.value for found in collected])
        there = sum(found.failure is None for found in collected)
        saved = count_text(there, "result") if there == len(collected) else f"{there} of {len(collected)} results"
        click.echo(f"saved {saved} to {save}, a pickle of {size} bytes", err=True)
    if as_json:
        place = {} if save is None else {"saved_to": str(save)}
        output_format.print_document(group_id=batch.group.group_id, **place, results=pages)
    sys.stdout.flush()
    if cleanup:
        _remove(batch, collected)
    batch_command.report_unsubmitted(batch, report.batch_state(batch))
    failed = [found for found in collected if found.failure is not None]
    if failed:
        raise _failure(batch, failed)


def _input_results(batch: FoundBatch) -> Iterator[InputResult]:
    """Yield the result of each input; one value at a time is in memory."""
    from kinetic._jobs import locate
    from kinetic._jobs.status import observe_many

    locate.group_key(batch.group)  # nothing of a store is used unverified
    jobs = batch.handle.jobs
    looks = iter(observe_many([job for job in jobs if job is not None]))
    for index, job in enumerate(jobs):
        if job is None:
            error: Exception | None = batch.handle.submission_failures.get(index)
            if error is None:
                error = JobCancelledError("it was not submitted", next=f"kinetic batch status {batch.group.group_id}")
            failure = error if isinstance(error, KineticError) else KineticError(str(error))
            yield InputResult(index, failure=failure)
            continue
        seen = next(looks)
        try:
            if seen.outcome is not None and seen.outcome.succeeded:
                yield InputResult(index, job, seen, value=job_results.load_value(job, seen.outcome))
            else:
                yield InputResult(index, job, seen, _no_value(batch, index, job, seen))
        except KineticError as failure:  # damaged, or of a class that is not here; the others are shown
            yield InputResult(index, job, seen, failure)


def _no_value(batch: FoundBatch, index: int, job: JobHandle, seen: Snapshot) -> KineticError:
    """Return why a job gives no value: it failed, was cancelled, or was collected or removed before."""
    from kinetic._batches import state
    from kinetic._inspect import explanation
    from kinetic._jobs import locate

    now = state.state_of(state.tracker_of(batch.handle), index)
    if seen.outcome is not None or now not in {state.SUCCEEDED, state.REMOVED}:
        return explanation.job_error(job, seen)
    if locate.is_collected(seen.past):
        logs = f"kinetic jobs logs {job.job_id}"
        return ResultMissingError("its result was already collected; its log is kept", next=logs, code="collected")
    return ResultMissingError("it was already removed", next="kinetic jobs list --all")


def _result_page(batch: FoundBatch, found: InputResult, *, with_value: bool) -> dict[str, Any]:
    from kinetic._batches import report

    head: dict[str, Any] = {"index": found.index, "input": report.input_text(batch, found.index)}
    if found.handle is None or found.seen is None:
        error = {} if found.failure is None else {"told": found.failure.what, "code": found.failure.code}
        return {**head, "job_id": None, "status": None, "error": error}
    if found.failure is not None:
        return {**head, **job_results.failure_page(found.handle, found.seen, found.failure)}
    value = output_format.value_page(found.value) if with_value else {}
    return {**head, **job_results.job_page(found.handle, found.seen.outcome), **value}


def _save(path: Path, values: list[Any]) -> int:
    """Write the values into a file, whole or not at all, and return its size."""
    import pickle

    try:
        with folders.replaced(path, mode=0o666) as file:
            pickle.dump(values, file)
            size = file.tell()
    except Exception as error:
        raise KineticError(
            f"the results could not be saved to {path}",
            why=f"{type(error).__name__}: {error}; they are still in the store",
            next="use a file on another disk, or collect them in Python with kinetic.attach_batch",
            code="not-saved",
        ) from error
    return size


def _remove(batch: FoundBatch, collected: list[InputResult]) -> None:
    """Remove the jobs whose values have been written; a failure is a warning, since nothing is lost."""
    from kinetic._batches import removal, state

    handles = [found.handle for found in collected if found.handle is not None and found.failure is None]
    try:
        removal.after_collection(handles, state.tracker_of(batch.handle))
    except (KineticError, OSError) as error:
        click.echo(f"warning: not all of it could be removed: {error}", err=True)


def _failure(batch: FoundBatch, failed: list[InputResult]) -> KineticError:
    """Return an error with the number of failed inputs, and the first of them."""
    from kinetic._batches import report

    lines = []
    for found in failed[:_NAMED]:
        what = output_format.plain(found.failure.what if found.failure is not None else "")[:_LONGEST]
        lines.append(f"[{found.index}] input {report.input_text(batch, found.index)}: {what}")
    if len(failed) > _NAMED:
        lines.append(f"and {len(failed) - _NAMED} more")
    group_id, total = batch.group.group_id, batch.group.total_expected
    kind = ResultMissingError if all(isinstance(found.failure, ResultMissingError) for found in failed) else JobError
    what = f"{len(failed)} of {total} inputs of {group_id} have no result"
    return kind(what, why="\n".join(lines), next=f"kinetic batch status {group_id}")
