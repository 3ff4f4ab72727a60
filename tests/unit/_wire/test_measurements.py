"""The page with what a host used: bounded, and thinned without losing what was largest or how much it was in all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, keys, measurements
from kinetic._wire.measurements import CPU, MEMORY, SECONDS, Device, Measurements, thinned
from kinetic.errors import IntegrityError

KEY = bytes(range(32))


def measured(rows=(), devices=()) -> Measurements:
    return Measurements("cpu-x", 0, 0, 1.8e9, "processes", 2.0, 8 << 30, 1 << 40, devices=devices, rows=tuple(rows))


def test_ten_hours_of_samples_fit_into_a_page_and_keep_peak_sum_and_both_ends() -> None:
    rows: list = []
    peak = 0
    for number in range(7200):
        memory = (number * 7919) % 100_003
        peak = max(peak, memory)
        rows = thinned([*rows, (5.0 * number, 2.5 * number, memory, 0, 0, 10, None, memory)])

    assert len(rows) <= measurements.MOST_ROWS
    assert max(row[MEMORY] for row in rows) == peak
    assert max(row[-1] for row in rows) == peak
    assert rows[-1][SECONDS] == 5.0 * 7199
    assert rows[-1][CPU] == 2.5 * 7199
    assert [row[SECONDS] for row in rows] == sorted({row[SECONDS] for row in rows})
    assert all(later[SECONDS] - before[SECONDS] == 5 for before, later in zip(rows[-100:], rows[-99:], strict=False))
    assert len(documents.write(measured(rows).to_json())) < 32_000


def test_a_device_that_was_found_later_does_not_stop_the_thinning() -> None:
    rows = thinned([(1.0, 1, 5, 0, 0, 1), (2.0, 2, None, 0, 0, 1, 50.0, 7), (3.0, 3, 9, 0, 0, 1, 20.0, 9)], 2)

    assert rows == [(2.0, 2, 5, 0, 0, 1, 50.0, 7), (3.0, 3, 9, 0, 0, 1, 20.0, 9)]


def test_a_page_is_read_back_as_it_was_and_one_that_was_changed_is_refused() -> None:
    store = MemoryStore()
    found = measured([(1.0, 0.5, 100, None, None, 5, 42.0, 7)], (Device("gpu", "H100", 80 << 30),))
    at = keys.usage("cpu-x", 0, 0)
    store.put(at, found.to_bytes(KEY))

    assert documents.open_page(measurements.PAGE, store, at, KEY) == found

    page = json.loads(found.to_bytes(KEY))
    page["cpu_seconds"] = 99.0
    store.put(at, json.dumps(page).encode())
    with pytest.raises(IntegrityError, match="wrong seal"):
        documents.open_page(measurements.PAGE, store, at, KEY)


@pytest.mark.parametrize(
    "row", [("x",) * 6, (1.0,), (None, 1, 1, 1, 1, 1), (-1.0, 0, 0, 0, 0, 0), (1e300, 0, 0, 0, 0, 0), 7]
)
def test_a_row_that_cannot_be_is_refused(row: object) -> None:
    page = {**measured().to_json(), "rows": [row]}

    with pytest.raises(IntegrityError, match="damaged"):
        measurements.PAGE.build(page, "the usage")


def test_more_rows_than_a_host_writes_are_refused() -> None:
    page = replace(measured(), rows=tuple((float(each), 0, 0, 0, 0, 0) for each in range(5000))).to_json()

    with pytest.raises(IntegrityError, match="at most"):
        measurements.PAGE.build(page, "the usage")


@pytest.mark.parametrize("row", [(1.0, 2.0), (1.0, 2.0, 3, 4), (None, 1.0, 2), (0.0, 1.0, -1), ("x", 1.0, 2)])
def test_a_length_of_a_log_that_cannot_be_is_refused(row: object) -> None:
    with pytest.raises(IntegrityError, match="damaged"):
        measurements.PAGE.build({**measured().to_json(), "log": [row]}, "the usage")


def test_a_thinned_log_keeps_the_last_look_before_each_later_part() -> None:
    rows = [(1.0, 1.0, 5), (2.0, 60.0, 9), (61.0, 61.0, 11)]

    assert thinned(rows, 2) == [(2.0, 60.0, 9), (61.0, 61.0, 11)]
