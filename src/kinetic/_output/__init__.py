"""Talking to a human: lines on stderr, and nothing else; stdout is for what was asked for."""

from __future__ import annotations

from kinetic._output.lines import once, say, warn

__all__ = ["once", "say", "warn"]
