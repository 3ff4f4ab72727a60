"""History: what is remembered of removed and collected jobs, and for how long."""

from __future__ import annotations

import os
import time
from typing import Any

from servers.sealed import put_history

from kinetic._jobs import locate
from kinetic._stores.files import FileStore
from kinetic._wire import keys

DAY = 24 * 3600.0


def test_what_is_known_of_a_job_goes_after_thirty_days_and_one_page_of_a_wrong_clock_takes_no_other(
    clients: Any,
) -> None:
    store = FileStore(clients.home / "store")
    ages = {"cpu-new-20261120-143000-0000001": 0.0, "cpu-kept-20261120-143000-0000002": 30 * DAY - 60}
    ages |= {"cpu-future-20271120-143000-0000004": -400 * DAY, "cpu-old-20261120-143000-0000003": 30 * DAY + 60}
    for job, age in ages.items():
        put_history(store, {"job_id": job, "status": "SUCCEEDED", "created_at": "2026-11-20T14:30:00Z"})
        store.put(keys.history_log(job, 0, 0), b"log")
        for key in (keys.history(job), keys.history_log(job, 0, 0)):
            os.utime(clients.home / "store" / key, (time.time() - age, time.time() - age))

    locate.runtime().mkdir(parents=True)  # as on every machine that ran a job
    told = clients.kinetic("jobs", "list", "--all")

    assert told.returncode == 0, told.stderr
    left = [*ages][:3]
    assert sorted(job for job in ages if job in told.stdout) == sorted(left)
    kept = {*map(keys.history, left), *(keys.history_log(job, 0, 0) for job in left)}
    assert {entry.key for entry in store.entries(keys.HISTORY)} == kept
