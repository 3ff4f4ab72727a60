"""Which proxy the environment names for an address, as other programs read it, and connections through one."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import selectors
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import Iterable
from functools import partial

from kinetic._wire import python_runtime

KINDS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}  # with the port where none is named
ADVICE = "correct HTTPS_PROXY; a login is part of the address: http://USER:PASSWORD@HOST:PORT"  # of a RefusedError
_FINAL = frozenset({401, 403, 405, 407})  # what asking again does not change
_SOCKS = 5
_WITH_LOGIN = 2
_ADDRESS_BYTES = {1: 4, 4: 16}
_SOCKS_ERRORS = {2: "not allowed", 3: "no network", 4: "not reachable", 5: "connection refused", 6: "no answer"}
_BLOCK = 1 << 16
_PASS_SECONDS = 60.0  # for what a proxy takes at once
_GREETING_SECONDS = 5.0  # for SOCKS' first answer, which asks no server; a proxy for HTTP waits for a line instead


class RefusedError(OSError):
    """A proxy does not serve us, or is not trusted: asking again does not help."""


def proxy_for(url: str, *, as_curl: bool = False) -> str:
    """Return the address of the proxy for a URL, as ``http://host:3128``; "" for none.

    As for kubectl, this machine itself has none, and NO_PROXY may have ``*.example``, or ``*`` among others.
    ``as_curl``: none of that holds, as for curl and obstore.
    """
    parts, proxies = urllib.parse.urlsplit(url), urllib.request.getproxies()
    found, host = proxies.get(parts.scheme) or proxies.get("all") or "", parts.hostname or ""
    with_port = f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"  # as NO_PROXY may have it
    if not found or any(map(urllib.request.proxy_bypass, (host, with_port))):
        return ""
    direct = [each.strip().lower() for each in proxies.get("no", "").split(",")]
    below = tuple(each[1:] for each in direct if each.startswith("*."))
    if not as_curl and ("*" in direct or is_loopback(host) or host.endswith(below) or with_port.endswith(below)):
        return ""
    if _is_in_networks(host, direct):
        return ""
    return found if "://" in found else f"http://{found}"


def is_loopback(host: str) -> bool:
    """Return whether a host of a URL is the loopback of this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _is_in_networks(host: str, networks: Iterable[str]) -> bool:
    """Return whether an address is in one of some networks, as in 10.0.0.0/8: curl knows them, urllib does not."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for written in (each for each in networks if "/" in each):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(written, strict=False):
                    return True
    return False


def login(proxy: str) -> dict[str, str]:
    """Return the header with the name and password in a proxy's address, if there are any."""
    found, at, _ = urllib.parse.urlsplit(proxy).netloc.rpartition("@")
    pair = urllib.parse.unquote(found if ":" in found else f"{found}:")
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"} if at else {}


def _parsed(proxy: str) -> urllib.parse.SplitResult:
    with contextlib.suppress(ValueError):  # whose text may have a part of the password
        parts = urllib.parse.urlsplit(proxy)
        if parts.hostname and parts.port != 0:
            return parts
    advice = "in a user or a password, write # as %23, / as %2F, ? as %3F and @ as %40"
    raise RefusedError(f"the address of the proxy is not valid; {advice}")


def connect(proxy: str, seconds: float, options: Iterable[tuple[int, int, int]] = ()) -> socket.socket:
    """Connect to a proxy, with TLS where its address begins with ``https://``.

    Raises:
        OSError: It does not answer, its certificate is not trusted, or it is of another kind than ``KINDS``.
    """
    parts = _parsed(proxy)
    if parts.scheme not in KINDS:
        known = ", ".join(f"{kind}://" for kind in KINDS)
        raise OSError(f"a proxy whose address begins with {parts.scheme}:// is not supported, only {known}")
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    try:
        used = socket.create_connection((host, parts.port or KINDS[parts.scheme]), seconds)
    except OSError as error:
        raise OSError(f"the proxy {host} cannot be reached: {error.strerror or error}") from error
    try:
        for option in (*options, (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)):
            used.setsockopt(*option)
        if is_tls:
            used = _through_tls(ssl.create_default_context().wrap_socket(used, server_hostname=host))
            used.settimeout(seconds)
    except ssl.SSLCertVerificationError as error:
        used.close()
        why = f"the certificate of the proxy {host} is not trusted: {error.verify_message}; {python_runtime.TRUST}"
    except ssl.SSLEOFError as error:
        used.close()
        raise OSError(f"the proxy {host} closed the connection: {error}") from error
    except ssl.SSLError as error:
        used.close()
        why = f"the proxy {host} speaks no TLS ({error.reason}): write http:// where it is a plain HTTP proxy"
    except BaseException:
        used.close()
        raise
    else:
        return used
    raise RefusedError(why)  # outside, without a context that would look like the server's own certificate


def open_tunnel(used: socket.socket, proxy: str, host: str, port: int) -> None:
    """Have a proxy connect to a server; what follows is between the server and us."""
    if is_socks(proxy):
        _open_socks_tunnel(used, proxy, host, port)
        return
    target = f"{f'[{host}]' if ':' in host else host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *map(": ".join, login(proxy).items()), "", ""]
    used.sendall("\r\n".join(lines).encode())
    its_host = urllib.parse.urlsplit(proxy).hostname
    with http.client.HTTPResponse(used, method="CONNECT") as answer:
        try:
            answer.begin()
        except http.client.RemoteDisconnected as error:
            raise OSError(f"the proxy {its_host} closed the connection") from error
        except http.client.HTTPException as error:
            raise RefusedError(f"the proxy {its_host} does not speak HTTP") from error
        if not 200 <= answer.status < 300:
            kind = RefusedError if answer.status in _FINAL else OSError
            raise kind(f"the proxy {its_host} answered with HTTP {answer.status}")


def is_socks(proxy: str) -> bool:
    """Return whether a proxy has a tunnel for each server, also for one without TLS."""
    return proxy.lower().startswith("socks")


def _open_socks_tunnel(used: socket.socket, proxy: str, host: str, port: int) -> None:
    """Do the same with SOCKS version 5, RFC 1928 and 1929; the proxy looks up the name, as for programs in Go."""
    parts = urllib.parse.urlsplit(proxy)
    user, password = (urllib.parse.unquote(each or "").encode() for each in (parts.username, parts.password))
    used.sendall(b"\5\2\0\2" if user else b"\5\1\0")  # without a login, or with one
    seconds = used.gettimeout()
    used.settimeout(_GREETING_SECONDS)  # and no poll(), which eventlet removes
    try:
        version, method = _read_exactly(used, 2)
    except TimeoutError:
        version, method = 0, 0
    used.settimeout(seconds)
    if version != _SOCKS:
        hint = "if it is one for HTTP, its address begins with http://"
        raise RefusedError(f"the proxy {parts.hostname} does not speak SOCKS version 5; {hint}")
    if method == _WITH_LOGIN and user:
        used.sendall(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        method = _read_exactly(used, 2)[1]
    if method:
        raise RefusedError(f"the proxy {parts.hostname} demands {'another' if user else 'a'} login")
    try:
        address = ipaddress.ip_address(host)
        named = (b"\1" if address.version == 4 else b"\4") + address.packed
    except ValueError:
        name = host.encode("idna")
        named = b"\3" + bytes([len(name)]) + name
    used.sendall(b"\5\1\0" + named + port.to_bytes(2, "big"))
    _, status, _, kind = _read_exactly(used, 4)
    if status:
        raise OSError(f"the proxy {parts.hostname} does not connect to {host}: {_SOCKS_ERRORS.get(status, status)}")
    length = _ADDRESS_BYTES.get(kind) or _read_exactly(used, 1)[0]
    _read_exactly(used, length + 2)  # from where it connects, which is of no use here


def _read_exactly(used: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (piece := used.recv(size - len(data))):
            raise OSError("the proxy closed the connection")
        data += piece
    return data


def _through_tls(outer: ssl.SSLSocket) -> socket.socket:
    """Return a socket of which a thread passes everything on within TLS: Python cannot wrap TLS in TLS."""
    ours, theirs = socket.socketpair()
    if python_runtime.start_thread(partial(_pass_on, theirs, outer), "kinetic-proxy") is None:
        for each in (ours, theirs, outer):
            each.close()
        raise OSError("no thread can be started for the connection to the proxy")
    return ours


def _pass_on(plain: socket.socket, tls: ssl.SSLSocket) -> None:
    """Pass on what either socket gets to the other one, until one of them ends."""
    with plain, tls, contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
        for each in (plain, tls):
            selector.register(each, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select(0 if tls.pending() else None)}
            if tls.pending() or tls in ready:
                tls.settimeout(0)  # what came may be TLS's own
                with contextlib.suppress(ssl.SSLWantReadError, TimeoutError):  # the latter of eventlet
                    if not (data := tls.recv(_BLOCK)):
                        return
                    plain.sendall(data)
            if plain in ready:
                tls.settimeout(_PASS_SECONDS)
                if not (data := plain.recv(_BLOCK)):
                    return
                tls.sendall(data)
