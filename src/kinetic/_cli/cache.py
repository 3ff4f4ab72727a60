"""``kinetic cache``: the programs that jobs compiled, which are in the store for the next jobs."""

from __future__ import annotations

import os
import time

import click

from kinetic._cli import shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._config.options import read_size
from kinetic._output import format as output_format
from kinetic._output.format import Column, age_text, count_text, size_text
from kinetic.errors import OptionError

_COLUMNS = (
    Column("LIBRARY"),
    Column("HARDWARE"),
    Column("FILES", right=True),
    Column("SIZE", right=True),
    Column("LAST USE", right=True),
    Column("MACHINE", spare=2),
    Column("VERSIONS", flexible=True, spare=1),
)


@click.group(cls=LazyGroup, path=("cache",))
def cache() -> None:
    """List and remove programs that jobs compiled.

    JAX, torch.compile, Triton and vLLM find them in later jobs instead of compiling them again.

    Example: kinetic cache list
    """


@click.command("list")
@shared_options.json_option
def list_(as_json: bool) -> None:
    """List the compiled programs in the store, by library and hardware.

    Only jobs with the same accelerator, versions and processor as a row use its programs. The row that a job used last
    comes first.

    Example: kinetic cache list
    """
    from kinetic._config import home
    from kinetic._config import target as settings
    from kinetic._maintenance import compiled_programs
    from kinetic._wire import documents, keys

    store = shared_options.target_store()
    _, key = home.own_key(settings.ensure_home(os.environ))
    found = compiled_programs.usage(store, documents.cache_key(key, store.url))
    known = [each for each in found if each.files]
    others = sum(each.unverified for each in found)
    if as_json:
        groups = [
            {
                **each.group._asdict(),
                "files": each.files,
                "size_bytes": each.size_bytes,
                "used_at": keys.format_utc(each.used_at),
            }
            for each in known
        ]
        output_format.print_document(store=store.url, groups=groups, unverified=others)
        return
    if not known:
        click.echo(f"There are no compiled programs in {output_format.plain(store.url)}; jobs write them", err=True)
    else:
        now = time.time()
        rows = [
            [
                each.group.library,
                each.group.hardware,
                str(each.files),
                size_text(each.size_bytes),
                age_text(now - each.used_at),
                each.group.machine,
                each.group.versions.replace("+", " "),
            ]
            for each in known
        ]
        output_format.print_table(_COLUMNS, rows)
    if others:
        click.echo(f"{others} not shown: sealed with another key; no job of yours uses them", err=True)


@click.command
@shared_options.prune_options("60d")
@click.option("--keep", default="10Gi", metavar="SIZE", help="Then the oldest, beyond this size.  [default: 10Gi]")
@shared_options.json_option
def prune(older: float, keep: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove compiled programs that no job has used for long.

    Listing jobs does the same once a day with the defaults. A job that needs one of them compiles it again; one that
    runs at the moment keeps what it has.

    Example: kinetic cache prune --keep 2Gi
    """
    from kinetic._maintenance import compiled_programs, garbage_collection

    most_bytes = read_size(keep) if keep != "0" else 0
    if most_bytes is None:
        raise OptionError(
            f"--keep={keep!r} is not a size",
            why="a size is a number and its unit, such as 2Gi or 500Mi; 0 removes everything",
            next="kinetic cache prune --keep 2Gi",
        )
    store = shared_options.target_store()
    now = garbage_collection.now_in(store, time.time())
    found = compiled_programs.prune(store, now, seconds=older, most_bytes=most_bytes, dry_run=True)
    if any(found) and not dry_run:
        what = f"{count_text(found.files, 'compiled file')}, {size_text(found.size_bytes)}"
        refused = f"nothing was removed: {what} would be removed"
        if not yes and not shared_options.confirm(f"Remove {what}?", refused=refused):
            return
        found = compiled_programs.prune(store, now, seconds=older, most_bytes=most_bytes)
    if as_json:
        output_format.print_document(
            store=store.url, files=found.files, size_bytes=found.size_bytes, removed=not dry_run
        )
    elif not any(found):
        click.echo("there was nothing to remove", err=True)
    else:
        word = "would remove" if dry_run else "removed"
        click.echo(f"{word} {count_text(found.files, 'compiled file')}, {size_text(found.size_bytes)}", err=True)
