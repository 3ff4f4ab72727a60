"""Keeping the queue moving: bury the dead, wake the idle, start what is missing. Anybody may; everybody does."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

from kinetic._backends.local import burying, pulse
from kinetic._backends.local.paths import Paths
from kinetic._backends.local.queue import KEEPERS, NEW_KEEPER, Keeper, Limits, Queue, again_if_repaired, startable
from kinetic._wire import steps, threads
from kinetic.errors import LaunchError

_STARTUP = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "VIRTUAL_ENV", "KINETIC_PORTABLE", steps.VARIABLE)

_TRIES = 3


def advance(
    paths: Paths, queue: Queue, limits: Limits, *, ready: str = "", soil: str = "", collect: bool = False
) -> None:
    """Do whatever the queue needs now.

    Args:
        paths: Where.
        queue: What waits.
        limits: How much may run at once.
        ready: A soil for which a keeper shall be getting ready even if nothing waits yet.
        soil: The caller's own: only if no keeper of this one can be started, that is the caller's error.
        collect: Wait the 10 ms until a started keeper has detached itself: for callers that must stay single-threaded.

    Inside a job nothing is started: it would be a child of the job, and end with it.
    """
    if os.environ.get("KINETIC_JOB_ID"):
        return
    for _ in range(_TRIES):
        burying.bury_the_dead(paths, queue)
        wake, spawn = _plan(queue, limits, ready)
        asleep = [keeper for keeper in wake if not pulse.poke(paths.wake(keeper))]
        _spawn_all(paths, queue, limits, spawn, soil, collect=collect)
        if not asleep:  # else one died just now: who else is there?
            return


def _spawn_all(
    paths: Paths, queue: Queue, limits: Limits, spawn: list[tuple[str, str]], ours: str, *, collect: bool
) -> None:
    for keeper, soil in spawn:
        try:
            pid = _spawn(paths, queue, limits, keeper, soil)
        except LaunchError as error:
            if soil == ours:
                raise
            if not _is_passing(error.__cause__):
                burying.give_up_on_a_soil(paths, queue, soil, str(error.why))
            continue
        if collect or threads.begin(partial(_collect, pid), "kinetic-spawn") is None:
            _collect(pid)  # it forks the keeper and ends within milliseconds


@again_if_repaired
def _plan(queue: Queue, limits: Limits, ready: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Decide in one transaction who is woken and who is started, so that two callers never start the same twice."""
    wake: list[str] = []
    spawn: list[tuple[str, str]] = []
    with queue.change() as db:
        keepers = [Keeper(*row) for row in db.execute(KEEPERS)]
        at_work = {name for (name,) in db.execute("SELECT keeper FROM jobs WHERE state IN ('claimed', 'running')")}
        wanted = Counter(row.soil for row in startable(db, limits))
        if ready and not wanted[ready] and sum(keeper.state != "idle" for keeper in keepers) < limits.slots:
            wanted[ready] = 1
        for soil, count in wanted.items():
            idle = [keeper.keeper for keeper in keepers if keeper.soil == soil and keeper.state == "idle"]
            coming = sum(_is_coming(keeper, at_work) for keeper in keepers if keeper.soil == soil)
            wake += idle[:count]
            spawn += [(os.urandom(6).hex(), soil) for _ in range(count - len(idle) - coming)]
        db.executemany(NEW_KEEPER, [(*item, "starting", 0, time.time()) for item in spawn])
    return wake, spawn


def _is_coming(keeper: Keeper, at_work: set[str]) -> bool:
    """Say whether a keeper will look at the queue by itself in a moment: it starts, or has just ended a job."""
    return keeper.state == "starting" or (keeper.state == "busy" and keeper.keeper not in at_work)


def _is_passing(error: BaseException | None) -> bool:
    """Say whether a process could not be started for want of something that comes back."""
    return isinstance(error, OSError) and error.errno in {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE}


def _make_runner_again(paths: Paths, folder: Path) -> None:
    """Make the code that a job was submitted with again, if it is gone and is ours: it is not forced to the disk."""
    if folder.parent == paths.runners and not (folder / "keeper.py").exists():
        from kinetic._packing import runner  # rare: after a power cut

        runner.folder(paths.runners)


def _spawn(paths: Paths, queue: Queue, limits: Limits, keeper: str, soil: str) -> int:
    recipe = queue.recipe(soil)
    _make_runner_again(paths, Path(runner_of(recipe["arguments"])))
    environment = {name: os.environ[name] for name in _STARTUP if name in os.environ}
    environment |= recipe["environment"] | {burying.MARK: keeper}
    words = [*recipe["arguments"], keeper, soil, str(paths.runtime), str(limits.slots), ",".join(limits.gpus)]
    log = str(paths.keeper_log(keeper))
    try:
        return os.posix_spawn(
            words[0],
            words,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM],
        )
    except OSError as error:
        queue.forget_keeper(keeper)
        raise LaunchError(
            "the process that would carry out this job could not be started",
            why=f"{words[0]}: {error}",
            next="look at the limits of this shell with: ulimit -a",
        ) from error


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:  # somebody else in this process waits for every child
        return


def runner_of(arguments: list[str]) -> str:
    """Return the folder of the runner's code from a recipe's command line."""
    return str(Path(arguments[-1]).parent)
