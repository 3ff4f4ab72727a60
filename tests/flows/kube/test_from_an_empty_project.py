"""The whole way of a new user: an empty project, `up`, a job on a slice of four hosts, `status`, `doctor`, `down`.

Google is the fake of tests/servers, the cluster's API server, controllers and JobSet are real, and the job's pods run.
google_calls.txt is what Google was asked on the way. Write it again after a change that is meant:

    KINETIC_TEST_WRITE_CALLS=1 .venv/bin/python -m pytest -n 0 tests/flows/kube/test_from_an_empty_project.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster import nodes

if TYPE_CHECKING:
    from servers.google_cloud import Call, GoogleCloud

CALLS = Path(__file__).with_name("google_calls.txt")
WRITE = os.environ.get("KINETIC_TEST_WRITE_CALLS", "") == "1"  # read now: a test's environment has nothing of kinetic's
HOSTS = 4
TRAIN = """
    import os

    def train():
        host = os.environ["KINETIC_HOST_INDEX"]
        print("host", host, "of", os.environ["KINETIC_HOST_COUNT"], flush=True)
        return host
"""
HEADING = """\
# Written by test_from_an_empty_project.py, which says how to write it again.
# What Google is asked from an empty project to an empty project, by command.
# Requests of one service are in their order; services are asked side by side. Those that only read are sorted.
# Repeated requests, as those that wait for an operation, are one line. Names that change between runs are in capitals.
"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def kinetic(cloud: GoogleCloud, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command as a user who has a login and nothing else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "GOOGLE_"))}
    kept.pop("KUBECONFIG", None)
    nodes_of_tests = {"KINETIC_REQUIRE_ACCELERATOR": "0", "KINETIC_BASE_PACKAGES": "0"}  # no chips, no downloads
    environ = kept | cloud.environ(tmp_path) | nodes_of_tests | {"KINETIC_HOME": str(tmp_path / "home")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kinetic", *words]
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 120}
        return subprocess.run(command, env=environ, cwd=tmp_path, check=False, **options)

    return run


@pytest.fixture
def slice_of_tpus(add_node: Any, namespace: str) -> None:
    """The nodes that Autopilot makes for a v5litepod-16."""
    for host in range(HOSTS):
        name = f"tpu-{host}-{namespace}"
        add_node(nodes.tpu(name, "tpu-v5-lite-podslice", "4x4", pool=f"pool-{namespace}"))


def test_from_an_empty_project_to_a_job_on_a_slice_and_back(
    cloud: GoogleCloud, kinetic: Any, namespace: str, slice_of_tpus: None, tmp_path: Path
) -> None:
    told: list[str] = []

    def called(*words: str) -> subprocess.CompletedProcess[str]:
        cloud.forget()
        done = kinetic(*words)
        told.extend(["", f"kinetic {' '.join(words)}".replace(namespace, "NAMESPACE"), *lines_of(cloud.calls)])
        return done

    (tmp_path / "train.py").write_text(re.sub(r"^    ", "", TRAIN, flags=re.MULTILINE))

    made = called("up", "--cluster", "team", "--namespace", namespace, "-a", "v5litepod-16", "--yes")
    assert made.returncode == 0, made.stderr
    assert "  + cluster team" in made.stdout
    assert "a job on tpu-v5litepod-4x4: about $19.20 per hour" in made.stdout
    assert "profile team leads to it" in made.stderr

    job = called("run", "-a", "v5litepod-16", "train.py::train")
    assert job.returncode == 0, job.stderr
    assert "host 0 of 4" in job.stdout
    assert cloud.objects.buckets[f"{cloud.project}-kn-team-jobs"].items  # it keeps its results where `up` said

    now = called("status", "--json")
    assert now.returncode == 0, now.stderr
    page = json.loads(now.stdout)
    assert (page["mode"], page["state"], page["usable"]) == ("Autopilot", "RUNNING", True)
    assert len(page["nodes"]) >= HOSTS

    checked = called("doctor", "-a", "v5litepod-16", "--json")
    levels = {each["key"]: each["level"] for each in json.loads(checked.stdout)["checks"]}
    assert "FAIL" not in levels.values(), checked.stdout
    assert checked.returncode == 0

    gone = called("down", "--cluster", "team", "--namespace", namespace, "--delete-data", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert cloud.container.clusters == {}
    assert cloud.compute.things == {}
    assert cloud.projects.accounts == {}
    assert cloud.projects.policy.bindings == []
    assert cloud.storage.buckets == {}
    assert kinetic("jobs", "list").stderr == "There are no jobs; for removed jobs: kinetic jobs list --all\n"
    assert json.loads((tmp_path / "home" / "profiles.json").read_text()) == {"current": None, "profiles": {}}

    text = HEADING + "\n".join(told) + "\n"
    if WRITE:
        CALLS.write_text(text)
    assert text == CALLS.read_text()


def lines_of(calls: list[Call]) -> list[str]:
    """Return a command's calls as lines that are the same in every run."""
    reads = sorted({_line(call) for call in calls if not call.writes})
    writes: dict[str, list[str]] = {}
    for call in calls:
        if call.writes and (line := _line(call)) not in writes.setdefault(call.service, []):
            writes[call.service].append(line)
    lines = ["  reads", *(f"    {line}" for line in reads)] if reads else ["  asks Google nothing"]
    changes = [f"    {line}" for name in sorted(writes) for line in writes[name]]
    return lines + (["  writes", *changes] if changes else [])


def _line(call: Call) -> str:
    repeated = {name for name, _ in call.pairs if len(call.values(name)) > 1}
    query = [f"{name}={value}" for name, value in sorted(call.pairs) if name not in {"requestId", *repeated}]
    query += [f"{name}=... ({len(call.values(name))} of them)" for name in sorted(repeated)]
    line = f"{call.verb:<6} {call.service} {call.path.removeprefix(f'{call.service}/')}"
    line = re.sub(r"operations/[^/?\s]+", "operations/OPERATION", line + (f"?{'&'.join(query)}" if query else ""))
    return re.sub(r"(/o/)[^?\s]+", r"\1OBJECT", re.sub(r"generation=\d+", "generation=NUMBER", line))


def test_up_can_end_with_a_job_and_says_when_its_first_line_came(
    cloud: GoogleCloud, kinetic: Any, namespace: str, machine: str
) -> None:
    done = kinetic("up", "--cluster", "team", "--namespace", namespace, "--yes", "--try")

    assert done.returncode == 0, done.stderr
    assert re.search(r"^first line after \d+ s: hello from the cluster$", done.stderr, re.MULTILINE)


def test_jobs_of_a_cluster_that_was_removed_have_their_results_and_logs_and_what_ran_there_has_failed(
    cloud: GoogleCloud, kinetic: Any, namespace: str, agent: Any, machine: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import time\ndef train(n):\n    print('hello')\n    time.sleep(n)\n    return 7\n"
    )
    assert kinetic("up", "--cluster", "team", "--namespace", namespace, "--yes").returncode == 0
    done, collected, running = (
        kinetic("run", "-d", "-a", "cpu", "train.py::train", seconds).stdout.strip() for seconds in ("0", "0", "600")
    )
    swept = kinetic("run", "-d", "-a", "cpu", "--sweep", "n=0,1", "--", "python", "train.py")
    assert kinetic("jobs", "wait", done, collected).returncode == 0
    batch = swept.stdout.strip()
    kept = f"KINETIC_STORE=gs://{cloud.project}-kn-team-jobs kinetic jobs list\n"

    gone = kinetic("down", "--cluster", "team", "--namespace", namespace, "--yes")
    agent.remove_node(machine)  # a cluster's machines go with it: what ran there writes nothing more

    assert gone.returncode == 0, gone.stderr
    assert gone.stderr.endswith(f"results are kept; to list them: {kept}")
    assert kinetic("jobs", "list").stderr.endswith(f"to list them: {kept}")
    assert kinetic("batch", "list").stderr.endswith(f"to list them: {kept.replace('jobs list', 'batch list')}")
    assert kinetic("jobs", "logs", done).stdout == "hello\n"
    assert kinetic("jobs", "result", done).stdout == "7\n"
    result = kinetic("jobs", "result", collected, "--cleanup")
    assert (result.stdout, result.stderr) == ("7\n", "")
    status = kinetic("jobs", "status", running)
    assert status.stdout == f"{running}: FAILED\n", status.stderr
    assert "it was deleted there" in status.stderr
    assert [kinetic("jobs", "cleanup", job).returncode for job in (done, running)] == [0, 0]
    assert kinetic("batch", "cleanup", batch, "--yes").returncode == 0
    left = cloud.objects.buckets[f"{cloud.project}-kn-team-jobs"].items
    assert not [name for name in left if name.startswith(("cpu-", "_groups/"))]

    cloud.objects.buckets.clear()
    first, second = (kinetic("jobs", "status", "@last").stderr for _ in range(2))

    assert "which cannot be read: the bucket" in first
    assert "cannot be read" not in second  # a bucket that was deleted is not asked again
