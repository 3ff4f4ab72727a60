"""Servers as processes of ours: started, waited for, and ended exactly, also when we die first."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LAST_LINES = 15
LOWEST_PORT = 12_000  # below it, services of the machine
# "When the parent is gone" means for Linux: the thread that started it. This one lives as long as we do.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="starts servers")


class Process:
    """One running server.

    The kernel kills it when we are gone, so that a killed test run leaves nothing behind.
    """

    def __init__(self, name: str, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        everything = {**os.environ, **(environment or {})}
        with log.open("ab") as output:
            self._process = _STARTER.submit(
                lambda: subprocess.Popen(
                    [*guard, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=everything,
                    start_new_session=True,  # Ctrl-C in the terminal is for pytest, which then stops us in order
                )
            ).result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self, seconds: float = 10) -> None:
        """Ask it to end, and end it if it does not."""
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a machine that loses its power would."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Let it hang: connections stay open, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on; one that runs does so anyway, and to one that has ended nothing is done."""
        self._process.send_signal(signal.SIGCONT)

    def wait_until(self, ready: Callable[[], bool], seconds: float = 60) -> None:
        """Return as soon as ``ready`` says yes; raise with the end of the log if it ends or takes too long first."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.is_running:
                raise RuntimeError(f"{self.name} ended with status {self._process.returncode}:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} was not ready after {seconds:.0f} s:\n{self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on; all different.

    A server that is started again finds its port still free: they are none of those that the system gives to
    connections. No seed decides, so that two runs of one seed do not choose the same.
    """
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert lowest_given > LOWEST_PORT, "this system gives all ports to connections"
    found: set[int] = set()
    with contextlib.ExitStack() as closing:
        while len(found) < count:
            port = random.SystemRandom().randrange(LOWEST_PORT, lowest_given)
            probe = closing.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.add(port)
    return list(found)


def answers(port: int, path: str, *, tls: bool = True, timeout_seconds: float = 5) -> bool:
    """Tell whether a server of ours says 200 to a question about its health."""
    if tls:
        # Who it is does not matter: it tells nothing but its health, and it listens on a port that we chose.
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=timeout_seconds, context=trusting
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
