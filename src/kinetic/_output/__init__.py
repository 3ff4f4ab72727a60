"""Messages for people on standard error; standard output is for what was asked for."""

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
