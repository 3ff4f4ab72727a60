"""Random processes of a home are killed and stopped while clients submit, wait and collect; then everything is checked.

`make test-all` runs it for 20 seconds, `make nightly` for half an hour. The seed is printed; KINETIC_SOAK_SEED=<seed>
draws the same victims again, as far as the scheduler of the machine lets it, and KINETIC_SOAK_SECONDS=<seconds> sets
how long. What must hold, whoever died:

* An acknowledged job ends: with its own value, its own exception, or as killed, which names the signal or the loss.
* A function that has begun is never begun a second time.
* Nothing waits for ever, and the queue is usable afterwards.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SEED = int(
    os.environ.get("KINETIC_SOAK_SEED") or int(os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)[:6], 16)
)
SECONDS = float(os.environ.get("KINETIC_SOAK_SECONDS") or 20)  # read here: tests run without such variables
CLIENTS = 3

JOBS = """
    import os
    import subprocess
    import sys
    import time
    import kinetic

    def note(notes, word):
        file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{os.environ['KINETIC_JOB_ID']} {word}\\n".encode())
        os.close(file)

    @kinetic.run(accelerator="cpu")
    def work(kind, number, notes):
        note(notes, "began")
        if kind == "loud":
            print("x" * 100_000)
        if kind == "slow":
            time.sleep(0.3)
        if kind == "children":
            subprocess.Popen(["sleep", "30"])
        if kind == "fails":
            raise ValueError(f"number {number}")
        note(notes, "done")
        return [kind, number * number]
"""

CLIENT = """
    import json
    import os
    import random
    import sys
    import kinetic
    from jobs import work

    seed, notes, ledger, go = sys.argv[1:]
    draw = random.Random(int(seed))

    def say(**fields):
        file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, json.dumps(fields).encode() + b"\\n")
        os.close(file)

    while os.path.exists(go):
        jobs = []
        for _ in range(draw.randrange(1, 6)):
            kind, number = draw.choice(["quick", "loud", "slow", "children", "fails"]), draw.randrange(1000)
            job = work.run_async(kind, number, notes)
            say(what="accepted", job=job.job_id, kind=kind, number=number)
            jobs.append(job)
        for job in draw.sample(jobs, draw.randrange(len(jobs) + 1)):
            say(what="collecting", job=job.job_id)
            try:
                say(what="value", job=job.job_id, value=job.result(timeout=60))
            except TimeoutError:
                say(what="timeout", job=job.job_id)
                raise
            except Exception as error:
                say(what="error", job=job.job_id, error=type(error).__name__, message=str(error))
"""

CHECK = """
    import json
    import sys
    import kinetic

    for job_id in json.load(sys.stdin):
        try:
            handle = kinetic.attach(job_id)
            found = {"status": handle.wait(timeout=90).value}
            found["value"] = handle.result(timeout=10, cleanup=False)
        except TimeoutError:
            found = {"error": "TimeoutError", "message": "it never ended"}
        except Exception as error:
            found = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps({"job": job_id, **found}), flush=True)
"""


@dataclass
class Soak:
    """Clients of one home, somebody who kills and stops, and what both wrote down."""

    project: Any
    home: Path
    processes_of: Callable[[Path], list[int]]
    draw: random.Random
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    stopped: dict[int, float] = field(default_factory=dict)
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def notes(self) -> Path:
        return self.home.parent / "notes"

    @property
    def ledger(self) -> Path:
        return self.home.parent / "ledger"

    @property
    def go(self) -> Path:
        return self.home.parent / "go"

    def run(self, seconds: float) -> None:
        """Kill, stop and start again, until the time is over; then let everything rest."""
        self.go.touch()
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            self._keep_clients()
            time.sleep(self.draw.uniform(0.1, 0.9))
            self._let_go()
            self._harm()
        self.go.unlink()
        self._let_go(everything=True)
        for client in self.clients:
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(90)
            assert client.poll() is not None, "a client waits for ever, though nothing harms it any more"

    def _keep_clients(self) -> None:
        self.clients = [client for client in self.clients if client.poll() is None]
        while len(self.clients) < CLIENTS:
            words = [str(self.draw.randrange(1 << 30)), self.notes, self.ledger, self.go]
            with (self.home.parent / "clients.log").open("ab") as log:
                client = subprocess.Popen(
                    [sys.executable, "client.py", *map(str, words)],
                    cwd=self.project.root,
                    env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
                    stdout=log,
                    stderr=log,
                )
            self.clients.append(client)

    def _harm(self) -> None:
        victims = sorted(self.processes_of(self.home))
        if self.draw.random() < 0.1:  # seldom: a client needs a second to submit anything
            victims = [client.pid for client in self.clients]
        if not victims:
            return
        victim = self.draw.choice(victims)
        if victim in self.stopped:
            return
        how = signal.SIGSTOP if self.draw.random() < 0.4 else signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, how)
            self.counts[how.name] += 1
            if how is signal.SIGSTOP:
                self.stopped[victim] = time.monotonic() + self.draw.uniform(0.1, 3)

    def _let_go(self, *, everything: bool = False) -> None:
        for victim, until in [*self.stopped.items()]:
            if everything or time.monotonic() > until:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGCONT)
                del self.stopped[victim]

    def pages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ledger.read_text().splitlines() if line.endswith("}")]

    def check(self) -> None:
        """Hold what clients were told, and what the jobs noted, against what is there now."""
        pages = self.pages()
        accepted = {page["job"]: page for page in pages if page["what"] == "accepted"}
        told = {page["job"]: page for page in pages if page["what"] in {"value", "error", "timeout"}}
        collecting = {page["job"] for page in pages if page["what"] == "collecting"}
        done = subprocess.run(
            [sys.executable, "check.py"],
            input=json.dumps([*accepted]),
            cwd=self.project.root,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # Read when every job has ended: some of the last ones still ran when the clients stopped.
        noted = collections.Counter(self.notes.read_text().splitlines() if self.notes.exists() else ())
        found = {page["job"]: page for page in map(json.loads, done.stdout.splitlines())}
        assert found.keys() == accepted.keys()
        for job, page in accepted.items():
            began, ended = noted[f"{job} began"], noted[f"{job} done"]
            assert began <= 1, f"{job} began {began} times"
            for word in filter(None, (told.get(job), found[job])):
                wrong = _judge(page, word, began=began, ended=ended, collecting=job in collecting)
                assert not wrong, f"{job}: {wrong}: {page} {word} began {began} done {ended}"
                self.counts[word.get("error", "value")] += 1
        self.counts["jobs"] = len(accepted)


def _judge(page: dict[str, Any], word: dict[str, Any], *, began: int, ended: int, collecting: bool) -> str:
    """Return what is wrong about what is said of a job, or ""."""
    error, message = word.get("error"), word.get("message", "")
    if error is None and "value" in word:
        right = word["value"] == [page["kind"], page["number"] ** 2] and ended == 1
        return "" if right else "a wrong value"
    if error == "ValueError" and page["kind"] == "fails":
        return "" if began else "an exception of a function that never began"
    if error == "TimeoutError" or word.get("what") == "timeout":
        return "it waits for ever"
    if error in {"JobNotFoundError", "ResultGoneError"} or "was removed" in message or "collected" in message:
        return "" if collecting else "it is gone, and nobody collected it"
    if "[signal]" in message or "[lost]" in message:
        return ""  # its process was killed before its value was durable, or its supervisor, or three before it began
    return "an end that nothing explains"


@pytest.fixture
def soak(project: Any, home: Path, living_processes: Callable[[Path], list[int]]) -> Iterator[Soak]:
    project.write("jobs.py", JOBS)
    project.write("client.py", CLIENT)
    project.write("check.py", CHECK)
    made = Soak(project, home, living_processes, random.Random(SEED))
    yield made
    made._let_go(everything=True)
    for client in made.clients:
        client.kill()
        client.wait()


@pytest.mark.timeout(900)
def test_some_kills_and_stops_lose_nothing_and_double_nothing(soak: Soak) -> None:
    _soak(soak, SECONDS)


@pytest.mark.nightly
@pytest.mark.timeout(4000)
def test_half_an_hour_of_kills_and_stops_loses_nothing_and_doubles_nothing(soak: Soak) -> None:
    _soak(soak, 1800)


def _soak(soak: Soak, seconds: float) -> None:
    print(f"KINETIC_SOAK_SEED={SEED}")

    soak.run(seconds)
    soak.check()

    print(json.dumps(soak.counts))
    assert soak.counts["SIGKILL"] > seconds / 10  # otherwise it was no trial
    assert soak.counts["jobs"] > seconds / 10
