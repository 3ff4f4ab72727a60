"""Whether somebody still submits the rest of a batch is looked at twice: a process may be taking over meanwhile."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._batches import collection, control
from kinetic._batches.control import Holder
from kinetic._batches.state import Poll


@pytest.fixture
def watch() -> Any:
    batch = SimpleNamespace(group_id="grp-00000001", _poll=Poll(attached=True), _submission_errors={})
    return collection._DriverWatch(batch, accept_missing=True)  # type: ignore[arg-type] # as much as it looks at


def tracker() -> Any:
    """Return one of a batch with one input, which was not submitted."""
    return SimpleNamespace(
        attempts=[-1], unlaunched=[], store=None, key=None, may_launch=lambda _: True, end=lambda _: None
    )


@pytest.mark.parametrize(("is_taken_over", "may_submit"), [(True, [True, True]), (False, [True, False])])
def test_a_driver_that_seems_to_be_gone_is_looked_for_once_more(
    watch: Any, monkeypatch: pytest.MonkeyPatch, is_taken_over: bool, may_submit: list[bool]
) -> None:
    lives, holder = iter([False, is_taken_over]), Holder(1, "vm", 1, lives=False)
    now = time.monotonic()
    monkeypatch.setattr(collection.time, "monotonic", lambda: now)
    monkeypatch.setattr(control, "lease_holder", lambda *_: holder._replace(lives=next(lives)))

    said = [watch.may_submit(tracker())]
    now += collection._TAKE_OVER_SECONDS
    said.append(watch.may_submit(tracker()))

    assert said == may_submit
