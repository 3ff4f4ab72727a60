"""What a client leaves in the cluster of tasks that have ended."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from kinetic._jobs import warm_assignment
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys

if TYPE_CHECKING:
    import pytest

ENDED, COLLECTED, RUNS, ELSEWHERE, NEVER = "cpu-a", "cpu-b", "cpu-c", "cpu-d", "cpu-e"


def test_tasks_that_have_ended_are_removed_and_never_those_of_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_assignment, "_ENDED_SECONDS", -60.0)  # what ended just now ended long ago
    store, removed = MemoryStore("a"), list[str]()
    for key in (keys.record(ENDED), keys.result(ENDED), keys.history(COLLECTED), keys.record(RUNS)):
        store.put(key, b"")
    tasks = dict.fromkeys((ENDED, COLLECTED, RUNS, ELSEWHERE, NEVER), time.time())
    stores = {ELSEWHERE: "gs://another", NEVER: store.url}  # of what this one knows nothing of
    warm = SimpleNamespace(
        now=time.time, tasks=lambda _: tasks, remove_tasks=removed.extend, store_of=stores.__getitem__
    )

    warm_assignment.remove_ended_tasks(SimpleNamespace(warm=warm), "ann", store)  # type: ignore[arg-type] # asks these

    assert removed == [ENDED, COLLECTED, NEVER]
