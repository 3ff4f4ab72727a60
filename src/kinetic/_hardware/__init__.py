"""Accelerators: what a name means, and what a cluster must provide for it."""

from __future__ import annotations

from kinetic._hardware.catalog import GPUS, TPUS, GpuFamily, TpuFamily
from kinetic._hardware.placement import Placement, parse, place, slug

__all__ = ["GPUS", "TPUS", "GpuFamily", "Placement", "TpuFamily", "parse", "place", "slug"]
