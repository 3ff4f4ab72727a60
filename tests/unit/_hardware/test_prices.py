"""What accelerators cost: Google's list where it was read lately, else the table, and never a guess."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetic._hardware import GPUS, TPUS, place, prices
from kinetic._hardware.prices import Rates

NOW = 1_790_000_000.0
RATES = Rates(
    NOW,
    {"g2-standard-4": (4.0, 16.0)},
    {
        "us-central1": {"l4": (0.5, 0.2), "g2 core": (0.03, 0.01), "g2 ram": (0.003, None), "v6e": (2.5, None)},
        "europe-west4": {"l4": (0.6, None), "g2 core": (0.04, None), "g2 ram": (0.004, None), "v6e": (2.4, 1.0)},
    },
)


@pytest.mark.parametrize(
    ("name", "dollars"),
    [
        ("v5litepod-16", 16 * 1.20),
        ("v6e-8", 8 * 2.70),
        ("l4", 0.76),
        ("l4x8", 8.46),
        ("a100x8", 29.38708),
        ("t4x2", 0.38 + 2 * 0.35),  # an N1 machine does not include its GPUs
        ("v100", 0.38 + 2.48),
    ],
)
def test_the_table_has_chips_with_their_machines_and_machines_with_their_gpus(name: str, dollars: float) -> None:
    price = prices.price_of(place(name))

    assert price is not None
    assert price.dollars_per_hour == pytest.approx(dollars)
    assert (price.is_live, price.region, price.source) == (False, "", "a table of 2026-11")


@pytest.mark.parametrize("name", ["cpu", "h100x8", "b200", "tpu7x-2x2x1"])
def test_what_the_table_does_not_have_is_not_known(name: str) -> None:
    assert prices.price_of(place(name)) is None


def test_every_price_of_the_table_belongs_to_hardware_that_can_be_asked_for() -> None:
    machines = {machine for gpu in GPUS.values() for machine in gpu.machines.values()}

    assert {*prices._CHIP_DOLLARS} <= {*TPUS}
    assert {*prices._GPU_DOLLARS} <= {*GPUS}
    assert {*prices._MACHINE_DOLLARS} <= machines


def test_a_machine_is_the_sum_of_its_gpus_cores_and_memory() -> None:
    price = prices.price_of(place("l4"), "us-central1", RATES)

    assert price is not None
    assert price.dollars_per_hour == pytest.approx(0.5 + 4 * 0.03 + 16 * 0.003)
    assert (price.is_live, price.region) == (True, "us-central1")
    assert price.source == "Google's price list, 2026-09-21"


def test_without_a_region_the_cheapest_counts() -> None:
    price = prices.price_of(place("v6e-8"), "", RATES)

    assert price is not None
    assert (price.region, price.dollars_per_hour) == ("europe-west4", pytest.approx(8 * 2.4))


def test_spot_is_in_googles_list_only_and_whole_or_not_at_all() -> None:
    whole = prices.price_of(place("v6e-8", spot=True), "europe-west4", RATES)
    partial = prices.price_of(place("l4", spot=True), "us-central1", RATES)  # Spot memory is missing

    assert whole is not None
    assert (whole.spot, whole.dollars_per_hour) == (True, pytest.approx(8.0))
    assert partial is not None
    assert (partial.spot, partial.is_live, partial.dollars_per_hour) == (False, False, 0.76)


def test_what_was_read_is_kept_for_a_day(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(RATES._asdict()))

    assert prices.read_rates(file, now=NOW + 24 * 3600 - 1) == RATES
    assert prices.read_rates(file, now=NOW + 24 * 3600 + 1) is None
    assert prices.read_rates(file, now=NOW - 60) is None  # of a clock that was wrong


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"read_at": 1}', '{"read_at": 1, "machines": [], "regions": {}}',
     '{"read_at": 1, "machines": {}, "regions": {"a": {"l4": 3}}}'],
)  # fmt: skip
def test_a_file_that_is_damaged_is_read_again_from_google(text: str, tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    file.write_text(text)

    assert prices.read_rates(file, now=2.0) is None
    assert prices.read_rates(tmp_path / "none.json") is None
