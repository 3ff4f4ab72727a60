"""Accelerators: what a name means, and what a cluster has to provide for it."""

from __future__ import annotations

from kinetic._hardware.accelerator_names import HardwareName, Kind, category, parse, slug
from kinetic._hardware.catalog import GPUS, TPUS
from kinetic._hardware.families import GpuFamily, TpuFamily, TpuMachine
from kinetic._hardware.placement import Placement, Toleration, place

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
