"""Options that many commands share, and the way from what a user typed to a job."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from kinetic import _output as output
from kinetic._config.options import BY_NAME, JOB_OPTIONS
from kinetic._wire.fields import UNITS, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kinetic._jobs.handle import JobHandle


_NEWEST = "@last"
_PLAIN_WORD = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)  # what names of jobs and profiles are made of


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Offer the ids of jobs whose record is in the local store, newest first."""
    return _beginning(incomplete, _quietly(_job_ids))


def complete_batches(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Offer the ids of batches whose manifest is in the local store, newest first."""
    return _beginning(incomplete, _quietly(_group_ids))


def complete_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Offer the names of profiles."""
    return _beginning(incomplete, _quietly(_profile_names))


def complete_accelerators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Offer names of accelerators: each GPU with its counts, each TPU with its usual sizes."""
    return _beginning(incomplete, _quietly(_accelerators))


def _beginning(incomplete: str, found: Iterable[str]) -> list[str]:
    """Return what begins so and is one plain word: a shell puts what is offered into the command line as it is."""
    return [word for word in found if word.startswith(incomplete) and _PLAIN_WORD.fullmatch(word)]


def _quietly(names: Callable[[], Iterable[str]]) -> list[str]:
    with contextlib.suppress(Exception):  # whatever is wrong is told by the command itself, not by the Tab key
        return list(names())
    return []


def _job_ids() -> Iterator[str]:
    from kinetic._jobs import locate
    from kinetic._wire import keys

    store = locate.local_store()
    found = [name for name in store.folders("") if name not in keys.RESERVED]
    if found:
        yield _NEWEST
    yield from sorted(found, key=_when, reverse=True)


def _group_ids() -> Iterator[str]:
    from kinetic._jobs import locate
    from kinetic._wire import keys

    store = locate.local_store()
    manifests = [(store.entry(keys.group_manifest(name)), name) for name in store.folders(keys.GROUPS)]
    found = sorted(((entry.modified, name) for entry, name in manifests if entry is not None), reverse=True)
    if found:
        yield _NEWEST
    yield from (name for _, name in found)


def _when(job_id: str) -> str:
    """Return the part of an id that says when it was made: …-20261120-134402-1f0c9ab."""
    return "-".join(job_id.split("-")[-3:-1])


def _profile_names() -> list[str]:
    from kinetic._config import profiles as saved

    return saved.load(os.environ).names


def _accelerators() -> Iterator[str]:
    from kinetic import _hardware as hardware

    yield "cpu"
    for gpu in hardware.GPUS.values():
        yield from (f"gpu-{gpu.name}" if count == 1 else f"gpu-{gpu.name}x{count}" for count in gpu.machines)
    for tpu in hardware.TPUS.values():
        yield from (tpu.canonical(topology) for _, topology in tpu.usual_sizes())


NEWEST = frozenset({"@last", "-"})
Command = Callable[..., Any]


def place_options(function: Command) -> Command:
    """Add the options that say in which place to look."""
    for name, what in (("cluster", "GKE cluster"), ("zone", "Google Cloud zone"), ("project", "Google Cloud project")):
        help_ = f"{what}.  [default: KINETIC_{name.upper()}, or the profile]"
        function = click.option(f"--{name}", metavar="NAME", help=help_)(function)
    return function


def job_options(function: Command) -> Command:
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
            complete = complete_accelerators if option.name == "accelerator" else None
            words: dict[str, Any] = {"metavar": option.metavar, "help": help_, "shell_complete": complete}
            function = click.option(*short, flag, **words)(function)
    return function


def read_job_options(given: dict[str, Any]) -> dict[str, Any]:
    """Read the values of job options as profiles and variables do; leave out what was not given."""
    from kinetic._jobs import options  # only where jobs are submitted

    return {
        name: options.of_text(name, value) if name in BY_NAME and isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }


def job_argument(function: Command) -> Command:
    """Give a command the argument JOB_ID, and call it with the handle of that job first."""

    @place_options
    @click.argument("job_id", metavar="JOB_ID", shell_complete=complete_jobs)
    @functools.wraps(function)
    def found(job_id: str, project: str | None, zone: str | None, cluster: str | None, **others: Any) -> Any:
        with output.phase("looking for the job", summary=False):
            handle = find_job(job_id, project, zone, cluster)
        return function(handle, **others)

    return found


def json_option(function: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(function)


def cleanup_options(function: Command) -> Command:
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


def find_job(job_id: str, project: str | None, zone: str | None, cluster: str | None) -> JobHandle:
    """Return the job that a user means: by its id, the beginning of it, or "@last" or "-" for the newest.

    The newest may be one that was cancelled: whoever says "@last" after ``kinetic jobs cancel @last`` means that one.

    Raises:
        JobNotFoundError: There is none.
        OptionError: It cannot be an id, or several jobs begin so.
    """
    from kinetic._jobs import find as job_find

    if job_id not in NEWEST:
        return job_find.attach(job_id, project=project, cluster=cluster)
    newest = job_find.newest_job(project=project, zone=zone, cluster=cluster)
    if newest is None:
        from kinetic.errors import JobNotFoundError

        removed = job_find.has_history(project=project, zone=zone, cluster=cluster)
        raise JobNotFoundError(
            f"there are no {'jobs except removed ones' if removed else 'jobs'}, so @last is not available",
            why="all jobs were removed" if removed else "no job was submitted",
            next="kinetic jobs list --all",
        )
    return newest


def is_interactive() -> bool:
    """Say whether a person sits there: both what is typed and what is asked are on a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, suggested: str = "") -> str:
    """Ask for a word, on standard error; the suggested one is taken for an empty answer.

    Raises:
        KeyboardInterrupt: There will be no answer.
    """
    try:
        return str(click.prompt(question, default=suggested or None, err=True))
    except click.Abort:
        raise KeyboardInterrupt from None


def confirm(question: str) -> bool:
    """Ask whether something is meant, on standard error.

    Raises:
        KeyboardInterrupt: There will be no answer.
    """
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        raise KeyboardInterrupt from None


if TYPE_CHECKING:
    _Type = click.ParamType[float]
else:
    _Type = click.ParamType  # not generic before click 8.3


class Duration(_Type):
    """A span of time, in seconds.

    Args:
        bare: A number without a unit means seconds; otherwise it is refused, since it could mean anything.
    """

    name = "duration"

    def __init__(self, *, bare: bool = False) -> None:
        self._bare = bare

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, int | float):
            return float(value)
        found = seconds_of(str(value))
        if found is None or not (found[1] or self._bare):
            seconds = "seconds, or " if self._bare else ""
            self.fail(
                f"{value!r} is not a valid duration: use {seconds}a number and s, m, h, d or w, such as 7d", param, ctx
            )
        return found[0]


def duration_argument(seconds: float) -> str:
    """Write a span as it can be typed again, in the largest unit that keeps it whole."""
    for unit in ("w", "d", "h", "m"):
        if seconds >= UNITS[unit] and seconds % UNITS[unit] == 0 and unit != "w":
            return f"{seconds / UNITS[unit]:.0f}{unit}"
    return f"{seconds:g}s"
