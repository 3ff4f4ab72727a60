"""A call that becomes a job: submitted, or waited for as well."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._config import target as settings
from kinetic._jobs import submit_context
from kinetic._output import signal_handlers
from kinetic._output import terminal as output
from kinetic._output.signal_handlers import HandlerWatch
from kinetic._wire import loading
from kinetic.errors import DebugError

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.job_options import Options

_NO_TERMINAL = "KINETIC_NO_TTY_DEBUG"


def submit_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str, options: Options
) -> JobHandle:
    """Submit a call: the backend prepares while the rest of this client is still being imported."""
    with HandlerWatch(sys._getframe()) as watch:  # noqa: SLF001 - what this calls
        try:
            with loading():
                context = submit_context.prepare(options, may_be_warm=True)
                from kinetic._jobs import submit  # 60 ms with the pickler on first use, beside the supervisor's start

                handle = submit.submit_function(function, args, kwargs, name, options, context)
        except KeyboardInterrupt:
            raise submit_context.interrupted() from None
        if watch.error is not None:  # which our code passed over
            from kinetic._jobs.wait import detaching

            with detaching(handle):
                signal_handlers.check()
        return handle


def call_and_wait(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str, options: Options
) -> Any:
    """Run a call as a job, and return its value or raise the function's own exception."""
    is_expected = settings.read_variable(_NO_TERMINAL, os.environ) == "1"
    if options.debug and not is_expected and not (sys.stdin is not None and sys.stdin.isatty()):
        raise DebugError(
            "a blocking call with debug=True needs a terminal; nothing was submitted",
            why="it waits until a debugger is attached, and standard input is not a terminal",
            next=f"set {_NO_TERMINAL}=1 if a debugger will be attached; or use run_async, and then: "
            "kinetic jobs debug JOB_ID",
            code="no-terminal",
        )
    handle = submit_call(function, args, kwargs, name, options)
    output.report(f"follow the job with: kinetic jobs logs {handle.job_id} --follow")
    if not options.debug:
        return handle.result(stream_logs=True)
    from kinetic._inspect import debugger  # with debug=True only
    from kinetic._jobs.wait import detaching

    with detaching(handle), debugger.DebugTunnel(handle):
        return handle.result(stream_logs=True)
