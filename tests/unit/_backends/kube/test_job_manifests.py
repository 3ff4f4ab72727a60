"""What a job becomes in a cluster: fields that decide whether work is lost, repeated, or paid for without end."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import lightkube.models.batch_v1 as batch
import lightkube.models.core_v1 as core
import msgspec
import pytest

from kinetic._backends.kube import job_manifests
from kinetic._backends.kube.client import JOB, JOB_SET, LEADER_WORKER_SET, Kind
from kinetic._backends.kube.job_manifests import BucketVolume
from kinetic._config.cluster import VolumeClaim
from kinetic._config.options import ResourceRequests
from kinetic._wire import task
from kinetic._wire.order import DataRef
from kinetic.errors import LaunchError, OptionError

GIB = 1024**3
BUCKETS = (
    BucketVolume("/data/set", "my-bucket", "implicit-dirs,only-dir=a\\,b"),
    BucketVolume("/data/all", "other", "implicit-dirs"),
)
FULL = {
    "group": "grp-0a1b2c3d",
    "environment": {"A": "1", "B": "costs $(rm -rf)"},
    "needs": ResourceRequests(4, 16 * GIB, 100 * GIB, 8 * GIB),
    "deadline_seconds": 3600,
    "service_account": "kinetic",
    "needs_token": True,
    "queue": "team-a",
    "priority_class": "high",
    "buckets": BUCKETS,
    "pull_secrets": ("registry",),
    "tolerations": ({"key": "gpu", "operator": "Exists"},),
    "labels": {"team": "vision", "app": "theirs"},
    "annotations": {"example.com/a": "b"},
    "runtime_class": "nvidia",
    "scheduler": "volcano",
    "gpu_resource": "nvidia.com/mig-1g.10gb",
    "config_maps": ("proxy",),
    "volume_claims": (VolumeClaim("/datasets", "sets", "imagenet", read_only=True), VolumeClaim("/scratch", "scratch")),
    "run_as": (1000, 100),
}
MAKERS = [job_manifests.job_set, job_manifests.indexed_job, job_manifests.leader_worker_set]


def container(pod: dict) -> dict:
    return pod["containers"][0]


def template_of(manifest: dict) -> dict:
    spec = manifest["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec.get("template") or spec["leaderWorkerTemplate"]["workerTemplate"]


def pod_of(manifest: dict) -> dict:
    return template_of(manifest)["spec"]


def known_part(value: object) -> object:
    """Leave out what a typed model fills in with nothing."""
    if isinstance(value, dict):
        return {key: known_part(each) for key, each in value.items() if each is not None}
    return [known_part(each) for each in value] if isinstance(value, list) else value


def as_kubernetes_types_it(manifest: dict, model: type) -> object:
    """Read a manifest with generated types of the whole API, and write it again: what they do not know is gone."""
    return known_part(msgspec.to_builtins(msgspec.convert(manifest, model)))


@pytest.mark.parametrize("accelerator", ["cpu", "gpu-l4x4", "tpu-v5litepod-2x4"])
@pytest.mark.parametrize("more", [{}, FULL], ids=["plain", "full"])
def test_kubernetes_knows_every_field(ask, accelerator: str, more: dict) -> None:
    request = ask(accelerator, **more)
    slice_ = ask("tpu-v6e-4x4", **more)

    for manifest, model in [
        (job_manifests.job(request), batch.Job),
        (job_manifests.indexed_job(slice_), batch.Job),
        (job_manifests.service(slice_, "uid-1"), core.Service),
        (job_manifests.runner_config_map("research", "1.0", "ab" * 32, {"runner.zip": b"PK"}), core.ConfigMap),
        (job_manifests.job_set(slice_)["spec"]["replicatedJobs"][0]["template"], batch.JobTemplateSpec),
        (
            job_manifests.leader_worker_set(slice_)["spec"]["leaderWorkerTemplate"]["workerTemplate"],
            core.PodTemplateSpec,
        ),
    ]:
        assert as_kubernetes_types_it(manifest, model) == manifest


# ------------------------------------------------------------------------------------------------------------ one host


def test_a_job_is_made_suspended_and_goes_a_day_after_its_end(ask) -> None:
    spec = job_manifests.job(ask())["spec"]

    assert spec["suspend"] is True
    assert spec["ttlSecondsAfterFinished"] == 86_400
    assert "activeDeadlineSeconds" not in spec


def test_a_preemption_is_never_counted_and_comes_before_its_exit_code(ask) -> None:
    spec = job_manifests.job(ask())["spec"]

    first, second = spec["podFailurePolicy"]["rules"]
    assert first == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert second["action"] == "FailJob"
    assert second["onExitCodes"] == {
        "containerName": "kinetic-worker",
        "operator": "NotIn",
        "values": [task.INFRASTRUCTURE_EXIT, task.LOST_EXIT],
    }
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (3, "Failed")


@pytest.mark.parametrize("make", [job_manifests.job, *MAKERS])
def test_labels_annotations_taints_and_the_runtime_of_the_settings_are_in_all_that_makes_pods(ask, make: Any) -> None:
    manifest = make(ask("cpu" if make is job_manifests.job else "tpu-v6e-4x4", **FULL))

    for about in (manifest["metadata"], template_of(manifest)["metadata"]):
        assert about["labels"]["team"] == "vision"
        assert about["labels"]["app"] in {"kinetic", "kinetic-pathways"}
    assert template_of(manifest)["metadata"]["annotations"]["example.com/a"] == "b"
    assert {"key": "gpu", "operator": "Exists"} in pod_of(manifest)["tolerations"]
    assert pod_of(manifest)["runtimeClassName"] == "nvidia"
    assert pod_of(manifest)["schedulerName"] == "volcano"


@pytest.mark.parametrize("make", [job_manifests.job, *MAKERS])
def test_each_claim_is_a_volume_of_every_pod_whose_owner_is_changed_at_most_once(ask, make: Any) -> None:
    pod = pod_of(make(ask("cpu" if make is job_manifests.job else "tpu-v6e-4x4", **FULL)))

    claims = [volume["persistentVolumeClaim"] for volume in pod["volumes"] if volume["name"].startswith("claim-")]
    assert claims == [{"claimName": "sets", "readOnly": True}, {"claimName": "scratch", "readOnly": False}]
    assert [mount for mount in container(pod)["volumeMounts"] if mount["name"].startswith("claim-")] == [
        {"name": "claim-0", "mountPath": "/datasets", "readOnly": True, "subPath": "imagenet"},
        {"name": "claim-1", "mountPath": "/scratch", "readOnly": False},
    ]
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_two_folders_of_one_claim_are_one_volume_for_whose_second_one_a_kubelet_would_wait(ask) -> None:
    claims = (VolumeClaim("/in", "team", "sets", read_only=True), VolumeClaim("/a", "a"), VolumeClaim("/out", "team"))

    pod = pod_of(job_manifests.job(ask(volume_claims=claims)))

    found = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert [volume["persistentVolumeClaim"] for volume in found] == [
        {"claimName": "team", "readOnly": False},
        {"claimName": "a", "readOnly": False},
    ]
    mounted = {mount["mountPath"]: mount for mount in container(pod)["volumeMounts"]}
    assert mounted["/in"] == {"name": "claim-0", "mountPath": "/in", "readOnly": True, "subPath": "sets"}
    assert (mounted["/a"]["name"], mounted["/out"]["name"]) == ("claim-1", "claim-0")


@pytest.mark.parametrize(
    ("accelerator", "called"), [("gpu-l4x2", "nvidia.com/mig-1g.10gb"), ("tpu-v5e-1", "google.com/tpu")]
)
def test_a_cluster_may_have_a_name_of_its_own_for_gpus(ask, accelerator: str, called: str) -> None:
    limits = job_manifests.resources(ask(accelerator, gpu_resource="nvidia.com/mig-1g.10gb"))["limits"]

    assert list(limits) == [called]


def test_where_the_cluster_gives_users_a_pod_names_neither_a_user_nor_a_group(ask) -> None:
    pod = pod_of(job_manifests.job(ask(has_own_users=True, run_as=None)))

    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert "runAsNonRoot" not in container(pod)["securityContext"]


def test_no_container_is_started_again_on_the_same_machine(ask) -> None:
    assert pod_of(job_manifests.job(ask()))["restartPolicy"] == "Never"


def test_whoever_asks_for_resources_gets_them_and_no_more(ask) -> None:
    found = job_manifests.resources(ask(needs=ResourceRequests(0.5, 16 * GIB, 100_000_000_001)))

    asked = {"cpu": "500m", "memory": "16Gi", "ephemeral-storage": "100000000001"}
    assert found == {"requests": asked, "limits": asked}


@pytest.mark.parametrize(("accelerator", "disk"), [("cpu", "12Gi"), ("gpu-l4", "10Gi")])
def test_a_cluster_may_have_another_disk_for_jobs_without_an_accelerator(ask, accelerator: str, disk: str) -> None:
    found = job_manifests.resources(ask(accelerator, cpu_disk=12 * GIB))

    assert found["requests"]["ephemeral-storage"] == disk
    assert "ephemeral-storage" not in found.get("limits", {})


def test_memory_that_nobody_asked_for_has_no_limit_and_holds_the_shared_memory(ask) -> None:
    found = job_manifests.resources(ask(needs=ResourceRequests(shm_bytes=32 * GIB)))

    assert found["requests"]["memory"] == "32Gi"
    assert "limits" not in found


def test_shared_memory_is_memory_and_as_large_as_asked(ask) -> None:
    pod = pod_of(job_manifests.job(ask(needs=ResourceRequests(shm_bytes=8 * GIB))))

    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in pod["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container(pod)["volumeMounts"]


def test_secrets_are_files_that_only_their_owner_reads(ask) -> None:
    pod = pod_of(job_manifests.job(ask()))

    secret = next(each for each in pod["volumes"] if each["name"] == "secret")
    assert secret["secret"] == {"secretName": "kinetic-secret", "defaultMode": 0o400}
    mounts = {each["name"]: each["mountPath"] for each in container(pod)["volumeMounts"]}
    assert mounts["secret"] == task.SECRET_FOLDER
    assert mounts["runner"] == "/kinetic/runner.zip"


def test_a_pod_gets_no_token_of_the_cluster_unless_its_store_needs_one(ask) -> None:
    assert pod_of(job_manifests.job(ask()))["automountServiceAccountToken"] is False
    assert pod_of(job_manifests.job(ask(needs_token=True)))["automountServiceAccountToken"] is True


def test_nothing_in_a_value_is_replaced_by_kubernetes(ask) -> None:
    pod = pod_of(job_manifests.job(ask(environment={"A": "$(HOME) and $$HOME"}, command=("sh", "-c", "echo $(date)"))))

    assert {"name": "A", "value": "$$(HOME) and $$$$HOME"} in container(pod)["env"]
    assert container(pod)["command"][2] == "echo $$(date)"


def test_a_run_deadline_counts_from_the_pods_start_and_not_from_the_jobs(ask) -> None:
    manifest = job_manifests.job(ask(deadline_seconds=60))

    assert pod_of(manifest)["activeDeadlineSeconds"] == 60
    assert "activeDeadlineSeconds" not in manifest["spec"]


def test_buckets_are_mounted_read_only_and_the_sidecar_is_asked_for(ask) -> None:
    manifest = job_manifests.job(ask(buckets=BUCKETS))
    pod = pod_of(manifest)

    assert manifest["spec"]["template"]["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    assert pod["volumes"][-2]["csi"] == {
        "driver": "gcsfuse.csi.storage.gke.io",
        "readOnly": True,
        "volumeAttributes": {"bucketName": "my-bucket", "mountOptions": "implicit-dirs,only-dir=a\\,b"},
    }
    assert {"name": "bucket-1", "mountPath": "/data/all", "readOnly": True} in container(pod)["volumeMounts"]


def asked_of_autoscalers(manifest: dict) -> dict[str, str]:
    found = template_of(manifest)["metadata"]["annotations"]
    return {name: value for name, value in found.items() if "autoscaler" in name or "karpenter" in name}


@pytest.mark.parametrize("accelerator", ["cpu", "gpu-l4", "tpu-v6e-1x1"])
def test_an_autoscaler_empties_no_machine_under_a_job(ask, accelerator: str) -> None:
    assert asked_of_autoscalers(job_manifests.job(ask(accelerator))) == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }


def test_autopilot_can_make_machines_for_what_it_cannot_keep_in_place(ask) -> None:
    its_class = {"cloud.google.com/compute-class": "team"}

    for manifest in (
        job_manifests.job(ask("gpu-l4", spot=True)),
        job_manifests.job(ask(node_selector=its_class)),
        *(make(ask("tpu-v6e-4x4")) for make in MAKERS),
    ):
        assert asked_of_autoscalers(manifest) == {"karpenter.sh/do-not-disrupt": "true"}


def test_only_jobs_of_a_queue_tolerate_the_nodes_that_google_makes_for_one_job_of_it(ask) -> None:
    def tolerated(**more: str) -> list[str]:
        return [each["key"] for each in job_manifests.pod_template(ask("l4", **more))["spec"]["tolerations"]]

    assert tolerated(queue="dws") == ["nvidia.com/gpu", "cloud.google.com/gke-queued"]
    assert tolerated() == ["nvidia.com/gpu"]


def test_a_queue_stands_on_the_job_and_not_on_its_pods(ask) -> None:
    manifest = job_manifests.job(ask(queue="team-a"))

    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "kueue.x-k8s.io/queue-name" not in manifest["spec"]["template"]["metadata"]["labels"]


def test_an_image_that_does_not_run_as_root_can_read_its_secret(ask) -> None:
    found = pod_of(job_manifests.job(ask(run_as=(1000, 100))))["securityContext"]

    assert found["fsGroup"] == 65_532
    assert (found["runAsUser"], found["runAsGroup"], found["runAsNonRoot"]) == (1000, 100, True)


def test_every_pod_meets_the_level_restricted_but_for_its_user(ask) -> None:
    for manifest in (job_manifests.job(ask()), *(make(ask("tpu-v6e-4x4")) for make in MAKERS)):
        pod = pod_of(manifest)

        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_where_nobody_may_be_root_the_machine_looks_at_the_images_user(ask) -> None:
    pod = pod_of(job_manifests.job(ask(non_root=True)))

    assert container(pod)["securityContext"]["runAsNonRoot"] is True
    assert "runAsUser" not in pod["securityContext"]


# ----------------------------------------------------------------------------------------------------------- many hosts


def test_a_slice_never_replaces_one_host_alone(ask) -> None:
    request = ask("tpu-v6e-4x4")

    for job in (
        job_manifests.indexed_job(request)["spec"],
        job_manifests.job_set(request)["spec"]["replicatedJobs"][0]["template"]["spec"],
    ):
        assert job["backoffLimit"] == 0
        assert [rule["action"] for rule in job["podFailurePolicy"]["rules"]] == ["Count", "FailJob", "Count", "FailJob"]


def test_a_set_starts_again_after_a_disruption_without_counting_and_fails_after_a_verdict(ask) -> None:
    policy = job_manifests.job_set(ask("tpu-v6e-4x4"))["spec"]["failurePolicy"]

    answers = {reason: rule["action"] for rule in policy["rules"] for reason in rule["onJobFailureReasons"]}
    assert answers == {
        "PodFailurePolicy": "FailJobSet",
        "DeadlineExceeded": "FailJobSet",
        "BackoffLimitExceeded": "RestartJobSetAndIgnoreMaxRestarts",
    }
    assert policy["restartStrategy"] == "BlockingRecreate"


def test_a_warm_slice_starts_again_five_times_only(ask) -> None:
    request = ask("tpu-v6e-4x4", is_warm_pod=True)

    policy = job_manifests.job_set(request)["spec"]["failurePolicy"]

    assert policy["maxRestarts"] == 5
    assert [rule["action"] for rule in policy["rules"]] == ["FailJobSet", "RestartJobSet"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("accelerator", ["tpu-v6e-4x4", "tpu-v5p-4x4x4"])
def test_what_gke_tells_tpu_hosts_is_left_to_gke(ask, make, accelerator: str) -> None:
    written = json.dumps(make(ask(accelerator)))

    assert not re.search(r"TPU_WORKER|MEGASCALE|TPU_NAME|JAX_COORDINATOR|TPU_PROCESS", written)


@pytest.mark.parametrize("make", MAKERS)
def test_a_slice_is_found_by_a_label_of_its_own(ask, make) -> None:
    manifest = make(ask("tpu-v6e-4x4"))

    assert manifest["metadata"]["labels"]["app"] == "kinetic-pathways"


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (job_manifests.job_set, "alpha.jobset.sigs.k8s.io/exclusive-topology"),
        (job_manifests.leader_worker_set, "leaderworkerset.sigs.k8s.io/exclusive-topology"),
    ],
)
def test_the_hosts_of_a_slice_share_one_node_pool(ask, make, key: str) -> None:
    assert make(ask("tpu-v6e-4x4"))["metadata"]["annotations"][key] == "cloud.google.com/gke-nodepool"


def test_the_hosts_of_an_indexed_job_share_one_node_pool(ask) -> None:
    affinity = pod_of(job_manifests.indexed_job(ask("tpu-v6e-4x4")))["affinity"]["podAffinity"]

    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "cloud.google.com/gke-nodepool"


def test_hosts_find_each_other_by_names_that_the_service_serves(ask) -> None:
    request = ask("tpu-v6e-4x4")
    job, service = job_manifests.indexed_job(request), job_manifests.service(request, "uid-1")

    assert pod_of(job)["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"]
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


@pytest.mark.parametrize("kind", [JOB_SET, JOB])
def test_hosts_that_start_together_are_one_group_of_volcano_in_the_queue_of_the_settings(ask, kind: Kind) -> None:
    queue = {"scheduling.volcano.sh/queue-name": "team-a"}
    request = replace(ask("gpu-l4x2x2", annotations=queue, priority_class="high"), starts_together=True)
    made = job_manifests.manifest(request, kind)
    made["metadata"]["uid"] = "uid-1"

    group = job_manifests.pod_group(request, made)

    assert group["spec"] == {"minMember": 2, "queue": "team-a", "priorityClassName": "high"}
    assert [each["uid"] for each in group["metadata"]["ownerReferences"]] == ["uid-1"]
    annotations = job_manifests.pods_of(made)["metadata"]["annotations"]
    assert annotations["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
    assert annotations.items() >= queue.items()


@pytest.mark.parametrize(
    ("kind", "first"),
    [(JOB_SET, "{0}-s-0-0.{0}:8482"), (JOB, "{0}-0.{0}:8482"), (LEADER_WORKER_SET, "{0}-0.{0}:8482")],
)
def test_hosts_without_tpus_are_told_where_the_first_one_listens(ask, kind: Kind, first: str) -> None:
    many = ask("cpu", placement=ask("cpu").placement._replace(hosts=4))

    name = job_manifests.manifest(many, kind)["metadata"]["name"]

    assert job_manifests.coordinator(many, kind) == first.format(name)
    assert job_manifests.resource_name(kind, many.job_id, 4) == name


def test_hosts_with_tpus_find_it_by_themselves_and_one_host_needs_none(ask) -> None:
    assert job_manifests.coordinator(ask("tpu-v6e-4x4"), JOB_SET) == task.DETECT
    assert job_manifests.coordinator(ask("tpu-v6e-2x4"), JOB) == ""


def test_a_runner_learns_how_often_the_set_was_started_again(ask) -> None:
    env = container(pod_of(job_manifests.job_set(ask("tpu-v6e-4x4"))))["env"]

    (found,) = [each for each in env if each["name"] == task.RESTART_VARIABLE]
    assert found["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"


def test_the_pods_of_a_leader_worker_set_have_what_a_stateful_set_takes(ask) -> None:
    manifest = job_manifests.leader_worker_set(ask("tpu-v6e-4x4", deadline_seconds=60))
    pod = pod_of(manifest)

    assert pod["restartPolicy"] == "Always"
    assert "activeDeadlineSeconds" not in pod
    assert manifest["spec"]["leaderWorkerTemplate"]["size"] == 4


# ------------------------------------------------------------------------------------------------- Secret and ConfigMap


def test_a_secret_goes_with_the_job_that_owns_it(ask) -> None:
    request = ask()
    made = {**job_manifests.job(request), "metadata": {"name": "kinetic-x", "uid": "uid-1"}}

    manifest = job_manifests.secret(request, {"job-key": b"\x00\xff"}, made)

    assert manifest["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "kinetic-x", "uid": "uid-1", "controller": False}
    ]
    assert base64.b64decode(manifest["data"]["job-key"]) == b"\x00\xff"
    assert as_kubernetes_types_it(manifest, core.Secret) == manifest


def test_a_secret_that_is_made_again_has_the_labels_that_it_had(ask) -> None:
    request = ask(labels={"team": "vision"}, queue="team-a", warm="warm-1")
    made = job_manifests.job(request)
    made["metadata"]["uid"] = "uid-1"

    again = job_manifests.secret_again(made, request.job_id, {"job-key": b"k"})

    assert again["metadata"]["labels"] == job_manifests.secret(request, {}, made)["metadata"]["labels"]


def test_the_secret_of_a_batch_is_found_by_its_group() -> None:
    entries, labels = {"environment.json": b"{}"}, {"team": "vision", job_manifests.GROUP_LABEL: "another"}
    manifest = job_manifests.group_secret("grp-0a1b2c3d", "research", "ann", entries, labels)

    assert manifest["metadata"]["labels"][job_manifests.GROUP_LABEL] == "grp-0a1b2c3d"
    assert manifest["metadata"]["labels"]["team"] == "vision"
    assert "ownerReferences" not in manifest["metadata"]


def test_the_runner_is_never_changed_in_place() -> None:
    manifest = job_manifests.runner_config_map("research", "1.0", "ab" * 32, {"runner.zip": b"PK"})

    assert manifest["immutable"] is True
    assert base64.b64decode(manifest["binaryData"]["runner.zip"]) == b"PK"


def test_what_is_too_large_for_a_cluster_is_refused_before_it_is_sent() -> None:
    with pytest.raises(LaunchError, match="too large"):
        job_manifests.runner_config_map("research", "1.0", "ab" * 32, {"runner.zip": bytes(1_048_577)})


def shown(kind: str, uri: str) -> DataRef:
    return DataRef(kind=kind, uri=uri, path=uri, name="x", is_dir=kind == "prefix", fuse=True)


@pytest.mark.parametrize(
    ("kind", "uri", "options"),
    [
        ("prefix", "gs://b/", "implicit-dirs"),
        ("prefix", "gs://b/a/c/", "implicit-dirs,only-dir=a/c"),
        ("prefix", "gs://b/a,c/", r"implicit-dirs,only-dir=a\,c"),
        ("object", "gs://b/dir/f.h5", "implicit-dirs,only-dir=dir"),
        ("object", "gs://b/f.h5", "implicit-dirs"),
    ],
)
def test_a_mount_shows_the_folder(kind: str, uri: str, options: str) -> None:
    assert job_manifests.bucket_volume("/data", shown(kind, uri)) == BucketVolume("/data", "b", options)


@pytest.mark.parametrize(
    ("kind", "uri"), [("prefix", "s3://b/a/"), ("shipped", "gs://b"), ("view", "/a"), ("hf", "hf://a")]
)
def test_what_lies_elsewhere_cannot_be_mounted(kind: str, uri: str) -> None:
    with pytest.raises(OptionError, match="only data in a gs:// bucket can be mounted"):
        job_manifests.bucket_volume("/data", shown(kind, uri))
