"""``kinetic outputs``: what jobs wrote, listed and copied here; of jobs that are kept and of those long gone."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._output import format as output_format
from kinetic._output.format import Column, age_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetic._jobs.outputs import Copy, OutputFile, OutputLocation, OutputRow
    from kinetic._project.archive import ListedPath, Listing


_NAMED = 5  # paths named in a line
OUTPUT_COLUMNS = (
    Column("SIZE", right=True),
    Column("FILES", right=True, spare=2),
    Column("WRITTEN", spare=1),
    Column("PATH"),
)


@click.group(
    cls=LazyGroup,
    path=["outputs"],
    aliases={"list": "ls"},
    epilog="JOB_ID is the id of a job, a unique beginning of it, or @last or - for the newest job, "
    "collected and removed jobs included: their files are kept. PATH is a file or folder of the job's output.",
)
def outputs() -> None:
    """List and copy the output files of jobs.

    Example: kinetic outputs get @last model.keras
    """


def _of_a_job(function: shared_options.Command) -> shared_options.Command:
    """Give a command the arguments JOB_ID and PATH, and call it with the place of that job's outputs first."""

    @shared_options.place_options
    @click.argument("job_id", metavar="JOB_ID", shell_complete=shared_options.complete_jobs)
    @click.argument("path", default="", metavar="[PATH]")
    @functools.wraps(function)
    def found(job_id: str, project: str | None, zone: str | None, cluster: str | None, **others: Any) -> Any:
        return function(_find(job_id, project, zone, cluster), **others)

    return found


@click.command
@_of_a_job
@click.option(
    "--recursive", "-r", is_flag=True, help="List every file, instead of one level with the totals of folders."
)
@shared_options.json_option
def ls(place: OutputLocation, path: str, recursive: bool, as_json: bool) -> None:
    """List the output files of a job.

    It shows one level: files, and folders with the number and total size of their files.

    Example: kinetic outputs ls @last checkpoints
    """
    from kinetic._jobs import outputs as outputs_

    found = outputs_.find_files(place, path)
    shown = [_row(file) for file in found.files] if recursive else outputs_.listing_rows(found.files, path)
    if as_json:
        output_format.print_document(**_page(place, path, shown))
    elif shown:
        now = time.time()
        output_format.print_table(OUTPUT_COLUMNS, [_cells(row, now) for row in shown])
    size, many = sum(row.size for row in shown), sum(row.files for row in shown)
    click.echo(
        f"{_files(many)}, {size_text(size)}, in {output_format.plain(place.address)}"
        if shown
        else output_format.plain(_nothing_written(place)),
        err=True,
    )
    _report_paths("not a file, so it cannot be copied", found.others)


@click.command
@_of_a_job
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The target folder.  [default: the current folder; outputs/JOB_ID without PATH]",
)
@click.option("--force", is_flag=True, help="Replace existing files that differ.")
@shared_options.json_option
def get(place: OutputLocation, path: str, to: Path | None, force: bool, as_json: bool) -> None:
    """Copy the output files of a job into a local folder.

    It copies one file or folder into the current folder; or all files into outputs/JOB_ID. Each file keeps
    its path below the output folder, and appears when it is complete. Files that
    already exist with the same size and time are not copied again, so an interrupted copy resumes where it
    stopped. The folder is printed.

    Example: kinetic outputs get @last checkpoints --to ./mine
    """
    from kinetic import _output as output
    from kinetic._jobs import outputs as job_outputs
    from kinetic._jobs import outputs as outputs_
    from kinetic.errors import DataMissingError

    found = outputs_.find_files(place, path)
    if not found.files:
        raise DataMissingError(
            _nothing_written(place), why=f"looked in {place.address}", next="kinetic jobs list --all"
        )
    copy = job_outputs.Copy(found, to or (Path() if path else _folder_here(place.job_id)), force=force)
    with output.phase("copying", detail=copy.told, summary=False):
        copy.carry()
    if as_json:
        output_format.print_document(job_id=place.job_id, output_dir=place.address, **_copied(copy))
    else:
        print(copy.to)
    click.echo(output_format.plain(_copy_summary(copy, place)), err=True)
    _report_paths("gone before it could be copied", copy.gone)
    _report_paths("not a file, so it was not copied", found.others)


def _find(job_id: str, project: str | None, zone: str | None, cluster: str | None) -> OutputLocation:
    from kinetic._jobs import outputs as outputs_
    from kinetic.errors import JobNotFoundError

    if job_id not in shared_options.NEWEST:
        return outputs_.find_location(job_id, project=project, cluster=cluster)
    newest = outputs_.newest_location(project=project, zone=zone, cluster=cluster)
    if newest is None:
        raise JobNotFoundError(
            "there are no jobs, so @last is not available", next="kinetic outputs ls JOB_ID     for an older job"
        )
    return newest


def _folder_here(job_id: str) -> Path:
    """Return a folder for a job in the one that is left out of git and of this project's jobs."""
    from kinetic._wire import output_paths

    return Path(output_paths.make_default_folder(), job_id)


def _nothing_written(place: OutputLocation) -> str:
    ran = f"; it ran on {place.host}, and the folder can be there" if place.host else ""
    return f"{place.job_id} has not written any files to {place.address}{ran}"


def _row(file: OutputFile) -> OutputRow:
    from kinetic._jobs.outputs import OutputRow

    return OutputRow(file.path, 1, file.size, file.modified)


def _cells(row: OutputRow, now: float) -> list[str]:
    files = str(row.files) if row.path.endswith("/") else ""
    return [size_text(row.size), files, f"{age_text(now - row.modified)} ago", row.path]


def _page(place: OutputLocation, path: str, shown: list[OutputRow]) -> dict[str, Any]:
    from kinetic._wire import keys

    return {
        "job_id": place.job_id,
        "output_dir": place.address,
        "path": path,
        "files": sum(row.files for row in shown),
        "size_bytes": sum(row.size for row in shown),
        "entries": [
            {
                "path": row.path,
                "kind": "folder" if row.path.endswith("/") else "file",
                "files": row.files,
                "size_bytes": row.size,
                "modified_at": keys.format_utc(row.modified),
            }
            for row in shown
        ],
    }


def _copied(copy: Copy) -> dict[str, Any]:
    return {
        "copied_to": os.fspath(copy.to),
        "files": len(copy.done),
        "size_bytes": sum(file.size for file in copy.done),
        "files_already_there": len(copy.same),
        "files_gone": copy.gone,
    }


def _copy_summary(copy: Copy, place: OutputLocation) -> str:
    there = f"; {_files(len(copy.same))} already there" if copy.same else ""
    size = size_text(sum(file.size for file in copy.done))
    return f"copied {_files(len(copy.done))}, {size}, from {place.address}{there}"


def _report_paths(what: str, paths: Iterable[str]) -> None:
    """Name paths that something is to be said of."""
    named = [output_format.plain(path) for path in paths]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    if named:
        click.echo(f"{what}: {', '.join(named[:_NAMED])}{more}", err=True)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


PACKAGE_COLUMNS = (
    Column("INCLUDED"),
    Column("SIZE", right=True),
    Column("PATH"),
    Column("REASON", flexible=True, spare=1),
)


@click.command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.py")
@click.option("--dry-run", is_flag=True, help="Required: show the files, and upload nothing.")
@shared_options.json_option
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
        output_format.print_document(**_package_page(listing))
    elif listing.entries:
        output_format.print_table(PACKAGE_COLUMNS, [_package_cells(entry) for entry in listing.entries])
    for note in listing.notes:
        click.echo(output_format.plain(note), err=True)
    if listing.problem:
        from kinetic.errors import ProjectRootError

        raise ProjectRootError(
            listing.problem,
            why=_package_summary(listing),
            next="exclude files that the job does not need in .kineticignore",
            code="project-too-large",
        )
    click.echo(_package_summary(listing), err=True)


def _listing(file: Path) -> Listing:
    """List the project without what never ships from here: kinetic's own folders."""
    from kinetic import _config as settings
    from kinetic._jobs import locate
    from kinetic._project import archive, root
    from kinetic._wire import output_paths

    plan = root.plan_for_file(file)
    written = output_paths.excluded_folders(output_paths.resolve(None, os.environ), plan.folders())
    return archive.list_project(plan, exclude=(settings.kinetic_home(os.environ), locate.runtime(), *written))


def _package_summary(listing: Listing) -> str:
    files = "1 file" if listing.files == 1 else f"{listing.files} files"
    return f"{files}, {size_text(listing.bytes)}, would be sent from {listing.root}"


def _package_page(listing: Listing) -> dict[str, object]:
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


def _package_cells(entry: ListedPath) -> list[str]:
    size = "" if entry.size is None or entry.path.endswith("/") else size_text(entry.size)
    return ["yes" if entry.kept else "no", size, entry.path, entry.reason]
