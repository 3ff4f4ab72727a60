"""What a job that waits on this machine says of the jobs before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._backends.local import followers


@pytest.mark.parametrize(("count", "text"), [(1, "1 of its jobs is"), (3, "3 of its jobs are")])
def test_a_batch_is_counted(count: int, text: str) -> None:
    queue: Any = SimpleNamespace(waits_for=lambda _: ["grp-1"], jobs=lambda _: {}, group_rows=lambda _: [None] * count)

    assert followers.states(queue, "cpu-a") == f"grp-1: {text} pending or running"
