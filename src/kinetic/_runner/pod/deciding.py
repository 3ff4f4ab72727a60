"""Deciding what the end of a worker means: a verdict, or an attempt that came to nothing and may be repeated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kinetic._runner.judging import Ending
from kinetic._wire import outcome
from kinetic._wire.outcome import Outcome

PREEMPTED = "preempted"  # how a host of a slice ended that was taken away; never the status of an Outcome in its place

# What frameworks say when another host is gone. Words of JAX's coordination service, gRPC, NCCL and Gloo.
_PEER_LOSS = re.compile(
    r"coordination.?service|heartbeat|barrier.{0,40}(?:timed out|failed)|(?:task|process|peer|rank).{0,60}"
    r"(?:disconnected|unhealthy|is dead|not responding|exited|failed)|connection (?:reset|closed|refused|aborted)"
    r"|socket closed|broken pipe|UNAVAILABLE|DEADLINE_EXCEEDED|NCCL|gloo",
    re.IGNORECASE,
)


def without_a_verdict(word: Mapping[str, Any] | None, ending: Ending, *, told_to_end: bool, began: bool) -> str:
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


def cause_of(failures: Iterable[Outcome]) -> Outcome:
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
