"""The list of batches in the browser, of a bucket far away."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._batches import report
from kinetic._dashboard.batch_pages import BatchPages
from kinetic.errors import BatchNotFoundError, StoreUnreachableError

GROUPS = [f"grp-0000000{number}" for number in range(4)]


def test_batches_in_a_distant_store_are_read_side_by_side_and_what_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(len(GROUPS), timeout=20)

    def page(group_id: str, _: object) -> dict[str, Any]:
        together.wait()
        if group_id == GROUPS[1]:
            raise BatchNotFoundError("it was removed this moment")
        if group_id == GROUPS[2]:
            raise StoreUnreachableError("the bucket does not answer")
        return {"group_id": group_id, "created_at": "2026-11-30T12:00:00Z"}

    store = SimpleNamespace(url="gs://far/away", folders=lambda _: iter(GROUPS))
    places = [SimpleNamespace(name="gke", store=store)]
    pages = BatchPages(SimpleNamespace(places=places, away=dict))  # type: ignore[arg-type]
    monkeypatch.setattr(pages, "_page", page)

    found = pages.list_page()

    assert [batch["group_id"] for batch in found["batches"]] == [GROUPS[3], GROUPS[0]]
    assert [problem["place"] for problem in found["problems"]] == ["gke"]
    assert "the bucket does not answer" in str(found["problems"])


def test_batches_of_a_store_that_does_not_answer_are_shown_as_they_were_seen_last_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = {"place": "gke", "what": "the bucket does not answer"}
    near, far = SimpleNamespace(url="file:///near", folders=lambda _: [GROUPS[0]]), SimpleNamespace(url="gs://far/away")
    far.folders = lambda _: [GROUPS[1]]
    away = dict[str, Any]()
    places = [SimpleNamespace(name="this machine", store=near), SimpleNamespace(name="gke", store=far)]
    pages = BatchPages(SimpleNamespace(places=places, away=lambda: away, version_of=lambda _: 0))  # type: ignore[arg-type]
    monkeypatch.setattr(pages, "_batch", lambda group_id, _: group_id)
    monkeypatch.setattr(report, "batch_state", lambda _: SimpleNamespace(is_over=False))
    about = {"created_at": "2026-11-30T12:00:00Z"}
    monkeypatch.setattr(report, "batch_page", lambda group_id, _: {**about, "group_id": group_id})
    before = pages.list_page()
    away["gke"] = problem
    far.folders = pytest.fail

    assert pages.list_page() == {**before, "problems": [problem]}
    assert len(before["batches"]) == 2
