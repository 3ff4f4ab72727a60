"""Options that many commands share, and the way from what a user typed to a job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from kinetic import _output as output
from kinetic._cli import completing
from kinetic._settings.job_options import BY_NAME, JOB_OPTIONS

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle

NEWEST = frozenset({"@last", "-"})
Command = Callable[..., Any]


def where(function: Command) -> Command:
    """Add the options that say in which place to look."""
    for name, what in (("cluster", "GKE cluster"), ("zone", "Google Cloud zone"), ("project", "Google Cloud project")):
        help_ = f"{what}.  [default: KINETIC_{name.upper()}, or the profile]"
        function = click.option(f"--{name}", metavar="NAME", help=help_)(function)
    return function


def of_jobs(function: Command) -> Command:
    """Add a flag for each option that a job can be given; see ``_settings/job_options.py``."""
    for option in reversed(JOB_OPTIONS):
        if not option.is_argument:
            continue
        flag = f"--{option.name.replace('_', '-')}"
        help_ = f"{option.effect[0].upper()}{option.effect[1:]}."
        if option.kinds == (bool,):
            function = click.option(f"{flag}/--no-{flag[2:]}", default=None, help=help_)(function)
        else:
            short = ("-a",) if option.name == "accelerator" else ()
            complete = completing.accelerators if option.name == "accelerator" else None
            words: dict[str, Any] = {"metavar": option.metavar, "help": help_, "shell_complete": complete}
            function = click.option(*short, flag, **words)(function)
    return function


def read_job_options(given: dict[str, Any]) -> dict[str, Any]:
    """Read the values of job options as profiles and variables do; leave out what was not given."""
    from kinetic._jobs import typed  # only where jobs are submitted

    return {
        name: typed.of_text(name, value) if name in BY_NAME and isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }


def on_a_job(function: Command) -> Command:
    """Give a command the argument JOB_ID, and call it with the handle of that job first."""

    @where
    @click.argument("job_id", metavar="JOB_ID", shell_complete=completing.jobs)
    @functools.wraps(function)
    def found(job_id: str, project: str | None, zone: str | None, cluster: str | None, **others: Any) -> Any:
        with output.phase("looking for the job", summary=False):
            handle = find(job_id, project, zone, cluster)
        return function(handle, **others)

    return found


def as_json(function: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(function)


def confirmation(function: Command) -> Command:
    """Add the two options about waiting for a removal."""
    function = click.option(
        "--cleanup-poll-interval",
        type=click.FloatRange(min=0, min_open=True),
        default=2,
        show_default=True,
        metavar="SECONDS",
        help="Accepted for compatibility; has no effect on this machine.",
    )(function)
    return click.option(
        "--cleanup-timeout",
        type=click.FloatRange(min=0),
        default=180,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait until the job's processes have ended.",
    )(function)


def find(job_id: str, project: str | None, zone: str | None, cluster: str | None) -> JobHandle:
    """Return the job that a user means: by its id, the beginning of it, or "@last" or "-" for the newest.

    The newest may be one that was cancelled: whoever says "@last" after ``kinetic jobs cancel @last`` means that one.

    Raises:
        JobNotFoundError: There is none.
        OptionError: It cannot be an id, or several jobs begin so.
    """
    from kinetic._jobs import finding

    if job_id not in NEWEST:
        return finding.attach(job_id, project=project, cluster=cluster)
    newest = finding.newest(project=project, zone=zone, cluster=cluster)
    if newest is None:
        from kinetic.errors import JobNotFoundError

        removed = finding.were_removed(project=project, zone=zone, cluster=cluster)
        raise JobNotFoundError(
            f"there are no {'jobs except removed ones' if removed else 'jobs'}, so @last is not available",
            why="all jobs were removed" if removed else "no job was submitted",
            next="kinetic jobs list --all",
        )
    return newest
