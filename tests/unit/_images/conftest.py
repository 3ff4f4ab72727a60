"""A real registry, where Go is there to build it, an index of wheels, and an image to build on."""

from __future__ import annotations

from servers.image_fixtures import base, cache, index, lock_of, registry, registry_address, wheel

__all__ = ["base", "cache", "index", "lock_of", "registry", "registry_address", "wheel"]
