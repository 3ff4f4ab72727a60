"""`kinetic jobs cancel` of jobs that there is nothing to cancel of, and of several."""

from __future__ import annotations

import pytest
from servers.sealed import put_history

from kinetic._jobs import cancellation
from kinetic._stores.files import FileStore
from kinetic.errors import BackendUnavailableError


@pytest.mark.parametrize(
    ("status", "removed", "told"),
    [
        ("succeeded", False, "had ended before it could be cancelled: it is SUCCEEDED"),
        ("succeeded", True, "had ended before it could be cancelled: it was SUCCEEDED, and was removed afterwards"),
        ("failed", True, "had ended before it could be cancelled: it was FAILED, and was removed afterwards"),
        ("cancelled", True, "was cancelled before"),
        ("", True, "was removed before: there is nothing to cancel"),
        ("", False, "was never launched: there is nothing to cancel"),
    ],
)
def test_where_there_is_nothing_to_cancel_it_is_said_why(status, removed, told, kinetic, made_job, home) -> None:
    job_id = made_job(status)
    if removed:  # and its place could not be reached then: what lies in the store is still there
        put_history(FileStore(home / "store"), {"job_id": job_id, "status": status.upper()})

    done = kinetic("jobs", "cancel", job_id)

    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"{job_id} {told}\n"


def test_several_jobs_are_cancelled_by_one_command_and_one_that_cannot_be_keeps_no_other(
    kinetic, made_job, monkeypatch
) -> None:
    def cancel(handle, *, wait):
        assert wait == 3
        if handle.job_id == away:
            raise BackendUnavailableError("the cluster does not answer", why="it is off", next="start it")
        return True

    first, away, last = made_job(), made_job(), made_job()
    monkeypatch.setattr(cancellation, "cancel", cancel)

    done = kinetic("jobs", "cancel", first, away, last, first, "--cleanup-timeout", "3")

    told = done.stderr.splitlines()
    assert sorted(told[:2]) == [f"{each} is cancelled; its log: kinetic jobs logs {each}" for each in (first, last)]
    assert told[2].startswith("error: the cluster does not answer")
    assert done.exit_code == 1


def test_nothing_is_cancelled_where_one_of_several_ids_is_wrong(kinetic, made_job, monkeypatch) -> None:
    monkeypatch.setattr(cancellation, "cancel", None)

    done = kinetic("jobs", "cancel", made_job(), "cpu-none-20200101-000000-0000000")

    assert done.exit_code == 1
    assert "cpu-none-20200101-000000-0000000" in done.stderr.splitlines()[0]
