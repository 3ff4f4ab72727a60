"""``kinetic run``: submit a function of a file as a job, without a change to the file."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from kinetic._backends import registry
from kinetic._cli import error_output, job_results, shared_options
from kinetic._cli.error_output import SuggestionError
from kinetic._output import format as output_format
from kinetic._output import terminal as output

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic._jobs.handle import JobHandle
    from kinetic._remote.callable import RemoteCallable

_TYPO = 0.75  # an option this similar to one of ours is a typo
_ADVICE = re.compile(r'(\w+)="([^"]+)"')


class _Run(click.Command):
    """Knows that an unknown option before the file is probably meant for the function."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read options and arguments."""
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            from difflib import get_close_matches  # 2 ms; only on the way to an error

            own = [name for option in self.params for name in option.opts if name.startswith("--")]
            file = next((word for word in args if ".py" in word), None)
            if file is None or get_close_matches(error.option_name, own, 1, _TYPO):
                raise
            raise SuggestionError(
                f"kinetic run has no option {error.option_name}",
                ctx,
                why=f"options of kinetic come before the file; arguments of the function come after {file}",
                next=f"kinetic run {file} {error.option_name} …     or see: kinetic run -h",
            ) from None


@click.command(cls=_Run, context_settings={"allow_interspersed_args": False})
@click.argument("target", metavar="FILE.py::func")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]")
@shared_options.job_options
@click.option("--backend", metavar="NAME", help=f"The place: {registry.listed()}.")
@shared_options.place_options
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace.  [default: KINETIC_NAMESPACE, or the profile]")
@click.option("--output-dir", metavar="PLACE", help="Its output folder, KINETIC_OUTPUT_DIR in the job.")
@click.option(
    "--env",
    "names",
    multiple=True,
    metavar="NAME",
    help="Pass this environment variable to the job, or NAME* for many; can be repeated.",
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
@shared_options.json_option
def run(
    target: str,
    words: tuple[str, ...],
    names: tuple[str, ...],
    upgrade: bool,
    wait_image: bool | None,
    detach: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a function of a file as a job.

    Options of kinetic come before the file; all words after it are arguments of the function: values by position,
    --name VALUE, --flag and --no-flag, converted to the annotated types, otherwise Python literals or strings.
    FILE.py::func --help shows the function's arguments. Omit ::func if exactly one function is decorated with
    @kinetic.run; options of the decorator apply unless you pass them here.

    It follows the log, then prints the value; both on standard output, with --json only the value. The exit code is 0,
    or 125 if the job failed. Ctrl-C detaches: the job keeps running. The result is kept until the job is removed.

    Example: kinetic run -a cpu train.py::train --lr 1e-3
    """
    from kinetic._cli import target_function
    from kinetic.errors import OptionError

    found = target_function.find_function(target, words)
    if target_function.wants_help(words):
        click.echo(target_function.usage(found.function, found.written))
        return
    try:
        remote = _decorated(found.function, shared_options.read_job_options(given), names)
    except OptionError as error:  # advise accelerator="cpu" as it is typed here: --accelerator cpu
        flags = _ADVICE.sub(lambda each: f"--{each[1].replace('_', '-')} {each[2]}", error.next or "")
        error.next = flags or None
        raise
    if upgrade:
        os.environ["KINETIC_UPGRADE"] = "1"  # of this process, which submits one job
    call = target_function.read_arguments(found.function, words, found.written)
    if wait_image is not None:
        os.environ["KINETIC_WAIT_IMAGE"] = "1" if wait_image else "0"  # as above
    handle = remote.run_async(*call.args, **call.kwargs)
    output.report(f"follow the job with: kinetic jobs logs {handle.job_id} --follow")
    if detach:
        output.report(f"cancel it with: kinetic jobs cancel {handle.job_id}")
    if not detach:
        _wait(handle, as_json=as_json)
    elif as_json:
        output_format.print_document(job_id=handle.job_id, function=handle.func_name)
    else:
        print(handle.job_id)


def _decorated(function: Callable[..., Any], given: dict[str, Any], names: tuple[str, ...]) -> RemoteCallable[..., Any]:
    """Return the function with the options of the command line on top of its own."""
    from kinetic._remote.callable import RemoteCallable
    from kinetic._remote.callable import run as decorate

    remote = function if isinstance(function, RemoteCallable) else decorate()(function)
    if names:
        given = {**given, "capture_env_vars": list(dict.fromkeys((*(remote.options.capture_env_vars or ()), *names)))}
    return remote.with_options(**given) if given else remote


def _wait(handle: JobHandle, *, as_json: bool) -> None:
    """Follow a job to its end, and print its value."""
    from kinetic._jobs import locate, wait

    log, progress = _Log(sys.stderr if as_json else sys.stdout), output.Progress()
    with error_output.job_keeps_running(handle):
        seen = wait.wait(handle, follow=log.write, progress=progress)
    log.end_line()
    progress.wrote("\n")
    progress.end()
    if seen.outcome is None or not seen.outcome.succeeded:
        from kinetic._inspect import explanation

        failure = explanation.job_error(handle, seen, log_is_shown=True)
        if as_json:
            output_format.print_document(**job_results.failure_page(handle, seen, failure))
            sys.stdout.flush()
        raise failure
    locate.key_to_read(handle)  # nothing of a store is unpickled unverified
    value = job_results.load_value(handle, seen.outcome)
    if as_json:
        output_format.print_document(**job_results.job_page(handle, seen.outcome), **output_format.value_page(value))
    else:
        print(output_format.value_repr(value))
    sys.stdout.flush()


class _Log:
    """Writes the log of a job, and knows whether it left a line open."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = "\n"
        self._text = output.JobText()

    def write(self, text: str) -> None:
        """Write what is new."""
        self._stream.write(output.Sanitized(self._text.feed(text) if self._stream.isatty() else text))
        self._stream.flush()
        self._last = text[-1:] or self._last

    def end_line(self) -> None:
        """Let what follows begin on a new line."""
        if self._last != "\n":
            self.write("\n")
