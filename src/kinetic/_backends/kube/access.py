"""Who we are to which API server: one frozen page, whatever it was read from.

| from | server and its certificate | who we are |
|---|---|---|
| a kubeconfig context | the context's cluster | a token, a file with one, a certificate, a plug-in, a password |
| inside a pod | what Kubernetes provides there | the pod's service account; its token is exchanged now and then |
| GKE | the cluster as Google's API describes it | a token of Google's, fresh for each request |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kinetic.errors import CredentialsError

if TYPE_CHECKING:
    from kinetic._gcp.clusters import Cluster

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

    def header(self, *, instead_of: str = "") -> str:
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

    def header(self, *, instead_of: str = "") -> str:  # noqa: ARG002 - of the protocol
        """Return nothing."""
        return ""

    def certificate(self) -> Certificate | None:
        """Return nothing."""
        return None


class Fixed(Anonymous):
    """A header that does not change: a token or a password that a kubeconfig has."""

    def __init__(self, header: str) -> None:
        self._header = header

    def header(self, *, instead_of: str = "") -> str:  # noqa: ARG002 - of the protocol
        """Return it."""
        return self._header


class TokenFile(Anonymous):
    """A token in a file that somebody else exchanges; read for each request, 10 µs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def header(self, *, instead_of: str = "") -> str:  # noqa: ARG002 - of the protocol
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


class Asked(Anonymous):
    """A token that a function hands out, fresh for each request."""

    def __init__(self, token: Callable[[str], str]) -> None:
        self._token = token

    def header(self, *, instead_of: str = "") -> str:
        """Return it; the function is told which one was refused."""
        return f"Bearer {self._token(instead_of.removeprefix('Bearer '))}"


def in_cluster(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT_FOLDER) -> Access | None:
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


def of_gke(read: Callable[[], Cluster], token: Callable[[str], str]) -> Access:
    """Return the access to a cluster of GKE.

    Args:
        read: Asks Google where the cluster is; asked again when what it said does not hold any more.
        token: Hands out a token; gets one that was refused, or "".
    """
    cluster = read()
    return Access(
        server=cluster.server,
        about=f"the cluster {cluster.name} in {cluster.location} of {cluster.project}",
        credential=Asked(token),
        authority=cluster.authority,
        again=lambda: of_gke(read, token),
    )
