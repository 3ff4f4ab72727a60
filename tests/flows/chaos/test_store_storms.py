"""A bucket in a storm: requests fail, answers are lost, cut or old. Jobs and batches end right all the same."""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from flows.conftest import last_json
from servers.faults import Fault, FaultyProxy
from servers.gcs import GcsServer

SEED = int(
    os.environ.get("KINETIC_STORM_SEED") or int(os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)[:6], 16)
)
KINDS = ["status", "status", "drop", "half", "lose", "cut", "slow"]

SCRIPT = """
    import json
    import sys
    import kinetic

    @kinetic.run(accelerator="cpu")
    def double(number, notes):
        with open(notes, "a") as file:
            file.write(f"{number}\\n")
        return {"double": number * 2, "bytes": b"x" * 200_000}

    if __name__ == "__main__":
        what, notes = sys.argv[1:]
        if what == "jobs":
            jobs = [double.run_async(number, notes) for number in range(6)]
            print(json.dumps([job.result(timeout=100)["double"] for job in jobs]))
        else:
            batch = double.run_async_map([(number, notes) for number in range(12)], max_concurrent=4)
            print(json.dumps([value["double"] for value in batch.results(timeout=100)]))
"""


class Storm(FaultyProxy):
    """A proxy that harms every tenth request, and answers every tenth listing as it was a moment ago."""

    def __init__(self, upstream: str, draw: random.Random) -> None:
        super().__init__(upstream)
        self._draw = draw
        self._harm = threading.Lock()
        self.harmed = 0

    def due(self, method: str, target: str) -> Fault | None:
        with self._harm:
            if self._draw.random() > 0.1:
                return None
            self.harmed += 1
            is_listing = method == "GET" and "prefix=" in target
            return Fault("stale" if is_listing and self._draw.random() < 0.5 else self._draw.choice(KINDS))


@pytest.fixture
def storm(home: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storm]:
    server = GcsServer().start()
    server.bucket("jobs-in-a-storm")
    proxy = Storm(server.url, random.Random(SEED))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    monkeypatch.setenv("KINETIC_STORE", "gs://jobs-in-a-storm")
    yield proxy
    proxy.close()
    server.close()


@pytest.mark.parametrize("what", ["jobs", "batch"])
def test_every_value_arrives_once_and_no_function_runs_twice(
    project: Any, storm: Storm, tmp_path: Any, what: str
) -> None:
    print(f"KINETIC_STORM_SEED={SEED}")
    project.write("storm.py", SCRIPT)
    notes = tmp_path / "notes"

    done = project.run("storm.py", what, str(notes), timeout=115)

    count = 6 if what == "jobs" else 12
    assert done.returncode == 0, done.stderr
    assert last_json(done.stdout) == [number * 2 for number in range(count)]
    assert sorted(map(int, notes.read_text().split())) == [*range(count)]
    assert storm.harmed > 5  # otherwise it was a breeze
