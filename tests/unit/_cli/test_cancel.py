"""`kinetic jobs cancel` of a job that there is nothing to cancel of: it says what is true of it."""

from __future__ import annotations

import pytest
from servers.sealed import put_history

from kinetic._stores.files import FileStore


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
