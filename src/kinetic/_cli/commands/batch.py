"""``kinetic batch``: the group, and the list of batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kinetic._cli import batches, options, tables, tree
from kinetic._cli.lazy import LazyGroup, show_help_alone
from kinetic._cli.tables import Column
from kinetic._output.format import age_text
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._cli.batches import Batch, Standing
    from kinetic._stores.protocol import Store
    from kinetic._wire.group import Group

COLUMNS = (
    Column("BATCH"),
    Column("NAME", flexible=True, spare=3),
    Column("FUNCTION", spare=2),
    Column("JOBS", right=True),
    Column("STATUS", flexible=True),
    Column("SUBMITTED BY", spare=4),
    Column("AGE", spare=1),
)


@click.group(
    cls=LazyGroup,
    later=tree.below("batch"),
    aliases={"ls": "list"},
    epilog="GROUP is the id of a batch, a unique beginning of it, or @last or - for the newest one. "
    "INDEX is the position of an input in the submitted list, from 0.",
)
@click.pass_context
def batch(ctx: click.Context) -> None:
    """List, inspect, collect, cancel and resume batches.

    Submit a batch in Python, with f.run_async_map(inputs).

    Example: kinetic batch status @last --watch
    """
    show_help_alone(ctx)


@click.command("list")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show only the N newest.")
@options.where
@options.as_json
def list_(limit: int | None, as_json: bool, project: str | None, zone: str | None, cluster: str | None) -> None:  # noqa: ARG001 - a batch is found without its zone
    """List batches, newest first.

    SUBMITTED BY is the process that submits the remaining inputs and the retries.

    Example: kinetic batch list --limit 10
    """
    from kinetic._batches import finding

    store = finding.store_of(project, cluster)
    newest = sorted(finding.groups(store), key=lambda group: group.created, reverse=True)[:limit]
    seen = list(filter(None, (_standing_of(group, store) for group in newest)))
    if as_json:
        tables.document(batches=[batches.page_of(*each) for each in seen])
        return
    if not newest:
        click.echo("There are no batches; f.run_async_map(inputs) submits one", err=True)
        return
    now = time.time()
    tables.show(COLUMNS, [_cells(*each, now) for each in seen])
    left = [each for each, standing in seen if standing.is_left]
    for each in left[:1]:
        more = f", as do {len(left) - 1} more" if len(left) > 1 else ""
        click.echo(f"{each.group.group_id} is only partly submitted{more}", err=True)
        click.echo(f"next:  kinetic batch resume {each.group.group_id}", err=True)


def _standing_of(group: Group, store: Store) -> tuple[Batch, Standing] | None:
    """Look at a batch; one that cannot be looked at costs a line that names it, and hides no other."""
    from kinetic._batches import finding

    try:
        found = batches.Batch(group, finding.handle_of(group, store))
        return found, batches.standing_of(found)
    except Exception as error:  # noqa: BLE001 - as above
        what = error.what if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"
        click.echo(f"warning: {group.group_id} is not listed: {tables.plain(what)}", err=True)
        return None


def _cells(batch: Batch, standing: Standing, now: float) -> list[str]:
    from kinetic._batches import tally

    group = batch.group
    return [
        group.group_id,
        group.group_name or "",
        group.submit_fn_name,
        str(group.total_expected),
        tally.told(standing.counts),
        batches.driver_of(standing),
        age_text(now - group.created),
    ]
