"""Results that are damaged, jobs of other machines, keys that are elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest


def test_a_damaged_result_does_not_hide_the_other_jobs(submit, kinetic, home) -> None:
    good, damaged = submit("add"), submit("add")
    for job_id in (good, damaged):
        kinetic("jobs", "result", job_id)
    file = home / "store" / damaged / "result.pkl"
    file.write_bytes(file.read_bytes().replace(b'"succeeded"', b'"succeedeb"'))

    told = kinetic("jobs", "list")

    assert {row[0]: row[2] for row in told.rows}[good] == "SUCCEEDED"
    assert "wrong seal" in next(line for line in told.out.splitlines() if line.startswith(damaged))
    refused = kinetic("jobs", "result", damaged)
    assert (refused.code, refused.out) == (1, "")
    assert "[seal]" in refused.err


def test_a_job_of_another_machine_is_listed_with_its_host(submit, kinetic, monkeypatch) -> None:
    job_id = submit("slow", "60")
    monkeypatch.setenv("KINETIC_MACHINE_ID", "another-one")

    (page,) = json.loads(kinetic("jobs", "list", "--json").out)["jobs"]

    assert (page["job_id"], page["where"]) == (job_id, f"host {os.uname().nodename}")
    assert page["status"] in {"PENDING", "RUNNING"}
    assert page["reason"] == "only the machine and home that run it can see it"


def test_a_result_whose_key_is_elsewhere_is_not_opened(submit, kinetic, home) -> None:
    job_id = submit("add")
    kinetic("jobs", "logs", job_id, "--follow")
    (key_id,) = [row[0] for row in kinetic("key", "list").rows]
    key = kinetic("key", "export", key_id).out
    (home / "keys" / key_id).unlink()

    told = kinetic("jobs", "result", job_id, "--save", "result.pkl")

    assert (told.code, told.out) == (1, "")
    assert f"kinetic key export {key_id}" in told.err
    assert kinetic("key", "import", input=key.encode()).code == 0
    assert kinetic("jobs", "result", job_id).out == "{'sum': 3}\n"


def open_files(pid: int) -> set[str]:
    """Return the names of the files that a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed just now
            found.add(os.path.basename(os.readlink(link)))
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc shows when the command waits")
def test_ctrl_c_while_waiting_for_a_result_lets_the_job_go_on(submit, start, kinetic, wait_until) -> None:
    job_id = submit("slow", "60")
    waiting = start("jobs", "result", job_id)
    wait_until(lambda: kinetic("jobs", "status", job_id).out == f"{job_id}: RUNNING\n", "the job's start")
    wait_until(lambda: "completion_pipe" in open_files(waiting.pid), "the command's waiting")

    waiting.send_signal(signal.SIGINT)
    out, told = waiting.communicate(timeout=10)

    assert (waiting.returncode, out) == (130, b"")
    assert f"kinetic jobs cancel {job_id}" in told.decode()
    assert kinetic("jobs", "status", job_id).out == f"{job_id}: RUNNING\n"
