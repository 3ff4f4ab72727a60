"""``kinetic init``: joining a cluster, against the fakes of Google and of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from servers.google_cloud import GoogleCloud
from servers.kubernetes import KubernetesServer

from kinetic._cluster import cluster_checks, resource


@pytest.fixture
def cloud(home, monkeypatch, tmp_path) -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud, KubernetesServer() as kube:
        cloud.pending = 0
        cloud.container.add("us-west4", "team", autopilot={"enabled": True})
        cloud.storage.add("jobs-bucket")
        for name, value in cloud.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(cluster_checks, "client_of", lambda *_: kube.client)
        monkeypatch.setattr(resource, "_connect", lambda _: kube.client)
        yield cloud
    assert cloud.wrong == []


def test_the_only_cluster_is_joined_repaired_and_saved(kinetic, cloud) -> None:
    result = kinetic("init", "--project", cloud.project, "--store", "gs://jobs-bucket/jobs", "--yes")

    assert result.exit_code == 0, result.output
    assert "repaired  dns-endpoint" in result.stdout
    assert cloud.storage.policies["jobs-bucket"].members("roles/storage.objectUser")
    profile = json.loads(kinetic("profile", "show", "team", "--json").stdout)
    assert "us-west4" in str(profile)
    assert ("10Gi" in str(profile)) is bool(cloud.container.clusters["us-west4", "team"].get("autopilot"))
    assert "resourceLabels" not in cloud.container.clusters["us-west4", "team"]  # it is not marked as ours


def test_the_namespace_of_jobs_is_saved_and_joining_again_keeps_it(kinetic, cloud, monkeypatch) -> None:
    words = ("init", "--project", cloud.project, "--store", "gs://jobs-bucket/jobs")
    monkeypatch.setenv("KINETIC_NAMESPACE", "other")

    kinetic(*words, "--namespace", "ml")
    monkeypatch.delenv("KINETIC_NAMESPACE")
    kinetic(*words)

    assert json.loads(kinetic("profile", "show", "team", "--json").stdout)["profile"]["namespace"] == "ml"


def test_down_keeps_the_profile_of_a_joined_cluster_that_has_nothing_of_ours(kinetic, cloud) -> None:
    kinetic("init", "--project", cloud.project, "--store", "gs://jobs-bucket/jobs")
    cloud.forget()

    done = kinetic("down", "--project", cloud.project, "--cluster", "team")

    assert done.exit_code == 0, done.output
    assert "! cluster team in us-west4" in done.stdout
    assert "team" in kinetic("profile", "list").stdout
    assert cloud.writes == []


def test_joining_again_writes_nothing(kinetic, cloud) -> None:
    words = ("init", "--project", cloud.project, "--store", "gs://jobs-bucket/jobs", "--yes")
    kinetic(*words)
    cloud.forget()

    assert kinetic(*words).exit_code == 0
    assert cloud.writes == []


def test_without_yes_and_a_terminal_nothing_is_repaired_but_what_is_missing_is_named(kinetic, cloud) -> None:
    result = kinetic("init", "--project", cloud.project, "--store", "gs://jobs-bucket/jobs")

    assert result.exit_code == 0
    assert "WARN  dns-endpoint" in result.stderr
    assert cloud.writes == []


def test_a_project_without_clusters_is_sent_to_up(kinetic, cloud) -> None:
    cloud.container.clusters.clear()

    result = kinetic("init", "--project", cloud.project, "--yes")

    assert result.exit_code == 1
    assert f"kinetic up --project {cloud.project}" in result.stderr


def test_of_several_clusters_one_must_be_named_and_ours_is_first(kinetic, cloud) -> None:
    cloud.container.add("us-east5", "zebra", resourceLabels={"managed-by": "kinetic", "kinetic-cluster": "zebra"})

    result = kinetic("init", "--project", cloud.project, "--yes")

    assert result.exit_code == 2
    assert "kinetic init --cluster zebra --yes" in result.stderr


def test_a_list_that_is_incomplete_is_said_to_be(kinetic, cloud) -> None:
    cloud.container.missing_zones = ["us-west4-a"]

    result = kinetic("init", "--project", cloud.project, "--cluster", "nowhere")

    assert "us-west4-a do not answer" in result.stderr
    assert "team in us-west4" in result.stderr


def test_a_profile_that_leads_elsewhere_is_kept(kinetic, cloud) -> None:
    kinetic("profile", "create", "team", "--project", "other", "--zone", "z", "--cluster", "c")

    result = kinetic("init", "--project", cloud.project, "--yes")

    assert result.exit_code == 2
    assert "--name another-name" in result.stderr
