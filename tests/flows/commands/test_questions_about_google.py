"""What `kinetic init`, `kinetic pool` and `kinetic doctor` ask at a terminal, and how `kinetic status --watch` ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import terminal
from servers.google_cloud import GoogleCloud
from servers.kubernetes import KubernetesServer

COMMAND = [sys.executable, "-m", "kinetic"]
ZONE = "us-central1-a"
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "URL"}}]
users: [{name: test, user: {token: token}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
"""


@pytest.fixture
def cloud() -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        cloud.pending = 0
        cloud.container.api_server = ("127.0.0.1:1", b"")  # without a certificate it is not even called
        yield cloud
    assert cloud.wrong == []


class Terminal:
    """Runs commands at a terminal, in a home of its own."""

    def __init__(self, cloud: GoogleCloud, folder: Path) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KINETIC_", "GOOGLE_", "CLOUDSDK_"))
        }
        self.home, self._folder = folder / "home", folder
        self.environ = kept | cloud.environ(folder) | {"KINETIC_HOME": str(self.home)}

    def run(self, *words: str, keys: list[tuple[str, bytes]]) -> terminal.Seen:
        return terminal.run([*COMMAND, *words], cwd=self._folder, env=self.environ, then=keys, rows=60, columns=200)


@pytest.fixture
def at(cloud: GoogleCloud, tmp_path: Path) -> Terminal:
    return Terminal(cloud, tmp_path)


@pytest.fixture
def standard(cloud: GoogleCloud, at: Terminal) -> None:
    config = {"machineType": "e2-standard-2"}
    cloud.container.add(ZONE, "team", nodePools=[{"name": "system", "initialNodeCount": 1, "config": config}])
    at.environ |= {"KINETIC_PROJECT": cloud.project, "KINETIC_ZONE": ZONE, "KINETIC_CLUSTER": "team"}


# ------------------------------------------------------------------------------------------------------- kinetic init


def test_init_offers_each_cluster_and_a_new_one_and_each_repair(cloud, at) -> None:
    cloud.container.add("us-west4", "team", autopilot={"enabled": True})
    cloud.enabled.discard("cloudquotas.googleapis.com")

    seen = at.run("init", "--project", cloud.project, keys=[("Which one?", b"1\n"), ("Repair it?", b"y\n")])

    assert "1  join team in us-west4: Autopilot, RUNNING" in seen.screen
    assert "2  make a new one" in seen.screen
    assert "repaired  apis" in seen.screen
    assert "profile team leads to the cluster" in seen.screen
    assert cloud.methods(writes=True) == ["serviceusage.services.batchEnable"]


def test_init_makes_a_cluster_by_kinetic_up_whose_plan_comes_first(cloud, at) -> None:
    cloud.container.add("us-west4", "team", autopilot={"enabled": True})

    seen = at.run(
        "init",
        "--project",
        cloud.project,
        keys=[("Which one?", b"2\n"), ("Name of the new cluster", b"mine\n"), ("Make this?", b"n\n")],
    )

    assert seen.code == 1, seen.screen
    assert "+ network kn-mine" in seen.screen
    assert cloud.writes == []


def test_init_asks_whether_to_make_the_first_cluster_of_a_project(cloud, at) -> None:
    seen = at.run("init", "--project", cloud.project, keys=[("Make one?", b"n\n")])

    assert seen.code == 1, seen.screen
    assert f"kinetic up --project {cloud.project}" in seen.screen
    assert cloud.writes == []


def test_init_repairs_a_cluster_to_which_a_profile_leads_only_after_a_yes(cloud, at) -> None:
    cloud.container.add("us-west4", "team", autopilot={"enabled": True})
    cloud.enabled.discard("cloudquotas.googleapis.com")
    at.run("init", "--project", cloud.project, keys=[("Which one?", b"1\n"), ("Repair it?", b"n\n")])
    assert cloud.writes == []

    seen = at.run("init", "--project", cloud.project, keys=[("Which one?", b"1\n"), ("Repair it?", b"y\n")])

    assert "1  repair team in us-west4" in seen.screen
    assert "repaired  apis" in seen.screen


@pytest.mark.parametrize("typed", [b"9\n", b"team\n"])
def test_init_refuses_an_answer_that_is_not_in_its_list(typed, cloud, at) -> None:
    cloud.container.add("us-west4", "team", autopilot={"enabled": True})

    seen = at.run("init", "--project", cloud.project, keys=[("Which one?", typed)])

    assert seen.code == 2, seen.screen
    assert "1 to 2" in seen.screen
    assert not (at.home / "profiles.json").exists()


def test_ctrl_c_at_a_question_of_init_is_130_and_writes_nothing(cloud, at) -> None:
    cloud.container.add("us-west4", "team", autopilot={"enabled": True})

    seen = at.run("init", "--project", cloud.project, keys=[("Which one?", b"\x03")])

    assert seen.code == 130, seen.screen
    assert cloud.writes == []
    assert not (at.home / "profiles.json").exists()


# ------------------------------------------------------------------------------------------------------- kinetic pool


@pytest.mark.usefixtures("standard")
@pytest.mark.parametrize(("typed", "code", "pools"), [(b"y\n", 0, 2), (b"n\n", 1, 1), (b"\x03", 130, 1)])
def test_a_pool_is_made_after_a_yes(typed, code, pools, cloud, at) -> None:
    seen = at.run("pool", "add", "l4", keys=[("Do this?", typed)])

    assert seen.code == code, seen.screen
    assert len(cloud.container.clusters[ZONE, "team"]["nodePools"]) == pools


@pytest.mark.usefixtures("standard")
@pytest.mark.parametrize(("typed", "code", "pools"), [(b"y\n", 0, 1), (b"n\n", 1, 2)])
def test_a_pool_is_removed_after_a_yes(typed, code, pools, cloud, at) -> None:
    at.run("pool", "add", "l4", keys=[("Do this?", b"y\n")])

    seen = at.run("pool", "remove", "gpu-l4", keys=[("Remove it?", typed)])

    assert seen.code == code, seen.screen
    assert len(cloud.container.clusters[ZONE, "team"]["nodePools"]) == pools


# -------------------------------------------------------------------------------------------- kinetic doctor and status


@pytest.mark.usefixtures("standard")
@pytest.mark.parametrize(("typed", "requests"), [(b"y\n", 1), (b"n\n", 0)])
def test_doctor_asks_before_it_requests_a_quota_and_asks_for_an_address(typed, requests, cloud, at) -> None:
    keys = [("Ask Google for TPU-V5P", typed), ("Your e-mail address", b"you@example.com\n")]

    at.run("doctor", "-a", "v5p-8", "--request-quota", "8", keys=keys[: 1 + requests])

    assert len(cloud.quotas.preferences) == requests


def test_status_is_shown_again_until_ctrl_c_which_is_130(at, tmp_path: Path) -> None:
    with KubernetesServer() as kube:
        file = tmp_path / "kubeconfig"
        file.write_text(KUBECONFIG.replace("URL", kube.url))
        at.environ |= {"KUBECONFIG": str(file), "KINETIC_KUBE_CONTEXT": "test", "KINETIC_BACKEND": "gke"}
        at.environ["KINETIC_STORE"] = "gs://bucket/jobs"

        seen = at.run("status", "--watch", keys=[("answers v1.35", b"\x03")])

    assert seen.code == 130, seen.screen
    assert "Traceback" not in seen.screen
    assert "Aborted" not in seen.screen
