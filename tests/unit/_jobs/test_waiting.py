"""Whether it is time to look at a job again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kinetic._backends.clock import FakeClock
from kinetic._jobs import waiting


@pytest.mark.parametrize("was_told", [True, False])
def test_news_count_whenever_they_come_and_silence_does_not(was_told) -> None:
    clock = FakeClock()

    def watch(_: str, *, seconds: float) -> bool:
        clock.sleep(seconds)  # to the very end of the pause
        return was_told

    place = SimpleNamespace(is_here=False, look_seconds=30.0, watch=watch, clock=clock)

    found = waiting.has_news(place, SimpleNamespace(job_id="job"), pause=0.01, looked=clock.monotonic())

    assert found is was_told
