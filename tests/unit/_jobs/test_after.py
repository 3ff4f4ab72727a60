"""What a submission leaves with the jobs that it follows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from kinetic._jobs import after, locate
from kinetic._jobs.after import Followed
from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, keys
from kinetic._wire.order import Predecessor

if TYPE_CHECKING:
    import pytest

JOB_ID = "cpu-z-20261123-103059-1234567"


def test_each_of_many_gets_the_verdict_for_its_own_failure_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "key_to_seal", lambda _: bytes(32))
    store = MemoryStore("a")
    jobs = [Predecessor(f"cpu-a{number}-20261123-103059-1234567") for number in range(60)]
    child = Predecessor("cpu-b-20261123-103059-1234567", group="grp-0a1b2c3d")

    record = SimpleNamespace(job_id=JOB_ID, key_id="", k8s_name="kinetic-z")
    after.register(Followed((*jobs, child)), store, JOB_ID, record)  # type: ignore[arg-type] # of a record, these

    pages = [documents.read(store.get(keys.follower(each.owner, JOB_ID)), "it") for each in (*jobs, child)]
    assert [[*page["closed"]] for page in pages] == [[each.job_id] for each in (*jobs, child)]
    assert sum(entry.size for entry in store.entries("")) < 1 << 20
