"""`kinetic doctor` against the fakes of Google and of a cluster: each check fails once, and says how it is repaired."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.google_cloud import Fault, GoogleCloud
from servers.kubernetes import KubernetesServer
from servers.scripted import refusal

from kinetic._cluster import checks, cluster_checks
from kinetic._cluster.checks import Check, Finding, Problem
from kinetic._cluster.cluster_checks import ClusterChecks
from kinetic._config import target as settings
from kinetic.errors import OptionError

HERE = "us-west4"
BUCKET = "jobs-bucket"


class Doctor:
    """A target in a project of the fake's, whose cluster is the other fake."""

    def __init__(self, cloud: GoogleCloud, kube: KubernetesServer, folder: Path) -> None:
        self.cloud, self.kube = cloud, kube
        self.environ = cloud.environ(folder) | {
            "KINETIC_PROJECT": cloud.project,
            "KINETIC_ZONE": HERE,
            "KINETIC_CLUSTER": "team",
            "KINETIC_STORE": f"gs://{BUCKET}/jobs",
            "KINETIC_HOME": str(folder / "home"),
        }
        self.cluster = cloud.container.add(
            HERE,
            "team",
            autopilot={"enabled": True},
            controlPlaneEndpointsConfig={"dnsEndpointConfig": {"allowExternalTraffic": True}},
        )
        cloud.storage.add(BUCKET)
        pool = f"projects/{cloud.number}/locations/global/workloadIdentityPools/{cloud.project}.svc.id.goog"
        self.member = f"principal://iam.googleapis.com/{pool}/subject/ns/default/sa/kinetic"
        cloud.storage.policies[BUCKET].grant("roles/storage.objectUser", self.member)

    def checks(self, accelerator: str = "") -> list[Check]:
        found = settings.resolve(environ=self.environ)
        return ClusterChecks(found, self.environ, accelerator).checks()

    def run(self, accelerator: str = "") -> dict[str, Finding]:
        return {each.key: each for each in checks.run(self.checks(accelerator))}


@pytest.fixture
def kube() -> Iterator[KubernetesServer]:
    with KubernetesServer() as server:
        yield server


@pytest.fixture
def doctor(cloud, kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    monkeypatch.setattr(cluster_checks, "client_of", lambda *_: kube.client)
    return Doctor(cloud, kube, tmp_path)


def test_a_cluster_on_which_all_is_right_passes_each_check(doctor: Doctor) -> None:
    found = doctor.run("v5litepod-1")

    assert {each.key: each.what for each in found.values() if each.level != "PASS"} == {
        "nodes": found["nodes"].what  # there are no nodes yet, and Autopilot adds them
    }
    assert found["nodes"].level == "WARN"
    assert doctor.cloud.writes == []


def no_login(doctor: Doctor) -> None:
    doctor.environ["GOOGLE_APPLICATION_CREDENTIALS"] = "/nowhere.json"


def without_binding(doctor: Doctor) -> None:
    doctor.cloud.storage.policies[BUCKET].bindings.clear()


def node(doctor: Doctor, status: str) -> None:
    doctor.kube.add("/api/v1/nodes/n", status={"conditions": [{"type": "Ready", "status": status}]})


# What roles/container.developer and roles/storage.objectUser do not have, of what doctor asks.
SUBMITTERS = {
    "serviceusage.services.get",
    "compute.machineTypes.list",
    "compute.regions.get",
    "compute.advice.capacity",
    "storage.buckets.get",
    "storage.buckets.getIamPolicy",
}
Break = Callable[[Doctor], object]
# The check, how it is made to fail, its level then, and a word of what repairs it.
BREAKS: list[tuple[str, Break, str, str]] = [
    ("login", no_login, "FAIL", "gcloud auth application-default login"),
    ("project", lambda d: d.cloud.denied.update(SUBMITTERS | {"resourcemanager.projects.get"}), "FAIL", "roles/viewer"),
    ("apis", lambda d: d.cloud.denied.add("serviceusage.services.get"), "WARN", "serviceUsageViewer"),
    ("billing", lambda d: setattr(d.cloud, "billing", ""), "FAIL", "link one"),
    ("apis", lambda d: d.cloud.enabled.remove("storage.googleapis.com"), "FAIL", "gcloud services enable"),
    ("apis", lambda d: d.cloud.enabled.remove("cloudquotas.googleapis.com"), "WARN", "kinetic doctor --fix"),
    ("rights", lambda d: d.cloud.denied.add("container.clusters.get"), "FAIL", "roles/container.developer"),
    ("cluster", lambda d: d.cloud.container.clusters.clear(), "FAIL", "gcloud container clusters list"),
    ("cluster", lambda d: d.cluster.update(status="ERROR"), "FAIL", "clusters describe"),
    ("dns-endpoint", lambda d: d.cluster.update(controlPlaneEndpointsConfig={}), "WARN", "--enable-dns-access"),
    ("workload-identity", lambda d: d.cluster.update(workloadIdentityConfig={}), "FAIL", "--workload-pool"),
    ("fuse", lambda d: d.cluster.update(addonsConfig={}), "WARN", "GcsFuseCsiDriver=ENABLED"),
    ("connection", lambda d: d.kube.answers.update({"/version": refusal(403)}), "FAIL", "log in again"),
    ("version", lambda d: setattr(d.kube, "version", "v1.27.3"), "WARN", "upgrade"),
    (
        "namespace",
        lambda d: d.kube.objects.pop("/api/v1/namespaces/default"),
        "FAIL",
        "kubectl create namespace default",
    ),
    ("permissions", lambda d: setattr(d.kube, "rules", []), "FAIL", "kubectl create rolebinding"),
    (
        "service-account",
        lambda d: d.kube.objects.pop("/api/v1/namespaces/default/serviceaccounts/kinetic"),
        "WARN",
        "kubectl create serviceaccount kinetic",
    ),
    ("queue", lambda d: d.environ.update(KINETIC_QUEUE="team"), "FAIL", "unset KINETIC_QUEUE"),
    (
        "priority-class",
        lambda d: d.environ.update(KINETIC_PRIORITY_CLASS="high"),
        "FAIL",
        "kubectl get priorityclasses",
    ),
    ("runtime-class", lambda d: d.environ.update(KINETIC_RUNTIME_CLASS="x"), "FAIL", "kubectl get runtimeclasses"),
    ("config-maps", lambda d: d.environ.update(KINETIC_CONFIG_MAPS="proxy"), "FAIL", "kubectl get configmaps"),
    (
        "volume-claims",
        lambda d: d.environ.update(KINETIC_VOLUME_CLAIMS="/a=b"),
        "FAIL",
        "kubectl get persistentvolumeclaims",
    ),
    ("store-secret", lambda d: d.environ.update(KINETIC_STORE_SECRET="store"), "FAIL", "kubectl get secrets"),
    ("nodes-ready", lambda d: node(d, "False"), "WARN", "kubectl describe node n"),
    ("store-address", lambda d: d.environ.update(KINETIC_STORE="/folder"), "FAIL", "export KINETIC_STORE=gs://"),
    ("store", lambda d: d.cloud.denied.add("storage.objects.create"), "FAIL", "roles/storage.objectUser"),
    ("store", lambda d: d.cloud.storage.buckets.clear(), "FAIL", "kinetic up"),
    ("bucket-binding", without_binding, "WARN", "add-iam-policy-binding"),
    ("sold", lambda d: d.cloud.compute.zones_by_family.update(ct5lp=("us-south1-a",)), "FAIL", "kinetic up --region"),
    ("quota", lambda d: d.cloud.compute.quotas.update(TPU_LITE_PODSLICE_V5=(0.0, 0.0)), "FAIL", "iam-admin/quotas"),
    ("quota", lambda d: d.cloud.compute.quotas.pop("TPU_LITE_PODSLICE_V5"), "WARN", "iam-admin/quotas"),
    ("advice", lambda d: d.cloud.compute.obtainability.update(ct5lp=0.1), "WARN", ":spot"),
]


@pytest.mark.parametrize(
    ("key", "break_it", "level", "step"), BREAKS, ids=[f"{a}-{c}-{d[:9]}" for a, _, c, d in BREAKS]
)
def test_each_check_fails_where_something_is_wrong_and_says_what_repairs_it(doctor, key, break_it, level, step) -> None:
    break_it(doctor)

    found = doctor.run("v5litepod-1")

    assert (found[key].level, found[key].what) == (level, found[key].what)
    assert step in found[key].next


def test_who_only_submits_jobs_may_do_all_that_fails_a_check(doctor: Doctor) -> None:
    doctor.cloud.denied = SUBMITTERS

    found = doctor.run("v5litepod-1")

    assert checks.is_usable(found.values())
    assert {each.key for each in found.values() if each.level == "SKIP"} == {"bucket-binding", "sold", "advice"}


def test_every_check_has_a_case(doctor: Doctor) -> None:
    doctor.environ |= {"KINETIC_QUEUE": "q", "KINETIC_PRIORITY_CLASS": "p", "KINETIC_STORE_SECRET": "s"}
    doctor.environ |= {"KINETIC_RUNTIME_CLASS": "r", "KINETIC_VOLUME_CLAIMS": "/v=v", "KINETIC_CONFIG_MAPS": "c"}

    keys = {each.key for each in doctor.checks("v5litepod-1")}

    assert keys == {key for key, *_ in BREAKS} | {"nodes", "jobset"}


def test_what_follows_from_a_failure_is_skipped_and_names_it(doctor: Doctor) -> None:
    no_login(doctor)

    found = doctor.run("v5litepod-1")

    assert {each.level for each in found.values()} == {"FAIL", "SKIP", "PASS"}
    assert [each.key for each in found.values() if each.level == "FAIL"] == ["login"]
    assert found["permissions"].what == "not asked, because of connection"
    assert doctor.cloud.calls == []


def test_a_slice_without_jobset_is_a_warning_and_a_webhook_that_is_silent_a_failure(doctor: Doctor) -> None:
    assert doctor.run("v5litepod-16")["jobset"].level == "WARN"
    assert doctor.run("2xv5litepod-16")["jobset"].level == "FAIL"

    doctor.kube.groups["jobset.x-k8s.io"] = ["v1alpha2"]
    doctor.kube.reconnect()  # what it serves is remembered for each client
    assert doctor.run("v5litepod-16")["jobset"].level == "PASS"

    doctor.kube.answers["/jobsets"] = refusal(500, "failed calling webhook: context deadline exceeded")
    found = doctor.run("v5litepod-16")["jobset"]
    assert found.level == "FAIL"
    assert "failed calling webhook: context deadline exceeded" in found.why


def test_jobset_is_installed_by_kinetic_up_where_that_made_the_cluster(doctor: Doctor) -> None:
    assert "administrator" in doctor.run("v5litepod-16")["jobset"].next

    doctor.cluster.update(resourceLabels={"managed-by": "kinetic", "kinetic-cluster": "team"})

    step = doctor.run("v5litepod-16")["jobset"].next
    assert step == f"kinetic up --jobset --project {doctor.cloud.project} --cluster team"


def test_checks_that_do_not_need_each_other_are_asked_side_by_side() -> None:
    both = threading.Barrier(2, timeout=10)
    asked = [Check("first", "group", lambda: f"{both.wait()}"), Check("second", "group", lambda: f"{both.wait()}")]
    asked += [Check(f"after-{number}", "group", lambda: "", ("first", "second")) for number in range(40)]

    found = list(checks.run(asked))

    assert [each.key for each in found] == [each.key for each in asked]
    assert {each.level for each in found} == {"PASS"}


def test_what_was_skipped_is_asked_and_repaired_once_the_cause_is_repaired(doctor: Doctor) -> None:
    doctor.cloud.enabled -= {"container.googleapis.com", "storage.googleapis.com"}
    doctor.cluster.update(addonsConfig={})
    doctor.cloud.pending = 0
    asked = doctor.checks()
    found = list(checks.run(asked))
    assert {each.key: each.level for each in found}["fuse"] == "SKIP"

    after = {each.key: each.level for each in checks.fix(asked, found)}

    assert after["apis"] == after["fuse"] == after["store"] == "PASS"
    assert {each.level for each in doctor.run().values()} == {"PASS"}


def test_a_repair_that_fails_is_not_tried_for_ever(doctor: Doctor) -> None:
    doctor.cluster.update(addonsConfig={})
    doctor.cloud.faults = [Fault("status", method=".*clusters.update", status=403, message="no right", times=-1)]
    asked = doctor.checks()

    (after,) = checks.fix(asked, list(checks.run(asked)))

    assert (after.key, after.level) == ("fuse", "WARN")
    assert doctor.cloud.methods(writes=True) == ["container.projects.locations.clusters.update"]


def test_repairs_are_done_once_and_asked_again(doctor: Doctor) -> None:
    doctor.cluster.update(controlPlaneEndpointsConfig={}, addonsConfig={}, workloadIdentityConfig={})
    doctor.cloud.enabled.remove("cloudquotas.googleapis.com")
    doctor.kube.objects.pop("/api/v1/namespaces/default/serviceaccounts/kinetic")
    without_binding(doctor)
    doctor.cloud.pending = 0
    asked = doctor.checks()
    found = list(checks.run(asked))

    after = {each.key: each.level for each in checks.repair(asked, found)}

    repaired = {"apis", "dns-endpoint", "workload-identity", "fuse", "service-account", "bucket-binding"}
    assert after.keys() >= repaired
    assert doctor.cloud.storage.policies[BUCKET].members("roles/storage.objectUser")
    assert {each.level for each in doctor.run().values()} == {"PASS"}


def test_a_repair_that_is_refused_says_so(doctor: Doctor) -> None:
    doctor.cluster.update(addonsConfig={})
    asked = doctor.checks()
    found = list(checks.run(asked))
    refused = Fault("status", method=".*clusters.update", status=403, message="no right", times=-1)
    doctor.cloud.faults = [refused]

    (after,) = checks.repair(asked, found)

    assert after.key == "fuse"
    assert "the repair failed: no right" in after.why


def test_a_namespace_that_is_missing_is_made(doctor: Doctor) -> None:
    doctor.kube.objects.pop("/api/v1/namespaces/default")
    asked = doctor.checks()

    after = list(checks.repair(asked, list(checks.run(asked))))

    assert [(each.key, each.level) for each in after] == [("namespace", "PASS")]


def test_without_a_cluster_doctor_says_how_one_is_configured(tmp_path: Path) -> None:
    environ = {"KINETIC_HOME": str(tmp_path)}

    (finding,) = checks.run(ClusterChecks(settings.resolve(environ=environ), environ).checks())

    assert finding.level == "WARN"
    assert "kinetic up" in finding.next


def test_a_cluster_of_a_kubeconfig_is_checked_without_google(doctor: Doctor) -> None:
    environ = {"KINETIC_BACKEND": "gke", "KINETIC_KUBE_CONTEXT": "any", "KINETIC_STORE": "s3://b/jobs"}
    environ["KINETIC_HOME"] = doctor.environ["KINETIC_HOME"]
    asked = ClusterChecks(settings.resolve(environ=environ), environ, "l4").checks()

    found = {each.key: each.level for each in checks.run(asked)}

    assert found == dict.fromkeys(found, "PASS") | {"nodes": "WARN"}
    assert doctor.cloud.calls == []


def test_an_error_of_ours_becomes_a_finding_in_three_parts() -> None:
    def ask() -> str:
        raise OptionError("what", why="why", next="next")

    (finding,) = checks.run([Check("a", "group", ask)])

    assert finding[:6] == ("a", "group", "FAIL", "what", "why", "next")
    assert not checks.is_usable([finding])


def test_a_problem_keeps_its_level() -> None:
    def ask() -> str:
        raise Problem("WARN", "what")

    (finding,) = checks.run([Check("a", "group", ask)])

    assert finding.level == "WARN"
    assert checks.is_usable([finding])


def test_each_finding_is_json(doctor: Doctor) -> None:
    import json

    for each in doctor.run().values():
        page: dict[str, Any] = json.loads(json.dumps(each.to_json()))
        assert page["level"] == each.level


def test_a_cluster_that_does_not_answer_is_asked_once_and_named(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    doctor.kube.answers["/version"] = refusal(503)

    found = doctor.run()

    assert found["connection"].level == "FAIL"
    assert "does not respond" in found["connection"].what
    assert [each for each in doctor.kube.seen if each.startswith("GET /version")] == ["GET /version"]
    assert {each.level for each in found.values() if each.key in {"namespace", "bucket-binding", "jobset"}} == {"SKIP"}
    assert slept == []
