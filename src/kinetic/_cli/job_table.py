"""The table of ``kinetic jobs list``: which jobs it has, in which order, and one row for a batch of many jobs."""

from __future__ import annotations

import contextlib
import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._output.format import Column, age_text, duration_cell

if TYPE_CHECKING:
    from kinetic._wire.records import Group

Page = dict[str, Any]

COLUMNS = (
    Column("JOB ID"),
    Column("FUNCTION", spare=2),
    Column("STATUS"),
    Column("REASON", flexible=True, spare=1),
    Column("ACCELERATOR", spare=4),
    Column("WHERE", spare=5),
    Column("AGE", spare=2),
    Column("DURATION", right=True, spare=3),
)
# What a batch is as a whole: the first of these that one of its jobs is.
_STATUSES = ("RUNNING", "PENDING", "FAILED", "CANCELLED", "SUCCEEDED", "NOT_FOUND")
# What --sort takes, and which of the two ends comes first.
SORTS = {"age": True, "duration": True, "status": False, "function": False, "accelerator": False, "where": False}


class Filters(NamedTuple):
    """Which jobs are meant; all of these must hold.

    Attributes:
        statuses: One of these; none means any.
        function: The name of the function.
        since: Seconds: made no longer ago than this.
        older_than: Seconds: made longer ago than this.
        name: A pattern for the name of the job's batch.
        tags: Tags of the job's batch, as KEY=VALUE or KEY.
        where: Part of where it runs.
    """

    statuses: frozenset[str] = frozenset()
    function: str | None = None
    since: float | None = None
    older_than: float | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    where: str | None = None

    def may_hold(self, function: str, created_at: str, now: float) -> bool:
        """Say whether a job passes, as far as can be said without looking at it."""
        from kinetic._wire import names

        age = now - (names.moment(created_at) or 0.0)
        return (
            self.function in {None, function}
            and (self.since is None or age <= self.since)
            and (self.older_than is None or age > self.older_than)
        )

    def holds(self, page: Page, group: Group | None) -> bool:
        """Say whether a job passes that was looked at.

        Args:
            page: What is known of the job.
            group: The manifest of its batch, or None.
        """
        tags = group.tags if group is not None else {}
        known = {*tags, *(f"{name}={value}" for name, value in tags.items())}
        called = (group.group_name if group is not None else None) or ""
        return (
            (not self.statuses or page["status"] in self.statuses)
            and (self.name is None or fnmatch.fnmatchcase(called, self.name))
            and known.issuperset(self.tags)
            and (self.where is None or self.where.lower() in page["where"].lower())
        )

    @property
    def needs_groups(self) -> bool:
        """Whether the manifests of batches are needed to know which jobs pass."""
        return self.name is not None or bool(self.tags)


def groups_of(pages: Sequence[Page], stores: Mapping[str, str]) -> dict[str, Group]:
    """Read the manifests of the batches that jobs belong to; one that cannot be read is left out.

    Args:
        pages: What is known of the jobs.
        stores: For the jobs, where each lies.
    """
    wanted = {page["group_id"]: stores.get(page["job_id"]) for page in pages if page["group_id"]}
    if not wanted:
        return {}
    from kinetic._batches import batch
    from kinetic._stores import open_store
    from kinetic.errors import KineticError

    found: dict[str, Group] = {}
    for group_id, store in wanted.items():
        with contextlib.suppress(KineticError):  # cleaned up meanwhile, or damaged: its jobs are shown all the same
            if store:
                found[group_id] = batch.load(open_store(store), group_id)
    return found


def sorted_by(pages: Sequence[Page], column: str, *, reverse: bool) -> list[Page]:
    """Sort rows by a column; those that come newest first stay so among equals."""
    if column == "age":
        return list(reversed(pages)) if reverse else list(pages)
    if column == "duration":
        return sorted(pages, key=lambda page: page["duration_seconds"] or 0.0, reverse=SORTS[column] != reverse)
    return sorted(pages, key=lambda page: str(page[column]), reverse=SORTS[column] != reverse)


def folded(pages: Sequence[Page], groups: Mapping[str, Group]) -> list[Page]:
    """Put the jobs of each batch into one row, in the place of the newest of them."""
    of_batch: dict[str, list[Page]] = {}
    for page in pages:
        of_batch.setdefault(page["group_id"] or "", []).append(page)
    shown: list[Page] = []
    for page in pages:
        group_id = page["group_id"]
        if not group_id:
            shown.append(page)
        elif of_batch.get(group_id):
            shown.append(_row_of(group_id, of_batch.pop(group_id), groups.get(group_id)))
    return shown


def cells(page: Page, now: float) -> list[str]:
    """Write what is known of a job, or of a batch, as a row."""
    what = "collected" if page["collected_at"] else "removed"
    removed = f"{what} {_age(page['removed_at'], now)} ago" if page["removed_at"] else ""
    beside = f" ({page['emulation']})" if page["emulation"] else ""
    return [
        page["job_id"],
        page["function"],
        page["status"],
        "; ".join(filter(None, (page["reason"], removed))),
        page["accelerator"] + beside,
        page["where"],
        _age(page["created_at"], now),
        duration_cell(page["duration_seconds"]),
    ]


def _row_of(group_id: str, pages: Sequence[Page], group: Group | None) -> Page:
    counts = Counter(page["status"] for page in pages)
    status = next((word for word in _STATUSES if counts[word]), pages[0]["status"])
    total = group.total_expected if group is not None else len(pages)
    which = f"{len(pages)} jobs" if total == len(pages) else f"{len(pages)} of {total} jobs"
    name = f" of {group.group_name}" if group is not None and group.group_name else ""
    told = ", ".join(f"{counts[word]} {word}" for word in _STATUSES if counts[word])
    begun = [page["started_at"] for page in pages if page["started_at"]]
    return {
        **pages[0],
        "job_id": group_id,
        "status": status,
        "reason": f"batch: {which}{name}: {told}",
        "created_at": min(page["created_at"] for page in pages),
        "collected_at": None,
        "removed_at": None,
        "duration_seconds": _span(begun, [page["ended_at"] for page in pages]),
    }


def _span(begun: Sequence[str], ended: Sequence[str | None]) -> float | None:
    """Return the seconds from the first start to the last end; None while something has not ended."""
    from kinetic._wire import names

    last = max((each for each in ended if each), default="")
    start, end = names.moment(min(begun, default="")), names.moment(last)
    return max(end - start, 0.0) if start is not None and end is not None and all(ended) else None


def _age(written: str, now: float) -> str:
    """Write how long ago a time was that is written as everything durable writes it."""
    from kinetic._wire import names

    moment = names.moment(written)
    return written if moment is None else age_text(now - moment)
