"""The debug adapter of a job, a process of its own: what debugpy's ``listen`` starts, behind a token.

debugpy's adapter serves whoever connects to its port, and any user of a machine can connect to a port on 127.0.0.1.
Here a client must send the job's token first, before the first byte of the Debug Adapter Protocol; what connects as a
process under the debugger must run as our user. The adapter and the worker know each other by two more tokens, which
travel through a pipe and not on a command line, where every user could read them.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from kinetic._wire import loopback

_CLIENT = "Client"  # debugpy's own names for who connects
_TOKEN_SECONDS = 10.0  # our relay sends the token at once
_START_SECONDS = 60.0
_START = f"""# the debug adapter of a job, with debugpy
import json, sys
page = json.load(sys.stdin)
sys.path[:] = page["path"]
from {__name__} import main
main(page)
"""


def listen(port: int, token: str) -> int:
    """Start the adapter, connect this process to it, and return the port that clients use.

    Args:
        port: Where clients connect on 127.0.0.1; 0 takes a free one.
        token: What a client must send first, followed by a line feed.

    Raises:
        RuntimeError: The port is taken, or the adapter did not start.
        OSError: No process can be started.
        ImportError: debugpy is not installed.
    """
    api: Any = import_module("debugpy.server.api")
    page = {
        "path": [entry or os.getcwd() for entry in sys.path],
        "port": port,
        "token": token,
        "worker": secrets.token_hex(32),  # what the worker shows to the adapter
        "adapter": secrets.token_hex(32),  # what the adapter shows to the worker
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        answer, _ = process.communicate(json.dumps(page), timeout=_START_SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.wait()
        raise RuntimeError(f"the debug adapter did not start within {_START_SECONDS:g} s") from error
    found = json.loads(answer or "{}")
    if "client" not in found:
        raise RuntimeError(found.get("error") or f"the debug adapter ended with exit code {process.returncode}")

    def connect(address: tuple[str, int], options: dict[str, Any]) -> None:
        host, server_port = address
        api._settrace(  # noqa: SLF001 - debugpy.connect() would wait for an editor, without a limit
            host=host,
            port=server_port,
            wait_for_ready_to_run=False,
            block_until_connected=True,
            access_token=page["adapter"],
            client_access_token=page["worker"],
            **options,
        )

    with_defaults = api._starts_debugging(connect)  # noqa: SLF001 - the settings of debugpy.listen()
    with_defaults(("127.0.0.1", int(found["server"])))
    return int(found["client"])


def main(page: dict[str, Any]) -> None:
    """Be the adapter: leave the worker's session, report both ports on standard output, serve until the worker ends."""
    if os.fork() != 0:
        return  # the worker reaps this process at once; the report comes from the other one
    os.setsid()
    try:
        servers, sessions = _serve(page)
    except Exception as error:  # noqa: BLE001 - the worker reports it; this process has no log
        _report({"error": f"{type(error).__name__}: {error}"})
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    servers.wait_until_disconnected()
    sessions.wait_until_ended()


def _serve(page: dict[str, Any]) -> tuple[Any, Any]:
    """Open both ports and report them."""
    adapter: Any = import_module("debugpy.adapter")
    clients: Any = import_module("debugpy.adapter.clients")
    servers: Any = import_module("debugpy.adapter.servers")
    sessions: Any = import_module("debugpy.adapter.sessions")
    sockets: Any = import_module("debugpy.common.sockets")
    adapter.access_token, servers.access_token = page["worker"], page["adapter"]
    sockets.serve = _guarded(sockets.serve, page["token"].encode())
    found = {"client": clients.serve("127.0.0.1", page["port"])[1], "server": servers.serve("127.0.0.1")[1]}
    _report(found)
    return servers, sessions


def _guarded(serve: Callable[..., Any], token: bytes) -> Callable[..., Any]:
    """Return debugpy's function that listens, with a check before what it does with a connection."""

    def guarded(name: str, handler: Callable[[socket.socket], Any], *args: Any, **options: Any) -> Any:
        one_at_a_time = threading.Lock()  # as it is without us

        def admit(connection: socket.socket) -> None:
            if _knows(connection, token) if name == _CLIENT else loopback.is_own_peer(connection):
                with one_at_a_time:
                    handler(connection)
            else:
                connection.close()

        def on_connection(connection: socket.socket) -> None:  # one that stays silent delays no other
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else 40 ms for every second message
            threading.Thread(target=admit, args=(connection,), daemon=True).start()

        return serve(name, on_connection, *args, **options)

    return guarded


def _knows(connection: socket.socket, token: bytes) -> bool:
    """Return whether a client sends the token; what comes after it stays in the socket for debugpy."""
    connection.settimeout(_TOKEN_SECONDS)
    wanted, got = token + b"\n", b""
    try:
        while len(got) < len(wanted) and (data := connection.recv(len(wanted) - len(got))):
            got += data
        connection.settimeout(None)
    except OSError:
        return False
    return hmac.compare_digest(got, wanted)


def _report(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
