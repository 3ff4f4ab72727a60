"""Some items of Google's price list, in the shape and with the descriptions that the Cloud Billing Catalog has.

The wording is that which SkyPilot's catalog looks for (sky/catalog/data_fetchers/fetch_gcp.py, read 2026-11). The
amounts are made up, and differ from the table in kinetic, so that a test sees which of the two was used.
"""

from __future__ import annotations

import zlib
from typing import Any

from servers.google_cloud import refusals

Page = dict[str, Any]
COMPUTE_ENGINE = "6F81-5844-456A"
_PAGE = 7  # items of an answer, whatever was asked for: so that there are several pages
_IOWA, _EVERYWHERE = ["us-central1"], ["us-central1", "us-west4", "europe-west4"]


def _item(
    description: str,
    group: str,
    dollars: float,
    regions: list[str],
    *,
    usage: str = "OnDemand",
    unit: str = "h",
    family: str = "Compute",
) -> Page:
    units, nanos = divmod(round(dollars * 1e9), 10**9)
    money = {"currencyCode": "USD", "units": str(units), "nanos": nanos}
    expression = {
        "usageUnit": unit,
        "displayQuantity": 1,
        "tieredRates": [{"startUsageAmount": 0, "unitPrice": money}],
    }
    name = f"{zlib.crc32(description.encode()):08X}-0000"
    return {
        "name": f"services/{COMPUTE_ENGINE}/skus/{name}",
        "skuId": name,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": family,
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": regions,
        "pricingInfo": [{"effectiveTime": "2026-11-22T00:00:00Z", "pricingExpression": expression}],
        "serviceProviderName": "Google",
    }


def items() -> list[Page]:
    """Return the list: what is looked for among what only resembles it."""
    ram = {"unit": "GiBy.h"}
    spot = {"usage": "Preemptible"}
    return [
        _item("Nvidia L4 GPU running in Iowa", "GPU", 0.50, _IOWA),
        _item("Nvidia L4 GPU running in Europe", "GPU", 0.60, ["europe-west4"]),
        _item("Nvidia L4 GPU attached to Spot Preemptible VMs running in Iowa", "GPU", 0.20, _IOWA, **spot),
        _item("Commitment v1: Nvidia L4 GPU running in Iowa for 1 Year", "GPU", 0.01, _IOWA, usage="Commit1Yr"),
        _item("Reserved Nvidia L4 GPU in Iowa", "GPU", 0.02, _IOWA),
        _item("G2 Instance Core running in Iowa", "CPU", 0.03, _IOWA),
        _item("G2 Instance Ram running in Iowa", "RAM", 0.003, _IOWA, **ram),
        _item("G2 Instance Core running in Europe", "CPU", 0.04, ["europe-west4"]),
        _item("G2 Instance Ram running in Europe", "RAM", 0.004, ["europe-west4"], **ram),
        _item("Spot Preemptible G2 Instance Core running in Iowa", "CPU", 0.01, _IOWA, **spot),
        _item("Spot Preemptible G2 Instance Ram running in Iowa", "RAM", 0.001, _IOWA, **spot, **ram),
        _item("G2 Custom Instance Core running in Iowa", "CPU", 9.0, _IOWA),
        _item("Nvidia H100 80GB GPU running in Iowa", "GPU", 9.0, _IOWA),  # whose A3 machine has no items here
        _item("TpuV5e Instance running in us-west4", "TPU", 1.10, ["us-west4"]),
        _item("Preemptible TpuV5e Instance running in us-west4", "TPU", 0.40, ["us-west4"]),
        _item("TpuV6e Instance running in all of it", "TPU", 2.50, _EVERYWHERE),
        _item("DWS Defined Duration TpuV6e", "TPU", 0.10, _EVERYWHERE),
        _item("Storage PD Capacity", "PDStandard", 0.04, _EVERYWHERE, unit="GiBy.mo", family="Storage"),
        _item("Network Internet Egress from Iowa", "PremiumInternetEgress", 0.12, _IOWA, unit="GiBy", family="Network"),
    ]


def answer(service: str, query: dict[str, str]) -> Page:
    """Return a page of the list."""
    if service != COMPUTE_ENGINE:
        raise refusals.missing(f"services/{service}")
    begin = int(query.get("pageToken") or 0)
    every = items()
    left = {"nextPageToken": str(begin + _PAGE)} if begin + _PAGE < len(every) else {"nextPageToken": ""}
    return {"skus": every[begin : begin + _PAGE], **left}
