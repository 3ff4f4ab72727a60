"""The code examples of the document of batched jobs run as they are written; a harness supplies what they leave free.

The files in guide/batches/ hold the examples. Only two things about them are ours: indentation and blank lines, which
the copy of the document that we have does not show. Where that copy is at hand, each file is compared with it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent / "guide" / "batches"
GUIDE = Path(__file__).parents[3] / "shared" / "spec" / "batched-jobs.txt"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
CODE = re.compile(r"^(import|from|def|for|try:|except|if|else:|return|print\(|@\w)|^\w[\w.]* = |^batch\.\w+\(")

# What the first example imports inside its job: as much of it as the example touches.
KERAS = """
class _Named:
    def __getattr__(self, name):
        return lambda *words, **more: (name, words, more)

layers = optimizers = _Named()

class _History:
    def __init__(self, loss):
        self.history = {"loss": loss}

class Sequential:
    def __init__(self, layers):
        assert [name for name, *_ in layers] == ["Dense", "Dense"]

    def compile(self, optimizer, loss):
        self.rate = optimizer[2]["learning_rate"]

    def fit(self, x, y, epochs, verbose):
        return _History([sum(x) * self.rate] * epochs)
"""

# A function like the document's: what it does depends on its input, so that a batch can hold whatever an example needs.
TRAINING = """
import os
import time

import kinetic


@kinetic.run(accelerator="cpu")
def train(lr, batch_size=1, fails=False, until=""):
    print("training with", lr)
    while until and not os.path.exists(until):
        time.sleep(0.01)
    if fails:
        raise ValueError(f"{lr} is too much")
    return lr * batch_size
"""

# Runs an example as a script, in the project, with the names that it leaves free; then tells what it left.
HARNESS = """
import json
import runpy
import sys

import kinetic
from training import train

configs, before, after = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
names = {"kinetic": kinetic, "train": train, "configs": configs, "x_train": [1, 2], "y_train": [3, 4]}
if "batch = " not in open("example.py").read():
    names["batch"] = train.run_async_map(configs)
exec(before, names)
left = runpy.run_path("example.py", init_globals=names, run_name="__main__")
batch = left.get("batch") or names["batch"]
print("told:" + json.dumps(eval(after, {**left, "batch": batch})))
"""


class Guide:
    """Runs the examples."""

    def __init__(self, project: Any, home: Path) -> None:
        self._project = project
        self.go = home.parent / "go"
        project.write("training.py", TRAINING)
        project.write("keras.py", KERAS)
        project.write("harness.py", HARNESS)

    def run(self, example: str, after: str, *configs: object, before: str = "") -> tuple[list[str], Any]:
        """Run an example, and return what it printed and what an expression gives afterwards."""
        text = (EXAMPLES / f"{example}.py").read_text().replace('"grp-a1b2c3d4"', "batch.group_id")
        self._project.write("example.py", text)
        configs_ = list(configs) or [{"lr": 1}, {"lr": 2, "batch_size": 10}, {"lr": 3}]
        done = self._project.run("harness.py", json.dumps(configs_), before, after)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        *printed, told = done.stdout.splitlines()
        return printed, json.loads(told.removeprefix("told:"))


@pytest.fixture
def guide(project: Any, home: Path) -> Guide:
    return Guide(project, home)


GOOD, BAD = {"lr": 1}, {"lr": 9, "fails": True}


def test_the_first_fan_out_gives_a_result_for_each_input_in_order(guide: Guide) -> None:
    printed, losses = guide.run("first_fan_out", "losses")

    assert losses == pytest.approx([0.003, 0.03, 0.3])
    assert printed == [str(losses)]


def test_dicts_become_arguments_by_name(guide: Guide) -> None:
    assert guide.run("dict_inputs", "batch.results()")[1] == [None, None]


def test_unpacking_is_prevented(guide: Guide) -> None:
    assert guide.run("preventing_unpacking", "batch.results()")[1] == [6, 15]


def test_a_batch_is_monitored(guide: Guide) -> None:
    printed, _ = guide.run("monitoring", "1", GOOD, BAD, before="batch.wait()")

    assert printed == ["Job 0: SUCCEEDED", "Job 1: FAILED", "{'SUCCEEDED': 1, 'FAILED': 1}"]


@pytest.mark.parametrize("example", ["results_in_order", "results_as_they_end"])
def test_results_are_collected(guide: Guide, example: str) -> None:
    assert sorted(guide.run(example, "losses")[1]) == [1, 3, 20]


def test_results_are_processed_as_jobs_finish(guide: Guide) -> None:
    printed, jobs = guide.run("as_completed", "[job.job_id for job in batch.jobs]")

    found = dict(line.split(" finished: ") for line in printed)
    assert [found[job] for job in jobs] == ["1", "20", "3"]


def test_a_batch_error_names_what_failed(guide: Guide) -> None:
    printed, [group, failed] = guide.run("batch_error", "[batch.group_id, batch.jobs[1].job_id]", GOOD, BAD, GOOD)

    assert printed == [f"Batch {group}: 1 of 3 jobs failed", f"  {failed}: FAILED"]


def test_failures_are_tolerated(guide: Guide) -> None:
    printed, _ = guide.run("return_exceptions", "1", GOOD, BAD)

    assert printed == ["Job 0: 1", "Job 1 failed: 9 is too much"]


def test_failures_are_inspected(guide: Guide) -> None:
    printed, failed = guide.run("failures", "batch.jobs[1].job_id", GOOD, BAD, before="batch.wait()")

    assert printed[0] == f"{failed}: training with 9"
    assert printed[-1] == "ValueError: 9 is too much"


def test_each_job_gets_up_to_three_attempts(guide: Guide) -> None:
    told = guide.run("retries", "[batch.wait(), [job.group_attempt for job in batch.jobs]]", GOOD, BAD)[1]

    assert told == [None, [0, 2]]


def test_concurrency_is_limited_or_not(guide: Guide) -> None:
    assert guide.run("concurrency", "batch.results()")[1] == [1, 20, 3]


def test_a_batch_stops_at_the_first_failure(guide: Guide) -> None:
    waits = {"lr": 2, "until": str(guide.go)}

    counts = guide.run("fail_fast", "[batch.wait(), batch.status_counts()][1]", BAD, waits)[1]

    assert counts == {"FAILED": 1, "NOT_FOUND": 1}


def test_a_batch_is_cancelled(guide: Guide) -> None:
    waits = {"lr": 2, "until": str(guide.go)}

    submitted = "import time\nwhile len(batch.statuses()) < 2: time.sleep(0.01)"

    counts = guide.run("cancel", "[batch.wait(), batch.status_counts()][1]", waits, waits, before=submitted)[1]

    assert counts == {"NOT_FOUND": 2}


def test_a_batch_is_reattached(guide: Guide) -> None:
    printed, results = guide.run("reattach", "results")

    assert re.fullmatch(r"Batch ID: grp-[0-9a-f]{8}", printed[0])
    assert results == [1, 20, 3]


def test_collecting_cleans_up_each_child(guide: Guide) -> None:
    assert guide.run("cleanup_by_results", "[results, batch.status_counts()]")[1] == [[1, 20, 3], {"NOT_FOUND": 3}]


def test_everything_is_torn_down(guide: Guide, home: Path) -> None:
    group = guide.run("cleanup_of_everything", "batch.group_id")[1]

    assert not (home / "store" / "_groups" / group).exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_what_the_document_says(name: str) -> None:
    document = lines_of(_document())

    example = lines_of((EXAMPLES / f"{name}.py").read_text())

    length = len(example)
    assert any(document[at : at + length] == example for at in range(len(document) - length + 1))


def test_no_example_of_the_document_is_missing() -> None:
    said = {line for name in NAMES for line in lines_of((EXAMPLES / f"{name}.py").read_text())}

    missing = [line for line in lines_of(_document()) if CODE.search(line) and line not in said]

    assert [line for line in missing if not line.endswith((".", ":")) or "=" in line] == []


def _document() -> str:
    if not GUIDE.exists():
        pytest.skip("the document is not part of this repository; where it lies beside it, the examples are compared")
    return GUIDE.read_text()


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without indentation and blank lines."""
    return [line.strip() for line in text.splitlines() if line.strip()]
