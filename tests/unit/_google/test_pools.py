"""What a GKE cluster can give: node pools, auto-provisioning, Autopilot, and the command that helps where nothing does.

Every page of this file fits Google's own document, and so does every request.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from servers.google_cloud import GoogleCloud
from servers.google_cloud.tokens import Tokens

from kinetic._google import clusters
from kinetic._google.api import Service
from kinetic._google.clusters import is_tolerated
from kinetic._hardware import GPUS, TPUS, place
from kinetic._stores.parallel import Retry
from kinetic.errors import AccessDeniedError, BackendUnavailableError

HERE = ("my-project", "us-central1-a", "kinetic-cluster")
REGION = ("my-project", "us-central1", "kinetic-cluster")
WHERE = "--cluster kinetic-cluster --location us-central1-a --project my-project"


@pytest.fixture
def cloud() -> Iterator[GoogleCloud]:
    with GoogleCloud("my-project") as cloud:
        yield cloud
    assert cloud.wrong == []


def service(cloud: GoogleCloud) -> Service:
    return Service(clusters.CONTAINER_API, Tokens(), Retry(1), environ=cloud.endpoints)


def pool(name: str, machine_type: str, *, autoscaling: Any = None, topology: str = "", **config: Any) -> dict[str, Any]:
    page = {"name": name, "status": "RUNNING", "initialNodeCount": 1, "config": {"machineType": machine_type, **config}}
    page |= {"autoscaling": autoscaling} if autoscaling else {}
    return page | ({"placementPolicy": {"type": "COMPACT", "tpuTopology": topology}} if topology else {})


def gpus(kind: str, count: int) -> dict[str, Any]:
    return {"accelerators": [{"acceleratorType": kind, "acceleratorCount": str(count)}]}


def limits(**most: int) -> dict[str, Any]:
    listed = [{"resourceType": name.replace("_", "-"), "maximum": str(value)} for name, value in most.items()]
    return {"enableNodeAutoprovisioning": True, "resourceLimits": listed}


@pytest.fixture
def ask(cloud: GoogleCloud):
    """Return a function: of a cluster with some node pools, asked through the cloud."""

    def read(*found: dict[str, Any], where: tuple[str, str, str] = HERE, **more: Any) -> clusters.NodePools:
        cluster = cloud.container.add(*where[1:])
        cluster.update({"locations": ["us-central1-a"], "nodePools": list(found), **more})
        return clusters.read_pools(service(cloud), *where)

    return read


DEFAULT = pool("default-pool", "e2-standard-4")
L4 = pool("l4", "g2-standard-12", **gpus("nvidia-l4", 1))


def test_one_request_brings_everything(ask, cloud: GoogleCloud) -> None:
    ask(DEFAULT, L4)

    (asked,) = cloud.calls
    assert asked.path.endswith("/clusters/kinetic-cluster")


def test_a_pool_of_a_fixed_size_exists(ask) -> None:
    verdict = ask(DEFAULT, L4).capacity_for(place("gpu-l4"))

    assert (verdict.kind, verdict.why) == ("exists", "the node pool l4 has such nodes, and a fixed size")
    assert verdict.next.startswith("gcloud container clusters resize kinetic-cluster --node-pool l4 --num-nodes 1 ")


def test_what_grows_is_told_before_what_does_not(ask) -> None:
    growing = pool("more", "g2-standard-4", autoscaling={"enabled": True, "maxNodeCount": 3}, **gpus("nvidia-l4", 1))

    assert "node pool more" in ask(L4, growing).capacity_for(place("gpu-l4")).why
    assert "auto-provisioning" in ask(L4, autoscaling=limits(nvidia_l4=4)).capacity_for(place("gpu-l4")).why


def test_a_pool_that_grows_can_give_what_it_has_none_of(ask) -> None:
    growing = pool("l4", "g2-standard-4", autoscaling={"enabled": True, "maxNodeCount": 3}, **gpus("nvidia-l4", 1))

    verdict = ask(growing).capacity_for(place("gpu-l4"))

    assert verdict.kind == "can-grow"
    assert "can grow to 3" in verdict.why


def test_a_limit_for_each_zone_counts_in_each_zone(ask) -> None:
    growing = pool("l4", "g2-standard-4", autoscaling={"enabled": True, "maxNodeCount": 3}, **gpus("nvidia-l4", 1))
    zones = ["us-central1-a", "us-central1-b"]

    verdict = ask({**growing, "locations": zones}, where=REGION, locations=zones).capacity_for(place("gpu-l4"))

    assert "can grow to 6" in verdict.why


@pytest.mark.parametrize("other", ["gpu-l4x4", "gpu-t4", "tpu-v5e-1"])
def test_other_hardware_is_not_there(ask, other: str) -> None:
    assert ask(DEFAULT, L4).capacity_for(place(other)).kind == "impossible"


def test_machines_that_come_with_gpus_may_be_described_without_them(ask) -> None:
    assert ask(pool("h", "a3-highgpu-8g")).capacity_for(place("gpu-h100x8")).kind == "exists"
    assert ask(pool("n", "n1-standard-4")).capacity_for(place("gpu-t4")).kind == "impossible"


def test_a_pool_that_goes_away_gives_nothing(ask) -> None:
    assert ask({**L4, "status": "STOPPING"}).capacity_for(place("gpu-l4")).kind == "impossible"


def test_spot_is_asked_of_spot_pools_only(ask) -> None:
    there = ask(L4, pool("cheap", "g2-standard-48", spot=True, **gpus("nvidia-l4", 4)))

    assert there.capacity_for(place("gpu-l4:spot")).kind == "impossible"
    assert there.capacity_for(place("gpu-l4x4:spot")).kind == "exists"


def test_a_taint_that_pods_do_not_tolerate_keeps_them_away(ask) -> None:
    mine = {"taints": [{"key": "team", "value": "a", "effect": "NO_SCHEDULE"}]}
    plain = {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}]}
    soft = {"taints": [{"key": "team", "value": "a", "effect": "PREFER_NO_SCHEDULE"}]}

    words = [
        ask(pool("l4", "g2-standard-4", **gpus("nvidia-l4", 1), **taints)).capacity_for(place("gpu-l4")).kind
        for taints in (mine, plain, soft)
    ]

    assert words == ["impossible", "exists", "exists"]


def test_the_topology_of_a_slice_is_that_of_its_pool(ask) -> None:
    slice_ = pool("slice", "ct5lp-hightpu-4t", topology="4x4", autoscaling={"enabled": True, "totalMaxNodeCount": 4})
    there = ask(slice_)

    assert there.capacity_for(place("tpu-v5e-4x4")).kind == "can-grow"
    assert there.capacity_for(place("tpu-v5e-4x8")).kind == "impossible"
    assert there.capacity_for(place("tpu-v5e-2x2")).kind == "impossible"  # a part of a slice is no machine of its own


def test_one_host_and_two_hosts_of_the_same_topology_differ(ask) -> None:
    one = ask(pool("one", "ct5lp-hightpu-8t"))
    two = ask(pool("two", "ct5lp-hightpu-4t", topology="2x4"))

    assert [cluster.capacity_for(place("tpu-v5e-2x4")).kind for cluster in (one, two)] == ["exists", "impossible"]
    assert [cluster.capacity_for(place("tpu-v5e-2x4", multi_host=True)).kind for cluster in (one, two)] == [
        "impossible",
        "exists",
    ]


def test_a_policy_may_hold_the_topology_of_the_newest_slices(ask) -> None:
    slice_ = {**pool("slice", "tpu7x-standard-4t"), "placementPolicy": {"policyName": "mine"}}

    assert ask(slice_).capacity_for(place("tpu7x-4x4x4")).kind == "exists"


def test_a_pool_that_stops_too_early_comes_with_the_command_that_lets_it_grow(ask) -> None:
    small = pool("l4", "g2-standard-4", autoscaling={"enabled": True}, **gpus("nvidia-l4", 1))

    verdict = ask(small).capacity_for(place("gpu-l4"))

    assert verdict.kind == "impossible"
    assert "its limit is 0 and the job needs 1" in verdict.why
    assert verdict.next == (
        f"gcloud container node-pools update l4 {WHERE} --enable-autoscaling --min-nodes 0 --max-nodes 1"
    )


def slices(number: int, topology: str = "4x4", most: int = 4) -> dict[str, Any]:
    growing = {"enabled": True, "maxNodeCount": most}
    return pool(f"slice-{number}", "ct5lp-hightpu-4t", autoscaling=growing, topology=topology)


def test_each_of_several_slices_of_several_hosts_needs_a_pool_of_its_own(ask) -> None:
    one = place("tpu-2xv5e-16").one_slice

    few, enough = (ask(*map(slices, numbers)).capacity_for(one, 2) for numbers in ([1], [1, 2]))

    assert (few.kind, few.next) == ("impossible", "kinetic pool add tpu-v5litepod-4x4 --slices 2")
    assert few.why == "each slice is a node pool of its own, and there are not 2: slice-1"
    assert ask(DEFAULT).capacity_for(one, 2).next == few.next
    assert enough.kind == "can-grow"
    assert "slice-1 can grow to 4 such nodes, slice-2 can grow to 4 such nodes" in enough.why
    assert ask(slices(1), pool("fixed", "ct5lp-hightpu-4t", topology="4x4")).capacity_for(one, 2).kind == "exists"


def test_several_slices_of_one_host_may_share_a_pool_that_is_large_enough(ask) -> None:
    one = place("tpu-3xv5e-4").one_slice
    verdicts = [
        ask(*(slices(number, "", most) for number, most in enumerate(sizes))).capacity_for(one, 3)
        for sizes in ([2], [3], [1, 2])
    ]

    assert [verdict.kind for verdict in verdicts] == ["impossible", "can-grow", "can-grow"]
    assert "its limit is 2 and the job needs 3" in verdicts[0].why
    assert verdicts[0].next.endswith("--max-nodes 3")
    assert ask(DEFAULT).capacity_for(one, 3).next.endswith("--max-nodes 3")


def test_auto_provisioning_must_have_room_for_all_slices(ask) -> None:
    there = ask(DEFAULT, autoscaling=limits(tpu_v5_lite_podslice=31))

    assert there.capacity_for(place("tpu-v5e-16")).kind == "can-grow"
    assert there.capacity_for(place("tpu-2xv5e-16").one_slice, 2).kind == "impossible"


def test_auto_provisioning_gives_what_its_limits_name(ask) -> None:
    there = ask(DEFAULT, autoscaling=limits(cpu=100, memory=1000, nvidia_l4=4, tpu_v6e_slice=16))

    assert there.capacity_for(place("gpu-l4x4")).kind == "can-grow"
    assert there.capacity_for(place("tpu-v6e-4x4")).kind == "can-grow"
    assert there.capacity_for(place("tpu-v6e-4x8")).why.endswith("node auto-provisioning may add 16 tpu-v6e-slice")
    assert there.capacity_for(place("gpu-t4")).why.endswith("has no limit for nvidia-tesla-t4")


def test_limits_mean_nothing_while_auto_provisioning_is_off(ask) -> None:
    off = {**limits(nvidia_l4=4), "enableNodeAutoprovisioning": False}

    verdict = ask(DEFAULT, autoscaling=off).capacity_for(place("gpu-l4"))

    assert (verdict.kind, verdict.why) == (
        "impossible",
        "node pools: default-pool (e2-standard-4); node auto-provisioning is off",
    )


@pytest.mark.parametrize(("name", "kind"), [("tpu-v5p-4x4x4", "can-grow"), ("t4", "can-grow"), ("v100", "impossible")])
def test_autopilot_makes_whatever_is_asked_for_but_old_gpus(ask, name, kind) -> None:
    verdict = ask(autopilot={"enabled": True}).capacity_for(place(name))

    assert verdict.kind == kind
    assert ("--standard" in verdict.next) is (kind == "impossible")


@pytest.mark.parametrize(
    ("accelerator", "words"),
    [
        ("gpu-l4x4", "--machine-type g2-standard-48 --accelerator type=nvidia-l4,count=4,gpu-driver-version=default "),
        ("gpu-l4:spot", "--accelerator type=nvidia-l4,count=1,gpu-driver-version=default --spot --num-nodes 0 "),
        ("tpu-v5e-2x4", "--machine-type ct5lp-hightpu-8t --num-nodes 0 "),
        ("tpu-v5e-4x4", "--machine-type ct5lp-hightpu-4t --tpu-topology 4x4 --num-nodes 0 "),
    ],
)
def test_what_is_not_there_comes_with_the_command_that_makes_it(ask, accelerator: str, words: str) -> None:
    placement = place(accelerator)

    command = ask(DEFAULT).capacity_for(placement).next

    assert command.startswith("gcloud container node-pools create kinetic-")
    assert f" {WHERE} " in command
    assert words in command
    assert command.endswith(f"--enable-autoscaling --min-nodes 0 --max-nodes {placement.hosts}")


def test_in_a_region_the_command_names_a_zone(ask) -> None:
    command = (
        ask(DEFAULT, where=REGION, locations=["us-central1-c", "us-central1-f"]).capacity_for(place("gpu-l4")).next
    )

    assert "--location us-central1 --project my-project --node-locations us-central1-c " in command


def test_the_newest_slices_need_a_policy_first(ask) -> None:
    policy, create = ask(DEFAULT).capacity_for(place("tpu7x-4x4x4")).next.split(" && ")

    assert policy == (
        "gcloud compute resource-policies create workload-policy kinetic-tpu7x-4x4x4 --type HIGH_THROUGHPUT "
        "--accelerator-topology 4x4x4 --region us-central1 --project my-project"
    )
    assert "--placement-policy kinetic-tpu7x-4x4x4" in create
    assert "--tpu-topology" not in create


ROWS = [f"gpu-{name}x{count}" for name, family in GPUS.items() for count in family.machines] + [
    family.canonical(topology) for family in TPUS.values()
    for topology in {*(machine.own_topology for machine in family.machines if machine.own_topology), family.largest}
]  # fmt: skip


def test_what_the_command_would_make_is_what_was_asked_for() -> None:
    for accelerator in ROWS:
        placement = place(accelerator)
        bare = clusters.pools_from_json({"locations": ["us-central1-a"]}, *HERE)
        command = bare.capacity_for(placement).next
        words = shlex.split(command.rpartition(" && ")[2])

        made = clusters.pools_from_json({"locations": ["us-central1-a"], "nodePools": [_made(words)]}, *HERE)

        assert made.capacity_for(placement).kind == "can-grow", command
        assert len(words[4]) <= 40


def _made(words: list[str]) -> dict[str, Any]:
    """Return the pool that a command makes."""
    at = words.index
    page = pool(words[4], words[at("--machine-type") + 1])
    page["autoscaling"] = {"enabled": True, "maxNodeCount": int(words[at("--max-nodes") + 1])}
    if "--accelerator" in words:
        given = dict(part.split("=") for part in words[at("--accelerator") + 1].split(","))
        page["config"] |= gpus(given["type"], int(given["count"]))
    if "--tpu-topology" in words:
        page["placementPolicy"] = {"tpuTopology": words[at("--tpu-topology") + 1]}
    if "--placement-policy" in words:
        page["placementPolicy"] = {"policyName": words[at("--placement-policy") + 1]}
    return page


def test_a_long_list_of_pools_is_cut() -> None:
    many = tuple(clusters.NodePool(f"pool-{number}", "e2-standard-4") for number in range(12))
    there = clusters.NodePools(*HERE, ("us-central1-a",), autopilot=False, limits=None, pools=many)

    assert "pool-7 (e2-standard-4), …; " in there.capacity_for(place("gpu-l4")).why


def test_what_keeps_us_from_asking_is_an_error(cloud: GoogleCloud) -> None:
    cloud.denied = {"container.clusters.get"}

    with pytest.raises(AccessDeniedError):
        clusters.read_pools(service(cloud), *HERE)
    cloud.denied.clear()
    with pytest.raises(BackendUnavailableError, match="there is no cluster"):
        clusters.read_pools(service(cloud), *HERE)


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "operator": "Equal", "value": "a"}, True),
        ({"key": "team", "value": "a", "effect": "NoSchedule"}, True),
        ({"key": "team", "operator": "Equal", "value": "b"}, False),
        ({"key": "team", "operator": "Equal"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_tolerations_are_read_as_the_scheduler_reads_them(toleration: dict[str, str], fits: bool) -> None:
    assert is_tolerated(("team", "a", "NoSchedule"), [toleration]) is fits
