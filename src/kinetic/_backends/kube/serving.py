"""What a cluster serves: its groups of kinds, all with one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._backends.kube import facts, permissions
from kinetic._backends.kube.kinds import JOB, JOB_SET, LEADER_WORKER_SET, LOCAL_QUEUE, WORKLOAD, Kind
from kinetic._backends.kube.permissions import Need
from kinetic._backends.kube.refusals import page_of

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

_GROUPS = Kind("", "v1", "apis", "API group", namespaced=False)  # for messages; it lies at /apis

Groups = dict[str, tuple[str, ...]]


def groups(client: Client) -> Groups:
    """Return the versions of each group of kinds that the cluster serves, the preferred one first."""
    return facts.of(client).ask("groups", lambda: _groups(client), lambda _: facts.LASTING)


def serves(client: Client, kind: Kind) -> bool:
    """Say whether the cluster knows a kind."""
    return kind.version in groups(client).get(kind.group, ())


def kind_for_slices(client: Client) -> Kind:
    """Return the kind of object that makes the pods of a slice.

        JobSet is served                               a JobSet: a slice that lost a host begins anew as a whole
        it is not                                      an Indexed Job, which every cluster has
        it is not, and we may not make Jobs, but may
        make LeaderWorkerSets                          a LeaderWorkerSet: made for servers, so it needs most care

    The answer is kept, so that all slices of a process are made alike.
    """
    return facts.of(client).ask("slices", lambda: _kind_for_slices(client))


def local_queue(client: Client) -> Kind | None:
    """Return the kind of Kueue's queues in a version that the cluster serves; None without Kueue."""
    return _served(client, LOCAL_QUEUE)


def workload(client: Client) -> Kind | None:
    """Return the kind of what Kueue knows of a job in a version that the cluster serves; None without Kueue."""
    return _served(client, WORKLOAD)


def _served(client: Client, kind: Kind) -> Kind | None:
    versions = groups(client).get(kind.group, ())
    if not versions:
        return None
    return kind if kind.version in versions else kind._replace(version=versions[0])


def _kind_for_slices(client: Client) -> Kind:
    if serves(client, JOB_SET):
        return JOB_SET
    if not serves(client, LEADER_WORKER_SET) or permissions.may(client, Need("create", JOB)):
        return JOB
    return LEADER_WORKER_SET if permissions.may(client, Need("create", LEADER_WORKER_SET)) else JOB


def _groups(client: Client) -> Groups:
    reply = client.transport.send("GET", "/apis")
    if reply.status != 200:
        raise client.refuse("list", _GROUPS, "", reply)
    found: Groups = {}
    for each in page_of(reply.body).get("groups") or ():
        preferred = (each.get("preferredVersion") or {}).get("version")
        others = [str(one.get("version")) for one in each.get("versions") or ()]
        found[str(each.get("name"))] = tuple(dict.fromkeys([*([str(preferred)] if preferred else []), *others]))
    return found
