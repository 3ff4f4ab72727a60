"""From settings to a client: which cluster, reached how and with which credentials; one client for it in this process.

| settings | server and its certificate | our credentials |
|---|---|---|
| a kubeconfig context | the context's cluster | a token, a file with one, a certificate, a plug-in, a password |
| the context "in-cluster" | what Kubernetes provides in a pod | the pod's service account; its token is rotated |
| a project | the GKE cluster, as Google's API describes it | a token of Google's |
| none of them | as "in-cluster" | |
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import importlib.util
import json
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._backends.kube import kubeconfig
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.kubeconfig import Entry, JsonObject
from kinetic._backends.kube.transport import Access, Certificate, Credential
from kinetic._config.target import IN_CLUSTER
from kinetic._config.variables import read_variable
from kinetic._stores.parallel import Retry
from kinetic._wire import NamedTuple, dataclass
from kinetic.errors import BackendError, BackendUnavailableError, CredentialsError, SettingsError

if TYPE_CHECKING:
    from kinetic._google.api import Service
    from kinetic._google.clusters import Cluster, NodePools
    from kinetic._google.login import Tokens

_GOOGLE_RETRY = Retry(attempts=5, first_seconds=0.5, most_seconds=16.0)
SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# ------------------------------------------------------------------------------------------------ a client of a cluster

# Whatever a client depends on besides its place: another value means another client.
_VARIABLES = (
    "KUBECONFIG HOME KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT GOOGLE_APPLICATION_CREDENTIALS "
    "GOOGLE_CLOUD_QUOTA_PROJECT CLOUDSDK_CONFIG CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER APPDATA"
).split()
_Values = tuple[str | None, ...]
_Stamps = tuple[tuple[int, int, int] | None, ...]  # of files: what changes when one is written


class ClusterAddress(NamedTuple):
    """Which cluster, and which namespace."""

    project: str  # of Google Cloud; "" for a cluster that is not found through Google
    zone: str  # the zone or the region of the cluster
    cluster: str
    namespace: str  # "" for the context's or the pod's own, else "default"
    context: str  # a kubeconfig context, "in-cluster", or ""

    @property
    def command_for_pools(self) -> str:
        """The command that lists its node pools; "" for a cluster that is not found through Google."""
        if self.context or not self.project:
            return ""
        where = f"--cluster {self.cluster} --location {self.zone} --project {self.project}"
        return f"gcloud container node-pools list {where}"


_Key = tuple[ClusterAddress, _Values, _Stamps]


@dataclass
class _Slot:
    """The client of one cluster: made by the first thread that needs it, while the others wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    client: Client | None = None


class _Clients:
    """The clients of this process, and Google's API; nothing slow happens under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.slots: dict[_Key, _Slot] = {}
        self.google: dict[tuple[_Values, _Stamps], tuple[Service, Tokens]] = {}


_clients = _Clients()


def _forget_clients() -> None:
    """Start without clients in a forked child: connections and locks are its parent's."""
    global _clients  # noqa: PLW0603 - one table for each process
    _clients = _Clients()


os.register_at_fork(after_in_child=_forget_clients)


def client_of(where: ClusterAddress, environ: Mapping[str, str] = os.environ) -> Client:
    """Return this process's client for a cluster; a first call connects, as ``connect`` does.

    Another login is noticed: a client is made anew once a file that it was made from has changed.
    """
    values = _values(environ)
    files: list[Path | None] = []
    if where.context and where.context != IN_CLUSTER:
        files = [*kubeconfig.files(environ)]
    elif where.project and not where.context:
        from kinetic._google import default_credentials

        files = [default_credentials.file_of(environ)]
    key = (where, values, _stamps(files))
    with _clients.lock:
        if key not in _clients.slots:
            kept = {other: slot for other, slot in _clients.slots.items() if not _is_older(other, key)}
            _clients.slots = {**kept, key: _Slot()}
        slot = _clients.slots[key]
    with slot.lock:
        if slot.client is None:
            slot.client = connect(where, environ)
            named = where._replace(namespace=slot.client.namespace)  # it is asked for by name from now on
            with _clients.lock:
                _clients.slots.setdefault((named, *key[1:]), slot)
        return slot.client


def _is_older(one: _Key, other: _Key) -> bool:
    """Return whether a client is of the same cluster and variables as another, from before a new login."""
    (where, values, files), (where_now, values_now, files_now) = one, other
    is_same_place = where._replace(namespace="") == where_now._replace(namespace="") and values == values_now
    return is_same_place and files != files_now


def _values(environ: Mapping[str, str]) -> _Values:
    return tuple(environ.get(name) for name in _VARIABLES)


def _stamps(files: Sequence[Path | None]) -> _Stamps:
    found = []
    for path in files:
        try:
            stat = path.stat() if path else None
        except OSError:
            stat = None
        found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None)
    return tuple(found)


def connect(
    where: ClusterAddress, environ: Mapping[str, str] = os.environ, *, folder: Path = SERVICE_ACCOUNT_FOLDER
) -> Client:
    """Connect to a cluster; `folder` is where a pod finds the token of its service account."""
    access: Access | None
    if where.context and where.context != IN_CLUSTER:
        _require_library("yaml", "kubeconfig files")
        access = context_access(where.context, environ)
    elif where.project and not where.context:
        _require_library("google.auth", "GKE")
        from kinetic._google import clusters

        service, tokens = _google(environ)
        place = (where.project, where.zone, where.cluster)
        access = gke_access(lambda: clusters.read_cluster(service, *place), tokens.get)
    else:
        access = in_cluster_access(environ, folder)
    if access is None and where.context:
        raise BackendUnavailableError(
            f'the context "{IN_CLUSTER}" works only inside a pod',
            why="KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, which every pod has, are not set",
            next="set KINETIC_KUBE_CONTEXT to a context of your kubeconfig, or KINETIC_PROJECT for a GKE cluster",
        )
    if access is None:
        raise BackendUnavailableError(
            "no cluster is configured",
            why="neither a kubeconfig context nor a project is set, and this is not a pod of a cluster",
            next="export KINETIC_PROJECT=your-project for GKE, or KINETIC_KUBE_CONTEXT=your-context for any other "
            "cluster",
        )
    return Client(access, where.namespace or access.namespace or "default")


def pools_of(where: ClusterAddress, environ: Mapping[str, str]) -> NodePools | None:
    """Ask for the node pools of a GKE cluster; None for other clusters, and where Google does not tell."""
    if where.context or not where.project:
        return None
    _require_library("google.auth", "GKE")
    from kinetic._google import clusters

    service, _ = _google(environ)
    try:
        return clusters.read_pools(service, where.project, where.zone, where.cluster)
    except BackendError:
        return None


def _google(environ: Mapping[str, str]) -> tuple[Service, Tokens]:
    """Return the container API and its tokens; no request is sent yet."""
    from kinetic._google import api, clusters, default_credentials, login

    key = (_values(environ), _stamps([default_credentials.file_of(environ)]))
    with _clients.lock:
        if key not in _clients.google:
            tokens = login.Tokens(environ)
            service = api.Service(clusters.CONTAINER_API, tokens, _GOOGLE_RETRY, environ=environ)
            _clients.google = {key: (service, tokens)}
        return _clients.google[key]


def _require_library(library: str, what: str) -> None:
    with contextlib.suppress(ModuleNotFoundError):  # of "google", when "google.auth" is looked for
        if importlib.util.find_spec(library) is not None:
            return
    raise BackendUnavailableError(
        f"this installation of kinetic does not support {what}",
        why=f"the library {library} is not installed",
        next='pip install "kinetic-jobs[gke]"',
    )


# --------------------------------------------------------------------------------------------------------- credentials


class FixedCredential(Credential):
    """A header that does not change: a token or a password of a kubeconfig, or "" for none."""

    def __init__(self, authorization: str = "") -> None:
        self._authorization = authorization

    def header(self, *, rejected: str = "") -> str:  # noqa: ARG002 - of the protocol
        return self._authorization


class TokenFunction(Credential):
    """A token that a function returns, asked for each request; it gets the token that was just rejected, or ""."""

    def __init__(self, token: Callable[[str], str]) -> None:
        self._token = token

    def header(self, *, rejected: str = "") -> str:
        return f"Bearer {self._token(rejected.removeprefix('Bearer '))}"


def _token_file(path: Path) -> TokenFunction:
    """Return the token of a file that something else rotates; read for each request, 10 µs."""

    def read(_rejected: str) -> str:
        try:
            return path.read_text().strip()
        except OSError as error:
            raise CredentialsError(
                "cannot read the token for the cluster", why=str(error), next=f"check {path}"
            ) from error

    return TokenFunction(read)


def in_cluster_access(environ: Mapping[str, str], folder: Path) -> Access | None:
    """Return the access of the pod that we run in, or None outside of one."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        return None
    try:
        authority = (folder / "ca.crt").read_bytes()
        namespace = (folder / "namespace").read_text().strip()
    except OSError as error:
        raise CredentialsError(
            "this pod has no token for its cluster",
            why=str(error),
            next="give the pod automountServiceAccountToken: true, or set KINETIC_KUBE_CONTEXT",
        ) from error
    address = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{address}:{port}",
        about="the cluster of this pod",
        credential=_token_file(folder / "token"),
        authority=authority,
        namespace=namespace,
    )


def gke_access(read: Callable[[], Cluster], token: Callable[[str], str]) -> Access:
    """Return the access to a GKE cluster; `read` is called again when it has moved, `token` as by TokenFunction."""
    cluster = read()
    flags = f"{cluster.name} --location {cluster.location} --project {cluster.project}"
    by_name = f"gcloud container clusters update {flags} --enable-dns-access"
    return Access(
        server=cluster.server,
        about=f"the cluster {cluster.name} in {cluster.location} of {cluster.project}",
        credential=TokenFunction(token),
        authority=cluster.authority,
        again=lambda: gke_access(read, token),
        # An address may be private, or open to some networks only; its DNS endpoint is reachable from everywhere.
        unreachable=f"{by_name}     or connect from a network that may reach its address" if cluster.authority else "",
    )


# -------------------------------------------------------------------------------------------------------- exec plug-ins

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PLUGIN_TIMEOUT_SECONDS = 60.0  # a plug-in that waits for a human is of no use here
PLUGIN_PAUSE_SECONDS = 10.0  # many keep a token and return it until its last second: each request would run them
_REFRESH_EARLY_SECONDS = 60.0
# Of a cluster, for a plug-in that asks; kubernetes.io/docs/reference/config-api/client-authentication.v1, 2026-11.
_TOLD = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
_SECRET_LENGTH = 6  # characters; what is shorter cannot be told from ordinary words


class ExecPlugin:
    """The ``exec`` of a kubeconfig's user: a program that returns a credential; run again when that expires.

    A relative path counts from `folder`, that of the kubeconfig; `cluster` is what it gets about the cluster.
    """

    def __init__(self, page: JsonObject, folder: Path, cluster: JsonObject, about: str) -> None:
        version = str(page.get("apiVersion"))
        if version not in VERSIONS:
            raise CredentialsError(
                f"the exec plug-in of {about} uses {version}",
                why=f"supported: {', '.join(VERSIONS)}",
                next="log in again with a newer version of the cluster's own tool",
            )
        command = str(page.get("command") or "")
        if os.sep in command and not os.path.isabs(command):
            command = str(folder / command)
        spec: JsonObject = {"interactive": False}
        if page.get("provideClusterInfo"):
            spec["cluster"] = cluster
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        self._command = [command, *map(str, page.get("args") or ())]
        self._environment = {str(each["name"]): str(each["value"]) for each in page.get("env") or ()}
        self._environment["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        self._about, self._hint = about, " ".join(str(page.get("installHint") or "").split())
        self._lock = threading.Lock()  # one thread runs it, the others wait for its answer
        self._status: JsonObject | None = None
        self._ask_again_at = 0.0  # Unix time

    def header(self, *, rejected: str = "") -> str:
        token = self._current(rejected).get("token")
        return f"Bearer {token}" if token else ""

    def certificate(self) -> Certificate | None:
        status = self._current()
        chain, key = status.get("clientCertificateData"), status.get("clientKeyData")
        return Certificate(chain.encode(), key.encode()) if chain and key else None

    def _current(self, rejected: str = "") -> JsonObject:
        with self._lock:
            status = self._status
            token = (status or {}).get("token")
            # Only if it is this very credential: another thread may have replaced it.
            is_rejected = bool(rejected) and (not token or rejected == f"Bearer {token}")
            if status is None or is_rejected or time.time() >= self._ask_again_at:
                status = self._status = self._run()
                early = _expiration(status) - _REFRESH_EARLY_SECONDS
                self._ask_again_at = max(early, time.time() + PLUGIN_PAUSE_SECONDS)
            return status

    def _run(self) -> JsonObject:
        import subprocess  # 5 ms; only for plug-ins

        try:
            done = subprocess.run(
                self._command,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PLUGIN_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:  # whose text has all arguments
            raise self._failed(f"no answer within {PLUGIN_TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            hint = self._hint if isinstance(error, FileNotFoundError) else ""
            raise self._failed(error.strerror or type(error).__name__, hint) from error
        if done.returncode != 0:
            message = self._without_secrets(done.stderr.decode(errors="replace")).strip()[-500:]
            raise self._failed(f"it exited with {done.returncode}: {message}")
        try:
            status = json.loads(done.stdout)["status"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._failed("its output is not an ExecCredential with a status") from error
        if not isinstance(status, dict) or not (status.get("token") or status.get("clientCertificateData")):
            raise self._failed("its output has neither a token nor a certificate")
        return {**status, "token": str(status.get("token") or "").strip()}

    def _without_secrets(self, message: str) -> str:
        """Remove from its message what the kubeconfig passes to the plug-in and may be a secret."""
        given = [*self._command[1:], *self._environment.values()]
        values = {value for each in given for value in (each, each.partition("=")[2]) if not value.startswith("-")}
        for value in sorted(values, key=len, reverse=True):
            if len(value) >= _SECRET_LENGTH:
                message = message.replace(value, "***")
        return message

    def _failed(self, why: str, hint: str = "") -> CredentialsError:
        """Return the error; the plug-in's arguments are not shown: some kubeconfigs keep passwords there."""
        with_ = ", with the arguments that the kubeconfig has" if len(self._command) > 1 else ""
        return CredentialsError(
            f"the exec plug-in of {self._about} returned no credentials",
            why=f"{self._command[0]}: {why}",
            next=hint or f"run {self._command[0]} yourself{with_}, and log in if it asks you to",
        )


def _expiration(status: JsonObject) -> float:
    try:
        return dt.datetime.fromisoformat(str(status["expirationTimestamp"])).timestamp()
    except (KeyError, ValueError):
        return float("inf")


# ------------------------------------------------------------------------------------------------------------ contexts


def context_access(name: str, environ: Mapping[str, str]) -> Access:
    """Return the access that a context describes; "" names the current one."""
    files = kubeconfig.files(environ)
    pages = [(path, kubeconfig.read(path)) for path in files if os.path.isfile(path)]
    where = ", ".join(map(str, files))
    if not pages:
        raise SettingsError(
            "there is no kubeconfig", why=f"looked for {where}", next="set KUBECONFIG to the file of your cluster"
        )
    chosen = name or next((str(page["current-context"]) for _, page in pages if page.get("current-context")), "")
    contexts = kubeconfig.entries(pages, "context")
    if chosen not in contexts:
        raise SettingsError(
            f"there is no context {chosen!r}" if chosen else "the kubeconfig sets no current context",
            why=f"{where} has {', '.join(contexts) or 'none'}",
            next=_other_context(chosen, contexts, read_variable("KINETIC_KUBE_CONTEXT", environ)),
        )
    context = contexts[chosen].page
    named: dict[str, Entry] = {}
    for kind in ("cluster", "user"):
        entry, entries = str(context.get(kind) or ""), kubeconfig.entries(pages, kind)
        if kind == "user" and not entry:
            entries[entry] = Entry({}, Path())  # some servers need no credentials
        if entry not in entries:
            raise SettingsError(
                f"the context {chosen} names the {kind} {entry!r}, which does not exist",
                why=f"looked in {where}",
                next="correct the kubeconfig, or name another context in KINETIC_KUBE_CONTEXT",
            )
        named[kind] = entries[entry]
    cluster, user = named["cluster"], named["user"]
    scheme, *rest = str(cluster.page.get("server") or "").rstrip("/").partition("://")
    server = "".join((scheme.lower(), *rest))
    if not server.startswith(("https://", "http://")):
        raise SettingsError(
            f"the cluster of the context {chosen} has no address", why=f"server is {server!r}", next="correct it"
        )
    chain, key = _bytes(user, "client-certificate"), _bytes(user, "client-key")
    if chain and not key:  # the server would treat us as anonymous
        raise CredentialsError(
            f"the context {chosen} has a client certificate without its key",
            why="its user has client-certificate, and neither client-key nor client-key-data",
            next="add client-key to the user in the kubeconfig, or log in to the cluster again",
        )
    return Access(
        server=server,
        about=f"the context {chosen}",
        credential=_credential_of(chosen, user, cluster),
        authority=_bytes(cluster, "certificate-authority") or b"",
        verify=not cluster.page.get("insecure-skip-tls-verify", False),
        server_name=str(cluster.page.get("tls-server-name") or ""),
        certificate=Certificate(chain, key) if chain and key else None,
        namespace=str(context.get("namespace") or ""),
        proxy=str(cluster.page.get("proxy-url") or ""),
    )


def _other_context(missing: str, contexts: Mapping[str, Entry], setting: str | None) -> str:
    """Say what to do about a context that does not exist: name another, or give one that was renamed its old name too.

    A job has the name of the context that it was submitted with, so another setting does not change where it is.
    """
    other = setting if setting in contexts else next(iter(contexts), "")
    to_name = f"export KINETIC_KUBE_CONTEXT={shlex.quote(other or 'NAME')}"
    if not missing or not other or setting == missing:
        return to_name
    named = {kind: str(contexts[other].page.get(kind) or "") for kind in ("cluster", "user")}
    flags = "".join(f" --{kind}={shlex.quote(name)}" for kind, name in named.items() if name)
    add = f"kubectl config set-context {shlex.quote(missing)}{flags}"
    once_more = f"if {other} is the same cluster, a job that was submitted as {missing} is found after: {add}"
    return once_more if setting == other else f"{to_name}     or, {once_more}"


def _credential_of(context: str, user: Entry, cluster: Entry) -> Credential:
    page = user.page
    if page.get("as"):  # ignoring it would be to act with other rights than those that were chosen
        raise CredentialsError(
            f"the context {context} impersonates {page['as']}, which kinetic does not support",
            why="its user has the field as",
            next=f"name a context with credentials of {page['as']}, or remove the field from the kubeconfig",
        )
    if page.get("tokenFile"):
        return _token_file(user.folder / str(page["tokenFile"]))
    if page.get("token"):
        return FixedCredential(f"Bearer {str(page['token']).strip()}")  # a block of YAML ends with a line break
    if page.get("exec"):
        return ExecPlugin(page["exec"], user.folder, _told_of(cluster), f"the context {context}")
    if page.get("username"):
        pair = f"{page['username']}:{page.get('password', '')}"
        return FixedCredential(f"Basic {base64.b64encode(pair.encode()).decode()}")
    if page.get("auth-provider"):
        raise CredentialsError(
            f"the context {context} uses an auth-provider, which Kubernetes has removed",
            why=f"its user has auth-provider {page['auth-provider'].get('name')!r}",
            next="log in again with the cluster's own tool: it writes an exec plug-in today",
        )
    return FixedCredential()


def _told_of(cluster: Entry) -> JsonObject:
    """Return what a plug-in may know of a cluster, as kubectl tells it: the authority itself, and not a path to it."""
    told = {key: cluster.page[key] for key in _TOLD if key in cluster.page}
    if authority := _bytes(cluster, "certificate-authority"):
        told["certificate-authority-data"] = base64.b64encode(authority).decode()
    for each in cluster.page.get("extensions") or ():
        if each.get("name") == "client.authentication.k8s.io/exec":
            told["config"] = each.get("extension")
    return told


def _bytes(entry: Entry, field_: str) -> bytes | None:
    """Return a field of an entry, from base64, or from the file that it names."""
    written = entry.page.get(f"{field_}-data")
    try:
        if written:
            return base64.b64decode("".join(str(written).split()), validate=True)
        path = entry.page.get(field_)
        return (entry.folder / str(path)).read_bytes() if path else None
    except (OSError, ValueError) as error:
        raise CredentialsError(
            f"cannot read {field_} of a kubeconfig", why=str(error), next="log in to the cluster again"
        ) from error
