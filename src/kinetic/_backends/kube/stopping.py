"""Ending jobs in a cluster: their objects are deleted, their pods get their grace, and are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kinetic._backends.kube import names, reading, together
from kinetic._backends.kube.kinds import JOB, JOB_SET, LEADER_WORKER_SET, POD

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Object

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_MOST_NAMED = 40
_KINDS = {kind.name: kind for kind in (JOB, JOB_SET, LEADER_WORKER_SET)}


def delete(client: Client, objects: Sequence[Object]) -> None:
    """Delete what makes pods; the pods, and what the objects own, follow in the background."""

    def one(found: Object) -> None:
        about = found["metadata"]
        client.delete(_KINDS[found["kind"]], about["name"], uid=about["uid"])

    together.ask_all([partial(one, found) for found in objects])


def wait_until_gone(
    client: Client,
    labels: Sequence[str],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until no process of some jobs is left, at most some seconds; say whether that came true.

    Args:
        client: Of the cluster.
        labels: The jobs, as their labels say them.
        seconds: At most.
        clock: Gives seconds.
        sleep: Waits.
    """
    limit, pause = clock() + seconds, _FIRST_PAUSE
    while _live_pods(client, labels):
        if clock() >= limit:
            return False
        sleep(min(pause, max(0.0, limit - clock())))
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def _live_pods(client: Client, labels: Sequence[str]) -> bool:
    for start in range(0, len(labels), _MOST_NAMED):
        chosen = labels[start : start + _MOST_NAMED]
        pods = client.list(POD, f"{names.JOB_LABEL} in ({','.join(chosen)})").objects
        if any(reading.phase(pod) not in {"Succeeded", "Failed"} for pod in pods):
            return True
    return False
