"""The debug server of a job: debugpy, behind a token; and code that came by value moves to its file in the job.

A debugger looks for breakpoints by file. Functions of a script travel by value, with the client's path in them, and
their file is in the job as well: so code is given that path, and one mapping of folders holds for everything.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from kinetic._stores.protocol import Store
from kinetic._wire import inspection, keys
from kinetic._wire.inspection import DebugPage
from kinetic._wire.order import Order
from kinetic._wire.task import Task
from kinetic.errors import KineticError, RunnerError

_MAKER = ("cloudpickle.cloudpickle", "_make_function")  # how it makes each function that came by value
_DEBUGPY = "debugpy"  # imported by name, for few environments have it
_CLIENT = "Client"  # debugpy's own name for connections of editors
_LAYERS = ("__wrapped__", "func", "__func__")  # where partials, methods and decorators keep what they wrap
_BREAKPOINT = "PYTHONBREAKPOINT"
_NO_CHECKS = "PYDEVD_DISABLE_FILE_VALIDATION"  # else it writes into the log that the interpreter's modules are frozen
_TOKEN_SECONDS = 10.0  # our relay sends the token at once
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.2  # between two checks whether a debugger came or went
_PEERS_SECONDS = 2.0  # between two requests to the store whether one came to another host
_START = f"""# the debug adapter of a job, with debugpy
import json, sys
page = json.load(sys.stdin)
sys.path[:] = page["path"]
from {__name__} import main
main(page)
"""


# -------------------------------------------------------------------------------------------------- breakpoints by file


def relocating_unpickler(plan: Mapping[str, Any], folder: Path) -> Callable[[bytes], Any] | None:
    """Return what opens a pickle and moves its code from the client's project to this folder; None if none shipped."""
    root = str(plan.get("root") or "").rstrip("/")
    if not root:
        return None
    return lambda data: _RelocatingUnpickler(data, root, str(folder)).load()


class _RelocatingUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, root: str, folder: str) -> None:
        super().__init__(io.BytesIO(data))
        self._root, self._folder = root, folder

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        found = super().find_class(module_name, global_name)
        if (module_name, global_name) != _MAKER:
            return found

        def make(code: object, *rest: Any) -> Any:
            return found(self._moved(code) if isinstance(code, CodeType) else code, *rest)

        return make

    def _moved(self, code: CodeType) -> CodeType:
        constants = tuple(self._moved(each) if isinstance(each, CodeType) else each for each in code.co_consts)
        inside = code.co_filename.removeprefix(self._root + "/")
        here = os.path.join(self._folder, inside)
        file = here if inside != code.co_filename and os.path.isfile(here) else code.co_filename
        return code.replace(co_filename=file, co_consts=constants)


# ---------------------------------------------------------------------------------------------------------- the adapter


def listen(port: int, token: str) -> int:
    """Start the adapter, connect this process to it, and return the port that clients use.

    ``port``: where clients connect on 127.0.0.1, 0 for a free one. A client must send the token first, and a line feed.
    Raises RuntimeError if the port is in use or the adapter did not start.
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

    def report(answer: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(answer))
        sys.stdout.flush()

    if os.fork() != 0:
        return  # the worker reaps this process at once; the report comes from the other one
    os.setsid()
    try:
        adapter: Any = import_module("debugpy.adapter")
        clients: Any = import_module("debugpy.adapter.clients")
        servers: Any = import_module("debugpy.adapter.servers")
        sessions: Any = import_module("debugpy.adapter.sessions")
        sockets: Any = import_module("debugpy.common.sockets")
        adapter.access_token, servers.access_token = page["worker"], page["adapter"]
        sockets.serve = _guarded(sockets.serve, page["token"].encode())
        found = {"client": clients.serve("127.0.0.1", page["port"])[1], "server": servers.serve("127.0.0.1")[1]}
        report(found)
    except Exception as error:  # noqa: BLE001 - the worker reports it; this process has no log
        report({"error": f"{type(error).__name__}: {error}"})
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    servers.wait_until_disconnected()
    sessions.wait_until_ended()


def _guarded(serve: Callable[..., Any], token: bytes) -> Callable[..., Any]:
    """Return debugpy's function that listens, with a check before what it does with a connection."""

    def guarded(name: str, handler: Callable[[socket.socket], Any], *args: Any, **options: Any) -> Any:
        one_at_a_time = threading.Lock()  # as it is without us

        def admit(connection: socket.socket) -> None:
            if _has_token(connection, token) if name == _CLIENT else inspection.is_own_peer(connection):
                with one_at_a_time:
                    handler(connection)
            else:
                connection.close()

        def on_connection(connection: socket.socket) -> None:  # one that stays silent delays no other
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else 40 ms for every second message
            threading.Thread(target=admit, args=(connection,), daemon=True).start()

        return serve(name, on_connection, *args, **options)

    return guarded


def _has_token(connection: socket.socket, token: bytes) -> bool:
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


# -------------------------------------------------------------------------------------------------- wait for a debugger


def wait(task: Task, order: Order, store: Store, function: Callable[..., Any]) -> None:
    """Start the debug server, wait for a debugger, and arrange that the user's function stops on its first line.

    Returns when a debugger is attached, when one is attached to another host, or when the time is over. The server
    stays for one that comes later. Raises RunnerError if debugpy cannot be installed or its server does not start.
    """
    _require(task)
    os.environ[_BREAKPOINT] = "debugpy.breakpoint"  # which does nothing while no debugger is attached
    token = os.environ.pop(inspection.TOKEN_VARIABLE, "")
    port = _listen(task.is_in_a_pod, token)
    seconds = order.debug or 0.0
    copies = {"": order.plan.get("root"), **order.plan.get("beside", {})} if order.manifest else {}
    roots = tuple((str(there), f"{task.folder}/{name}".rstrip("/")) for name, there in copies.items() if there)
    pod = os.uname().nodename if task.is_in_a_pod else ""
    page = DebugPage(port, until=time.time() + seconds, pid=os.getpid(), roots=roots, pod=pod)
    watch = _Watch(task, store, page, inspection.page_key(token))
    until = time.strftime("%H:%M:%S UTC", time.gmtime(page.until))
    which = f" --host {task.host}" if task.host else ""
    _say(f"waits for a debugger until {until} ({seconds:g} s); attach one: kinetic jobs debug {task.job_id}{which}")
    if watch.wait(seconds):
        _say("a debugger is attached")
        stop_in(_code_of(function))
    elif watch.released:
        _say(f"a debugger is attached to another host; {order.function_name} begins here without one")
    else:
        _say(f"no debugger came within {seconds:g} s; {order.function_name} begins without one, and one may still come")


def _say(words: str) -> None:
    sys.stderr.write(f"kinetic: {words}\n")
    sys.stderr.flush()


class _Watch:
    """Tells clients whether a debugger is there, from a thread of its own, which no debugger stops."""

    def __init__(self, task: Task, store: Store, page: DebugPage, key: bytes) -> None:
        self._task, self._store, self._page, self._key = task, store, page, key
        self._begun = inspection.mark_begun(task.job_id, task.attempt, key)
        self._debugpy: Any = import_module(_DEBUGPY)
        self._is_published = False
        self._waits = True
        self._limit = time.monotonic() + max(0.0, page.until - time.time())
        self._asked = 0.0
        self.released = False  # a debugger came to another host of the slice
        thread = threading.Thread(target=self._run, name="kinetic-debugger", daemon=True)
        thread.pydev_do_not_trace = thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined] # debugpy's marks
        self._publish(page)
        thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for a debugger, and return whether one is attached."""
        if seconds > 0:
            self._debugpy.wait_for_client()  # until one is attached and has set its breakpoints, or ``_run`` ends it
        self._waits = False
        attached = bool(self._debugpy.is_client_connected())
        if attached and self._task.hosts > 1:
            with contextlib.suppress(KineticError, OSError):
                self._store.put(self._begun, b"", if_absent=True)
        self._check()
        return attached

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            if self._waits and (time.monotonic() >= self._limit or self._is_released()):
                with contextlib.suppress(RuntimeError):  # it does not wait yet: next time
                    self._debugpy.wait_for_client.cancel()
            self._check()

    def _is_released(self) -> bool:
        now = time.monotonic()
        if self._task.hosts > 1 and now - self._asked > _PEERS_SECONDS:
            self._asked = now
            with contextlib.suppress(KineticError, OSError):
                self.released = self._store.size(self._begun) is not None
        return self.released

    def _check(self) -> None:
        waiting = inspection.WAITING if self._waits else inspection.OVER
        state = inspection.ATTACHED if self._debugpy.is_client_connected() else waiting
        if state != self._page.state or not self._is_published:
            self._publish(replace(self._page, state=state))

    def _publish(self, page: DebugPage) -> None:
        """Write the page; what cannot be written now is tried again at the next check."""
        self._page, self._is_published = page, False
        with contextlib.suppress(KineticError, OSError):
            beside = self._task.debug_page.with_suffix(".part")
            beside.write_bytes(page.to_bytes())
            beside.replace(self._task.debug_page)
            if self._task.is_in_a_pod:
                where = keys.debug(self._task.job_id, self._task.attempt, self._task.host)
                self._store.put(where, page.sealed(where, self._key))
            self._is_published = True


def _require(task: Task) -> None:
    """Make debugpy importable: where the environment lacks it, it is installed into a folder of this job's own."""
    if find_spec(_DEBUGPY) is not None:
        return
    from kinetic._runner.pod import install

    beside = task.folder.with_name(f"{task.folder.name}.debugger")  # this host's own; swept with the working folder
    try:
        install.install_beside(beside, task.folder.parent, _DEBUGPY)
    except (RunnerError, OSError) as error:
        raise RunnerError(
            "there is no debugpy in this job, and it could not be installed",
            why=getattr(error, "why", None) or str(error),
            next='add "debugpy" to the dependencies of the project, or to the image',
            code="no-debugger",
        ) from error


def _listen(in_a_pod: bool, token: str) -> int:
    """Start the server and return its port: in a pod the well-known one, unless another process there has it.

    That may be another container, or another pod where both share the network of their machine.
    """
    os.environ[_NO_CHECKS] = "1"  # for the processes that the function starts, too
    what = "the debug server of this job does not start"
    if not token:
        raise RunnerError(what, why="no token came with the job", code="no-debugger")
    try:
        if in_a_pod and _is_free(inspection.PORT):  # else debugpy would write a traceback to the job's log
            with contextlib.suppress(RuntimeError):  # somebody else was faster
                return listen(inspection.PORT, token)
        return listen(0, token)
    except (RuntimeError, OSError, ImportError, ValueError, AttributeError) as error:
        raise RunnerError(
            what,
            why=f"{type(error).__name__}: {error}",
            next="submit the job again; without debug=True it needs no server",
            code="no-debugger",
        ) from error


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# ------------------------------------------------------------------------------------------------ stop in the function


def _code_of(function: Any) -> CodeType | None:
    """Return the code that the user wrote: below partials, methods and decorators; None for what has none."""
    for _ in range(100):
        inner = next((found for name in _LAYERS if (found := getattr(function, name, None)) is not None), None)
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    if code is None:
        method = getattr(function, "__init__", None) if isinstance(function, type) else type(function).__call__
        code = getattr(method, "__code__", None)
    return code if isinstance(code, CodeType) else None


def stop_in(code: CodeType | None) -> None:
    """Make the debugger stop this thread when it first enters some code; None does nothing."""
    if code is not None:
        (_stop_by_monitoring if sys.version_info >= (3, 12) else _stop_by_profiling)(code)


def _stop(frame: FrameType) -> None:
    """Stop at the next line of a frame, as ``debugpy.breakpoint`` does for the frame that calls it."""
    pydevd: Any = import_module("pydevd")  # debugpy brings it along, and puts it on the path
    pydevd.settrace(suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=frame)


def _stop_by_profiling(code: CodeType) -> None:
    def begun(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code:
            sys.setprofile(None)
            _stop(frame)

    sys.setprofile(begun)


def _stop_by_monitoring(code: CodeType) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore] # from Python 3.12 on
    start = monitoring.events.PY_START
    tool = next((number for number in range(6) if monitoring.get_tool(number) is None), None)
    if tool is None:
        return  # others took all there are; breakpoints work without it
    monitoring.use_tool_id(tool, "kinetic")

    def begun(*_: object) -> None:
        monitoring.set_local_events(tool, code, 0)
        monitoring.register_callback(tool, start, None)
        monitoring.free_tool_id(tool)
        _stop(sys._getframe(1))  # noqa: SLF001 - the only way to the frame that is entered

    monitoring.register_callback(tool, start, begun)
    monitoring.set_local_events(tool, code, start)
