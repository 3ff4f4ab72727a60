"""Messages for people on standard error; standard output is for what was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetic._output.terminal import (
        Progress,
        clear,
        is_notice_due,
        phase,
        report,
        report_error,
        report_once,
        warn,
        warn_once,
    )

__all__ = ["Progress", "clear", "is_notice_due", "phase", "report", "report_error", "report_once", "warn", "warn_once"]


def __getattr__(name: str) -> object:
    """Import the terminal on first use: a decorator needs only ``tracebacks``."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kinetic._output import terminal

    found = globals()[name] = vars(terminal)[name]
    return found
