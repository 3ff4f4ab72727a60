"""What the log of a container has now, while its pod is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._backends.kube.containers import CONTAINER
from kinetic._backends.kube.kinds import POD

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client


def read(client: Client, pod: str, *, last_lines: int | None = None, previous: bool = False) -> bytes | None:
    """Return what a pod's log has now, or None when there is no such pod or nothing has started in it.

    Args:
        client: Of the cluster.
        pod: Its name.
        last_lines: Not more than so many, from the end.
        previous: That of the container before its restart.
    """
    query: dict[str, str | int | bool] = {"container": CONTAINER}
    query |= {"tailLines": last_lines} if last_lines is not None else {}
    query |= {"previous": True} if previous else {}
    reply = client.transport.send("GET", POD.path(client.namespace, pod, "log"), query=query)
    if reply.status in {400, 404}:  # 400: "waiting to start", or no container before this one
        return None
    if reply.status != 200:
        raise client.refuse("get", POD, pod, reply)
    return reply.body
