"""Google's price list, read page by page from the fake, and what is believed of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kinetic._cluster import price_catalog
from kinetic._hardware import place
from kinetic._hardware.prices import Rates, price_of, read_rates

if TYPE_CHECKING:
    from servers.cluster_maker import Maker
    from servers.google_cloud import GoogleCloud


def read(maker: Maker, file: Path, *names: str, kept: Rates | None = None) -> Rates:
    return price_catalog.refresh(maker.setup().apis, file, map(place, names), kept, lambda _: None)


def test_the_price_of_a_machine_is_found_among_items_that_resemble_it(maker: Maker, tmp_path: Path) -> None:
    rates = read(maker, tmp_path / "rates.json", "l4")

    plain, spot = (price_of(place("l4", spot=each), "us-central1", rates) for each in (False, True))
    assert plain is not None
    assert spot is not None
    assert plain.dollars_per_hour == pytest.approx(0.5 + 4 * 0.03 + 16 * 0.003)
    assert spot.dollars_per_hour == pytest.approx(0.2 + 4 * 0.01 + 16 * 0.001)


def test_chips_are_priced_without_their_machine_and_spot_is_known_by_its_description(maker, tmp_path: Path) -> None:
    rates = read(maker, tmp_path / "rates.json")

    assert rates.regions["us-west4"]["v5litepod"] == (1.10, 0.40)
    assert rates.regions["us-central1"]["v6e"] == (2.50, None)


def test_a_machine_without_items_of_its_own_has_no_price(maker: Maker, tmp_path: Path) -> None:
    rates = read(maker, tmp_path / "rates.json", "h100x8")

    assert price_of(place("h100x8"), "us-central1", rates) is None


def test_every_page_is_read_once_and_then_only_what_is_missing(maker, cloud: GoogleCloud, tmp_path: Path) -> None:
    file = tmp_path / "cache" / "rates.json"
    first = read(maker, file, "l4")
    assert cloud.methods().count("cloudbilling.services.skus.list") == 3
    assert read_rates(file) == first
    cloud.forget()
    read(maker, file, "l4", kept=first)
    assert cloud.calls == []

    more = read(maker, file, "l4x8", kept=first)

    assert cloud.methods() == ["compute.machineTypes.aggregatedList"]
    assert {*more.machines} == {"g2-standard-4", "g2-standard-96"}
    assert more.read_at == first.read_at
