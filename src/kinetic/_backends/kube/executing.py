"""A command in the container of a pod, through the API server: input, output, the terminal's size, the exit code.

The protocols v5.channel.k8s.io and v4.channel.k8s.io: each message begins with the number of a channel. Only version 5
can say that the input has ended; with an older server, a command that reads to the end waits for ever.
"""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

from kinetic._backends.kube import channels, terminal
from kinetic._backends.kube.containers import CONTAINER
from kinetic.errors import BackendError

if TYPE_CHECKING:
    from httpx2.websockets import WebSocketSession

    from kinetic._backends.kube.client import Client

_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_IN, _OUT, _ERR, _STATUS, _SIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_PIECE = 32_768  # bytes of one message
_RESIZED, _OVER = b"r", b"o"

Write = Callable[[bytes], None]


class Said(NamedTuple):
    """What a command wrote, and how it ended."""

    code: int
    out: bytes
    err: bytes


def capture(client: Client, pod: str, command: Sequence[str]) -> Said:
    """Run a command that reads nothing, and return what it wrote.

    Raises:
        BackendError: It could not be run, or the connection broke.
        AccessDeniedError: We may not.
    """
    out, err = bytearray(), bytearray()
    with _opened(client, pod, command, stdin=False, tty=False) as socket:
        code = _carry(socket, out.extend, err.extend)
    return Said(code, bytes(out), bytes(err))


class _Held:
    """Hands on what a command writes, unless it begins with a mark: that is held back.

    Args:
        mark: What it begins with.
        write: Takes everything else.
    """

    def __init__(self, mark: bytes, write: Write) -> None:
        self._mark, self._write = mark, write
        self._may_be_held = True
        self.text = b""

    def __call__(self, data: bytes) -> None:
        self.text += data
        self._may_be_held = self._may_be_held and self._mark.startswith(self.text[: len(self._mark)])
        if not self._may_be_held:
            text, self.text = self.text, b""
            self._write(text)


def run(client: Client, pod: str, command: Sequence[str], *, tty: bool, mark: bytes) -> Said:
    """Run a command with this process's input and output, and return its exit code.

    Args:
        client: Of the cluster.
        pod: Its name.
        command: Program and arguments.
        tty: Whether input and output are a terminal, and shall be one there.
        mark: Where what it writes to standard error begins so, or to the terminal, it is returned in place of written.

    Raises:
        BackendError: It could not be run, or the connection broke.
        AccessDeniedError: We may not.
    """
    with _opened(client, pod, command, stdin=True, tty=tty) as socket:
        ended, ending = os.pipe()
        keyboard = threading.Thread(target=_feed, args=(socket, ended, tty), name="kinetic-input", daemon=True)
        held = _Held(mark, write_to(1 if tty else 2))
        try:
            with terminal.raw(lambda: os.write(ending, _RESIZED)) if tty else nullcontext():
                keyboard.start()
                code = _carry(socket, held if tty else write_to(1), held)
                return Said(code, b"", held.text)
        finally:
            os.write(ending, _OVER)
            keyboard.join()
            os.close(ended)
            os.close(ending)


@contextmanager
def _opened(client: Client, pod: str, command: Sequence[str], *, stdin: bool, tty: bool) -> Iterator[WebSocketSession]:
    query: dict[str, str | int | bool | list[str]] = {
        "container": CONTAINER,
        "command": list(command),
        "stdin": stdin,
        "stdout": True,
        "stderr": not tty,  # a terminal has one stream
        "tty": tty,
    }
    with channels.connect(client, pod, "exec", query, [_V5, _V4], f"the pod {pod}") as socket:
        yield socket


def _feed(socket: WebSocketSession, ended: int, tty: bool) -> None:
    """Send what is typed, and the terminal's size whenever it changes, until the command has ended."""
    reads = [0, ended]
    with suppress(BackendError):  # the other thread learns why, too
        if tty:
            _send_size(socket)
        while True:
            ready, _, _ = select.select(reads, [], [])
            if ended in ready:
                told = os.read(ended, 1024)
                if _OVER in told:
                    return
                _send_size(socket)
            elif data := _read_input():
                channels.send(socket, _IN, data)
            else:
                reads = [ended]
                if socket.subprotocol == _V5:
                    channels.send(socket, _CLOSE, bytes([_IN]))


def _read_input() -> bytes:
    try:
        return os.read(0, _PIECE)
    except OSError:  # the terminal was closed
        return b""


def _send_size(socket: WebSocketSession) -> None:
    columns, lines = terminal.size()
    channels.send(socket, _SIZE, json.dumps({"Width": columns, "Height": lines}).encode())


def _carry(socket: WebSocketSession, out: Write, err: Write) -> int:
    """Hand on what a command writes, until it has ended; return its exit code."""
    to = {_OUT: out, _ERR: err}
    while message := channels.receive(socket):
        channel, data = message[0], message[1:]
        if channel == _STATUS:
            return _code_of(data)
        if data and channel in to:
            to[channel](data)
    raise BackendError(
        "the connection to the pod broke before the command had ended",
        why="the API server, the pod or the network went away",
        next="run it again; the job goes on",
    )


def _code_of(data: bytes) -> int:
    """Read how a command ended.

    Raises:
        BackendError: It could not be started.
    """
    page = json.loads(data)
    if page.get("status") == "Success":
        return 0
    causes = (page.get("details") or {}).get("causes") or ()
    found = next((each.get("message", "") for each in causes if each.get("reason") == "ExitCode"), "")
    if page.get("reason") == "NonZeroExitCode" and found.isdecimal():
        return int(found)
    raise BackendError("the command could not be run in the pod", why=str(page.get("message") or page))


def write_to(descriptor: int) -> Write:
    """Return a function that writes all that it gets to a file of this process."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    return write
