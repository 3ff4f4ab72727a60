"""The blocking call: submit, follow, collect; Ctrl-C lets go of the job and says how to find it again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic import _output as output
from kinetic._jobs import debugging, ground
from kinetic._wire import standard_library

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.options import Options


def submit(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str, options: Options
) -> JobHandle:
    """Submit a call: the place is told first, and gets ready while the rest of this client is still being imported.

    Raises:
        CallableError: The arguments do not fit the function's signature; nothing was submitted.
    """
    with standard_library.naming_what_hides():
        there = ground.prepare(options)
        from kinetic._jobs import referring, submitting  # 40 ms on first use, beside the keeper's own start
        from kinetic._packing.call import Call, check_arguments

    check_arguments(function, args, kwargs, name)
    kwargs = referring.with_defaults(function, args, kwargs)
    return submitting.submit(Call(function, args, kwargs, name), options, there)


def call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str, options: Options
) -> Any:
    """Run a call as a job and return its value.

    Raises:
        DebugError: It would wait for a debugger, and there is no terminal; nothing was submitted.
        KeyboardInterrupt: Ctrl-C; the job goes on, and the two commands to follow and to cancel it are printed. Where
            nobody catches it, Python prints its traceback below them, so its own words say the most important again.
        Exception: The function's own.
    """
    if options.debug:
        debugging.check_terminal(os.environ)
    try:
        handle = submit(function, args, kwargs, name, options)
    except KeyboardInterrupt:
        output.say("interrupted before the job was submitted; nothing runs")
        raise
    try:
        if options.debug:
            from kinetic._jobs import attaching  # with debug=True only

            return attaching.collect(handle)
        return handle.result(stream_logs=True)
    except KeyboardInterrupt:
        output.say(f"detached: {handle.job_id} goes on")
        output.say(f"follow:   kinetic jobs logs {handle.job_id} --follow")
        if options.debug:
            output.say(f"debug:    kinetic jobs debug {handle.job_id}")
        output.say(f"cancel:   kinetic jobs cancel {handle.job_id}")
        # From here: the frames of the waiting itself help nobody. And no class of our own: Python tells a shell that
        # Ctrl-C ended the program (130) only if it was exactly this one.
        words = f"{handle.job_id} goes on; cancel it with: kinetic jobs cancel {handle.job_id}"
        raise KeyboardInterrupt(words) from None
