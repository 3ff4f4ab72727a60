"""Node pools that are added one by one, against the fake of Google: bodies, limits, and failures at every call."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from servers.cluster_maker import Killed, impatient, killed_at
from servers.google_cloud import Fault

from kinetic._backends.kube import job_manifests
from kinetic._cluster import node_pools
from kinetic._cluster.node_pools import AddedPool, PoolOptions, RemovedPool
from kinetic._config.cluster import ClusterSettings
from kinetic._google import clusters
from kinetic._google.api import ApiError
from kinetic._hardware import place
from kinetic.errors import CapacityError, KineticError, OptionError

if TYPE_CHECKING:
    from servers.cluster_maker import Maker
    from servers.google_cloud import GoogleCloud

ZONE = "us-central1-a"
ACCOUNT = "nodes@kinetic-tests.iam.gserviceaccount.com"


@pytest.fixture
def standard(cloud: GoogleCloud) -> dict[str, Any]:
    cloud.projects.accounts[ACCOUNT] = {"email": ACCOUNT, "uniqueId": "1"}
    config = {"machineType": "e2-standard-2", "serviceAccount": ACCOUNT}
    return cloud.container.add(ZONE, "team", nodePools=[{"name": "system", "initialNodeCount": 1, "config": config}])


def pool_of(maker: Maker, name: str, **options: Any) -> AddedPool:
    setup = maker.setup(standard=True, location=ZONE)
    cluster = node_pools.read_cluster(setup.apis, setup.spec)
    spot = name.endswith(":spot")
    wanted = place(name.removesuffix(":spot"), spot=spot)
    given = PoolOptions(**options)
    node_pools.check_options(wanted, given)
    zone = node_pools.zone_for(setup.apis, cluster, wanted)
    return AddedPool(setup, wanted, given, zone=zone, account=node_pools.account_of(cluster))


def add(maker: Maker, name: str, **options: Any) -> AddedPool:
    """Do what the command does."""
    pool = pool_of(maker, name, **options)
    found = pool.read()
    if found.state != "ours":
        pool.make(found)
    elif changes := pool.diff(found):
        pool.change(found, changes)
    return pool


def remove(maker: Maker, name: str) -> None:
    pool = RemovedPool(maker.setup(standard=True, location=ZONE), name)
    found = pool.read()
    if found.state != "missing":
        pool.remove(found)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("l4", {}, {"config/accelerators/0/acceleratorCount": "1", "autoscaling/totalMaxNodeCount": 1}),
        ("v5litepod-16", {}, {"placementPolicy/tpuTopology": "4x4", "autoscaling/totalMaxNodeCount": 4}),
        ("v5litepod-1:spot", {"most": 4}, {"config/spot": True, "autoscaling/totalMaxNodeCount": 4}),
        ("l4", {"least": 2, "most": 3}, {"autoscaling/totalMinNodeCount": 2}),
        ("l4", {"flex_start": True}, {"config/flexStart": True, "management/autoRepair": False}),
        ("l4", {"queued": True}, {"queuedProvisioning/enabled": True, "config/maxRunDuration": "604800s"}),
        ("l4", {"reservation": "mine"}, {"config/reservationAffinity/values/0": "mine"}),
    ],
)
def test_a_pool_is_asked_for_as_google_wants_it(maker, cloud, standard, name, options, expected) -> None:
    pool = add(maker, name, **options)

    page = cloud.container.pool(ZONE, "team", pool.name)
    assert page["status"] == "RUNNING"
    assert page["config"]["serviceAccount"] == ACCOUNT
    assert page["initialNodeCount"] == 0
    for path, value in expected.items():
        found: Any = page
        for word in path.split("/"):
            found = found[int(word)] if word.isdigit() else found[word]
        assert found == value


def test_the_newest_slices_get_a_policy_of_their_own_which_goes_with_them(maker, cloud, standard) -> None:
    cloud.compute.zones_by_family["tpu7x"] = (ZONE,)
    pool = add(maker, "tpu7x-2x2x2")
    assert cloud.compute.names("resourcePolicies") == [pool.name]
    assert cloud.container.pool(ZONE, "team", pool.name)["placementPolicy"] == {"policyName": pool.name}

    remove(maker, pool.name)

    assert cloud.compute.names("resourcePolicies") == []
    assert len(standard["nodePools"]) == 1


@pytest.mark.parametrize("name", ["h200", "b200", "gb200", "gb300", "rtx-pro-6000", "v6e-8", "tpu7x-4"])
def test_machines_that_take_no_other_boot_disk_get_a_hyperdisk(maker, cloud, standard, name) -> None:
    cloud.compute.zones_by_family[str(place(name).machine_type).partition("-")[0]] = (ZONE,)

    pool = add(maker, name)

    assert cloud.container.pool(ZONE, "team", pool.name)["config"]["bootDisk"] == {"diskType": "hyperdisk-balanced"}


def test_a_queued_pool_is_for_jobs_of_a_queue_of_kueue(maker, cloud, standard) -> None:
    add(maker, "l4", queued=True)
    pools = clusters.pools_from_json(cloud.container.clusters[ZONE, "team"], "kinetic-tests", ZONE, "team")

    def capacity(settings: ClusterSettings) -> str:
        return pools.capacity_for(job_manifests.placed(place("l4"), settings)).kind

    assert capacity(ClusterSettings(queue="dws")) == "can-grow"
    assert capacity(ClusterSettings()) == "impossible"


def test_adding_it_again_writes_nothing_and_other_limits_change_it(maker, cloud, standard) -> None:
    pool = add(maker, "l4")
    cloud.forget()
    add(maker, "l4")
    assert cloud.writes == []

    add(maker, "l4", least=1, most=5)

    assert cloud.methods(writes=True) == ["container.projects.locations.clusters.nodePools.setAutoscaling"]
    scaling = cloud.container.pool(ZONE, "team", pool.name)["autoscaling"]
    assert (scaling["totalMinNodeCount"], scaling["totalMaxNodeCount"]) == (1, 5)


def test_names_say_what_a_pool_is(maker, standard) -> None:
    names = [
        pool_of(maker, "l4").name,
        pool_of(maker, "l4:spot").name,
        pool_of(maker, "l4", flex_start=True).name,
        pool_of(maker, "l4", queued=True).name,
        pool_of(maker, "l4", reservation="r").name,
    ]

    assert names == ["gpu-l4", "gpu-l4-spot", "gpu-l4-flex", "gpu-l4-queued", "gpu-l4-res"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("l4:spot", {"reservation": "r"}),
        ("l4:spot", {"flex_start": True}),
        ("l4", {"reservation": "r", "queued": True}),
        ("l4", {"least": 3, "most": 2}),
        ("v5litepod-16", {"most": 8}),
        ("cpu", {}),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_sent(maker, cloud, name, options) -> None:
    with pytest.raises(OptionError) as caught:
        node_pools.check_options(place(name), PoolOptions(**options))

    assert caught.value.next
    assert cloud.calls == []


RESERVATION = {
    "specificReservationRequired": True,
    "specificReservation": {"count": "4", "inUseCount": "1", "instanceProperties": {"machineType": "g2-standard-4"}},
}


def test_a_reservation_that_fits_is_described(maker, cloud) -> None:
    cloud.compute.add("reservations", "mine", f"zones/{ZONE}", **RESERVATION)

    for name in ("mine", "projects/kinetic-tests/reservations/mine", "mine/reservationBlocks/mine-block-0001"):
        assert "3 g2-standard-4 free" in node_pools.check_reservation(maker.setup().apis, ZONE, place("l4"), name)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"status": "CREATING"}, "its status is CREATING"),
        ({"specificReservation": {"count": "1", "inUseCount": "1"}}, "0 of its machines are free"),
        ({"specificReservation": {"count": "1", "instanceProperties": {"machineType": "a2"}}}, "it holds a2"),
    ],
)
def test_a_reservation_that_does_not_fit_is_refused(maker, cloud, change, problem) -> None:
    cloud.compute.add("reservations", "mine", f"zones/{ZONE}", **(RESERVATION | change))

    with pytest.raises(CapacityError) as caught:
        node_pools.check_reservation(maker.setup().apis, ZONE, place("l4"), "mine")

    assert problem in str(caught.value)


def of_chips(reserved: int, used: int = 0) -> dict[str, Any]:
    """Return a reservation of TPUs, which Google sells by the chip."""
    kind = "projects/kinetic-tests/zones/us-central1-a/acceleratorTypes/ct6e"
    resources = [
        [{"accelerator": {"acceleratorCount": count, "acceleratorType": kind}}] if count else []
        for count in (reserved, used)
    ]
    family = "VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT6E"
    fields = {"vmFamily": family, "reservedResources": resources[0], "inUseResources": resources[1]}
    return {"specificReservationRequired": True, "aggregateReservation": fields}


def test_a_reservation_of_tpus_counts_chips_of_machines_of_any_size(maker, cloud) -> None:
    cloud.compute.add("reservations", "mine", f"zones/{ZONE}", **of_chips(32, 16))
    apis = maker.setup().apis

    for name in ("v6e-1", "v6e-8", "v6e-16"):
        assert "16 chips of ct6e free" in node_pools.check_reservation(apis, ZONE, place(name), "mine")
    with pytest.raises(CapacityError, match="16 of its chips are free, 32 are needed"):
        node_pools.check_reservation(apis, ZONE, place("v6e-32"), "mine")
    with pytest.raises(CapacityError, match="it holds ct6e, not ct5lp"):
        node_pools.check_reservation(apis, ZONE, place("v5litepod-16"), "mine")


def test_a_reservation_that_is_missing_and_a_machine_that_is_not_sold_are_refused(maker, cloud, standard) -> None:
    with pytest.raises(CapacityError, match="no reservation"):
        node_pools.check_reservation(maker.setup().apis, ZONE, place("l4"), "mine")
    with pytest.raises(CapacityError, match="is not sold in us-central1"):
        pool_of(maker, "v6e-8")


def test_a_pool_that_kinetic_did_not_make_is_foreign(maker, cloud, standard) -> None:
    standard["nodePools"].append({"name": "gpu-l4", "status": "RUNNING", "config": {}})

    assert pool_of(maker, "l4").read().state == "foreign"


Act = Callable[["Maker"], object]


def fingerprint(cloud: GoogleCloud) -> list[tuple[str, str]]:
    return sorted((each["name"], each["status"]) for each in cloud.container.clusters[ZONE, "team"]["nodePools"])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("act", ["add", "remove"])
def test_killed_at_any_call_and_run_again_the_end_is_the_same(maker, cloud, standard, act, after) -> None:
    acts: dict[str, Act] = {"add": lambda m: add(m, "v5litepod-16"), "remove": lambda m: remove(m, "tpu-v5litepod-4x4")}
    undo: dict[str, Act] = {"add": acts["remove"], "remove": acts["add"]}
    if act == "remove":
        undo[act](maker)
    acts[act](maker)
    expected, index = fingerprint(cloud), 0
    while True:
        undo[act](maker)
        died = True
        try:
            with killed_at(index, after=after):
                acts[act](maker)
                died = False
        except Killed:
            acts[act](maker)
        assert fingerprint(cloud) == expected, index
        if not died:
            break
        index += 1
    assert index >= 3


KINDS = [Fault("status", status=status) for status in (429, 500, 503)] + [
    Fault("reset"),
    Fault("truncated"),
    Fault("html"),
]


@pytest.mark.parametrize("fault", KINDS, ids=lambda each: f"{each.kind}-{each.status}")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("act", ["add", "remove"])
def test_a_fault_at_any_call_is_repeated_or_run_again(maker, cloud, standard, act, fault, after) -> None:
    acts: dict[str, Act] = {"add": lambda m: add(m, "v5litepod-16"), "remove": lambda m: remove(m, "tpu-v5litepod-4x4")}
    other = acts["remove" if act == "add" else "add"]
    if act == "remove":
        other(maker)
    cloud.forget()
    acts[act](maker)
    expected, calls = fingerprint(cloud), len(cloud.calls)
    for index in range(calls):
        other(maker)
        cloud.forget()
        cloud.faults = [fault._replace(at=index, after=after)]
        try:
            acts[act](maker)
        except KineticError:
            acts[act](maker)
        assert fingerprint(cloud) == expected, index


def test_a_pool_that_could_not_be_made_is_removed_and_made_again(maker, cloud, standard) -> None:
    cloud.fates["CREATE_NODE_POOL"] = ("error", "does not have enough resources")
    with pytest.raises(Exception, match="enough resources"):
        add(maker, "l4")
    assert fingerprint(cloud)[0] == ("gpu-l4", "RUNNING_WITH_ERROR")
    cloud.fates.clear()

    add(maker, "l4")

    assert fingerprint(cloud)[0] == ("gpu-l4", "RUNNING")


# ------------------------------------------------------------- what is refused, and operations that do not end well

THEIRS = {"name": "theirs", "status": "RUNNING", "config": {"machineType": "n2-standard-8"}}
REFUSALS = [Fault("status", status=status) for status in (403, 409, 412)] + [Fault("time-out")]


def act_of(name: str) -> Act:
    return (lambda m: add(m, "l4")) if name == "add" else (lambda m: remove(m, "gpu-l4"))


@pytest.mark.parametrize("fault", REFUSALS, ids=lambda each: f"{each.kind}-{each.status}")
@pytest.mark.parametrize("act", ["add", "remove"])
def test_a_refusal_at_any_call_loses_nothing_and_touches_nothing_foreign(maker, cloud, standard, act, fault) -> None:
    standard["nodePools"].append(dict(THEIRS))
    undo = act_of("remove" if act == "add" else "add")
    act_of(act)(maker)
    expected, foreign = fingerprint(cloud), [each for each in standard["nodePools"] if each["name"] != "gpu-l4"]
    before, index = copy.deepcopy(foreign), 0
    while True:
        undo(maker)
        cloud.forget()
        cloud.faults = [fault._replace(at=index)]
        with impatient(), contextlib.suppress(KineticError, ApiError):
            act_of(act)(maker)
        is_over = len(cloud.calls) <= index
        cloud.faults = []
        act_of(act)(maker)
        assert fingerprint(cloud) == expected, index
        assert [each for each in standard["nodePools"] if each["name"] != "gpu-l4"] == before, index
        if is_over:
            break
        index += 1
    assert index >= 3


@pytest.mark.parametrize("fate", ["error", "vanish", "never"])
@pytest.mark.parametrize("act", ["add", "remove", "change"])
def test_an_operation_that_does_not_end_well_is_said_and_the_same_command_ends_it(
    maker, cloud, standard, act, fate
) -> None:
    acts = {"add": act_of("add"), "remove": act_of("remove"), "change": lambda m: add(m, "l4", most=7)}
    if act != "add":
        add(maker, "l4")
    kind = {"add": "CREATE_NODE_POOL", "remove": "DELETE_NODE_POOL", "change": "UPDATE_CLUSTER"}[act]
    acts[act](maker)
    expected = fingerprint(cloud)
    (act_of("remove") if act != "remove" else act_of("add"))(maker)
    if act == "change":
        add(maker, "l4")
    cloud.fates[kind] = fate

    with contextlib.nullcontext() if fate == "vanish" else pytest.raises((KineticError, ApiError)) as caught:
        acts[act](maker)
    if fate == "never":
        assert "did not finish within" in str(caught.value)
    cloud.fates.clear()
    for each in [*cloud.container.operations]:  # Google ends it meanwhile
        while cloud.container._operation(each)["status"] != "DONE":
            pass
    acts[act](maker)

    assert fingerprint(cloud) == expected
