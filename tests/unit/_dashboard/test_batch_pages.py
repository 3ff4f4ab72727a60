"""The list of batches in the browser, of a bucket far away."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kinetic._dashboard.batch_pages import BatchPages
from kinetic.errors import BatchNotFoundError, StoreUnreachableError

if TYPE_CHECKING:
    import pytest

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
    pages = BatchPages(SimpleNamespace(places=[SimpleNamespace(name="gke", store=store)]))  # type: ignore[arg-type]
    monkeypatch.setattr(pages, "_page", page)

    found = pages.list_page()

    assert [batch["group_id"] for batch in found["batches"]] == [GROUPS[3], GROUPS[0]]
    assert [problem["place"] for problem in found["problems"]] == ["gke"]
    assert "the bucket does not answer" in str(found["problems"])
