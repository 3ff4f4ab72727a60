"""The fake of Google keeps Google's rules: what tests of kinetic build on is held against the documents and itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.discovery import document
from servers.google_cloud import Fault, GoogleCloud, permission_of

from kinetic._google.api import ApiError, Service
from kinetic._google.login import Tokens
from kinetic._stores.parallel import Retry
from kinetic.errors import BackendUnavailableError

P = "projects/kinetic-tests"
NETWORK = f"compute/v1/{P}/global/networks"
SUBNETS = f"compute/v1/{P}/regions/us-central1/subnetworks"


class Client:
    """Requests to each service, as kinetic sends them."""

    def __init__(self, cloud: GoogleCloud, folder: Path) -> None:
        self._environ = cloud.environ(folder)
        self._tokens = Tokens(self._environ)

    def send(self, service: str, verb: str, path: str, body: Any = None, **query: Any) -> Any:
        retry = Retry(2, sleep=lambda _: None)
        made = Service(f"{service}.googleapis.com", self._tokens, retry, environ=self._environ)
        return made.request(verb, path, body, query=query)

    def refused(self, *about: Any, **query: Any) -> ApiError:
        with pytest.raises(ApiError) as caught:
            self.send(*about, **query)
        return caught.value

    def finish(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Wait for an operation of compute's."""
        path = operation["selfLink"].partition("googleapis.com/")[2]
        while operation["status"] != "DONE":
            operation = self.send("compute", "GET", path)
        return operation

    def gke(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Wait for an operation of GKE's."""
        while operation["status"] != "DONE":
            path = f"v1/{P}/locations/{operation['location']}/operations/{operation['name']}"
            operation = self.send("container", "GET", path)
        return operation


@pytest.fixture
def cloud() -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        yield cloud


@pytest.fixture
def client(cloud: GoogleCloud, tmp_path: Path) -> Client:
    return Client(cloud, tmp_path)


def make_network(client: Client, name: str = "kn-a") -> dict[str, Any]:
    return client.send("compute", "POST", NETWORK, {"name": name, "autoCreateSubnetworks": False})


def autopilot(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"cluster": {"name": name, "autopilot": {"enabled": True}, **more}}


def standard(name: str = "a") -> dict[str, Any]:
    pool = {"name": "system", "initialNodeCount": 1, "config": {"machineType": "e2-standard-2"}}
    identity = {"workloadPool": "kinetic-tests.svc.id.goog"}
    return {"cluster": {"name": name, "workloadIdentityConfig": identity, "nodePools": [pool]}}


def test_a_subnet_waits_for_its_network_and_holds_it(client: Client, cloud: GoogleCloud) -> None:
    body = {"name": "kn-a", "network": f"{P}/global/networks/kn-a", "ipCidrRange": "10.0.0.0/20"}
    assert client.refused("compute", "POST", SUBNETS, body).status == 404
    operation = make_network(client)
    assert client.refused("compute", "POST", SUBNETS, body).status == 400

    client.finish(operation)
    client.finish(client.send("compute", "POST", SUBNETS, body))

    assert client.send("compute", "GET", f"{NETWORK}/kn-a")["subnetworks"][0].endswith("/subnetworks/kn-a")
    refused = client.refused("compute", "DELETE", f"{NETWORK}/kn-a")
    assert "already being used" in refused.message
    client.finish(client.send("compute", "DELETE", f"{SUBNETS}/kn-a"))
    client.finish(client.send("compute", "DELETE", f"{NETWORK}/kn-a"))
    assert cloud.compute.things == {}
    assert cloud.wrong == []


def test_a_write_with_the_same_request_id_is_one_write(client: Client) -> None:
    about = ("compute", "POST", NETWORK, {"name": "kn-a"})
    first = client.send(*about, requestId="5b1d5f04-9b1a-4c0e-9d7e-1c9c6f2f3a10")

    again = client.send(*about, requestId="5b1d5f04-9b1a-4c0e-9d7e-1c9c6f2f3a10")

    assert again["name"] == first["name"]
    assert client.refused(*about, requestId="5b1d5f04-9b1a-4c0e-9d7e-1c9c6f2f3a11").status == 409


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"name": "kn-a", "autoCreateSubnetwork": False}, "has no field autoCreateSubnetwork"),
        ({"name": "kn-a", "autoCreateSubnetworks": "no"}, "is 'no' and no boolean"),
        ({"name": "kn-a", "routingConfig": {"routingMode": "LOCAL"}}, "none of"),
        ({"name": "kn-a", "selfLink": "x"}, "is written by the service alone"),
        ({"name": "Not_A_Name"}, "does not fit"),
    ],
)
def test_a_request_that_does_not_fit_the_document_is_noted_and_refused(client, cloud, body, complaint) -> None:
    assert client.refused("compute", "POST", NETWORK, body).status == 400

    assert complaint in cloud.wrong[0]


def test_a_field_that_is_required_must_be_there(client: Client, cloud: GoogleCloud) -> None:
    client.refused("compute", "POST", f"compute/v1/{P}/global/firewalls", {"network": "x"})

    assert cloud.wrong == ["compute.firewalls.insert: Firewall.name is required"]


def test_apis_are_off_until_they_are_enabled_and_for_a_while_after(client: Client, cloud: GoogleCloud) -> None:
    cloud.enabled, cloud.spread = {"serviceusage.googleapis.com"}, 4  # asked with and without the name of the project
    path = f"v1/{P}/locations/-/clusters"
    assert client.refused("container", "GET", path).reason == "SERVICE_DISABLED"

    enabled = {"serviceIds": ["container.googleapis.com", "compute.googleapis.com"]}
    operation = client.send("serviceusage", "POST", f"v1/{P}/services:batchEnable", enabled)
    while not operation.get("done"):
        operation = client.send("serviceusage", "GET", f"v1/{operation['name']}")

    assert [client.refused("container", "GET", path).reason for _ in range(2)] == ["SERVICE_DISABLED"] * 2
    assert client.send("container", "GET", path) == {}
    names = [f"{P}/services/{each}.googleapis.com" for each in ("container", "iam")]
    states = client.send("serviceusage", "GET", f"v1/{P}/services:batchGet", names=names)["services"]
    assert [each["state"] for each in states] == ["ENABLED", "DISABLED"]
    assert cloud.wrong == []


def test_a_project_without_billing_enables_nothing(client: Client, cloud: GoogleCloud) -> None:
    cloud.enabled, cloud.billing = set(), ""

    refused = client.refused(
        "serviceusage", "POST", f"v1/{P}/services:batchEnable", {"serviceIds": ["compute.googleapis.com"]}
    )

    assert refused.reason == "UREQ_PROJECT_BILLING_NOT_FOUND"


def test_one_operation_of_a_cluster_at_a_time(client: Client, cloud: GoogleCloud) -> None:
    clusters = f"v1/{P}/locations/us-central1-a/clusters"
    operation = client.send("container", "POST", clusters, standard())
    pool = {"nodePool": {"name": "p", "initialNodeCount": 0, "config": {"machineType": "g2-standard-4"}}}
    assert "incompatible operation" in client.refused("container", "POST", f"{clusters}/a/nodePools", pool).message

    client.gke(operation)
    client.gke(client.send("container", "POST", f"{clusters}/a/nodePools", pool))

    assert [each["status"] for each in cloud.container.clusters["us-central1-a", "a"]["nodePools"]] == ["RUNNING"] * 2
    assert client.refused("container", "POST", f"{clusters}/a/nodePools", pool).status == 409
    assert cloud.wrong == []


def test_autopilot_is_regional_and_has_no_pools(client: Client) -> None:
    path = f"v1/{P}/locations/us-central1/clusters"
    assert client.refused("container", "POST", f"v1/{P}/locations/us-central1-a/clusters", autopilot()).status == 400
    client.gke(client.send("container", "POST", path, autopilot()))

    refused = client.refused("container", "POST", f"{path}/a/nodePools", {"nodePool": {"name": "p"}})

    assert "do not support node pool" in refused.message


def test_the_identity_pool_exists_once_a_cluster_was_made(client: Client, cloud: GoogleCloud) -> None:
    client.send("storage", "POST", "storage/v1/b", {"name": "jobs", "location": "us-central1"}, project="kinetic-tests")
    policy = client.send("storage", "GET", "storage/v1/b/jobs/iam", optionsRequestedPolicyVersion="3")
    who = (
        "principal://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/kinetic-tests.svc.id.goog/"
        "subject/ns/default/sa/kinetic"
    )
    binding = {"role": "roles/storage.objectUser", "members": [who]}
    changed = {**policy, "bindings": [*policy["bindings"], binding]}
    assert "Identity Pool" in client.refused("storage", "PUT", "storage/v1/b/jobs/iam", changed).message

    client.gke(client.send("container", "POST", f"v1/{P}/locations/us-central1/clusters", autopilot()))
    client.send("storage", "PUT", "storage/v1/b/jobs/iam", changed)

    assert cloud.storage.policies["jobs"].members("roles/storage.objectUser") == {who}
    assert client.refused("storage", "PUT", "storage/v1/b/jobs/iam", changed).status == 412  # its etag is old
    assert cloud.wrong == []


def test_an_account_is_invisible_for_a_while_and_stays_in_policies_when_deleted(client, cloud) -> None:
    cloud.unseen = 2
    made = client.send(
        "iam", "POST", f"v1/{P}/serviceAccounts", {"accountId": "kn-a-nodes", "serviceAccount": {"description": "d"}}
    )
    member = f"serviceAccount:{made['email']}"
    path = f"v3/{P}"

    def grant() -> Any:
        policy = client.send(
            "cloudresourcemanager", "POST", f"{path}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}}
        )
        policy["bindings"] = [*policy.get("bindings", []), {"role": "roles/r", "members": [member]}]
        return client.send("cloudresourcemanager", "POST", f"{path}:setIamPolicy", {"policy": policy})

    for _ in range(2):
        with pytest.raises(ApiError, match="does not exist"):
            grant()
    grant()
    client.send("iam", "DELETE", f"v1/{P}/serviceAccounts/{made['email']}")

    (left,) = cloud.projects.policy.members("roles/r")
    assert left.startswith(f"deleted:{member}?uid=")
    assert cloud.wrong == []


def test_a_bucket_of_a_strangers_name_is_refused_and_a_full_one_is_kept(client: Client, cloud: GoogleCloud) -> None:
    cloud.storage.foreign.add("taken")
    body = {"name": "taken", "location": "us-central1"}
    assert client.refused("storage", "POST", "storage/v1/b", body, project="kinetic-tests").status == 409
    assert client.refused("storage", "GET", "storage/v1/b/taken").status == 403
    cloud.storage.add("jobs")
    cloud.objects.buckets["jobs"].put("jobs/1", b"x")

    assert client.refused("storage", "DELETE", "storage/v1/b/jobs").status == 409
    (item,) = client.send("storage", "GET", "storage/v1/b/jobs/o")["items"]
    client.send("storage", "DELETE", "storage/v1/b/jobs/o/jobs%2F1")
    client.send("storage", "DELETE", "storage/v1/b/jobs")

    assert item["name"] == "jobs/1"
    assert cloud.storage.buckets == {}
    assert cloud.wrong == []


def test_a_repository_is_made_by_an_operation(client: Client, cloud: GoogleCloud) -> None:
    path = f"v1/{P}/locations/us-central1/repositories"
    operation = client.send("artifactregistry", "POST", path, {"format": "DOCKER"}, repositoryId="kn-a")
    while not operation.get("done"):
        operation = client.send("artifactregistry", "GET", f"v1/{operation['name']}")

    assert client.send("artifactregistry", "GET", f"{path}/kn-a")["format"] == "DOCKER"
    assert cloud.wrong == []


def test_a_missing_permission_is_known_before_and_refused_after(client: Client, cloud: GoogleCloud) -> None:
    cloud.denied = {"compute.networks.create"}
    asked = {"permissions": ["compute.networks.create", "container.clusters.create"]}

    held = client.send("cloudresourcemanager", "POST", f"v3/{P}:testIamPermissions", asked)

    assert held == {"permissions": ["container.clusters.create"]}
    assert client.refused("compute", "POST", NETWORK, {"name": "kn-a"}).reason == "IAM_PERMISSION_DENIED"


def test_every_permission_that_is_derived_is_written_as_google_writes_it() -> None:
    expected = {
        "compute.networks.insert": "compute.networks.create",
        "container.projects.locations.clusters.create": "container.clusters.create",
        "container.projects.locations.clusters.nodePools.delete": "container.clusters.update",
        "iam.projects.serviceAccounts.create": "iam.serviceAccounts.create",
        "cloudresourcemanager.projects.setIamPolicy": "resourcemanager.projects.setIamPolicy",
        "serviceusage.services.batchEnable": "serviceusage.services.enable",
        "storage.buckets.setIamPolicy": "storage.buckets.setIamPolicy",
        "storage.buckets.patch": "storage.buckets.update",
        "cloudquotas.projects.locations.quotaPreferences.patch": "cloudquotas.quotas.update",
    }

    assert {method: permission_of(method) for method in expected} == expected


def test_quota_machines_and_advice_answer_as_their_documents_say(client: Client, cloud: GoogleCloud) -> None:
    region = client.send("compute", "GET", f"compute/v1/{P}/regions/us-west4", fields="quotas")
    filter_ = {"filter": "name=ct5lp-hightpu-4t", "fields": "items/*/machineTypes(name,zone)"}
    sold = client.send("compute", "GET", f"compute/v1/{P}/aggregated/machineTypes", **filter_)["items"]
    advice = client.send(
        "compute",
        "POST",
        f"compute/v1/{P}/regions/us-west4/advice/capacity",
        {
            "size": 4,
            "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
            "instanceFlexibilityPolicy": {"instanceSelections": {"a": {"machineTypes": ["ct5lp-hightpu-4t"]}}},
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE"},
        },
    )
    info = client.send(
        "cloudquotas",
        "GET",
        f"v1/{P}/locations/global/services/compute.googleapis.com/quotaInfos/TPUS-PER-TPU-FAMILY-per-project-region",
    )

    assert {"metric": "TPU_LITE_PODSLICE_V5", "limit": 16.0, "usage": 0.0} in region["quotas"]
    assert {zone for zone, each in sold.items() if "machineTypes" in each} >= {"zones/us-west4-a"}
    assert advice["recommendations"][0]["shards"][0]["zone"].endswith("zones/us-west4-a")
    assert info["dimensionsInfos"][1]["details"] == {"value": "8"}
    assert cloud.wrong == []


@pytest.mark.parametrize("fate", ["error", "vanish"])
def test_operations_fail_or_vanish_as_a_test_wants(client: Client, cloud: GoogleCloud, fate: str) -> None:
    cloud.fates["CREATE_CLUSTER"] = fate
    path = f"v1/{P}/locations/us-central1/clusters"
    operation = client.send("container", "POST", path, autopilot())

    if fate == "vanish":
        with pytest.raises(ApiError, match="Not found"):
            client.gke(operation)
    else:
        assert client.gke(operation)["error"]["message"]

    assert client.send("container", "GET", f"{path}/a")["status"] == {"error": "ERROR", "vanish": "RUNNING"}[fate]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["status", "reset", "truncated", "html"])
def test_a_fault_comes_before_or_after_the_effect(client: Client, cloud: GoogleCloud, kind: str, after: bool) -> None:
    cloud.faults = [Fault(kind, at=0, after=after, times=1)]

    if after:
        assert client.refused("compute", "POST", NETWORK, {"name": "kn-a"}).status == 409  # the retry finds it
    else:
        make_network(client)

    assert cloud.compute.names("networks") == ["kn-a"]
    assert cloud.methods() == ["compute.networks.insert"] * 2


def test_a_service_that_never_recovers_is_said_to_be_silent(client: Client, cloud: GoogleCloud) -> None:
    cloud.faults = [Fault("html", times=-1, status=200)]

    with pytest.raises(BackendUnavailableError):
        make_network(client)


def test_where_nothing_may_be_written_reads_are_answered(client: Client, cloud: GoogleCloud) -> None:
    cloud.read_only = True
    client.send("cloudresourcemanager", "POST", f"v3/{P}:testIamPermissions", {"permissions": []})
    client.send("cloudresourcemanager", "POST", f"v3/{P}:getIamPolicy", {})
    assert cloud.wrong == []

    client.refused("compute", "POST", NETWORK, {"name": "kn-a"})

    assert cloud.wrong == ["compute.networks.insert: writes, where nothing may be written"]
    assert cloud.compute.things == {}


def test_masks_reach_into_lists_and_maps() -> None:
    mask = "clusters(name,nodePools(name,config/machineType)),missingZones"
    path = f"v1/{P}/locations/-/clusters"

    assert document("container.v1").complaints("GET", path, {"fields": mask}) == []
    wrong = document("container.v1").complaints("GET", path, {"fields": "clusters(name,nodePools(size))"})
    assert wrong == ["the answer has no field clusters/nodePools/size"]
