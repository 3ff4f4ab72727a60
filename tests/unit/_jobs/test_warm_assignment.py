"""What a client leaves in the cluster of tasks that have ended, and which warm pods it asks."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from servers.wheels import Index, made_wheel

from kinetic._backends.kube.warm_launcher import WarmState
from kinetic._images import lock_store
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform
from kinetic._images.lock_store import Locked
from kinetic._jobs import warm_assignment
from kinetic._runner.supervisor import bindings
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic._wire.warm_pods import IDLE, WarmPod
from kinetic.errors import BackendUnavailableError, OptionError

JOB, OTHER = (f"cpu-train-20261121-120000-abcdef{number}" for number in range(2))
KEY = bytes(range(32))
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


class WarmCluster:
    """A warm pod that is idle, or one that still starts, and what becomes of the job that is offered to it."""

    def __init__(self, store: MemoryStore, pod: str = "cpu-warm-0") -> None:
        self.store, self.did = store, list[str]()
        page = WarmPod("cpu-warm", store.url, 600.0, 3600.0)
        self.state = WarmState("cpu-warm", page, "cpu", {"accelerator": "cpu"}, {}, {}, pod, time.time())
        self.warm = SimpleNamespace(
            turn=self.turn,
            task_of=lambda *_: "{}",
            tell=self.tell,
            make_task=lambda *_, **__: "made",
            start_cold=lambda job_id: self.did.append(f"started {job_id}"),
            end_pod=lambda state, *, delete: self.did.append(f"ended {state.name}"),
        )
        backend = SimpleNamespace(warm=self.warm, add=lambda *_: self.did.append("added"))
        self.place = warm_assignment.Place(backend, store, KEY, 0o22)  # type: ignore[arg-type] # asks these
        order = SimpleNamespace(job_id=JOB, after=(), data=())
        placement = SimpleNamespace(hosts=1, accelerator="cpu", name="cpu")
        self.wanted: Any = SimpleNamespace(order=order, placement=placement, captured={}, key=KEY, cache_key=b"")
        self.pod_key = warm_assignment._pod_key(self.place, "cpu-warm")

    @contextlib.contextmanager
    def turn(self, _: WarmState) -> Iterator[Any]:
        greeting = SimpleNamespace(state=IDLE, sequence=1, restarts=0, nonce="nonce")
        yield SimpleNamespace(greeting=lambda *_: greeting, close=lambda: self.did.append("closed"))

    def tell(self, _: object, page: bytes, job_id: str, *doing: Callable[[], object], then: Any = None) -> Any:
        if then is None:  # the pod was told, and has taken the job, but its answer is lost
            bindings.bind(self.store, job_id, "cpu-warm", KEY)
            raise BackendUnavailableError("the pod cannot be reached")
        return (then(), *(do() for do in doing))

    def offer(self) -> bool:
        return warm_assignment._try(self.wanted, self.place, self.state, fits=True)[0]


def test_a_job_whose_turn_in_a_warm_pod_another_one_has_taken_starts_in_a_pod_of_its_own() -> None:
    cluster = WarmCluster(MemoryStore("turn-taken"))
    bindings.assign(cluster.store, "cpu-warm", 1, OTHER, cluster.pod_key)

    launched = cluster.offer()

    assert launched
    assert cluster.did == ["added", "closed", f"started {JOB}"]
    found = bindings.binding_of(cluster.store, JOB, KEY)
    assert found is not None
    assert found.pod == ""


def test_a_job_that_its_warm_pod_has_taken_is_started_nowhere_else_though_the_answer_is_lost() -> None:
    cluster = WarmCluster(MemoryStore("answer-lost"))

    launched = cluster.offer()

    assert launched
    assert cluster.did == ["added", "closed"]
    assert bindings.assigned(cluster.store, "cpu-warm", 1, cluster.pod_key) == JOB


@pytest.mark.parametrize("over", [keys.result, keys.history], ids=["has its verdict", "was removed"])
def test_a_warm_pod_that_still_starts_is_ended_once_its_job_is_over_and_not_before(over: Callable[[str], str]) -> None:
    cluster = WarmCluster(MemoryStore(f"starting-{over.__name__}"), pod="")
    bindings.assign(cluster.store, "cpu-warm", 0, OTHER, cluster.pod_key)

    warm_assignment._end_what_starts_for_nothing(cluster.wanted, cluster.place, [cluster.state])
    assert cluster.did == []

    cluster.store.put(over(OTHER), b"")
    warm_assignment._end_what_starts_for_nothing(cluster.wanted, cluster.place, [cluster.state])
    assert cluster.did == ["ended cpu-warm"]


def test_a_warm_pod_to_which_another_client_gave_a_job_meanwhile_is_not_ended() -> None:
    cluster = WarmCluster(MemoryStore("given-meanwhile"), pod="")
    bindings.assign(cluster.store, "cpu-warm", 0, OTHER, cluster.pod_key)
    cluster.store.put(keys.result(OTHER), b"")

    with pytest.MonkeyPatch.context() as patch:  # it is created between our look and our own assignment
        patch.setattr(bindings, "next_sequence", lambda *_: 1)
        bindings.assign(cluster.store, "cpu-warm", 1, ENDED, cluster.pod_key)
        warm_assignment._end_what_starts_for_nothing(cluster.wanted, cluster.place, [cluster.state])

    assert cluster.did == []


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
