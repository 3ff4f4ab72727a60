"""Sessions that die: the jobs of one go on, and where they will not, one sentence says so."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_job_goes_on_when_the_whole_session_that_submitted_it_is_killed(
    clients: Any, wait_until: Callable[..., None]
) -> None:
    shell = clients.start(
        f"job = {clients.held}\nprint(job.job_id, flush=True)\njob.result()", "setsid", "sh", "-c", '"$@"; exit', "sh"
    )
    assert shell.stdout is not None
    job = shell.stdout.readline().strip()
    wait_until(clients.sign.exists, "the job", 20)
    session = os.getsid(shell.pid)
    doomed = _processes_of_session(session)
    worker = int(clients.sign.read_text())

    os.killpg(session, signal.SIGKILL)
    for pid in _processes_of_session(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shell.communicate(timeout=10)

    assert len(doomed) >= 2  # the shell that leads the session, and the client
    assert session != os.getsid(0)
    assert os.getsid(worker) != session
    assert _processes_of_session(session) == []
    assert clients.status(job) == "RUNNING"
    clients.until.touch()
    assert clients.collect(job)["file"].endswith("jobs.py")


def test_a_call_gets_its_value_when_its_terminal_is_gone_and_the_job_still_prints(
    project: Any, home: Path, tmp_path: Path
) -> None:
    script = project.write(
        "call.py",
        """
        import os
        import sys
        import time
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train(go):
            print("begun", flush=True)
            while not os.path.exists(go):
                time.sleep(0.01)
            print("late", flush=True)
            return 42

        if __name__ == "__main__":
            go, to = sys.argv[1:]
            value = train(go)
            with open(to, "w") as file:
                file.write(str(value))
        """,
    )
    ours, theirs = pty.openpty()
    words = [sys.executable, script, tmp_path / "go", tmp_path / "value"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    client = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environ)
    os.close(theirs)
    shown = b""
    while b"begun" not in shown:
        shown += os.read(ours, 4096)

    os.close(ours)
    (tmp_path / "go").touch()
    client.wait(60)

    assert (tmp_path / "value").read_text() == "42"


def test_where_jobs_end_with_their_session_one_line_of_80_characters_says_so_once_a_day(clients: Any) -> None:
    clients.until.touch()
    said = []
    for job in ("4711", "4711", "4712"):
        client = clients.start(f"{clients.held}\n{clients.held}", SLURM_JOB_ID=job, SLURMD_NODENAME="node07")
        _, err = client.communicate(timeout=30)
        assert client.returncode == 0, err
        (line,) = [line for line in err.splitlines() if "jobs run on this machine" in line]
        said.append(line)

    assert said[0] == "kinetic: jobs run on this machine and end with Slurm job 4711"
    assert said[1] == "kinetic: jobs run on this machine"
    assert said[2].endswith("Slurm job 4712")  # another allocation is news
    assert max(map(len, said)) <= 80


def _processes_of_session(session: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in {"Z", "X"}:
                    found.append(int(name))
    return found
