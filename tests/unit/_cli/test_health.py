"""``kinetic status`` and ``kinetic doctor``, against the fakes of Google and of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from servers.google_cloud import GoogleCloud
from servers.kubernetes import KubernetesServer

from kinetic._backends.kube import connection
from kinetic._cli import trial
from kinetic._cluster import cluster_checks


@pytest.fixture
def kube() -> Iterator[KubernetesServer]:
    with KubernetesServer() as kube:
        yield kube


@pytest.fixture
def cloud(home, kube, monkeypatch, tmp_path) -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        cloud.container.add("us-west4", "team", autopilot={"enabled": True})
        cloud.storage.add("jobs-bucket")
        for name, value in cloud.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        for name, value in (("PROJECT", cloud.project), ("ZONE", "us-west4"), ("CLUSTER", "team")):
            monkeypatch.setenv(f"KINETIC_{name}", value)
        monkeypatch.setenv("KINETIC_STORE", "gs://jobs-bucket/jobs")
        for module in (connection, cluster_checks):
            monkeypatch.setattr(module, "client_of", lambda *_: kube.client)
        yield cloud
    assert cloud.wrong == []


def test_doctor_lists_each_check_and_how_it_is_repaired(kinetic, cloud) -> None:
    result = kinetic("doctor")

    assert result.exit_code == 0
    assert "PASS  login" in result.stdout
    assert "WARN  dns-endpoint" in result.stdout
    assert "next:  kinetic doctor --fix" in result.stdout
    assert cloud.writes == []


def test_doctor_repairs_what_it_can_and_says_so(kinetic, cloud) -> None:
    cloud.pending = 0

    result = kinetic("doctor", "--fix")

    assert "repaired  dns-endpoint" in result.stdout
    assert cloud.methods(writes=True)


def test_a_failed_check_is_exit_code_1_and_json_has_all_of_it(kinetic, cloud) -> None:
    cloud.container.clusters.clear()

    result = kinetic("doctor", "--json")

    assert result.exit_code == 1
    page = json.loads(result.stdout)
    assert page["usable"] is False
    assert {each["key"] for each in page["checks"] if each["level"] == "FAIL"} == {"cluster"}


def test_doctor_without_a_cluster_says_how_to_get_one(kinetic) -> None:
    result = kinetic("doctor")

    assert result.exit_code == 0
    assert "jobs run on this machine" in result.stdout
    assert "kinetic up" in result.stdout


def test_status_shows_the_cluster_and_its_price(kinetic, cloud) -> None:
    result = kinetic("status", "--costs")

    assert result.exit_code == 0
    assert "RUNNING Autopilot" in result.stdout
    assert "$0.10 per hour" in result.stdout


def test_status_counts_gpus_that_have_another_name_in_the_cluster(kinetic, cloud, kube, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_GPU_RESOURCE", "nvidia.com/mig-1g.10gb")
    labels = {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
        "node.kubernetes.io/instance-type": "a2-highgpu-1g",
    }
    parts = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}
    kube.add("/api/v1/nodes/gpu", metadata={"labels": labels}, status={"allocatable": parts})

    (node,) = json.loads(kinetic("status", "--json").stdout)["nodes"]

    assert (node["chips"], node["dollars_per_hour"]) == (7, None)


def test_status_is_json_too_and_exit_code_1_where_jobs_cannot_run(kinetic, cloud) -> None:
    cloud.container.clusters["us-west4", "team"]["status"] = "ERROR"

    result = kinetic("status", "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout)["state"] == "ERROR"


def test_status_without_a_cluster_is_an_error_with_a_way(kinetic) -> None:
    result = kinetic("status")

    assert result.exit_code == 2
    assert "kinetic up makes one, kinetic init joins one" in result.stderr


def test_watch_and_json_exclude_each_other(kinetic) -> None:
    assert kinetic("status", "--watch", "--json").exit_code == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--request-quota", "8"), "--request-quota needs --accelerator"),
        (("-a", "v6e-8", "--request-quota", "4"), "one job on"),
        (("-a", "v6e-8", "--request-quota", "8"), "pass --contact and --yes"),
        (("-a", "v6e-8", "--request-quota", "8", "--contact", "nobody", "--yes"), "is not an e-mail address"),
        (("-a", "v6e-8", "--try", "l4"), "name different hardware"),
        (("--try", "cpu"), "pass --yes to confirm"),
    ],
)
def test_what_cannot_be_tried_or_requested_is_refused_before_anything_is_asked(kinetic, cloud, words, why) -> None:
    result = kinetic("doctor", *words)

    assert result.exit_code == 2
    assert why in result.stderr
    assert "next:" in result.stderr
    assert cloud.calls == []


@pytest.mark.parametrize(("grants", "text"), [(False, "not decided yet"), (True, "granted: TPU-V5P-")])
def test_doctor_requests_a_quota_and_says_what_google_answers(kinetic, cloud, grants, text) -> None:
    cloud.quotas.grants = grants
    words = ("doctor", "-a", "v5p-8", "--request-quota", "8", "--contact", "you@example.com", "--yes")

    result = kinetic(*words)

    assert text in result.stdout
    (request,) = cloud.quotas.preferences.values()
    assert request["quotaConfig"]["preferredValue"] == "8"
    cloud.forget()
    assert "requested before" in kinetic(*words).stdout or grants
    assert cloud.writes == []


def test_a_request_without_the_right_is_a_failed_check(kinetic, cloud) -> None:
    cloud.denied.add("cloudquotas.quotas.update")

    result = kinetic("doctor", "-a", "v5p-8", "--request-quota", "8", "--contact", "you@example.com", "--yes", "--json")

    assert result.exit_code == 1
    found = {each["key"]: each for each in json.loads(result.stdout)["checks"]}
    assert found["quota-request"]["level"] == "FAIL"
    assert "roles/cloudquotas.admin" in found["quota-request"]["next"]


def test_a_job_on_this_machine_is_tried_without_a_question_about_its_cost(kinetic, home, monkeypatch) -> None:
    monkeypatch.setattr("kinetic._cli.trial.run_trial", lambda *_: trial.skipped("as the test wants"))

    result = kinetic("doctor", "--try", "cpu")

    assert "no job was run: as the test wants" in result.stdout


def test_nothing_is_run_where_a_check_has_failed(kinetic, cloud) -> None:
    cloud.container.clusters.clear()

    result = kinetic("doctor", "--try", "cpu", "--yes")

    assert result.exit_code == 1
    assert "no job was run: cluster failed" in result.stdout


@pytest.mark.parametrize(
    ("word", "kind", "command"),
    [("cpu-train-20261121-143000-1a2b3c4", "job", "jobs"), ("grp-0a1b2c3d", "batch", "batch")],
)
def test_status_of_a_job_or_a_batch_is_another_command(kinetic, cloud, word, kind, command) -> None:
    result = kinetic("status", word)

    assert result.exit_code == 2
    assert f"kinetic status takes no {kind}" in result.stderr
    assert f"next:  kinetic {command} status {word}" in result.stderr
