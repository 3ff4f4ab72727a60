"""Spans of time on the command line: ``30``, ``10m``, ``12h``, ``7d``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kinetic._wire.numbers import UNITS, seconds_of

if TYPE_CHECKING:
    _Type = click.ParamType[float]
else:
    _Type = click.ParamType  # not generic before click 8.3


class Duration(_Type):
    """A span of time, in seconds.

    Args:
        bare: A number without a unit means seconds; otherwise it is refused, since it could mean anything.
    """

    name = "duration"

    def __init__(self, *, bare: bool = False) -> None:
        self._bare = bare

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, int | float):
            return float(value)
        found = seconds_of(str(value))
        if found is None or not (found[1] or self._bare):
            seconds = "seconds, or " if self._bare else ""
            self.fail(
                f"{value!r} is not a valid duration: use {seconds}a number and s, m, h, d or w, such as 7d", param, ctx
            )
        return found[0]


def written(seconds: float) -> str:
    """Write a span as it can be typed again, in the largest unit that keeps it whole."""
    for unit in ("w", "d", "h", "m"):
        if seconds >= UNITS[unit] and seconds % UNITS[unit] == 0 and unit != "w":
            return f"{seconds / UNITS[unit]:.0f}{unit}"
    return f"{seconds:g}s"
