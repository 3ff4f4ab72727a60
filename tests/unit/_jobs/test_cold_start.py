"""A task of a warm pod gets a pod of its own if none takes it, and not while a machine is looked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._backends.kube.job_manifests import CONTAINER
from kinetic._backends.kube.warm_launcher import WarmLauncher
from kinetic._backends.protocol import Observation
from kinetic._jobs import cold_start, locate
from kinetic._runner.supervisor import bindings
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic.job_status import JobStatus

JOB_ID, WARM = "cpu-train-20261121-143000-1a2b3c4", "cpu-warm-20261121-143000-1a2b3c4"
JOB = SimpleNamespace(job_id=JOB_ID, name=None, command=None)
KEY = bytes(32)
LATER = 4 * cold_start._UNTAKEN_SECONDS
Start = Callable[..., list[str]]


AHEAD = 700.0  # seconds, of this machine's clock before that of the cluster


def now() -> float:
    """Return the time of the cluster."""
    return time.time() - AHEAD


def ago(seconds: float) -> str:
    return keys.format_utc(now() - seconds)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a function that looks at a task, by default one of long ago, and returns what was started cold."""

    def look(
        job: dict[str, Any], pods: list[dict[str, Any]], *, submitted: float = LATER, giver_died: bool = False
    ) -> list[str]:
        transport = SimpleNamespace(now=now)
        client = SimpleNamespace(list=lambda *_: SimpleNamespace(objects=pods), transport=transport)
        started: list[str] = []
        warm = WarmLauncher(lambda: client, None, lambda _: None, lambda _: job, tuple)  # type: ignore[arg-type,return-value] # only looks
        monkeypatch.setattr(warm, "start_cold", lambda name, _: started.append(name) or True)
        store = MemoryStore("a")
        monkeypatch.setattr(locate, "store_of", lambda _: store)
        monkeypatch.setattr(locate, "backend_of", lambda _: SimpleNamespace(warm=warm))
        for name in ("key_to_read", "key_to_seal"):
            monkeypatch.setattr(locate, name, lambda _: bytes(32))
        seen = Observation(JOB_ID, JobStatus.PENDING, submitted=now() - submitted, warm=WARM)
        cold_start.start_if_left(JOB, seen, giver_died=giver_died)  # type: ignore[arg-type] # of a record, what is read
        return started

    return look


def warm_job(*, suspend: bool = False) -> dict[str, Any]:
    return {"metadata": {"name": "kinetic-warm", "creationTimestamp": ago(LATER)}, "spec": {"suspend": suspend}}


def pod(*, running_for: float | None) -> dict[str, Any]:
    state = {"waiting": {}} if running_for is None else {"running": {"startedAt": ago(running_for)}}
    return {"metadata": {"name": "warm-pod"}, "status": {"containerStatuses": [{"name": CONTAINER, "state": state}]}}


@pytest.mark.parametrize(
    "running_for", [[], [None], [5.0], [LATER, None]], ids=["no pod", "no machine", "just started", "one host missing"]
)
def test_a_job_whose_warm_pod_has_no_machine_or_just_started_gets_no_second_pod(
    start: Start, running_for: list[float | None]
) -> None:
    assert start(warm_job(), [pod(running_for=each) for each in running_for]) == []


def test_a_job_whose_warm_pod_never_took_it_is_started_cold(start: Start) -> None:
    assert start(warm_job(), [pod(running_for=LATER)]) == [JOB_ID]


def test_a_job_whose_warm_pod_nobody_started_is_started_cold(start: Start) -> None:
    assert start(warm_job(suspend=True), []) == [JOB_ID]


@pytest.mark.parametrize(("running_for", "submitted", "is_left"), [(60.0, 5.0, True), (5.0, 60.0, False)])
def test_what_a_dead_process_was_telling_a_warm_pod_is_started_cold_at_once_and_not_what_its_secret_tells_it(
    start: Start, running_for: float, submitted: float, *, is_left: bool
) -> None:
    started = start(warm_job(), [pod(running_for=running_for)], submitted=submitted, giver_died=True)

    assert started == [JOB_ID] * is_left


@pytest.mark.parametrize("what", ["nothing", "a result", "its pod has taken it", "its pod takes it this moment"])
def test_a_job_is_not_started_a_second_time(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    store, started = MemoryStore("a"), list[str]()

    def could_take_since(_: str) -> float:
        if what == "its pod takes it this moment":
            bindings.bind(store, JOB_ID, WARM, KEY)
        return 0.0

    if what == "a result":
        store.put(keys.result(JOB_ID), b"of another process")
    if what == "its pod has taken it":
        bindings.bind(store, JOB_ID, WARM, KEY)
    warm = SimpleNamespace(
        start_cold=lambda name, _: started.append(name) or True, now=now, could_take_since=could_take_since
    )
    monkeypatch.setattr(locate, "store_of", lambda _: store)
    monkeypatch.setattr(locate, "backend_of", lambda _: SimpleNamespace(warm=warm))
    for name in ("key_to_read", "key_to_seal"):
        monkeypatch.setattr(locate, name, lambda _: KEY)
    seen = Observation(JOB_ID, JobStatus.PENDING, submitted=now() - LATER, warm=WARM)

    cold_start.start_if_left(JOB, seen)  # type: ignore[arg-type] # of a record, what is read

    bound = bindings.binding_of(store, JOB_ID, KEY)
    assert started == ([JOB_ID] if what == "nothing" else [])
    assert (bound.pod if bound else None) == {"nothing": "", "a result": None}.get(what, WARM)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_job_that_its_warm_pod_gave_back_is_started_cold_at_once_if_it_could_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, comes_back: bool
) -> None:
    store, started = MemoryStore("a"), list[str]()
    bindings.bind(store, JOB_ID, WARM, KEY)
    bindings.bind(store, JOB_ID, "", KEY, ended=WARM, why="no index")
    warm = SimpleNamespace(start_cold=lambda name, _: started.append(name) or True, now=now)
    monkeypatch.setattr(locate, "store_of", lambda _: store)
    monkeypatch.setattr(locate, "backend_of", lambda _: SimpleNamespace(warm=warm))
    for name in ("key_to_read", "key_to_seal"):
        monkeypatch.setattr(locate, name, lambda _: KEY)
    seen = Observation(JOB_ID, JobStatus.RUNNING, submitted=now(), warm=WARM, may_come_back=comes_back)

    after = cold_start.start_if_left(JOB, seen)  # type: ignore[arg-type] # of a record, what is read

    assert started == [JOB_ID] * comes_back
    assert after.status is (JobStatus.PENDING if comes_back else JobStatus.RUNNING)
    assert ("gave it back: no index; it starts in a pod of its own" in capsys.readouterr().err) == comes_back


def test_a_job_that_is_gone_from_its_cluster_is_looked_for_in_its_warm_pod_and_no_key_is_needed_where_it_had_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, seen = MemoryStore("a"), Observation(JOB_ID, JobStatus.RUNNING, warm=WARM)
    asked: list[tuple[str, str]] = []

    def observe(name: str, warm: str) -> Observation:
        asked.append((name, warm))
        return seen

    def key_to_read(_: object) -> bytes:
        assert store.size(keys.binding(JOB_ID, 0)) is not None, "a colleague would not have it"
        return KEY

    monkeypatch.setattr(locate, "store_of", lambda _: store)
    monkeypatch.setattr(locate, "backend_of", lambda _: SimpleNamespace(observe_without_job=observe))
    monkeypatch.setattr(locate, "key_to_read", key_to_read)

    before = cold_start.find_without_job(JOB)  # type: ignore[arg-type] # of a record, what is read
    bindings.bind(store, JOB_ID, WARM, KEY)
    found = cold_start.find_without_job(JOB)  # type: ignore[arg-type] # as above
    bindings.bind(store, JOB_ID, "", KEY, ended=WARM)
    after = cold_start.find_without_job(JOB)  # type: ignore[arg-type] # as above

    assert (before, found, after) == (None, seen, None)
    assert asked == [(JOB_ID, WARM)]
