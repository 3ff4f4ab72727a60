"""The blocking call: submit, follow, collect; Ctrl-C detaches from the job and says how to find it again.

It stays apart from submit, so that a supervisor can start while submit and the pickler are still being imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic import _config as settings
from kinetic import _output as output
from kinetic._jobs import submit_context
from kinetic._output import tracebacks
from kinetic._wire import naming_shadowing_files
from kinetic.errors import DebugError

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.options import Options

_NO_TERMINAL = "KINETIC_NO_TTY_DEBUG"


def submit_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str, options: Options
) -> JobHandle:
    """Submit a call: the backend prepares while the rest of this client is still being imported.

    Raises:
        CallableError: The arguments do not fit the function's signature; nothing was submitted.
    """
    with naming_shadowing_files():
        context = submit_context.prepare(options)
        from kinetic._jobs import data_refs, submit  # 40 ms on first use, beside the supervisor's own start
        from kinetic._project.pickler import Call, check_arguments

    check_arguments(function, args, kwargs, name)
    kwargs = data_refs.with_defaults(function, args, kwargs)
    return submit.submit(Call(function, args, kwargs, name), options, context)


def call_and_wait(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str, options: Options
) -> Any:
    """Run a call as a job, and return its value or raise the function's own exception.

    Raises:
        DebugError: It would wait for a debugger, and there is no terminal; nothing was submitted.
        KeyboardInterrupt: Ctrl-C; the job keeps running, and the commands to follow and to cancel it are printed. Where
            it is not caught, nothing is printed below them, and the program ends as Ctrl-C ends programs (130).
    """
    is_expected = settings.read_variable(_NO_TERMINAL, os.environ) == "1"
    if options.debug and not is_expected and not (sys.stdin is not None and sys.stdin.isatty()):
        raise DebugError(
            "a blocking call with debug=True needs a terminal; nothing was submitted",
            why="it waits until a debugger is attached, and standard input is not a terminal",
            next=f"set {_NO_TERMINAL}=1 if a debugger will be attached; or use run_async, and then: "
            "kinetic jobs debug JOB_ID",
            code="no-terminal",
        )
    try:
        handle = submit_call(function, args, kwargs, name, options)
    except KeyboardInterrupt:
        message = "interrupted; no job was submitted"
        output.report(message)
        raise tracebacks.interrupt(message) from None
    output.report(f"follow the job with: kinetic jobs logs {handle.job_id} --follow")
    if not options.debug:
        return handle.result(stream_logs=True)
    from kinetic._inspect import debugger  # with debug=True only
    from kinetic._jobs.wait import detaching

    with detaching(handle), debugger.DebugTunnel(handle):
        return handle.result(stream_logs=True)
