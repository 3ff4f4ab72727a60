"""Refuse what cannot work on a cluster before anything is packed, and say what the user should know.

All questions are asked at the same time, and what was answered well is believed for ten minutes: a second job in the
same process asks nothing. Whatever the cluster does not let us look at is not held against it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kinetic._backends.kube import capacity, facts, permissions, serving, together
from kinetic._backends.kube.kinds import (
    CONFIG_MAP,
    JOB,
    NAMESPACE,
    PRIORITY_CLASS,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
)
from kinetic._backends.kube.refusals import page_of
from kinetic._backends.kube.serving import kind_for_slices
from kinetic._backends.kube.where import pools_of
from kinetic._settings.variables import read
from kinetic._stores.addresses import PUBLIC_VARIABLES
from kinetic.errors import AccessDeniedError, BackendError, BackendUnavailableError, LaunchError, OptionError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client
    from kinetic._gcp.pools import Pools
    from kinetic._hardware.placement import Placement
    from kinetic._settings.cluster import ClusterSettings

__all__ = ["ACCOUNT", "check", "check_store", "kind_for_slices", "pools_of", "service_account"]

ACCOUNT = "kinetic"  # the service account that pods run as where nobody names another and it exists
_HEADERS = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}  # never a Secret's content

_ENFORCED = "pod-security.kubernetes.io/enforce"


def check(
    client: Client,
    placement: Placement,
    settings: ClusterSettings,
    *,
    pools: Pools | Callable[[], Pools | None] | None = None,
) -> tuple[str, ...]:
    """Refuse what cannot work in the client's namespace, and return sentences for the user.

    Args:
        client: Of the cluster and the namespace.
        placement: The hardware of the job.
        settings: What holds for all jobs of the cluster.
        pools: The node pools of a cluster of GKE, where they are known; or a function that asks for them, which is
            called only where the nodes of the moment do not suffice.

    Raises:
        CredentialsError: The cluster does not know who we are.
        LaunchError: The namespace, or something else that the settings name, is not there.
        AccessDeniedError: We may not do what a job needs.
        CapacityError: The cluster can never have such machines.
        BackendUnavailableError: It does not answer.
    """
    return facts.of(client).ask(
        ("checked", repr(placement), repr(settings)),
        lambda: _check(client, placement, settings, pools),
        lambda notes: facts.BRIEF if notes else facts.LASTING,  # that machines are missing ages with them
    )


def _check(
    client: Client, placement: Placement, settings: ClusterSettings, pools: Pools | Callable[[], Pools | None] | None
) -> tuple[str, ...]:
    notes: list[str] = []
    together.ask_all(
        [
            lambda: pod_security(client),
            lambda: _permissions(client, placement),
            lambda: notes.extend(_account_notes(client, settings)),
            lambda: _queue(client, settings.queue),
            lambda: _priority_class(client, settings.priority_class),
            lambda: _secret(client, settings.store_secret),
            lambda: notes.extend(capacity.check(client, placement, settings, pools)),
        ]
    )
    return tuple(notes)


def service_account(client: Client, settings: ClusterSettings) -> str:
    """Return whom pods are to the cluster: the one that is named, "kinetic" where it exists, else "", the default.

    Raises:
        LaunchError: The one that is named does not exist.
    """
    given = settings.service_account
    there = _there(client, SERVICE_ACCOUNT, given or ACCOUNT, absent=0.0 if given else facts.BRIEF)
    if there is False and given:
        raise LaunchError(
            f"the namespace {client.namespace} has no service account {given}",
            why="the settings name it, so every pod of the job would be refused",
            next=f"kubectl create serviceaccount {given} -n {client.namespace}     "
            "or name another in KINETIC_SERVICE_ACCOUNT",
            code="service-account",
        )
    return given or (ACCOUNT if there else "")


def _account_notes(client: Client, settings: ClusterSettings) -> list[str]:
    """Refuse a service account that is not there; say so where nobody tells us whether the usual one is."""
    service_account(client, settings)
    if settings.service_account or _there(client, SERVICE_ACCOUNT, ACCOUNT) is not None:
        return []
    unseen = f"we may not see whether the namespace {client.namespace} has a service account {ACCOUNT}"
    return [f"{unseen}, so pods run as the default one; KINETIC_SERVICE_ACCOUNT={ACCOUNT} names it"]


def check_store(url: str, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a store that pods of a cluster cannot reach.

    Args:
        url: Of the store.
        environ: Where KINETIC_SHARED_STORE=1 says that every pod has the folder at the same path.

    Raises:
        OptionError: It is a folder of this machine, or memory of this process.
    """
    refuse_user_info(environ)
    scheme = url.partition("://")[0] if "://" in url else "file"
    if scheme in {"gs", "s3"} or (scheme == "file" and read("KINETIC_SHARED_STORE", environ) == "1"):
        return
    where = "a folder of this machine" if scheme == "file" else "not a bucket"
    raise OptionError(
        "jobs on a cluster need a store that their pods can reach",
        why=f"{url} is {where}",
        next="export KINETIC_STORE=gs://your-bucket"
        + ("     or KINETIC_SHARED_STORE=1 if every pod has that folder at the same path" if scheme == "file" else ""),
    )


def refuse_user_info(environ: Mapping[str, str]) -> None:
    """Refuse addresses of a store that hold a name or a password: they would stand in the pods' spec.

    Raises:
        OptionError: One does.
    """
    for name in PUBLIC_VARIABLES:
        if "@" in environ.get(name, "").partition("://")[2].partition("/")[0]:
            raise OptionError(
                f"{name} holds a user name or a password",
                why="it would stand in the spec of the job's pods, and whoever may read pods could read it",
                next="take what is before the @ out of it; a Secret that KINETIC_STORE_SECRET names brings credentials",
            )


def pod_security(client: Client) -> str:
    """Return the level of Pod Security that the namespace enforces: "" for none, and where we may not look.

    Raises:
        LaunchError: There is no such namespace.
    """
    return facts.of(client).ask("namespace", lambda: _find_namespace(client))


def _find_namespace(client: Client) -> str:
    try:
        found = client.get(NAMESPACE, client.namespace)
    except AccessDeniedError:
        _try_namespace(client)
        return ""
    leaving = found is not None and (found.get("status") or {}).get("phase") == "Terminating"
    if found is None or leaving:
        raise LaunchError(
            f"there is no namespace {client.namespace} in {client.about}",
            why="it is being removed" if leaving else "the cluster says so",
            next=f"kubectl create namespace {client.namespace}     or name another in KINETIC_NAMESPACE",
            code="namespace-missing",
        )
    return str(((found.get("metadata") or {}).get("labels") or {}).get(_ENFORCED) or "")


def _try_namespace(client: Client) -> None:
    """Where we may not look at the namespace: let something be made there as if, and see what is said."""
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "kinetic-check-"}}
    try:
        client.create(CONFIG_MAP, probe, dry_run=True)
    except BackendUnavailableError:
        raise
    except BackendError as error:  # a missing permission, a quota: not what we ask about here
        if error.code == "namespace-missing":
            raise


def _permissions(client: Client, placement: Placement) -> None:
    maker = kind_for_slices(client) if placement.hosts > 1 else JOB
    permissions.check(client, permissions.needed(maker, hosts=placement.hosts))


def _queue(client: Client, name: str) -> None:
    if not name:
        return
    kind = serving.local_queue(client)
    if kind is None:
        raise LaunchError(
            f"{client.about} has no Kueue, so the queue {name} leads nowhere",
            why="the cluster does not serve kueue.x-k8s.io",
            next="unset KINETIC_QUEUE, or take queue out of the profile     or ask who runs the cluster for Kueue",
            code="queue-missing",
        )
    if _there(client, kind, name) is False:
        raise LaunchError(
            f"the namespace {client.namespace} has no queue {name}",
            why="no LocalQueue of Kueue has that name there, so the job would wait for ever",
            next=f"kubectl get localqueues -n {client.namespace}     and name one of them in KINETIC_QUEUE",
            code="queue-missing",
        )


def _priority_class(client: Client, name: str) -> None:
    if name and _there(client, PRIORITY_CLASS, name) is False:
        raise LaunchError(
            f"{client.about} has no priority class {name}",
            why="the settings name it, so every pod of the job would be refused",
            next="kubectl get priorityclasses     and name one of them in KINETIC_PRIORITY_CLASS",
            code="priority-class",
        )


def _secret(client: Client, name: str) -> None:
    if name and _there(client, SECRET, name) is False:
        raise LaunchError(
            f"the namespace {client.namespace} has no Secret {name}",
            why="the settings name it for the store, and a pod without it does not start",
            next=f"kubectl get secrets -n {client.namespace}     and name one of them in KINETIC_STORE_SECRET",
            code="secret-missing",
        )


def _there(client: Client, kind: Kind, name: str, *, absent: float = 0.0) -> bool | None:
    """Say whether an object exists; None where we may not look.

    Args:
        client: Of the cluster.
        kind: Of the object.
        name: Of the object.
        absent: How long to believe that it does not (seconds); not at all where that is refused.
    """
    return facts.of(client).ask(
        (kind, name), lambda: _look(client, kind, name), lambda there: absent if there is False else facts.LASTING
    )


def _look(client: Client, kind: Kind, name: str) -> bool | None:
    reply = client.transport.send("GET", kind.path(client.namespace, name), headers=_HEADERS)
    if reply.status in {403, 404}:
        return None if reply.status == 403 else False
    if reply.status != 200 or not page_of(reply.body):
        raise client.refuse("get", kind, name, reply)
    return True
