"""Commands that act on jobs: cancel and clean up; attach a debugger, open a shell, print stacks."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import error_output, shared_options
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, age_text, count_text, size_text
from kinetic._wire import NamedTuple
from kinetic.errors import BackendError, BackendUnavailableError, KineticError, OptionError, SettingsError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._cli.job_table import Filters
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import JobRecord

    Remove = Callable[[JobRecord, Snapshot], None]

COLUMNS = (
    Column("JOB ID"),
    Column("FUNCTION", spare=2),
    Column("STATUS", is_status=True),
    Column("ENDED", spare=1),
    Column("SIZE", right=True),
)


@click.command
@shared_options.jobs_argument
@shared_options.cleanup_options
def cancel(handles: Sequence[JobRecord], cleanup_timeout: float) -> None:
    """Cancel jobs; their logs are kept.

    A job that has already ended, and its result, are kept.

    Example: kinetic jobs cancel @last
    """
    from kinetic._jobs import cancellation

    def cancel_one(handle: JobRecord) -> str:
        if cancellation.cancel(handle, wait=cleanup_timeout):
            return f"{handle.job_id} is cancelled; its log: kinetic jobs logs {handle.job_id}"
        return cancellation.why_not_cancelled(handle)

    _act_on_each(handles, cancel_one, "cancelled")


def _act_on_each(handles: Sequence[JobRecord], act: Callable[[JobRecord], str], done: str) -> None:
    """Act on jobs, some at the same time, and print what each returns; what fails keeps no other."""
    from kinetic._stores import parallel

    failures: list[tuple[str, KineticError]] = []

    def act_on(handle: JobRecord) -> str:
        try:
            return act(handle)
        except KineticError as error:
            failures.append((handle.job_id, error))
            return ""

    limit = min(len(handles), parallel.MAX_FILE_PARALLELISM)
    for line in parallel.in_parallel(None, [functools.partial(act_on, handle) for handle in handles], limit=limit):
        if line:
            click.echo(line, err=True)
    for job_id, error in failures[1:]:
        click.echo(f"warning: {job_id} could not be {done}: {output_format.plain(error.what)}", err=True)
    if failures:
        raise failures[0][1]


@click.command
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID]...", shell_complete=shared_options.complete_jobs)
@click.option("--all", "everything", is_flag=True, help="Remove all jobs that have ended.")
@click.option(
    "--older-than",
    type=shared_options.Duration(),
    metavar="AGE",
    help="With --all: only jobs that ended longer ago than this, such as 7d.",
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(("SUCCEEDED", "FAILED", "CANCELLED"), case_sensitive=False),
    metavar="STATUS",
    help="With --all: only jobs with this status, SUCCEEDED, FAILED or CANCELLED; repeatable.",
)
@shared_options.filter_options("With --all: only")
@shared_options.removal_options
@shared_options.cleanup_options
@shared_options.place_options
@shared_options.json_option
def cleanup(
    job_ids: Sequence[str],
    everything: bool,
    dry_run: bool,
    yes: bool,
    k8s: bool,
    gcs: bool,
    cleanup_timeout: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Remove jobs and their stored files.

    A running job is stopped first. With --all instead of ids: every job that has ended, except those whose values
    pending jobs need; pending and running jobs are not affected. Files in KINETIC_OUTPUT_DIR are always kept.

    Example: kinetic jobs cleanup --all --older-than 7d

    Example: kinetic jobs cleanup --all --status cancelled --name 'try-*'
    """
    from kinetic._cli.job_table import Filters

    place = {name: given.pop(name) for name in ("project", "zone", "cluster")}
    filters = Filters(**given)
    shared_options.check_removal(f"kinetic jobs cleanup {' '.join(job_ids) or '--all'}", k8s=k8s, gcs=gcs)
    if not job_ids and not everything:
        if filters != Filters():
            raise error_output.SuggestionError(
                "what selects jobs needs --all",
                click.get_current_context(),
                why="without a job id, only --all removes jobs",
                next=shared_options.typed_again("--all"),
            )
        raise click.UsageError("pass a job id, or --all for all jobs that have ended")
    if job_ids and (everything or filters != Filters() or dry_run):
        raise click.UsageError("--all, --dry-run and what selects jobs cannot be used with a job id")
    from kinetic._jobs import collect
    from kinetic._jobs.status import observe_many

    remove = functools.partial(collect.remove, resource=k8s, artifacts=gcs, wait=cleanup_timeout)
    if not job_ids:
        _cleanup_all(remove, filters, place, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    handles = shared_options.find_jobs(job_ids, shared_options.target_of(place))
    looks = observe_many(handles)  # which a damaged result does not prevent: nothing of it is read
    seen = {handle.job_id: look for handle, look in zip(handles, looks, strict=True)}
    removed: list[str] = []

    def remove_one(handle: JobRecord) -> str:
        was = seen[handle.job_id].status
        try:
            remove(handle, seen[handle.job_id])
        except (BackendUnavailableError, SettingsError) as error:
            if was.is_final:
                error.next = _or_what_is_stored(error, handle.job_id if len(handles) == 1 else "")
            raise
        removed.append(handle.job_id)
        ended = "" if was.is_final else f"it was {was.value} and was stopped; "
        resource = "" if was is JobStatus.NOT_FOUND else "its resource is kept; "  # it was removed before
        kept = "" if k8s and gcs else "its stored files are kept; " if k8s else resource
        return f"{handle.job_id} is removed; {ended}{kept}its history: kinetic jobs list --all"

    try:
        _act_on_each(handles, remove_one, "removed")
    finally:
        if as_json and removed:
            output_format.print_document(removed=removed)


class EndedJob(NamedTuple):
    """A job that has ended, and how much removing it frees."""

    handle: JobRecord
    seen: Snapshot
    when: float
    size_bytes: int

    @property
    def status(self) -> str:
        """As `jobs list --all` shows it: a cancelled job is NOT_FOUND elsewhere."""
        outcome = self.seen.outcome
        return "CANCELLED" if outcome is not None and outcome.status == "cancelled" else self.seen.status.value


def _cleanup_all(
    remove: Remove,
    filters: Filters,
    place: Mapping[str, str | None],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove every job that has ended, or those that pass the filters."""
    from kinetic._wire import keys

    with output.phase("looking at the jobs", summary=False):
        found = _ended_jobs(place, filters)
    jobs, size, now = count_text(len(found), "job"), size_text(sum(job.size_bytes for job in found)), time.time()
    if found and not as_json:
        ages = [f"{age_text(now - job.when)} ago" for job in found]
        rows = [
            [job.handle.job_id, job.handle.func_name, job.status, age, size_text(job.size_bytes)]
            for job, age in zip(found, ages, strict=True)
        ]
        output_format.print_table(COLUMNS, rows)
        sys.stdout.flush()
    removed, failures = list[EndedJob](), list[KineticError]()
    if not found or dry_run:
        click.echo(f"{'' if found else 'nothing to remove: '}{jobs} would be removed, {size}", err=True)
    else:
        waiting = sum(job.seen.outcome is not None and job.seen.outcome.succeeded for job in found)
        results = f", with {count_text(waiting, 'uncollected result')}" if waiting else ""
        question, refused = f"Remove {jobs}{results}?", f"nothing was removed: {jobs} would be removed"
        if not yes and not shared_options.confirm(question, refused=refused):
            click.echo("nothing was removed", err=True)
            return
        _remove_many(found, remove, removed, failures)
        _remove_unused_code(removed)
        size = size_text(sum(job.size_bytes for job in removed))
        click.echo(
            f"{count_text(len(removed), 'job')} removed, {size}; their history: kinetic jobs list --all", err=True
        )
    if as_json:
        gone = {job.handle.job_id for job in removed}
        pages = [
            {
                "job_id": job.handle.job_id,
                "function": job.handle.func_name,
                "status": job.status,
                "ended_at": keys.format_utc(job.when),
                "size_bytes": job.size_bytes,
                "removed": job.handle.job_id in gone,
            }
            for job in found
        ]
        output_format.print_document(jobs=pages)
    if failures:
        what, step = f"{len(failures)} of {jobs} could not be removed", failures[0].next or "try again"
        if isinstance(failures[0], BackendUnavailableError | SettingsError):
            step = _or_what_is_stored(failures[0])
        raise BackendError(what, why=failures[0].what, next=step, code="not-removed")


def _or_what_is_stored(error: KineticError, job_id: str = "") -> str:
    """Return what to do about a cluster that is away, and the command for the same jobs that leaves it out."""
    stored = shared_options.typed_again("--no-k8s", newest=job_id, without=("--yes", "-y"))
    return f"{error.next or 'try again'}     or, if the cluster is gone, only what is stored: {stored}"


def _remove_unused_code(removed: Sequence[EndedJob]) -> None:
    """Remove old code of kinetic from the clusters of jobs; whoever may not do that leaves it there."""
    from kinetic._jobs import locate

    seen: set[int] = set()
    for job in removed:
        with contextlib.suppress(KineticError):
            backend = locate.backend_of(job.handle)
            is_new = id(backend) not in seen
            seen.add(id(backend))
            if is_new and (count := backend.remove_unused_code()):
                click.echo(f"kinetic's code of {count_text(count, 'old version')} removed from the cluster", err=True)


def _ended_jobs(place: Mapping[str, str | None], filters: Filters) -> list[EndedJob]:
    """Find the jobs that ended or were cancelled, pass the filters, and that no open job follows, newest first."""
    from kinetic._jobs import collect, find, locate
    from kinetic._jobs.status import observe_many, of_each
    from kinetic._wire import keys

    handles = find.list_stored_jobs(shared_options.target_of(place))
    now, ended, found, kept = time.time(), list[EndedJob](), list[EndedJob](), 0
    readers: dict[str, list[str]] = {}  # by job, or by batch: its children have the same
    wanted = _named(handles, filters)
    for handle, seen in zip(handles, observe_many(handles), strict=True):
        if not seen.status.is_final or handle.job_id not in wanted:
            continue
        when = (seen.outcome.ended if seen.outcome else None) or (seen.observation.ended if seen.observation else None)
        when = when or keys.parse_utc(handle.created_at) or now  # unknown: certainly not too old
        job = EndedJob(handle, seen, when, 0)
        is_old = filters.older_than is None or now - when > filters.older_than
        if is_old and (not filters.statuses or job.status in filters.statuses):
            ended.append(job)
    listed = of_each([job.handle for job in ended], lambda job: [*locate.store_of(job).entries(keys.job(job.job_id))])
    for job in ended:
        inside, owner = listed[job.handle.job_id], job.handle.group_id or job.handle.job_id
        if owner not in readers:
            readers[owner] = collect.readers_of(job.handle, locate.store_of(job.handle), inside)
        if readers[owner]:
            kept += 1
        else:
            found.append(job._replace(size_bytes=sum(entry.size for entry in inside)))
    if kept:
        click.echo(f"{count_text(kept, 'job')} kept, as their values are needed by pending jobs", err=True)
    return found


def _named(handles: Sequence[JobRecord], filters: Filters) -> set[str]:
    """Return the ids of jobs with the function, the name and the tags that are asked for."""
    from kinetic._cli.job_table import groups_of
    from kinetic._jobs import locate

    groups = {}
    if filters.name is not None or filters.tags:
        groups = groups_of({handle.group_id: locate.store_of(handle).url for handle in handles})
    found = set()
    for handle in handles:
        group = groups.get(handle.group_id or "")
        names = (handle.name, handle.tags) if group is None else (group.group_name, group.tags)
        if filters.function in {None, handle.func_name} and filters.is_named(names):
            found.add(handle.job_id)
    return found


def _remove_many(
    jobs: Sequence[EndedJob], remove: Remove, removed: list[EndedJob], failures: list[KineticError]
) -> None:
    """Remove jobs, some at the same time, as most of it waits for a disk or a server; what fails keeps no other."""
    from kinetic._stores import parallel

    def remove_one(job: EndedJob) -> None:
        try:
            remove(job.handle, job.seen)
        except KineticError as error:
            what = output_format.plain(error.what)
            click.echo(f"warning: {job.handle.job_id} could not be removed: {what}", err=True)
            failures.append(error)
        else:
            removed.append(job)

    def how_far() -> str:
        return f"{len(removed)} of {len(jobs)}"

    with output.phase("removing jobs", summary=False, detail=how_far):
        try:
            tasks = [functools.partial(remove_one, job) for job in jobs]
            for _ in parallel.in_parallel(None, tasks, limit=parallel.MAX_FILE_PARALLELISM):
                pass
        except KeyboardInterrupt:
            output.report(f"interrupted: {how_far()} jobs removed; repeat the command to remove the rest")
            raise


@click.command
@shared_options.job_argument
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=5678,
    show_default=True,
    metavar="N",
    help="The local port for the editor.",
)
@shared_options.host_option
def debug(handle: JobRecord, port: int, host: int) -> None:
    """Attach a debugger to a job that was submitted with debug=True.

    Waits for the job's debug server, prints the launch.json for VS Code, and forwards the port until the job ends.
    Ctrl-C closes the port and does not end the job.

    Example: kinetic jobs debug @last --port 5679
    """
    from kinetic._inspect import debugger, port_forward
    from kinetic._jobs import wait

    with error_output.job_keeps_running(handle):
        process = debugger.attach(handle, local_port=port, host=host)
        try:
            seen = wait.wait(handle)
        finally:
            port_forward.stop(process)
    click.echo(f"{handle.job_id} has ended: {seen.status.value}", err=True)


@click.command
@shared_options.job_argument
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@shared_options.host_option
@click.pass_context
def shell(ctx: click.Context, /, handle: JobRecord, command: tuple[str, ...], host: int) -> None:
    """Open a shell in a running job, or run a command there.

    It has the job's environment variables and working directory; on a cluster it runs in the job's container. The job
    is not affected. The exit code is the one of the shell or the command.

    Example: kinetic jobs shell @last -- nvidia-smi
    """
    from kinetic._inspect import debugger

    sys.stdout.flush()
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    ctx.exit(debugger.run_in(handle, command, host=host, tty=tty))


@click.command
@shared_options.job_argument
@click.argument("port", metavar="[LOCAL:]PORT")
@shared_options.host_option
def forward(handle: JobRecord, port: str, host: int) -> None:
    """Connect a port of this machine to one of a running job.

    For TensorBoard, Jupyter, a live profiler: anything that listens in the job. Each connection to 127.0.0.1:LOCAL
    leads to PORT where the job runs, until the job ends. LOCAL is the same number by default, or a free one. Ctrl-C
    closes the port and does not end the job.

    Example: kinetic jobs forward @last 6006
    """
    from kinetic._inspect import debugger

    local, _, remote = port.rpartition(":")
    if not all(word.isdecimal() and 0 < int(word) < 1 << 16 for word in filter(None, (local, remote or "?"))):
        raise OptionError(
            f"{port!r} is not a valid port",
            why="write the port of the job, from 1 to 65535, or LOCAL:PORT",
            next=f"kinetic jobs forward {handle.job_id} 6006",
        )
    with error_output.job_keeps_running(handle):
        ended = debugger.forward(handle, int(remote), host=host, local_port=int(local) if local else None)
    if ended.is_final:
        click.echo(f"{handle.job_id} has ended: {ended.value}", err=True)


@click.command
@shared_options.job_argument
@click.option("--host", default="all", metavar="N|all", help="Show host N of a slice.  [default: all]")
@shared_options.json_option
@click.pass_context
def stacks(ctx: click.Context, /, handle: JobRecord, host: str, as_json: bool) -> None:
    """Print the stack of each thread of a running job.

    The job keeps running, and a job that hangs in C code answers as well. The innermost call comes
    first. The exit code is 1 if a host did not answer.

    Example: kinetic jobs stacks @last
    """
    from kinetic._inspect import debugger

    if host != "all" and not host.isdecimal():
        raise OptionError(
            f"{host!r} is not a valid host",
            why="a host is a number, from 0, or all",
            next=f"kinetic jobs stacks {handle.job_id} --host all",
        )
    found = debugger.stacks(handle, host=None if host == "all" else int(host))
    if as_json:
        output_format.print_document(job_id=handle.job_id, hosts=[each._asdict() for each in found])
    else:
        for each in filter(lambda each: each.text, found):
            head = f"host {each.host}\n\n" if len(found) > 1 else ""
            sys.stdout.write(head + (each.text if each is found[-1] else f"{each.text.rstrip()}\n\n"))
        sys.stdout.flush()
    for each in found:
        if each.why:
            error_output.print_parts(
                f"host {each.host} of {handle.job_id} did not answer",
                code="no-stacks",
                why=each.why,
                next=f"kinetic jobs explain {handle.job_id}",
            )
    ctx.exit(error_output.ERROR if any(each.why for each in found) else 0)
