"""Debugging: the job waits for a debugger before its function begins, and stops on the first line of it.

debugpy's server listens on the loopback interface, behind a token (``debug_adapter``): whoever holds the job's key may
attach, and no other user who can reach the port. It says where it is and whether it waits in a page beside the log, and
of a pod in the store as well, where a client finds it. On a slice every host has a server; whichever gets a debugger
first sets all of them going, for the others would wait for it in their first computation anyway.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any

from kinetic._runner import debug_adapter
from kinetic._stores.protocol import Store
from kinetic._wire import debug, keys
from kinetic._wire.debug import DebugPage
from kinetic._wire.order import Order
from kinetic._wire.task import Task
from kinetic.errors import KineticError, RunnerError

_DEBUGPY = "debugpy"  # imported by name, for few environments have it
_LOOK_SECONDS = 0.2  # between two looks whether a debugger came or went
_PEERS_SECONDS = 2.0  # between two questions to the store whether one came to another host
_BREAKPOINT = "PYTHONBREAKPOINT"
_NO_CHECKS = "PYDEVD_DISABLE_FILE_VALIDATION"  # else it writes into the log that the interpreter's modules are frozen


def wait(task: Task, order: Order, store: Store, function: Callable[..., Any]) -> None:
    """Start the debug server, wait for a debugger, and arrange that the function stops on its first line.

    Returns when a debugger is attached, when one is attached to another host, or when the time is over. Whoever
    attaches later finds the server where it was.

    Args:
        task: This host's work.
        order: Says how long to wait.
        store: Where the hosts of a slice, and clients of a pod, see how it stands.
        function: The user's.

    Raises:
        RunnerError: There is no debugpy and it cannot be installed, or its server does not start.
    """
    _require(task)
    os.environ[_BREAKPOINT] = "debugpy.breakpoint"  # which does nothing while nobody is attached
    token = os.environ.pop(debug.TOKEN_VARIABLE, "")
    port = _listen(task.is_in_a_pod, token)
    seconds = order.debug or 0.0
    roots = ((str(order.plan["root"]), str(task.folder)),) if order.tree and order.plan.get("root") else ()
    pod = os.uname().nodename if task.is_in_a_pod else ""
    page = DebugPage(port, until=time.time() + seconds, pid=os.getpid(), roots=roots, pod=pod)
    watch = _Watch(task, store, page, debug.page_key(token))
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


def stop_in(code: CodeType | None) -> None:
    """Have the debugger stop this thread when it first enters some code; None does nothing."""
    if code is None:
        return
    if sys.version_info >= (3, 12):
        _stop_by_monitoring(code)
    else:
        _stop_by_profiling(code)


class _Watch:
    """Whether a debugger is there: told to whoever asks by a thread of its own, which no debugger stops.

    Args:
        task: This host's work.
        store: Where others see it.
        page: What is told first.
        key: Seals what is told in the store.
    """

    def __init__(self, task: Task, store: Store, page: DebugPage, key: bytes) -> None:
        self._task, self._store, self._page, self._key = task, store, page, key
        self._begun = debug.mark_begun(task.job_id, task.attempt, key)
        self._debugpy: Any = import_module(_DEBUGPY)
        self._is_told = False
        self._waits = True
        self._limit = time.monotonic() + max(0.0, page.until - time.time())
        self._asked = 0.0
        self.released = False
        thread = threading.Thread(target=self._mind, name="kinetic-debugger", daemon=True)
        thread.pydev_do_not_trace = thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined] # debugpy's marks
        self._tell(page)
        thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for a debugger, and say whether one is attached."""
        if seconds > 0:
            self._debugpy.wait_for_client()  # until one is attached and has set its breakpoints, or ``_mind`` ends it
        self._waits = False
        attached = bool(self._debugpy.is_client_connected())
        if attached and self._task.hosts > 1:
            with contextlib.suppress(KineticError, OSError):
                self._store.put(self._begun, b"", if_absent=True)
        self._look()
        return attached

    def _mind(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            if self._waits and (time.monotonic() >= self._limit or self._is_released()):
                with contextlib.suppress(RuntimeError):  # it does not wait yet: next time
                    self._debugpy.wait_for_client.cancel()
            self._look()

    def _is_released(self) -> bool:
        """Say whether a debugger came to another host of the slice."""
        now = time.monotonic()
        if self._task.hosts > 1 and now - self._asked > _PEERS_SECONDS:
            self._asked = now
            with contextlib.suppress(KineticError, OSError):
                self.released = self._store.size(self._begun) is not None
        return self.released

    def _look(self) -> None:
        waiting = debug.WAITING if self._waits else debug.OVER
        state = debug.ATTACHED if self._debugpy.is_client_connected() else waiting
        if state != self._page.state or not self._is_told:
            self._tell(replace(self._page, state=state))

    def _tell(self, page: DebugPage) -> None:
        """Write the page; what cannot be written now is tried again at the next look."""
        self._page, self._is_told = page, False
        with contextlib.suppress(KineticError, OSError):
            beside = self._task.debug_page.with_suffix(".part")
            beside.write_bytes(page.to_bytes())
            beside.replace(self._task.debug_page)
            if self._task.is_in_a_pod:
                where = keys.debug(self._task.job_id, self._task.attempt, self._task.host)
                self._store.put(where, page.sealed(where, self._key))
            self._is_told = True


def _require(task: Task) -> None:
    """Make debugpy importable: where the environment lacks it, it is installed into a folder of this job's own."""
    if find_spec(_DEBUGPY) is not None:
        return
    from kinetic._runner.pod import requiring

    beside = task.folder.with_name(f"{task.folder.name}.debugger")  # this host's own; swept with the working folder
    try:
        requiring.install_beside(beside, task.folder.parent, _DEBUGPY)
    except (RunnerError, OSError) as error:
        raise RunnerError(
            "there is no debugpy in this job, and it could not be installed",
            why=getattr(error, "why", None) or str(error),
            next='add "debugpy" to the dependencies of the project, or to the image',
            code="no-debugger",
        ) from error


def _listen(in_a_pod: bool, token: str) -> int:
    """Start the server and return its port: in a pod the one that people expect, unless somebody else there has it."""
    os.environ[_NO_CHECKS] = "1"  # for the processes that the function starts, too
    if not token:
        raise RunnerError(
            "the debug server of this job does not start", why="no token came with the job", code="no-debugger"
        )
    try:
        if in_a_pod:
            with contextlib.suppress(RuntimeError):  # another container, or a machine whose network the pod shares
                return debug_adapter.listen(debug.PORT, token)
        return debug_adapter.listen(0, token)
    except (RuntimeError, OSError, ImportError, ValueError, AttributeError) as error:
        raise RunnerError(
            "the debug server of this job does not start",
            why=f"{type(error).__name__}: {error}",
            next="submit the job again; without debug=True it needs no server",
            code="no-debugger",
        ) from error


def _say(words: str) -> None:
    sys.stderr.write(f"kinetic: {words}\n")
    sys.stderr.flush()


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


_LAYERS = ("__wrapped__", "func", "__func__")


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
