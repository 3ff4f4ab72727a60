"""The blocking call: submit, follow, collect; Ctrl-C lets go of the job and says how to find it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetic import _output as output
from kinetic._jobs import submitting

if TYPE_CHECKING:
    from kinetic._jobs.options import Options
    from kinetic._packing.call import Call


def call(what: Call, options: Options) -> Any:
    """Run a call as a job and return its value.

    Raises:
        KeyboardInterrupt: Ctrl-C; the job goes on, and the two commands to follow and to cancel it are printed.
        Exception: The function's own.
    """
    try:
        handle = submitting.submit(what, options)
    except KeyboardInterrupt:
        output.say("interrupted before the job was submitted; nothing runs")
        raise
    try:
        return handle.result(stream_logs=True)
    except KeyboardInterrupt:
        output.say(f"detached: {handle.job_id} goes on")
        output.say(f"follow:   kinetic jobs logs {handle.job_id} --follow")
        output.say(f"cancel:   kinetic jobs cancel {handle.job_id}")
        raise KeyboardInterrupt from None  # from here: the frames of the waiting itself help nobody
