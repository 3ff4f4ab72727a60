"""kill -9 of client, supervisor, worker or observer around the moment at which one job lets another one start.

Whoever dies, the job that follows has its value, or is closed, or was never submitted; it never starts before what it
follows has succeeded, never runs twice, and never waits for ever. Points are drawn as in test_killed_at_any_step.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import last_json

from kinetic._wire import failpoints

from .conftest import share_runner
from .kills import SEED, KillSite

LIMIT_SECONDS = 15.0
QUICK, NIGHTLY = 8, 60
SUBMISSION = ("client:begun", "client:packed", "client:record-written", "client:follows", "client:launch-written")
SUBMITTED = ("client:queued", "client:launched")
# Of the first job, whose end lets the second one start; a little later, of the second.
FIRST = (*failpoints.SUPERVISOR[2:], *failpoints.WORKER[:3], "worker:told", "worker:leaving")

SCRIPT = """
    import os
    import sys
    import time
    import kinetic

    def note(notes, word):
        with open(notes, "a") as file:
            file.write(word + "\\n")

    @kinetic.run(accelerator="cpu")
    def first(notes, fails):
        note(notes, "first-began")
        time.sleep(0.05)
        if fails:
            while not os.path.exists(notes + ".submitted"):
                time.sleep(0.01)
            raise ValueError("as asked")
        note(notes, "first-done")
        return 21

    @kinetic.run(accelerator="cpu")
    def second(number, notes):
        note(notes, "second-began")
        time.sleep(0.05)
        note(notes, "second-done")
        return number * 2

    if __name__ == "__main__":
        what, notes, fails, *rest = sys.argv[1:]
        if "first" in what:
            one = first.run_async(notes, fails == "fails")
            print(one.job_id, flush=True)
        if "second" in what:
            two = second.run_async(one if "first" in what else kinetic.attach(rest[0]), notes)
            open(notes + ".submitted", "w").close()
            print(two.job_id, flush=True)
        os._exit(0)
"""

ASK = """
    import json
    import sys
    import time
    import kinetic

    begun, found = time.monotonic(), {}
    try:
        handle = kinetic.attach(sys.argv[1])
        found["value"] = handle.result(timeout=30, cleanup=False)
    except Exception as error:
        found |= {"error": type(error).__name__, "message": str(error)}
    found["seconds"] = time.monotonic() - begun
    found["open"] = [job.job_id for job in kinetic.list_jobs() if not job.status().is_final]
    print(json.dumps(found))
"""


class Site(KillSite):
    """One home on which a process is killed while one job follows another."""

    def __init__(self, home: Path, project: Any, setenv: Callable[[str, str], None]) -> None:
        super().__init__(home, project, setenv)
        project.write("job.py", SCRIPT)
        project.write("ask.py", ASK)

    def run(self, what: str, *words: str, fails: bool = False) -> list[str]:
        done = self.project.run("job.py", what, str(self.notes), "fails" if fails else "succeeds", *words)
        assert done.returncode in {0, -9}, done.stderr
        return str(done.stdout).split()

    def second(self) -> str:
        """Return the id of the follower, which its client had no time to print where it was killed."""
        places = self.home / "store", self.home / "run" / "here" / "jobs"
        (found,) = {path.name for place in places for path in place.glob("cpu-second*")}
        return found

    def ask(self, job_id: str) -> dict[str, Any]:
        done = self.project.run("ask.py", job_id)
        assert done.returncode == 0, done.stderr
        return dict(last_json(done.stdout))


@pytest.fixture
def site(home: Path, project: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Site:
    monkeypatch.setenv("KINETIC_MACHINE_ID", "here")
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    share_runner(home / "run" / "here", tmp_path_factory)
    return Site(home, project, monkeypatch.setenv)


def points(seed: int) -> Iterator[object]:
    """Draw (step, seconds later): the steps of followers first, then those of whoever runs the first job."""
    draw = random.Random(seed)
    names = [*failpoints.FOLLOWER[1:3], *draw.sample(FIRST, len(FIRST))]
    for number in range(QUICK + NIGHTLY):
        name = names[number % len(names)]
        later = 0.0 if number < 6 or draw.random() < 0.3 else draw.uniform(0.001, 0.4)
        marks = [pytest.mark.nightly] if number >= QUICK else []
        yield pytest.param(name, later, id=f"seed {seed}, {number}, {name} + {later * 1000:.1f} ms", marks=marks)


@pytest.mark.parametrize(("name", "later"), [*points(SEED)])
def test_whoever_is_killed_the_chain_goes_on_or_is_closed(site: Site, name: str, later: float) -> None:
    print(f"KINETIC_KILL_SEED={SEED}")
    site.kill_at(name, later)

    site.run("first and second")
    site.kill_nobody()
    found = site.ask(site.second())

    _check(site, found)


@pytest.mark.parametrize("name", [*SUBMISSION, *SUBMITTED])
def test_a_client_that_is_killed_while_it_submits_has_submitted_the_follower_or_has_not(site: Site, name: str) -> None:
    [first] = site.run("first")
    mark = site.kill_at(name)

    site.run("second", first)
    site.kill_nobody()
    second = site.second()
    value = site.ask(first)["value"]  # before it is looked at which jobs are open: it may be slower than this
    found = site.ask(second)

    assert value == 21
    assert mark.exists(), f"nobody came by {name}"
    assert ("value" in found) == (name in SUBMITTED), found
    _check(site, found)


@pytest.mark.parametrize("name", ["follower:found", "follower:sealed", "supervisor:sealed", "supervisor:ended"])
def test_a_follower_of_a_job_that_fails_is_closed_whoever_is_killed(site: Site, name: str) -> None:
    mark = site.kill_at(name)

    [_, second] = site.run("first and second", fails=True)
    site.kill_nobody()
    found = site.ask(second)

    assert mark.exists(), f"nobody came by {name}"
    assert found["error"] == "PredecessorError"
    assert "as asked" in found["message"]
    assert "second-began" not in site.noted()
    _check(site, found)


def _check(site: Site, found: dict[str, Any]) -> None:
    noted = site.noted()
    assert found["seconds"] < LIMIT_SECONDS
    assert found["open"] == []
    assert all(noted.count(word) <= 1 for word in noted), noted
    if found.get("value") is not None:
        assert found["value"] == 42
        assert noted == ["first-began", "first-done", "second-began", "second-done"]
    elif "second-began" in noted:
        assert noted[:2] == ["first-began", "first-done"]
        assert found["error"] == "JobError"  # it was killed in its function
    else:
        assert found["error"] in {"PredecessorError", "JobError", "JobNotFoundError", "ResultMissingError"}, found
