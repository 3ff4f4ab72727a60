"""What ``debug=True`` asks of a submission: everything that could go wrong later is refused before it."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic import _settings as settings
from kinetic._wire import debug
from kinetic.errors import DebugError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic._jobs.options import Options
    from kinetic._jobs.submit_context import SubmitContext

_TIMEOUT = "KINETIC_DEBUG_WAIT_TIMEOUT"
_NO_TERMINAL = "KINETIC_NO_TTY_DEBUG"


def seconds(options: Options, environ: Mapping[str, str]) -> float | None:
    """Return how long a job waits for a debugger, or None for one that does not.

    Raises:
        OptionError: KINETIC_DEBUG_WAIT_TIMEOUT is not a number of seconds.
    """
    if not options.debug:
        return None
    setting = settings.read(_TIMEOUT, environ)
    try:
        found = float(setting) if setting is not None else debug.WAIT_SECONDS
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise OptionError(
            f"{_TIMEOUT}={setting!r} is not a number of seconds",
            next=f"give it seconds, e.g. 3600, 0 not to wait at all, or leave it out for {debug.WAIT_SECONDS:g}",
        )
    return found


def check(options: Options, context: SubmitContext, interpreter: str) -> None:
    """Refuse a job on this machine whose environment has no debugger; other environments get one when the job begins.

    What does not hold with a debugger is said.

    Args:
        options: How it is to run.
        context: Where it goes.
        interpreter: The Python of an isolated environment, or "" for this one.

    Raises:
        DebugError: debugpy is not installed here.
        OptionError: KINETIC_DEBUG_WAIT_TIMEOUT is not a number of seconds.
    """
    seconds(options, context.backend.environ)
    if options.debug and context.backend.is_here and not interpreter and importlib.util.find_spec("debugpy") is None:
        raise DebugError(
            "debug=True needs debugpy, which is not installed here",
            why="the job would run in this environment",
            next='pip install "kinetic-jobs[debug]"',
            code="extra-missing",
        )
    if options.debug and options.deadline is not None:
        output.say(f"the deadline of {options.deadline:g} s does not hold with debug=True")


def check_terminal(environ: Mapping[str, str]) -> None:
    """Refuse a blocking call that would wait for a human where there is none.

    Raises:
        DebugError: Standard input is no terminal, and KINETIC_NO_TTY_DEBUG does not say that this is meant.
    """
    stdin = sys.stdin
    if settings.read(_NO_TERMINAL, environ) == "1" or (stdin is not None and stdin.isatty()):
        return
    raise DebugError(
        "a blocking call with debug=True needs a terminal; nothing was submitted",
        why="it waits until somebody attaches a debugger, and standard input is no terminal",
        next=f"set {_NO_TERMINAL}=1 if somebody will attach; or use run_async, and then: kinetic jobs debug JOB_ID",
        code="no-terminal",
    )


def refuse_batches(options: Options) -> None:
    """Refuse to debug all inputs of a batch at once.

    Raises:
        OptionError: debug=True.
    """
    if options.debug:
        raise OptionError(
            "a batch cannot be submitted with debug=True",
            why="each of its jobs would wait for a debugger of its own",
            next="debug one input: run_async(input); and leave the batch .with_options(debug=False)",
        )
