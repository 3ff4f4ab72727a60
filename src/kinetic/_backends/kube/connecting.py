"""Connections to an API server: certificates of both sides, proxies, and noticing that the other end is gone."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from kinetic._wire import folders
from kinetic.errors import CredentialsError

if TYPE_CHECKING:
    import ssl

    import httpx2

    from kinetic._backends.kube.access import Access, Certificate

CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_UPGRADED = 101
_MOST_CONNECTIONS = 512  # a follower of a log holds one, and so does a watch; half the files that a process may open


def http_client(access: Access) -> httpx2.Client:
    """Make a client whose connections trust what the access trusts.

    Raises:
        CredentialsError: A certificate cannot be used.
    """
    import httpx2

    transport = httpx2.HTTPTransport(
        verify=_context(access),
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=16, keepalive_expiry=60.0),
        proxy=access.proxy or _proxy(access.server),
        socket_options=_keeping_alive(),
    )
    timeout = httpx2.Timeout(_READ_SECONDS, connect=CONNECT_SECONDS)
    return httpx2.Client(
        transport=transport,
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
        event_hooks={"response": [_read_if_refused]},
    )


def is_untrusted(error: BaseException) -> bool:
    """Return whether a connection failed because the server's certificate was refused: no repetition helps."""
    import ssl  # loaded by whoever has tried to connect

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _read_if_refused(response: httpx2.Response) -> None:
    """Read why a WebSocket was refused, while it can be read: it is closed before anybody is told of it."""
    if "upgrade" in response.request.headers and response.status_code != _UPGRADED:
        response.read()


def _context(access: Access) -> ssl.SSLContext:
    import ssl  # 20 ms

    try:
        context = ssl.create_default_context(cadata=access.authority.decode() or None)
        if access.authority:
            # Python 3.13 began to insist on extensions that authorities made for one cluster often lack, EKS's among
            # them; whom they signed is verified as before.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        own = access.certificate or access.credential.certificate()
        if own is not None:
            _load(context, own)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise CredentialsError(
            f"the certificates for {access.about} cannot be used", why=str(error), next="log in to the cluster again"
        ) from error
    return context


def _load(context: ssl.SSLContext, own: Certificate) -> None:
    """Load a certificate and its key, which Python takes from a file only: one in memory where that exists."""
    pem = own.chain.rstrip() + b"\n" + own.key
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate")
        try:
            folders.write_all(descriptor, pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    import tempfile

    with tempfile.NamedTemporaryFile() as file:  # 0600, and gone in a moment
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def _proxy(server: str) -> str | None:
    """Return the proxy that the environment wants for a server."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.parse
    import urllib.request  # 30 ms; only where there is a proxy

    parts = urllib.parse.urlsplit(server)
    proxies = urllib.request.getproxies()
    found, host = proxies.get(parts.scheme) or proxies.get("all"), parts.hostname or ""
    past = found is None or urllib.request.proxy_bypass(host) or _is_within(host, proxies.get("no", ""))
    return None if past else found


def _is_within(host: str, networks: str) -> bool:
    """Say whether an address lies in one of some networks, as in 10.0.0.0/8: kubectl knows them, and urllib not."""
    import ipaddress

    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for written in (part.strip() for part in networks.split(",") if "/" in part):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(written, strict=False):
                    return True
    return False


def _keeping_alive() -> list[tuple[int, int, int]]:
    """Notice within about a minute that the other end is gone: a laptop slept, or a balancer forgot us."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options
