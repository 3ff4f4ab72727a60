"""`kinetic down` against a fake of Google that keeps state: nothing of ours is left, nothing foreign is touched."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from servers.google_cloud import Fault

from kinetic._cluster import storage, teardown
from kinetic._cluster.inventory import resources_of
from kinetic._cluster.project_apis import ProjectApis
from kinetic._cluster.storage import Bucket
from kinetic.errors import BackendUnavailableError

if TYPE_CHECKING:
    from servers.cluster_maker import Maker
    from servers.google_cloud import GoogleCloud

NOTHING = {"compute": [], "accounts": [], "policy": [], "buckets": [], "access": {}, "clusters": [], "objects": []}


def test_after_down_nothing_is_left(maker: Maker) -> None:
    before = maker.state()
    maker.up(registry=True)

    remains = maker.down()

    assert remains == ([], [])
    assert maker.state() == before
    assert {name: value for name, value in before.items() if name in NOTHING} == NOTHING


def test_the_bucket_stays_without_consent_and_its_binding_goes(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    bucket = f"{cloud.project}-kn-team-jobs"

    assert maker.down(delete_data=False) == ([], [])

    assert maker.state()["buckets"] == [bucket]
    assert not cloud.storage.policies[bucket].members("roles/storage.objectUser")
    assert maker.state()["compute"] == []


def test_a_bucket_that_is_kept_is_taken_again_by_the_next_up(maker: Maker) -> None:
    maker.up()
    maker.down(delete_data=False)

    maker.up()

    assert maker.plan().to_do == []


def test_every_object_goes_with_the_bucket(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    bucket = f"{cloud.project}-kn-team-jobs"
    for name in ("a/result.pkl", "data/blobs/ä b", "history/~clock"):
        _put(cloud, bucket, name)

    assert maker.down() == ([], [])

    assert maker.state()["buckets"] == []


def test_bindings_go_before_their_account(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.forget()

    maker.down()

    methods = cloud.methods(writes=True)
    role, account = "cloudresourcemanager.projects.setIamPolicy", "iam.projects.serviceAccounts.delete"
    assert methods.index(role) < methods.index(account)
    assert not any("deleted:" in member for each in cloud.projects.policy.bindings for member in each["members"])


def test_a_binding_of_a_removed_account_is_removed(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    email = f"kn-team-nodes@{cloud.project}.iam.gserviceaccount.com"
    cloud.projects.policy.rename(f"serviceAccount:{email}", f"deleted:serviceAccount:{email}?uid=1")
    del cloud.projects.accounts[email]

    assert maker.down() == ([], [])

    assert maker.state()["policy"] == []


def test_what_others_left_on_our_network_is_swept(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    network = f"https://www.googleapis.com/compute/v1/projects/{cloud.project}/global/networks/kn-team"
    cloud.compute.add("firewalls", "k8s-fw-1", network=network)
    cloud.compute.add("networkEndpointGroups", "k8s1-2", scope="zones/us-central1-a", network=network)
    for place in ("global", "regions/us-central1"):
        cloud.compute.add("forwardingRules", f"rule-{place.rpartition('/')[2]}", scope=place, network=network)
    cloud.compute.add("networks", "other")
    foreign = network.replace("kn-team", "other")
    cloud.compute.add("firewalls", "k8s-fw-3", network=foreign)
    cloud.compute.add("forwardingRules", "rule-3", scope="regions/us-central1", network=foreign)

    assert maker.down() == ([], [])

    assert cloud.compute.names("firewalls") == ["k8s-fw-3"]
    assert cloud.compute.names("forwardingRules") == ["rule-3"]
    assert cloud.compute.names("networks") == ["other"]


def test_leftovers_are_found_on_every_page_of_a_list(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.compute.scopes_on_a_page = 1
    network = f"https://www.googleapis.com/compute/v1/projects/{cloud.project}/global/networks/kn-team"
    for zone in "abc":
        cloud.compute.add("networkEndpointGroups", f"k8s1-{zone}", scope=f"zones/us-central1-{zone}", network=network)

    assert maker.down() == ([], [])

    assert cloud.compute.names("networkEndpointGroups") == []


@pytest.mark.parametrize("delete_data", [False, True])
def test_disks_of_volumes_go_with_the_data_only(delete_data: bool, maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.compute.add("disks", "pvc-1", scope="zones/us-central1-a", labels={"goog-k8s-cluster-name": "team"})
    cloud.compute.add("disks", "pvc-2", scope="zones/us-central1-a", labels={"goog-k8s-cluster-name": "other"})

    assert maker.down(delete_data=delete_data) == ([], [])

    assert cloud.compute.names("disks") == (["pvc-2"] if delete_data else ["pvc-1", "pvc-2"])


def test_who_may_not_list_placement_policies_may_remove_a_cluster(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.faults.append(Fault(method="compute.resourcePolicies.*", status=403, message="denied", times=-1))

    assert maker.down() == ([], [])


def test_objects_of_a_bucket_are_removed_side_by_side(
    maker: Maker, cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.up()
    items = [{"name": f"jobs/{number}", "generation": "1"} for number in range(64)]
    removed, together = list[str](), threading.Barrier(32, timeout=20)

    def remove(_: Bucket, name: str, generation: str) -> None:
        together.wait()  # fails where fewer are under way
        removed.append(name)

    monkeypatch.setattr(Bucket, "_remove_object", remove)
    read = ProjectApis.read

    def listed(apis: ProjectApis, api: str, path: str, **query: Any) -> Any:
        return {"items": [] if removed else items} if path.endswith("/o") else read(apis, api, path, **query)

    monkeypatch.setattr(ProjectApis, "read", listed)

    assert maker.down() == ([], [])
    assert sorted(removed) == sorted(each["name"] for each in items)


def test_disks_of_volumes_go_where_the_network_is_that_of_others_too(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.add("networks", "office")
    link = f"https://www.googleapis.com/compute/v1/projects/{cloud.project}/global/networks/office"
    cloud.compute.add("subnetworks", "desk", scope="regions/us-central1", network=link, ipCidrRange="10.1.0.0/20")
    maker.up(network="office", location="us-central1")
    cloud.compute.add("disks", "pvc-1", scope="zones/us-central1-a", labels={"goog-k8s-cluster-name": "team"})

    assert maker.down() == ([], [])

    assert (cloud.compute.names("disks"), cloud.compute.names("networks")) == ([], ["office"])


def test_a_network_that_is_let_go_of_late_is_removed_in_the_end(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.compute.lag = 3

    assert maker.down() == ([], [])


def test_a_joined_cluster_stays_and_what_was_made_for_it_goes(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.container.add("us-west4", "team")
    maker.objects.kept["ServiceAccount", "kinetic"] = {
        "metadata": {"name": "kinetic", "labels": {"app.kubernetes.io/managed-by": "kinetic"}}
    }

    remains = maker.down()

    assert remains == ([], [])
    assert [*cloud.container.clusters] == [("us-west4", "team")]
    assert maker.objects.kept == {}
    assert "container.projects.locations.clusters.delete" not in cloud.methods()


def test_a_namespace_and_an_account_of_others_in_a_joined_cluster_stay(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.container.add("us-west4", "team")
    for kind, name in (("Namespace", "research"), ("ServiceAccount", "kinetic")):
        maker.objects.kept[kind, name] = {"metadata": {"name": name, "uid": "1"}}
    theirs = dict(maker.objects.kept)

    plan = teardown.plan_removal(maker.setup(namespace="research", registry=True))

    assert plan.to_remove == []
    assert maker.down(namespace="research") == ([], [])
    assert maker.objects.kept == theirs


def test_where_the_cluster_stays_the_jobs_of_the_namespace_that_goes_are_named(maker: Maker) -> None:
    maker.up(namespace="research")
    for job, phase in (("cpu-train-1", "Running"), ("cpu-old-2", "Succeeded")):
        maker.objects.kept["Pod", job] = {"metadata": {"labels": {"job-id": job}}, "status": {"phase": phase}}
    setup = maker.setup(namespace="research")

    kept, whole = (teardown.plan_removal(setup, keep_cluster=keep).lines() for keep in (True, False))

    assert [line for line in kept if "interrupted" in line] == [
        "  - Namespace research: 1 job in it, interrupted and not resumed (cpu-train-1)"
    ]
    (cluster,) = (line for line in whole if "interrupted" in line)
    assert "cluster team" in cluster
    assert cluster.endswith("1 job on it, interrupted and not resumed (cpu-train-1); 0 nodes")


def test_a_cluster_can_be_kept_and_then_all_that_its_nodes_need_is(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up(namespace="research")

    assert maker.down(keep_cluster=True, delete_data=False, namespace="research") == ([], [])

    assert [name for _, name in cloud.container.clusters] == ["team"]
    assert cloud.compute.names("routers") == ["kn-team"]
    assert maker.state()["policy"]
    assert maker.objects.kept == {}


def test_what_is_not_ours_is_named_and_not_touched(maker: Maker, cloud: GoogleCloud) -> None:
    cloud.compute.add("networks", "kn-team", description="of somebody else")
    cloud.storage.add(f"{cloud.project}-kn-team-jobs")
    setup = maker.setup(registry=True)

    plan = teardown.plan_removal(setup, delete_data=True)

    assert plan.to_remove == []
    assert [line[:12] for line in plan.lines()[1:]] == ["  ! network ", "  ! bucket g"]
    assert teardown.remove(plan) == ([], [])
    assert cloud.writes == []


def test_what_cannot_be_removed_is_named_and_what_it_needs_stays(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.denied = {"container.clusters.delete"}

    remains = maker.down()

    assert remains.names[0].startswith("subnet") or "cluster team in us-central1" in remains.names
    assert [error.code for error in remains.errors] == ["access-denied"]
    assert cloud.compute.names("routers") == ["kn-team"]  # the cluster's nodes need it
    assert maker.state()["accounts"]
    cloud.denied = set()
    assert maker.down() == ([], [])


def test_a_cluster_that_does_not_answer_can_be_removed(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    maker.answers = False

    with pytest.raises(BackendUnavailableError, match="does not respond"):
        maker.down(keep_cluster=True)
    assert [name for _, name in cloud.container.clusters] == ["team"]
    assert maker.down() == ([], [])

    assert cloud.container.clusters == {}


def test_an_account_that_is_shown_after_its_removal_is_waited_for(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.shown_late = 4

    assert maker.down() == ([], [])


def test_a_second_down_writes_nothing(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    maker.down()
    cloud.forget()
    cloud.read_only = True

    assert maker.down() == ([], [])
    assert cloud.writes == []


def test_the_plan_says_what_is_interrupted_and_lost(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    for number in range(3):
        _put(cloud, f"{cloud.project}-kn-team-jobs", f"job-{number}/result")
    for name, phase in (("one", "Running"), ("two", "Pending"), ("done", "Succeeded")):
        labels = {"job-id": f"train-{name}"}
        maker.objects.kept["Pod", name] = {"metadata": {"name": name, "labels": labels}, "status": {"phase": phase}}
    maker.objects.kept["Node", "tpu-0"] = {"metadata": {"name": "tpu-0"}}

    kept = teardown.plan_removal(maker.setup())
    lost = teardown.plan_removal(maker.setup(), delete_data=True)

    jobs = "2 jobs on it, interrupted and not resumed (train-one, train-two); 1 node"
    assert f"  - cluster team in us-central1: {jobs}" in lost.lines()
    bucket = f"bucket gs://{cloud.project}-kn-team-jobs"
    assert f"  - {bucket}: 3 objects, 3 bytes" in lost.lines()
    assert f"  = {bucket}: results are kept; remove them with --delete-data; 3 objects, 3 bytes" in kept.lines()
    assert lost.to_json()["contents"]["jobs"] == ("train-one", "train-two")


def test_a_bucket_is_measured_page_by_page_and_not_without_end(
    maker: Maker, cloud: GoogleCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.up()
    cloud.objects.page_size = 2
    for number in range(5):
        _put(cloud, f"{cloud.project}-kn-team-jobs", f"{number}")
    bucket = next(each for each in resources_of(maker.setup()) if isinstance(each, Bucket))

    assert bucket.measure() == (5, 5, True)
    monkeypatch.setattr(storage, "_MOST_PAGES", 2)
    assert bucket.measure() == (4, 4, False)


def test_what_may_not_be_read_of_a_bucket_stops_no_removal(maker: Maker, cloud: GoogleCloud) -> None:
    maker.up()
    cloud.denied = {"storage.objects.list"}

    plan = teardown.plan_removal(maker.setup())

    line = next(each for each in plan.lines() if "= bucket" in each)
    assert line.endswith("; its size is not known: this account may not list it")


def _put(cloud: GoogleCloud, bucket: str, name: str) -> None:
    import urllib.parse
    import urllib.request

    where = (
        f"{cloud.objects.url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={urllib.parse.quote(name, safe='')}"
    )
    request = urllib.request.Request(where, data=b"x", method="POST", headers={"Authorization": "Bearer token"})
    urllib.request.urlopen(request).read()
