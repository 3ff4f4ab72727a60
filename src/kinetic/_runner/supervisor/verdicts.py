"""Judging: from what the worker said and how its process ended to the verdict, in plain sentences."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetic._runner.worker import report
from kinetic._wire import outcome
from kinetic._wire.outcome import Outcome
from kinetic._wire.task import MORE_MEMORY, Task

_LOG_LINES = 20
_LOG_BYTES = 8192
_KILLED_BY_MEMORY = 0.7  # of the memory here: above it, a SIGKILL nobody asked for was most likely the kernel's


@dataclass(frozen=True)
class Ending:
    """How a worker's process ended.

    Attributes:
        status: As ``os.waitpid`` gives it, or None when the process was not ours to wait for.
        phase: The phase it was in.
        word: Its final word, or None.
        deadline: True when the keeper ended it because of the deadline.
        stopped: True when the keeper ended it because somebody asked for it.
        peak_bytes: Its peak resident memory.
        memory_kill: True when the kernel counted an out-of-memory kill in this control group meanwhile.
        failed_at: Monotonic time at which this host of a slice was seen to have failed, or None.
        for_a_peer: True when the keeper ended it because another host of its slice had failed.
        held_bytes: What its processes held when they were ended because that was more than asked for; else 0.
    """

    status: int | None
    phase: str
    word: dict[str, Any] | None = None
    deadline: bool = False
    stopped: bool = False
    peak_bytes: int = 0
    memory_kill: bool = False
    failed_at: float | None = None
    for_a_peer: bool = False
    held_bytes: int = 0

    @property
    def was_killed(self) -> bool:
        """Say whether somebody from outside killed the process, and neither we nor the kernel for want of memory."""
        wished = self.deadline or self.stopped or self.memory_kill or self.held_bytes
        killed = self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL
        return killed and not wished


def decisive_host(tasks: Sequence[Task], endings: Sequence[Ending]) -> int:
    """Say whose ending decides for a slice: the leader's when every host succeeded, else the first that failed itself.

    A host that was ended because a peer had failed decides nothing, and neither does one that failed later: it mostly
    complains of the peer it lost.
    """
    failed = []
    for host, (task, ending) in enumerate(zip(tasks, endings, strict=True)):
        word = last_word(task, ending)
        if not ending.for_a_peer and (word is None or word["status"] != outcome.SUCCEEDED):
            when = ending.failed_at if ending.failed_at is not None else float("inf")
            failed.append((when, word is None, host))
    return min(failed)[2] if failed else 0


def judge(task: Task, ending: Ending, *, started: float, ended: float, machine_bytes: int = 0) -> Outcome:
    """Say what became of an attempt."""
    word = last_word(task, ending)
    if word is None:
        word = _without_last_word(task, ending, machine_bytes)
    return Outcome(
        job_id=task.job_id,
        attempt=task.attempt,
        host=task.host,
        status=str(word["status"]),
        cause=str(word.get("cause", "")),
        phase=str(word.get("phase", ending.phase)),
        error={**word.get("error", {}), **_log_of(task, word), **_place_of(task, word)},
        body_length=int(word.get("body_length", 0)),
        body_sha256=str(word.get("body_sha256", "")),
        value_type=str(word.get("value_type", "")),
        phases=dict(word.get("phases", {})),
        files=tuple(word.get("files", ())),
        started=started,
        ended=ended,
    )


def last_word(task: Task, ending: Ending) -> dict[str, Any] | None:
    """Return the worker's final word if it holds: a body that it promised must be there in full."""
    word = report.checked(ending.word) or report.read_word(task.word)  # it may have died between the two
    if word is None:
        return None
    promised = word.get("body_length", 0)
    # It may be longer: a keeper may have died between writing its page behind the body and handing both over.
    if promised and (not task.body.exists() or task.body.stat().st_size < promised):
        return None
    return word


def _without_last_word(task: Task, ending: Ending, machine_bytes: int) -> dict[str, Any]:
    if ending.deadline:
        what = f"the job was ended at its deadline of {task.deadline:g} s; the stacks of all threads are in its log"
        return _failed("deadline", what, next=f"kinetic jobs logs {task.job_id}")
    if ending.stopped:
        return _failed("stopped", "the job was ended because somebody asked for it")
    if ending.held_bytes:
        asked, held = ((amount or 0) / 2**30 for amount in (task.memory_bytes, ending.held_bytes))
        what = f"the job ran out of memory: it asked for {asked:.3g} GiB, and its processes held {held:.3g} GiB"
        return _failed("memory", what, limit_bytes=task.memory_bytes, held_bytes=ending.held_bytes, next=MORE_MEMORY)
    if ending.status is None:
        return _failed("lost", "the process that kept this job was killed, and the job with it")
    if os.WIFSIGNALED(ending.status):
        return _by_signal(task, os.WTERMSIG(ending.status), ending, machine_bytes)
    code = os.waitstatus_to_exitcode(ending.status)
    what = f"the job's process ended by itself with exit code {code}, as os._exit({code}) does, and left no result"
    return _failed("exit", what, exit_code=code)


def _by_signal(task: Task, number: int, ending: Ending, machine_bytes: int) -> dict[str, Any]:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    what = f"the job's process was ended by {name}"
    big = machine_bytes and ending.peak_bytes > _KILLED_BY_MEMORY * machine_bytes
    if number == signal.SIGKILL and (ending.memory_kill or big):
        gib = ending.peak_bytes / 2**30
        what = f"the job's process ran out of memory: the kernel killed it (SIGKILL) at about {gib:.1f} GiB"
        return _failed("memory", what, signal=name, **({"next": MORE_MEMORY} if task.is_in_a_pod else {}))
    if number == signal.SIGKILL:
        what += ": somebody ran kill -9 on it, or the kernel ended it for want of memory"
    elif number == signal.SIGSEGV:
        what += ", a segmentation fault in native code; the Python stacks are in its log"
    elif number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
        what += ", sent from outside"
    return _failed("signal", what, signal=name)


def _failed(cause: str, message: str, **more: Any) -> dict[str, Any]:
    return {"status": outcome.FAILED, "cause": cause, "error": {"message": message, **more}}


def _place_of(task: Task, word: dict[str, Any]) -> dict[str, Any]:
    """Say on how many hosts it ran, for a failure on a slice."""
    return {"hosts": task.hosts} if task.hosts > 1 and word["status"] != outcome.SUCCEEDED else {}


def _log_of(task: Task, word: dict[str, Any]) -> dict[str, Any]:
    """Add the last lines of the log to a verdict that has no exception to tell the story."""
    if word["status"] == outcome.SUCCEEDED or word.get("cause") in {"exception", "runner"}:
        return {}
    return {"log": last_lines(task.log)}


def last_lines(log: Path) -> str:
    """Return the last 20 lines of a log, at most 8 KiB, without reading the rest."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LOG_LINES:])


PREEMPTED = "preempted"  # how a host of a slice ended that was taken away; never the status of an Outcome in its place

# What frameworks say when another host is gone. Words of JAX's coordination service, gRPC, NCCL and Gloo.
_PEER_LOSS = re.compile(
    r"coordination.?service|heartbeat|barrier.{0,40}(?:timed out|failed)|(?:task|process|peer|rank).{0,60}"
    r"(?:disconnected|unhealthy|is dead|not responding|exited|failed)|connection (?:reset|closed|refused|aborted)"
    r"|socket closed|broken pipe|UNAVAILABLE|DEADLINE_EXCEEDED|NCCL|gloo",
    re.IGNORECASE,
)


def reason_without_verdict(word: Mapping[str, Any] | None, ending: Ending, *, told_to_end: bool, began: bool) -> str:
    """Say why an attempt has no verdict, in a few words; "" when it has one.

    Args:
        word: What the worker said at its end, if that holds.
        ending: How its process ended.
        told_to_end: The cluster told this pod to end.
        began: The user's function had begun.
    """
    if word is not None and _raised_preempted(word):
        return "the function raised kinetic.errors.Preempted"
    returned = word is not None and word.get("status") == outcome.SUCCEEDED and not word.get("exited")
    if told_to_end and not returned:  # whatever was raised meanwhile: the next attempt tells whether it was the cause
        return "this machine was taken away, or somebody stopped the job"
    if word is None and ending.was_killed and not began:
        return "the worker was killed before the function began"
    if word is not None and not began and _missed_the_store(word):
        return f"its store was out of reach before the function began: {(word.get('error') or {}).get('message', '')}"
    return ""


def first_failure(failures: Iterable[Outcome]) -> Outcome:
    """Return the failure of a slice that the others follow from: the first that does not complain of a lost peer."""
    return min(failures, key=lambda failure: (is_peer_loss(failure), failure.ended or 0.0, failure.host))


def is_peer_loss(failure: Outcome) -> bool:
    """Say whether a failure reads like one that another host's end has caused."""
    error = failure.error
    words = f"{error.get('type', '')}: {error.get('message', '')}\n{error.get('log', '')}"
    return _PEER_LOSS.search(words) is not None


def _missed_the_store(word: Mapping[str, Any]) -> bool:
    """Say whether a phase before the function failed because of what may pass, as in ``starting``."""
    error = word.get("error") or {}
    passes = {"StoreUnreachableError", "CredentialsError"}
    return word.get("cause") == "runner" and error.get("module") == "kinetic.errors" and error.get("type") in passes


def _raised_preempted(word: Mapping[str, Any]) -> bool:
    error = word.get("error") or {}
    return error.get("type") == "Preempted" and error.get("module") == "kinetic.errors"
