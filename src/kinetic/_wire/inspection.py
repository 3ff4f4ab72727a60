"""Debug servers and processes that inspect a job: what they report, and who may connect to them."""

from __future__ import annotations

import hmac
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._wire import dataclass, documents, fields, keys
from kinetic.errors import RunnerError

if TYPE_CHECKING:
    import socket

PORT = 5678  # in a pod, and debugpy's own default; on a machine each server takes a free one
EXPIRES_SECONDS = 7200  # what is left of a debug job goes so long after its end
WAIT_SECONDS = 600.0  # that a job waits for a debugger, unless KINETIC_DEBUG_WAIT_TIMEOUT says something else
# How the debug token reaches the worker, which takes it out of its environment before the function begins.
TOKEN_VARIABLE = "KINETIC_DEBUG_TOKEN"  # noqa: S105 - the name of a variable

WAITING, ATTACHED, OVER = "waiting", "attached", "over"


def token(job_key: bytes) -> str:
    """Return what a debugger must send first. It is derived from the job's key, and does not reveal it."""
    return hmac.digest(job_key, b"kinetic debug server", "sha256").hex()


def page_key(token: str) -> bytes:
    """Return the key that seals what a debug server says of itself; the worker, which has the token, says it."""
    return hmac.digest(token.encode(), b"kinetic debug pages", "sha256")


def mark_begun(job_id: str, attempt: int, key: bytes) -> str:
    """Return the key whose presence says that a debugger came to a host of a slice, so the others need not wait."""
    return documents.sealed_name(keys.debug_begun(job_id, attempt), "begun", key)


@dataclass(frozen=True)
class DebugPage:
    """The state of one host's debug server."""

    port: int  # where it listens, on the loopback interface
    state: str = WAITING  # or ATTACHED; or OVER: no debugger came in time, and the function runs
    until: float = 0.0  # Unix time at which it stops waiting
    pid: int = 0  # the worker's process
    roots: tuple[tuple[str, str], ...] = ()  # pairs of folders: as the client knows one, and where it is in the job
    pod: str = ""  # what a pod calls its machine; "" on this machine, and from older runners

    def to_bytes(self) -> bytes:
        """Write the page for a folder that only our user may enter."""
        return documents.write({"schema": documents.SCHEMA, **asdict(self)})

    def sealed(self, at: str, key: bytes) -> bytes:
        """Write the page for its place in a store, sealed with ``page_key``."""
        return documents.seal_page(DEBUG, asdict(self), at, key)

    def is_from_older_pod(self, name: str) -> bool:
        """Return whether the pod of this name replaced the one that wrote the page.

        The names of a job's pods differ in their last part. Those of a slice call their machine by their place in it.
        """
        return self.pod != name and self.pod.rpartition("-")[0] == name.rpartition("-")[0]

    @classmethod
    def from_bytes(cls, data: bytes) -> DebugPage:
        """Read the page from such a folder; from a store, ``documents.open_page`` does."""
        return DEBUG.build(documents.read(data, DEBUG.what, most_bytes=DEBUG.most_bytes), DEBUG.what)


def _pair(value: object) -> tuple[str, ...]:
    found = _folders(value)
    if len(found) != 2:
        raise fields.FieldError("must be a pair of folders")
    return found


_folders = fields.list_of(fields.text(fields.PATH), 2)
_PAGE_READERS = {
    "port": fields.integer(1, 65535),
    "state": fields.one_of(WAITING, ATTACHED, OVER),
    "until": fields.number(0, fields.SECONDS),
    "pid": fields.integer(0, 1 << 31),
    "roots": fields.list_of(_pair, 1000),
    "pod": fields.text(fields.NAME),
}


DEBUG = documents.PageKind("debug", "the page of a debug server", fields.builder(DebugPage, _PAGE_READERS))


INSPECT_ERROR_EXIT = 125  # of a process that could not inspect the worker, or could not become the command
ERROR_MARK = b"\x1ekinetic-inspect: "  # no text that is meant to be read begins with this byte
_FIELDS = ("what", "why", "next", "code")


def error_line(error: RunnerError) -> bytes:
    """Put what was wrong into a line."""
    return ERROR_MARK + json.dumps({name: getattr(error, name) for name in _FIELDS}).encode() + b"\n"


def read_error_line(text: bytes) -> RunnerError | None:
    """Return what such a line says; None where it is none: then a command wrote it."""
    if not text.startswith(ERROR_MARK):
        return None
    try:
        page = json.loads(text.removeprefix(ERROR_MARK))
        what, why, next_, code = (page[name] for name in _FIELDS)
    except (ValueError, KeyError, TypeError):
        return None
    return RunnerError(str(what), why=why, next=next_, code=code)


# ------------------------------------------------------------------------ who is at the other end of a local connection
# Any user of a machine reaches a port on 127.0.0.1. A socket file has owner and mode; a port has neither, so whoever
# accepts a connection asks the kernel which user holds its other end.

_TABLES = ("tcp", "tcp6")  # a client of ::ffff:127.0.0.1 is in the second one
_ESTABLISHED = "01"  # in other states the kernel no longer names the owner, and shows 0
_LSOF_SECONDS = 5.0


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether the process at the other end runs as our user, or as root.

    False also where nothing says who it is: unknown users are rejected.

    Args:
        connection: An accepted TCP connection over IPv4.
    """
    try:
        ours, theirs = connection.getsockname()[:2], connection.getpeername()[:2]
    except OSError:  # it is gone already
        return False
    return is_own_client(theirs, ours)


def is_own_client(theirs: tuple[str, int], ours: tuple[str, int], *, elsewhere: bool = False) -> bool:
    """Return the same of a connection by the addresses of its ends.

    ``elsewhere`` is returned where the kernel has no such client: a browser on Windows, with its own network in WSL.
    """
    if Path("/proc/net/tcp").exists():
        owner = _socket_owner(theirs, ours)
        return elsewhere if owner is None else owner in {os.geteuid(), 0}
    return _is_seen_by_lsof(theirs[1], ours[1])


def _socket_owner(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Return the user who holds the socket that is bound to ``local`` and connected to ``remote``; None for no socket.

    Of one that was closed on one side, nothing says it: -1.
    """
    wanted = (_hexadecimal(*local), _hexadecimal(*remote))
    for table in _TABLES:
        try:
            rows = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for row in rows:
            fields = row.split()
            if all(map(str.endswith, fields[1:3], wanted)):
                return int(fields[7]) if fields[3] == _ESTABLISHED else -1
    return None


def _hexadecimal(address: str, port: int) -> str:
    """Write an address as the kernel's table does: the four bytes in the machine's order, then the port."""
    import socket

    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"


def _is_seen_by_lsof(their_port: int, our_port: int) -> bool:
    """Ask lsof, which shows the sockets of our own user without further rights; macOS brings it."""
    import subprocess

    command = ["lsof", "-nP", "-a", f"-u{os.geteuid()}", f"-iTCP@127.0.0.1:{their_port}", "-sTCP:ESTABLISHED", "-Fn"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LSOF_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return f"n127.0.0.1:{their_port}->127.0.0.1:{our_port}" in done.stdout.splitlines()
