"""From a launch to what a cluster is asked: nothing secret in the open, and everything that the runner needs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib import metadata

import pytest

from kinetic._backends.kube import client, job_launcher
from kinetic._backends.protocol import Launch
from kinetic._config.cluster import ClusterSettings, PodRequirements
from kinetic._config.options import ResourceRequests
from kinetic._hardware import place
from kinetic._wire.order import Artifact, Child, DataRef, Order, Predecessor
from kinetic._wire.task import Task
from kinetic.errors import LaunchError

NOTHING = Artifact.within(b"")


def launch(accelerator: str = "cpu", *, settings: ClusterSettings | None = None, **of_order: object) -> Launch:
    order = Order("cpu-f-1", "f", NOTHING, NOTHING, environment=("TOKEN",), **of_order)
    required = PodRequirements("python:3.11-slim", needs=ResourceRequests(4.0), settings=settings or ClusterSettings())
    placement = place(accelerator, multi_host=True)
    return Launch(
        order,
        "ab" * 32,
        "gs://jobs/below",
        placement,
        b"k" * 32,
        "k1",
        captured={"TOKEN": "very secret"},
        requirements=required.to_json(),
        owner="ann",
    )


def asked(found: Launch, **environ: str):
    return job_launcher.request_of(found, "research", runner="r", secret="s", account="kinetic", environ=environ)


def page(found: Launch, kind: client.Kind = client.JOB, *, key_offset: int = 0) -> Task:
    manifest = job_launcher.manifest_of(
        asked(found), found, kind, key_offset=key_offset, runner_sha256="cd", umask=0o027
    )
    spec = manifest["spec"]
    if "replicatedJobs" in spec:
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    template = spec.get("template") or spec["leaderWorkerTemplate"]["workerTemplate"]
    return Task.from_page(template["spec"]["containers"][0]["command"][2].replace("$$(", "$("))


def test_what_no_command_line_can_carry_is_refused_before_anything_is_made() -> None:
    one = DataRef("prefix", "gs://bucket/set/", "gs://bucket/set/", "set", is_dir=True, mount="/data")
    rest = [replace(one, uri=f"gs://bucket/sets/{number}/", mount="") for number in range(1000)]

    with pytest.raises(LaunchError, match="1001 references"):
        page(launch(data=(one, *rest)))


def test_a_debug_job_stays_two_hours_after_its_end_whatever_the_settings_say() -> None:
    settings = ClusterSettings(ttl_seconds=60)

    kept = [asked(launch(settings=settings, debug=wait)).ttl_seconds for wait in (None, 600.0, 0.0)]

    assert kept == [60, 7200, 7200]


def test_captured_values_are_nowhere_in_what_is_asked() -> None:
    found = launch()
    manifest = job_launcher.manifest_of(
        asked(found, TOKEN="very secret"), found, client.JOB, key_offset=0, runner_sha256="", umask=0
    )

    assert "very secret" not in str(manifest)
    assert "k" * 32 not in str(manifest)


def test_a_pod_is_told_where_the_store_is_and_not_who_this_client_is() -> None:
    told = {"STORAGE_EMULATOR_HOST": "http://x", "AWS_REGION": "eu", "AWS_REQUEST_PAYER": "true"}
    request = asked(launch(), **told, AWS_SECRET_ACCESS_KEY="no", HOME="/me")

    assert told.items() <= request.environment.items()
    assert not {"AWS_SECRET_ACCESS_KEY", "HOME", "TOKEN"} & set(request.environment)


def test_a_pod_with_its_store_in_azure_asks_for_the_identity_of_its_service_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = replace(launch(settings=ClusterSettings(labels={"team": "vision"})), store_url="az://jobs@account/below")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://x")

    request = asked(found, AZURE_STORAGE_ENDPOINT="http://x", AZURE_STORAGE_KEY="no", AZURE_STORAGE_ACCOUNT="other")

    assert request.environment["AZURE_STORAGE_ACCOUNT"] == "account"
    assert request.environment["AZURE_STORAGE_ENDPOINT"] == "http://x"
    assert "AZURE_STORAGE_KEY" not in request.environment
    assert request.service_account == asked(launch()).service_account
    assert request.labels()["azure.workload.identity/use"] == "true"
    assert request.labels()["team"] == "vision"
    assert "azure.workload.identity/use" not in asked(launch()).labels()


@pytest.mark.parametrize("named", ["AccountName=other;", ""])
def test_a_pod_is_not_told_where_another_account_is_than_that_of_its_store(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    signature = "BlobEndpoint=https://other.blob.core.windows.net/;SharedAccessSignature=sv=1"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", named + signature)

    request = asked(replace(launch(), store_url="az://jobs@account"), AZURE_STORAGE_ENDPOINT="https://other.example")

    assert "AZURE_STORAGE_ENDPOINT" not in request.environment


def test_the_runner_is_told_everything_about_its_job() -> None:
    told = page(launch(deadline=60.0, output_dir="gs://jobs/out"), key_offset=64)

    assert (told.job_id, told.store_url, told.key_id) == ("cpu-f-1", "gs://jobs/below", "k1")
    assert (told.pod.key_offset, told.umask, told.pod.runner_sha256, told.deadline) == (64, 0o027, "cd", 60.0)
    assert told.pod.checkpoint_dir == "gs://jobs/out/checkpoints"


def test_the_server_ends_a_pod_that_outlives_its_deadline_by_far_and_no_other() -> None:
    assert asked(launch(deadline=60.0)).deadline_seconds == 60 + 1800
    assert asked(launch()).deadline_seconds is None


def test_settings_of_the_cluster_reach_the_request() -> None:
    settings = ClusterSettings(
        queue="gold", priority_class="high", pull_secrets=("p",), ttl_seconds=60, most_attempts=4
    )
    request = asked(launch(settings=settings))

    assert request.settings == settings
    assert (request.ttl_seconds, request.requirements.needs) == (60, ResourceRequests(4.0))
    assert request.service_account == "kinetic"
    assert page(launch(settings=settings)).pod.most_attempts == 4


def test_a_named_secret_opens_the_store_by_a_key_file_or_by_variables() -> None:
    found = launch(settings=ClusterSettings(store_secret="bucket-key"))
    container = job_launcher.manifest_of(asked(found), found, client.JOB, key_offset=0, runner_sha256="", umask=0)
    container = container["spec"]["template"]["spec"]["containers"][0]

    assert "envFrom" not in container  # a key file is no variable
    assert {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/kinetic/store/credentials.json"} in container["env"]
    assert {"name": "store", "mountPath": "/kinetic/store", "readOnly": True} in container["volumeMounts"]


def test_a_store_of_amazon_gets_variables_only() -> None:
    found = replace(launch(settings=ClusterSettings(store_secret="keys")), store_url="s3://jobs/below")

    container = job_launcher.manifest_of(asked(found), found, client.JOB, key_offset=0, runner_sha256="", umask=0)
    container = container["spec"]["template"]["spec"]["containers"][0]

    assert "GOOGLE_APPLICATION_CREDENTIALS" not in asked(found).environment
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert page(found).pod.store_requirement.startswith("obstore==")


def test_a_pod_gets_what_opens_a_bucket_in_the_version_of_the_client_and_nothing_for_a_folder() -> None:
    assert page(launch()).pod.store_requirement == f"obstore=={metadata.version('obstore')}"
    assert page(replace(launch(), store_url="file:///shared/store")).pod.store_requirement == ""


@pytest.mark.parametrize(
    "of_order",
    [
        {"output_dir": "az://runs@account/a"},
        {"data": (DataRef("prefix", "az://sets@account/set/", "az://sets@account/set/", "set", is_dir=True),)},
    ],
)
def test_a_pod_whose_store_is_a_folder_opens_the_buckets_of_its_outputs_and_data(of_order: dict[str, object]) -> None:
    found = replace(launch(**of_order), store_url="file:///shared/store")

    assert page(found).pod.store_requirement.startswith("obstore==")
    assert asked(found).labels()["azure.workload.identity/use"] == "true"


def test_a_pod_is_told_the_region_of_data_in_amazon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")  # instead of a profile of the aws command
    ref = DataRef("prefix", "s3://sets/set/", "s3://sets/set/", "set", is_dir=True)

    assert asked(launch(data=(ref,))).environment["AWS_REGION"] == "eu-north-1"
    assert "AWS_REGION" not in asked(launch()).environment


def test_a_task_that_follows_too_many_jobs_for_a_command_line_is_refused_with_what_to_do() -> None:
    after = tuple(Predecessor(f"cpu-train-20261123-103059-{number:07}", "train") for number in range(900))

    with pytest.raises(LaunchError, match="too long") as raised:
        page(launch(after=after))

    assert "with 900 jobs that it follows" in str(raised.value.why)
    assert raised.value.next == "follow one job that waits for the others, or a batch"


def test_data_that_shall_be_shown_is_mounted_under_its_number() -> None:
    copied = DataRef("prefix", "gs://set/a/", "gs://set/a/", "a", is_dir=True)
    shown = DataRef("prefix", "gs://set/b/", "gs://set/b/", "b", is_dir=True, fuse=True)

    (volume,) = asked(launch(data=(copied, shown))).buckets

    assert volume.path == "/kinetic/buckets/1"
    assert volume[1:] == ("set", "implicit-dirs,only-dir=b")


@pytest.mark.parametrize(
    ("kind", "holds"), [(client.JOB_SET, False), (client.JOB, False), (client.LEADER_WORKER_SET, True)]
)
def test_only_where_whatever_ends_is_started_again_the_runner_stays(kind: client.Kind, holds: bool) -> None:
    told = page(launch("tpu-v5litepod-2x4"), kind)

    assert (told.hosts, told.pod.holds, told.coordinator) == (2, holds, "detect")
    assert bool(told.pod.removes) is holds


def test_hosts_without_chips_meet_at_the_first_of_them() -> None:
    found = launch()
    found = replace(found, placement=found.placement._replace(hosts=4))

    assert page(found, client.JOB_SET).coordinator == "kinetic-cpu-f-1-s-0-0.kinetic-cpu-f-1:8482"
    assert page(found, client.JOB).coordinator == "kinetic-cpu-f-1-0.kinetic-cpu-f-1:8482"


def test_a_child_of_a_batch_reads_the_order_that_its_batch_shares() -> None:
    order = Order("grp-1", "f", NOTHING, NOTHING, group="grp-00000001")
    child = Child("cpu-f-2", 3, 1, NOTHING)
    found = replace(launch(), order=order.of_child(child), child=child, group="grp-00000001")

    told = page(found)

    assert told.order_key == order.key
    assert told.mark == found.order.mark
    assert told.child is not None
    assert Child(**{**told.child, "arguments": NOTHING, "data": ()}) == child


def test_a_gpu_job_in_pythons_own_image_finds_the_driver() -> None:
    ours, theirs = launch("gpu-l4"), launch("gpu-l4")
    theirs = replace(theirs, requirements={**theirs.requirements, "image": "nvidia/cuda:12"})

    assert "/usr/local/nvidia/lib64" in asked(ours).environment["LD_LIBRARY_PATH"]
    assert "LD_LIBRARY_PATH" not in asked(theirs).environment


def test_of_several_parts_of_a_gpu_one_must_come_up_since_cuda_shows_no_more() -> None:
    parts = ClusterSettings(gpu_resource="nvidia.com/mig-1g.10gb")

    assert page(launch("gpu-a100x2")).chips == 2
    assert page(launch("gpu-a100x2", settings=parts)).chips == 1


def test_requirements_survive_being_kept_for_another_client() -> None:
    settings = ClusterSettings(pull_secrets=("p",), node_selector={"a": "b"})
    required = PodRequirements("python:3.11-slim", needs=ResourceRequests(4.0), settings=settings)

    assert PodRequirements.from_json(json.loads(json.dumps(required.to_json()))) == required


@pytest.mark.parametrize(
    ("security", "image", "lock", "expected"),
    [
        ("", "python:3.11-slim", "", (None, False, None)),
        ("baseline", "python:3.11-slim", "", (None, False, None)),
        ("restricted", "python:3.11-slim", "", ((65_532, 65_532), True, "/tmp")),
        ("restricted", "registry.example/jobs@sha256:ab", "locks/ab", ((65_532, 65_532), True, "/tmp")),
        ("restricted", "registry.example/train:1", "", (None, True, None)),
    ],
)
def test_who_a_job_is_depends_on_what_its_namespace_enforces(
    security: str, image: str, lock: str, expected: object
) -> None:
    found = replace(launch(), requirements=PodRequirements(image, lock=lock).to_json())

    request = job_launcher.request_of(
        found, "research", runner="r", secret="s", account="", environ={}, security=security
    )

    assert (request.run_as, request.non_root, request.environment.get("HOME")) == expected


@pytest.mark.parametrize(
    ("store", "user", "security", "expected"),
    [
        ("file:///shared/kinetic", 1234, "", ((1234, 100), "/tmp")),
        ("file:///shared/kinetic", 1234, "restricted", ((1234, 100), "/tmp")),
        ("file:///shared/kinetic", 1234, "openshift", (None, "/tmp")),
        ("file:///shared/kinetic", 0, "", (None, None)),
        ("gs://jobs/below", 1234, "", (None, None)),
    ],
)
def test_with_a_store_in_a_shared_folder_whose_files_are_for_their_owner_a_job_is_the_user_of_the_client(
    monkeypatch: pytest.MonkeyPatch, store: str, user: int, security: str, expected: object
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(os, "getgid", lambda: 100)

    request = job_launcher.request_of(
        replace(launch(), store_url=store),
        "research",
        runner="r",
        secret="s",
        account="",
        environ={},
        security=security,
    )

    assert (request.run_as, request.environment.get("HOME")) == expected
