"""Who we are to which API server: one frozen page, whatever it was read from.

| from | server and its certificate | who we are |
|---|---|---|
| a kubeconfig context | the context's cluster | a token, a file with one, a certificate, a plug-in, a password |
| inside a pod | what Kubernetes provides there | the pod's service account; its token is exchanged now and then |
| GKE | the cluster as Google's API describes it | a token of Google's, fresh for each request |
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kinetic.errors import CredentialsError, SettingsError

if TYPE_CHECKING:
    from kinetic._google.clusters import Cluster


SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Certificate(NamedTuple):
    """A client's certificate and its private key, both as PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        """Keep the key out of logs and tracebacks."""
        return "Certificate(…)"


class Credential(Protocol):
    """What stands in the header Authorization."""

    def header(self, *, rejected: str = "") -> str:
        """Return it, "" for none; another one than what was just refused, where there is one."""

    def certificate(self) -> Certificate | None:
        """Return a client's certificate that comes with it, or None."""


@dataclass(frozen=True)
class Access:
    """Where an API server is, how we know it, and who we are to it.

    Attributes:
        server: Its address, without a slash at the end.
        about: In words, for messages: "the context kind-dev", "the cluster c in us-central1-a".
        credential: Who we are.
        authority: The certificate of who signed the server's, as PEM; empty for what this machine trusts.
        verify: Whether the server must prove who it is; False only where a kubeconfig says so.
        server_name: The name that the server's certificate must have; "" for that of the address.
        certificate: A client's certificate.
        namespace: The context's own, "" for none.
        proxy: Address of a proxy that the context names; "" for what the environment says.
        again: Asks anew where the server is; None where nobody would know better.
    """

    server: str
    about: str
    credential: Credential
    authority: bytes = b""
    verify: bool = True
    server_name: str = ""
    certificate: Certificate | None = None
    namespace: str = ""
    proxy: str = field(default="", repr=False)  # it may hold a password
    again: Callable[[], Access] | None = field(default=None, compare=False)


class Anonymous:
    """Nobody: no header. A client's certificate says it all, or the server asks nothing."""

    def header(self, *, rejected: str = "") -> str:  # noqa: ARG002 - of the protocol
        """Return nothing."""
        return ""

    def certificate(self) -> Certificate | None:
        """Return nothing."""
        return None


class FixedCredential(Anonymous):
    """A header that does not change: a token or a password that a kubeconfig has."""

    def __init__(self, header: str) -> None:
        self._header = header

    def header(self, *, rejected: str = "") -> str:  # noqa: ARG002 - of the protocol
        """Return it."""
        return self._header


class TokenFile(Anonymous):
    """A token in a file that somebody else exchanges; read for each request, 10 µs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def header(self, *, rejected: str = "") -> str:  # noqa: ARG002 - of the protocol
        """Return what the file has now.

        Raises:
            CredentialsError: It cannot be read.
        """
        try:
            return f"Bearer {self._path.read_text().strip()}"
        except OSError as error:
            raise CredentialsError(
                "the token for the cluster cannot be read", why=str(error), next=f"look at {self._path}"
            ) from error


class PluginCredential(Anonymous):
    """A token that a function hands out, fresh for each request."""

    def __init__(self, token: Callable[[str], str]) -> None:
        self._token = token

    def header(self, *, rejected: str = "") -> str:
        """Return it; the function is told which one was refused."""
        return f"Bearer {self._token(rejected.removeprefix('Bearer '))}"


def in_cluster_access(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT_FOLDER) -> Access | None:
    """Return the access of the pod that we run in, or None outside of one.

    Raises:
        CredentialsError: It is a pod, and has no token.
    """
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
        credential=TokenFile(folder / "token"),
        authority=authority,
        namespace=namespace,
    )


def gke_access(read: Callable[[], Cluster], token: Callable[[str], str]) -> Access:
    """Return the access to a cluster of GKE.

    Args:
        read: Asks Google where the cluster is; asked again when what it said does not hold any more.
        token: Hands out a token; gets one that was refused, or "".
    """
    cluster = read()
    return Access(
        server=cluster.server,
        about=f"the cluster {cluster.name} in {cluster.location} of {cluster.project}",
        credential=PluginCredential(token),
        authority=cluster.authority,
        again=lambda: gke_access(read, token),
    )


VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PLUGIN_TIMEOUT_SECONDS = 60.0  # a plug-in that waits for a human is of no use here
REFRESH_EARLY_SECONDS = 60.0
_SECRET_LENGTH = 6  # characters; what is shorter cannot be told from ordinary words

PluginPage = dict[str, Any]


class ExecPlugin:
    """Call a program for a credential, and again when that ends or is refused."""

    def __init__(self, command: list[str], environment: dict[str, str], about: str, clock: Callable[[], float]) -> None:
        self._command = command
        self._environment = environment
        self._about = about
        self._clock = clock
        self._lock = threading.Lock()  # one thread calls it, the others wait for its answer
        self._page: PluginPage | None = None

    @classmethod
    def of_page(
        cls, page: PluginPage, folder: Path, cluster: PluginPage, about: str, clock: Callable[[], float] = time.time
    ) -> ExecPlugin:
        """Read the ``exec`` of a user.

        Raises:
            CredentialsError: It speaks a version that has been removed.
        """
        version = str(page.get("apiVersion"))
        if version not in VERSIONS:
            raise CredentialsError(
                f"the plug-in of {about} speaks {version}",
                why=f"known are {', '.join(VERSIONS)}",
                next="log in again with a newer version of the cluster's own tool",
            )
        command = str(page.get("command") or "")
        if os.sep in command and not os.path.isabs(command):
            command = str(folder / command)
        extra = {str(each["name"]): str(each["value"]) for each in page.get("env") or ()}
        spec: PluginPage = {"interactive": False}
        if page.get("provideClusterInfo"):
            spec["cluster"] = {key: cluster[key] for key in ("server", "certificate-authority-data") if key in cluster}
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        extra["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        return cls([command, *map(str, page.get("args") or ())], extra, about, clock)

    def header(self, *, rejected: str = "") -> str:
        """Return the header with the plug-in's token, "" if it hands out a certificate.

        Raises:
            CredentialsError: It cannot be called, or hands out nothing.
        """
        token = self._status(rejected).get("token")
        return f"Bearer {token}" if token else ""

    def certificate(self) -> Certificate | None:
        """Return the certificate that the plug-in hands out, or None.

        Raises:
            CredentialsError: It cannot be called, or hands out nothing.
        """
        status = self._status("")
        chain, key = status.get("clientCertificateData"), status.get("clientKeyData")
        return Certificate(chain.encode(), key.encode()) if chain and key else None

    def _status(self, rejected: str) -> PluginPage:
        with self._lock:
            page = self._page
            if (
                page is None
                or _is_rejected(page, rejected)
                or _expiration(page) - self._clock() < REFRESH_EARLY_SECONDS
            ):
                page = self._page = self._call()
            return page

    def _call(self) -> PluginPage:
        environment = {**os.environ, **self._environment}
        try:
            done = subprocess.run(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PLUGIN_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:  # whose words hold all arguments
            raise self._failed(f"no answer within {PLUGIN_TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            raise self._failed(error.strerror or type(error).__name__) from error
        if done.returncode != 0:
            said = self._without_secrets(done.stderr.decode(errors="replace")).strip()[-500:]
            raise self._failed(f"it exited with {done.returncode}: {said}")
        try:
            status = json.loads(done.stdout)["status"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._failed("its answer is no ExecCredential with a status") from error
        if not isinstance(status, dict) or not (status.get("token") or status.get("clientCertificateData")):
            raise self._failed("its answer has neither a token nor a certificate")
        return status

    def _without_secrets(self, said: str) -> str:
        """Take out of its words what the kubeconfig hands to the plug-in and may be a secret."""
        given = [*self._command[1:], *self._environment.values()]
        values = {value for each in given for value in (each, each.partition("=")[2]) if not value.startswith("-")}
        for value in sorted(values, key=len, reverse=True):
            if len(value) >= _SECRET_LENGTH:
                said = said.replace(value, "***")
        return said

    def _failed(self, why: str) -> CredentialsError:
        """Say what went wrong; the plug-in's arguments are not shown: some kubeconfigs keep passwords there."""
        with_ = ", with the arguments that the kubeconfig has" if len(self._command) > 1 else ""
        return CredentialsError(
            f"the plug-in of {self._about} hands out no credentials",
            why=f"{self._command[0]}: {why}",
            next=f"run {self._command[0]} yourself{with_}, and log in if it asks you to",
        )


def _is_rejected(status: PluginPage, rejected: str) -> bool:
    """Say whether it is this very credential that was refused, and not one that another thread has exchanged."""
    token = status.get("token")
    return bool(rejected) and (not token or rejected == f"Bearer {token}")


def _expiration(status: PluginPage) -> float:
    """Return when a credential ends, as Unix time."""
    written = status.get("expirationTimestamp")
    if not written:
        return float("inf")
    try:
        return dt.datetime.fromisoformat(str(written)).timestamp()
    except ValueError:
        return float("inf")


KubeconfigPage = dict[str, Any]


class _Entry(NamedTuple):
    """A cluster, a user or a context, and the folder that relative paths in it count from."""

    page: KubeconfigPage
    folder: Path


def context_access(name: str = "", environ: Mapping[str, str] = os.environ) -> Access:
    """Return the access that a context describes.

    Args:
        name: The context; "" for the current one.
        environ: Where KUBECONFIG may name files.

    Raises:
        SettingsError: No file has such a context, or what it names is missing.
        CredentialsError: What it says about us cannot be used.
    """
    files = kubeconfig_files(environ)
    pages = [(path, _read(path)) for path in files if path.is_file()]
    where = ", ".join(map(str, files))
    if not pages:
        raise SettingsError(
            "there is no kubeconfig", why=f"looked for {where}", next="set KUBECONFIG to the file of your cluster"
        )
    chosen = name or next((str(page["current-context"]) for _, page in pages if page.get("current-context")), "")
    contexts = _named(pages, "contexts", "context")
    if chosen not in contexts:
        raise _no_context(chosen, contexts, where)
    context = contexts[chosen].page
    cluster = _required_entry(_named(pages, "clusters", "cluster"), context, "cluster", chosen, where)
    user = _required_entry(_named(pages, "users", "user"), context, "user", chosen, where)
    return _access_of(chosen, str(context.get("namespace") or ""), cluster, user)


def kubeconfig_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that are read, whether they exist or not."""
    written = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [Path(part).expanduser() for part in written] or [Path.home() / ".kube" / "config"]


def _read(path: Path) -> KubeconfigPage:
    import yaml  # 20 ms; only for a kubeconfig

    try:
        page = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(
            "a kubeconfig cannot be read", why=f"{path}: {error}", next="correct it, or name another in KUBECONFIG"
        ) from error
    if not isinstance(page, dict):
        raise SettingsError("a kubeconfig cannot be read", why=f"{path} is no table", next="name another in KUBECONFIG")
    return page


def _named(pages: list[tuple[Path, KubeconfigPage]], plural: str, single: str) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    for path, page in pages:
        for entry in page.get(plural) or ():
            found.setdefault(str(entry.get("name")), _Entry(entry.get(single) or {}, path.parent))
    return found


def _required_entry(entries: dict[str, _Entry], context: KubeconfigPage, kind: str, chosen: str, where: str) -> _Entry:
    name = str(context.get(kind) or "")
    if kind == "user" and not name:
        return _Entry({}, Path())  # nobody: some servers ask nothing
    if name in entries:
        return entries[name]
    raise SettingsError(
        f"the context {chosen} names the {kind} {name!r}, which is nowhere",
        why=f"looked in {where}",
        next="correct the kubeconfig, or name another context in KINETIC_KUBE_CONTEXT",
    )


def _no_context(chosen: str, contexts: dict[str, _Entry], where: str) -> SettingsError:
    what = f"there is no context {chosen!r}" if chosen else "no context is the current one"
    return SettingsError(
        what,
        why=f"{where} has {', '.join(contexts) or 'none'}",
        next=f"export KINETIC_KUBE_CONTEXT={next(iter(contexts), 'NAME')}",
    )


def _access_of(name: str, namespace: str, cluster: _Entry, user: _Entry) -> Access:
    page = cluster.page
    server = str(page.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise SettingsError(
            f"the cluster of the context {name} has no address", why=f"server is {server!r}", next="correct it"
        )
    credential = _credential_of(name, user, page)
    return Access(
        server=server,
        about=f"the context {name}",
        credential=credential,
        authority=_bytes(cluster, "certificate-authority") or b"",
        verify=not page.get("insecure-skip-tls-verify", False),
        server_name=str(page.get("tls-server-name") or ""),
        certificate=_certificate_of(user),
        namespace=namespace,
        proxy=str(page.get("proxy-url") or ""),
    )


def _credential_of(name: str, user: _Entry, cluster: KubeconfigPage) -> Credential:
    page = user.page
    if page.get("as"):  # to go on would be to act with other rights than those that were chosen
        raise CredentialsError(
            f"the context {name} acts as {page['as']}, and kinetic acts as nobody but itself",
            why="its user has the field as",
            next=f"name a context with credentials of {page['as']}, or take the field out of the kubeconfig",
        )
    if page.get("tokenFile"):
        return TokenFile(user.folder / str(page["tokenFile"]))
    if page.get("token"):
        return FixedCredential(f"Bearer {page['token']}")
    if page.get("exec"):
        return ExecPlugin.of_page(page["exec"], user.folder, cluster, f"the context {name}")
    if page.get("username"):
        pair = f"{page['username']}:{page.get('password', '')}"
        return FixedCredential(f"Basic {base64.b64encode(pair.encode()).decode()}")
    if page.get("auth-provider"):
        raise CredentialsError(
            f"the context {name} logs in by an auth-provider, which Kubernetes has removed",
            why=f"its user has auth-provider {page['auth-provider'].get('name')!r}",
            next="log in again with the cluster's own tool: it writes an exec plug-in today",
        )
    return Anonymous()


def _certificate_of(user: _Entry) -> Certificate | None:
    chain, key = _bytes(user, "client-certificate"), _bytes(user, "client-key")
    return Certificate(chain, key) if chain and key else None


def _bytes(entry: _Entry, field: str) -> bytes | None:
    """Return what stands in a page, in base 64, or in the file that it names."""
    written = entry.page.get(f"{field}-data")
    try:
        if written:
            return base64.b64decode(written)
        path = entry.page.get(field)
        return (entry.folder / str(path)).read_bytes() if path else None
    except (OSError, ValueError) as error:
        raise CredentialsError(
            f"{field} of a kubeconfig cannot be read", why=str(error), next="log in to the cluster again"
        ) from error
