"""``kinetic dev FILE.py::func``: run a function again at each save of its project.

Each run is a process of its own, ``kinetic run`` with what was typed, so that it sees all modules as they are on the
disk. It reports through a pipe how far it is. Once it has submitted its job, the process of the next run is started: it
loads what kinetic needs and the libraries that this run imported, nothing of the project, and waits for the save.
"""

from __future__ import annotations

import contextlib
import copy
import glob
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from kinetic._cli import file_watcher, function_arguments, run_command, shared_options, target_function
from kinetic._cli import run as run_cli
from kinetic._cli.file_watcher import FileWatcher
from kinetic._cli.job_files import folders_not_sent
from kinetic._output import terminal as output
from kinetic._output.format import count_text, plain, seconds_text
from kinetic._project import root
from kinetic.errors import OptionError

_NOT_HERE = frozenset(
    "target words module data sweeps max_concurrent predecessors dry_run detach report_to start_at as_json".split()
)
_OWN_HELP = {  # of options whose help elsewhere is about sweeps and batches, too
    "retries": "How many times a failed job is retried.",
    "targets": "Tell once when a run has ended: desktop, the address of a webhook, or a shell command; $NAME is the "
    "value of a variable; can be repeated.",
}
_OWN = frozenset({"--keep-running", "--cancel-on-exit"})
_OPTIONS_TYPED = "kinetic.options_typed"
_END_SECONDS = 30.0  # a run that is being submitted undoes that first; then it is killed


def _params() -> Iterator[click.Parameter]:
    """Yield the options of `kinetic run` that `kinetic dev` has, too."""
    for each in run_cli.run.params:
        if isinstance(each, click.Option) and each.name in _OWN_HELP:
            own = copy.copy(each)
            own.help = _OWN_HELP[each.name]
            yield own
        elif each.name not in _NOT_HERE:
            yield each


class _DevCommand(run_cli.RunCommand):
    """Remembers the options as they were typed, for `kinetic run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read options and arguments."""
        typed = list(args)
        rest = super().parse_args(ctx, args)
        count = 1 + len(ctx.params.get("words") or ())
        ctx.meta[_OPTIONS_TYPED] = [word for word in typed[: len(typed) - count] if word not in _OWN]
        return rest


@click.command(
    cls=_DevCommand,
    context_settings={"allow_interspersed_args": False},
    params=[
        click.Argument(["target"], metavar="FILE.py::func", shell_complete=shared_options.complete_files),
        click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]"),
        *_params(),
    ],
)
@click.option("--keep-running", is_flag=True, help="Let the run before continue, instead of cancelling it.")
@click.option("--cancel-on-exit", is_flag=True, help="Cancel the present run at Ctrl-C.")
@click.pass_context
def dev(
    ctx: click.Context,
    /,
    target: str,
    words: tuple[str, ...],
    keep_running: bool,
    cancel_on_exit: bool,
    **given: Any,
) -> None:
    """Run a function of a file again at each save.

    It runs the function as kinetic run does, with the same options and arguments, and follows its log. When a file of
    the project is saved, it cancels that run and starts the next one, which sees all files as they are then. Files that
    are not sent with a job, as .kineticignore says, start nothing, nor does a save that changes nothing.

    On a cluster, the pod stays warm for 20 minutes and takes the next run, unless --keep-warm, the decorator or a
    setting says how long. With --keep-running, the next run does not wait for the one before, so it needs another pod.

    Ctrl-C ends watching. A job that runs then keeps running, and it says how to follow and cancel it; with
    --cancel-on-exit the job is cancelled.

    Example: kinetic dev -a cpu train.py::train --lr 1e-3
    """
    if run_command.words_of(target, words, after_dashes=ctx.meta[run_cli.AFTER_DASHES], module=False) is not None:
        raise OptionError(
            f"kinetic dev cannot run {target}: it is a command",
            why="a save starts the next run of a function of a file",
            next="kinetic dev FILE.py::FUNCTION     or run the command once: kinetic run -- COMMAND",
        )
    file = Path(target.partition("::")[0])
    target_function.check_file(file, target.partition("::")[2], words, command="kinetic dev")
    run_words = [*ctx.meta[_OPTIONS_TYPED], target, *words]
    if function_arguments.wants_help(words):
        ctx.exit(subprocess.call([sys.executable, "-P", "-m", "kinetic", "run", *run_words]))
    place = [word for name in shared_options.PLACE if (value := given.get(name)) for word in (f"--{name}", value)]
    plan = root.plan_for_file(file)
    watcher = FileWatcher.of(plan, folders_not_sent(plan, given.get("output_dir")))
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what runs is ended or named
        signal.signal(number, signal.default_int_handler)
    output.report(f"watching {count_text(watcher.count, 'file')} of {watcher.root}; Ctrl-C ends watching")
    session = _Session(watcher, run_words, place, keeps=keep_running)
    try:
        session.watch()
    except KeyboardInterrupt:
        session.leave(cancel=cancel_on_exit)
        raise
    finally:
        session.close()


class _Run:
    """One `kinetic run`, in a process group of its own: a Ctrl-C on the terminal does not reach it."""

    def __init__(self, words: Sequence[str], before: _Run | None = None) -> None:
        """Start it; with a run before it, it only loads what that one had loaded, until ``begin``."""
        self.began, self.began_at = time.monotonic(), time.time()
        self.told: dict[str, Any] = {}
        self.pipe, theirs = os.pipe()
        os.set_blocking(self.pipe, False)
        self._rest = b""
        own, passed = ["--report-to", str(theirs)], [theirs]
        self._orders: int | None = None
        if before is not None:
            orders, self._orders = os.pipe()
            loads = {name: before.told.get(name) for name in ("modules", "libraries")}
            os.write(self._orders, json.dumps(loads).encode() + b"\n")
            own, passed = ["--start-at", str(orders), *own], [orders, *passed]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kinetic", "run", *own, *words],
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                process_group=0,
            )
        finally:
            for descriptor in passed:
                os.close(descriptor)
        self.end: int | None = None  # becomes readable when the process has ended
        with contextlib.suppress(AttributeError, OSError):  # not on macOS
            self.end = os.pidfd_open(self._process.pid)
        self.seconds: float | None = None  # how long it took
        self.is_silent = False  # whether it reports nothing more
        self._is_failure_told = False

    def begin(self) -> bool:
        """Begin with what was only prepared; return whether its process is there."""
        self.began, self.began_at = time.monotonic(), time.time()
        if self._orders is None or self._process.poll() is not None:
            return False
        try:
            os.write(self._orders, b"begin\n")
        except BrokenPipeError:
            return False
        os.close(self._orders)
        self._orders = None
        return True

    def read(self) -> bool:
        """Read what it reported; return whether its process has ended."""
        if self.seconds is None and self._process.poll() is not None:
            self.seconds = time.monotonic() - self.began
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.pipe, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self.told |= json.loads(line)
            self.is_silent = True  # its end of the pipe is closed
        return self.seconds is not None

    def has_just_failed(self) -> bool:
        """Return, once, whether its process has ended without a value."""
        if self._is_failure_told or not self.read() or "returned" in self.told:
            return False
        self._is_failure_told = True
        return True

    def signal(self, number: int) -> None:
        """Send a signal to its process alone."""
        self._process.send_signal(number)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until its process has ended; kill it after some time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.read()

    def wait_for_submission(self) -> None:
        """Wait until a submission that has begun is through."""
        while not self.read() and "submitting" in self.told and "job_id" not in self.told:
            select.select([self.pipe], [], [], 1)

    @property
    def job_id(self) -> str | None:
        """Its job, if that may still run."""
        is_over = "returned" in self.told or self.told.get("has_ended")
        return None if is_over else self.told.get("job_id")

    def close(self) -> None:
        """Kill its process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._orders is not None:
            os.close(self._orders)
        os.close(self.pipe)
        if self.end is not None:
            os.close(self.end)


class _Session:
    """What `kinetic dev` watches and runs."""

    def __init__(self, watcher: FileWatcher, words: Sequence[str], place: Sequence[str], *, keeps: bool) -> None:
        self._watcher, self._words, self._place, self._keeps = watcher, words, place, keeps
        self._run: _Run | None = None
        self._next: _Run | None = None

    def watch(self) -> None:
        """Run, and run again after each change; ends with KeyboardInterrupt."""
        self._run = _Run(self._words)
        while True:
            if self._run.has_just_failed():
                output.report("waiting for the next save; Ctrl-C ends watching")
            changed: dict[str, None] = {}
            if self._watcher.watch_too(self._run.told.get("beside", {}), self._run.began_at):
                changed |= dict.fromkeys(self._watcher.changes())
            else:
                self._wait(self._run)
            while self._watcher.has_news():
                changed |= dict.fromkeys(self._watcher.changes())
            if not changed:
                continue
            last = self._end_run(self._run)
            while self._watcher.has_news():  # meanwhile
                changed |= dict.fromkeys(self._watcher.changes())
            output.report(f"{_names(list(changed))} changed (last run: {last})")
            self._run.close()
            for name in changed:
                _remove_bytecode(self._watcher.root / name)
            self._run = self._begin_run()

    def _begin_run(self) -> _Run:
        """Return the run that was prepared, or a new one."""
        run, self._next = self._next, None
        if run is not None:
            if run.begin():
                return run
            run.close()
        return _Run(self._words)

    def leave(self, *, cancel: bool) -> None:
        """End following the present run, or cancel it; a second Ctrl-C only ends its process."""
        if self._run is None:
            return
        output.leave_line()
        if not self._run.read():
            self._run.signal(signal.SIGTERM if cancel else signal.SIGINT)  # it says itself how to follow and to cancel
            self._run.wait(_END_SECONDS)
        elif not cancel and self._run.job_id:
            output.report(f"{self._run.job_id} may still run; cancel it with: kinetic jobs cancel {self._run.job_id}")
        if cancel and self._run.job_id and self._cancel(self._run.job_id):
            output.report(f"{self._run.job_id} is cancelled")

    def close(self) -> None:
        """End what still runs."""
        for run in (self._run, self._next):
            if run is not None:
                run.close()
        self._watcher.close()

    def _wait(self, run: _Run) -> None:
        """Wait until files may have changed, or the run has reported something or ended."""
        poller = select.poll()
        is_over = run.seconds is not None  # as of the last look: what ended since then wakes this up
        if self._next is None and "modules" in run.told:
            self._next = _Run(self._words, run)
        if not run.is_silent and "job_id" not in run.told:
            poller.register(run.pipe, select.POLLIN)  # the next one is prepared then
        if self._watcher.descriptor is not None:
            poller.register(self._watcher.descriptor, select.POLLIN)
        if run.end is not None and not is_over:
            poller.register(run.end, select.POLLIN)
        is_told = self._watcher.descriptor is not None and (is_over or run.end is not None)
        poller.poll(None if is_told else file_watcher.LOOK_SECONDS * 1000)

    def _end_run(self, run: _Run) -> str:
        """End a run before the next one; return a phrase that says how it ended."""
        if self._keeps:
            run.wait_for_submission()
        if not run.read():
            run.signal(signal.SIGTERM)
            run.wait(_END_SECONDS)
            took = seconds_text(time.monotonic() - run.began)
            if run.job_id is None:
                return _result_of(run) or f"ended after {took}, before it was submitted"
            if self._keeps:
                return f"{run.job_id} keeps running; cancel it with: kinetic jobs cancel {run.job_id}"
            return f"cancelled after {took}" if self._cancel(run.job_id) else f"{run.job_id} may still run"
        if run.job_id and not self._keeps:  # following it failed, so it may still run
            self._cancel(run.job_id)
        return _result_of(run) or f"ended after {seconds_text(run.seconds or 0)}"

    def _cancel(self, job_id: str) -> bool:
        """Cancel a job, and wait until it has ended; report a failure."""
        command = [sys.executable, "-P", "-m", "kinetic", "jobs", "cancel", job_id, *self._place]
        done = subprocess.run(  # in a group of its own: a Ctrl-C does not stop it half-way
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, process_group=0, check=False
        )
        if done.returncode:
            output.warn(f"{job_id} was not cancelled", why=done.stderr.strip(), next=f"kinetic jobs cancel {job_id}")
        return done.returncode == 0


def _result_of(run: _Run) -> str:
    """Return how a run ended, or "" if it did not say so."""
    took = seconds_text(run.seconds or 0.0)
    if "returned" in run.told:
        return f"{took}, returned {run.told['returned']}"
    return f"{took}, {run.told['failed']}" if "failed" in run.told else ""


def _remove_bytecode(source: Path) -> None:
    """Remove what Python has compiled of a file: it looks at size and second, and takes it for another save's."""
    if source.suffix == ".py":
        cached = Path(importlib.util.cache_from_source(str(source)))
        for each in cached.parent.glob(f"{glob.escape(source.stem)}.*.pyc"):  # of each optimization level
            with contextlib.suppress(OSError):
                each.unlink()


def _names(changed: Sequence[str]) -> str:
    first, *others = map(plain, changed)
    return f"{first} and {count_text(len(others), 'more file')}" if others else first
