"""A worker holds nothing of its supervisor's: whatever user code writes into small descriptors reaches nobody."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

JOBS = """
    import json
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def held():
        found = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                pass  # the one that listed them
        return found

    @kinetic.run(accelerator="cpu")
    def scribble(until):
        while not os.path.exists(until):
            time.sleep(0.01)
        for number in range(3, 256):
            try:
                os.pwrite(number, b"garbage" * 5000, 0)
            except OSError:
                pass
        return "scribbled"

    @kinetic.run(accelerator="cpu")
    def add(a, b):
        return a + b
"""
SCRIPT = "import json, sys\nimport kinetic\nfrom jobs import *\n"


@pytest.mark.parametrize("portable", [False, True], ids=["linux", "portable"])
def test_a_worker_holds_its_streams_its_report_and_nothing_of_its_supervisor(project, monkeypatch, portable) -> None:
    if portable:
        monkeypatch.setenv("KINETIC_PORTABLE", "1")
    project.write("jobs.py", JOBS)

    found = json.loads(project.out(f"{SCRIPT}add(1, 2)\nprint(json.dumps(held()))"))

    others = [name for number, name in found.items() if int(number) > 2 and not name.startswith("/proc/")]
    own = [name for name in others if "/jobs/cpu-held-" in name]  # its log, and where it answers for its stacks
    pipes = [name for name in others if name.startswith("pipe:")]
    assert len(others) == len(own) + len(pipes), others
    assert len(pipes) == (2 if portable else 1), others


def test_a_job_that_writes_into_every_small_descriptor_harms_no_queue_and_no_other_job(project, home) -> None:
    project.write("jobs.py", JOBS)
    project.write(
        "many.py",
        f"{SCRIPT}jobs = [scribble.run_async(sys.argv[1]), *(add.run_async(n, 1) for n in range(4))]\n"
        "open(sys.argv[1], 'w').close()\nprint(json.dumps([job.result(timeout=60) for job in jobs]))",
    )

    done = project.run("many.py", str(home.parent / "go"))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["scribbled", 1, 2, 3, 4]
    (path,) = home.glob("run/*/queue.db")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
