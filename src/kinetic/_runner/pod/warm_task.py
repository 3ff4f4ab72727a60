"""A job that was given to a warm pod: whether it is this pod's to carry out, and how the pod gives it back."""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._runner.pod import container, fork_server, waiting_jobs
from kinetic._runner.pod.log_pump import say
from kinetic._runner.supervisor import bindings
from kinetic._runner.supervisor.supervise import store_patiently
from kinetic._wire import folders
from kinetic._wire.failpoints import step
from kinetic._wire.task import FAILED_EXIT
from kinetic.errors import StoreError

if TYPE_CHECKING:
    from kinetic._runner.pod.rendezvous import Host
    from kinetic._wire.outcomes import Outcome

_UNTAKEN_SECONDS = 150.0  # for the leader of a warm slice, which may hear of a job by the kubelet only
_FIRST_LOOK_SECONDS = 0.05  # at who carries a job of a warm slice out, while its leader decides that


def take(source: Host, key: bytes) -> int | None:
    """Take the job, of a warm slice as its leader for all hosts; return the number of its first attempt here.

    Returns None if another pod carries it out.
    """
    task, warm = source.task, source.settings.warm
    if warm and not source.place.host:
        if not _is_confirmed(source.place.base):
            return None
        taken = bindings.bind(source.store, task.job_id, warm, key)
        if task.hosts > 1:
            step("leader:took")
        if not taken and (found := bindings.binding_of(source.store, task.job_id, key)) and not found.pod:
            _start_cold(source)  # a supervisor or a client died before it could
        return 0 if taken else None
    limit, pause = time.monotonic() + _UNTAKEN_SECONDS, _FIRST_LOOK_SECONDS
    while (found := bindings.binding_of(source.store, task.job_id, key)) is None:
        if time.monotonic() > limit:
            raise StoreError("the first host of this slice has not taken the job")
        source.wait(pause)  # it is about to: both were told at the same time
        pause = min(2 * pause, 2.0)
    return found.attempts if found.pod == warm else None


def _is_confirmed(base: Path) -> bool:
    """Return whether the client of a warm pod has not given the job up; wait for its word if it is to follow."""
    try:
        hold = os.open(base / container.HOLD, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    select.select([hold], [], [])  # it comes: the first process gives up what its client does not confirm
    word = os.read(hold, 1)
    os.close(hold)
    return word == b"."


def give_back(source: Host, verdict: Outcome, log: Path) -> None:
    """Make the job one of a pod of its own, and start that, or leave it to the next that looks at it."""
    message = (str(verdict.error.get("message") or "").splitlines() or [verdict.cause])[0]
    job_id, warm, key = source.task.job_id, source.settings.warm, source.key()
    store_patiently(source, lambda: bindings.bind(source.store, job_id, "", key, ended=warm, why=message))
    step("supervisor:gave-back")
    folders.append(log, f"kinetic: the warm pod {warm} gave it back: {message}\n")
    source.leave(f"the packages that it lacks could not be installed into this warm pod: {message}")
    _start_cold(source)
    if source.task.hosts == 1:  # a slice is started again, and finds that it is not its job any more
        source.code = FAILED_EXIT
        fork_server.report_decided()


def _start_cold(source: Host) -> None:
    if container.ACCOUNT_TOKEN.is_file():
        with contextlib.suppress(OSError):  # the next process that looks does it
            say(waiting_jobs.start_cold(source.task.job_id, environ=source.environ))
