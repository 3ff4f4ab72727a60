"""From settings to a client: which cluster, reached how, and one client for it in this process.

a kubeconfig context is named          that context; KUBECONFIG says in which files
the context "in-cluster"               the cluster of the pod that we run in, whatever else is set
a project is named                     GKE's endpoint, found and spoken to with Google's credentials
none of them, inside a pod             the cluster of that pod
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kinetic._backends.kube import credentials
from kinetic._backends.kube.client import Client
from kinetic._config.target import IN_CLUSTER
from kinetic.errors import BackendError, BackendUnavailableError

if TYPE_CHECKING:
    from kinetic._backends.kube.credentials import Access
    from kinetic._google.api import Service, Tokens
    from kinetic._google.clusters import NodePools


# Whatever a client depends on besides its place: another value means another client.
_VARIABLES = (
    "KUBECONFIG",
    "HOME",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_QUOTA_PROJECT",
    "CLOUDSDK_CONFIG",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER",
    "APPDATA",
)
_Stamp = tuple[int, int, int]
_Circumstances = tuple[tuple[str | None, ...], tuple[_Stamp | None, ...]]


class ClusterAddress(NamedTuple):
    """Where a cluster is.

    Attributes:
        project: Of Google Cloud; "" for a cluster that is not found through Google.
        zone: The zone or the region of the cluster.
        cluster: Its name.
        namespace: Where objects go; "" for the context's or the pod's own, else "default".
        context: A kubeconfig context, "in-cluster", or "".
    """

    project: str
    zone: str
    cluster: str
    namespace: str
    context: str

    @property
    def command_for_pools(self) -> str:
        """The command that lists its node pools; "" for a cluster that is not found through Google."""
        if self.context or not self.project:
            return ""
        where = f"--cluster {self.cluster} --location {self.zone} --project {self.project}"
        return f"gcloud container node-pools list {where}"


_Key = tuple[ClusterAddress, _Circumstances]


class _Slot:
    """The client of one place: made by the first thread that needs it, while the others wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: Client | None = None


class _Clients:
    """What this process keeps of its clusters.

    Attributes:
        lock: For the tables; nothing slow happens under it.
        slots: Clients, by place and what else they depend on.
        googles: Google's container API and the tokens for it, by what they depend on.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.slots: dict[_Key, _Slot] = {}
        self.googles: dict[_Circumstances, tuple[Service, Tokens]] = {}

    def slot(self, where: ClusterAddress, circumstances: _Circumstances) -> _Slot:
        """Return the slot of a client, and drop those that were made before somebody logged in anew."""
        key = (where, circumstances)
        with self.lock:
            if key not in self.slots:
                known = self.slots.items()
                self.slots = {other: slot for other, slot in known if (other[0], other[1][0]) != (where, key[1][0])}
                self.slots[key] = _Slot()
            return self.slots[key]

    def google(self, environ: Mapping[str, str]) -> tuple[Service, Tokens]:
        """Return the container API and its tokens; nothing is asked yet."""
        from kinetic._google import api, clusters
        from kinetic._google.api import Service

        file = api.credentials_file(environ)
        key = (_values(environ), (_stamp(file) if file else None,))
        with self.lock:
            if key not in self.googles:
                tokens = api.Tokens(environ)
                self.googles = {key: (Service(clusters.CONTAINER_API, tokens, environ=environ), tokens)}
            return self.googles[key]


_clients = _Clients()


def client_of(where: ClusterAddress, environ: Mapping[str, str] = os.environ) -> Client:
    """Return this process's client for a place; a first call connects, as ``connect`` does.

    Another login is noticed: a client is made anew once a file that it was made from has changed.
    """
    slot = _clients.slot(where, (_values(environ), _stamps(where, environ)))
    with slot.lock:
        if slot.client is None:
            slot.client = connect(where, environ)
        return slot.client


def connect(
    where: ClusterAddress, environ: Mapping[str, str] = os.environ, *, folder: Path = credentials.SERVICE_ACCOUNT_FOLDER
) -> Client:
    """Make a client.

    Args:
        where: The place.
        environ: The environment.
        folder: Where a pod finds the token of its service account.

    Raises:
        BackendUnavailableError: Nothing says which cluster, it cannot be found, or a library is not installed.
        SettingsError: There is no such context.
        CredentialsError: We have nothing to say who we are with.
        AccessDeniedError: Google does not let us see the cluster.
    """
    found = _access(where, environ, folder)
    return Client(found, where.namespace or found.namespace or "default")


def pools_of(where: ClusterAddress, environ: Mapping[str, str] = os.environ) -> NodePools | None:
    """Return the node pools of a cluster of GKE, asked for anew; None where nobody would tell us.

    That is: for any other cluster, where our credentials may not ask, and while Google does not answer.
    """
    if where.context or not where.project:
        return None
    _require_library("google.auth", "GKE")
    from kinetic._google import clusters

    service, _ = _clients.google(environ)
    try:
        return clusters.read_pools(service, where.project, where.zone, where.cluster)
    except BackendError:
        return None


def _access(where: ClusterAddress, environ: Mapping[str, str], folder: Path) -> Access:
    _require_library("httpx2", "a cluster")
    if where.context == IN_CLUSTER:
        return credentials.in_cluster_access(environ, folder) or _not_in_a_pod()
    if where.context:
        _require_library("yaml", "a kubeconfig")
        return credentials.context_access(where.context, environ)
    if where.project:
        return _gke(where, environ)
    return credentials.in_cluster_access(environ, folder) or _no_cluster()


def _gke(where: ClusterAddress, environ: Mapping[str, str]) -> Access:
    _require_library("google.auth", "GKE")
    from kinetic._google import clusters

    service, tokens = _clients.google(environ)
    return credentials.gke_access(
        lambda: clusters.read_cluster(service, where.project, where.zone, where.cluster), tokens.get
    )


def _not_in_a_pod() -> Access:
    raise BackendUnavailableError(
        f'the context "{IN_CLUSTER}" is for pods, and this is none',
        why="KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which every pod has, are not set",
        next="set KINETIC_KUBE_CONTEXT to a context of your kubeconfig, or KINETIC_PROJECT for a cluster of GKE",
    )


def _no_cluster() -> Access:
    raise BackendUnavailableError(
        "nothing says which cluster jobs shall run on",
        why="there is neither a kubeconfig context nor a project, and this is no pod of a cluster",
        next="export KINETIC_PROJECT=your-project for GKE, or KINETIC_KUBE_CONTEXT=your-context for any other cluster",
    )


def _require_library(library: str, what: str) -> None:
    """Refuse where a library is missing.

    Raises:
        BackendUnavailableError: It is.
    """
    with contextlib.suppress(ModuleNotFoundError):  # of "google", when "google.auth" is looked for
        if importlib.util.find_spec(library) is not None:
            return
    raise BackendUnavailableError(
        f"this installation of kinetic cannot speak to {what}",
        why=f"the library {library} is not installed",
        next='pip install "kinetic-jobs[gke]"',
    )


def _stamps(where: ClusterAddress, environ: Mapping[str, str]) -> tuple[_Stamp | None, ...]:
    """Return what tells that a file with credentials was written anew."""
    if where.context and where.context != IN_CLUSTER:
        from kinetic._backends.kube import credentials as kube_credentials

        return tuple(map(_stamp, kube_credentials.kubeconfig_files(environ)))
    if where.project and not where.context:
        from kinetic._google import api

        file = api.credentials_file(environ)
        return (_stamp(file) if file else None,)
    return ()


def _values(environ: Mapping[str, str]) -> tuple[str | None, ...]:
    return tuple(environ.get(name) for name in _VARIABLES)


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _forget_clients() -> None:
    """Start without clients in a forked child: connections and locks are its parent's."""
    global _clients  # noqa: PLW0603 - one table for each process
    _clients = _Clients()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_clients)
