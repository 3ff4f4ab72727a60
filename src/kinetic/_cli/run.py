"""``kinetic run``: submit a function of a file, or any command, as a job."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Self

import click

from kinetic._backends import registry
from kinetic._cli import job_results, run_command, shared_options
from kinetic._cli.error_output import SuggestionError, advice_in_python, in_front
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType, TracebackType

    from click.shell_completion import CompletionItem

    from kinetic._jobs.handle import JobHandle
    from kinetic._remote.callable import RemoteCallable
    from kinetic._runner.worker.preloaded_modules import VariableWatch

_TYPO = 0.75  # an option this similar to one of ours is a typo
AFTER_DASHES = "kinetic.after_dashes"
_WARM, _WARM_VARIABLE = "20m", "KINETIC_KEEP_WARM"
_LIBRARIES = ("cloudpickle", "google.auth", "obstore", "obstore.store", "yaml")  # what a submission may load
_SHORT = 80  # columns of a result in one line


class RunCommand(click.Command):
    """Knows whether a command follows "--", and that an unknown option before a file is meant for the function."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read options and arguments."""
        try:
            rest = super().parse_args(ctx, list(args))
            count = 1 + len(ctx.params.get("words") or ())  # what is left after the options, and after "--"
            ctx.meta[AFTER_DASHES] = args[: len(args) - count][-1:] == ["--"]
            return rest
        except click.NoSuchOption as error:
            from difflib import get_close_matches  # 2 ms; only on the way to an error

            own = [name for option in self.params for name in option.opts if name.startswith("--")]
            file = next((word for word in args if ".py" in word), None)
            if file is None or in_front(error.option_name) or get_close_matches(error.option_name, own, 1, _TYPO):
                raise
            raise SuggestionError(
                f"{ctx.command_path} has no option {error.option_name}",
                ctx,
                why=f"options of kinetic come before the file; arguments of the function come after {file}",
                next=f"{ctx.command_path} {file} {error.option_name} …     or see: {ctx.command_path} -h",
            ) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the options of kinetic before the file only: what follows it is the function's."""
        return [] if ctx.params.get("target") else super().shell_complete(ctx, incomplete)


@click.command(cls=RunCommand, context_settings={"allow_interspersed_args": False})
@click.argument("target", metavar="FILE.py::func|-- COMMAND", shell_complete=shared_options.complete_files)
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[ARGUMENTS]",
    shell_complete=shared_options.complete_files,
)
@click.option("-m", "--module", is_flag=True, help="Run a module: kinetic run -m package.module [ARGUMENTS].")
@shared_options.job_options
@click.option("--name", metavar="NAME", help="A name for the job, for people; it is in its id.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="A tag for the job; can be repeated.")
@click.option(
    "--data",
    multiple=True,
    metavar="NAME=PATH",
    help="Send a file, folder or bucket address, which the command finds at NAME in its working folder, or mounted "
    "at /NAME; can be repeated.",
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="NAME=VALUES",
    help="Run the command once for each value, as in lr=1e-2,1e-3 or seed=0..4; several make their product. Each value "
    "replaces {NAME} in the command; without {NAME} it is appended as --NAME VALUE.",
)
@click.option(
    "--max-concurrent",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --sweep: how many run at once.  [default: 64]",
)
@click.option(
    "--after",
    "predecessors",
    multiple=True,
    metavar="JOB|GROUP",
    help="Start when this job or batch has succeeded; if it does not succeed, the new job is closed; @last is the "
    "newest job, or the sweep or batch that it belongs to; can be repeated.",
    shell_complete=shared_options.complete_jobs,
)
@click.option(
    "--notify",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="Tell once when the job, or the sweep, has ended: desktop, the address of a webhook, or a shell command; "
    "$NAME is the value of a variable; can be repeated.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="For commands only: print the command, or each command of a sweep, and submit nothing.",
)
@click.option("--output-dir", metavar="PLACE", help="Its output folder, KINETIC_OUTPUT_DIR in the job.")
@click.option(
    "--env",
    "names",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Pass this environment variable to the job, with its value here or this one; NAME* for many; can be repeated.",
)
@click.option(
    "--upgrade", is_flag=True, help="Use the newest versions that the requirements allow (KINETIC_UPGRADE=1)."
)
@click.option(
    "--wait-image/--no-wait-image",
    default=None,
    help="Wait for an image that is built elsewhere, or install its packages when the job starts.",
)
@click.option("-d", "--detach", is_flag=True, help="Print the job id and do not wait.")
@click.option("--report-to", type=int, hidden=True, help="For kinetic dev: the descriptor of its pipe.")
@click.option("--start-at", type=int, hidden=True, help="For kinetic dev: the descriptor that says when to begin.")
@shared_options.json_option
@click.option("--backend", metavar="NAME", help=f"The place: {registry.listed()}.")
@shared_options.namespace_option
@shared_options.place_options
@click.pass_context
def run(
    ctx: click.Context,
    /,
    target: str,
    words: tuple[str, ...],
    module: bool,
    tags: tuple[str, ...],
    names: tuple[str, ...],
    data: tuple[str, ...],
    sweeps: tuple[str, ...],
    max_concurrent: int | None,
    targets: tuple[str, ...],
    predecessors: tuple[str, ...],
    dry_run: bool,
    upgrade: bool,
    wait_image: bool | None,
    detach: bool,
    report_to: int | None,
    start_at: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a function of a file, or any command, as a job.

    A function: options of kinetic come before the file; all words after it are arguments of the function: values by
    position, --name VALUE, --flag and --no-flag, converted to the annotated types, otherwise Python literals or
    strings. FILE.py::func --help shows the function's arguments. Omit ::func if exactly one function is decorated with
    @kinetic.run; options of the decorator apply unless you pass them here.

    A command: all words after -- are the program and its arguments, which no shell reads. "python" is the job's own
    interpreter. kinetic run -m MODULE and kinetic run ./script.sh need no --. The project of the current folder is
    sent, and the command starts in the same folder of it.

    It follows the log, on standard output. Then it prints the value of a function; the exit code is 0, or 125 if the
    job failed. After a command it exits as the command did: with its exit code, or 128 plus the number of a signal.
    Ctrl-C detaches: the job keeps running. The result is kept until the job is removed. Without an accelerator in a
    decorator, an option or the settings, jobs run on cpu.

    Example: kinetic run -a cpu train.py::train --lr 1e-3

    Example: kinetic run --sweep lr=1e-2,1e-3 -- python train.py

    Example: kinetic run --after @last -- python evaluate.py
    """
    reporter = _Reporter(report_to)
    if report_to is not None:
        ctx.info_name = "dev"  # what was typed, for usage and errors
        reporter.begin(start_at)
    if upgrade:
        os.environ["KINETIC_UPGRADE"] = "1"  # of this process, which submits one job
    if wait_image is not None:
        os.environ["KINETIC_WAIT_IMAGE"] = "1" if wait_image else "0"  # as above
    given["tags"], given["on_done"] = _tags(tags) or None, targets or None
    if predecessors:
        place = {name: given[name] for name in shared_options.PLACE}
        given["after"] = [shared_options.find_predecessor(each, place) for each in predecessors]
    captured = run_command.read_variables(names)
    command = run_command.words_of(target, words, after_dashes=ctx.meta[AFTER_DASHES], module=module)
    _report_other_environment(command, given, is_dev=report_to is not None)
    if command is not None:
        options = shared_options.read_job_options(given) | ({"capture_env_vars": captured} if captured else {})
        how = run_command.Submission(data, sweeps, max_concurrent, dry_run, detach, as_json)
        run_command.run(command, options, how)
        return
    _refuse_options_of_commands(
        target, {"--data": data, "--sweep": sweeps, "--max-concurrent": max_concurrent, "--dry-run": dry_run}
    )
    _run_function(ctx, target, words, reporter, given, captured, detach=detach, as_json=as_json)


_INSTEAD = {  # of an option for commands, with a function
    "--data": "a function takes kinetic.Data as an argument",
    "--sweep": "a function is mapped over its inputs with run_async_map in Python",
    "--max-concurrent": "run_async_map in Python has max_concurrent",
    "--dry-run": "kinetic package --dry-run shows what would be sent with a function",
}


def _refuse_options_of_commands(target: str, given: Mapping[str, object]) -> None:
    for flag in filter(given.get, given):
        raise OptionError(
            f"{flag} is for commands, and {target} is a function",
            why=_INSTEAD[flag],
            next=f"kinetic run {flag} … -- python {target.partition('::')[0]}",
        )


def _run_function(
    ctx: click.Context,
    target: str,
    words: Sequence[str],
    reporter: _Reporter,
    given: dict[str, Any],
    captured: Sequence[str],
    *,
    detach: bool,
    as_json: bool,
) -> None:
    """Submit a call of a function, and follow it unless it is detached."""
    from kinetic._cli import function_arguments, target_function

    with reporter:
        reporter.file = target.partition("::")[0]
        with advice_in_python(ctx):
            found = target_function.find_function(target, words)
        if function_arguments.wants_help(words):
            click.echo(function_arguments.usage(found.function, found.written))
            return
        remote = _decorated(found.function, shared_options.read_job_options(given), captured)
        call = function_arguments.read_arguments(found.function, words, found.written)
        reporter.submitting(found.function)
        handle = remote.run_async(*call.args, **call.kwargs)
        reporter.submitted(handle)
        output.report(f"follow the job with: kinetic jobs logs {handle.job_id} --follow")
        if detach:
            output.report(f"cancel it with: kinetic jobs cancel {handle.job_id}")
        if not detach:
            reporter.tell(returned=_wait(handle, as_json=as_json))
        elif as_json:
            output_format.print_document(job_id=handle.job_id, function=handle.func_name)
        else:
            print(handle.job_id)


def _report_other_environment(command: Sequence[str] | None, given: Mapping[str, Any], *, is_dev: bool) -> None:
    """Say which Python a job of this machine has, where another environment is active."""
    from kinetic._cli import target_function
    from kinetic._config import target as settings
    from kinetic._runner.worker.command import is_python

    other = target_function.other_environment(os.getcwd())
    if is_dev or not other or os.environ.get("KINETIC_LOCAL_ENV", "") not in {"", "same"}:
        return
    if command and not is_python(command[0]) and not os.path.exists(f"{other}/bin/{command[0]}"):
        return
    place = {name: given[name] for name in ("backend", "namespace", *shared_options.PLACE)}
    if registry.is_here(settings.resolve(**place).backend.value):
        output.report(
            f"the job has the packages of this kinetic, in {sys.prefix}, and not those in {other}; to use these: "
            + target_function.with_kinetic_of(other)
        )


def _wait_to_begin(descriptor: int, begin_again: Callable[[str], object]) -> None:
    """Load what the run before had loaded, nothing of the project, and wait until `kinetic dev` says to begin, or ends.

    What the project imports is hidden until it does. A library that is another one by then, and a file of the project
    that has the name of one of ours since then, mean a fresh interpreter.
    """
    from kinetic._cli import main
    from kinetic._runner.worker import preloaded_modules

    main.freeze_own_objects()
    with os.fdopen(descriptor, "rb") as orders:
        page = json.loads(orders.readline() or b"{}")
        for name in page.get("modules", ()):
            if not _is_in_this_folder(name):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
        with contextlib.suppress(ValueError):
            preloaded_modules.preload(preloaded_modules.imports_from(page.get("libraries")), os.environ, forks=False)
        if not orders.readline():
            raise SystemExit(0)
    if preloaded_modules.trace.changed_file():
        begin_again("a library has changed")
    if any(name in sys.modules and _is_in_this_folder(name) for name in _LIBRARIES):
        begin_again("one is the project's own now")
    importlib.invalidate_caches()  # a file may be new within the second in which its folder was listed
    preloaded_modules.hidden.install()
    preloaded_modules.hidden.watch(begin_again, lambda: None)


def _is_in_this_folder(module: str) -> bool:
    name = module.partition(".")[0]
    return os.path.exists(name) or os.path.exists(f"{name}.py")


class _Reporter:
    """Reports to `kinetic dev` how far this run is, and ends it at SIGTERM; does nothing without a descriptor."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._words = sys.argv[1:]  # which are the script's own later
        self._watch: VariableWatch | None = None
        self.file = ""  # of the function, once it is known
        self._is_submitted = False
        if descriptor is not None:
            os.set_inheritable(descriptor, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, Exception):
            from kinetic.errors import JobError, what_of

            self._tell_of_projects(error)
            self.tell(failed=what_of(error), has_ended=isinstance(error, JobError))

    def begin_again(self, _why: str) -> None:
        """Be this very command once more, in an interpreter that has imported nothing."""
        words, at = self._words, self._words.index("--start-at")
        if self._descriptor is not None:
            os.set_inheritable(self._descriptor, True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        again = [sys.executable, "-P", "-m", "kinetic", *words[:at], *words[at + 2 :]]
        os.execv(again[0], again)  # noqa: S606 - without a shell on purpose

    def begin(self, start_at: int | None) -> None:
        """Wait for the save, if this run was started before it; note what the project imports, for the next run."""
        from kinetic._runner.worker import preloaded_modules

        if start_at is not None:
            _wait_to_begin(start_at, self.begin_again)
        if not preloaded_modules.hidden.groups:
            self._watch = preloaded_modules.VariableWatch().install()

    def tell(self, **page: object) -> None:
        """Write one message; whether it is read does not matter here."""
        if self._descriptor is not None:
            for name in ("returned", "failed"):
                if name in page:
                    first, *_ = output_format.plain(str(page[name])).splitlines() or [""]
                    page[name] = output_format.shortened(first, _SHORT)
            with contextlib.suppress(OSError):
                os.write(self._descriptor, json.dumps(page).encode() + b"\n")

    def submitting(self, function: object) -> None:
        """Let SIGTERM undo the submission from here on, and the pod stay for the next run by default."""
        if self._descriptor is None:
            return
        from kinetic._config import profiles
        from kinetic._jobs import option_sources
        from kinetic._project import root

        plan, profile = root.find_root(function), profiles.choose(os.environ).profile
        found = option_sources.look_up(plan.root, profile, os.environ, only=["keep_warm"])
        if found.options["keep_warm"].source == "default":
            os.environ[_WARM_VARIABLE] = _WARM  # weaker than the decorator and the option
        signal.signal(signal.SIGTERM, self._end)
        self.tell(submitting=True)

    def submitted(self, handle: JobHandle) -> None:
        """Report the job; from here on, SIGTERM ends only this process."""
        self._is_submitted = True
        if self._descriptor is None:
            return
        from kinetic._runner.worker import preloaded_modules

        loaded = [name for name in sys.modules if name.startswith("kinetic.") or name in _LIBRARIES]
        found = preloaded_modules.imports_here(self._watch, ())
        packages = [name for name in found.names if "." not in name]  # each imports most of its modules
        libraries = {**found._asdict(), "names": packages, "changed": sorted(found.changed)}
        self._tell_of_projects()
        self.tell(job_id=handle.job_id, modules=loaded, libraries=libraries)

    def _tell_of_projects(self, error: Exception | None = None) -> None:
        """Report from which other projects modules were imported, or could not be: their saves start the next run."""
        if self._descriptor is not None and self.file:
            from kinetic._cli import target_function
            from kinetic._project import other_projects, root

            with contextlib.suppress(KineticError):  # as when the current folder is gone
                plan = root.plan_for_file(self.file)
                files = [file for file in target_function.files_of(error) if not root.is_installed(file)]
                named = {other_projects.project_of(os.path.dirname(file)) for file in files}
                others = [each for each in sorted(named) if each and root.below(each, os.fspath(plan.root)) is None]
                self.tell(beside=dict(other_projects.with_them(plan, others).beside))

    def _end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler
        if not self._is_submitted:
            raise KeyboardInterrupt  # the submission is undone
        raise tracebacks.mark_told(SystemExit(128 + number))  # `kinetic dev` reports what becomes of the job


def _tags(written: Sequence[str]) -> dict[str, str]:
    """Read what was typed as --tag KEY=VALUE."""
    found = {}
    for text in written:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise OptionError(f"--tag {text} is not KEY=VALUE", next="--tag experiment=baseline")
        found[name] = value
    return found


def _decorated(function: Callable[..., Any], given: dict[str, Any], names: Sequence[str]) -> RemoteCallable[..., Any]:
    """Return the function with the options of the command line on top of its own."""
    from kinetic._jobs.job_options import Fallback
    from kinetic._remote.callable import RemoteCallable
    from kinetic._remote.callable import run as decorate

    remote = function if isinstance(function, RemoteCallable) else decorate(accelerator=Fallback("cpu"))(function)
    if names:
        before = remote._options.capture_env_vars or ()  # noqa: SLF001 - ours
        given = {**given, "capture_env_vars": list(dict.fromkeys((*before, *names)))}
    return remote.with_options(**given) if given else remote


def _wait(handle: JobHandle, *, as_json: bool) -> str:
    """Follow a job to its end, print its value, and return the value's repr."""
    from kinetic._jobs import locate

    seen = job_results.follow_to_end(handle, sys.stderr if as_json else sys.stdout)
    if seen.outcome is None or not seen.outcome.succeeded:
        raise job_results.failure_of(handle, seen, as_json=as_json)
    locate.key_to_read(handle)  # nothing of a store is unpickled unverified
    value = job_results.load_value(handle, seen.outcome)
    text = output_format.value_repr(value)
    if as_json:
        output_format.print_document(**job_results.job_page(handle, seen.outcome), **output_format.value_page(value))
    else:
        print(text)
    sys.stdout.flush()
    return text
