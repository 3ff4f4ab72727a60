"""The words a kubelet reports in: states of containers, conditions and phases of pods."""

from __future__ import annotations

import datetime as dt
from typing import Any

NEVER = "1970-01-01T00:00:00Z"  # what engines report as the start of a container that never ran

# How a node that is about to be taken away says so, word for word as a kubelet does.
SHUTDOWN_REASON = "Terminated"
SHUTDOWN_MESSAGE = "Pod was terminated in response to imminent node shutdown."


def now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def running(started: str) -> dict[str, Any]:
    return {"running": {"startedAt": started}}


def terminated(code: int, reason: str, started: str, container_id: str, message: str = "") -> dict[str, Any]:
    words = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now(), "containerID": container_id}
    return {"terminated": {**words, **({"message": message} if message else {})}}


class Conditions:
    """The conditions of one pod or node that its kubelet owns; a time of change stays where nothing changed."""

    def __init__(self) -> None:
        self._all: dict[str, dict[str, Any]] = {}

    def set(self, kind: str, *, true: bool, reason: str = "", message: str = "") -> None:
        before = self._all.get(kind, {})
        status = "True" if true else "False"
        changed = before.get("lastTransitionTime") if before.get("status") == status else None
        words = {"type": kind, "status": status, "lastTransitionTime": changed or now()}
        # Sent although empty: a merge would keep yesterday's reason.
        self._all[kind] = {**words, "reason": reason or None, "message": message or None}

    def list(self) -> list[dict[str, Any]]:
        return list(self._all.values())


def phase(restart_policy: str, *, initialized: bool, states: list[dict[str, Any]], started: bool) -> str:
    """Sum up the states of a pod's containers as a kubelet does."""
    if not initialized or (not started and any("waiting" in state for state in states)):
        return "Pending"
    if any("terminated" not in state for state in states) or restart_policy == "Always":
        return "Running"
    if all(state["terminated"]["exitCode"] == 0 for state in states):
        return "Succeeded"
    return "Running" if restart_policy == "OnFailure" else "Failed"
