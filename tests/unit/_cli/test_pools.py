"""``kinetic pool``, against the fake of Google."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from servers.google_cloud import Fault, GoogleCloud

from kinetic._cli import pools
from kinetic._cluster import project_apis

CHECK_TIME = project_apis.ProjectApis.check_time
ZONE = "us-central1-a"


@pytest.fixture
def cloud(home, monkeypatch, tmp_path) -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        cloud.pending = 0
        config = {"machineType": "e2-standard-2"}
        cloud.container.add(ZONE, "team", nodePools=[{"name": "system", "initialNodeCount": 1, "config": config}])
        for name, value in cloud.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        for name, value in (("PROJECT", cloud.project), ("ZONE", ZONE), ("CLUSTER", "team")):
            monkeypatch.setenv(f"KINETIC_{name}", value)
        yield cloud
    assert cloud.wrong == []


def test_a_pool_is_planned_and_made_with_yes(kinetic, cloud) -> None:
    planned = kinetic("pool", "add", "l4", "--spot", "--dry-run")
    assert planned.stdout.startswith("+ node pool gpu-l4-spot: 0 to 1 × g2-standard-4 in us-central1-a")
    assert cloud.writes == []

    made = kinetic("pool", "add", "l4", "--spot", "--yes")

    assert made.exit_code == 0
    assert cloud.container.pool(ZONE, "team", "gpu-l4-spot")["status"] == "RUNNING"
    assert kinetic("pool", "add", "l4", "--spot", "--yes").stdout == "= gpu-l4-spot is there\n"


@pytest.mark.parametrize("words", [("2xv5e-16",), ("v5e-16", "--slices", "2")])
def test_a_name_with_several_slices_makes_a_pool_for_each(words, kinetic, cloud) -> None:
    made = kinetic("pool", "add", *words, "--yes")

    assert made.exit_code == 0, made.stderr
    pools = [cloud.container.pool(ZONE, "team", f"tpu-v5litepod-4x4{ending}") for ending in ("", "-2")]
    assert [each["placementPolicy"]["tpuTopology"] for each in pools] == ["4x4", "4x4"]
    assert [each["autoscaling"]["totalMaxNodeCount"] for each in pools] == [4, 4]


def test_a_name_with_several_slices_of_one_host_makes_one_pool_for_them(kinetic, cloud) -> None:
    made = kinetic("pool", "add", "3xv5e-8", "--yes")

    assert made.exit_code == 0, made.stderr
    assert cloud.container.pool(ZONE, "team", "tpu-v5litepod-2x4")["autoscaling"]["totalMaxNodeCount"] == 3


def test_the_options_of_the_package_that_this_one_replaces_are_understood(kinetic, cloud) -> None:
    planned = kinetic("pool", "add", "--accelerator", "l4", "--min-nodes", "0", "--preview")

    assert planned.stdout == kinetic("pool", "add", "l4", "--min", "0", "--dry-run").stdout
    assert cloud.writes == []


def test_the_variable_names_the_reservation(kinetic, cloud, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_RESERVATION", "ours")

    result = kinetic("pool", "add", "l4", "--dry-run")

    assert result.exit_code == 1
    assert f"there is no reservation ours in {ZONE}" in result.stderr
    assert kinetic("pool", "add", "l4", "--spot", "--dry-run").exit_code == 0  # an option comes before a variable


@pytest.mark.parametrize("words", [(), ("l4", "--accelerator", "t4")])
def test_a_pool_is_for_exactly_one_accelerator(words, kinetic, cloud) -> None:
    result = kinetic("pool", "add", *words)

    assert result.exit_code == 2
    assert "exactly one accelerator is needed" in result.stderr


def test_without_a_terminal_and_yes_nothing_is_written(kinetic, cloud) -> None:
    result = kinetic("pool", "add", "l4", "--spot", "--max", "3")

    assert result.exit_code == 2
    assert result.stderr.endswith("next:  kinetic pool add l4 --spot --max 3 --yes\n")
    assert cloud.writes == []


def test_a_cluster_that_is_elsewhere_is_named(kinetic, cloud) -> None:
    result = kinetic("pool", "list", "--zone", "us-west4")

    assert result.exit_code == 1
    assert f"why:   its clusters: team in {ZONE}" in result.stderr


def test_limits_are_changed_later(kinetic, cloud) -> None:
    kinetic("pool", "add", "l4", "--yes")

    result = kinetic("pool", "add", "l4", "--min", "1", "--max", "3", "--yes")

    assert result.stdout.startswith("~ node pool gpu-l4")
    assert "about $0.76 per hour" in result.stderr  # what runs always
    assert cloud.container.pool(ZONE, "team", "gpu-l4")["autoscaling"]["totalMaxNodeCount"] == 3


def test_pools_are_listed(kinetic, cloud) -> None:
    kinetic("pool", "add", "l4", "--flex-start", "--yes")

    assert "flex-start" in kinetic("pool", "list").stdout
    page = json.loads(kinetic("pool", "list", "--json").stdout)
    assert [each["name"] for each in page["pools"]] == ["system", "gpu-l4-flex"]


def test_a_pool_is_removed_and_removing_it_again_is_success(kinetic, cloud, monkeypatch) -> None:
    monkeypatch.setattr(pools, "_jobs_on", lambda *_: ["job-1"])
    kinetic("pool", "add", "l4", "--yes")

    result = kinetic("pool", "remove", "gpu-l4", "--yes")

    assert result.exit_code == 0
    assert "job-1" in result.stderr
    assert [each["name"] for each in cloud.container.clusters[ZONE, "team"]["nodePools"]] == ["system"]
    assert kinetic("pool", "remove", "gpu-l4", "--yes").exit_code == 0


def test_a_pool_that_kinetic_did_not_make_is_not_removed(kinetic, cloud) -> None:
    result = kinetic("pool", "remove", "system", "--yes")

    assert result.exit_code == 1
    assert "was not made by kinetic" in result.stderr
    assert cloud.writes == []


def test_an_autopilot_cluster_needs_no_pools_and_that_is_no_error(kinetic, cloud) -> None:
    cloud.container.clusters[ZONE, "team"]["autopilot"] = {"enabled": True}

    result = kinetic("pool", "add", "l4", "--yes")

    assert result.exit_code == 0
    assert "needs no node pools" in result.stderr
    assert cloud.writes == []


def test_a_refusal_of_google_names_the_role(kinetic, cloud) -> None:
    cloud.denied.add("container.clusters.update")

    result = kinetic("pool", "add", "l4", "--yes")

    assert result.exit_code == 1
    assert "container.clusters.update" in result.stderr


@pytest.mark.parametrize("words", [("add", "l4", "--yes"), ("remove", "gpu-l4", "--yes"), ("list",)])
@pytest.mark.parametrize("status", [403, 412])
def test_a_refusal_before_anything_is_done_is_an_error_in_three_parts(kinetic, cloud, words, status) -> None:
    cloud.faults = [Fault("status", status=status, message="not now", times=-1)]

    result = kinetic("pool", *words)

    assert result.exit_code == 1
    assert f"error: Google refused to read the cluster ({status})" in result.stderr
    assert "why:   not now" in result.stderr
    assert "next:" in result.stderr


@pytest.mark.parametrize(("fate", "code", "text"), [("never", 1, "did not finish within"), ("vanish", 0, "")])
def test_an_operation_that_never_ends_is_an_error_and_one_that_vanishes_is_looked_after(
    kinetic, cloud, monkeypatch, fate, code, text
) -> None:
    cloud.fates["CREATE_NODE_POOL"] = fate
    monkeypatch.setattr(project_apis.ProjectApis, "check_time", _over if fate == "never" else lambda *_: None)

    result = kinetic("pool", "add", "l4", "--yes")

    assert result.exit_code == code, result.stderr
    assert text in result.stderr


def _over(apis: project_apis.ProjectApis, what: str) -> None:
    apis._ends = 0.0
    CHECK_TIME(apis, what)


def test_several_slices_of_several_hosts_are_several_pools(kinetic, cloud) -> None:
    words = ("pool", "add", "v5litepod-16", "--slices", "3", "--yes")
    cloud.compute.zones_by_family["ct5lp"] = (ZONE,)

    made = kinetic(*words)

    assert made.exit_code == 0, made.stderr
    names = ["tpu-v5litepod-4x4", "tpu-v5litepod-4x4-2", "tpu-v5litepod-4x4-3"]
    pools = cloud.container.clusters[ZONE, "team"]["nodePools"][1:]
    assert [each["name"] for each in pools] == names
    assert {each["autoscaling"]["totalMaxNodeCount"] for each in pools} == {4}
    assert kinetic(*words).stdout == "".join(f"= {name} is there\n" for name in names)
    assert kinetic("pool", "remove", names[1], "--yes").exit_code == 0
    assert kinetic(*words).stdout.startswith(f"= {names[0]} is there\n+ node pool {names[1]}: 0 to 4")


def test_slices_of_one_host_are_nodes_of_one_pool(kinetic, cloud) -> None:
    result = kinetic("pool", "add", "l4", "--slices", "3")

    assert result.exit_code == 2
    assert "kinetic pool add gpu-l4 --max 3" in result.stderr
    assert cloud.calls == []


@pytest.mark.parametrize("more", ["", ":spot"])
def test_a_cluster_for_several_slices_is_refused_with_what_makes_the_same_nodes(kinetic, cloud, more) -> None:
    refused = kinetic("up", "--accelerator", f"2xv5e-16{more}")

    assert refused.exit_code != 0
    assert f"kinetic up --accelerator tpu-v5litepod-4x4{more} " in refused.stderr
    assert f"kinetic pool add tpu-2xv5litepod-4x4{more}\n" in refused.stderr
    assert cloud.writes == []
