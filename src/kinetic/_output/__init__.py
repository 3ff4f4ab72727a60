"""Talking to a human: lines on stderr, and nothing else; stdout is for what was asked for."""

from __future__ import annotations

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
