"""What `kinetic jobs` says about a queue that nobody keeps."""

from __future__ import annotations

import pytest

from kinetic._cli import job_views
from kinetic._jobs import locate
from kinetic._jobs.index import Row

WAITING = Row(**dict.fromkeys(Row._fields))._replace(status="PENDING", where="this machine")


@pytest.mark.parametrize(
    ("rows", "kept", "told"),
    [
        ([WAITING], False, "1 job is pending, and no supervisor is running"),
        ([WAITING, WAITING], False, "2 jobs are pending, and no supervisor is running"),
        ([WAITING], True, ""),
        ([], False, ""),
        ([WAITING._replace(status="RUNNING")], False, ""),
        ([WAITING._replace(where="host other")], False, ""),
    ],
)
def test_waiting_jobs_without_a_supervisor_are_told(rows, kept, told, monkeypatch, capsys) -> None:
    monkeypatch.setattr(locate, "is_supervised", lambda: kept)

    job_views._warn_if_unsupervised(rows)

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(told)
    assert bool(said.err) is bool(told)
