"""The batches of a store, in a bucket far away."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._batches import batch_handle, report, state
from kinetic._cli import job_table
from kinetic._jobs import job_list
from kinetic._jobs.locate import Untrusted
from kinetic.errors import BatchNotFoundError, StoreUnreachableError

GROUPS = [f"grp-0000000{number}" for number in range(4)]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A distant store with four batches, whose manifests are answered once all of them are asked for."""
    together = threading.Barrier(len(GROUPS), timeout=20)

    def read(_: object, group_id: str) -> object:
        together.wait()
        if group_id == GROUPS[1]:
            raise BatchNotFoundError("it was removed this moment")
        if group_id == GROUPS[2]:
            raise StoreUnreachableError("the bucket does not answer")
        return SimpleNamespace(group_id=group_id)

    monkeypatch.setattr(state, "read_manifest", read)
    monkeypatch.setattr("kinetic._stores.open_store", lambda url: SimpleNamespace(url=url))
    return SimpleNamespace(url="gs://far/away", folders=lambda _: iter(GROUPS))


def test_manifests_in_a_distant_store_are_read_side_by_side_and_one_that_cannot_be_read_is_a_warning(
    far: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [group.group_id for group in batch_handle.list_groups(far)]

    assert found == [GROUPS[0], GROUPS[3]]
    warned = capsys.readouterr().err
    assert f"{GROUPS[2]} is not listed: the bucket does not answer" in warned
    assert GROUPS[1] not in warned


def test_batches_of_listed_jobs_are_read_side_by_side_and_jobs_of_one_that_is_gone_are_listed_all_the_same(
    far: Any,
) -> None:
    found = job_table.groups_of(dict.fromkeys([None, *GROUPS], far.url))

    assert [*found] == [GROUPS[0], GROUPS[3]]


def test_batches_of_colleagues_are_set_aside(far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Untrusted(GROUPS[3], "f", "2026-11-30T12:00:00Z", "k", "no key", "ask them", "key-missing-here")
    monkeypatch.setattr(state, "read_manifest", lambda _, name: other if name == GROUPS[3] else SimpleNamespace())
    of_others: list[Untrusted] = []

    assert len([*batch_handle.list_groups(far, of_others)]) == 3
    assert of_others == [other]


def test_batches_of_which_inputs_were_not_submitted_are_looked_at_side_by_side_in_a_list_of_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(len(GROUPS), timeout=20)

    def look(batch: Any) -> str:
        together.wait()
        if batch.group.group_id == GROUPS[2]:
            raise StoreUnreachableError("the bucket does not answer")
        return f"state of {batch.group.group_id}"

    monkeypatch.setattr(report, "batch_state", look)
    monkeypatch.setattr(batch_handle, "attached_handle", lambda *_: None)
    monkeypatch.setattr(job_list, "history_rows", lambda _: [])
    monkeypatch.setattr("kinetic._stores.open_store", lambda url: SimpleNamespace(url=url))
    rows: Any = [SimpleNamespace(group_id=name, group_index=0, status="SUCCEEDED", store="gs://far") for name in GROUPS]
    groups: Any = {name: SimpleNamespace(group_id=name, total_expected=2) for name in GROUPS}

    found = job_table._incomplete(rows, groups)

    assert found == {name: f"state of {name}" for name in GROUPS if name != GROUPS[2]}
