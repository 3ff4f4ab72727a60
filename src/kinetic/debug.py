"""The debugger inside a job. It comes with a later release of kinetic; its one constant is settled already."""

from __future__ import annotations

__all__ = ["DEBUGPY_PORT"]

DEBUGPY_PORT = 5678  # debugpy's own default, inside the job
