"""Whether somebody still submits the rest of a batch is looked at twice: a process may be taking over meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._batches import collection, control
from kinetic._batches.control import Holder
from kinetic._batches.state import Poll
from kinetic._stores import open_store

GONE = Holder(1, "vm", 1, lives=False)


class Clock:
    """The time of the watch, which a test moves."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(collection, "time", made)
    return made


def watch(*, accept_missing: bool = True) -> Any:
    batch = SimpleNamespace(
        group_id="grp-00000001", jobs=[None], _poll=Poll(attached=True), _submission_errors={}, _submission_error=None
    )
    return collection._DriverWatch(batch, accept_missing=accept_missing)  # type: ignore[arg-type] # what it looks at


class Board(SimpleNamespace):
    """A batch with one input, which was not submitted at the last look; ``to_see`` is what the next one sees."""

    store = key = None
    unlaunched = active = ()

    def __init__(self, to_see: int = -1) -> None:
        super().__init__(attempts=[-1], to_see=to_see)

    def refresh(self, *, whole: bool) -> None:
        assert whole
        self.attempts = [self.to_see]

    def may_launch(self, index: int) -> bool:
        return self.attempts[index] < 0

    def end(self, index: int) -> None:
        """Nothing has ended."""


@pytest.mark.parametrize(("is_taken_over", "may_submit"), [(True, [True, True]), (False, [True, False])])
def test_a_driver_that_seems_to_be_gone_is_looked_for_once_more(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, is_taken_over: bool, may_submit: list[bool]
) -> None:
    lives, watching = iter([False, is_taken_over]), watch()
    monkeypatch.setattr(control, "lease_holder", lambda *_: GONE._replace(lives=next(lives)))

    said = [watching.may_submit(Board())]
    clock.now += collection._TAKE_OVER_SECONDS
    said.append(watching.may_submit(Board()))

    assert said == may_submit


def test_a_driver_that_was_silent_as_its_machine_was_suspended_has_the_time_to_show_that_it_lives(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, watching = [GONE._replace(is_silent=True)], watch(accept_missing=False)
    monkeypatch.setattr(control, "lease_holder", lambda *_: seen[-1])

    lost = [watching.loss(Board())]
    clock.now += control.TOUCH_SECONDS - 1
    lost.append(watching.loss(Board()))
    seen.append(GONE._replace(lives=True))
    clock.now += 1
    lost.append(watching.loss(Board()))
    seen.append(GONE._replace(is_silent=True))
    clock.now += 60
    lost.append(watching.loss(Board()))
    clock.now += control.TOUCH_SECONDS
    lost.append(watching.loss(Board()))

    assert lost[:4] == [None] * 4
    assert "the process that submitted the batch is gone" in str(lost[4])


def test_what_a_driver_launched_just_before_it_left_does_not_count_as_not_submitted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that was stopped between its look at the batch and that at the driver."""
    monkeypatch.setattr(control, "lease_holder", lambda *_: GONE)
    watching, tracker = watch(accept_missing=False), Board(to_see=0)

    lost = [watching.loss(tracker)]
    clock.now += 2 * collection._TAKE_OVER_SECONDS
    lost.append(watching.loss(Board(to_see=0)))

    assert lost == [None, None]
    assert watch(accept_missing=False).loss(Board(to_see=0), at_once=True) is None
    assert "1 of 1 inputs" in str(watch(accept_missing=False).loss(Board(), at_once=True))


def test_of_a_batch_that_was_removed_nothing_more_is_submitted_and_no_driver_is_missed(
    clock: Clock, tmp_path: Path
) -> None:
    watching, tracker = watch(accept_missing=False), Board()
    tracker.store = open_store(f"file://{tmp_path}")
    log = control.ControlLog(tracker.store, "grp-00000001", None)
    tracker.was_removed, tracker.may_launch = log.was_removed, lambda index: not log.stops(index)

    lost = [watching.loss(tracker)]
    clock.now += 60
    lost.append(watching.loss(tracker))

    assert lost == [None, None]
    assert not watching.may_submit(tracker)


def test_a_process_that_was_stopped_since_it_missed_the_driver_looks_for_one_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: Any) -> Holder:
        clock.now += stopped.pop()
        return GONE

    monkeypatch.setattr(control, "lease_holder", look)
    watching, stopped = watch(accept_missing=False), [0.0, 5.0]

    lost = [watching.loss(Board()), watching.loss(Board())]
    clock.now += collection._TAKE_OVER_SECONDS
    lost.append(watching.loss(Board()))

    assert lost[:2] == [None, None]
    assert "the process that submitted the batch is gone" in str(lost[2])
