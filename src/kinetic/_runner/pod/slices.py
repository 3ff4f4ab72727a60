"""Slices: how the leader of several hosts comes to a verdict, and what the others do meanwhile.

The leader owns the value. When a host fails, its peers mostly fail after it, and a host that is taken away makes all of
them fail; so a failure becomes the verdict only after a grace in which every host has told how it ended, or answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from kinetic._runner.judging import Ending
from kinetic._runner.patience import FOREVER
from kinetic._runner.pod import deciding
from kinetic._runner.pod.deciding import PREEMPTED
from kinetic._runner.pod.lookout import begin
from kinetic._runner.pod.peers import Peers
from kinetic._runner.pod.preparing import Place
from kinetic._runner.pod.telling import say
from kinetic._runner.supervisor.supervise import Decision, Source, patiently
from kinetic._wire import digests, podlog
from kinetic._wire.outcome import FAILED, Outcome
from kinetic._wire.pod import FAILED_EXIT, INFRASTRUCTURE_EXIT
from kinetic._wire.task import PodSettings, Task

_VERDICT_SECONDS = 120.0  # for the leader to come to its verdict, after a host has told that it failed


class Host(Source, Protocol):
    """What is needed here of a host's source: ``PodSource`` in ``source.py``."""

    settings: PodSettings
    place: Place
    peers: Peers
    told_to_end: bool
    is_settled: bool
    code: int

    def leave(self, why: str, more: Callable[[], object] | None = None) -> None:
        """End without a verdict."""

    def leave_to_the_verdict(self) -> None:
        """End without a verdict, because there is one."""

    def send_log(self) -> str:
        """Bring the log into the store, as far as there is time."""

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds."""


def lead(source: Host, task: Task, verdict: Outcome, ending: Ending, why: str) -> Decision | None:
    """Be host 0 at its worker's end: hear the others, then come to a verdict or leave without one."""
    peers, hosts = source.peers, source.task.hosts
    if why:
        source.leave(why)
        return None
    if verdict.succeeded:
        source.wait_for(lambda: peers.roll.all_ended(hosts) or _has_failed(source) or source.told_to_end, FOREVER)
        if not _has_failed(source):
            return replace(verdict, logs=_logs(peers.told())), task.body
    elif source.is_settled:
        source.leave_to_the_verdict()
        return None
    trouble = _hear_all(source)
    own = [] if verdict.succeeded or ending.stopped else [verdict]
    told = [] if trouble else peers.told()
    failures = [] if trouble else own + [each for each in told if each.status == FAILED]
    if not failures:
        source.leave(trouble or "a host failed, and what it told cannot be read")
        return None
    cause = replace(deciding.cause_of(failures), logs=_logs(told))
    if cause.host == 0:
        return cause, task.body
    body = peers.fetch_body(cause, source.place.base / "peer.body")
    cause = replace(cause, error={**cause.error, "hosts": hosts}, witness=source.witness)
    if body is None:
        cause = replace(cause, body_length=0, body_sha256="")
    return cause, body


def _logs(told: Sequence[Outcome]) -> tuple[digests.LogDigest, ...]:
    """Return the digests of the logs of the other hosts: each has sealed that of its own."""
    return tuple(log for each in told for log in each.logs if log.host == each.host)


def _has_failed(source: Host) -> bool:
    """Say whether another host failed by itself; one that was taken away does no harm to a value that is there."""
    return FAILED in source.peers.roll.ended.values()


def _hear_all(source: Host) -> str:
    """Give every host time to say what it knows; return why there is no verdict, or ""."""
    peers, seconds = source.peers, source.settings.grace_seconds
    say(f"a host failed; every host has {seconds:g} s to tell what it knows")
    begin(peers.call)

    def is_clear() -> bool:
        return source.told_to_end or bool(peers.roll.preempted) or peers.roll.all_ended(source.task.hosts)

    source.wait_for(is_clear, seconds)
    if source.told_to_end:
        return "this machine was taken away, or somebody stopped the job"
    if peers.roll.preempted:
        return f"host {peers.roll.preempted[0]} was taken away"
    if missing := peers.roll.missing():
        return f"host {missing[0]} does not answer any more"
    return ""


def follow(source: Host, task: Task, verdict: Outcome, ending: Ending, why: str) -> None:
    """Be another host at its worker's end: tell the leader, and stay until there is a verdict."""
    if source.is_settled and ending.stopped:
        source.leave_to_the_verdict()
        return
    if why:
        taken = replace(verdict, status=PREEMPTED, error={"message": why})
        source.leave(why, lambda: source.peers.tell(taken))
        return
    verdict = replace(verdict, logs=source.log_digests((task,)))
    if verdict.succeeded:  # the verdict may follow at once, and whoever sees it sees the logs of all hosts
        source.send_log()
    patiently(source, lambda: source.peers.tell(verdict, None if verdict.succeeded else task.body))
    say(f"this host is done: {verdict.status}; it stays until the job has its verdict")
    source.send_log()
    seconds = FOREVER if verdict.succeeded else _VERDICT_SECONDS + source.settings.grace_seconds
    source.wait_for(lambda: source.is_settled or source.told_to_end, seconds)
    if source.is_settled:
        say(podlog.VERDICT)
        source.code = 0 if verdict.succeeded else FAILED_EXIT
    else:
        say("no verdict came")
        source.code = INFRASTRUCTURE_EXIT
