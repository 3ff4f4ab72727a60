"""Into a running pod through the API server: a command with its input, output and terminal, and a port.

The protocols v5.channel.k8s.io and v4.channel.k8s.io: each message begins with the number of a channel. Only version 5
can say that the input has ended; with an older server, a command that reads to the end waits forever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from kinetic._backends.kube import job_manifests, object_status
from kinetic._backends.kube.client import POD
from kinetic._backends.kube.http_connection import TransportError, WebSocket
from kinetic._backends.kube.job_manifests import CONTAINER, RUNNER_PATH
from kinetic._backends.kube.transport import RefusedError
from kinetic._backends.protocol import Stacks
from kinetic._wire import NamedTuple, folders, inspection
from kinetic.errors import AccessDeniedError, BackendError, RunnerError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

# ------------------------------------------------------------------------------------------------------------ channels

_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_MESSAGE_BYTES = 32_768  # a server need not accept longer ones

Query = Mapping[str, str | int | bool | list[str]]


@contextmanager
def _open_channel(
    client: Client, pod: str, part: str, query: Query, protocols: list[str], what: str
) -> Iterator[WebSocket]:
    """Open a connection to "exec" or "portforward" of a pod; `what` names it in messages."""
    transport, path = client.transport, POD.path(client.namespace, pod, part)
    opened = transport.websocket(path, query=query, protocols=protocols)
    try:
        socket = opened.__enter__()
    except (TransportError, RefusedError) as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, RefusedError):
            if error.reply.status in {401, 403}:
                kind = POD._replace(plural=f"{POD.plural}/{part}")
                raise client.error_for("create", kind, pod, error.reply) from error
            reported = client.error_for("get", POD, pod, error.reply)
            why = reported.why or str(reported)
        next_ = f"kubectl get pod {pod} -n {client.namespace}"
        raise BackendError(f"cannot connect to {what}", why=why, next=next_) from error
    try:
        yield socket
    finally:
        opened.__exit__(None, None, None)


def _send(socket: WebSocket, channel: int, data: bytes) -> None:
    try:
        socket.send(bytes([channel]) + data)
    except TransportError as error:
        raise BackendError("the connection to the pod broke", why=str(error)) from error


def _receive(socket: WebSocket) -> tuple[int, bytes] | None:
    """Return the next message and its channel; None when the other end has closed, or is gone."""
    message = socket.receive()
    return (message[0], message[1:]) if message else None


# ------------------------------------------------------------------------------------------------------------ commands

_IN, _OUT, _ERR, _STATUS, _SIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_RESIZED, _STOP = b"r", b"o"

Write = Callable[[bytes], None]


class ExecOutput(NamedTuple):
    code: int
    out: bytes
    err: bytes


def _open_exec(
    client: Client, pod: str, command: Sequence[str], *, stdin: bool, tty: bool
) -> AbstractContextManager[WebSocket]:
    query: dict[str, str | int | bool | list[str]] = {
        "container": CONTAINER,
        "command": list(command),
        "stdin": stdin,
        "stdout": True,
        "stderr": not tty,  # a terminal has one stream
        "tty": tty,
    }
    return _open_channel(client, pod, "exec", query, [_V5, _V4], f"the pod {pod}")


def capture(client: Client, pod: str, command: Sequence[str]) -> ExecOutput:
    """Run a command that reads nothing, and return what it wrote."""
    out, err = bytearray(), bytearray()
    with _open_exec(client, pod, command, stdin=False, tty=False) as socket:
        code = _read_output(socket, out.extend, err.extend)
    return ExecOutput(code, bytes(out), bytes(err))


class _HeldOutput:
    """Passes on what a command writes, unless it begins with a mark: that is kept in ``held``."""

    def __init__(self, mark: bytes, write: Write) -> None:
        self._mark, self._write = mark, write
        self._may_be_mark = True
        self.held = b""

    def __call__(self, data: bytes) -> None:
        self.held += data
        self._may_be_mark = self._may_be_mark and self._mark.startswith(self.held[: len(self._mark)])
        if not self._may_be_mark:
            held, self.held = self.held, b""
            self._write(held)


def run_attached(client: Client, pod: str, command: Sequence[str], *, tty: bool, mark: bytes) -> ExecOutput:
    """Run a command with this process's input and output; with `tty`, these are a terminal, here and there.

    What it writes to standard error, or to the terminal, is returned and not written if it begins with `mark`.
    """
    with _open_exec(client, pod, command, stdin=True, tty=tty) as socket:
        wakes, wake = os.pipe()
        keyboard = threading.Thread(target=_send_input, args=(socket, wakes, tty), name="kinetic-input", daemon=True)
        output = _HeldOutput(mark, partial(folders.write_all, 1 if tty else 2))
        try:
            with raw_terminal(lambda: os.write(wake, _RESIZED)) if tty else nullcontext():
                keyboard.start()
                code = _read_output(socket, output if tty else partial(folders.write_all, 1), output)
                return ExecOutput(code, b"", output.held)
        finally:
            os.write(wake, _STOP)
            keyboard.join()
            os.close(wakes)
            os.close(wake)


@contextmanager
def raw_terminal(on_resize: Callable[[], object]) -> Iterator[None]:
    """Pass every key on; whatever ends this block, a signal included, the terminal is as it was before."""
    import termios
    import tty

    def exit_on_signal(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = termios.tcgetattr(0)
    handlers = {number: signal.signal(number, exit_on_signal) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: on_resize())
    try:
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _send_input(socket: WebSocket, wakes: int, tty: bool) -> None:
    """Send what is typed, and the terminal's size whenever it changes, until the command has ended."""
    poll = select.poll()  # select() takes no descriptor above 1023
    for descriptor in (0, wakes):
        poll.register(descriptor, select.POLLIN)
    with suppress(BackendError):  # the other thread gets the error, too
        if tty:
            _send_size(socket)
        while True:
            if wakes in {descriptor for descriptor, _ in poll.poll()}:
                if _STOP in os.read(wakes, 1024):
                    return
                _send_size(socket)
                continue
            try:
                data = os.read(0, _MESSAGE_BYTES)
            except OSError:  # the terminal was closed
                data = b""
            if data:
                _send(socket, _IN, data)
                continue
            poll.unregister(0)
            if socket.subprotocol == _V5:
                _send(socket, _CLOSE, bytes([_IN]))


def _send_size(socket: WebSocket) -> None:
    found = os.get_terminal_size(0)  # 0 for a terminal without a size
    size = {"Width": found.columns or 80, "Height": found.lines or 24}
    _send(socket, _SIZE, json.dumps(size).encode())


def _read_output(socket: WebSocket, out: Write, err: Write) -> int:
    writers = {_OUT: out, _ERR: err}
    while message := _receive(socket):
        channel, data = message
        if channel == _STATUS:
            return _exit_code(data)
        if data and channel in writers:
            writers[channel](data)
    raise BackendError(
        "the connection to the pod broke before the command had ended",
        why="the API server, the pod or the network is gone",
        next="run it again; the job keeps running",
    )


def _exit_code(status: bytes) -> int:
    """Read how a command ended."""
    page = json.loads(status)
    if page.get("status") == "Success":
        return 0
    causes = (page.get("details") or {}).get("causes") or ()
    found = next((each.get("message", "") for each in causes if each.get("reason") == "ExitCode"), "")
    if page.get("reason") == "NonZeroExitCode" and found.isdecimal():
        return int(found)
    raise BackendError("the command could not be run in the pod", why=str(page.get("message") or page))


# --------------------------------------------------------------------------------------------------------------- ports

_DATA, _ERROR = 0, 1  # channels


class Tunnel:
    """A connection to a port of a pod, which is written and read like a socket."""

    def __init__(self, socket: WebSocket, what: str) -> None:
        self._socket = socket
        self._what = what
        self._new_channels = {_DATA, _ERROR}

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), _MESSAGE_BYTES):
            _send(self._socket, _DATA, data[start : start + _MESSAGE_BYTES])

    def finish(self) -> None:
        """Report the end of what is sent; the server answers by closing, too."""
        self._socket.finish()

    def close(self) -> None:
        """Close the connection, from any thread."""
        self._socket.close()

    def receive(self) -> bytes:
        """Return the next bytes that come, b"" when the other end has closed."""
        while message := _receive(self._socket):
            channel, data = message
            if channel in self._new_channels:  # the first message of each begins with the port
                self._new_channels.remove(channel)
                data = data[2:]
            if data and channel == _ERROR:
                raise BackendError(f"cannot connect to {self._what}", why=data.decode(errors="replace").strip())
            if data:
                return data
        return b""


@contextmanager
def connect_port(client: Client, pod: str, port: int) -> Iterator[Tunnel]:
    """Open a connection to a port of a pod."""
    what = f"port {port} of the pod {pod}"
    with _open_channel(client, pod, "portforward", {"ports": port}, [_V4], what) as socket:
        yield Tunnel(socket, what)


# -------------------------------------------------------------------------------------------------------- hosts of jobs

_STACKS_AT_ONCE = 8  # hosts that are asked side by side
_TRIES = 3
_INSPECT_SCRIPT = (
    f"import sys; sys.path.insert(0, {RUNNER_PATH!r}); import unpack; unpack.install(); "
    "from kinetic._runner.pod.inspect_process import main; main(sys.argv[1:])"
)
_INSPECT_COMMAND = ("python3", "-P", "-c", _INSPECT_SCRIPT)
_NO_POD = "it has no pod whose container runs"


def pods_of(client: Client, job_id: str) -> dict[int, str]:
    """Return the name of the newest pod of each host whose container runs."""
    found = client.list(POD, job_manifests.label_selector(job_id=job_id)).objects
    return {
        object_status.host_index(pod): object_status.object_name(pod)
        for pod in reversed(object_status.newest_first(found))
        if object_status.is_running(pod) and not pod["metadata"].get("deletionTimestamp")
    }


def pod_stacks(client: Client, job_id: str, hosts: Sequence[int]) -> list[Stacks]:
    """Ask the workers of some hosts for their stacks; see the protocol."""
    pods = pods_of(client, job_id)
    with ThreadPoolExecutor(_STACKS_AT_ONCE) as pool:
        return list(pool.map(lambda host: _stacks_of(client, pods.get(host, ""), host), hosts))


def _stacks_of(client: Client, pod: str, host: int) -> Stacks:
    if not pod:
        return Stacks(host, "", _NO_POD)
    for attempt in range(_TRIES):
        try:
            output = capture(client, pod, [*_INSPECT_COMMAND, "stacks"])
            break
        except AccessDeniedError:
            raise
        except BackendError as error:  # a connection that was cut, a server in trouble: asking twice is harmless
            if attempt == _TRIES - 1:
                return Stacks(host, "", ": ".join(filter(None, (error.what, error.why))))
            client.transport.pause(attempt)
    if output.code == 0:
        return Stacks(host, output.out.decode(errors="replace"))
    return Stacks(host, "", output.err.decode(errors="replace").strip() or f"the command exited with {output.code}")


def run_in_pod(
    client: Client, job_id: str, command: Sequence[str], *, host: int, tty: bool, environ: Mapping[str, str]
) -> int:
    """Run a command beside the worker of a host; see ``run_in`` of the protocol."""
    pod = pods_of(client, job_id).get(host)
    if pod is None:
        raise RunnerError("the job is not running", why=f"host {host}: {_NO_POD}", code="not-running")
    term = (environ.get("TERM") or "xterm") if tty else ""
    output = run_attached(client, pod, [*_INSPECT_COMMAND, "run", term, *command], tty=tty, mark=inspection.ERROR_MARK)
    error = inspection.read_error_line(output.err) if output.code == inspection.INSPECT_ERROR_EXIT else None
    if error is not None:
        raise error
    folders.write_all(1 if tty else 2, output.err)  # it was a command's own after all
    return output.code
