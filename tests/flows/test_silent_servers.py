"""A bucket or a cluster that takes a connection and never answers: what is waited for is said, on a terminal or not."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

SOURCE = Path(__file__).parents[2] / "src"
SCRIPT = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def one():
        return 1

    print(one())
"""


@pytest.fixture
def silent() -> Iterator[str]:
    """Give the address of a server that answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def shown_until(words: str, project: Any, arguments: list[str], **variables: str) -> str:
    """Run Python on a terminal until it has shown some words, end it, and return all that it showed."""
    leader, follower = pty.openpty()
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "PYTHONPATH": path, "TERM": "xterm", **variables},
        cwd=project.root,
        start_new_session=True,
    )
    os.close(follower)
    shown, limit = b"", time.monotonic() + 15
    try:
        while words.encode() not in shown and time.monotonic() < limit:
            shown += os.read(leader, 1 << 16)
    except OSError:  # Linux says so when the last process has let go of the terminal
        pass
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    return shown.decode()


@pytest.fixture
def cluster(silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point kinetic at a cluster whose API server is silent, and so is its bucket."""
    user = {"name": "u", "user": {"token": "t"}}
    there = {"name": "c", "cluster": {"server": f"http://{silent}"}}
    context = {"name": "silent", "context": {"cluster": "c", "user": "u"}}
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [there], "users": [user], "contexts": [context]}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.setenv("KINETIC_BACKEND", "gke")
    monkeypatch.setenv("KINETIC_KUBE_CONTEXT", "silent")
    monkeypatch.setenv("KINETIC_STORE", "gs://jobs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{silent}")


def test_who_submits_sees_that_the_cluster_is_asked(project, cluster) -> None:
    project.write("one.py", SCRIPT)

    assert "kinetic: asking the cluster, 2 s" in shown_until("asking the cluster, 2 s", project, ["one.py"])


def test_who_submits_sees_that_the_store_is_asked(project, silent, monkeypatch) -> None:
    project.write("one.py", SCRIPT)
    monkeypatch.setenv("KINETIC_STORE", "gs://jobs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{silent}")

    assert "kinetic: asking the store, 2 s" in shown_until("asking the store, 2 s", project, ["one.py"])


def test_who_lists_jobs_sees_that_they_are_looked_at(project, cluster) -> None:
    words = "kinetic: looking at the jobs, 2 s"

    assert words in shown_until(words, project, ["-m", "kinetic", "jobs", "list"])


def test_who_asks_for_a_job_sees_that_it_is_looked_for(project, cluster) -> None:
    words = "kinetic: looking for the job, 2 s"

    assert words in shown_until(words, project, ["-m", "kinetic", "jobs", "status", "@last"])


def test_without_a_terminal_who_waits_is_told_once_and_standard_output_stays_for_the_answer(project, cluster) -> None:
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "kinetic", "jobs", "list", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        cwd=project.root,
    )
    try:
        assert process.stderr is not None
        told = process.stderr.readline()  # the test's own limit is for when it never comes
    finally:
        process.kill()
        rest, _ = process.communicate()

    assert re.fullmatch(r"kinetic: still looking at the jobs after \d+ s\n", told.decode())
    assert rest == b""
