"""Accelerators: what a name means, and what a cluster has to provide for it."""

from __future__ import annotations

from kinetic._hardware.catalog import GPUS, TPUS, GpuFamily, TpuFamily, TpuMachine
from kinetic._hardware.placement import HardwareName, Kind, Placement, Toleration, category, parse, place, slug

__all__ = [
    "GPUS",
    "TPUS",
    "GpuFamily",
    "HardwareName",
    "Kind",
    "Placement",
    "Toleration",
    "TpuFamily",
    "TpuMachine",
    "category",
    "parse",
    "place",
    "slug",
]
