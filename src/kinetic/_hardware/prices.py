"""What accelerators cost per hour, in US dollars: from Google's price list if it was read lately, else from a table.

The table has list prices on demand in the cheapest US regions, as cluster autoscalers have them to compare machines;
read 2026-11. Chips of TPUs: Google's GKE cluster autoscaler; the machine is included. Machines with GPUs: the open
cluster autoscaler (kubernetes/autoscaler, cloudprovider/gce/gce_price_info.go); G2 and A2 include their GPUs, N1 does
not. Newer machines are in neither, and have a price only from Google's list. Spot varies, and is in the list only.

    rates.json    {"read_at": 1790000000.0,
                   "machines": {"g2-standard-4": [4, 16.0]},                 cores, GiB
                   "regions": {"us-central1": {"l4": [0.56, 0.17],           one GPU or chip; on demand, Spot
                                               "g2 core": [0.02, 0.01],
                                               "g2 ram": [0.003, null]}}}    one GiB
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from kinetic._hardware.placement import Placement
from kinetic._wire import NamedTuple

READ_ON = "2026-11"
FRESH_SECONDS = 24 * 3600.0  # Google's list changes at most daily
_CHIP_DOLLARS = {"v3": 1.20, "v4": 3.22, "v5litepod": 1.20, "v5e-device": 1.20, "v5p": 4.20, "v6e": 2.70}
_MACHINE_DOLLARS = {
    "g2-standard-4": 0.76,
    "g2-standard-24": 2.11,
    "g2-standard-48": 4.23,
    "g2-standard-96": 8.46,
    "a2-highgpu-1g": 3.673385,
    "a2-highgpu-2g": 7.34677,
    "a2-highgpu-4g": 14.69354,
    "a2-highgpu-8g": 29.38708,
    "a2-megagpu-16g": 55.739504,
    "a2-ultragpu-1g": 5.0688,
    "a2-ultragpu-2g": 10.1376,
    "a2-ultragpu-4g": 20.2752,
    "a2-ultragpu-8g": 40.5504,
    "n1-standard-4": 0.19,
    "n1-standard-8": 0.38,
    "n1-standard-16": 0.76,
    "n1-standard-32": 1.52,
    "n1-standard-64": 3.04,
}
_GPU_DOLLARS = {"t4": 0.35, "p4": 0.60, "v100": 2.48, "p100": 1.46}  # beside their N1 machine
_INCLUDED = ("g2-", "a2-")  # machines whose price in the table has their GPUs


class Price(NamedTuple):
    """What some hardware costs while a job holds it."""

    dollars_per_hour: float  # of all its hosts
    region: str  # where; "" for the table, which is of the cheapest US regions
    spot: bool  # whether it is the price of Spot; the table has none, so its prices are too high for Spot
    read_on: str  # a day, or the month of the table
    is_live: bool  # whether it was read in Google's price list

    @property
    def source(self) -> str:
        return f"Google's price list, {self.read_on}" if self.is_live else f"a table of {self.read_on}"


class Rates(NamedTuple):
    """What was read of Google's price list."""

    read_at: float  # when, in seconds since 1970
    machines: dict[str, tuple[float, float]]  # cores and GiB by machine type
    # by region and unit, the price on demand and that of Spot; None where the list has none
    regions: dict[str, dict[str, tuple[float | None, float | None]]]

    def price(self, wanted: Placement, region: str) -> Price | None:
        """Return the price of some hardware in a region; None where a part of it is not in the list."""
        known, spot = self.regions.get(region, {}), int(wanted.spot)
        parts = [(wanted.family, float(wanted.chips))]
        if wanted.kind == "gpu":
            shape = self.machines.get(str(wanted.machine_type))
            if shape is None:
                return None
            series = str(wanted.machine_type).partition("-")[0]
            parts += [(f"{series} core", shape[0] * wanted.hosts), (f"{series} ram", shape[1] * wanted.hosts)]
        dollars = 0.0
        for unit, amount in parts:
            rate = known.get(unit, (None, None))[spot]
            if rate is None:
                return None
            dollars += rate * amount
        return Price(dollars, region, wanted.spot, time.strftime("%Y-%m-%d", time.gmtime(self.read_at)), is_live=True)

    def cheapest(self, wanted: Placement) -> Price | None:
        """Return the price in the region where it is lowest; the first by name of several."""
        found = [price for region in sorted(self.regions) if (price := self.price(wanted, region)) is not None]
        return min(found, key=lambda each: each.dollars_per_hour, default=None)


def read_rates(file: Path, *, now: float | None = None) -> Rates | None:
    """Read what was kept of Google's price list; None where nothing was, or nothing lately."""
    try:
        page: Any = json.loads(file.read_bytes())
        rates = Rates(
            float(page["read_at"]),
            {name: (float(cores), float(size)) for name, (cores, size) in page["machines"].items()},
            {
                region: {unit: (_dollars(plain), _dollars(spot)) for unit, (plain, spot) in units.items()}
                for region, units in page["regions"].items()
            },
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # nothing, or written by something else
        return None
    age = (time.time() if now is None else now) - rates.read_at
    return rates if 0 <= age < FRESH_SECONDS else None


def _dollars(value: Any) -> float | None:
    return None if value is None else float(value)


def price_of(wanted: Placement, region: str = "", rates: Rates | None = None) -> Price | None:
    """Return what some hardware costs: by Google's list if it was read, else by the table; None if neither has it.

    Args:
        wanted: The hardware; that of a CPU job has no price of its own.
        region: Where; "" for where it is cheapest.
        rates: What was read of Google's list.
    """
    if wanted.kind == "cpu":
        return None
    if rates is not None:
        found = rates.price(wanted, region) if region else rates.cheapest(wanted)
        if found is not None:
            return found
    dollars = _table_dollars(wanted)
    return None if dollars is None else Price(dollars, "", spot=False, read_on=READ_ON, is_live=False)


def _table_dollars(wanted: Placement) -> float | None:
    if wanted.kind == "tpu":
        chip = chip_dollars(wanted.family)
        return None if chip is None else chip * wanted.chips
    node = node_dollars(str(wanted.machine_type), wanted.family, wanted.chips_per_host)
    return None if node is None else node * wanted.hosts


def dollars_per_hour(wanted: Placement) -> float | None:
    """Return the list price of some hardware in the table while a job holds it; None where the table has none."""
    price = price_of(wanted)
    return None if price is None else price.dollars_per_hour


def chip_dollars(family: str) -> float | None:
    """Return the list price of one TPU chip of a family for an hour; None where the table has none."""
    return _CHIP_DOLLARS.get(family)


def node_dollars(machine: str, family: str, gpus: int) -> float | None:
    """Return the table's price of a node by its machine type; None where the table has none."""
    base = _MACHINE_DOLLARS.get(machine)
    if base is None or machine.startswith(_INCLUDED) or not family:
        return base
    gpu = _GPU_DOLLARS.get(family)
    return None if gpu is None else base + gpu * gpus
