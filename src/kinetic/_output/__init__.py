"""Talking to a human: lines on stderr, and nothing else; stdout is for what was asked for."""

from __future__ import annotations

from kinetic._output.lines import alarm, is_due, once, say, warn, warn_once
from kinetic._output.live import clear
from kinetic._output.progress import Progress, phase

__all__ = ["Progress", "alarm", "clear", "is_due", "once", "phase", "say", "warn", "warn_once"]
