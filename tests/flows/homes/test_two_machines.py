"""Two machines over one home: jobs of the other are seen, waited for, cancelled, removed, and never called failed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE, THERE = {"KINETIC_MACHINE_ID": "here"}, {"KINETIC_MACHINE_ID": "there"}


@pytest.fixture
def running_there(clients: Any, wait_until: Callable[..., None]) -> str:
    job = clients.submit(**THERE)
    wait_until(clients.sign.exists, "the job on the other machine", 20)
    return job


def test_a_job_of_another_machine_is_listed_with_its_host_and_runs_until_that_host_says_otherwise(
    clients: Any, running_there: str
) -> None:
    told = clients.kinetic("jobs", "list", **HERE)
    explained = clients.kinetic("jobs", "explain", running_there, **HERE)
    page = json.loads(clients.kinetic("jobs", "list", "--json", **HERE).stdout)

    assert told.returncode == 0, told.stderr
    (line,) = [line for line in told.stdout.splitlines() if running_there in line]
    assert "RUNNING" in line
    assert f"host {os.uname().nodename}" in line
    assert running_there in json.dumps(page)
    assert clients.status(running_there, **HERE) == "RUNNING"
    again = f"kinetic jobs explain {running_there}"
    assert f"if this machine is the same under a new name: KINETIC_MACHINE_ID=there {again}" in explained.stdout
    assert explained.stdout.endswith(f"or on that machine: {again}\n")


def test_a_job_whose_machine_is_lost_is_never_called_failed_on_another(
    clients: Any, running_there: str, end_supervisors: Callable[[Path], None]
) -> None:
    end_supervisors(clients.home)
    shutil.rmtree(clients.home / "run" / "there")

    assert clients.status(running_there, **HERE) == "RUNNING"


def test_a_job_that_waits_on_another_machine_is_pending_here(clients: Any, running_there: str) -> None:
    waits = clients.submit(**THERE, KINETIC_LOCAL_SLOTS="1")

    assert clients.status(waits, **HERE) == "PENDING"
    clients.until.touch()
    assert clients.collect(waits, **HERE)


@pytest.mark.parametrize("by", [HERE, THERE], ids=["here", "there"])
def test_a_job_of_another_machine_is_waited_for_and_collected_on_either(
    clients: Any, running_there: str, by: dict[str, str], wait_until: Callable[..., None]
) -> None:
    waiting = clients.start(f"print(json.dumps(kinetic.attach({running_there!r}).result(timeout=40)))", **by)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.5)

    clients.until.touch()
    out, err = waiting.communicate(timeout=40)

    assert waiting.returncode == 0, err
    assert json.loads(out)["file"].endswith("jobs.py")
    for machine in (HERE, THERE):
        wait_until(lambda machine=machine: clients.kinetic("jobs", "list", **machine).stdout.count("cpu-") == 0)
        assert "SUCCEEDED" in clients.kinetic("jobs", "list", "--all", **machine).stdout


def test_a_job_of_another_machine_is_cancelled_at_once_and_its_process_ends_when_its_supervisor_looks(
    clients: Any, running_there: str, wait_until: Callable[..., None]
) -> None:
    told = clients.kinetic("jobs", "cancel", running_there, **HERE)
    refused = clients.refused(f"kinetic.attach({running_there!r}).result()", **HERE)
    _ring(clients.home / "run" / "there")  # it looks once a minute by itself

    assert told.returncode == 0, told.stderr
    assert f"runs on host {os.uname().nodename}; its processes there end within a minute" in told.stderr
    assert "JobCancelledError" in refused
    pid = int(clients.sign.read_text())
    wait_until(lambda: not _is_alive(pid), "the end of the worker", 20)
    assert clients.status(running_there, **THERE) == "NOT_FOUND"
    wait_until(lambda: clients.rows("there")[0][1:] == ("ended",), "the end of the row")


def test_a_job_of_another_machine_that_is_removed_while_it_runs_leaves_nothing_behind(
    clients: Any, running_there: str, wait_until: Callable[..., None]
) -> None:
    told = clients.kinetic("jobs", "cleanup", running_there, **HERE)
    _ring(clients.home / "run" / "there")

    assert told.returncode == 0, told.stderr
    assert f"runs on host {os.uname().nodename}; its processes there end within a minute" in told.stderr
    pid = int(clients.sign.read_text())
    wait_until(lambda: not _is_alive(pid), "the end of the worker", 20)
    wait_until(lambda: clients.rows("there") == [], "the end of the row")
    wait_until(lambda: not (clients.home / "store" / running_there).exists(), "an empty store")
    wait_until(lambda: not (clients.home / "run" / "there" / "jobs" / running_there).exists(), "an empty machine")


def test_a_job_of_another_home_of_this_machine_that_has_the_same_store_is_not_called_failed_and_is_cancelled(
    clients: Any, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    job = clients.submit()
    wait_until(clients.sign.exists, "the job of the first home", 20)
    other = {"KINETIC_HOME": str(tmp_path / "other"), "KINETIC_STORE": f"file://{clients.home}/store"}
    (tmp_path / "other" / "keys").mkdir(parents=True)
    (key,) = [path for path in (clients.home / "keys").iterdir() if path.name != "this-home"]
    shutil.copy(key, tmp_path / "other" / "keys")

    listed = clients.kinetic("jobs", "list", **other)
    explained = clients.kinetic("jobs", "explain", job, **other)
    told = clients.kinetic("jobs", "cancel", job, **other)
    _ring(next((clients.home / "run").iterdir()))

    assert "RUNNING" in listed.stdout
    assert "another home of this machine" in listed.stdout
    assert explained.stdout.endswith(f"next:  with the KINETIC_HOME that submitted it: kinetic jobs explain {job}\n")
    assert "runs on another home of this machine; its processes there end within a minute" in told.stderr
    pid = int(clients.sign.read_text())
    wait_until(lambda: not _is_alive(pid), "the end of the worker", 20)


def test_a_job_that_waits_on_another_machine_and_is_removed_never_begins(
    clients: Any, running_there: str, wait_until: Callable[..., None]
) -> None:
    sign = clients.home.parent / "never"
    waits = clients.submit(f"work.run_async('', {str(sign)!r})", **THERE, KINETIC_LOCAL_SLOTS="1")

    clients.run(f"kinetic.attach({waits!r}).cleanup()\nprint(1)", **HERE)
    clients.until.touch()

    assert clients.collect(running_there, **THERE)
    wait_until(lambda: clients.rows("there") == [(running_there, "ended")], "the end of the row")
    assert not sign.exists()
    assert not (clients.home / "store" / waits).exists()


def _ring(runtime: Path) -> None:
    """Let the supervisors of a machine look now instead of within a minute."""
    for wake in runtime.glob("supervisors/*.wake"):
        with contextlib.suppress(OSError):
            descriptor = os.open(wake, os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, b"w")
            os.close(descriptor)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def test_jobs_of_a_home_that_was_moved_are_there_after_the_command_of_the_error(clients: Any, tmp_path: Path) -> None:
    clients.until.touch()
    job = clients.submit()
    assert clients.collect(job)
    moved = tmp_path / "a home that moved"
    clients.home.rename(moved)

    refused = clients.kinetic("jobs", "status", job, KINETIC_HOME=str(moved)).stderr
    (advice,) = [line for line in refused.splitlines() if line.startswith("next:")]
    subprocess.run(["sh", "-c", advice.partition("moved here: ")[2]], check=True)
    listed = clients.kinetic("jobs", "list", KINETIC_HOME=str(moved))
    value = clients.collect(job, KINETIC_HOME=str(moved))

    assert "it was written for another store" in refused
    assert job in listed.stdout
    assert "unverified" not in listed.stderr
    assert value["file"].endswith("jobs.py")


@pytest.mark.parametrize("linked_late", [False, True], ids=["linked-at-once", "linked-after-the-running-job-ended"])
def test_jobs_that_run_and_wait_while_their_home_is_moved_end_with_their_values_after_the_commands_of_the_errors(
    clients: Any, tmp_path: Path, wait_until: Callable[..., None], *, linked_late: bool
) -> None:
    clients.more["KINETIC_LOCAL_SLOTS"] = "1"
    runs, waits = clients.submit(), clients.submit()
    wait_until(clients.sign.exists, "the first job", 20)
    old, moved = clients.home, tmp_path / "a home that moved"
    old.rename(moved)
    clients.home, clients.more["KINETIC_HOME"] = moved, str(moved)

    if linked_late:
        clients.until.touch()
        wait_until(lambda: clients.kinetic("jobs", "list") and [*old.glob("store/*/result.pkl")], "its end", 30)
    later = clients.submit()  # looks after the queue, too
    _follow_advice(clients.kinetic("jobs", "status", runs).stderr)
    explained = clients.kinetic("jobs", "explain", waits).stdout
    if linked_late:
        _follow_advice(explained)
    clients.until.touch()
    values = [clients.collect(job) for job in (runs, waits, later)]

    assert ("waits for its kinetic home, " in explained) is linked_late
    assert all(value["written"] for value in values)
    assert [state for _, state in clients.rows()] == ["ended"] * 3


def _follow_advice(said: str) -> None:
    (advice,) = [line for line in said.splitlines() if line.startswith("next:")]
    command = advice.partition("moved here: ")[2].partition("     or ")[0]
    assert command, said
    subprocess.run(["sh", "-c", command], check=True)


def test_a_copy_of_a_home_neither_ends_nor_starts_the_jobs_of_the_first_one(
    clients: Any, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    clients.more |= {"KINETIC_LOCAL_SLOTS": "1", "KINETIC_STORE": f"file://{tmp_path / 'store'}"}
    runs, waits = clients.submit(), clients.submit()
    wait_until(clients.sign.exists, "the first job", 20)
    copy = {"KINETIC_HOME": str(tmp_path / "copy")}
    subprocess.run(["cp", "-a", str(clients.home), copy["KINETIC_HOME"]], check=True)

    listed = [clients.kinetic("jobs", "list", **copy).stdout for _ in range(2)][-1]
    explained = clients.kinetic("jobs", "explain", waits, **copy).stdout
    before = [clients.status(job) for job in (runs, waits)]
    clients.until.touch()
    values = [clients.collect(job) for job in (runs, waits)]
    own = clients.submit("work.run_async()", **copy)
    clients.collect(own, **copy)

    assert before == ["RUNNING", "PENDING"]
    assert [line.split()[2] for line in listed.splitlines()[1:]] == ["PENDING", "RUNNING"]
    assert f"waits for its kinetic home, {clients.home}" in explained
    assert "this home is a copy" in explained
    assert all(value["written"] for value in values)
