"""Options that many commands share, and the way from what a user typed to a job."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import error_output
from kinetic._config.options import BY_NAME, JOB_OPTIONS
from kinetic._output import terminal as output
from kinetic._wire.fields import UNITS, seconds_of
from kinetic.errors import JobNotFoundError, KineticError, OptionError, what_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kinetic._cluster.project_apis import ProjectApis
    from kinetic._config.target import Target
    from kinetic._jobs.index import Row
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import Group, JobRecord

Command = Callable[..., Any]
PLACE = ("project", "zone", "cluster")
NEWEST = frozenset({"@last", "-"})
_AMBIGUOUS = "ambiguous-name"  # what has several owners is not looked for elsewhere
_LONGEST_FUNCTION = 40  # characters in a table, also of a command


def _completer(words: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the answer to the Tab key: the plain words of a function in ``completion.py`` that begin so."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
        from kinetic._cli import completion  # only for the Tab key

        return completion.words_that_begin(incomplete, getattr(completion, words))

    return complete


complete_jobs = _completer("job_ids")
complete_batches = _completer("group_ids")
complete_profiles = _completer("profile_names")
complete_accelerators = _completer("accelerator_names")


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's
    """Let the shell itself complete the name of a file."""
    from click.shell_completion import CompletionItem  # loaded already, where this is asked

    return [CompletionItem(incomplete, type="file")]


class Duration(click.ParamType):  # type: ignore[type-arg] # not generic before click 8.3
    """A duration in seconds; without a unit only where `bare` allows it, since a bare number could mean anything."""

    name = "duration"

    def __init__(self, *, bare: bool = False, least: float = 0.0, example: str = "7d") -> None:
        self._bare, self._least, self._example = bare, least, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, int | float):
            return float(value)
        found = seconds_of(str(value))
        if found is None or not (found[1] or self._bare) or found[0] < self._least:
            units = f"use {'seconds, or ' if self._bare else ''}a number and s, m, h, d or w, such as {self._example}"
            units += f", and at least {duration_argument(self._least)}" if self._least else ""
            self.fail(f"{value!r} is not a valid duration: {units}", param, ctx)
        return found[0]


class Moment(click.ParamType):  # type: ignore[type-arg] # as above
    """A Unix time: some time ago, or a date and time of ISO 8601, by the clock of this machine if it names no zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the Unix time."""
        if isinstance(value, int | float):
            return float(value)
        found = seconds_of(str(value))
        if found is not None and found[1]:
            return time.time() - found[0]
        from kinetic._wire.keys import parse_utc  # not for every command

        moment = parse_utc(str(value))
        if moment is None or found is not None:
            self.fail(f"{value!r} is not a time: use 10m, 2h or 1d (ago), or such as 2026-11-20T14:30Z", param, ctx)
        return moment


def duration_argument(seconds: float) -> str:
    """Write a duration as it can be typed again, in the largest unit that keeps it whole."""
    for unit in "dhm":
        if seconds >= UNITS[unit] and seconds % UNITS[unit] == 0:
            return f"{seconds / UNITS[unit]:.0f}{unit}"
    return f"{seconds:g}s"


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
namespace_option = click.option(
    "--namespace", metavar="NAME", help="Kubernetes namespace.  [default: KINETIC_NAMESPACE, or the profile]"
)


def place_options(function: Command) -> Command:
    """Add --project, --zone and --cluster, which the help shows below the command's own options."""
    added: list[click.Parameter] = []
    for name, what in (("cluster", "GKE cluster"), ("zone", "Google Cloud zone"), ("project", "Google Cloud project")):
        help_ = f"{what}.  [default: KINETIC_{name.upper()}, or the profile]"
        added.append(click.Option([f"--{name}"], metavar="NAME", help=help_))
    vars(function)["__click_params__"] = [
        *added,
        *vars(function).get("__click_params__", ()),
    ]  # click shows the last first
    return function


def job_options(function: Command) -> Command:
    """Add a flag for each option of a job in ``_config/options.py``."""
    for option in reversed(JOB_OPTIONS):
        if not option.is_argument:
            continue
        flag = f"--{option.name.replace('_', '-')}"
        help_ = f"{option.effect[0].upper()}{option.effect[1:]}."
        if option.kinds == (bool,):
            function = click.option(f"{flag}/--no-{flag[2:]}", default=None, help=help_)(function)
        elif option.name == "accelerator":
            complete = complete_accelerators
            function = click.option("-a", flag, metavar=option.metavar, help=help_, shell_complete=complete)(function)
        else:
            function = click.option(flag, metavar=option.metavar, help=help_)(function)
    return function


def read_job_options(given: dict[str, Any]) -> dict[str, Any]:
    """Read the values of job options as profiles and variables do; leave out what was not given."""
    from kinetic._jobs import option_sources  # only where jobs are submitted

    return {
        name: option_sources.of_text(name, value) if name in BY_NAME and isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }


def json_option(function: Command) -> Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(function)


def timeout_option(effect: str) -> Callable[[Command], Command]:
    """Add --timeout; say in its help what happens after that time."""
    help_ = f"{effect} after this time, such as 90 (seconds), 10m or 2h; exit code 124."
    return click.option("--timeout", type=Duration(bare=True), metavar="TIME", help=help_)


def log_options(function: Command) -> Command:
    """Add the options that select a part of a log."""
    number = click.IntRange(min=0)
    for option in (
        click.option(
            "--host", default="0", metavar="N|all", help="Show host N of a slice, or all hosts.  [default: 0]"
        ),
        click.option("--attempt", type=number, metavar="N", help="Show attempt N, from 0.  [default: the newest]"),
        click.option("-n", "--tail", type=number, metavar="N", help="Show only the last N lines."),
        click.option("--search", metavar="TEXT", help="Show only lines with this text; small letters find any."),
        click.option("--timestamps", is_flag=True, help="Show before each line when it was there, in UTC."),
        click.option("--until", type=Moment(), metavar="TIME", help="Show only lines written before this time."),
        click.option(
            "--since",
            type=Moment(),
            metavar="TIME",
            help="Show only lines written since this time: 10m (ago), or such as 2026-11-20T14:30Z.",
        ),
        click.option(
            "-f", "--follow", is_flag=True, help="Follow the log until the job ends; exit code 125 if it failed."
        ),
        click.option("--raw", is_flag=True, help="Write the log byte for byte, with every state of progress bars."),
    ):
        function = option(function)
    return function


def filter_options(begin: str) -> Callable[[Command], Command]:
    """Add the options that select jobs; their help begins so."""

    def decorate(function: Command) -> Command:
        for option in (
            click.option(
                "--tag", "tags", multiple=True, metavar="KEY[=VALUE]", help=f"{begin} jobs and batches with this tag."
            ),
            click.option(
                "--name", metavar="PATTERN", help=f"{begin} jobs and batches with this name, such as 'sweep-*'."
            ),
            click.option("--function", metavar="NAME", help=f"{begin} jobs of this function."),
        ):
            function = option(function)
        return function

    return decorate


def save_options(saves: str, removes: str) -> Callable[[Command], Command]:
    """Add --save, --force and --cleanup; say in their help what is saved, and what is removed."""

    def decorate(function: Command) -> Command:
        help_ = f"{removes} afterwards.  [default: no-cleanup]"
        function = click.option("--cleanup/--no-cleanup", default=False, help=help_)(function)
        function = click.option("--force", is_flag=True, help="Let --save replace an existing file.")(function)
        file = click.Path(dir_okay=False, path_type=Path)
        return click.option("--save", type=file, metavar="FILE", help=saves)(function)

    return decorate


def cleanup_options(function: Command) -> Command:
    """Add --cleanup-timeout and --cleanup-poll-interval."""
    words: dict[str, Any] = {"show_default": True, "metavar": "SECONDS"}
    poll, timeout = click.FloatRange(min=0, min_open=True), click.FloatRange(min=0)
    no_effect = "Accepted for compatibility; has no effect on this machine."
    wait = "How long to wait until the job's processes have ended."
    ignored = {**words, "help": no_effect, "expose_value": False}
    function = click.option("--cleanup-poll-interval", type=poll, default=2, **ignored)(function)
    return click.option("--cleanup-timeout", type=timeout, default=180, help=wait, **words)(function)


def removal_options(function: Command) -> Command:
    """Add the options of commands that remove jobs."""
    resources = "Remove the processes, queue entries and working folders, or the Kubernetes objects."
    stored = "Remove the stored files: results, logs and records."
    function = click.option("--gcs/--no-gcs", default=True, help=stored)(function)
    function = click.option("--k8s/--no-k8s", default=True, help=resources)(function)
    function = yes_option(function)
    return click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")(function)


def check_removal(command: str, *, k8s: bool, gcs: bool) -> None:
    """Refuse to remove nothing; `command` is what would remove something."""
    if not (k8s or gcs):
        why = "--no-k8s and --no-gcs together remove nothing"
        raise OptionError("there is nothing to remove", why=why, next=command)


def prune_options(default: str) -> Callable[[Command], Command]:
    """Add the options of commands that remove what no job has used for long."""

    def decorate(function: Command) -> Command:
        function = click.option("--dry-run", is_flag=True, help="Only show what would be removed.")(function)
        function = yes_option(function)
        help_ = f"Not used for so long, such as 7d.  [default: {default}]"
        names = ("--older-than", "--older", "older")
        return click.option(*names, type=Duration(), default=default, metavar="AGE", help=help_)(function)

    return decorate


def host_option(function: Command) -> Command:
    """Add --host, for one host."""
    help_ = "Use host N of a slice.  [default: 0]"
    return click.option("--host", type=click.IntRange(min=0), default=0, metavar="N", help=help_)(function)


def target_of(place: Mapping[str, str | None], *, multi_host: bool = False) -> Target:
    """Return where the options of a place point, with what variables and profile say besides."""
    from kinetic._config import target as settings

    return settings.resolve(**place, multi_host=multi_host)  # type: ignore[arg-type] # places are names


def found_argument(
    name: str, metavar: str, complete: Any, find: Callable[[Any, Target], Any], **more: Any
) -> Callable[[Command], Command]:
    """Give a command an argument and the options of a place, and call it with what `find` returns for them."""

    def decorate(function: Command) -> Command:
        @place_options
        @click.argument(name, metavar=metavar, shell_complete=complete, **more)
        @functools.wraps(function)
        def found(**given: Any) -> Any:
            target = target_of({each: given.pop(each) for each in PLACE})
            return function(find(given.pop(name), target), **given)

        return found

    return decorate


def find_job(job_id: str, target: Target) -> JobRecord:
    """Return the job with this id, a unique beginning of it or this name, or the newest job for "@last" or "-".

    The newest job may be a cancelled one: after ``kinetic jobs cancel @last``, "@last" is still that job.
    """
    from kinetic._jobs import find
    from kinetic._wire import keys

    with output.phase("looking for the job", summary=False):
        if job_id not in NEWEST:
            try:
                return find.find_record(job_id, target)
            except (JobNotFoundError, OptionError) as error:
                if keys.is_group_id(job_id):
                    error.why, error.next = "it is the id of a batch; this command takes a job", _batch_command(job_id)
                elif error.code != _AMBIGUOUS and (batch := find_batch(job_id, target)):
                    error.why = f"it is the name of the batch {batch.group_id}; this command takes a job"
                    error.next = _batch_command(batch.group_id)
                raise
        newest = find.newest_record(target)
    if newest is None:
        raise _no_newest(target)
    return newest


def _no_newest(target: Target) -> JobNotFoundError:
    from kinetic._jobs import find

    removed = find.has_history(target)
    return JobNotFoundError(
        f"there are no {'jobs except removed ones' if removed else 'jobs'}, so @last is not available",
        why="all jobs were removed" if removed else "no job was submitted",
        next="kinetic jobs list --all",
    )


def find_jobs(job_ids: Sequence[str], target: Target) -> list[JobRecord]:
    """Return the jobs with these ids or names, each of them once."""
    return list({job.job_id: job for job in (find_job(job_id, target) for job_id in job_ids)}.values())


def find_job_or_row(job_id: str, target: Target) -> JobRecord | Row:
    """Return the same as ``find_job``; of the newest job, if it has ended, what the list of jobs shows of it."""
    if job_id not in NEWEST:
        return find_job(job_id, target)
    from kinetic._jobs import job_list

    with output.phase("looking for the job", summary=False):
        newest = job_list.newest(target)
    if newest is None:
        raise _no_newest(target)
    return newest


_OF_BATCHES = {"logs": "logs", "result": "results", "wait": "results", "cancel": "cancel", "cleanup": "cleanup"}


def find_batch(word: str, target: Target) -> Group | None:
    """Return the batch with this id or name, or None where there is none."""
    from kinetic._batches import batch_handle  # here and below: for a word that means no job
    from kinetic._jobs import job_list

    try:
        return batch_handle.find_batch(word, job_list.stores(target))[0]
    except KineticError as error:
        if error.code == _AMBIGUOUS:
            raise
        return None


def _batch_command(group_id: str) -> str:
    """Return the command for a batch that does what the present one does for a job."""
    name = _OF_BATCHES.get(click.get_current_context().info_name or "", "status")
    return f"kinetic batch {name} {group_id}" + (" 0     for its first input" if name == "logs" else "")


def job_command(job_id: str) -> str:
    """Return the command for a job that does what the present one does for a batch."""
    name = click.get_current_context().info_name or ""
    own = {theirs: ours for ours, theirs in reversed(_OF_BATCHES.items())}
    return f"kinetic jobs {own.get(name, 'status')} {job_id}"


def named_project(given: str | None) -> str:
    """Return the project that an option, a variable, the profile or the login names; "" for none."""
    from kinetic._config import profiles
    from kinetic._config.variables import read_variable
    from kinetic._google import default_credentials

    environ = os.environ
    profile = profiles.choose(environ).profile
    found = given or read_variable("KINETIC_PROJECT", environ) or getattr(profile, "project", "")
    return str(found or environ.get("GOOGLE_CLOUD_PROJECT") or default_credentials.project_of(environ) or "")


def google_project(given: str | None, *, asks: bool = False) -> str:
    """Return the project that is named somewhere, or by the login; else ask for one, where that is wanted."""
    found = named_project(given)
    if not found and asks and is_interactive():
        found = ask("Google Cloud project")
    if found:
        return found
    raise OptionError(
        "no project is named",
        why="neither --project, KINETIC_PROJECT, a profile, GOOGLE_CLOUD_PROJECT nor your login names one",
        next=f"{click.get_current_context().command_path} --project your-project",
    )


def google_apis(project: str, **limits: Any) -> ProjectApis:
    """Return Google's APIs, which are asked for a project with the login of this user."""
    from kinetic._cluster.project_apis import ProjectApis
    from kinetic._google import login

    return ProjectApis(project, login.Tokens(os.environ), os.environ, **limits)


def target_store() -> Store:
    """Return the store of the jobs that are submitted from here."""
    from kinetic._stores import open_store

    return open_store(target_of({}).store.value)


job_argument = found_argument("job_id", "JOB_ID", complete_jobs, find_job)
jobs_argument = found_argument("job_ids", "JOB_ID...", complete_jobs, find_jobs, nargs=-1, required=True)
job_or_row_argument = found_argument("job_id", "JOB_ID", complete_jobs, find_job_or_row)


def warn_if_unsupervised(rows: Sequence[Row]) -> None:
    """Warn when jobs of this machine wait and no process is there that would start them."""
    here = [row for row in rows if row.status == "PENDING" and row.where == "this machine"]
    # No command starts those whose Python or home is gone.
    waiting = len([row for row in here if not (row.reason or "").startswith("waits for its ")])
    if not waiting:
        return
    from kinetic._jobs import locate

    if not locate.is_supervised():
        what = "1 job is pending" if waiting == 1 else f"{waiting} jobs are pending"
        click.echo(
            f"{what}, and no supervisor is running: the next command starts one, such as kinetic jobs list", err=True
        )


def print_status(job_id: str, page: Mapping[str, Any]) -> None:
    """Print the status of a job in a line."""
    from kinetic._output import colors
    from kinetic._output.colors import Sanitized
    from kinetic._output.format import plain, status_text

    shown = colors.paint_status(plain(status_text(page, time.time())), sys.stdout)
    sys.stdout.write(Sanitized(f"{plain(job_id)}: {shown}\n"))


def report_partly_submitted(group_ids: Sequence[str]) -> None:
    """Report batches of which no process submits the rest, and the command that does."""
    if group_ids:
        more = f", as are {len(group_ids) - 1} more" if len(group_ids) > 1 else ""
        click.echo(f"{group_ids[0]} is only partly submitted{more}", err=True)
        click.echo(f"next:  kinetic batch resume {group_ids[0]}", err=True)


def report_store_elsewhere(target: Target, command: str) -> None:
    """Report the store to which this machine sent jobs last where a list is empty, and the command that lists those."""
    from kinetic._jobs import job_list  # loaded already

    if url := job_list.last_store_elsewhere(target):
        import shlex  # as above

        listed = f"KINETIC_STORE={shlex.quote(url)} {command}"
        click.echo(f"jobs were also sent to {url}; to list them: {listed}", err=True)


def find_predecessor(name: str, place: Mapping[str, str | None]) -> Any:
    """Return the handle of the job or batch with this id or name; of "@last", the newest job or the batch it is of."""
    if not name.startswith("grp-"):
        target = target_of(place)
        try:
            job = find_job(name, target)
        except (JobNotFoundError, OptionError):
            if name in NEWEST or (batch := find_batch(name, target)) is None:
                raise
            name = batch.group_id
        else:
            if name not in NEWEST or not job.group_id:
                from kinetic._jobs.handle import handle_of

                return handle_of(job)
            name = job.group_id
    from kinetic._batches import batch_handle  # only where a batch is followed

    return batch_handle.attach_batch(name, place["project"], place["cluster"])


def function_text(name: str | None, command: Sequence[str] | None, function: str) -> str:
    """Return what a table calls a job: the name that the user gave it, or its command, or its function."""
    if name or not (command or len(function) > _LONGEST_FUNCTION):
        return name or function
    import shlex

    from kinetic._output import format as output_format

    return output_format.shortened(shlex.join(command) if command else function, _LONGEST_FUNCTION)


@contextlib.contextmanager
def warn_if_unlisted(name: str) -> Iterator[None]:
    """Let a job or batch that cannot be read cost one warning, and hide no other."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        from kinetic._output import format as output_format

        click.echo(f"warning: {name} is not listed: {output_format.plain(what_of(error))}", err=True)


def is_interactive() -> bool:
    """Return whether a person can be asked: standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, suggested: str = "") -> str:
    """Ask for a word on standard error; an empty answer takes the suggested one."""
    try:
        return str(click.prompt(question, default=suggested or None, err=True))
    except click.Abort:
        raise KeyboardInterrupt from None


def typed_again(*flags: str, newest: str = "", without: Sequence[str] = ()) -> str:
    """Return the command line as it was typed, with more flags; ``newest`` replaces @last, which may move."""
    import shlex  # 2 ms; only on the way to an error

    typed = click.get_current_context().meta[error_output.WORDS]
    words = [newest if newest and word in NEWEST else word for word in typed if word not in without]
    end = words.index("--") if "--" in words else len(words)
    return shlex.join(["kinetic", *words[:end], *flags, *words[end:]])


def confirm(question: str, *, refused: str, newest: str = "", suggested: bool = False) -> bool:
    """Ask a yes-or-no question on standard error; without a terminal refuse, and advise the command with --yes."""
    if not is_interactive():
        advice = typed_again("--yes", newest=newest)
        raise OptionError(refused, why="not a terminal: pass --yes to confirm", next=advice)
    try:
        return click.confirm(question, default=suggested, err=True)
    except click.Abort:
        raise KeyboardInterrupt from None
