"""What is asked of a cluster before a job, how often, and what is refused; tests/cluster has the same on a real one."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from servers.http11 import Answer, Request, Server
from servers.scripted import page, refusal

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import discovery, job_manifests, preflight
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.discovery import needed_permissions
from kinetic._backends.kube.preflight import check, check_store, service_account
from kinetic._backends.kube.transport import Access
from kinetic._config.cluster import ClusterSettings, PodRequirements, VolumeClaim
from kinetic._google.clusters import NodePool, NodePools
from kinetic._hardware import place
from kinetic._stores.parallel import Retry
from kinetic.errors import (
    AccessDeniedError,
    BackendUnavailableError,
    CapacityError,
    CredentialsError,
    KineticError,
    LaunchError,
    OptionError,
)

PLAIN = ClusterSettings()
EDIT = {
    "verbs": ["create", "get", "list", "delete", "patch"],  # who may not watch, lists
    "apiGroups": ["", "batch"],
    "resources": ["jobs", "pods", "pods/log", "secrets", "configmaps", "services"],
}
REVIEWS = "/apis/authorization.k8s.io/v1"
L4 = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-accelerator-count": "1"}


class Cluster:
    """An API server with just what a check asks about.

    Attributes:
        objects: Paths of what exists.
        groups: Groups of kinds and their versions.
        rules: What we may do, as the cluster lists it.
        also: What we may do beside that, as (verb, resource).
        nodes: Of the cluster.
        answers: What is answered instead, by the end of a path.
        seen: Every request, as "VERB path".
    """

    def __init__(self) -> None:
        self.objects = {"/api/v1/namespaces/team"}
        self.groups: dict[str, list[str]] = {"batch": ["v1"]}
        self.rules: list[dict[str, Any]] = [EDIT]
        self.also: set[tuple[str, str]] = set()
        self.nodes: list[dict[str, Any]] = []
        self.answers: dict[str, Answer] = {}
        self.seen: list[str] = []
        self.clock = 0.0

    def answer(self, request: Request) -> Answer:
        self.seen.append(f"{request.method} {request.path}")
        for end, answer in self.answers.items():
            if request.path.endswith(end):
                return answer
        if request.path == "/apis":
            return page({"groups": [_group(name, versions) for name, versions in self.groups.items()]})
        if request.path == f"{REVIEWS}/selfsubjectrulesreviews":
            return page({"status": {"resourceRules": self.rules, "incomplete": True}}, 201)
        if request.path == f"{REVIEWS}/selfsubjectaccessreviews":
            asked = json.loads(request.body)["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            return page({"status": {"allowed": (asked["verb"], resource) in self.also}}, 201)
        if request.path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
            return page({"status": {"userInfo": {"username": "ann@example.com"}}}, 201)
        if request.path == "/api/v1/nodes":
            return page(self._nodes(request.query))
        there = request.path in self.objects
        return page({"metadata": {}}) if there else refusal(404, f"{request.path} not found", "NotFound")

    def _nodes(self, query: dict[str, str]) -> dict[str, Any]:
        wanted = dict(part.partition("=")[::2] for part in query["labelSelector"].split(",") if part)
        fitting = [node for node in self.nodes if all(_has(node, *pair) for pair in wanted.items())]
        at, most = int(query.get("continue") or 0), int(query["limit"])
        more = {"continue": str(at + most)} if at + most < len(fitting) else {}
        return {"metadata": more, "items": fitting[at : at + most]}

    def asked(self, end: str) -> int:
        return sum(each.endswith(end) for each in self.seen)


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "versions": [{"version": version} for version in versions],
        "preferredVersion": {"version": versions[0]},
    }


def _has(node: dict[str, Any], name: str, value: str) -> bool:
    labels = node["metadata"]["labels"]
    return name in labels and (not value or labels[name] == value)


def node(labels: dict[str, str] | None = None, *, taints: list[dict[str, str]] | None = None, **has: str) -> dict:
    allocatable = {name.replace("_", "/").replace("nvidia/", "nvidia.com/"): amount for name, amount in has.items()}
    return {
        "metadata": {"labels": L4 if labels is None else labels},
        "spec": {"taints": taints or []},
        "status": {"allocatable": allocatable},
    }


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with contextlib.closing(Server(cluster.answer).start()) as server:
        access = Access(server.url, "the context test", FixedCredential("Bearer t"))
        with contextlib.closing(Client(access, "team", Retry(2, 0.0, 0.0, 1.0, sleep=lambda _: None))) as client:
            discovery._caches[client] = discovery.ClusterCache(clock=lambda: cluster.clock)
            yield client


def refused(client: Client, settings: ClusterSettings = PLAIN, accelerator: str = "cpu", **more: Any) -> KineticError:
    with pytest.raises(KineticError) as caught:
        check(client, place(accelerator), settings, **more)
    return caught.value


# ------------------------------------------------------------------------------------------------------ how often


def test_a_cluster_where_all_is_well_is_asked_three_things_and_has_nothing_to_say(cluster, client) -> None:
    assert check(client, place("cpu"), PLAIN) == ()

    assert sorted(cluster.seen) == [
        "GET /api/v1/namespaces/team",
        "GET /api/v1/namespaces/team/serviceaccounts/kinetic",
        f"POST {REVIEWS}/selfsubjectrulesreviews",
    ]


def test_a_second_job_asks_nothing_for_ten_minutes(cluster, client) -> None:
    cluster.objects.add("/api/v1/namespaces/team/serviceaccounts/kinetic")
    cluster.nodes = [node(nvidia_gpu="1")]
    check(client, place("gpu-l4"), PLAIN)
    first = len(cluster.seen)

    cluster.clock += 599
    check(client, place("gpu-l4"), PLAIN)
    service_account(client, PLAIN)
    assert len(cluster.seen) == first

    cluster.clock += 2
    check(client, place("gpu-l4"), PLAIN)
    assert len(cluster.seen) == 2 * first


def test_another_job_asks_only_what_is_new(cluster, client) -> None:
    check(client, place("cpu"), PLAIN)
    first = len(cluster.seen)

    cluster.nodes = [node(nvidia_gpu="1")]
    check(client, place("gpu-l4"), PLAIN)

    assert cluster.seen[first:] == ["GET /api/v1/nodes"]


def test_what_was_refused_is_asked_about_again_at_once(cluster, client) -> None:
    cluster.objects.clear()
    refused(client)

    cluster.objects.add("/api/v1/namespaces/team")

    assert check(client, place("cpu"), PLAIN) == ()


def test_that_something_is_missing_is_believed_for_a_minute_only(cluster, client) -> None:
    assert service_account(client, PLAIN) == ""
    cluster.objects.add("/api/v1/namespaces/team/serviceaccounts/kinetic")

    cluster.clock += 61

    assert service_account(client, PLAIN) == "kinetic"


def test_what_one_client_was_told_is_not_told_to_another(cluster, client) -> None:
    check(client, place("cpu"), PLAIN)
    with contextlib.closing(Client(client.transport.access, "team", client.transport._retry)) as other:
        check(other, place("cpu"), PLAIN)

    assert cluster.asked("namespaces/team") == 2


# ------------------------------------------------------------------------------------------------------ who, and where


def test_credentials_that_nobody_knows_come_before_all_that_is_missing(cluster, client) -> None:
    cluster.answers = {"": refusal(401, "Unauthorized", "Unauthorized")}

    assert isinstance(refused(client, ClusterSettings(queue="q", service_account="s")), CredentialsError)


def test_a_cluster_that_does_not_answer_is_unavailable(cluster, client) -> None:
    cluster.answers = {"": refusal(503, "starting")}

    assert isinstance(refused(client), BackendUnavailableError)


def test_a_missing_namespace_comes_with_the_command_that_makes_it(cluster, client) -> None:
    cluster.objects.clear()

    error = refused(client, ClusterSettings(queue="q"))

    assert (error.code, error.what) == ("namespace-missing", "there is no namespace team in the context test")
    assert error.next.startswith("kubectl create namespace team")


def test_a_namespace_that_is_being_removed_is_none(cluster, client) -> None:
    cluster.answers["namespaces/team"] = page({"status": {"phase": "Terminating"}})

    assert refused(client).why == "it is being deleted"


def test_where_namespaces_may_not_be_looked_at_something_is_made_as_if(cluster, client) -> None:
    cluster.answers["namespaces/team"] = refusal(403, "forbidden", "Forbidden")
    cluster.answers["configmaps"] = refusal(404, 'namespaces "team" not found', "NotFound")

    assert refused(client).code == "namespace-missing"


@pytest.mark.parametrize("said", ["forbidden", "exceeded quota: q"])
def test_what_keeps_that_from_being_made_is_not_held_against_the_namespace(cluster, client, said: str) -> None:
    cluster.answers["namespaces/team"] = refusal(403, "forbidden", "Forbidden")
    cluster.answers["configmaps"] = refusal(403, said, "Forbidden")

    assert check(client, place("cpu"), PLAIN) == ()


# -------------------------------------------------------------------------------------------------------- permissions


def test_what_the_list_of_rules_leaves_out_is_asked_about_one_by_one(cluster, client) -> None:
    cluster.rules = [{**EDIT, "resources": ["jobs", "pods", "secrets", "configmaps"]}]
    cluster.also = {("get", "pods/log")}

    assert check(client, place("cpu"), PLAIN) == ()

    assert cluster.asked("selfsubjectaccessreviews") == 1


def test_a_cluster_that_lists_no_rules_is_asked_about_everything(cluster, client) -> None:
    cluster.answers["selfsubjectrulesreviews"] = refusal(403, "no", "Forbidden")
    cluster.also = {(need.verb, need.resource) for need in needed_permissions(kube_client.JOB)}

    assert check(client, place("cpu"), PLAIN) == ()

    assert cluster.asked("selfsubjectaccessreviews") == len(needed_permissions(kube_client.JOB))


@pytest.mark.parametrize(
    "rule",
    [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "apiGroups": ["", "batch"], "resources": ["jobs", "pods", "*/log", "secrets", "configmaps"]},
    ],
)
def test_stars_in_rules_stand_for_everything(cluster, client, rule: dict[str, Any]) -> None:
    cluster.rules = [rule]

    check(client, place("cpu"), PLAIN)

    assert cluster.asked("selfsubjectaccessreviews") == 0


def test_a_rule_for_some_names_does_not_count(cluster, client) -> None:
    cluster.rules = [{**EDIT, "resourceNames": ["one"]}]

    assert isinstance(refused(client), AccessDeniedError)


def test_missing_permissions_are_named_together_with_who_we_are_and_the_role(cluster, client) -> None:
    cluster.rules = [{**EDIT, "verbs": ["get", "list", "watch"]}]

    error = refused(client)

    assert isinstance(error, AccessDeniedError)
    assert error.what.endswith(": create jobs, delete jobs, patch jobs, create secrets, create configmaps")
    assert error.why.startswith("your user there is ann@example.com")
    assert error.next == (
        "kubectl create rolebinding kinetic-ann --clusterrole=edit --user=ann@example.com -n team"
        "     or ask an administrator of the cluster to"
    )


def test_a_service_account_gets_a_binding_of_its_own_kind(cluster, client) -> None:
    cluster.rules = []
    who = {"userInfo": {"username": "system:serviceaccount:ci:builder"}}
    cluster.answers["selfsubjectreviews"] = page({"status": who}, 201)

    command = refused(client).next

    assert command.startswith(
        "kubectl create rolebinding kinetic-builder --clusterrole=edit --serviceaccount=ci:builder -n team"
    )


def test_jobsets_need_a_role_of_their_own(cluster, client) -> None:
    cluster.groups["jobset.x-k8s.io"] = ["v1alpha2"]

    error = refused(client, accelerator="tpu-v5e-4x4")

    assert "create jobsets.jobset.x-k8s.io" in error.what
    role, binding = error.next.partition("     ")[0].split(" && ")
    assert role.startswith("kubectl create role kinetic-slices --verb=create,get,list,watch,delete,patch --resource=")
    assert binding == (
        "kubectl create rolebinding kinetic-ann-slices --role=kinetic-slices --user=ann@example.com -n team"
    )


def test_a_slice_without_jobset_needs_a_service_and_one_host_does_not(cluster, client) -> None:
    cluster.rules = [{**EDIT, "resources": [each for each in EDIT["resources"] if each != "services"]}]

    assert check(client, place("cpu"), PLAIN) == ()
    assert refused(client, accelerator="tpu-v5e-4x4").what.endswith(": create services")


# -------------------------------------------------------------------------------------------------- kinds for slices


@pytest.mark.parametrize(
    ("groups", "also", "kind"),
    [
        ({"jobset.x-k8s.io": ["v1alpha2"], "leaderworkerset.x-k8s.io": ["v1"]}, set(), kube_client.JOB_SET),
        ({"jobset.x-k8s.io": ["v1beta9"]}, set(), kube_client.JOB),
        ({}, set(), kube_client.JOB),
        ({"leaderworkerset.x-k8s.io": ["v1"]}, {("create", "jobs"), ("create", "leaderworkersets")}, kube_client.JOB),
        ({"leaderworkerset.x-k8s.io": ["v1"]}, {("create", "leaderworkersets")}, kube_client.LEADER_WORKER_SET),
        ({"leaderworkerset.x-k8s.io": ["v1"]}, set(), kube_client.JOB),
    ],
)
def test_slices_are_made_of_the_best_kind_that_there_is(cluster, client, groups, also, kind) -> None:
    cluster.groups |= groups
    cluster.also = also

    assert discovery.kind_for_slices(client) is kind

    asked = len(cluster.seen)
    assert discovery.kind_for_slices(client) is kind
    assert len(cluster.seen) == asked


# ---------------------------------------------------------------------------------------- what the settings name


def test_a_service_account_that_is_named_must_exist(cluster, client) -> None:
    error = refused(client, ClusterSettings(service_account="trainer"))

    assert (error.code, error.what) == ("service-account", "the namespace team has no service account trainer")
    assert error.next.startswith("kubectl create serviceaccount trainer -n team")

    cluster.objects.add("/api/v1/namespaces/team/serviceaccounts/trainer")  # as told, and at once
    assert check(client, place("cpu"), ClusterSettings(service_account="trainer")) == ()


def test_a_service_account_that_is_there_is_taken(cluster, client) -> None:
    cluster.objects |= {f"/api/v1/namespaces/team/serviceaccounts/{name}" for name in ("trainer", "kinetic")}

    assert service_account(client, ClusterSettings(service_account="trainer")) == "trainer"
    assert service_account(client, PLAIN) == "kinetic"


def test_a_pod_that_builds_an_image_has_the_account_of_builders_where_there_is_one(cluster, client) -> None:
    builds = ClusterSettings(builds_image=True)
    cluster.objects |= {f"/api/v1/namespaces/team/serviceaccounts/{name}" for name in ("trainer", "kinetic")}

    assert service_account(client, builds) == "kinetic"

    discovery.cache_of(client).forget((kube_client.SERVICE_ACCOUNT, "kinetic-builder"))
    cluster.objects.add("/api/v1/namespaces/team/serviceaccounts/kinetic-builder")
    assert service_account(client, builds) == "kinetic-builder"
    assert service_account(client, PLAIN) == "kinetic"
    assert service_account(client, ClusterSettings(service_account="trainer", builds_image=True)) == "trainer"


def test_a_service_account_that_may_not_be_looked_at_is_taken_at_its_word(cluster, client) -> None:
    cluster.answers["trainer"] = cluster.answers["kinetic"] = refusal(403, "forbidden", "Forbidden")

    assert service_account(client, ClusterSettings(service_account="trainer")) == "trainer"
    assert service_account(client, PLAIN) == ""


def test_a_queue_without_kueue_leads_nowhere(client) -> None:
    error = refused(client, ClusterSettings(queue="team-a"))

    assert (error.code, error.why) == ("queue-missing", "the cluster does not serve kueue.x-k8s.io")


def test_a_queue_that_does_not_exist_is_refused(cluster, client) -> None:
    cluster.groups["kueue.x-k8s.io"] = ["v1beta1"]

    error = refused(client, ClusterSettings(queue="team-a"))

    assert error.what == "the namespace team has no queue team-a"
    assert error.next.startswith("kubectl get localqueues -n team")


@pytest.mark.parametrize("versions", [["v1beta1"], ["v1beta2", "v1beta1"], ["v1beta2"]])
def test_a_queue_is_looked_for_in_a_version_that_is_served(cluster, client, versions: list[str]) -> None:
    cluster.groups["kueue.x-k8s.io"] = versions
    expected = "v1beta1" if "v1beta1" in versions else versions[0]
    cluster.objects.add(f"/apis/kueue.x-k8s.io/{expected}/namespaces/team/localqueues/team-a")

    assert check(client, place("cpu"), ClusterSettings(queue="team-a")) == ()


@pytest.mark.parametrize(
    ("made", "queue"),
    [
        (page({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "default"}}}, 201), "default"),
        (page({"metadata": {}}, 201), ""),
        (refusal(403, "every Job needs a team", "Forbidden"), ""),
    ],
    ids=["there", "not there", "not known"],
)
def test_a_default_queue_that_may_not_be_read_is_found_by_what_a_job_gets(cluster, client, made, queue: str) -> None:
    cluster.groups["kueue.x-k8s.io"] = ["v1beta1"]
    cluster.answers["/localqueues/default"] = refusal(403, "forbidden", "Forbidden")
    cluster.answers["/jobs"] = made

    assert preflight.default_queue(client) == queue


def test_each_volume_claim_must_exist_and_is_asked_for_once(cluster, client) -> None:
    settings = ClusterSettings(volume_claims=(VolumeClaim("/a", "sets"), VolumeClaim("/b", "sets", "part")))
    lacks = refused(client, settings)
    assert (lacks.code, lacks.what) == ("volume-claim", "the namespace team has no volume claim sets")
    assert "KINETIC_VOLUME_CLAIMS" in lacks.next

    cluster.objects.add("/api/v1/namespaces/team/persistentvolumeclaims/sets")
    before = cluster.asked("/persistentvolumeclaims/sets")

    assert check(client, place("cpu"), settings) == ()
    assert cluster.asked("/persistentvolumeclaims/sets") == before + 1


@pytest.mark.parametrize(
    ("accelerator", "modes", "is_noted"),
    [
        ("gpu-h100x8x2", ["ReadWriteOnce"], True),
        ("gpu-h100x8x2", ["ReadWriteOnce", "ReadOnlyMany"], False),
        ("gpu-h100x8", ["ReadWriteOnce"], False),
    ],
)
def test_a_volume_claim_of_one_machine_is_noted_for_several_hosts(
    cluster, client, accelerator: str, modes: list[str], is_noted: bool
) -> None:
    claim = {"metadata": {"name": "sets"}, "spec": {"accessModes": modes}}
    cluster.answers["/persistentvolumeclaims/sets"] = page(claim)

    notes = check(client, place(accelerator), ClusterSettings(volume_claims=(VolumeClaim("/a", "sets"),)))

    assert any("the volume claim sets is ReadWriteOnce" in note for note in notes) is is_noted


def test_config_maps_of_the_settings_must_exist(cluster, client) -> None:
    settings = ClusterSettings(config_maps=("proxy", "packages"))
    cluster.objects.add("/api/v1/namespaces/team/configmaps/proxy")

    lacks = refused(client, settings)
    assert (lacks.code, lacks.what) == ("config-map", "the namespace team has no ConfigMap packages")
    assert "KINETIC_CONFIG_MAPS" in lacks.next

    cluster.objects.add("/api/v1/namespaces/team/configmaps/packages")
    assert check(client, place("cpu"), settings) == ()


def test_a_priority_class_a_runtime_class_and_a_secret_for_the_store_must_exist(cluster, client) -> None:
    assert refused(client, ClusterSettings(priority_class="high")).code == "priority-class"
    assert refused(client, ClusterSettings(store_secret="aws")).code == "secret-missing"
    lacks = refused(client, ClusterSettings(runtime_class="nvidia"))
    assert (lacks.code, "kubectl get runtimeclasses" in lacks.next) == ("runtime-class", True)

    cluster.objects |= {"/apis/scheduling.k8s.io/v1/priorityclasses/high", "/api/v1/namespaces/team/secrets/aws"}
    cluster.objects |= {"/apis/node.k8s.io/v1/runtimeclasses/nvidia"}

    assert (
        check(client, place("cpu"), ClusterSettings(priority_class="high", store_secret="aws", runtime_class="nvidia"))
        == ()
    )


def test_a_job_whose_hosts_volcano_cannot_start_together_is_told_so(cluster, client) -> None:
    volcano, gpus = ClusterSettings(scheduler="volcano"), place("gpu-l4x1x2")

    def noted(settings: ClusterSettings = volcano, name: str = "gpu-l4x1x2") -> list[str]:
        cluster.clock += 3600
        return [each for each in check(client, place(name), settings) if "Volcano" in each]

    assert [each.partition(": ")[2] for each in noted()] == [f"{client.about} serves no PodGroups"]
    cluster.groups["scheduling.volcano.sh"] = ["v1beta1"]
    assert "you may not create podgroups in the namespace team" in noted()[0]
    assert not preflight.starts_together(client, gpus, volcano)
    cluster.also.add(("create", "podgroups"))
    assert noted() == []
    assert preflight.starts_together(client, gpus, volcano)
    for settings, name in ((PLAIN, "gpu-l4x1x2"), (volcano, "gpu-l4x1"), (volcano, "tpu-v6e-4x4")):
        assert not preflight.starts_together(client, place(name), settings)


# ----------------------------------------------------------------------------------------------------------- machines


POOLS = NodePools("p", "us-central1-a", "c", ("us-central1-a",), autopilot=False, limits=None, pools=())


def notes(client: Client, accelerator: str, settings: ClusterSettings = PLAIN, **more: Any) -> tuple[str, ...]:
    return check(client, place(accelerator), settings, **more)


def test_a_node_that_has_what_is_asked_for_is_enough(cluster, client) -> None:
    cluster.nodes = [node(nvidia_gpu="1")]

    assert notes(client, "gpu-l4", pools=lambda: POOLS) == ()


def test_node_pools_are_not_asked_for_where_the_nodes_suffice(cluster, client) -> None:
    cluster.nodes = [node(nvidia_gpu="1")]

    assert notes(client, "gpu-l4", pools=lambda: pytest.fail("asked")) == ()


@pytest.mark.parametrize(
    "key", ["node.kubernetes.io/unschedulable", "node.cloudprovider.kubernetes.io/uninitialized", "google.com/tpu"]
)
def test_a_node_without_its_chips_or_with_a_taint_is_not(cluster, client, key: str) -> None:
    away = [{"key": key, "effect": "NoSchedule"}]
    cluster.nodes = [node(nvidia_gpu="0"), node(), node(nvidia_gpu="1", taints=away)]

    (said,) = notes(client, "gpu-l4")

    assert "too few have 1 nvidia.com/gpu" in said
    assert "KINETIC_TOLERATIONS" not in said


def test_taints_that_its_pods_tolerate_do_not_keep_a_job_away(cluster, client) -> None:
    cluster.nodes = [
        node(nvidia_gpu="1", taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])
    ]

    assert notes(client, "gpu-l4") == ()


def test_a_slice_needs_all_its_hosts(cluster, client) -> None:
    labels = place("tpu-v5e-4x4").node_selector
    cluster.nodes = [node(labels, **{"google.com_tpu": "4"})] * 3

    assert "wait" in notes(client, "tpu-v5e-4x4")[0]

    cluster.clock += 61
    cluster.nodes *= 2
    assert notes(client, "tpu-v5e-4x4") == ()


def test_a_node_has_room_for_as_many_hosts_with_gpus_as_it_has_gpus_for(cluster, client) -> None:
    cluster.nodes = [node(nvidia_gpu="1"), node(nvidia_gpu="2")]

    assert notes(client, "gpu-l4x1x3") == ()
    assert "too few have 1 nvidia.com/gpu" in notes(client, "gpu-l4x1x4")[0]


def test_many_nodes_come_in_pages_and_no_more_of_them_than_are_needed(cluster, client) -> None:
    cluster.nodes = [node(nvidia_gpu="0")] * 600 + [node(nvidia_gpu="1")] * 1000

    assert notes(client, "gpu-l4") == ()

    assert cluster.asked("/nodes") == 2


def test_no_node_on_a_cluster_of_gke_is_a_sentence(cluster, client) -> None:
    cluster.nodes = [node({"cloud.google.com/gke-nodepool": "default"})]

    (said,) = notes(client, "gpu-l4")

    assert said.startswith("gpu-l4: no node of the context test has the labels cloud.google.com/gke-accelerator=")
    assert said.endswith("the job waits until one has, which an autoscaler may bring about")


def test_an_autoscaler_is_known_by_its_traces(cluster, client) -> None:
    cluster.groups["karpenter.sh"] = ["v1"]

    assert notes(client, "gpu-l4")[0].endswith("which an autoscaler may bring about")


def test_no_node_and_no_autoscaler_is_a_sentence_too_and_names_the_way_out(cluster, client) -> None:
    (said,) = notes(client, "gpu-l4")

    assert "nothing here seems to add nodes automatically" in said
    assert "KINETIC_NODE_SELECTOR" in said


def test_labels_of_the_settings_take_the_place_of_googles(cluster, client) -> None:
    cluster.nodes = [node({"gpu": "big"}, nvidia_gpu="1")]

    assert notes(client, "gpu-l4", ClusterSettings(node_selector={"gpu": "big"}), pools=lambda: POOLS) == ()
    (said,) = notes(client, "gpu-l4", ClusterSettings(node_selector={"gpu": "small"}), pools=lambda: POOLS)
    assert "gpu=small" in said


def test_no_labels_at_all_mean_any_node_with_the_chips(cluster, client) -> None:
    cluster.nodes = [node({}), node({}, nvidia_gpu="1")]

    assert notes(client, "gpu-l4", ClusterSettings(node_selector={})) == ()


def test_taints_and_the_name_of_gpus_are_those_of_the_settings(cluster, client) -> None:
    taint = {"key": "dedicated", "value": "research", "effect": "NoSchedule"}
    small = node({}, taints=[taint], nvidia_gpu="1")
    small["status"]["allocatable"] = {"nvidia.com/mig-1g.10gb": "7"}
    cluster.nodes = [small]
    tolerated = {"key": "dedicated", "operator": "Equal", "value": "research", "effect": "NoSchedule"}
    anywhere = {"node_selector": {}, "gpu_resource": "nvidia.com/mig-1g.10gb"}

    assert notes(client, "gpu-l4", ClusterSettings(**anywhere, tolerations=(tolerated,))) == ()
    (said,) = notes(client, "gpu-l4", ClusterSettings(**anywhere))
    assert "1 nvidia.com/mig-1g.10gb" in said
    assert said.endswith("add some, or name the taints of these in KINETIC_TOLERATIONS")
    (said,) = notes(client, "gpu-l4", ClusterSettings(node_selector={}, tolerations=(tolerated,)))
    assert said.endswith("nothing here seems to add nodes automatically: add some")  # its taint keeps no job away


def test_where_nodes_may_not_be_listed_nothing_is_concluded(cluster, client) -> None:
    cluster.answers["/nodes"] = refusal(403, "forbidden", "Forbidden")

    assert notes(client, "gpu-l4") == ()


@pytest.mark.parametrize("listed", [True, False])
def test_machines_that_no_pool_can_ever_give_are_refused_with_the_command(cluster, client, listed: bool) -> None:
    if not listed:
        cluster.answers["/nodes"] = refusal(403, "forbidden", "Forbidden")

    error = refused(client, accelerator="gpu-l4", pools=lambda: POOLS)

    assert isinstance(error, CapacityError)
    assert error.what == "the context test has no nodes for gpu-l4"
    assert error.next.startswith("gcloud container node-pools create kinetic-gpu-l4 --cluster c")


def test_a_pool_that_was_made_since_is_seen_at_once(cluster, client) -> None:
    refused(client, accelerator="gpu-l4", pools=lambda: POOLS)

    cluster.nodes = [node(nvidia_gpu="1")]

    assert notes(client, "gpu-l4", pools=lambda: POOLS) == ()


def test_a_pool_that_has_none_up_is_a_sentence(cluster, client) -> None:
    growing = POOLS._replace(pools=(NodePool("l4", "g2-standard-4", (("nvidia-l4", 1),), max_nodes=3),))

    (said,) = notes(client, "gpu-l4", pools=lambda: growing)

    assert said == "nodes for gpu-l4 that are up now: 0 of 1; the node pool l4 can grow to 3 such nodes"


def test_a_pool_that_does_not_grow_comes_with_the_command_that_fills_it(cluster, client) -> None:
    fixed = POOLS._replace(pools=(NodePool("l4", "g2-standard-4", (("nvidia-l4", 1),)),))

    (said,) = notes(client, "gpu-l4", pools=lambda: fixed)

    assert "and a fixed size: gcloud container clusters resize c --node-pool l4 --num-nodes 1" in said


def test_pools_that_nobody_tells_leave_what_the_nodes_say(cluster, client) -> None:
    assert "no node of" in notes(client, "gpu-l4", pools=lambda: None)[0]


# ----------------------------------------------------------------------------------------------------------- the store


@pytest.mark.parametrize("url", ["gs://bucket", "s3://bucket/team"])
def test_a_bucket_can_be_reached_from_everywhere(url: str) -> None:
    check_store(url, {}, ClusterSettings())


@pytest.mark.parametrize("url", ["file:///home/ann/.kinetic/store", "/home/ann/store", "memory://x"])
def test_a_folder_of_this_machine_cannot(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_store(url, {}, ClusterSettings())

    assert url in caught.value.why
    assert caught.value.next.startswith("export KINETIC_STORE=gs://")


def test_a_folder_that_every_pod_has_can_if_somebody_says_so() -> None:
    check_store("file:///shared/kinetic", {"KINETIC_SHARED_STORE": "1"}, ClusterSettings())

    with pytest.raises(OptionError):
        check_store("memory://x", {"KINETIC_SHARED_STORE": "1"}, ClusterSettings())


@pytest.mark.parametrize("scheme", ["file://", ""])
def test_a_folder_in_a_volume_that_pods_can_write_to_can_if_it_is_here_too(scheme: str, tmp_path: Path) -> None:
    url, here = f"{scheme}{tmp_path}/kinetic", str(tmp_path)
    check_store(url, {}, ClusterSettings(volume_claims=(VolumeClaim(here, "team"),)))

    with pytest.raises(OptionError) as caught:
        check_store(url, {}, ClusterSettings(volume_claims=(VolumeClaim(here, "team", read_only=True),)))
    assert "KINETIC_VOLUME_CLAIMS" in caught.value.next
    with pytest.raises(OptionError, match="is not on this machine"):
        check_store("/only-in-pods/a", {}, ClusterSettings(volume_claims=(VolumeClaim("/only-in-pods", "team"),)))


# ----------------------------------------------------------------------------------------------------------- questions


def test_the_first_question_that_fails_is_the_one_that_is_told() -> None:
    def fail(error: Exception) -> Callable[[], object]:
        def question() -> object:
            raise error

        return question

    with pytest.raises(LaunchError):
        kube_client.request_all([lambda: 1, fail(LaunchError("first")), fail(CapacityError("second"))])


def test_ctrl_c_waits_for_no_answer() -> None:
    answer = threading.Event()
    mine = threading.main_thread().ident

    with pytest.raises(KeyboardInterrupt):
        kube_client.request_all([lambda: answer.wait(15), lambda: signal.pthread_kill(mine, signal.SIGINT)])

    assert not answer.is_set()
    answer.set()


def test_an_answer_that_is_no_longer_believed_is_asked_for_again() -> None:
    now = [0.0]
    kept = discovery.ClusterCache(clock=lambda: now[0])
    answers = iter("abc")

    found = [kept.ask("key", lambda: next(answers), lambda _: 10.0) for now[0] in (0.0, 9.0, 10.0)]
    kept.forget("key")

    assert [*found, kept.ask("key", lambda: next(answers))] == ["a", "a", "b", "c"]


@pytest.mark.parametrize("name", ["STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_address_with_a_password_is_refused_as_it_would_stand_in_the_pods_spec(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_store("gs://jobs", {name: "https://ann:secret@minio.example.com:9000/path@x"}, ClusterSettings())

    assert caught.value.what == f"{name} contains a user name or a password"
    assert "secret" not in str(caught.value).replace("Secret", "")
    check_store("gs://jobs", {name: "https://minio.example.com:9000/path@x"}, ClusterSettings())


# --------------------------------------------------------------------------------------- GPUs that nobody has counted

UNCOUNTED = {"cloud.google.com/gke-accelerator": "nvidia-l4"}


def test_nodes_that_do_not_say_how_many_gpus_they_have_are_taken_by_what_they_have(cluster, client) -> None:
    cluster.nodes = [node({}), node(UNCOUNTED, nvidia_gpu="1")]

    (said,) = notes(client, "gpu-l4")

    assert said == (
        "gpu-l4: the nodes with cloud.google.com/gke-accelerator=nvidia-l4 do not say how many GPUs they have (they "
        "lack the label cloud.google.com/gke-accelerator-count); the job takes any with 1 free"
    )
    assert not preflight.selects_by_count(client, place("gpu-l4"))


def test_nodes_that_do_not_say_it_and_have_too_few_are_waited_for(cluster, client) -> None:
    cluster.nodes = [node(UNCOUNTED, nvidia_gpu="1")]

    (said,) = notes(client, "gpu-l4x4")

    assert "of the nodes with cloud.google.com/gke-accelerator=nvidia-l4 too few have 4 nvidia.com/gpu" in said


@pytest.mark.parametrize(
    "there",
    [[], [node(L4, nvidia_gpu="1")], [node(UNCOUNTED, nvidia_gpu="1"), node({**L4, "x": "y"}, nvidia_gpu="1")]],
    ids=["no node", "nodes that say it", "some that say it"],
)
def test_where_no_node_or_any_node_says_it_the_number_is_asked_for(cluster, client, there) -> None:
    cluster.nodes = there

    assert preflight.selects_by_count(client, place("gpu-l4"))


def test_nodes_with_another_number_of_gpus_say_it(cluster, client) -> None:
    cluster.nodes = [node({**L4, "cloud.google.com/gke-accelerator-count": "8"}, nvidia_gpu="8")]

    assert preflight.selects_by_count(client, place("gpu-l4"))


def test_whether_gpus_are_counted_is_asked_once(cluster, client) -> None:
    cluster.nodes = [node(UNCOUNTED, nvidia_gpu="1")]

    for _ in range(5):
        preflight.selects_by_count(client, place("gpu-l4"))

    assert cluster.asked("/nodes") == 2


def test_the_pods_of_such_a_job_do_not_ask_for_the_label() -> None:
    assert job_manifests.node_selector(place("gpu-l4"), by_count=False) == UNCOUNTED


RESTRICTED = {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
OF_OPENSHIFT = {"annotations": {"openshift.io/sa.scc.uid-range": "1000680000/10000"}}


@pytest.mark.parametrize(
    ("about", "level"),
    [({}, ""), (RESTRICTED, "restricted"), (OF_OPENSHIFT, "openshift"), (RESTRICTED | OF_OPENSHIFT, "openshift")],
)
def test_the_level_of_pod_security_is_read_from_the_namespace_once(cluster, client, about, level: str) -> None:
    cluster.answers["/namespaces/team"] = page({"metadata": {"name": "team", **about}})

    assert [preflight.pod_security(client) for _ in range(3)] == [level] * 3
    assert cluster.asked("/namespaces/team") == 1


def test_where_the_namespace_may_not_be_read_no_level_is_assumed(cluster, client) -> None:
    cluster.answers["/namespaces/team"] = refusal(403, "forbidden", "Forbidden")

    assert preflight.pod_security(client) == ""


def told_about(pod: dict[str, Any], rule: str) -> Answer:
    """Answer a dry run as a server with a policy about the root file system of pods does."""
    is_protected = pod["spec"]["containers"][0]["securityContext"].get("readOnlyRootFilesystem", False)
    if rule == "makes it so":
        pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = True
        pod["spec"]["containers"].insert(0, {"name": "sidecar"})
    if rule == "rejects others" and not is_protected:
        return refusal(403, 'admission webhook "v.k" denied the request: a read-only root is required', "Forbidden")
    if rule == "rejects all":
        return refusal(422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no team", "Invalid")
    if rule == "may not ask":
        return refusal(403, 'pods is forbidden: User "ann" cannot create resource "pods"', "Forbidden")
    return refusal(500, "failed calling webhook") if rule == "does not answer" else page(pod, 201)


@pytest.mark.parametrize(
    ("rule", "found", "asked", "after_a_minute"),
    [
        ("none", False, 1, 1),
        ("makes it so", True, 1, 1),
        ("rejects others", True, 2, 2),
        ("rejects all", False, 2, 4),
        ("may not ask", False, 1, 2),
        ("does not answer", False, 1, 2),
    ],
)
def test_a_dry_run_tells_whether_the_root_of_pods_has_to_be_read_only(
    client, cluster, rule: str, found: bool, asked: int, after_a_minute: int
) -> None:
    pods: list[dict[str, Any]] = []

    def answer(request: Request) -> Answer:
        assert request.query["dryRun"] == "All"
        pods.append(json.loads(request.body))
        return told_about(pods[-1], rule)

    request = job_manifests.JobRequest("job-1", "team", place("cpu"))
    with contextlib.closing(Server(answer).start()) as server:
        client.transport.access = replace(client.transport.access, server=server.url)
        assert [preflight.has_read_only_root(client, request) for _ in range(3)] == [found] * 3
        assert len(pods) == asked
        cluster.clock += 61
        assert preflight.has_read_only_root(client, request) == found
        assert len(pods) == after_a_minute
    assert [mount["mountPath"] for mount in pods[-1]["spec"]["containers"][-1]["volumeMounts"]].count("/tmp") == (
        1 if rule.startswith("rejects") else 0
    )


def test_a_volume_of_the_settings_at_the_temporary_folder_stays_the_only_one_there() -> None:
    settings = ClusterSettings(volume_claims=(VolumeClaim("/tmp", "scratch"),))
    request = job_manifests.JobRequest("job-1", "team", place("cpu"), PodRequirements(settings=settings))

    pod = job_manifests.pod(replace(request, has_read_only_root=True))

    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    assert [mount["name"] for mount in mounts if mount["mountPath"] == "/tmp"] == ["claim-0"]
