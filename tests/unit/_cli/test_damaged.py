"""A result that is damaged or cut: it cannot be opened, and is removed and cancelled like any other."""

from __future__ import annotations

import pytest

import kinetic
from kinetic._backends.local.limits import Limits
from kinetic._jobs import locate
from kinetic._stores.files import FileStore
from kinetic._wire import keys


def flip(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


DAMAGES = {"cut": lambda data: data[: len(data) // 2], "empty": lambda data: b"", "a bit flipped": flip}


@pytest.fixture(params=DAMAGES)
def damaged(request, made_job, home) -> str:
    job_id = made_job(log="words\n")
    store = FileStore(home / "store")
    store.put(keys.result(job_id), DAMAGES[request.param](store.get(keys.result(job_id))))
    return job_id


def test_a_damaged_result_is_removed_by_cleanup(damaged, kinetic, home) -> None:
    told = kinetic("jobs", "cleanup", damaged)

    assert (told.exit_code, "is removed" in told.stderr) == (0, True), told.stderr
    assert [*FileStore(home / "store").entries(keys.job(damaged))] == []
    assert locate.read_page(FileStore(home / "store"), damaged) is not None


def test_a_damaged_result_is_removed_with_all_others(damaged, made_job, kinetic, home) -> None:
    made_job()

    told = kinetic("jobs", "cleanup", "--all", "--yes")

    assert "2 jobs removed" in told.stderr
    assert [*FileStore(home / "store").entries(keys.job(damaged))] == []


def test_a_job_with_a_damaged_result_has_ended_and_is_not_cancelled(damaged, kinetic) -> None:
    told = kinetic("jobs", "cancel", damaged)

    assert told.exit_code == 0
    assert told.stderr.startswith(f"{damaged} has ended, and the result")
    assert f"kinetic jobs cleanup {damaged}" in told.stderr


def test_from_python_it_is_removed_too(damaged, home) -> None:
    kinetic.attach(damaged).cleanup()

    assert [*FileStore(home / "store").entries(keys.job(damaged))] == []


def test_a_job_that_runs_although_its_result_is_damaged_is_cancelled(damaged, home) -> None:
    backend = locate.local()
    backend.queue.add([(damaged, "", 0)], "earth", '{"arguments":["/bin/false"],"environment":{}}', Limits(1, ()))

    kinetic.attach(damaged).cancel()

    assert backend.queue.jobs([damaged]) == {}
    assert kinetic.attach(damaged).history()["status"] == "CANCELLED"
