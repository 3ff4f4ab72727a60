"""How a pod ended, in a sentence: preempted, evicted, out of memory, refused by its machine, by an exit code."""

from __future__ import annotations

import re
import signal

from kinetic._backends.kube import object_status
from kinetic._backends.kube.event_patterns import Explanation
from kinetic._backends.kube.object_status import Object
from kinetic._wire import pod_log_format
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT, LOST_EXIT, MORE_MEMORY

_MORE_DISK = 'write resources = { disk = "100Gi" } under [tool.kinetic] in pyproject.toml'
_MORE_SHM = 'write resources = { shm = "16Gi" } under [tool.kinetic] in pyproject.toml'
_NEXT_TRY = "nothing: it starts again by itself when there is a machine"
_LOOK = "kinetic jobs logs {job}"

_DISRUPTIONS = {
    "PreemptionByScheduler": "a more important pod took its place",
    "EvictionByEvictionAPI": "its machine was emptied, as for an upgrade",
    "DeletionByTaintManager": "its machine did not answer any more",
    "DeletionByPodGC": "its machine is gone",
    "PreemptionByKubeScheduler": "a more important pod took its place",
}
_OF_A_JOB = re.compile(r"for pod [^/\s]+/(\S+) failed with exit code (\d+)")  # of a Job whose podFailurePolicy ended it
_REFUSALS = ("UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity", "NodePorts", "OutOf")


def pod_disruption(pod: Object) -> Explanation | None:
    """Say how a pod lost its machine, or None when it did not."""
    found = object_status.condition_of(pod, "DisruptionTarget")
    if found is None:
        return None
    status = pod.get("status") or {}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or found.get("message") or "")
    if "low on resource" in message or "had condition" in message:
        return Explanation("evicted", "its machine ran out of room, and it was evicted", message, _roomier(message))
    if found.get("reason") == "TerminationByKubelet" or reason in {"Terminated", "NodeShutdown", "Shutdown"}:
        return Explanation("preempted", "its machine was taken away, as Spot capacity is", message, _NEXT_TRY)
    what = _DISRUPTIONS.get(str(found.get("reason")), "it lost its machine")
    return Explanation("preempted", what, message or str(found.get("reason") or ""), _NEXT_TRY)


def pod_end(pod: Object, job_id: str) -> Explanation:
    """Say how a pod ended that has failed."""
    lost = pod_disruption(pod)
    if lost is not None:
        return lost
    status = pod.get("status") or {}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if reason == "Evicted":
        return Explanation(
            "evicted", "it used more than it may, and was evicted", message, _roomier(message), stuck=True
        )
    if reason == "DeadlineExceeded":
        return Explanation("deadline", "it ran longer than its deadline", message, "raise the deadline", stuck=True)
    if reason.startswith(_REFUSALS):
        return Explanation("refused-by-machine", "its machine refused it at the last moment", f"{reason}: {message}")
    return _exit(object_status.terminated(pod) or {}, message or reason, job_id)


def end_by_its_job(said: str, job_id: str) -> tuple[str, Explanation] | None:
    """Say how the pod ended that a Job names as the reason of its failure, when the pod itself is gone.

    Args:
        said: The Job's words, e.g. "Container kinetic-worker for pod ns/x-s-0-1-abcde failed with exit code 137 …".
        job_id: The job.

    Returns:
        The pod's name and how it ended; None when these are other words.
    """
    found = _OF_A_JOB.search(said)
    return (found[1], _exit({"exitCode": int(found[2])}, said, job_id)) if found else None


def _exit(ended: Object, said: str, job_id: str) -> Explanation:
    code, reason = ended.get("exitCode"), str(ended.get("reason") or "")
    message = str(ended.get("message") or said)
    if reason == "OOMKilled":
        return Explanation("memory", "its memory ran out", f"exit code {code}, OOMKilled", MORE_MEMORY, stuck=True)
    if reason in {"StartError", "ContainerCannotRun"}:
        return Explanation(
            "program",
            "its image does not have the program that starts a job, or not for this processor",
            message,
            "take an image with Python in its PATH, for the processor of the machine",
            stuck=True,
        )
    look = _LOOK.format(job=job_id)
    if code is None:
        return Explanation("unknown", "it ended, and nothing says how", message, look, stuck=True)
    if code == INFRASTRUCTURE_EXIT:
        return Explanation(
            "infrastructure", "something around it failed, and it is tried again", _last_words(message), look
        )
    if code == LOST_EXIT:
        what = "its machine was restarted under it, and it is tried again"
        return Explanation("machine-restarted", what, f"exit code {code}, {reason or 'Unknown'}", look)
    if code == FAILED_EXIT:
        return Explanation("failed", "it failed", _last_words(message), look, stuck=True)
    if code == 137:
        return Explanation(
            "killed", "it was killed, most often because memory ran out", "exit code 137", MORE_MEMORY, stuck=True
        )
    if code > 128:
        return Explanation(
            "signal", f"it was ended by {_signal_name(code - 128)}", f"exit code {code}", look, stuck=True
        )
    return Explanation("exit", f"it exited with {code}", _last_words(message), look, stuck=True)


def _roomier(message: str) -> str:
    if "shm" in message:
        return _MORE_SHM
    if "ephemeral" in message or "EmptyDir" in message or "disk" in message.lower():
        return _MORE_DISK
    return MORE_MEMORY


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(text: str) -> str:
    """Return the last line: the end of a log may stand in for a message."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix(pod_log_format.SAID)[:300] if lines else ""
