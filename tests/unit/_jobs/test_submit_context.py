"""Where a job goes: its cluster and its bucket are asked at the same time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kinetic import testing
from kinetic._jobs import job_options, store_check, submit_context
from kinetic._stores.memory import MemoryStore
from kinetic.errors import BackendUnavailableError, StoreUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "gs://far/away"


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[testing.FakeBackend]:
    with testing.fake_backend(tmp_path) as found:
        monkeypatch.setenv("KINETIC_STORE", BUCKET)
        monkeypatch.setattr(store_check, "_proven", set())
        yield found


def prepare() -> submit_context.SubmitContext:
    return submit_context.prepare(job_options.Options(accelerator="cpu"))


def test_the_bucket_is_asked_while_the_cluster_is(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    together, check = threading.Barrier(2, timeout=20), backend.check

    def checked(*words: Any) -> Any:
        together.wait()
        return check(*words)

    def opened(_: str) -> MemoryStore:
        together.wait()
        return MemoryStore("away")

    monkeypatch.setattr(backend, "check", checked)
    monkeypatch.setattr(store_check, "open_store", opened)

    assert prepare().store.url == "memory://away"


def test_what_is_wrong_with_the_bucket_is_the_error(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> MemoryStore:
        raise StoreUnreachableError("the bucket does not answer")

    monkeypatch.setattr(store_check, "open_store", refuse)

    with pytest.raises(StoreUnreachableError, match="the bucket does not answer"):
        prepare()


def test_who_has_no_cluster_reads_that_at_once_though_the_bucket_does_not_answer(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over, is_asked, waited_for = threading.Event(), threading.Event(), list[str]()

    def hang(url: str) -> MemoryStore:
        is_asked.set()
        if not is_over.wait(20):
            waited_for.append(url)
        return MemoryStore("away")

    def away(*_: Any) -> Any:
        assert is_asked.wait(20)
        raise BackendUnavailableError("the cluster is away")

    monkeypatch.setattr(store_check, "open_store", hang)
    monkeypatch.setattr(backend, "check", away)

    with pytest.raises(BackendUnavailableError, match="the cluster is away"):
        prepare()
    assert not waited_for
    is_over.set()
