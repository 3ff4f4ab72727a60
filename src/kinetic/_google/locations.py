"""Names of Google's places: regions, their zones, and the AI zones beside them."""

from __future__ import annotations

import re


def region_of(location: str) -> str:
    """Return the region of a zone, or of a region: itself."""
    return re.sub(r"-(ai[0-9]+)?[a-z]$", "", location)


def parent_zone(zone: str) -> str:
    """Return the zone itself, or that which an AI zone belongs to: "us-south1-b" for "us-south1-ai1b".

    AI zones have accelerators and little else. Source: cloud.google.com/compute/docs/regions-zones/ai-zones, 2026-11.
    """
    return re.sub(r"-ai[0-9]+([a-z])$", r"-\1", zone)
