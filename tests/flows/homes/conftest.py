"""Clients of one home, each a process of its own, and file systems that a test may mount, fill and take away."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

JOBS = """
    import os
    import sys
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def work(until="", sign=""):
        if sign:
            with open(sign, "w") as file:
                file.write(str(os.getpid()))
        print("begun", flush=True)
        while until and not os.path.exists(until):
            time.sleep(0.01)
        return {"written": sorted(os.listdir(".")), "file": __file__}
"""


class Clients:
    """Clients of one home, each a process of its own, on this machine or as if on another one."""

    def __init__(self, project: Any, home: Path) -> None:
        self.project, self.home = project, home
        self.until, self.sign = home.parent / "go", home.parent / "sign"
        self.more: dict[str, str] = {}
        project.write("jobs.py", JOBS)

    @property
    def held(self) -> str:
        """Return a call that works until it is let go."""
        return f"work.run_async({str(self.until)!r}, {str(self.sign)!r})"

    def start(self, code: str, *before: str, **more: str) -> subprocess.Popen[str]:
        """Start a client, behind another command if need be."""
        text = f"import json, os, sys, time\nimport kinetic\nfrom jobs import *\n{code}\n"
        return subprocess.Popen(
            [*before, sys.executable, "-c", text],
            cwd=self.project.root,
            env=self._environment(more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, **more: str) -> Any:
        """Run a client to its good end, and return what it said as JSON on its last line."""
        client = self.start(code, **more)
        out, err = client.communicate(timeout=60)
        assert client.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    def refused(self, code: str, **more: str) -> str:
        """Run a client that fails, and return the last error that it told."""
        client = self.start(code, **more)
        _, err = client.communicate(timeout=60)
        assert client.returncode == 1, err
        assert "kinetic.errors." in err, err
        return err[err.rindex("kinetic.errors.") :]

    def kinetic(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kinetic", *words],
            cwd=self.project.root,
            env=self._environment(more),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def submit(self, call: str = "", **more: str) -> str:
        return str(self.run(f"print(json.dumps({call or self.held}.job_id))", **more))

    def status(self, job: str, **more: str) -> str:
        return str(self.run(f"print(json.dumps(kinetic.attach({job!r}).status().value))", **more))

    def collect(self, job: str, words: str = "timeout=30, cleanup=False", **more: str) -> Any:
        return self.run(f"print(json.dumps(kinetic.attach({job!r}).result({words})))", **more)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        source = str(Path(__file__).parents[3] / "src")
        return {**os.environ, "PYTHONPATH": source, **self.more, **more}

    def rows(self, machine: str = "*") -> list[tuple[str, ...]]:
        (path,) = self.home.glob(f"run/{machine}/queue.db")
        with closing(sqlite3.connect(path, timeout=10)) as db:
            return db.execute("SELECT job_id, state FROM jobs ORDER BY seq").fetchall()


@pytest.fixture
def mount() -> Iterator[Callable[..., Path]]:
    """Return a function that mounts a file system of its own on a folder, or mounts it anew with other options."""
    mounted: list[Path] = []

    def mount_(folder: Path, options: str) -> Path:
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        folder.mkdir(exist_ok=True)
        if os.geteuid() or subprocess.run(words, check=False, capture_output=True).returncode:
            pytest.skip("only root may mount a file system")
        if folder not in mounted:
            mounted.append(folder)
        return folder

    yield mount_
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def clients(project: Any, home: Path, mount: object, request: pytest.FixtureRequest) -> Iterator[Clients]:
    found = Clients(project, home)
    yield found
    flows(request).end_supervisors(found.home)  # before what it is mounted on goes


@pytest.fixture
def end_supervisors(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Return the function that kills the supervisors of a home."""
    end: Callable[[Path], None] = flows(request).end_supervisors
    return end


def flows(request: pytest.FixtureRequest) -> Any:
    """Return what the folder above gives all its tests."""
    return request.config.pluginmanager.get_plugin(os.fspath(Path(__file__).parents[1] / "conftest.py"))
