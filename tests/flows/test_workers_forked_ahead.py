"""A supervisor without a job has a worker that waits for one; whatever happens to that worker harms no job."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from kinetic._runner import processes
from kinetic._runner.supervisor import worker_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")

JOBS = """
    import json
    import os
    import sys
    import kinetic

    def found():
        kept = {name: os.environ.get(name) for name in ("KINETIC_JOB_ID", "SECRET_OF_ONE", "KINETIC_ATTEMPT")}
        return [os.getpid(), os.getppid(), os.getpgid(0), os.getcwd(), kept]

    @kinetic.run(accelerator="cpu")
    def about():
        return found()

    @kinetic.run(accelerator="cpu", capture_env_vars=["SECRET_OF_ONE"])
    def secretive():
        return found()

    def call(function):
        os.environ["SECRET_OF_ONE"] = "told"
        return json.dumps(function())
"""
CALL = "from jobs import *\nprint(call(about))"


def spares() -> dict[int, int]:
    """Return the processes that wait for a task, and their parents."""
    found = {int(name): processes.status(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: int(each["PPid"]) for pid, each in found.items() if each.get("Name") == worker_process.SPARE}


@pytest.fixture
def spare(project, home, wait_until):
    """Run a first job, and return what finds its supervisor and the worker that waits there, once it does."""
    project.write("jobs.py", JOBS)
    supervisor = json.loads(project.out(CALL))[1]

    def found() -> tuple[int, int]:
        wait_until(lambda: supervisor in spares().values(), "a worker that waits for its task")
        return supervisor, next(pid for pid, parent in spares().items() if parent == supervisor)

    return found


def test_a_worker_that_waited_knows_only_its_own_job(spare, project) -> None:
    supervisor, waiting = spare()

    first = json.loads(project.out("from jobs import *\nprint(call(secretive))"))
    spare()
    second = json.loads(project.out(CALL))

    assert first[0] == waiting
    for pid, parent, group, folder, kept in (first, second):
        assert (parent, group) == (supervisor, pid)
        assert Path(folder).parent.name == kept["KINETIC_JOB_ID"]
        assert kept["KINETIC_ATTEMPT"] == "0"
    assert (first[4]["SECRET_OF_ONE"], second[4]["SECRET_OF_ONE"]) == ("told", None)
    assert first[4]["KINETIC_JOB_ID"] != second[4]["KINETIC_JOB_ID"]


def test_a_job_runs_also_when_the_worker_that_waited_for_it_was_killed(spare, project) -> None:
    supervisor, waiting = spare()
    os.kill(waiting, signal.SIGKILL)

    pid, parent, *_ = json.loads(project.out(CALL))

    assert parent == supervisor
    assert pid != waiting
    assert spare()[1] != waiting  # and there is another one


def test_it_ends_with_its_supervisor_however_that_ends(spare, project, wait_until) -> None:
    supervisor, waiting = spare()

    os.kill(supervisor, signal.SIGKILL)

    wait_until(lambda: waiting not in spares(), "its end")
    assert json.loads(project.out(CALL))[1] != supervisor


def test_one_that_waits_does_the_first_child_of_a_batch_and_leaves_none_behind(spare, project) -> None:
    supervisor, waiting = spare()

    found = json.loads(project.out("from jobs import *\nprint(json.dumps(about.run_async_map([()] * 8).results()))"))

    assert waiting in {each[0] for each in found}
    assert len({each[0] for each in found}) == 8
    assert len({each[4]["KINETIC_JOB_ID"] for each in found}) == 8
    assert spare()[0] == supervisor
    assert list(spares().values()).count(supervisor) == 1
