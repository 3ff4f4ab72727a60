"""``kinetic package --dry-run``: what would go with a job, and why the rest would not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetic._cli import shared_options
from kinetic._output import format as output_format
from kinetic._output.format import Column, size_text

if TYPE_CHECKING:
    from kinetic._project.dry_run import ListedPath, Listing

COLUMNS = (Column("INCLUDED"), Column("SIZE", right=True), Column("PATH"), Column("REASON", flexible=True, spare=1))


@click.command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.py")
@click.option("--dry-run", is_flag=True, help="Required: show the files, and upload nothing.")
@shared_options.as_json
def package(file: Path, dry_run: bool, as_json: bool) -> None:
    """Show which files would be sent with a job.

    It lists every path of the project of FILE.py: the files that a job submitted by `python FILE.py` would get, and
    the files that are left out, with the reason. Exclude files with .kineticignore in the project's folder.

    Example: kinetic package --dry-run train.py
    """
    if not dry_run:
        raise click.UsageError("pass --dry-run: a package is built only when a job is submitted")
    listing = _listing(file)
    if as_json:
        output_format.document(**_page(listing))
    elif listing.entries:
        output_format.show(COLUMNS, [_cells(entry) for entry in listing.entries])
    for note in listing.notes:
        click.echo(output_format.plain(note), err=True)
    if listing.problem:
        from kinetic.errors import ProjectRootError

        raise ProjectRootError(
            listing.problem,
            why=_told(listing),
            next="exclude files that the job does not need in .kineticignore",
            code="project-too-large",
        )
    click.echo(_told(listing), err=True)


def _listing(file: Path) -> Listing:
    """List the project without what never ships from here: kinetic's own folders."""
    from kinetic import _config as settings
    from kinetic._jobs import locate
    from kinetic._project import dry_run, root
    from kinetic._wire import output_paths

    plan = root.plan_for_file(file)
    written = output_paths.not_shipped(output_paths.chosen(None, os.environ), plan.folders())
    return dry_run.list_project(plan, exclude=(settings.kinetic_home(os.environ), locate.runtime(), *written))


def _told(listing: Listing) -> str:
    files = "1 file" if listing.files == 1 else f"{listing.files} files"
    return f"{files}, {size_text(listing.bytes)}, would be sent from {listing.root}"


def _page(listing: Listing) -> dict[str, object]:
    return {
        "root": listing.root,
        "files": listing.files,
        "size_bytes": listing.bytes,
        "entries": [
            {"path": entry.path, "size_bytes": entry.size, "goes": entry.kept, "reason": entry.reason}
            for entry in listing.entries
        ],
        "notes": list(listing.notes),
        "problem": listing.problem or None,
    }


def _cells(entry: ListedPath) -> list[str]:
    size = "" if entry.size is None or entry.path.endswith("/") else size_text(entry.size)
    return ["yes" if entry.kept else "no", size, entry.path, entry.reason]
