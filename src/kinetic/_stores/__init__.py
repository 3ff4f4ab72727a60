"""Bytes by key: the stores in which everything durable lies."""

from __future__ import annotations

from kinetic._stores.opening import open_store
from kinetic._stores.protocol import Entry, Source, Store

__all__ = ["Entry", "Source", "Store", "open_store"]
