"""The command line on real jobs: each command is a process of its own, and so is the script that submits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flows.conftest import Told

SOURCE = Path(__file__).parents[3] / "src"

SCRIPT = """
    import sys, time
    import kinetic

    class Grid:
        def __init__(self, side): self.side = side

    @kinetic.run(accelerator="cpu")
    def add(a, b):
        for number in range(10):
            print("line", number)
        print("[/tmp/x] [bold]as it is[/bold]")
        return {"sum": a + b}

    @kinetic.run(accelerator="cpu")
    def bad():
        print("about to fail")
        raise ValueError("no such thing [/tmp/x]")

    @kinetic.run(accelerator="cpu")
    def raw():
        sys.stdout.flush()
        sys.stdout.buffer.write(b"one\\n\\xff\\xfe two\\nno end")
        sys.stdout.flush()
        return "plain [text]"

    @kinetic.run(accelerator="cpu")
    def slow(seconds):
        print("started", flush=True)
        time.sleep(seconds)
        print("ended")
        return seconds

    @kinetic.run(accelerator="cpu")
    def strange():
        return float("nan"), {1}

    calls = {"add": (1, 2), "bad": (), "raw": (), "strange": (), "slow": tuple(map(float, sys.argv[2:]))}
    print(globals()[sys.argv[1]].run_async(*calls[sys.argv[1]]).job_id)
"""


@pytest.fixture
def submit(project) -> Callable[..., str]:
    """Return a function that submits a job from a script, and returns its id."""
    project.write("script.py", SCRIPT)

    def run(*words: str) -> str:
        done = project.run("script.py", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def kinetic(home, tmp_path, command) -> Callable[..., Told]:
    """Return a function that runs a command to its end, away from the project."""

    def run(*words: str, **more: object) -> Told:
        done = subprocess.run(
            [*command, *words],
            capture_output=True,
            env=environment_now(),
            cwd=tmp_path,
            timeout=60,
            check=False,
            **more,
        )
        return Told(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())

    return run


@pytest.fixture
def start(home, tmp_path, command) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a command and does not wait for it; what is left of it ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*words: str) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment_now(), cwd=tmp_path
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def environment_now() -> dict[str, str]:
    """Return the environment of a command, with what a test has set by now."""
    # A worker of xdist carries COLUMNS, which would overrule the width of a test's own terminal.
    ours = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    return {**ours, "PYTHONPATH": str(SOURCE), "NO_COLOR": "1"}


@pytest.fixture
def environment(home) -> dict[str, str]:
    """Return the environment of a command."""
    return environment_now()


@pytest.fixture
def command() -> list[str]:
    """Return how a command begins."""
    return [sys.executable, "-m", "kinetic"]
