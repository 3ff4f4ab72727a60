"""A kinetic home for each test, projects of a test's own, and an end for every process that a test left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
from servers import terminal
from waiting import until

from kinetic import JobHandle, attach
from kinetic._config.home import runtime_folder

Done: TypeAlias = "subprocess.CompletedProcess[str]"
SOURCE = Path(__file__).parents[2] / "src"
KINETIC = (sys.executable, "-m", "kinetic")
MARK = "KINETIC_SUPERVISOR"  # in the environment of a supervisor and of everything below it


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the test its own kinetic home, with nothing of ours left in the environment, and end its supervisors.

    The code of supervisors is made once for all homes, which takes a fifth of a second of the processor: not for those
    in homes/, and not for tests marked ``own_runner``.
    """
    for name in [*os.environ]:
        if name.startswith("KINETIC_") or name == "GOOGLE_CLOUD_PROJECT":
            monkeypatch.delenv(name)
    found = tmp_path / "home"
    monkeypatch.setenv("KINETIC_HOME", str(found))
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "2")  # the same on every machine, and gentle on small ones
    if request.path.parent.name != "homes" and not request.node.get_closest_marker("own_runner"):
        share_runner(runtime_folder(os.environ), request.getfixturevalue("tmp_path_factory"))
    yield found
    end_supervisors(found)


@pytest.fixture(scope="session")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the code that travels into pods."""
    from kinetic._project import runner_bundle

    path = tmp_path_factory.mktemp("zip") / "runner.zip"
    path.write_bytes(runner_bundle.build().data)
    return path


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let libraries compute with one thread, where what a program prints is what counts.

    Where three processes share two cores, threads of OpenBLAS that wait for one another take most of the time of a
    small training: of 20 epochs 2.3 s instead of 0.3 s.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def share_runner(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have the supervisors of a new home run the code that is there for all homes of this process of the run."""
    shared = tmp_path_factory.getbasetemp() / "runners"
    for folder in (shared, runtime.parents[1], runtime.parent, runtime):  # of a home: run/, and this machine's
        folder.mkdir(mode=0o700, exist_ok=True)
    (runtime / "runners").symlink_to(shared)


def end_supervisors(home: Path) -> None:
    """Kill every supervisor of a home and everything below it, found by the mark in its environment."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        found = processes_of(home)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)  # they need a moment to be gone, and what they forked meanwhile shows up
    raise RuntimeError(f"processes of {home} would not end: {processes_of(home)}")


def processes_of(home: Path) -> list[int]:
    """Return the living processes of a home: its supervisors, their workers, and whatever those started.

    Not those that wait for a task: they belong to no job, and end with their supervisor.
    """
    wanted = {f"{MARK}={name}".encode() for name in supervisors_of(home)}
    if not wanted:
        return []
    if not Path("/proc/self/environ").exists():
        return _by_ps(wanted)
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted & set(Path(f"/proc/{name}/environ").read_bytes().split(b"\0")) and _is_of_a_job(name):
                    found.append(int(name))
    return found


def supervisors_of(home: Path) -> set[str]:
    """Return the names of all supervisors that a home knows: from its queue, and from the locks that they hold."""
    names = {lock.stem for lock in home.glob("run/*/supervisors/*.lock")}
    for queue in home.glob("run/*/queue.db"):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(queue, timeout=5)) as db:
            names |= {row[0] for row in db.execute("SELECT supervisor FROM supervisors")}
            names |= {row[0] for row in db.execute("SELECT supervisor FROM jobs WHERE supervisor IS NOT NULL")}
    return names


def _is_of_a_job(pid: str) -> bool:
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return rest.split()[:1] not in [[], ["Z"], ["X"]] and not name.endswith("(kinetic-spare")


def _by_ps(wanted: set[bytes]) -> list[int]:
    """Ask ps, which shows the environment of one's own processes on macOS."""
    listing = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, check=False).stdout
    return [int(line.split(None, 1)[0]) for line in listing.splitlines() if wanted & set(line.split())]


def last_json(text: str) -> Any:
    """Return the last line that a program printed, as JSON."""
    return json.loads(text.splitlines()[-1])


class Told(NamedTuple):
    """How a command of kinetic ended."""

    code: int
    out: str
    err: str

    @classmethod
    def of(cls, done: subprocess.CompletedProcess[str]) -> Told:
        return cls(done.returncode, done.stdout, done.stderr)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each row of the table that was printed."""
        return [line.split() for line in self.out.splitlines()[1:]]


class Project:
    """A folder with the sources of a user's project, and ways to run a script of it in a process of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.write("pyproject.toml", '[project]\nname = "theirs"\nversion = "1"\n')

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project; the text may be indented."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def run(self, script: str, *words: str, python: str = sys.executable, **how: Any) -> Done:
        """Run a script of the project, or ``-c`` and a text, to its end."""
        return self.execute(python, script if script == "-c" else str(self.root / script), *words, **how)

    def kinetic(self, *words: str, **how: Any) -> Done:
        """Run a command of kinetic in the project's folder to its end."""
        return self.execute(*KINETIC, *words, **how)

    def execute(self, *command: str, cwd: Path | None = None, timeout: float = 60) -> Done:
        """Run a command line in the project's folder to its end."""
        how: dict[str, Any] = {"env": environment(), "capture_output": True, "text": True, "timeout": timeout}
        return subprocess.run(command, cwd=cwd or self.root, check=False, **how)

    def out(self, text: str, *words: str, python: str = sys.executable, timeout: float = 60) -> str:
        """Write a script, run it to its good end, and return what it printed."""
        self.write("script.py", text)
        done = self.run("script.py", *words, python=python, timeout=timeout)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def watch(self, *words: str, **how: Any) -> terminal.Seen:
        """Run Python with some words on a terminal of its own, to its end, and return what stood on the screen."""
        return terminal.run([sys.executable, *words], cwd=self.root, env=environment(), **how)

    def start(self, script: str, *words: str, python: str = sys.executable) -> subprocess.Popen[str]:
        """Start a script of the project and do not wait for it."""
        return subprocess.Popen(
            [python, str(self.root / script), *words],
            cwd=self.root,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def environment() -> dict[str, str]:
    """Return this process's environment, with our sources on the path: the suite may run without an installation."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def project(home: Path, tmp_path: Path) -> Project:
    """Give the test an empty project beside its home."""
    return Project(tmp_path / "project")


SOON = 5.0  # seconds within which a finished job is collected, whatever it left behind
HEAD_OF_SCRIPTS = """
import os, sys, time
import kinetic

on_cpu = kinetic.run(accelerator="cpu")
"""


@pytest.fixture
def submit(project: Project) -> Callable[..., JobHandle]:
    """Return a function that submits ``train`` of a script from a process of its own, and attaches here."""

    def submit_(text: str, call: str = "train.run_async()") -> JobHandle:
        project.write("script.py", text)
        body = (project.root / "script.py").read_text()
        called = f"if __name__ == '__main__': print({call}.job_id)"
        return attach(project.out(f"{HEAD_OF_SCRIPTS}\n{body}\n{called}").split()[-1])

    return submit_


@pytest.fixture
def living_processes() -> Callable[[Path], list[int]]:
    """Return the function that finds the living processes of a home's supervisors."""
    return processes_of


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Return a function that waits until a condition holds, and fails with its words when it never does."""
    return until


JOBS_OF_BATCHES = '''
    import json
    import os
    import time
    import kinetic

    def note(notes, **fields):
        with open(notes, "a") as file:
            file.write(json.dumps({"at": time.monotonic(), "job": os.environ["KINETIC_JOB_ID"], **fields}) + "\\n")

    def noted(notes):
        return [json.loads(line) for line in open(notes)] if os.path.exists(notes) else []

    @kinetic.run(accelerator="cpu")
    def act(plan):
        """Do what a plan says: wait for a file, fail the first times, return ten times the number."""
        number, notes = plan["n"], plan["notes"]
        note(notes, what="begins", n=number)
        while "until" in plan and not os.path.exists(plan["until"]):
            time.sleep(0.01)
        time.sleep(plan.get("seconds", 0))
        begun = sum(page["n"] == number and page["what"] == "begins" for page in noted(notes))
        if begun <= plan.get("fails", 0):
            note(notes, what="fails", n=number)
            raise ValueError(f"number {number} at its attempt {begun}")
        note(notes, what="ends", n=number)
        return number * 10

    @kinetic.run(accelerator="cpu")
    def double(number):
        return number * 2
'''


class Batches:
    """Clients that run batches, each a process of its own, and what the jobs of those batches noted."""

    def __init__(self, project: Project, home: Path) -> None:
        self.project, self.home = project, home
        self.notes, self.go = home.parent / "notes", home.parent / "go"
        self._clients: list[subprocess.Popen[str]] = []
        project.write("jobs.py", JOBS_OF_BATCHES)

    def start(self, code: str, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start a client; it finds the jobs, ``plan(n, **more)``, ``notes``, ``go`` and ``tell(value)``."""
        head = f"""
import collections, contextlib, json, os, sys, threading, time
import kinetic
from jobs import *
words, notes, go = sys.argv[1:], {str(self.notes)!r}, {str(self.go)!r}
def plan(n, **more):
    return {{"n": n, "notes": notes, **more}}
def plans(count, **more):
    return [plan(n, **more) for n in range(count)]
def tell(value):
    print("told:" + json.dumps(value), flush=True)
def run(inputs, **options):
    return act.run_async_map(inputs, input_mode="single", **options)
def message(error):
    return str(error) + "\\n" + "\\n".join(getattr(error, "__notes__", ()))
"""
        client = subprocess.Popen(
            [sys.executable, "-c", head + textwrap.dedent(code), *words],
            cwd=self.project.root,
            env={**environment(), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._clients.append(client)
        return client

    def run(self, code: str, *words: str, **more: str) -> Any:
        """Run a client to its good end, and return what it told last."""
        return self.both(code, *words, **more)[0]

    def both(self, code: str, *words: str, **more: str) -> tuple[Any, str]:
        """Run a client to its good end, and return what it told last, and what it wrote to stderr."""
        client = self.start(code, *words, **more)
        out, err = client.communicate(timeout=600)  # the test has a limit of its own, which is shorter for most
        assert client.returncode == 0, f"{out}\n{err}"
        return self.told(out)[-1], err

    def end_clients(self) -> None:
        """Kill the clients that a failed test left, and close what was read from all of them."""
        for client in self._clients:
            with client:  # closes and waits
                client.kill()

    @staticmethod
    def told(out: str) -> list[Any]:
        return [json.loads(line.removeprefix("told:")) for line in out.splitlines() if line.startswith("told:")]

    @staticmethod
    def peek(client: Any) -> str:
        """Read what a client has written to stderr so far, without waiting for its end."""
        os.set_blocking(client.stderr.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            client.seen = getattr(client, "seen", "") + os.read(client.stderr.fileno(), 1 << 16).decode()
        os.set_blocking(client.stderr.fileno(), True)
        return str(getattr(client, "seen", ""))

    def noted(self, what: str = "") -> list[dict[str, Any]]:
        pages = [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []
        return [page for page in pages if not what or page["what"] == what]

    def numbers(self, what: str) -> list[int]:
        return sorted(page["n"] for page in self.noted(what))

    @property
    def store(self) -> Path:
        return self.home / "store"


@pytest.fixture
def batches(project: Project, home: Path) -> Iterator[Batches]:
    """Give the test clients that run batches, and end those that still run."""
    made = Batches(project, home)
    yield made
    made.end_clients()
