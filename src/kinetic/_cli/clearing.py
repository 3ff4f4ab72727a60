"""Removing many jobs at once: which have ended, the question, and what became of it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic import _output as output
from kinetic._cli import asking, durations, tables
from kinetic._cli.tables import Column
from kinetic._output.format import age_text, size_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kinetic._cli.commands.ending import Wishes
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot

COLUMNS = (
    Column("JOB ID"),
    Column("FUNCTION", spare=2),
    Column("STATUS"),
    Column("ENDED", spare=1),
    Column("SIZE", right=True),
)


class Ended(NamedTuple):
    """A job that has ended, and what removing it frees."""

    handle: JobHandle
    seen: Snapshot
    when: float
    size_bytes: int


def clear(
    wishes: Wishes,
    *,
    older_than: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    place: Mapping[str, str | None],
) -> None:
    """Remove every job that has ended.

    Args:
        wishes: What of each.
        older_than: Seconds: only those that ended longer ago.
        dry_run: Show them, and remove nothing.
        yes: Do not ask.
        as_json: Print a document instead of a table.
        place: Where to look.

    Raises:
        OptionError: There is no terminal to ask in, and no --yes.
    """
    command = "kinetic jobs cleanup --all" + (f" --older-than {durations.written(older_than)}" if older_than else "")
    wishes.check(command)
    with output.phase("looking at the jobs", summary=False):
        found = _ended(place, older_than)
    if found and not as_json:
        tables.show(COLUMNS, [_cells(job) for job in found])
        sys.stdout.flush()
    if not found or dry_run:
        click.echo(_sentence(found, "would be removed", "nothing to remove: "), err=True)
        removed: list[Ended] = []
    else:
        if not yes and not _is_agreed(found, f"{command} --yes"):
            click.echo("nothing was removed", err=True)
            return
        removed = [job for job in found if _remove(job, wishes)]
        click.echo(f"{_sentence(removed, 'removed')}; their history: kinetic jobs list --all", err=True)
    if as_json:
        tables.document(jobs=[_page(job, removed=job in removed) for job in found])


def _ended(place: Mapping[str, str | None], older_than: float | None) -> list[Ended]:
    """Find the jobs that have ended or were cancelled, newest first, and long enough ago."""
    from kinetic._jobs import finding, places
    from kinetic._jobs.status import observe_many
    from kinetic._wire import names

    handles = finding.kept(**place)
    now, found = time.time(), []
    for handle, seen in zip(handles, observe_many(handles), strict=True):
        outcome = seen.outcome
        if not seen.status.is_final:
            continue
        when = (outcome.ended if outcome else None) or (seen.sighting.ended if seen.sighting else None)
        when = when or names.moment(handle.created_at) or now  # unknown: certainly not too old
        if older_than is None or now - when > older_than:
            size = sum(entry.size for entry in places.store_of(handle).entries(f"{handle.job_id}/"))
            found.append(Ended(handle, seen, when, size))
    return found


def _is_agreed(found: Sequence[Ended], command: str) -> bool:
    """Ask a person; where there is none, nothing is removed.

    Raises:
        OptionError: There is no terminal.
    """
    if not asking.can_ask():
        from kinetic.errors import OptionError

        raise OptionError(
            f"nothing was removed: {_count(found)} would be removed",
            why="not a terminal: pass --yes to confirm",
            next=command,
        )
    waiting = sum(job.seen.outcome is not None and job.seen.outcome.succeeded for job in found)
    results = (
        f", with {'1 uncollected result' if waiting == 1 else f'{waiting} uncollected results'}" if waiting else ""
    )
    return asking.is_agreed(f"Remove {_count(found)}{results}?")


def _remove(job: Ended, wishes: Wishes) -> bool:
    """Remove one job; one that cannot be removed does not keep the others."""
    from kinetic._jobs import removing
    from kinetic.errors import KineticError

    try:
        removing.remove(job.handle, job.seen, resource=wishes.resource, artifacts=wishes.artifacts, wait=wishes.timeout)
    except KineticError as error:
        click.echo(f"warning: {job.handle.job_id} could not be removed: {tables.plain(error.what)}", err=True)
        return False
    return True


def _sentence(jobs: Sequence[Ended], verb: str, start: str = "") -> str:
    return f"{start if not jobs else ''}{_count(jobs)} {verb}, {size_text(sum(job.size_bytes for job in jobs))}"


def _count(jobs: Sequence[Ended]) -> str:
    return "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _cells(job: Ended) -> list[str]:
    ended = f"{age_text(time.time() - job.when)} ago"
    return [job.handle.job_id, job.handle.func_name, _status(job), ended, size_text(job.size_bytes)]


def _status(job: Ended) -> str:
    """Return what a list with ``--all`` says as well: nobody else is shown that a cancelled job is NOT_FOUND."""
    outcome = job.seen.outcome
    cancelled = outcome is not None and outcome.status == "cancelled"
    return "CANCELLED" if cancelled else job.seen.status.value


def _page(job: Ended, *, removed: bool) -> dict[str, Any]:
    from kinetic._wire import names

    return {
        "job_id": job.handle.job_id,
        "function": job.handle.func_name,
        "status": _status(job),
        "ended_at": names.utc(job.when),
        "size_bytes": job.size_bytes,
        "removed": removed,
    }
