"""The files of jobs: what jobs wrote (``kinetic outputs``), and what would be sent with one (``kinetic package``)."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._output import format as output_format
from kinetic._output.format import Column, age_text, count_text, names_text, size_text
from kinetic._wire import keys
from kinetic.errors import JobNotFoundError, KineticError, OptionError, ProjectRootError

if TYPE_CHECKING:
    from kinetic._config.target import Target
    from kinetic._jobs.outputs import OutputLocation, OutputRow
    from kinetic._project.root import Plan

_NAMED = 5  # paths named in a line
OUTPUT_COLUMNS = (
    Column("SIZE", right=True),
    Column("FILES", right=True, spare=2),
    Column("WRITTEN", spare=1),
    Column("PATH"),
)
PACKAGE_COLUMNS = (
    Column("INCLUDED"),
    Column("SIZE", right=True),
    Column("PATH"),
    Column("REASON", flexible=True, wraps=True, spare=1),
)


@click.group(
    cls=LazyGroup,
    path=["outputs"],
    aliases={"list": "ls"},
    epilog="JOB_ID is the id of a job, a unique beginning of it, its name, or @last or - for the newest job, "
    "collected and removed jobs included: their files are kept. Of a batch, by its id or name, each input has a folder "
    "with its number. PATH is a file or folder of the job's output.",
)
def outputs() -> None:
    """List and copy the output files of jobs.

    Example: kinetic outputs get @last model.keras
    """


def _find(job_id: str, target: Target) -> OutputLocation:
    from kinetic._jobs import output_search

    if job_id not in shared_options.NEWEST:
        is_of_batch = keys.is_group_id(job_id)
        if is_of_batch and (found := _find_batch(job_id, target)):
            return found
        try:
            return output_search.find_location(job_id, target)
        except (JobNotFoundError, OptionError) as error:
            if not is_of_batch and (found := _find_batch(job_id, target)):
                return found
            if is_of_batch:
                error.why, error.next = "it is the id of a batch, and no batch has it", "kinetic batch list"
            raise
    newest = output_search.newest_location(target)
    if newest is None:
        raise JobNotFoundError(
            "there are no jobs, so @last is not available", next="kinetic outputs ls JOB_ID     for an older job"
        )
    return newest


def _find_batch(word: str, target: Target) -> OutputLocation | None:
    from kinetic._jobs import outputs as job_outputs

    batch = shared_options.find_batch(word, target)
    return job_outputs.OutputLocation(batch.group_id, f"{batch.outputs}/{batch.group_id}") if batch else None


_location_argument = shared_options.found_argument("job_id", "JOB_ID", shared_options.complete_jobs, _find)
_path_argument = click.argument("path", default="", metavar="[PATH]")


@click.command
@_location_argument
@_path_argument
@click.option(
    "--recursive", "-r", is_flag=True, help="List every file, instead of one level with the totals of folders."
)
@shared_options.json_option
def ls(location: OutputLocation, path: str, recursive: bool, as_json: bool) -> None:
    """List the output files of a job.

    It shows one level: files, and folders with the number and total size of their files.

    Example: kinetic outputs ls @last checkpoints
    """
    from kinetic._jobs import outputs as job_outputs

    found = job_outputs.find_files(location, path)
    if recursive:
        rows = [job_outputs.OutputRow(file.path, 1, file.size, file.modified) for file in found.files]
    else:
        rows = job_outputs.listing_rows(found.files, path)
    size, count, now = sum(row.size for row in rows), sum(row.files for row in rows), time.time()
    if as_json:
        entries = [_row_page(row) for row in rows]
        head = {"job_id": location.job_id, "output_dir": location.address, "path": path}
        output_format.print_document(**head, files=count, size_bytes=size, entries=entries)
    elif rows:
        ages = [f"{age_text(now - row.modified)} ago" for row in rows]
        counts = [str(row.files) if row.path.endswith("/") else "" for row in rows]
        paths, sizes = [row.path for row in rows], [size_text(row.size) for row in rows]
        output_format.print_table(OUTPUT_COLUMNS, list(zip(sizes, counts, ages, paths, strict=True)))
    summary = (
        f"{count_text(count, 'file')}, {size_text(size)}, in {location.address}"
        if rows or found.others
        else job_outputs.no_files_text(location)
    )
    click.echo(output_format.plain(summary), err=True)
    _report_paths("cannot be copied, as it is not a file or has control characters in its name", found.others)


def _row_page(row: OutputRow) -> dict[str, Any]:
    return {
        "path": row.path,
        "kind": "folder" if row.path.endswith("/") else "file",
        "files": row.files,
        "size_bytes": row.size,
        "modified_at": keys.format_utc(row.modified),
    }


@click.command
@_location_argument
@_path_argument
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The target folder.  [default: the current folder; outputs/JOB_ID without PATH]",
)
@click.option("--force", is_flag=True, help="Replace existing files that differ.")
@shared_options.json_option
def get(location: OutputLocation, path: str, to: Path | None, force: bool, as_json: bool) -> None:
    """Copy the output files of a job into a local folder.

    It copies one file or folder into the current folder; or all files into outputs/JOB_ID. Each file keeps
    its path below the output folder, and appears when it is complete. Files that
    already exist with the same size and time are not copied again, so an interrupted copy resumes where it
    stopped. The folder is printed.

    Example: kinetic outputs get @last checkpoints --to ./mine
    """
    from kinetic._jobs import outputs as job_outputs

    copy = job_outputs.Copy.of(location, path, Path() if path and to is None else to, force=force)
    copy.run()
    size = sum(file.size for file in copy.done)
    if as_json:
        output_format.print_document(
            job_id=location.job_id,
            output_dir=location.address,
            copied_to=os.fspath(copy.to),
            files=len(copy.done),
            size_bytes=size,
            files_already_there=len(copy.same),
            files_gone=copy.missing,
        )
    else:
        print(copy.to)
    same = f"; {count_text(len(copy.same), 'file')} already there" if copy.same else ""
    summary = f"copied {count_text(len(copy.done), 'file')}, {size_text(size)}, from {location.address}{same}"
    click.echo(output_format.plain(summary), err=True)
    _report_paths("gone before it could be copied", copy.missing)
    _report_paths("not copied, as it is not a file or has control characters in its name", copy.others)


def _report_paths(what: str, paths: Iterable[str]) -> None:
    if names := [output_format.plain(path) for path in paths]:
        click.echo(f"{what}: {names_text(names, _NAMED)}", err=True)


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
    from kinetic._project import archive, root

    if not dry_run:
        raise click.UsageError("pass --dry-run: a package is built only when a job is submitted")
    plan = _with_other_projects(root.plan_for_file(file), file)
    listing = archive.list_project(plan, exclude=folders_not_sent(plan, None))
    if as_json:
        entries = [
            {"path": entry.path, "size_bytes": entry.size, "goes": entry.kept, "reason": entry.reason}
            for entry in listing.entries
        ]
        output_format.print_document(
            root=listing.root,
            files=listing.files,
            size_bytes=listing.bytes,
            entries=entries,
            notes=list(listing.notes),
            problem=listing.problem or None,
        )
    elif listing.entries:
        rows = []
        for entry in listing.entries:
            size = "" if entry.size is None or entry.path.endswith("/") else size_text(entry.size)
            rows.append(["yes" if entry.kept else "no", size, entry.path, entry.reason])
        output_format.print_table(PACKAGE_COLUMNS, rows)
    for note in listing.notes:
        click.echo(output_format.plain(note), err=True)
    summary = f"{count_text(listing.files, 'file')}, {size_text(listing.bytes)}, would be sent from {listing.root}"
    if listing.problem:
        raise ProjectRootError(
            listing.problem,
            why=summary,
            next="exclude files that the job does not need in .kineticignore",
            code="project-too-large",
        )
    click.echo(summary, err=True)


def _with_other_projects(plan: Plan, file: Path) -> Plan:
    """Return the plan with the other projects that dependencies name, where jobs run in another environment."""
    from kinetic._backends import registry
    from kinetic._config import target as settings

    is_same = os.environ.get("KINETIC_LOCAL_ENV", "") in {"", "same"}
    if is_same and registry.is_here(settings.resolve().backend.value):
        return plan
    from kinetic._jobs import pod_requirements
    from kinetic._project import other_projects

    script = replace(plan, source=str(file.absolute()))
    with contextlib.suppress(KineticError):  # a submission will say what is wrong with the file
        read_lock = functools.partial(pod_requirements.read_lock, environ=os.environ)
        found = pod_requirements.find_dependencies(print, script, base=False, export=read_lock, environ=os.environ)
        return other_projects.with_them(plan, found.projects)
    return plan


def folders_not_sent(plan: Plan, output_dir: str | None) -> tuple[Path, ...]:
    """Return the folders that a submission leaves out whatever the rules say."""
    from kinetic._jobs import environment

    return environment.folders_not_sent(plan.folders(), output_dir, environment.local_store())
