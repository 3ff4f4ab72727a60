"""A function learns which job, attempt and host it belongs to, and runs unchanged outside of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kinetic

if TYPE_CHECKING:
    import pytest


def test_outside_of_a_job_it_is_the_only_host_of_a_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KINETIC_JOB_ID", "KINETIC_ATTEMPT", "KINETIC_HOST_INDEX", "KINETIC_HOST_COUNT"):
        monkeypatch.delenv(name, raising=False)

    assert kinetic.current() == (None, 0, 0, 1)
    assert (kinetic.current().slice_index, kinetic.current().slice_count) == (0, 1)
    assert not kinetic.is_remote()


def test_in_a_job_it_is_what_the_job_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_JOB_ID", "cpu-train-20261120-143000-1a2b3c4")
    monkeypatch.setenv("KINETIC_ATTEMPT", "2")
    monkeypatch.setenv("KINETIC_HOST_INDEX", "3")
    monkeypatch.setenv("KINETIC_HOST_COUNT", "4")
    monkeypatch.setenv("KINETIC_SLICE_COUNT", "2")

    job = kinetic.current()

    assert (job.job_id, job.attempt) == ("cpu-train-20261120-143000-1a2b3c4", 2)
    assert (job.host_index, job.host_count) == (3, 4)
    assert (job.slice_index, job.slice_count) == (1, 2)
    assert kinetic.is_remote()
