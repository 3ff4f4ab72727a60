"""What a job that cannot start says of the job before it: how it ended, and which command explains that."""

from __future__ import annotations

import threading

import pytest

from kinetic._runner.supervisor import attempts, predecessors
from kinetic._runner.supervisor.predecessors import REMOVED, Finding
from kinetic._stores.memory import MemoryStore
from kinetic._wire.order import Predecessor
from kinetic._wire.outcomes import Outcome

KEY = bytes(32)


def test_each_job_of_a_chain_leads_to_the_one_that_failed_first() -> None:
    store = MemoryStore("a")
    first, second, third = (Predecessor(f"cpu-{name}-20261123-103059-1234567", name) for name in "abc")
    error = {"type": "ValueError", "message": "no data"}
    attempts.seal_outcome(store, Outcome(first.job_id, "failed", cause="exception", error=error), KEY)

    for each, follower in ((first, second), (second, third)):
        closed = predecessors.why_closed(each, predecessors.look(store, each, lambda _: KEY))
        verdict = predecessors.verdict_of(follower.job_id, "", closed, witness="supervisor")
        attempts.seal_outcome(store, verdict, KEY)
        assert closed.what.startswith(f"{each.job_id} ({each.function}) failed")
        assert closed.next is not None
        assert closed.next.split("     ")[0] == f"kinetic jobs explain {first.job_id}"


@pytest.mark.parametrize(
    ("each", "status", "command"),
    [
        (Predecessor("cpu-a", "a"), "cancelled", "kinetic jobs explain cpu-a"),
        (Predecessor("cpu-a", "a"), REMOVED, "kinetic jobs list --all"),
        (Predecessor("grp-0a1b2c3d", "a", inputs=2), REMOVED, "kinetic batch list"),
        (Predecessor("grp-0a1b2c3d", "a", inputs=2), "failed", "kinetic batch status grp-0a1b2c3d"),
    ],
)
def test_the_command_is_one_that_has_an_answer(each: Predecessor, status: str, command: str) -> None:
    assert str(predecessors.why_closed(each, Finding(status)).next).startswith(f"{command}  ")


@pytest.mark.parametrize(
    ("each", "at"),
    [
        (Predecessor("cpu-a-20261123-103059-1234567"), "cpu-a-20261123-103059-1234567/handle.json"),
        (Predecessor("cpu-a-20261123-103059-1234567", group="grp-0a1b2c3d"), "_groups/grp-0a1b2c3d/manifest.json"),
        (Predecessor("grp-0a1b2c3d", inputs=2), "_groups/grp-0a1b2c3d/manifest.json"),
    ],
)
def test_what_is_removed_is_not_waited_for(each: Predecessor, at: str) -> None:
    store = MemoryStore("a")
    gone = predecessors.look(store, each, lambda _: KEY)
    store.put(at, b"it is there")
    there = predecessors.look(store, each, lambda _: KEY)

    assert (gone.status, gone.is_over) == (REMOVED, True)
    assert (there.status, there.is_over) == ("", False)


def test_many_in_a_bucket_are_looked_at_side_by_side_and_stay_in_order() -> None:
    both = threading.Barrier(2)

    class Bucket(MemoryStore):
        local = None

        def size(self, key: str) -> int | None:
            both.wait(10)
            return super().size(key)

    store = Bucket("a")
    store.url = "gs://bucket"
    after = [Predecessor(f"cpu-{name}-20261123-103059-1234567", name) for name in "ab"]
    for each, status in zip(after, ("succeeded", "cancelled"), strict=True):
        attempts.seal_outcome(store, Outcome(each.job_id, status), KEY)

    found = predecessors.look_at_all(store, after, lambda _: KEY)

    assert [each.status for each in found] == ["succeeded", "cancelled"]
