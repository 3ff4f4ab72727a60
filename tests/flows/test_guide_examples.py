"""The code examples of the guide run as they are written; a harness supplies the names that they leave free.

The files in guide/ hold the examples. Only two things about them are ours: indentation and blank lines, which the copy
of the guide that we have does not show. Where that copy is at hand, each file is compared with it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent / "guide"
GUIDE = Path(__file__).parents[3] / "shared" / "spec" / "detached-jobs.txt"
LITERAL_ID = re.compile(r"v5e1-train-model-\d{8}-\d{6}-[0-9a-f]{7}")
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))

# A function like the guide's, and how its job is made: blocking is left to the examples.
TRAINING = """
import time

import kinetic


@kinetic.run(accelerator="tpu-v5e-1")
def train_model(seconds=0.0):
    for step in range(30):
        print("step", step)
    time.sleep(seconds)
    return {"final_loss": 0.123}
"""

# Runs an example as a script, in the project, with the names that it leaves free.
HARNESS = """
import runpy
import sys

import kinetic
from training import train_model


class Impatient:
    # A handle that waits a moment where the guide waits an hour.
    def __init__(self, handle):
        self._handle = handle

    def __getattr__(self, name):
        return getattr(self._handle, name)

    def result(self, timeout=None):
        assert timeout == 3600
        return self._handle.result(timeout=0.2)


def handle(job_id):
    if not job_id:
        return None
    found = kinetic.attach(job_id)
    return Impatient(found) if "impatient" in sys.argv else found


names = {"kinetic": kinetic, "job": handle(sys.argv[1])}
left = runpy.run_path("example.py", init_globals=names, run_name="__main__")
print("final =", left.get("final"))
"""


class Guide:
    """Runs the examples."""

    def __init__(self, project) -> None:
        self._project = project
        project.write("training.py", TRAINING)
        project.write("harness.py", HARNESS)

    def submit(self, seconds: float = 0.0, *, wait: bool = True) -> str:
        """Submit a job like the guide's and return its id."""
        script = f"""
            from training import train_model

            job = train_model.run_async({seconds})
            {"job.wait(30)" if wait else "while not job.tail(): pass"}
            print(job.job_id)
        """
        return self._project.out(script).strip()

    def run(self, example: str, job_id: str = "", *words: str) -> str:
        """Run an example and return what it printed; an id that it holds becomes the id of a job that exists."""
        text = (EXAMPLES / f"{example}.py").read_text()
        self._project.write("example.py", LITERAL_ID.sub(job_id or "missing", text))
        done = self._project.run("harness.py", job_id, *words)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def status(self, job_id: str) -> str:
        """Return the status of a job, or what became of it."""
        return self._project.out(f"""
            import kinetic

            try:
                print(kinetic.attach({job_id!r}).status().value)
            except kinetic.errors.JobNotFoundError:
                print("removed")
        """).strip()


@pytest.fixture
def guide(project) -> Guide:
    return Guide(project)


def test_the_first_job_is_submitted_and_collected(guide):
    printed = guide.run("first_job").splitlines()

    job_id = printed[0].removeprefix("Submitted: ")
    assert LITERAL_ID.fullmatch(job_id)  # an id looks as the guide shows it
    assert printed[1:] == ["{'final_loss': 0.123}", "final = {'final_loss': 0.123}"]
    assert guide.status(job_id) == "NOT_FOUND"


def test_a_job_is_reattached_by_its_id(guide):
    job_id = guide.submit()

    printed = guide.run("reattach", job_id).splitlines()

    assert printed[0] == "Status: SUCCEEDED"
    assert printed[1:21] == [f"step {number}" for number in range(10, 30)]  # the last twenty lines, and no more


def test_everything_is_listed_newest_first(guide):
    older, newer = guide.submit(), guide.submit(60.0, wait=False)

    printed = guide.run("list_everything").splitlines()[:-1]

    assert sorted(printed) == sorted([f"{older} train_model SUCCEEDED", f"{newer} train_model RUNNING"])


def test_a_wait_that_ends_in_time_gives_the_value(guide):
    printed = guide.run("bound_the_wait", guide.submit())

    assert printed == "final = {'final_loss': 0.123}\n"


def test_a_wait_that_ends_too_early_shows_the_log_and_leaves_the_job_alone(guide):
    job_id = guide.submit(60.0, wait=False)

    printed = guide.run("bound_the_wait", job_id, "impatient").splitlines()

    assert printed[:30] == [f"step {number}" for number in range(30)]
    assert printed[30:] == ["final = None"]
    assert guide.status(job_id) == "RUNNING"


def test_everything_is_kept_and_then_the_resource_alone_removed(guide, home):
    job_id = guide.submit()

    printed = guide.run("keep_everything", job_id)

    assert printed == "final = {'final_loss': 0.123}\n"
    assert guide.status(job_id) == "NOT_FOUND"
    assert (home / "store" / job_id / "result.pkl").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_what_the_guide_says(name: str):
    if not GUIDE.exists():
        pytest.skip("the guide is not part of this repository; where it lies beside it, the examples are compared")
    guide_lines = lines_of(GUIDE.read_text())

    example = lines_of((EXAMPLES / f"{name}.py").read_text())

    length = len(example)
    assert any(guide_lines[at : at + length] == example for at in range(len(guide_lines) - length + 1))


def test_no_example_of_the_guide_is_missing():
    if not GUIDE.exists():
        pytest.skip("the guide is not part of this repository; where it lies beside it, the examples are compared")
    said = {line for name in NAMES for line in lines_of((EXAMPLES / f"{name}.py").read_text())}

    missing = [line for line in lines_of(GUIDE.read_text()) if is_code(line) and line not in said]

    assert missing == []


def is_code(line: str) -> bool:
    """Say whether a line can only be Python: it parses, and is more than a word."""
    if not re.search(r"[(=@]|^(import|return|try|except) ?", line):
        return False
    for text in (line, f"{line} pass", f"try: pass\n{line} pass", f"{line} pass\nfinally: pass"):
        try:
            ast.parse(text)
        except SyntaxError:
            continue
        return True
    return False


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without indentation and blank lines."""
    return [line.strip() for line in text.splitlines() if line.strip()]
