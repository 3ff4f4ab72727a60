"""What a client leaves in the cluster of tasks that have ended, and which warm pods it asks."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from servers.wheels import Index, made_wheel

from kinetic._backends.kube.warm_launcher import WarmState
from kinetic._images import lock_store
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform
from kinetic._images.lock_store import Locked
from kinetic._jobs import warm_assignment
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic._wire.warm_pods import WarmPod
from kinetic.errors import BackendUnavailableError, OptionError

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


def test_a_batch_asks_a_warm_pod_that_cannot_be_reached_once_in_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_assignment, "_away", {})
    page = WarmPod("cpu-warm", "memory://a", 600.0, 3600.0)
    state = WarmState("cpu-warm", page, "cpu", {}, {}, {}, "cpu-warm-0", time.time())
    asked = list[str]()

    @contextlib.contextmanager
    def turn(state: WarmState) -> Iterator[None]:
        asked.append(state.name)
        raise BackendUnavailableError("the pod cannot be reached", why="no answer within 20 s")
        yield

    order = SimpleNamespace(job_id=ENDED, after=(), data=())
    placement = SimpleNamespace(hosts=1, accelerator="cpu")
    child = SimpleNamespace(
        order=order, owner="ann", placement=placement, programs_of="", awaited_seconds=0.0, requirements=None
    )
    warm = SimpleNamespace(fits=lambda *_: {}, free=list, find=lambda _: [state], turn=turn)
    place = warm_assignment.Place(SimpleNamespace(warm=warm), MemoryStore("a"), bytes(32), 0o22)  # type: ignore[arg-type] # asks these

    given = [[*warm_assignment.give_children([child], place, keep)] for keep in (0.0, 600.0, 0.0)]  # type: ignore[list-item] # as above

    assert given == [[], [], []]
    assert asked == ["cpu-warm"]


@pytest.mark.parametrize(("beginning", "found"), [("cpu-", "cpu-warm"), ("", None), ("gpu", None)])
def test_a_warm_pod_is_named_by_a_beginning_that_is_not_empty(beginning: str, found: str | None) -> None:
    page = WarmPod("cpu-warm", "memory://a", 600.0, 3600.0)
    state = WarmState("cpu-warm", page, "cpu", {}, {}, {}, "cpu-warm-0", time.time())
    backend = SimpleNamespace(warm=SimpleNamespace(find_all=lambda _: [state]))

    expected = contextlib.nullcontext() if found else pytest.raises(OptionError, match="no warm pod")
    with expected:
        assert warm_assignment.find_one(backend, "ann", beginning).name == found  # type: ignore[arg-type] # asks this


def test_what_a_warm_pod_lacks_is_fetched_with_the_login_of_an_index_that_the_project_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"UV_INDEX_ACME_{name}", "secret-word")
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    store, index = MemoryStore("a"), Index()
    index.login = ("secret-word", "secret-word")
    file = made_wheel(tmp_path, "ours", "1.0", {"ours.py": ""})
    data, platform = file.read_bytes(), Platform("3.12", "x86_64", "2_36")
    ours = Wheel("ours", "1.0", file.name, hashlib.sha256(data).hexdigest(), len(data), index(file))
    names = (f"acme={index.simple}",)
    locks = {
        "before": Locked(Lock(platform, (), (), "")),
        "after": Locked(Lock(platform, (ours,), (), ""), indexes=names),
    }
    monkeypatch.setattr(lock_store, "find", lambda name, *_: locks[name])
    wanted = SimpleNamespace(requirements={"lock": "locks/after"}, placement=SimpleNamespace(kind="cpu"))
    page = WarmPod("cpu-warm", "memory://a", 600.0, 3600.0)
    state = WarmState("cpu-warm", page, "cpu", {}, {"lock": "locks/before"}, {}, "cpu-warm-0", time.time())
    place = warm_assignment.Place(SimpleNamespace(), store, bytes(32), 0o22)  # type: ignore[arg-type] # asks nothing

    with contextlib.closing(index):
        found = warm_assignment._lacking(wanted, place, state)  # type: ignore[arg-type] # as above

    assert found is not None
    assert found["text"] == "ours 1.0"
