"""The blocking call: submit, follow, collect; Ctrl-C detaches from the job and says how to find it again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic import _output as output
from kinetic._jobs import submit_context
from kinetic._output import tracebacks
from kinetic._wire import standard_library

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.options import Options


def submit_and_wait(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str, options: Options
) -> JobHandle:
    """Submit a call: the place is told first, and gets ready while the rest of this client is still being imported.

    Raises:
        CallableError: The arguments do not fit the function's signature; nothing was submitted.
    """
    with standard_library.naming_what_hides():
        there = submit_context.prepare(options)
        from kinetic._jobs import data_refs  # 40 ms on first use, beside the keeper's own start
        from kinetic._jobs import submit as job_submit
        from kinetic._project.pickler import Call, check_arguments

    check_arguments(function, args, kwargs, name)
    kwargs = data_refs.with_defaults(function, args, kwargs)
    return job_submit.submit(Call(function, args, kwargs, name), options, there)


def call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str, options: Options
) -> Any:
    """Run a call as a job and return its value.

    Raises:
        DebugError: It would wait for a debugger, and there is no terminal; nothing was submitted.
        KeyboardInterrupt: Ctrl-C; the job keeps running, and the commands to follow and to cancel it are printed.
            Where nobody catches it, nothing is printed below them, and the program ends as Ctrl-C ends programs (130).
        Exception: The function's own.
    """
    if options.debug:
        submit_context.check_terminal(os.environ)
    try:
        handle = submit_and_wait(function, args, kwargs, name, options)
    except KeyboardInterrupt:
        words = "interrupted; no job was submitted"
        output.report(words)
        raise tracebacks.interrupt(words) from None
    output.report(f"follow the job with: kinetic jobs logs {handle.job_id} --follow")
    if not options.debug:
        return handle.result(stream_logs=True)
    from kinetic._inspect import debugger  # with debug=True only
    from kinetic._jobs.wait import detaching

    with detaching(handle), debugger.DebugTunnel(handle):
        return handle.result(stream_logs=True)
