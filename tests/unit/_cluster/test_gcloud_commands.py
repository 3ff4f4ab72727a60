"""`kinetic up --dry-run --as gcloud`: a command for each resource, made from what `kinetic up` would send."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kinetic._cluster import gcloud
from kinetic._cluster.inventory import resources_of
from kinetic._cluster.plan import Plan, plan_from_nothing

if TYPE_CHECKING:
    from servers.cluster_maker import Maker
    from servers.google_cloud import GoogleCloud

EVERYTHING: dict[str, Any] = {
    "standard": True,
    "registry": True,
    "jobset": True,
    "limits": (("tpu", 16),),
    "namespace": "jobs",
    "create_project": True,
    "billing_account": "012345-567890-ABCDEF",
    "parent": "folders/7",
}


def script(plan: Plan) -> str:
    return "\n".join(gcloud.commands_of(plan))


def words_of(plan: Plan) -> list[list[str]]:
    """Return each command of gcloud's as words; shlex refuses what a shell would not understand."""
    return [shlex.split(line) for line in script(plan).splitlines() if line.startswith("gcloud")]


@pytest.mark.parametrize("standard", [False, True])
def test_every_resource_has_commands_and_no_other_request_is_sent(standard, maker: Maker, cloud: GoogleCloud) -> None:
    setup = maker.setup("v5litepod-16", "l4", **EVERYTHING | {"standard": standard})

    plan = plan_from_nothing(setup)
    text = script(plan)

    assert cloud.calls == []
    assert len(plan.steps) == len(resources_of(setup))
    for step in plan.to_do:
        assert f"\n# {step.resource.title}" in text
        assert gcloud._commands(step), step.resource.title


def test_what_is_made_by_hand_has_our_names_and_marks(maker: Maker) -> None:
    plan = plan_from_nothing(maker.setup("v5litepod-16", **EVERYTHING))

    commands = words_of(plan)
    by_start = {" ".join(each[1:5]): each for each in commands}
    assert "kinetic: cluster team" in by_start["compute networks create kn-team"]
    assert "managed-by=kinetic,kinetic-cluster=team" in by_start["container clusters create team"]
    assert "managed-by=kinetic,kinetic-cluster=team" in by_start["artifacts repositories create kn-team"]
    pool = by_start["container node-pools create tpu-v5litepod-4x4"]
    assert pool[pool.index("--tpu-topology") + 1] == "4x4"
    assert pool[pool.index("--total-max-nodes") + 1] == "4"
    assert '"requests.google.com/tpu": "16"' in script(plan)
    assert '"namespace": "jobs"' in script(plan)
    assert '"app.kubernetes.io/managed-by": "kinetic"' in script(plan)


def test_only_what_is_missing_has_a_command(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.read_only = True

    assert script(maker.plan()).endswith("# everything is there")
    (line,) = [each for each in words_of(maker.plan(registry=True)) if "create" in each]
    assert line[:4] == ["gcloud", "artifacts", "repositories", "create"]


def test_what_differs_is_changed_and_what_failed_is_removed_first(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    bucket = cloud.storage.buckets[f"{cloud.project}-kn-team-jobs"]
    bucket["iamConfiguration"] = {"publicAccessPrevention": "inherited"}
    cloud.compute.things["regions/us-central1", "routers", "kn-team"]["nats"] = []
    cloud.compute.things["regions/us-central1", "subnetworks", "kn-team"]["privateIpGoogleAccess"] = False
    cloud.container.clusters["us-central1", "team"]["status"] = "ERROR"

    starts = [" ".join(each[1:5]) for each in words_of(maker.plan())]

    assert "compute networks subnets update" in starts
    assert "compute routers nats create" in starts
    assert "storage buckets update gs://kinetic-tests-kn-team-jobs" in starts
    assert starts.index("container clusters delete team") < starts.index("container clusters create-auto team")


def test_the_page_for_administrators_is_what_the_resources_make() -> None:
    import runpy

    docs = Path(__file__).parents[3] / "docs"
    page = runpy.run_path(str(docs / "generate_google_cloud_by_hand.py"))["page"]()

    assert (docs / "google-cloud-by-hand.md").read_text() == page, "run: python docs/generate_google_cloud_by_hand.py"
