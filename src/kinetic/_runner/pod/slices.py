"""Slices: how the leader of several hosts comes to a verdict, and what the others do meanwhile.

The leader owns the value. When a host fails, its peers mostly fail after it, and a host that is taken away makes all of
them fail; so a failure becomes the verdict only after a grace in which every host has told how it ended, or answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic._runner.judging import Ending
from kinetic._runner.pod import deciding
from kinetic._runner.pod.deciding import PREEMPTED
from kinetic._runner.pod.lookout import begin
from kinetic._runner.pod.telling import say
from kinetic._runner.work import Work
from kinetic._wire import digests, podlog
from kinetic._wire.outcome import FAILED, Outcome
from kinetic._wire.pod import FAILED_EXIT, INFRASTRUCTURE_EXIT

if TYPE_CHECKING:
    from kinetic._runner.pod.parent import Parent

_FOREVER = float("inf")
_VERDICT_SECONDS = 120.0  # for the leader to come to its verdict, after a host has told that it failed


def lead(parent: Parent, task: Work, verdict: Outcome, ending: Ending, why: str) -> int:
    """Be host 0 at its worker's end: hear the others, then seal a verdict or leave without one."""
    if why:
        return parent.leave(why)
    peers, hosts = parent.peers, parent.page.hosts
    if verdict.succeeded:
        parent.wait_for(lambda: peers.roll.all_ended(hosts) or _has_failed(parent) or parent.told_to_end, _FOREVER)
        if not _has_failed(parent):
            return parent.deliver(replace(verdict, logs=_logs(peers.told())), task.body)
    elif parent.is_settled:
        return parent.leave_to_the_verdict()
    trouble = _hear_all(parent)
    if trouble:
        return parent.leave(trouble)
    own = [] if verdict.succeeded or ending.stopped else [verdict]
    told = peers.told()
    failures = own + [each for each in told if each.status == FAILED]
    if not failures:
        return parent.leave("a host failed, and what it told cannot be read")
    cause = replace(deciding.cause_of(failures), logs=_logs(told))
    if cause.host == 0:
        return parent.deliver(cause, task.body)
    body = peers.fetch_body(cause, parent.place.base / "peer.body")
    cause = replace(cause, error={**cause.error, "hosts": hosts}, witness="runner")
    if body is None:
        cause = replace(cause, body_length=0, body_sha256="")
    return parent.deliver(cause, body)


def _logs(told: Sequence[Outcome]) -> tuple[digests.LogDigest, ...]:
    """Return the digests of the logs of the other hosts: each has sealed that of its own."""
    return tuple(log for each in told for log in each.logs if log.host == each.host)


def _has_failed(parent: Parent) -> bool:
    """Say whether another host failed by itself; one that was taken away does no harm to a value that is there."""
    return FAILED in parent.peers.roll.ended.values()


def _hear_all(parent: Parent) -> str:
    """Give every host time to say what it knows; return why there is no verdict, or ""."""
    peers = parent.peers
    say(f"a host failed; every host has {parent.page.grace_seconds:g} s to tell what it knows")
    begin(peers.call)

    def is_clear() -> bool:
        return parent.told_to_end or bool(peers.roll.preempted) or peers.roll.all_ended(parent.page.hosts)

    parent.wait_for(is_clear, parent.page.grace_seconds)
    if parent.told_to_end:
        return "this machine was taken away, or somebody stopped the job"
    if peers.roll.preempted:
        return f"host {peers.roll.preempted[0]} was taken away"
    if missing := peers.roll.missing():
        return f"host {missing[0]} does not answer any more"
    return ""


def follow(parent: Parent, task: Work, verdict: Outcome, ending: Ending, why: str) -> int:
    """Be another host at its worker's end: tell the leader, and stay until there is a verdict."""
    if parent.is_settled and ending.stopped:
        return parent.leave_to_the_verdict()
    if why:
        taken = replace(verdict, status=PREEMPTED, error={"message": why})
        return parent.leave(why, lambda: parent.peers.tell(taken))
    verdict = replace(verdict, logs=parent.log_digests())

    def tell() -> bool:
        parent.peers.tell(verdict, None if verdict.succeeded else task.body)
        return True

    if verdict.succeeded:  # the verdict may follow at once, and whoever sees it sees the logs of all hosts
        parent.send_log()
    parent.patiently(tell)
    say(f"this host is done: {verdict.status}; it stays until the job has its verdict")
    parent.send_log()
    seconds = _FOREVER if verdict.succeeded else _VERDICT_SECONDS + parent.page.grace_seconds
    parent.wait_for(lambda: parent.is_settled or parent.told_to_end, seconds)
    if not parent.is_settled:
        say("no verdict came")
        return INFRASTRUCTURE_EXIT
    say(podlog.VERDICT)
    return 0 if verdict.succeeded else FAILED_EXIT
