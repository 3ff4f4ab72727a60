"""`kinetic top` on a terminal, rendered, and without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

TOP = [sys.executable, "-m", "kinetic", "top"]
JOBS = """
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def hold(until):
        data = b"x" * (100 << 20)
        while not os.path.exists(until):
            pass
"""


@pytest.fixture
def running(project: Any) -> Iterator[str]:
    """The id of a job that burns CPU, holds 100 MiB, and was measured already."""
    project.write("jobs.py", JOBS)
    until = project.root / "until"
    yield project.out(f"""
        import time
        from jobs import hold
        job = hold.run_async({str(until)!r})
        while not job.usage().hosts:
            time.sleep(0.05)
        print(job.job_id)
    """).strip()
    until.touch()


def on_a_terminal(project: Any, *words: str, **how: Any) -> Any:
    return project.watch("-m", "kinetic", "top", *words, **how)


def test_a_running_job_is_shown_live_until_q_and_the_terminal_is_left_as_it_was(project: Any, running: str) -> None:
    command = f"{' '.join(TOP)} --interval 1s; echo code $?; stty -a"

    seen = project.watch(
        "-c", f"import os; os.execvp('sh', ['sh', '-c', {command!r}])", press=(" % ", b"x"), then=[(" % ", b"q")]
    )

    table = [frame for frame in seen.frames if running in frame and " % " in frame][-1]
    assert "1 job running; CPU " in table
    assert "q: quit" in table
    assert "JOB ID" in table
    assert " MB of " in table
    assert "code 0" in seen.screen
    assert " icanon" in seen.screen
    assert " echo " in seen.screen
    assert running not in seen.screen  # nothing of the picture stays


def test_ctrl_c_ends_it_and_no_job(project: Any, running: str) -> None:
    seen = on_a_terminal(project, press=(" % ", b"\x03"))

    assert seen.code == 0
    assert "Traceback" not in seen.screen
    page = json.loads(project.kinetic("top", "--json").stdout)
    assert [job["status"] for job in page["jobs"]] == ["RUNNING"]


def test_on_a_narrow_terminal_no_line_is_broken(project: Any, running: str) -> None:
    for columns in (40, 60):
        seen = on_a_terminal(project, press=(running, b"x"), then=[(running, b"q")], columns=columns, rows=8)

        lines = [frame for frame in seen.frames if running in frame][-1].splitlines()
        assert len(lines) == 4
        assert lines[1].startswith("JOB ID")
        assert lines[2].startswith(running)
        assert lines[3].startswith("the terminal is too narrow for ")
        assert all(len(line) < columns for line in lines)


def test_without_a_terminal_one_snapshot_is_printed_and_json_has_all_of_it(project: Any, running: str) -> None:
    told = project.kinetic("top")
    page = json.loads(project.kinetic("top", "--json").stdout)

    assert told.returncode == 0
    head, line = told.stdout.splitlines()
    assert head.split()[:2] == ["JOB", "ID"]
    assert line.startswith(running)
    assert "\x1b" not in told.stdout
    assert page["schema_version"] == 1
    (job,) = page["jobs"]
    assert job["job_id"] == running
    assert 100 << 20 < job["now"]["memory_bytes"] < 200 << 20
    assert job["usage"]["peak"]["memory_bytes"] >= job["now"]["memory_bytes"]


def test_without_jobs_it_says_so(project: Any) -> None:
    told = project.kinetic("top")

    assert (told.returncode, told.stdout, told.stderr) == (0, "", "There are no running or pending jobs\n")
    assert json.loads(project.kinetic("top", "--json").stdout)["jobs"] == []
