"""Who is at the other end of a connection that came over the loopback interface: our own user, or somebody else.

Any user of a machine reaches a port on 127.0.0.1. A socket file has owner and mode; a port has neither, so whoever
accepts a connection asks the kernel which user holds its other end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

_TABLES = ("tcp", "tcp6")  # a client of ::ffff:127.0.0.1 is in the second one
_ESTABLISHED = "01"  # in other states the kernel no longer names the owner, and shows 0
_LSOF_SECONDS = 5.0


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether the process at the other end runs as our user, or as root.

    False also where nothing says who it is: what cannot be known is not let in.

    Args:
        connection: An accepted TCP connection over IPv4.
    """
    try:
        ours, theirs = connection.getsockname()[:2], connection.getpeername()[:2]
    except OSError:  # it is gone already
        return False
    if Path("/proc/net/tcp").exists():
        return _owner(theirs, ours) in {os.geteuid(), 0}
    return _is_seen_by_lsof(theirs[1], ours[1])


def _owner(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Return the user who holds the socket that is bound to ``local`` and connected to ``remote``."""
    wanted = (_hexadecimal(*local), _hexadecimal(*remote))
    for table in _TABLES:
        try:
            rows = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _ESTABLISHED and all(map(str.endswith, fields[1:3], wanted)):
                return int(fields[7])
    return None


def _hexadecimal(address: str, port: int) -> str:
    """Write an address as the kernel's table does: the four bytes in the machine's order, then the port."""
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"


def _is_seen_by_lsof(their_port: int, our_port: int) -> bool:
    """Ask lsof, which shows the sockets of our own user without further rights; macOS brings it."""
    command = ["lsof", "-nP", "-a", f"-u{os.geteuid()}", f"-iTCP@127.0.0.1:{their_port}", "-sTCP:ESTABLISHED", "-Fn"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LSOF_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return f"n127.0.0.1:{their_port}->127.0.0.1:{our_port}" in done.stdout.splitlines()
