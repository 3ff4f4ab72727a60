"""``kinetic batch logs``: what one job of a batch printed, or which of them printed something."""

from __future__ import annotations

import functools
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import job_logs, shared_options
from kinetic._cli.batch import batch_argument
from kinetic._output.format import count_text
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._batches.report import FoundBatch
    from kinetic._jobs.handle import JobHandle

_AT_ONCE = 64  # logs that are read ahead of the one that is printed
_IN_MEMORY_BYTES = 1 << 20  # of each; the rest of what is printed of it waits in a temporary file


@click.command
@batch_argument
@click.argument("index", type=click.IntRange(min=0), metavar="[INDEX]", required=False)
@click.option("--failed", "only_failed", is_flag=True, help="Without INDEX: show only the logs of inputs that failed.")
@shared_options.log_options
@click.pass_context
def logs(
    ctx: click.Context,
    /,
    batch: FoundBatch,
    index: int | None,
    attempt: int | None,
    only_failed: bool,
    **options: Any,
) -> None:
    """Print the log of one job of a batch, or of all of them.

    INDEX is the position of the input, from 0. Each attempt of an input is a job with its own log. Without INDEX, it
    prints the newest attempts of all inputs in their order, with the index before each line; --tail is for each log.

    Example: kinetic batch logs @last 3 --follow

    Example: kinetic batch logs @last --search nan
    """
    if index is None:
        _refuse_for_all(batch, attempt=attempt, **options)
        _print_all(batch, only_failed=only_failed, **options)
        return
    if only_failed:
        raise click.UsageError("--failed cannot be used together with INDEX")
    job_id = _job_id(batch, index, attempt)
    # The attempt selected the job; within the job it is the newest one.
    ctx.invoke(job_logs.logs, job_id=job_id, attempt=None, **options)


def _refuse_for_all(batch: FoundBatch, *, attempt: int | None, follow: bool, raw: bool, **_others: Any) -> None:
    group_id = batch.group.group_id
    for option, is_given in {"--follow": follow, "--raw": raw, "--attempt": attempt is not None}.items():
        if is_given:
            whole = f"kinetic batch logs {group_id} 0 {option}{f' {attempt}' if option == '--attempt' else ''}"
            progress = f"     or follow the progress of all: kinetic batch status {group_id} --watch"
            raise OptionError(
                f"{option} requires INDEX",
                why="without one, the logs of all inputs are printed one after the other",
                next=whole + (progress if follow else ""),
            )


def _print_all(batch: FoundBatch, *, only_failed: bool, host: str, **given: Any) -> None:
    """Print the logs of all inputs in their order, reading some of them ahead."""
    from kinetic._batches import report, state
    from kinetic._jobs import locate
    from kinetic._output.job_text import JobOutput
    from kinetic._stores import parallel

    given = {name: value for name, value in given.items() if name not in ("follow", "raw")}
    request = job_logs.LogRequest(attempt=None, **{**given, "search": given["search"] or ""})
    job_logs.check_times(request, f"kinetic batch logs {batch.group.group_id}")
    state.refreshed(batch.handle)
    rows, _ = report.rows_of(batch, only_failed=only_failed, limit=None)
    jobs = [(row.index, job) for row in rows if (job := batch.handle.jobs[row.index]) is not None]
    out, without = JobOutput(lambda: sys.stdout), len(rows) - len(jobs)
    for some in _in_pieces(jobs):
        tasks = [functools.partial(_read, index, job, host, request) for index, job in some]
        found: dict[int, _Held | None] = {}
        try:
            found.update(parallel.in_parallel(locate.store_of(some[0][1]), tasks))
            for index, _ in some:
                without += found[index] is None
                for block in _blocks(found[index]):
                    out.write_bytes(block)
        finally:
            for text in filter(None, found.values()):
                text.close()
    out.end()
    sys.stdout.flush()
    if without:
        click.echo(f"{count_text(without, 'input')} {'has' if without == 1 else 'have'} no log", err=True)


def _in_pieces(jobs: Iterable[tuple[int, JobHandle[Any]]]) -> Iterator[list[tuple[int, JobHandle[Any]]]]:
    rest = iter(jobs)
    while some := list(itertools.islice(rest, _AT_ONCE)):
        yield some


class _Held(tempfile.SpooledTemporaryFile[bytes]):
    """Holds what is to be printed of a log until its turn comes."""

    def write_bytes(self, data: bytes) -> int:
        return self.write(data)

    def end(self) -> None:
        """Let it be read from its beginning."""
        self.seek(0)


def _read(index: int, job: JobHandle[Any], host: str, request: job_logs.LogRequest) -> tuple[int, _Held | None]:
    """Read what is asked for of one job's log; None where there is no log."""
    held, is_there = _Held(_IN_MEMORY_BYTES), False
    out: job_logs.LogOutput = held
    if request.search and request.tail is not None:
        out = job_logs.LastLines(out, request.tail)
    for number in job_logs.hosts_of(job, host):
        prefix = f"[{index}] [host {number}] " if host == "all" else f"[{index}] "
        lines = job_logs.LogLines(out, prefix=prefix, times=request.timestamps, search=request.search)
        is_there |= job_logs.print_log(job, number, lines, request)
        lines.end()
    out.end()
    if is_there:
        return index, held
    held.close()
    return index, None


def _blocks(held: _Held | None) -> Iterator[bytes]:
    while held is not None and (block := held.read(_IN_MEMORY_BYTES)):
        yield block


def _job_id(batch: FoundBatch, index: int, attempt: int | None) -> str:
    """Return the id of the job that ran an input."""
    group_id, total = batch.group.group_id, batch.group.total_expected
    if index >= total:
        raise OptionError(
            f"{group_id} has no input {index}",
            why=f"it has {total} inputs, counted from 0",
            next=f"kinetic batch logs {group_id} {total - 1}",
        )
    from kinetic._batches import display, state

    newest = state.refreshed(batch.handle).attempts[index]
    if newest < 0:
        error = batch.handle.submission_failures.get(index)
        raise OptionError(
            f"input {index} of {group_id} has no log",
            why=f"it could not be submitted: {display.first_line(error)}" if error else "it is not submitted yet",
            next=f"kinetic batch status {group_id}",
        )
    if attempt is not None and attempt > newest:
        raise OptionError(
            f"input {index} of {group_id} has no attempt {attempt}",
            why=f"attempts are counted from 0, and the newest is {newest}",
            next=f"kinetic batch logs {group_id} {index} --attempt {newest}",
        )
    return batch.group.child_id(index, newest if attempt is None else attempt)
