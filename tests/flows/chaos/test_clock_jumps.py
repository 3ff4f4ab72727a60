"""The clock of the machine is set while jobs wait, run and have ended: nothing is lost, nothing waits for the clock."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import last_json

YEAR = 365 * 86_400
JUMPS = {"ten years on": 10 * YEAR, "an hour back": -3600, "ten years back": -10 * YEAR, "a minute on": 60}

JOBS = """
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def work(number, until=""):
        while until and not os.path.exists(until):
            time.sleep(0.01)
        return number * 2
"""


@pytest.fixture
def jump(project: Any, home: Path, preloaded: Callable[..., str], tmp_path: Path, monkeypatch: Any) -> Any:
    """Return a function that moves the wall clock of every process of this home by seconds from the true time."""
    page = tmp_path / "clock"
    page.write_bytes(struct.pack("q", 0))
    monkeypatch.setenv("LD_PRELOAD", preloaded("clock", CLOCK_FILE=str(page)))
    project.write("jobs.py", JOBS)

    def move(seconds: int) -> None:
        with page.open("r+b") as file:  # in place: processes have it mapped
            file.write(struct.pack("q", seconds))

    return move


def ask(project: Any, code: str) -> Any:
    done = project.run("-c", f"import json, kinetic\nfrom jobs import work\nprint(json.dumps({code}))")
    assert done.returncode == 0, done.stderr
    return last_json(done.stdout)


def command(project: Any, *words: str) -> str:
    done = project.kinetic(*words)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS)
def test_jobs_of_every_state_survive_a_jump_of_the_clock(project: Any, jump: Any, tmp_path: Path, seconds: int) -> None:
    go = tmp_path / "go"
    ended = ask(project, "[job := work.run_async(1), job.wait()][0].job_id")
    running, waiting, more = (ask(project, f"work.run_async({number}, {str(go)!r}).job_id") for number in (2, 3, 4))

    jump(seconds)
    newest = ask(project, f"work.run_async(5, {str(go)!r}).job_id")
    listed = command(project, "jobs", "list")
    last = ask(project, "[job.job_id for job in kinetic.list_jobs()]")
    go.touch()
    values = [
        ask(project, f"kinetic.attach({job!r}).result(timeout=60)") for job in (ended, running, waiting, more, newest)
    ]
    afterwards = ask(project, "work.run_async(6).result(timeout=60)")
    jump(0)
    kept = command(project, "jobs", "list", "--all")

    assert values == [2, 4, 6, 8, 10]
    assert afterwards == 12
    assert last[0] == newest  # by the queue's own order, whatever the clock says
    assert re.search(r"(?<!\S)-\d+(\.\d+)? ?(s|min|h|d)\b", listed) is None, listed  # no age is negative
    if abs(seconds) < YEAR:
        assert all(job in kept for job in (running, newest)), kept  # what was collected stays in the history


def test_a_clock_that_jumps_to_and_fro_leaves_the_queue_working(project: Any, jump: Any) -> None:
    for number, seconds in enumerate([YEAR, -YEAR, 0, 30 * 86_400, -60, 0]):
        jump(seconds)

        assert ask(project, f"work.run_async({number}).result(timeout=60)") == number * 2
