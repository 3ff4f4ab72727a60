"""How data arrives in a job: fetched, verified, kept for the next job, and given to this one alone."""

from __future__ import annotations

from kinetic._runner.data.provision import fill, place, provide

__all__ = ["fill", "place", "provide"]
