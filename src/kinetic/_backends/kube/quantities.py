"""Amounts as Kubernetes writes them."""

from __future__ import annotations

_UNITS = (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024))


def bytes_quantity(size: int) -> str:
    """Write a number of bytes: "16Gi" where it is so many of a unit, else all the digits."""
    for unit, factor in _UNITS:
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def cores_quantity(cores: float) -> str:
    """Write a number of cores: "4", or thousandths of one as "500m"; never less than one thousandth."""
    thousandths = max(1, round(cores * 1000))
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"
