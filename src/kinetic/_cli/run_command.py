"""``kinetic run -- COMMAND``: any program as a job, or with --sweep as a batch of jobs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import error_output, job_results, sweep
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._wire import NamedTuple
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._cli.sweep import Sweep
    from kinetic._jobs.command_jobs import CommandRequest
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot


def words_of(target: str, words: Sequence[str], *, after_dashes: bool, module: bool) -> list[str] | None:
    """Return the words of a command, or None where the target is a function of a file."""
    if module:
        return ["python", "-m", target, *(words[1:] if tuple(words[:1]) == ("--",) else words)]
    if ".py::" in target:
        return None
    is_program = os.sep in target and not target.endswith(".py") and os.path.isfile(target)
    return [target, *words] if after_dashes or is_program else None


def read_variables(names: Sequence[str]) -> list[str]:
    """Set what was typed as NAME=VALUE in this process, which submits one job; return all names to capture."""
    for name, separator, value in (text.partition("=") for text in names):
        if separator:
            if not name or "*" in name:
                raise OptionError(f"--env {name}=… cannot be the name of a variable", next="--env NAME=VALUE")
            os.environ[name] = value
    return list(dict.fromkeys(text.partition("=")[0] for text in names))


class Submission(NamedTuple):
    """How a command is submitted: what was typed for commands only, and what happens then."""

    data: Sequence[str]
    sweeps: Sequence[str]
    max_concurrent: int | None
    dry_run: bool
    detach: bool
    as_json: bool


def run(words: Sequence[str], options: Mapping[str, Any], how: Submission) -> None:
    """Submit a command, or a batch of them, and wait unless it is detached."""
    from kinetic._jobs import command_jobs

    as_json = how.as_json
    swept = sweep.read(words, how.sweeps) if how.sweeps else None
    data = command_jobs.data_of_text(how.data) if how.data else None
    request = command_jobs.request_of(swept.words if swept else words, data=data, **options)
    if how.dry_run:
        _print_commands(request, swept, as_json=as_json)
        return
    if swept is not None:
        _run_sweep(request, swept, how)
        return
    handle = command_jobs.submit_request(request)
    output.report(f"follow the job with: kinetic jobs logs {handle.job_id} --follow")
    if not how.detach:
        _wait(handle, as_json=as_json)
        return
    output.report(f"cancel it with: kinetic jobs cancel {handle.job_id}")
    if as_json:
        output_format.print_document(job_id=handle.job_id, function=handle.func_name, command=handle.command)
    else:
        print(handle.job_id)


def _print_commands(request: CommandRequest, swept: Sweep | None, *, as_json: bool) -> None:
    found = [*swept.commands()] if swept is not None else [list(request.words)]
    if as_json:
        output_format.print_document(commands=found)
        return
    for words in found:
        print(shlex.join(words))
    click.echo(f"{output_format.count_text(len(found), 'job')} would be submitted; nothing was", err=True)


def _run_sweep(request: CommandRequest, swept: Sweep, how: Submission) -> None:
    from kinetic._batches import submission
    from kinetic._jobs import command_jobs
    from kinetic._runner.worker.command import run as run_words

    command_jobs.check_program(request)
    batch_request = submission.request_of(
        run_words,
        (list(request.words), dict(request.links)),
        request.name,
        request.options,
        swept.inputs,
        input_mode="single",
        max_concurrent=how.max_concurrent or submission.MAX_CONCURRENT,
    )._replace(plan=request.plan, command=request.words)
    batch = submission.submit(batch_request)
    if not how.detach:
        from kinetic._batches import state

        batch.wait()
        counts = state.count_states(state.refreshed(batch), batch.submission_failures)
        succeeded = counts[state.SUCCEEDED]
        if how.as_json:
            output_format.print_document(group_id=batch.group_id, total=len(batch.jobs), succeeded=succeeded)
        else:
            print(f"{batch.group_id}: {state.summary_text(counts)}, of {len(batch.jobs)}")
        if succeeded != len(batch.jobs):
            click.echo(f"next:  kinetic batch status {batch.group_id} --failed", err=True)
            click.get_current_context().exit(error_output.JOB_FAILED)
        return
    if how.as_json:
        output_format.print_document(group_id=batch.group_id, total=len(batch.jobs))
    else:
        print(batch.group_id)


def _wait(handle: JobHandle, *, as_json: bool) -> None:
    """Follow a job to its end, and exit as its command did."""
    seen = job_results.follow_to_end(handle, sys.stderr if as_json else sys.stdout)
    outcome, code = seen.outcome, exit_code_of(seen)
    if outcome is None or not outcome.succeeded:
        error_output.report(job_results.failure_of(handle, seen, as_json=as_json, exit_code=code))
        code = code or error_output.JOB_FAILED
    elif as_json:
        output_format.print_document(**job_results.job_page(handle, outcome), exit_code=0)
    sys.stdout.flush()
    click.get_current_context().exit(code or 0)


def exit_code_of(seen: Snapshot) -> int | None:
    """Return the exit code of a command; None where it had none: it was cancelled, ended at its deadline, or lost."""
    error = seen.outcome.error if seen.outcome is not None else {}
    if seen.outcome is not None and seen.outcome.cause == "exit":
        code = error.get("exit_code")
        return code if isinstance(code, int) else None
    if error.get("signal") == "SIGKILL":
        return 137
    return None
