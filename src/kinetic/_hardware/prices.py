"""What accelerators cost per hour, as a dated table: list prices on demand, in US dollars, of the cheapest US regions.

Read in Google's GKE cluster autoscaler, which has them to compare machines; 2026-11. Spot varies, and is cheaper. A
machine of a TPU is included in the price of its chips. GPUs are not in it: they are sold as whole machines.
"""

from __future__ import annotations

from kinetic._hardware.placement import Placement

READ_ON = "2026-11"
_CHIP_DOLLARS = {"v3": 1.20, "v4": 3.22, "v5litepod": 1.20, "v5e-device": 1.20, "v5p": 4.20, "v6e": 2.70}


def dollars_per_hour(wanted: Placement) -> float | None:
    """Return the list price of some hardware while a job holds it; None where the table has none."""
    price = chip_dollars(wanted.family)
    return None if price is None else price * wanted.chips


def chip_dollars(family: str) -> float | None:
    """Return the list price of one chip of a family for an hour; None where the table has none."""
    return _CHIP_DOLLARS.get(family)
