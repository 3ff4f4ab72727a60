"""Google's price list: the Cloud Billing Catalog, reduced to what accelerators are made of, and kept for a day.

The catalog has no filter: all items of Compute Engine are read, tens of thousands, in pages of 5,000 and with a mask of
fields. An item is known by words of its description, as SkyPilot's catalog finds it (sky/catalog/data_fetchers/
fetch_gcp.py, read 2026-11); the names of Google's items are documented nowhere. Of several that fit, the one with the
shortest description counts: others say more, such as "Custom" or "DWS". What is not found has no price, never a wrong
one: v3 and v4, which other units are used for, and machines whose cores and memory have no items of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kinetic._cluster.project_apis import BILLING, COMPUTE, ProjectApis, pages
from kinetic._google.api import Page
from kinetic._hardware import Placement
from kinetic._hardware.prices import Rates
from kinetic._stores.parallel import in_parallel
from kinetic._wire import folders

_SERVICE = "services/6F81-5844-456A"  # Compute Engine; cloud.google.com/skus
_FIELDS = (
    "skus(description,category(resourceFamily,resourceGroup,usageType),serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates)),nextPageToken"
)
_MOST_PAGES = 40
_OTHER = (  # items of other ways to buy the same
    *("custom", "premium", "reserved", "sole tenancy", "commitment", "dws", "calendar", "flex", "upgrade"),
)
_PARTS: dict[str, tuple[str, ...]] = {  # a family, and words of the item that is one chip or GPU of it
    "v5litepod": ("tpuv5e",),
    "v5p": ("tpuv5p",),
    "v6e": ("tpuv6e",),
    "l4": ("l4 gpu",),
    "t4": ("t4 gpu",),
    "p4": ("p4 gpu",),
    "p100": ("p100 gpu",),
    "v100": ("v100 gpu",),
    "a100": ("a100 gpu",),
    "a100-80gb": ("a100 80gb gpu",),
    "h100": ("h100 80gb gpu",),
    "h100-mega": ("h100 80gb mega gpu", "h100 mega 80gb gpu", "h100 80gb plus gpu"),
    "h200": ("h200 141gb gpu",),
}
_SERIES = {"a2": "a2 instance", "a3": "a3 instance", "g2": "g2 instance", "n1": "n1 predefined instance"}
_HOUR, _GIB_HOUR = "h", "GiBy.h"


def refresh(
    apis: ProjectApis, file: Path, wanted: Iterable[Placement], kept: Rates | None, report: Callable[[str], object]
) -> Rates:
    """Read what is missing of prices and machines, keep it in a file, and return all of it.

    ``kept`` is what the file had; with None, the price list is read.

    Raises:
        ApiError: Google refused.
    """
    rates = kept or Rates(time.time(), {}, _regions(_items(apis, report)))
    names = sorted({str(each.machine_type) for each in wanted if each.kind == "gpu"} - {*rates.machines})
    shapes = dict(in_parallel(None, [partial(_shape, apis, name) for name in names], limit=6))
    found = rates._replace(machines=rates.machines | {name: shape for name, shape in shapes.items() if shape})
    if found != kept:
        folders.write_whole(file, json.dumps(found._asdict()).encode())
    return found


def _items(apis: ProjectApis, report: Callable[[str], object]) -> Iterable[Page]:
    query, count = {"pageSize": "5000", "currencyCode": "USD", "fields": _FIELDS}, 0
    for page in pages(
        lambda query: apis.call(BILLING, "GET", f"v1/{_SERVICE}/skus", query=query), _MOST_PAGES, **query
    ):
        items = page.get("skus") or ()
        yield from items
        count += len(items)
        report(f"{count} prices read")


def _shape(apis: ProjectApis, machine: str) -> tuple[str, tuple[float, float] | None]:
    """Return cores and GiB of a machine type, wherever it is sold."""
    query = {"filter": f"name={machine}", "fields": "items/*/machineTypes(guestCpus,memoryMb)"}
    page = apis.call(COMPUTE, "GET", f"compute/v1/projects/{apis.project}/aggregated/machineTypes", query=query)
    for each in (page.get("items") or {}).values():
        for one in each.get("machineTypes") or ():
            return machine, (float(one["guestCpus"]), float(one["memoryMb"]) / 1024)
    return machine, None


def _regions(items: Iterable[Page]) -> dict[str, dict[str, tuple[float | None, float | None]]]:
    """Return what one of each unit costs, by region."""
    best: dict[tuple[str, str, bool], tuple[int, float]] = {}
    for item in items:
        description = str(item.get("description", "")).lower()
        category = item.get("category") or {}
        unit = _unit(description, category)
        rate = _rate(item, _GIB_HOUR if unit.endswith(" ram") else _HOUR) if unit else None
        if rate is None:
            continue
        spot = category.get("usageType") == "Preemptible" or "preemptible" in description or "spot" in description
        for region in item.get("serviceRegions") or ():
            key = (str(region), unit, spot)
            if key not in best or len(description) < best[key][0]:
                best[key] = (len(description), rate)
    found: dict[str, dict[str, tuple[float | None, float | None]]] = {}
    for (region, unit, spot), (_, rate) in sorted(best.items()):
        plain, cheap = found.setdefault(region, {}).get(unit, (None, None))
        found[region][unit] = (plain, rate) if spot else (rate, cheap)
    return found


def _unit(description: str, category: Mapping[str, Any]) -> str:
    """Return what an item is one of: a family, "g2 core" or "g2 ram"; "" for all others."""
    sold = category.get("usageType") in {"OnDemand", "Preemptible"}
    if category.get("resourceFamily") != "Compute" or not sold or any(word in description for word in _OTHER):
        return ""
    for family, words in _PARTS.items():
        if any(f" {each}" in f" {description}" for each in words):
            return family
    group = category.get("resourceGroup")
    series = next((name for name, words in _SERIES.items() if words in description), "")
    if not series or group == "GPU":
        return ""
    if group == "CPU" or (group == "N1Standard" and " core" in description):
        return f"{series} core"
    return f"{series} ram" if group == "RAM" or (group == "N1Standard" and " ram" in description) else ""


def _rate(item: Page, unit: str) -> float | None:
    """Return the price of one unit for an hour; None where the item is sold by something else."""
    known = item.get("pricingInfo") or ()
    expression = (known[-1].get("pricingExpression") or {}) if known else {}
    rates = expression.get("tieredRates") or ()
    if expression.get("usageUnit") != unit or not rates:
        return None
    money = rates[-1].get("unitPrice") or {}
    return int(money.get("units") or 0) + int(money.get("nanos") or 0) / 1e9
