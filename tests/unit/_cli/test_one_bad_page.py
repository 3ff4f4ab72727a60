"""One bad object costs one line that names it: every loop over jobs goes on to the others."""

from __future__ import annotations

import json

import pytest
from servers.sealed import put_sealed

from kinetic._stores.files import FileStore
from kinetic._wire import keys

PAGES = {
    "nothing": b"",
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "no fields": b'{"schema":1}',
    "a later version": b'{"schema":99}',
}
WRONG = [None, 7, "x", [], {"a": 1}, -1.5, True]


def _listed(kinetic, *words: str) -> list[str]:
    told = kinetic("jobs", "list", "--all", "--json", *words)
    assert told.exit_code == 0, told.output
    return [job["job_id"] for job in json.loads(told.stdout)["jobs"]]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("key", [keys.record, keys.result, keys.order, keys.history])
def test_a_job_with_a_bad_page_hides_no_other_job(page, key, kinetic, made_job, home) -> None:
    good, bad = made_job(), made_job()
    FileStore(home / "store").put(key(bad), PAGES[page])

    assert good in _listed(kinetic)
    for words in (["list"], ["list", "--status", "succeeded"], ["cleanup", "--all", "--dry-run"]):
        told = kinetic("jobs", *words)
        assert (told.exit_code, good in told.stdout) == (0, True), told.output
    assert kinetic("jobs", "status", "@last").exit_code in {0, 1}
    assert kinetic("jobs", "cleanup", good).exit_code == 0


@pytest.mark.parametrize(
    "field",
    [
        "job_id",
        "created_at",
        "removed",
        "collected",
        "attempts",
        "logs",
        "started",
        "backend",
        "group_id",
        "group_index",
        "created",
        "accelerator",
        "host",
        "output_dir",
        "status",
    ],
)
def test_a_page_of_the_history_with_a_wrong_type_hides_no_other_job(field, kinetic, made_job, home) -> None:
    good, store = made_job(), FileStore(home / "store")
    page = {"job_id": "x", "created_at": keys.format_utc(0), "backend": "local", "status": "FAILED", "func_name": "f"}
    for number, wrong in enumerate(WRONG):
        at = keys.history(f"cpu-f-20261120-14300{number}-0000000")
        put_sealed(store, at, {**page, "job_id": keys.job_of_history(at), field: wrong})

    assert good in _listed(kinetic)
    assert kinetic("jobs", "list", "--all").exit_code == 0
    assert kinetic("jobs", "status", "@last").stdout.startswith(good)
