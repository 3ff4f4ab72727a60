"""``kinetic disk``: what kinetic's files hold and why, and how what is not needed goes."""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import shared_options
from kinetic._output import format as output_format
from kinetic._output.format import Column, age_text, size_text

if TYPE_CHECKING:
    from kinetic._maintenance.garbage_collection import Removed
    from kinetic._maintenance.usage import Holding, Usage, Waiting

COLUMNS = (
    Column("WHAT"),
    Column("COUNT", right=True),
    Column("SIZE", right=True),
    Column("OLDEST", spare=1),
    Column("WHY", flexible=True, spare=2),
)
_NAMED = 5  # results named in the warning


@click.command
@click.option("--clean", is_flag=True, help="First remove expired files; never outputs or uncollected results.")
@shared_options.as_json
def disk(clean: bool, as_json: bool) -> None:
    """Show the disk space that kinetic uses, and why.

    Every file in the kinetic home and the runtime folder is in one of the rows. Most files are removed automatically;
    uncollected results are kept until you collect or remove them, and outputs are always kept. Sizes are exact;
    only folders of jobs, batches and history that have not changed since the last report are not read again.

    Example: kinetic disk --clean
    """
    from kinetic._jobs import locate
    from kinetic._jobs.status import value_since
    from kinetic._maintenance import garbage_collection, usage

    home, runtime = locate.home(), locate.runtime()
    store = locate.local_store()
    swept = garbage_collection.collect(store, home, runtime) if clean else None
    found, now = usage.measure(home, runtime, store, functools.partial(value_since, store)), time.time()
    if as_json:
        output_format.document(**_page(found, now), removed=swept._asdict() if swept else None)
    else:
        output_format.show(COLUMNS, [_cells(holding, now) for holding in found.holdings if holding.units])
        click.echo(
            f"{size_text(found.size_bytes)} in {output_format.plain(', '.join(map(os.fspath, found.places)))}", err=True
        )
    if swept is not None:
        click.echo(_told(swept), err=True)
    if overdue := found.overdue(now):
        _warn(overdue)


def _cells(holding: Holding, now: float) -> list[str]:
    oldest = f"{age_text(now - holding.oldest)} ago" if holding.oldest is not None else ""
    return [holding.name, str(holding.count), size_text(holding.size_bytes), oldest, holding.why]


def _page(found: Usage, now: float) -> dict[str, Any]:
    from kinetic._wire import names

    overdue = {result.job_id for result in found.overdue(now)}
    return {
        "places": [os.fspath(place) for place in found.places],
        "size_bytes": found.size_bytes,
        "holdings": [
            {
                "what": holding.name,
                "count": holding.count,
                "size_bytes": holding.size_bytes,
                "oldest_at": names.utc(holding.oldest) if holding.oldest is not None else None,
                "why": holding.why,
            }
            for holding in found.holdings
        ],
        "waiting_results": [
            {
                "job_id": result.job_id,
                "size_bytes": result.size_bytes,
                "ended_at": names.utc(result.ended),
                "overdue": result.job_id in overdue,
            }
            for result in found.waiting
        ],
    }


def _told(swept: Removed) -> str:
    if not any(swept):
        return "there was nothing to remove"
    kinds = {"pack": swept.packs, "page of the cache": swept.pages, "environment": swept.environments}
    kinds |= {"file that a job was sent": swept.payloads, "blob of data": swept.data}
    what = ", ".join(f"{count} {name if count == 1 else _plural(name)}" for name, count in kinds.items() if count)
    return f"removed: {what}; {size_text(swept.size_bytes)}"


def _plural(name: str) -> str:
    word, space, rest = name.partition(" ")
    return f"{word}s{space}{rest}"


def _warn(overdue: list[Waiting]) -> None:
    """Name the results that have waited for long, and the commands that collect and remove them."""
    names = ", ".join(result.job_id for result in overdue[:_NAMED])
    more = f" and {len(overdue) - _NAMED} more" if len(overdue) > _NAMED else ""
    many = f"{len(overdue)} results were" if len(overdue) > 1 else "1 result was"
    size = size_text(sum(result.size_bytes for result in overdue))
    click.echo(f"warning: {many} not collected for more than 30 days, {size}: {names}{more}", err=True)
    click.echo(f"  collect: kinetic jobs result {overdue[0].job_id}", err=True)
    click.echo("  remove:  kinetic jobs cleanup --all --older-than 30d", err=True)
