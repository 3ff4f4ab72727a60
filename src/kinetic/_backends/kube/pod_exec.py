"""A command in the container of a pod, through the API server: input, output, the terminal's size, the exit code.

The protocols v5.channel.k8s.io and v4.channel.k8s.io: each message begins with the number of a channel. Only version 5
can say that the input has ended; with an older server, a command that reads to the end waits for ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

from kinetic._backends.kube import job_manifests, object_status
from kinetic._backends.kube.client import POD
from kinetic._backends.kube.job_manifests import CONTAINER, RUNNER_PATH
from kinetic._backends.kube.pod_logs import is_running
from kinetic._backends.kube.transport import Reply
from kinetic._backends.protocol import Stacks
from kinetic._wire import inspection
from kinetic.errors import AccessDeniedError, BackendError, RunnerError

if TYPE_CHECKING:
    from httpx2.websockets import WebSocketSession

    from kinetic._backends.kube.client import Client


@contextmanager
def open_channel(
    client: Client,
    pod: str,
    part: str,
    query: Mapping[str, str | int | bool | list[str]],
    protocols: list[str],
    where: str,
) -> Iterator[WebSocketSession]:
    """Open a connection.

    Args:
        client: Of the cluster.
        pod: Its name.
        part: "exec" or "portforward".
        query: What is asked for.
        protocols: Those that we speak, the best first.
        where: What the connection leads to, in words.

    Raises:
        BackendError: There is no such pod, or nobody answers.
        AccessDeniedError: We may not.
    """
    import httpx2
    from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError

    opened = client.transport.websocket(POD.path(client.namespace, pod, part), query=query, protocols=protocols)
    try:
        socket = opened.__enter__()
    except WebSocketUpgradeError as error:
        raise _open_error(client, pod, part, where, error) from error
    except (httpx2.HTTPError, HTTPXWSException) as error:
        why = f"{type(error).__name__}: {error}"
        raise BackendError(f"{where} cannot be reached", why=why, next=f"kubectl get pod {pod}") from error
    try:
        yield socket
    finally:
        with suppress(httpx2.HTTPError, HTTPXWSException):  # it is being closed, one way or another
            opened.__exit__(None, None, None)


def _open_error(client: Client, pod: str, part: str, where: str, error: object) -> Exception:
    response = error.response  # type: ignore[attr-defined]  # its class is not loaded where this is defined
    reply = Reply(response.status_code, response.content, repeated=False)
    if reply.status in {401, 403}:
        return client.refuse("create", POD._replace(plural=f"{POD.plural}/{part}"), pod, reply)
    said = client.refuse("get", POD, pod, reply)
    why = getattr(said, "why", None) or str(said)
    return BackendError(f"{where} cannot be reached", why=why, next=f"kubectl get pod {pod} -n {client.namespace}")


def send_message(socket: WebSocketSession, channel: int, data: bytes) -> None:
    """Send a message.

    Raises:
        BackendError: The connection is not there any more.
    """
    from httpx2.websockets import HTTPXWSException
    from wsproto.utilities import LocalProtocolError

    try:
        socket.send_bytes(bytes([channel]) + data)
    except (HTTPXWSException, LocalProtocolError, OSError) as error:
        raise BackendError("the connection to the pod broke", why=type(error).__name__) from error


def receive_message(socket: WebSocketSession) -> bytes:
    """Return the next message, with the number of its channel; b"" when the other end has closed, or is gone."""
    from httpx2.websockets import WebSocketDisconnect, WebSocketNetworkError

    try:
        return socket.receive_bytes()
    except (WebSocketDisconnect, WebSocketNetworkError):
        return b""


def finish_channel(socket: WebSocketSession) -> None:
    """Say that nothing more is sent; whoever waits for a message gets the other end's farewell."""
    from httpx2.websockets import HTTPXWSException
    from wsproto.events import CloseConnection
    from wsproto.utilities import LocalProtocolError

    with suppress(HTTPXWSException, LocalProtocolError, OSError):
        socket.send(CloseConnection(code=1000))


_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def raw_terminal(on_resize: Callable[[], object]) -> Iterator[None]:
    """Hand it over; whatever ends this block, a signal included, the terminal is as it was before.

    Args:
        on_resize: Called when the terminal's size has changed; it must be quick.
    """
    import termios
    import tty

    before = termios.tcgetattr(0)
    handlers = {number: signal.signal(number, _exit_on_signal) for number in _ENDING}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: on_resize())
    try:
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def terminal_size() -> tuple[int, int]:
    """Return columns and lines."""
    found = os.get_terminal_size(0)
    return found.columns or 80, found.lines or 24  # a terminal that nobody told its size says 0


def _exit_on_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)


_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_IN, _OUT, _ERR, _STATUS, _SIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_PIECE = 32_768  # bytes of one message
_RESIZED, _STOP = b"r", b"o"

Write = Callable[[bytes], None]


class ExecOutput(NamedTuple):
    """What a command wrote, and how it ended."""

    code: int
    out: bytes
    err: bytes


def capture(client: Client, pod: str, command: Sequence[str]) -> ExecOutput:
    """Run a command that reads nothing, and return what it wrote.

    Raises:
        BackendError: It could not be run, or the connection broke.
        AccessDeniedError: We may not.
    """
    out, err = bytearray(), bytearray()
    with _open_exec(client, pod, command, stdin=False, tty=False) as socket:
        code = _read_output(socket, out.extend, err.extend)
    return ExecOutput(code, bytes(out), bytes(err))


class _ExecStream:
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


def run_attached(client: Client, pod: str, command: Sequence[str], *, tty: bool, mark: bytes) -> ExecOutput:
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
    with _open_exec(client, pod, command, stdin=True, tty=tty) as socket:
        ended, ending = os.pipe()
        keyboard = threading.Thread(target=_send_input, args=(socket, ended, tty), name="kinetic-input", daemon=True)
        held = _ExecStream(mark, write_to(1 if tty else 2))
        try:
            with raw_terminal(lambda: os.write(ending, _RESIZED)) if tty else nullcontext():
                keyboard.start()
                code = _read_output(socket, held if tty else write_to(1), held)
                return ExecOutput(code, b"", held.text)
        finally:
            os.write(ending, _STOP)
            keyboard.join()
            os.close(ended)
            os.close(ending)


@contextmanager
def _open_exec(
    client: Client, pod: str, command: Sequence[str], *, stdin: bool, tty: bool
) -> Iterator[WebSocketSession]:
    query: dict[str, str | int | bool | list[str]] = {
        "container": CONTAINER,
        "command": list(command),
        "stdin": stdin,
        "stdout": True,
        "stderr": not tty,  # a terminal has one stream
        "tty": tty,
    }
    with open_channel(client, pod, "exec", query, [_V5, _V4], f"the pod {pod}") as socket:
        yield socket


def _send_input(socket: WebSocketSession, ended: int, tty: bool) -> None:
    """Send what is typed, and the terminal's size whenever it changes, until the command has ended."""
    reads = [0, ended]
    with suppress(BackendError):  # the other thread learns why, too
        if tty:
            _send_size(socket)
        while True:
            ready, _, _ = select.select(reads, [], [])
            if ended in ready:
                told = os.read(ended, 1024)
                if _STOP in told:
                    return
                _send_size(socket)
            elif data := _read_input():
                send_message(socket, _IN, data)
            else:
                reads = [ended]
                if socket.subprotocol == _V5:
                    send_message(socket, _CLOSE, bytes([_IN]))


def _read_input() -> bytes:
    try:
        return os.read(0, _PIECE)
    except OSError:  # the terminal was closed
        return b""


def _send_size(socket: WebSocketSession) -> None:
    columns, lines = terminal_size()
    send_message(socket, _SIZE, json.dumps({"Width": columns, "Height": lines}).encode())


def _read_output(socket: WebSocketSession, out: Write, err: Write) -> int:
    """Hand on what a command writes, until it has ended; return its exit code."""
    to = {_OUT: out, _ERR: err}
    while message := receive_message(socket):
        channel, data = message[0], message[1:]
        if channel == _STATUS:
            return _exit_code(data)
        if data and channel in to:
            to[channel](data)
    raise BackendError(
        "the connection to the pod broke before the command had ended",
        why="the API server, the pod or the network went away",
        next="run it again; the job goes on",
    )


def _exit_code(data: bytes) -> int:
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


_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_PIECE = 32_768  # bytes of one message; a server need not take longer ones


class Tunnel:
    """One connection, to be written and read like a socket."""

    def __init__(self, socket: WebSocketSession, where: str) -> None:
        self._socket = socket
        self._where = where
        self._begun = {_DATA: False, _ERROR: False}

    def send(self, data: bytes) -> None:
        """Send bytes, however many."""
        for start in range(0, len(data), _PORT_PIECE):
            send_message(self._socket, _DATA, data[start : start + _PORT_PIECE])

    def finish(self) -> None:
        """Say that nothing more is sent; the server answers by closing, too."""
        finish_channel(self._socket)

    def receive(self) -> bytes:
        """Return the next bytes that come, b"" when the other end has closed.

        Raises:
            BackendError: The pod does not listen there, or is gone.
        """
        while True:
            message = receive_message(self._socket)
            if not message:
                return b""
            channel, data = message[0], message[1:]
            if not self._begun.get(channel, True):
                self._begun[channel] = True
                data = data[2:]
            if data and channel == _ERROR:
                raise BackendError(f"{self._where} cannot be reached", why=data.decode(errors="replace").strip())
            if data:
                return data


@contextmanager
def connect_port(client: Client, pod: str, port: int) -> Iterator[Tunnel]:
    """Open a connection to a port of a pod; one for each, as with sockets.

    Raises:
        BackendError: There is no such pod.
        AccessDeniedError: We may not.
    """
    where = f"port {port} of the pod {pod}"
    with open_channel(client, pod, "portforward", {"ports": port}, [_PROTOCOL], where) as socket:
        yield Tunnel(socket, where)


_STACKS_AT_ONCE = 8  # hosts that are asked side by side
_TRIES = 3
_INSPECT_SCRIPT = (
    f"import sys; sys.path.insert(0, {RUNNER_PATH!r}); import unpack; unpack.install(); "
    "from kinetic._runner.pod.inspect_process import main; main(sys.argv[1:])"
)
_INSPECT_COMMAND = ("python3", "-P", "-c", _INSPECT_SCRIPT)


def pods_of(client: Client, job_id: str) -> dict[int, str]:
    """Return the name of the newest pod of each host whose container runs."""
    found = client.list(POD, f"{job_manifests.JOB_LABEL}={job_manifests.label_value(job_id)}").objects
    running = [pod for pod in found if is_running(pod) and not (pod.get("metadata") or {}).get("deletionTimestamp")]
    running.sort(key=lambda pod: (object_status.created_at(pod), object_status.object_name(pod)))
    return {object_status.host_index(pod): object_status.object_name(pod) for pod in running}


def pod_stacks(client: Client, job_id: str, hosts: Sequence[int]) -> list[Stacks]:
    """Ask the workers of some hosts for their stacks; see the protocol."""
    pods = pods_of(client, job_id)
    with ThreadPoolExecutor(_STACKS_AT_ONCE) as pool:
        return list(pool.map(lambda host: _stacks_of(client, pods.get(host, ""), host), hosts))


def _stacks_of(client: Client, pod: str, host: int) -> Stacks:
    if not pod:
        return Stacks(host, "", "it has no pod whose container runs")
    try:
        said = _capture_with_retry(client, pod, [*_INSPECT_COMMAND, "stacks"])
    except AccessDeniedError:
        raise
    except BackendError as error:
        return Stacks(host, "", ": ".join(filter(None, (error.what, error.why))))
    if said.code == 0:
        return Stacks(host, said.out.decode(errors="replace"))
    return Stacks(host, "", said.err.decode(errors="replace").strip() or f"the visitor ended with {said.code}")


def _capture_with_retry(client: Client, pod: str, command: Sequence[str]) -> ExecOutput:
    """Run a command that may be run twice, again after what passes: a connection that was cut, a server in trouble."""
    for attempt in range(_TRIES - 1):
        try:
            return capture(client, pod, command)
        except AccessDeniedError:
            raise
        except BackendError:
            client.transport.pause(attempt)
    return capture(client, pod, command)


def run_in_pod(
    client: Client, job_id: str, command: Sequence[str], *, host: int, tty: bool, environ: Mapping[str, str]
) -> int:
    """Run a command beside the worker of a host; see ``run_in`` of the protocol.

    Raises:
        RunnerError: The host has no pod, or its image no such command.
    """
    pod = pods_of(client, job_id).get(host)
    if pod is None:
        raise RunnerError(
            "the job does not run", why=f"host {host} has no pod whose container runs", code="not-running"
        )
    term = (environ.get("TERM") or "xterm") if tty else ""
    said = run_attached(client, pod, [*_INSPECT_COMMAND, "run", term, *command], tty=tty, mark=inspection.ERROR_MARK)
    trouble = inspection.read_error_line(said.err) if said.code == inspection.INSPECT_ERROR_EXIT else None
    if trouble is not None:
        raise trouble
    write_to(1 if tty else 2)(said.err)  # it was a command's own after all
    return said.code
