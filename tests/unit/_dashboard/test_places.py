"""When a place lists its jobs anew: its store's folder says that one was added or removed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic._dashboard.places import Known, Place


@pytest.mark.parametrize(("changed_ago", "is_the_same"), [(3600, True), (-3600, False)])
def test_a_folder_is_listed_again_if_a_job_may_come_within_the_second_of_its_file_system(
    tmp_path: Path, changed_ago: int, is_the_same: bool
) -> None:
    target = SimpleNamespace(store=SimpleNamespace(value=f"file://{tmp_path}"), backend=SimpleNamespace(value="local"))
    # An hour ahead: a second that does not pass meanwhile.
    place = Place("here", target, {})  # type: ignore[arg-type] # as much as it looks at
    changed = int(time.time()) - changed_ago
    os.utime(tmp_path, (changed, changed))

    assert (place._stamp_of_the_list() == place._stamp_of_the_list()) is is_the_same


class Page(dict[str, object]):
    """A page that counts how often it is compared."""

    compared = 0

    def __ne__(self, other: object) -> bool:
        Page.compared += 1
        return dict.__ne__(self, other)


def test_a_job_that_was_not_looked_at_again_is_not_compared(tmp_path: Path) -> None:
    target = SimpleNamespace(store=SimpleNamespace(value=f"file://{tmp_path}"), backend=SimpleNamespace(value="local"))
    place = Place("here", target, {})  # type: ignore[arg-type] # as much as it looks at
    place._stamp, place._listed_at = place._stamp_of_the_list(), time.monotonic()
    place.jobs = {name: Known(None, Page(status="SUCCEEDED"), is_final=True) for name in ("a", "b")}
    place._list_cost = 60.0  # so the list is not made again, though the folder is as new as this test

    found = place.refresh()

    assert (found.changed, found.gone, Page.compared) == ([], [], 0)
