"""Talking to a human: lines on stderr, and nothing else; stdout is for what was asked for."""

from __future__ import annotations

from kinetic._output.progress import Progress, phase
from kinetic._output.terminal import alarm, clear, is_due, once, report, warn, warn_once

__all__ = ["Progress", "alarm", "clear", "is_due", "once", "phase", "report", "warn", "warn_once"]
