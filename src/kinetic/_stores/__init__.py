"""Bytes by key: the stores in which everything durable lies."""

from __future__ import annotations

from kinetic._stores.opening import open_store
from kinetic._stores.protocol import Entry, LocalStore, Source, Store, put_file, scratch_folder

__all__ = ["Entry", "LocalStore", "Source", "Store", "open_store", "put_file", "scratch_folder"]
