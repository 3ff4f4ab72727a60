"""What a pod does at its end for the jobs that wait for its own."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from kinetic._runner.pod import waiting_jobs
from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, keys

JOB_ID, LATER = "cpu-a-20261123-103059-1234567", "cpu-b-20261123-103059-1234568"


def test_a_page_that_somebody_else_wrote_keeps_no_other_job_from_its_end(tmp_path: Path) -> None:
    store = MemoryStore("a")
    (tmp_path / "namespace").write_text("here")
    page = {"schema": documents.SCHEMA, "after": [JOB_ID]}
    for name, more in (("cpu-0", {}), (LATER, {"closed": {JOB_ID: b64encode(b"its verdict").decode()}})):
        store.put(keys.follower(JOB_ID, name), documents.write(page | more))

    said = list(waiting_jobs.settle(store, JOB_ID, "", succeeded=False, environ={}, folder=tmp_path))

    assert said == [f"{LATER}, which follows this job, was closed"]
    assert store.get(keys.result(LATER)) == b"its verdict"
