"""`kinetic up` against a fake of Google that keeps state and holds each request against its document."""

from __future__ import annotations

import copy
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import yaml
from servers.cluster_maker import impatient
from servers.google_cloud import Fault

from kinetic._cluster import jobset
from kinetic._cluster import plan as cluster_plan
from kinetic._config import profiles
from kinetic.errors import (
    AccessDeniedError,
    BackendUnavailableError,
    CapacityError,
    ClusterError,
    KineticError,
    OptionError,
)

if TYPE_CHECKING:
    from servers.cluster_maker import Maker
    from servers.google_cloud import GoogleCloud


V1 = "https://www.googleapis.com/compute/v1"


def test_an_empty_project_has_a_cluster_afterwards(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.enabled = {"serviceusage.googleapis.com"}

    maker.up()

    state = maker.state()
    assert [each[:3] for each in state["clusters"]] == [("us-central1", "team", "RUNNING")]
    assert {kind for _, kind, _ in state["compute"]} == {"networks", "subnetworks", "routers", "firewalls"}
    assert state["accounts"] == [f"kn-team-nodes@{cloud.project}.iam.gserviceaccount.com"]
    assert state["buckets"] == [f"{cloud.project}-kn-team-jobs"]
    followers = [("Role", "kinetic-followers"), ("RoleBinding", "kinetic-followers")]
    assert state["objects"] == [*followers, ("ServiceAccount", "kinetic")]
    member = f"projects/{cloud.number}/locations/global/workloadIdentityPools/{cloud.project}.svc.id.goog"
    ((_, access),) = [each for each in state["access"][state["buckets"][0]] if each[0] == "roles/storage.objectUser"]
    assert access == [f"principal://iam.googleapis.com/{member}/subject/ns/default/sa/kinetic"]


@pytest.mark.parametrize("standard", [False, True])
def test_the_profile_says_where_images_go_and_how_much_disk_jobs_need(maker: Maker, tmp_path, standard: bool) -> None:
    plan = maker.up(registry=True, standard=standard)
    environ = {"KINETIC_HOME": str(tmp_path / "home")}

    name = cluster_plan.save_profile(plan.setup, environ)
    found = profiles.load(environ).saved[name]

    assert found.image_repo == f"us-central1-docker.pkg.dev/{plan.setup.project}/kn-team/jobs"
    assert found.cpu_disk == ("" if standard else "10Gi")


def test_a_second_up_writes_nothing_and_reads_little(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.forget()
    cloud.read_only = True

    plan = maker.plan()

    assert plan.to_do == []
    assert cloud.writes == []
    assert len(cloud.calls) <= 12


def test_a_plan_of_a_new_project_writes_nothing(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.read_only = True

    plan = maker.plan("v5litepod-4", registry=True)

    assert [step.action for step in plan.steps if step.resource.key not in {"billing", "services"}][:3] == ["make"] * 3
    assert cloud.writes == []
    assert any("v5litepod" in line and "$4.80 per hour" in line for line in plan.lines())


def test_an_autopilot_cluster_is_asked_for_with_the_account_and_without_pools(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up("v6e-8")

    ((location, _), cluster) = next(iter(cloud.container.clusters.items()))
    assert location == "us-east5"  # the first region that sells it
    assert cluster["autopilot"] == {"enabled": True}
    defaults = cluster["autoscaling"]["autoprovisioningNodePoolDefaults"]
    assert defaults["serviceAccount"].startswith("kn-team-nodes@")


def test_a_standard_cluster_has_a_small_node_and_pools_that_start_at_zero(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up("v5litepod-16", "gpu-l4", standard=True)

    ((location, _), cluster) = next(iter(cloud.container.clusters.items()))
    pools = {each["name"]: each for each in cluster["nodePools"]}
    assert location == "us-central1-a"  # the zone that sells both
    assert pools["system"]["initialNodeCount"] == 1
    assert pools["tpu-v5litepod-4x4"]["autoscaling"]["totalMaxNodeCount"] == 4
    assert pools["tpu-v5litepod-4x4"]["placementPolicy"] == {"type": "COMPACT", "tpuTopology": "4x4"}
    assert pools["gpu-l4"]["initialNodeCount"] == 0
    cloud.forget()
    assert maker.plan("v5litepod-16", "gpu-l4", standard=True).to_do == []


def test_a_standard_cluster_is_made_in_the_zone_that_was_named(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up("gpu-l4", standard=True, location="us-central1-b")

    ((location, _), cluster) = next(iter(cloud.container.clusters.items()))
    assert location == "us-central1-b"
    assert cluster["nodePools"][1]["locations"] == ["us-central1-b"]


def test_an_autopilot_cluster_is_made_in_the_region_of_a_zone_that_was_named(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up("v5litepod-4", location="us-central1-b")  # as KINETIC_ZONE names it

    assert [*cloud.container.clusters] == [("us-central1", "team")]
    assert maker.plan("v5litepod-4", location="us-central1-b").to_do == []


def test_hardware_of_an_ai_zone_gets_a_pool_there_and_the_cluster_is_in_its_parent_zone(
    maker: Maker, cloud: GoogleCloud
) -> None:
    cloud.compute.zones_by_family["ct6e"] = ("us-south1-ai1b",)

    maker.up("v6e-8", standard=True)

    ((location, _), cluster) = next(iter(cloud.container.clusters.items()))
    assert location == "us-south1-b"
    assert cluster["nodePools"][1]["locations"] == ["us-south1-ai1b"]
    assert cloud.compute.things["regions/us-south1", "subnetworks", "kn-team"]
    assert maker.plan("v6e-8", standard=True).to_do == []


def test_a_slice_of_the_newest_tpus_has_a_policy_which_goes_with_the_cluster(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.add("resourcePolicies", "of-others", scope="regions/us-central1", description="not ours")
    cloud.compute.zones_by_family["tpu7x"] = ("us-central1-a",)

    maker.up("tpu7x-2x2x2", standard=True)

    pool = cloud.container.pool("us-central1-a", "team", "tpu7x-2x2x2")
    assert pool["placementPolicy"] == {"policyName": "tpu7x-2x2x2"}
    assert maker.down() == ([], [])
    assert cloud.compute.names("resourcePolicies") == ["of-others"]


def test_the_system_runs_on_a_machine_that_the_zone_sells(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.zones_by_family |= {"e2": (), "n2": ("us-central2-b",), "ct4p": ("us-central2-b",)}

    maker.up("v4-8", standard=True)

    system = cloud.container.pool("us-central2-b", "team", "system")
    assert system["config"]["machineType"] == "n2-standard-2"


def test_regions_that_sell_outside_of_ai_zones_come_first(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.zones_by_family["ct6e"] = ("us-central1-ai1a", "us-south1-ai1b", "us-south1-b")

    assert maker.plan("v6e-8").setup.location == "us-south1"


def test_a_repository_is_made_where_it_is_asked_for(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up(registry=True)

    assert maker.plan(registry=True).to_do == []
    assert "artifactregistry.projects.locations.repositories.create" in cloud.methods(writes=True)


def test_only_pods_that_build_images_may_write_to_the_repository(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up(registry=True)

    (policy,) = cloud.repositories.policies.values()
    members = f"principal://iam.googleapis.com/projects/{cloud.number}/locations/global/workloadIdentityPools/"
    members += f"{cloud.project}.svc.id.goog/subject/ns/default/sa/"
    assert policy.members("roles/artifactregistry.writer") == {f"{members}kinetic-builder"}
    state = maker.state()
    ((_, access),) = [each for each in state["access"][state["buckets"][0]] if each[0] == "roles/storage.objectUser"]
    assert sorted(access) == [f"{members}kinetic", f"{members}kinetic-builder"]
    assert ("ServiceAccount", "kinetic-builder") in state["objects"]


def test_who_may_not_see_which_apis_are_on_makes_a_cluster_with_those_that_are(maker, cloud: GoogleCloud) -> None:
    cloud.denied = {"serviceusage.services.get", "serviceusage.services.list", "serviceusage.services.enable"}

    plan = maker.up()

    assert "  = APIs of the project kinetic-tests: this account may not see which are on" in plan.lines()
    assert maker.plan().to_do == []


def test_own_network_and_account_are_not_made_where_they_are_given(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.add("networks", "shared")
    _add_subnet(cloud, "nodes", "us-central1", network="shared")
    email = f"mine@{cloud.project}.iam.gserviceaccount.com"
    cloud.projects.accounts[email] = {"email": email, "name": f"projects/{cloud.project}/serviceAccounts/{email}"}

    maker.up(network=f"projects/{cloud.project}/global/networks/shared", node_account=email)

    assert cloud.compute.names("networks") == ["shared"]
    assert [*cloud.projects.accounts] == [email]


def test_missing_rights_are_known_before_the_first_write(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.denied = {"compute.networks.create", "storage.buckets.create"}

    with pytest.raises(AccessDeniedError) as refused:
        maker.up()

    assert cloud.writes == []
    assert "roles/compute.networkAdmin" in str(refused.value)
    assert "roles/storage.admin" in str(refused.value)
    assert cloud.methods().count("cloudresourcemanager.projects.testIamPermissions") == 1


def test_who_may_make_a_cluster_and_nothing_in_it_is_told_before_it_is_made(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.denied = {"container.serviceAccounts.create", "container.roles.create"}

    with pytest.raises(AccessDeniedError, match=r"roles/container\.admin for container\.roles\.create"):
        maker.up()

    assert cloud.writes == []
    cloud.denied.clear()
    maker.up()
    cloud.denied = {"container.resourceQuotas.create"}  # a role in the cluster may allow it
    maker.up(limits=(("tpu", 4),))


def test_a_project_that_is_not_there_or_not_shown_is_named(maker: Maker) -> None:
    with pytest.raises(AccessDeniedError) as refused:
        maker.plan(project="mistyped")

    assert refused.value.what == "there is no project mistyped that this account may see"


def test_what_has_our_name_and_not_our_mark_is_named_and_not_touched(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.add("networks", "kn-team", description="of somebody else")

    with pytest.raises(ClusterError, match="network kn-team exists and was not made by kinetic"):
        maker.up()

    assert cloud.writes == []
    assert any(line.startswith("  ! network kn-team") for line in maker.plan().lines())


def test_a_cluster_of_somebody_else_is_not_touched(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.container.add("us-west4", "team")

    with pytest.raises(KineticError, match="was not made by kinetic up"):
        maker.up()

    assert cloud.writes == []


def test_a_bucket_name_that_is_taken_is_reported(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.storage.foreign.add(f"{cloud.project}-kn-team-jobs")

    with pytest.raises(ClusterError, match="names are global"):
        maker.up()


def test_billing_that_is_off_stops_before_anything_is_made(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.enabled, cloud.billing = {"serviceusage.googleapis.com"}, ""

    with pytest.raises(ClusterError, match="has no billing account"):
        maker.up()

    assert maker.state()["compute"] == []


def test_billing_that_was_turned_off_stops_before_anything_is_made(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.billing = ""  # all APIs are on: turning them on cannot tell

    with pytest.raises(ClusterError, match="has no billing account") as caught:
        maker.up()

    assert "billing/linkedaccount?project=" in str(caught.value.next)
    assert cloud.writes == []


@pytest.mark.parametrize("enabled", [True, False], ids=["its API is on", "its API is off"])
def test_a_billing_account_that_was_named_is_linked_first(enabled: bool, maker: Maker, cloud: GoogleCloud) -> None:
    cloud.billing = ""
    if not enabled:
        cloud.enabled = {"serviceusage.googleapis.com"}

    plan = maker.up(billing_account="012345-567890-ABCDEF")

    assert cloud.billing == "billingAccounts/012345-567890-ABCDEF"
    lines = plan.lines()
    assert lines[1].startswith(f"  + billing account 012345-567890-ABCDEF of the project {cloud.project}")
    methods = cloud.methods(writes=True)
    assert methods.index("cloudbilling.projects.updateBillingInfo") < methods.index("compute.networks.insert")
    cloud.read_only = True
    assert maker.plan(billing_account="012345-567890-ABCDEF").to_do == []


def test_a_billing_account_is_not_exchanged_for_another(maker: Maker, cloud: GoogleCloud) -> None:
    with pytest.raises(OptionError, match="was not linked"):
        maker.up(billing_account="012345-567890-ABCDEF")

    assert cloud.writes == []


def test_a_named_billing_account_whose_project_is_paid_is_no_write_even_where_that_is_learned_late(
    maker: Maker, cloud: GoogleCloud
) -> None:
    cloud.enabled = {"serviceusage.googleapis.com"}

    maker.up(billing_account="000000-000000-000001")

    assert "cloudbilling.projects.updateBillingInfo" not in cloud.methods()


def test_the_right_to_link_a_billing_account_is_asked_before(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.billing, cloud.denied = "", {"resourcemanager.projects.createBillingAssignment"}

    with pytest.raises(AccessDeniedError, match="permission is missing") as caught:
        maker.up(billing_account="012345-567890-ABCDEF")

    assert "roles/billing.projectManager" in str(caught.value.next)
    assert cloud.writes == []


def _add_subnet(cloud: GoogleCloud, name: str, region: str = "us-west4", *, network: str = "office") -> None:
    link = f"https://www.googleapis.com/compute/v1/projects/{cloud.project}/global/networks/{network}"
    cloud.compute.add("subnetworks", name, scope=f"regions/{region}", network=link, ipCidrRange="10.1.0.0/20")


@pytest.mark.parametrize("full", [True, False], ids=["its full name", "its short name"])
def test_nodes_use_the_only_subnet_of_a_network_that_was_named(full: bool, maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.add("networks", "office")
    _add_subnet(cloud, "first")
    _add_subnet(cloud, "elsewhere", "europe-west4")
    network = f"projects/{cloud.project}/global/networks/office" if full else "office"

    maker.up(network=network, location="us-west4")

    ((_, cluster),) = cloud.container.clusters.items()
    assert cluster["subnetwork"].rpartition("/")[2] == "first"
    assert cloud.compute.names("routers") == []
    cloud.read_only = True
    assert maker.plan(network=network, location="us-west4").to_do == []


SHARED = "projects/host/global/networks/all"
SHARED_SUBNET = "projects/host/regions/us-west4/subnetworks/nodes"


def _share(cloud: GoogleCloud, **ranges: str) -> None:
    """Show a network of another project, with a subnet that has ranges by their names."""
    about = {"id": "1", "creationTimestamp": "2026-11-23T00:00:00.000-08:00"}
    cloud.compute.shared = {
        SHARED: {**about, "kind": "compute#network", "name": "all", "subnetworks": [f"{V1}/{SHARED_SUBNET}"]},
        SHARED_SUBNET: {
            **about,
            "kind": "compute#subnetwork",
            "name": "nodes",
            "secondaryIpRanges": [{"rangeName": name, "ipCidrRange": cidr} for name, cidr in ranges.items()],
        },
    }


@pytest.mark.parametrize(
    ("ranges", "given", "expected"),
    [
        ({"team-services": "10.8.0.0/20", "team-pods": "10.4.0.0/14"}, {}, ("team-pods", "team-services")),
        ({"small": "10.8.0.0/20", "large": "10.4.0.0/14"}, {}, ("large", "small")),
        ({"one": "10.4.0.0/14"}, {}, ("one", None)),
        (
            {"a-pods": "10.4.0.0/14", "b-pods": "10.8.0.0/14", "a-svc": "10.12.0.0/20", "b-svc": "10.13.0.0/20"},
            {"pod_range": "b-pods", "service_range": "b-svc"},
            ("b-pods", "b-svc"),
        ),
    ],
)
@pytest.mark.parametrize("sees_the_network", [True, False])
def test_a_cluster_on_a_subnet_of_another_project_is_told_its_ranges(
    sees_the_network, ranges, given, expected, maker, cloud: GoogleCloud
) -> None:
    _share(cloud, **ranges)
    if not sees_the_network:
        del cloud.compute.shared[SHARED]
        given = given | {"subnet": SHARED_SUBNET}

    maker.up(network=SHARED, location="us-west4", **given)

    ((_, cluster),) = cloud.container.clusters.items()
    policy = cluster["ipAllocationPolicy"]
    assert (policy["clusterSecondaryRangeName"], policy.get("servicesSecondaryRangeName")) == expected


@pytest.mark.parametrize(
    ("ranges", "given", "message", "step"),
    [
        ({}, {}, "which ranges of the subnet", "two secondary ranges"),
        ({"a": "10.4.0.0/14", "b": "10.8.0.0/14", "c": "10.12.0.0/20"}, {}, "which ranges", "--pod-range a"),
        ({"a": "10.4.0.0/14", "b": "10.8.0.0/20"}, {"pod_range": "d"}, "has no range d", "--pod-range a"),
    ],
)
def test_ranges_of_another_project_that_are_not_clear_stop_before_anything_is_made(
    ranges, given, message, step, maker, cloud: GoogleCloud
) -> None:
    _share(cloud, **ranges)

    with pytest.raises(OptionError, match=message) as caught:
        maker.up(network=SHARED, location="us-west4", **given)

    assert step in str(caught.value.next)
    assert cloud.writes == []


def test_who_may_not_see_the_network_of_another_project_names_its_subnet(maker, cloud: GoogleCloud) -> None:
    with pytest.raises(AccessDeniedError, match="may not see the network") as caught:
        maker.up(network=SHARED, location="us-west4")

    assert "--subnet projects/host/regions/us-west4/subnetworks/NAME" in str(caught.value.next)
    assert cloud.writes == []


def test_a_subnet_is_chosen_when_compute_engine_is_on_at_last(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.add("networks", "office")
    _add_subnet(cloud, "first")
    cloud.enabled -= {"compute.googleapis.com"}

    maker.up(network="office", location="us-west4")

    ((_, cluster),) = cloud.container.clusters.items()
    assert cluster["subnetwork"].rpartition("/")[2] == "first"


def test_between_two_subnets_the_user_decides(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.add("networks", "office")
    for name in ("first", "second"):
        _add_subnet(cloud, name)

    with pytest.raises(OptionError, match="has 2 subnets in us-west4") as caught:
        maker.up(network="office", location="us-west4")
    assert cloud.writes == []
    maker.up(network="office", subnet="second", location="us-west4")

    assert "first, second" in str(caught.value.why)
    ((_, cluster),) = cloud.container.clusters.items()
    assert cluster["subnetwork"].rpartition("/")[2] == "second"


@pytest.mark.parametrize(
    ("given", "message", "step"),
    [
        ({"network": "nowhere"}, "the network nowhere does not exist", "--network projects/PROJECT"),
        ({"network": "office", "subnet": "third"}, "has no subnet third in us-west4", "--subnet first"),
        ({"network": "office", "location": "us-central1"}, "has no subnet in us-central1", "--region us-west4"),
    ],
)
def test_a_network_or_subnet_that_is_not_there_stops_before_anything_is_made(
    given: dict[str, str], message: str, step: str, maker: Maker, cloud: GoogleCloud
) -> None:
    cloud.compute.add("networks", "office")
    _add_subnet(cloud, "first")

    with pytest.raises(OptionError, match=message) as caught:
        maker.up(**({"location": "us-west4"} | given))

    assert step in str(caught.value.next)
    assert cloud.writes == []


def test_what_was_just_made_may_be_seen_late(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.enabled = {"serviceusage.googleapis.com"}
    cloud.spread, cloud.unseen = 4, 3

    maker.up()

    assert maker.plan().to_do == []


def test_another_writer_of_the_policy_keeps_its_binding(maker: Maker, cloud: GoogleCloud) -> None:
    condition = {"title": "until", "expression": "true"}
    cloud.projects.policy.grant("roles/viewer", "user:a@example.com", condition=condition)
    raced = []

    def race(call) -> None:
        if call.method == "cloudresourcemanager.projects.setIamPolicy" and len(raced) < 2:
            raced.append(call)
            cloud.projects.policy.grant("roles/editor", f"user:{len(raced)}@example.com")

    cloud.before = race
    maker.up()

    policy = cloud.projects.policy
    assert policy.members("roles/editor") == {"user:1@example.com", "user:2@example.com"}
    assert policy.members("roles/container.defaultNodeServiceAccount")
    assert [each["condition"] for each in policy.bindings if "condition" in each] == [condition]


def test_quota_that_is_too_small_is_shown_and_refuses_nothing(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.quotas["TPU_LITE_PODSLICE_V5"] = (0.0, 0.0)

    plan = maker.up("v5litepod-8")

    assert any(line.startswith("quota too small: TPU_LITE_PODSLICE_V5") for line in plan.lines())
    assert maker.state()["clusters"]


def test_a_region_with_quota_is_preferred(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.regional_quotas["us-central1", "TPU_LITE_PODSLICE_V5"] = (0.0, 0.0)

    assert maker.plan("v5litepod-8").setup.location != "us-central1"


@pytest.mark.parametrize("location", ["us-centrall1", "us-centrall1-a", "us-central1-q"])
def test_a_place_that_google_does_not_have_is_refused_before_anything_is_made(
    maker: Maker, cloud: GoogleCloud, location: str
) -> None:
    with pytest.raises(OptionError, match=f"no region or zone {location}") as refused:
        maker.plan(location=location)

    assert str(refused.value.next).startswith("kinetic up --region us-central1")
    assert cloud.writes == []


def test_a_region_that_does_not_sell_the_hardware_is_refused(maker: Maker) -> None:
    with pytest.raises(CapacityError, match="us-west4 does not sell tpu-v6e"):
        maker.plan("v6e-8", location="us-west4")


def test_limits_become_a_quota_of_the_namespace_and_change_with_it(maker: Maker) -> None:
    maker.up(limits=(("tpu", 16),))
    assert maker.objects.kept["ResourceQuota", "kinetic"]["spec"]["hard"] == {"requests.google.com/tpu": "16"}

    plan = maker.plan(limits=(("tpu", 32),))

    assert [str(change) for step in plan.to_do for change in step.changes] == ["requests.google.com/tpu 16 → 32"]


def test_a_cluster_that_failed_is_made_again(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.fates["CREATE_CLUSTER"] = ("error", "no addresses left")
    with pytest.raises(ClusterError, match="no addresses left"):
        maker.up()
    cloud.fates.clear()

    with pytest.raises(OptionError, match="cannot be made in us-west4"):
        maker.plan(location="us-west4")
    plan = maker.plan()
    assert [step.action for step in plan.steps if step.resource.key == "cluster"] == ["remake"]
    maker.up()

    assert maker.plan().to_do == []


def test_operations_that_take_longer_than_a_request_may_are_waited_for(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.pending = 6

    with impatient():
        maker.up()

    assert maker.plan().to_do == []


@pytest.mark.parametrize("kind", ["CREATE_CLUSTER", "repository"])
def test_an_operation_that_was_denied_is_explained_as_a_request_that_was(kind, maker, cloud: GoogleCloud) -> None:
    cloud.fates[kind] = ("error", "Permission denied on it.", 7)

    with pytest.raises(AccessDeniedError, match=r"\(403\)"):
        maker.up(registry=True)


@pytest.mark.parametrize("kind", ["CREATE_CLUSTER", "subnetworks.insert"])
def test_an_operation_that_vanishes_is_not_missed(kind: str, maker: Maker, cloud: GoogleCloud) -> None:
    cloud.fates[kind] = "vanish"

    maker.up()

    assert maker.plan().to_do == []


def test_an_operation_that_never_ends_is_given_up_and_continued(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.fates["CREATE_CLUSTER"] = "never"
    with pytest.raises(ClusterError, match="did not finish within 40 minutes"):
        maker.up()
    cloud.fates.clear()

    maker.up()

    assert maker.plan().to_do == []


def test_zones_that_do_not_answer_stop_it(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.container.missing_zones = ["us-east1-b"]

    with pytest.raises(ClusterError, match="us-east1-b"):
        maker.up()

    assert cloud.writes == []


@pytest.mark.parametrize(
    ("method", "constraint", "way"),
    [
        ("compute.networks.insert", "constraints/compute.skipDefaultNetworkCreation", "ask an administrator"),
        ("iam.projects.serviceAccounts.create", "constraints/iam.disableServiceAccountCreation",
         "kinetic up --node-service-account EMAIL"),
        ("storage.buckets.insert", "constraints/gcp.resourceLocations", "kinetic up --region REGION"),
    ],
)  # fmt: skip
def test_an_organization_policy_is_named_with_a_way_around_it(method, constraint, way, maker, cloud) -> None:
    cloud.constraints[method] = constraint

    with pytest.raises(AccessDeniedError, match=constraint) as caught:
        maker.up()

    assert caught.value.code == "organization-policy"
    assert str(caught.value.next).startswith(way)


@pytest.mark.parametrize(
    ("method", "status", "message"),
    [
        (
            "storage.buckets.setIamPolicy",
            412,
            "One or more users named in the policy do not belong to a permitted customer.",
        ),
        ("storage.buckets.insert", 412, "'us-central1' violates constraint 'constraints/gcp.resourceLocations'"),
        (
            "serviceusage.services.batchEnable",
            403,
            "Request is disallowed by organization's constraints/gcp.restrictServiceUsage",
        ),
        ("container.*clusters.create", 400, 'Operation denied by org policy: ["customConstraints/custom.gkePrivate"]'),
    ],
)
def test_an_organization_policy_is_known_by_each_of_its_messages_and_asked_once(
    maker: Maker, cloud: GoogleCloud, method: str, status: int, message: str
) -> None:
    cloud.enabled = {"serviceusage.googleapis.com"}
    cloud.faults.append(Fault(method=method, status=status, message=message, times=-1))

    with pytest.raises(AccessDeniedError) as caught:
        maker.up()

    assert (caught.value.code, caught.value.why) == ("organization-policy", message)
    assert len([each for each in cloud.methods(writes=True) if re.fullmatch(f".*{method}", each)]) == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('Insufficient regional quota to satisfy request: resource "CPUS": request requires 12', "google-quota"),
        (
            "Quota exceeded for quota metric 'Mutate requests' and limit 'Mutate requests per minute'",
            "backend-unavailable",
        ),
    ],
)
def test_a_quota_that_is_used_up_is_no_service_that_does_not_respond(message, code, maker, cloud: GoogleCloud) -> None:
    cloud.faults.append(Fault(method="container.*clusters.create", status=429, message=message, times=-1))

    with pytest.raises(BackendUnavailableError) as caught:
        maker.up()

    assert caught.value.what.startswith("Google refused to make the cluster team")
    assert (caught.value.why, caught.value.code) == (message, code)


PROHIBITED = "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: 4tXy"
CLOSED = "The billing account for the owning project is disabled in state closed"
SCOPES = "Request had insufficient authentication scopes."


@pytest.mark.parametrize(
    ("fault", "code", "step"),
    [
        (Fault(reason="ACCESS_TOKEN_SCOPE_INSUFFICIENT", message=SCOPES), "credentials", "--scopes cloud-platform"),
        (Fault(reason="SECURITY_POLICY_VIOLATED", message=PROHIBITED), "organization-policy", "about the policy"),
        (Fault(method="storage.*", word="accountDisabled", message=CLOSED), "billing", "kinetic up --billing-account"),
    ],
    ids=["a token without the scope", "a service perimeter", "a closed billing account"],
)
def test_what_is_refused_for_another_reason_than_a_role_says_so(fault: Fault, code, step, maker, cloud) -> None:
    cloud.faults.append(fault._replace(status=403, times=-1))

    with pytest.raises(KineticError) as caught:
        maker.plan()

    assert (caught.value.code, caught.value.why) == (code, fault.message)
    assert step in str(caught.value.next)


def test_requests_count_against_the_project_where_the_login_has_another(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.counted_elsewhere = True

    maker.up()

    assert maker.plan().to_do == []
    cloud.counted_elsewhere = False
    assert maker.plan().to_do == []


def test_the_longest_names_fit(cloud: GoogleCloud, maker: Maker) -> None:
    cloud.project = "p" * 30
    cloud.quota_projects = {cloud.project}

    maker.up(cluster="c" * 20)

    assert maker.plan(cluster="c" * 20).to_do == []
    assert len(maker.state()["buckets"][0]) <= 63


@pytest.mark.parametrize("name", ["c" * 21, "Team", "1team", "team-", "te_am", ""])
def test_a_name_that_would_not_fit_is_refused(name: str) -> None:
    from kinetic._cluster.resource import check_name

    with pytest.raises(OptionError, match="cannot be the name of a cluster"):
        check_name(name)


def test_jobset_is_installed_once_and_known_again(maker: Maker) -> None:
    maker.up(jobset=True)

    assert maker.objects.kept["Deployment", "jobset-controller-manager"]
    assert maker.objects.kept["CustomResourceDefinition", "jobsets.jobset.x-k8s.io"]
    assert maker.plan(jobset=True).to_do == []


def test_the_webhooks_of_jobset_answer_where_gke_lets_its_control_plane_connect_to_private_nodes(maker: Maker) -> None:
    maker.up(jobset=True)

    kept = maker.objects.kept
    (config,) = kept["ConfigMap", "jobset-manager-config"]["data"].values()
    (container,) = kept["Deployment", "jobset-controller-manager"]["spec"]["template"]["spec"]["containers"]
    (port,) = kept["Service", "jobset-webhook-service"]["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert yaml.safe_load(config)["webhook"] == {"port": 10250}
    assert (port["port"], port["targetPort"], ports["webhook-server"], ports["metrics"]) == (443, 10250, 10250, 8443)


def test_a_jobset_that_was_made_before_is_changed(maker: Maker) -> None:
    maker.up(jobset=True)
    name = ("CustomResourceDefinition", "jobsets.jobset.x-k8s.io")
    maker.objects.kept[name] = copy.deepcopy(maker.objects.kept[name])
    maker.objects.kept[name]["metadata"]["labels"]["app.kubernetes.io/version"] = "0.10.1"

    (step,) = maker.plan(jobset=True).to_do

    assert (step.resource.key, step.action) == ("jobset", "change")


def test_a_jobset_of_somebody_else_is_used_as_it_is(maker: Maker) -> None:
    maker.up()
    theirs = {"metadata": {"name": "jobsets.jobset.x-k8s.io", "labels": {}}}
    maker.objects.kept["CustomResourceDefinition", "jobsets.jobset.x-k8s.io"] = theirs

    assert maker.plan(jobset=True).to_do == []


def test_a_jobset_that_was_cut_off_is_completed(maker: Maker) -> None:
    maker.up(jobset=True)
    del maker.objects.kept["CustomResourceDefinition", "jobsets.jobset.x-k8s.io"]  # it is made last

    maker.up(jobset=True)

    assert maker.plan(jobset=True).to_do == []


def test_manifests_of_jobset_that_were_changed_are_not_applied(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    maker.up()
    jobset.manifests.cache_clear()
    monkeypatch.setattr(jobset, "_SHA256", "0" * 64)

    with pytest.raises(ClusterError, match="not those that kinetic was released with"):
        maker.up(jobset=True)

    assert ("Deployment", "jobset-controller-manager") not in maker.objects.kept


def test_a_standard_cluster_is_known_as_one_and_gets_another_pool(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up("gpu-l4", standard=True)

    plan = maker.up("gpu-l4", "gpu-t4")

    assert [step.resource.key for step in plan.to_do] == ["pool gpu-t4"]
    assert maker.plan("gpu-l4", "gpu-t4").to_do == []


def test_an_autopilot_cluster_does_not_become_a_standard_one(maker: Maker) -> None:
    maker.up()

    with pytest.raises(OptionError, match="is an Autopilot cluster"):
        maker.plan(standard=True)


@pytest.mark.parametrize("off", [set(), {"compute.googleapis.com"}], ids=["asked", "Compute Engine is off"])
def test_a_region_whose_zones_begin_with_b_gets_a_standard_cluster(off, maker: Maker, cloud: GoogleCloud) -> None:
    cloud.enabled -= off

    maker.up(standard=True, location="us-east1")

    assert [location for location, _ in cloud.container.clusters] == ["us-east1-b"]


def test_a_cluster_is_not_made_elsewhere_than_where_it_was_named(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up(location="us-west4")
    assert "note: the cluster team is in us-west4" in "\n".join(maker.plan(location="europe-west4").lines())
    maker.down(delete_data=False)
    cloud.forget()

    with pytest.raises(
        OptionError, match="cannot be made in europe-west4: what is left of an earlier one is in us-west4"
    ):
        maker.up(location="europe-west4")

    assert cloud.writes == []
    maker.up()
    assert [location for location, _ in cloud.container.clusters] == ["us-west4"]


def test_hardware_that_autopilot_does_not_have_is_refused_before_anything_is_made(maker, cloud: GoogleCloud) -> None:
    with pytest.raises(OptionError, match="gpu-v100 needs a Standard cluster") as caught:
        maker.up("v100")

    assert "kinetic up --standard" in str(caught.value.next)
    assert cloud.writes == []
    maker.up("v100", standard=True)
    assert maker.plan("v100").to_do == []  # what exists is a Standard one


def test_two_at_once_make_one_of_each(maker: Maker, cloud: GoogleCloud) -> None:
    other = type(maker)(cloud)
    other.objects = maker.objects
    plans = [maker.plan(), other.plan()]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(cluster_plan.carry_out, plans))

    assert maker.plan().to_do == []
    assert [kind for _, kind, _ in maker.state()["compute"]].count("networks") == 1
    assert len(cloud.container.clusters) == 1


@pytest.mark.parametrize(("api", "unseen"), [("container", 12), ("artifactregistry", 0)])
def test_apis_that_need_three_minutes_and_an_account_that_needs_one_are_waited_for(api, unseen, maker, cloud) -> None:
    cloud.enabled.remove(f"{api}.googleapis.com")  # one API only: threads that wait share one clock here
    cloud.spread, cloud.unseen = 36, unseen  # refusals, five seconds apart

    maker.up(registry=True)

    assert maker.plan(registry=True).to_do == []


def test_the_bucket_is_bound_after_the_first_cluster_has_made_the_identity_pool(maker, cloud: GoogleCloud) -> None:
    assert not cloud.projects.identity_pool

    maker.up()

    methods = cloud.methods(writes=True)
    created = methods.index("container.projects.locations.clusters.create")
    assert methods.index("storage.buckets.setIamPolicy") > created


@pytest.mark.parametrize(
    ("value", "line"),
    [(0, "quota too small"), (None, "quota unknown"), (-1, ""), (8, "")],
    ids=["0", "unset", "without limit", "enough"],
)
def test_a_quota_of_0_is_too_small_one_that_is_unset_is_unknown_and_minus_1_has_no_limit(
    value: int | None, line: str, maker: Maker, cloud: GoogleCloud
) -> None:
    cloud.quotas.rows["TPUS-PER-TPU-FAMILY-per-project-region"] = [({}, value)]

    lines = [each for each in maker.plan("v6e-8").lines() if each.startswith("quota")]

    assert [each.partition(":")[0] for each in lines] == ([line] if line else [])


def test_a_second_up_fits_into_three_seconds_where_each_answer_takes_100_ms(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up(limits=(("tpu", 16),))
    cloud.forget()
    inside: list[str] = []
    get = maker.objects.get
    maker.objects.get = lambda kind, name: inside.append(name) or get(kind, name)  # type: ignore[method-assign]

    assert maker.plan(limits=(("tpu", 16),)).to_do == []

    assert len(cloud.calls) <= 12
    assert (len(cloud.calls) + len(inside)) * 0.1 < 3  # even one after the other


@pytest.mark.timeout(120)
def test_ctrl_c_at_any_wait_and_run_again_the_end_is_the_same(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.pending = 1
    maker.up("l4", standard=True)
    end = maker.state()
    maker.down()
    sleep, stopped, index = maker.clock.sleep, True, 0
    while stopped:
        count = iter(range(10_000))

        def wait(seconds: float, at: int = index, count=count) -> None:
            if next(count) == at:
                raise KeyboardInterrupt
            sleep(seconds)

        maker.clock.sleep = wait  # type: ignore[method-assign]
        try:
            maker.up("l4", standard=True)
            stopped = False
        except KeyboardInterrupt:
            pass
        maker.clock.sleep = sleep  # type: ignore[method-assign]

        maker.up("l4", standard=True)

        assert maker.state() == end, index
        maker.down()
        index += 1
    assert index > 3


def test_a_policy_that_is_not_shown_is_not_overwritten(maker: Maker, cloud: GoogleCloud) -> None:
    bucket = f"{cloud.project}-kn-team-jobs"
    cloud.faults = [Fault(status=403, method="storage.buckets.getIamPolicy", times=-1)]

    with pytest.raises(AccessDeniedError, match="refused to make the roles"):
        maker.up()

    assert cloud.storage.policies[bucket].members("roles/storage.legacyBucketOwner")
    cloud.faults = []
    maker.up()
    assert cloud.storage.policies[bucket].members("roles/storage.legacyBucketOwner")
    assert cloud.storage.policies[bucket].members("roles/storage.objectUser")
