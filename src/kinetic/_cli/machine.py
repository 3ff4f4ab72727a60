"""``kinetic disk`` and ``kinetic key``: the disk space that kinetic uses, and the keys that seal results."""

from __future__ import annotations

import functools
import os
import time
from typing import IO, TYPE_CHECKING, Any

import click

from kinetic._cli import shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._output import format as output_format
from kinetic._output.format import Column, age_text, count_text, names_text, size_text
from kinetic.errors import OptionError, SettingsError

if TYPE_CHECKING:
    from kinetic._maintenance.garbage_collection import Removed
    from kinetic._maintenance.usage import Usage, Waiting

DISK_COLUMNS = (
    Column("WHAT"),
    Column("COUNT", right=True),
    Column("SIZE", right=True),
    Column("OLDEST", spare=1),
    Column("WHY", flexible=True, wraps=True, spare=2),
)
_NAMED = 5  # results named in the warning


@click.command
@click.option("--clean", is_flag=True, help="First remove expired files; never outputs or uncollected results.")
@shared_options.json_option
def disk(clean: bool, as_json: bool) -> None:
    """Show the disk space that kinetic uses, and why.

    Every file in the kinetic home and the runtime folder is in one of the rows. Most files are removed automatically;
    uncollected results are kept until you collect or remove them, and outputs are always kept. Sizes are exact;
    only folders of jobs, batches and history that have not changed since the last report are not read again.

    Example: kinetic disk --clean
    """
    from kinetic._jobs import locate
    from kinetic._jobs.status import value_age
    from kinetic._maintenance import garbage_collection, usage

    home, runtime = locate.home(), locate.runtime()
    store = locate.local_store()
    removed = garbage_collection.collect(store, home, runtime) if clean else None
    found, now = usage.measure(home, runtime, store, functools.partial(value_age, store)), time.time()
    if as_json:
        output_format.print_document(**_disk_page(found, now), removed=removed._asdict() if removed else None)
    else:
        rows = [
            [
                holding.name,
                str(holding.count),
                size_text(holding.size_bytes),
                f"{age_text(now - holding.oldest)} ago" if holding.oldest is not None else "",
                holding.why,
            ]
            for holding in found.holdings
            if holding.units
        ]
        output_format.print_table(DISK_COLUMNS, rows)
        places = output_format.plain(", ".join(map(os.fspath, found.places)))
        click.echo(f"{size_text(found.size_bytes)} in {places}", err=True)
    if removed is not None:
        click.echo(_removed_summary(removed), err=True)
    if overdue := found.overdue(now):
        _warn(overdue)


def _disk_page(found: Usage, now: float) -> dict[str, Any]:
    from kinetic._wire import keys

    overdue = {result.job_id for result in found.overdue(now)}
    return {
        "places": [os.fspath(place) for place in found.places],
        "size_bytes": found.size_bytes,
        "holdings": [
            {
                "what": holding.name,
                "count": holding.count,
                "size_bytes": holding.size_bytes,
                "oldest_at": keys.format_utc(holding.oldest) if holding.oldest is not None else None,
                "why": holding.why,
            }
            for holding in found.holdings
        ],
        "waiting_results": [
            {
                "job_id": result.job_id,
                "size_bytes": result.size_bytes,
                "ended_at": keys.format_utc(result.ended),
                "overdue": result.job_id in overdue,
            }
            for result in found.waiting
        ],
    }


def _removed_summary(removed: Removed) -> str:
    if not any(removed):
        return "there was nothing to remove"
    counts = [
        (removed.pages, "page", " of the cache"),
        (removed.environments, "environment", ""),
        (removed.payloads, "file", " that a job was sent"),
        (removed.data, "blob", " of data"),
        (removed.programs, "compiled program", ""),
    ]
    what = ", ".join(f"{count_text(count, noun)}{of}" for count, noun, of in counts if count)
    return f"removed: {what}; {size_text(removed.size_bytes)}"


def _warn(overdue: list[Waiting]) -> None:
    """Name the results that were not collected for long, and the commands that collect and remove them."""
    names = names_text([result.job_id for result in overdue], _NAMED)
    results = f"{count_text(len(overdue), 'result')} {'was' if len(overdue) == 1 else 'were'}"
    size = size_text(sum(result.size_bytes for result in overdue))
    click.echo(f"warning: {results} not collected for more than 30 days, {size}: {names}", err=True)
    click.echo(f"  collect: kinetic jobs result {overdue[0].job_id}", err=True)
    click.echo("  remove:  kinetic jobs cleanup --all --older-than 30d", err=True)


@click.group(cls=LazyGroup, path=["key"])
def key() -> None:
    """Export and import the keys that seal results.

    Every result has a seal that can be made only with the key, so that write access to a store is not enough to make
    this machine run code. Import the key of another machine to load its results. A key is a secret: everyone who has
    it can make results that you trust.

    Example: kinetic key export | ssh laptop kinetic key import
    """


@click.command("list")
@shared_options.json_option
def list_(as_json: bool) -> None:
    """List the keys of this machine.

    It prints their ids, not the keys.

    Example: kinetic key list
    """
    from kinetic._config import home as config_home
    from kinetic._config import target as settings

    home = settings.kinetic_home(os.environ)
    found = config_home.list_ids(home)
    if as_json:
        output_format.print_document(keys=[{"key_id": key_id} for key_id in found])
    elif found:
        output_format.print_table([Column("KEY ID")], [[key_id] for key_id in found])
    else:
        click.echo(f"There are no keys in {home}; the first job creates one", err=True)


@click.command
@click.argument("key_id", required=False, metavar="[KEY_ID]")
def export(key_id: str | None) -> None:
    """Print a key, for another machine.

    The key of this home without an id. Everyone who has it can make results that you trust: send it through a channel
    that only you can read.

    Example: kinetic key export > kinetic.key
    """
    from kinetic._config import home as config_home
    from kinetic._config import target as settings

    found: bytes | None
    if key_id is None:
        key_id, found = config_home.own_key(settings.ensure_home(os.environ))
    elif (found := config_home.find_key(home := settings.kinetic_home(os.environ), key_id)) is None:
        raise OptionError(
            f"there is no key {key_id!r} here",
            why=f"keys in {home}: {', '.join(config_home.list_ids(home)) or 'none'}",
            next="kinetic key list",
            code="no-such-key",
        )
    print(found.hex())
    click.echo(f"this is the key {key_id}; on the other machine run: kinetic key import", err=True)


@click.command("import")
@click.argument("file", type=click.File("r"), default="-", metavar="[FILE]")
def import_(file: IO[str]) -> None:
    """Add a key that another machine exported.

    It reads the key from FILE, or from standard input. Results sealed with it can then be loaded on this machine.

    Example: kinetic key import kinetic.key
    """
    from kinetic._config import home
    from kinetic._config import target as settings

    if file.isatty():  # click may wrap standard input, so the file need not be sys.stdin
        click.echo("Paste the key and press Return, then Ctrl-D:", err=True)
    try:
        key_id = home.add_key(settings.ensure_home(os.environ), file.read())
    except UnicodeDecodeError as error:
        raise SettingsError("this is not a valid key", why="it is not text") from error
    except SettingsError as error:
        error.next = error.next or "on the machine that has the key: kinetic key export"
        raise
    click.echo(f"imported the key {key_id}", err=True)
