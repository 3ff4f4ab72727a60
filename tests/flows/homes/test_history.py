"""History: what is remembered of removed jobs, and for how long."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from kinetic._jobs import tombstones
from kinetic._stores.files import FileStore
from kinetic._wire import keys

DAY = 24 * 3600.0


@pytest.mark.parametrize("store_is", [0.0, -400 * DAY, 400 * DAY], ids=["on time", "a year behind", "a year ahead"])
def test_a_removed_job_is_remembered_for_thirty_days_by_the_stores_own_clock(clients: Any, store_is: float) -> None:
    store = FileStore(clients.home / "store")
    ages = {"cpu-new-20261120-143000-0000001": 0.0, "cpu-kept-20261120-143000-0000002": 30 * DAY - 60}
    ages["cpu-old-20261120-143000-0000003"] = 30 * DAY + 60
    for job, age in ages.items():
        tombstones.write(store, {"job_id": job, "status": "SUCCEEDED", "created_at": "2026-11-20T14:30:00Z"})
        then = time.time() + store_is - age
        os.utime(clients.home / "store" / keys.tombstone(job), (then, then))

    told = clients.kinetic("jobs", "list", "--all")

    assert told.returncode == 0, told.stderr
    assert [job for job in ages if job in told.stdout] == [*ages][:2]
    assert [entry.key for entry in store.entries(keys.HISTORY)] == sorted(map(keys.tombstone, [*ages][:2]))
