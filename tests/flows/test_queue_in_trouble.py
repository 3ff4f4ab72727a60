"""The queue is damaged, gone, out of reach or held by somebody who was stopped: no job is lost and no value either."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from kinetic._runner import processes

JOBS = """
    import json
    import os
    import sys
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def stay(until, value):
        print("begun", flush=True)
        while not os.path.exists(until):
            time.sleep(0.01)
        return value

    @kinetic.run(accelerator="cpu")
    def add(a, b):
        return a + b
"""
HEAD = "from jobs import *\nwords = sys.argv[1:]\n"
BEGIN = """
running = stay.run_async(words[0], 1)
while not running.logs(): time.sleep(0.01)
print(json.dumps([running.job_id]))
"""
COLLECT = "print(json.dumps([kinetic.attach(word).result(timeout=60) for word in words]))"

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def client(project, home):
    """Return a function that runs a client and returns what it printed as JSON, and what it wrote to stderr."""
    project.write("jobs.py", JOBS)

    def run(code: str, *words: str) -> tuple[object, str]:
        project.write("client.py", HEAD + code)
        done = project.run("client.py", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run


def queue_of(home: Path) -> Path:
    (found,) = home.glob("run/*/queue.db")
    return found


def overwrite(queue: Path) -> None:
    for path in queue.parent.glob("queue.db*"):
        with path.open("r+b") as file:
            file.write(b"garbage" * (path.stat().st_size // 7))


def remove(queue: Path) -> None:
    for path in queue.parent.glob("queue.db*"):
        path.unlink()


@pytest.mark.parametrize(("damage", "said"), [(overwrite, "was damaged; "), (remove, "was gone")])
def test_jobs_that_run_and_jobs_that_wait_survive_their_queue(client, home, monkeypatch, damage, said) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    go = str(home.parent / "go")
    (running,), _ = client(BEGIN, go)
    waiting, _ = client("print(json.dumps([add.run_async(number, 1).job_id for number in range(3)]))")

    damage(queue_of(home))
    states, told = client(
        "print(json.dumps([kinetic.attach(word).status().value for word in words]))", running, *waiting
    )
    Path(go).touch()
    values, _ = client(COLLECT, running, *waiting)

    assert states == ["RUNNING", "PENDING", "PENDING", "PENDING"]
    assert f"the queue of this machine {said}" in told
    assert "3 pending, 1 running" in told
    assert values == [1, 1, 2, 3]
    kept = [*queue_of(home).parent.glob("queue.db.damaged-*")]
    assert bool(kept) == (damage is overwrite)
    assert client("print(json.dumps(add(1, 2)))")[1].count("queue of this machine") == 0


def test_a_job_that_ran_when_supervisor_and_queue_were_lost_is_lost_with_a_reason(
    client, home, living_processes
) -> None:
    (running,), _ = client(BEGIN, str(home.parent / "never"))
    for pid in living_processes(home):
        os.kill(pid, signal.SIGKILL)
    overwrite(queue_of(home))

    told, _ = client(
        """
try:
    kinetic.attach(words[0]).result(timeout=60)
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
""",
        running,
    )

    assert told[0] == "JobLostError" or "was killed" in told[1]


def test_a_queue_that_cannot_be_used_while_a_job_runs_costs_it_nothing(
    client, home, wait_until, living_processes
) -> None:
    go = str(home.parent / "go")
    (running,), _ = client(BEGIN, go)
    queue, aside = queue_of(home), home.parent / "aside"
    aside.mkdir()
    for path in queue.parent.glob("queue.db*"):
        shutil.move(path, aside)
    queue.mkdir()  # nobody can open that

    Path(go).touch()
    wait_until(
        lambda: (home / "store" / running / "result").exists() or not living_processes(home), "the end of the job"
    )
    wait_until(lambda: not living_processes(home), "the end of its supervisor", seconds=30)
    queue.rmdir()
    for path in aside.iterdir():
        shutil.move(path, queue.parent)

    assert client(COLLECT, running)[0] == [1]


STOPPED = """
import signal
from kinetic._jobs import locate as places
handle = add.run_async(1, 1)
with places.backend_of(handle).queue.change():
    os.kill(os.getpid(), signal.SIGSTOP)
print(json.dumps(handle.result(timeout=60)))
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system does not tell who holds a lock")
def test_a_client_that_is_stopped_inside_a_transaction_holds_up_neither_jobs_nor_other_clients(
    project, client, home, wait_until
) -> None:
    go = str(home.parent / "go")
    (running,), _ = client(BEGIN, go)
    project.write("stopped.py", HEAD + STOPPED)
    stopped = project.start("stopped.py")
    wait_until(lambda: processes.state(stopped.pid) == "T", "the stop of the client")

    Path(go).touch()
    values, _ = client("values = [add(1, number) for number in range(3)]\n" + COLLECT, running)
    state = processes.state(stopped.pid)
    stopped.send_signal(signal.SIGCONT)
    out, err = stopped.communicate(timeout=60)

    assert values == [1]
    assert state == "T"
    assert json.loads(out) == 2, err


def test_several_clients_find_the_same_damage_and_repair_it_once(project, client, home) -> None:
    client("print(json.dumps(add(1, 2)))")
    overwrite(queue_of(home))
    project.write("client.py", HEAD + "print(json.dumps([add.run_async(n, 1).result(timeout=60) for n in range(3)]))")

    clients = [project.start("client.py") for _ in range(4)]
    told = [each.communicate(timeout=100) for each in clients]

    assert [json.loads(out) for out, _ in told] == [[1, 2, 3]] * 4, told
    kept = [path.name for path in queue_of(home).parent.glob("queue.db.damaged-*")]
    assert len([name for name in kept if not name.endswith(("-wal", "-shm"))]) == 1
