"""Pods whose store is out of reach, refuses them, or answers late."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest
from servers.faults import Fault
from servers.moto_s3 import MotoServer
from waiting import until

from kinetic._stores import open_store
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT

from .conftest import NO_OBSTORE, WAITS, Bucket, Pods, ends_of, wait_for_line


def test_a_store_out_of_reach_is_told_and_the_next_pod_may_try(pods: Pods) -> None:
    pods.tell(store_url="gs://jobs/here")
    nobody = str(pods.folder / "nobody")

    code, out = pods.run(HOME=nobody, GCE_METADATA_IP="127.0.0.1:9", GCE_METADATA_HOST="127.0.0.1:9")

    assert code == INFRASTRUCTURE_EXIT
    assert "gs://jobs rejected our credentials" in out


def test_an_image_that_cannot_open_its_store_gets_what_can(
    tmp_path: Path, zipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MotoServer()
    server.bucket("jobs")
    words = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": server.url}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "obstore.py").write_text(NO_OBSTORE)
    certificates = {name: os.environ[name] for name in ("SSL_CERT_FILE",) if name in os.environ}
    pods = Pods(tmp_path, zipped, open_store("s3://jobs/here"), {**words, **certificates, "PYTHONPATH": str(hidden)})
    try:
        pods.tell(store_requirement=f"obstore=={metadata.version('obstore')}")
        pods.order("def add(a, b):\n    print('adding')\n    return a + b", 1, 2)

        code, out = pods.run()

        assert code == 0, out
        assert "this image cannot open the job's store: installing obstore" in out
        assert pods.value() == 3
    finally:
        pods.end()
        server.close()


def test_what_opens_a_store_and_cannot_be_installed_is_told_and_the_next_pod_may_try(pods: Pods) -> None:
    pods.tell(store_requirement="no-such-package-of-kinetic==1")

    code, out = pods.run()

    assert code == INFRASTRUCTURE_EXIT
    assert "could not be installed into this pod" in out


def test_a_slice_waits_for_its_store_and_gives_up_rather_than_start_again_without_end(slices: Pods) -> None:
    slices.tell(store_url="gs://jobs/here", patience_seconds=0.5)

    code, out = slices.run(STORAGE_EMULATOR_HOST="http://127.0.0.1:9", JOB_COMPLETION_INDEX="0")

    assert code == FAILED_EXIT
    assert "so the slice gives up" in out


def test_a_slice_whose_store_rejects_its_account_gives_up_rather_than_start_again_without_end(
    cloud_pods: Pods, bucket: Bucket
) -> None:
    cloud_pods.tell(hosts=3, patience_seconds=0.5)
    bucket.proxy.faults.append(Fault("status", times=1e9, status=403))

    code, out = cloud_pods.run(JOB_COMPLETION_INDEX="0", JOBSET_RESTART_ATTEMPT="0", KUBERNETES_SERVICE_HOST="10.0.0.1")

    assert code == FAILED_EXIT, out
    assert "so the slice gives up" in out
    assert "next:  give the pod's service account the role Storage Object User" in out


def test_a_slice_whose_host_cannot_begin_is_started_again_ten_times(slices: Pods) -> None:
    slices.argument = "@/no/such/file"  # as on a full disk, what fails leaves no note in the store

    codes = [slices.run(JOB_COMPLETION_INDEX="0", JOBSET_RESTART_ATTEMPT=number)[0] for number in ("0", "9", "10")]

    assert codes == [INFRASTRUCTURE_EXIT, INFRASTRUCTURE_EXIT, FAILED_EXIT]


@pytest.mark.parametrize(("hosts", "leader_is_late"), [(1, False), (2, False), (2, True)])
def test_a_job_that_cannot_fetch_what_it_needs_fails_with_the_fourth_attempt_and_says_why(
    cloud_pods: Pods, bucket: Bucket, hosts: int, leader_is_late: bool
) -> None:
    cloud_pods.tell(hosts=hosts, poll_seconds=0.1)
    cloud_pods.order("def add(a, b):\n    return a + b", 1, 2)
    bucket.proxy.faults.append(Fault("status", target="order", times=1e9, status=403))

    codes = []
    for attempt in range(4):
        count = {"JOBSET_RESTART_ATTEMPT": str(attempt)} if hosts > 1 else {}
        started = []
        for host in reversed(range(hosts)):
            started.append(cloud_pods.start(JOB_COMPLETION_INDEX=str(host), **count))
            if leader_is_late and host:
                wait_for_line(started[-1], "host 0 has not begun yet")
        codes += [ends_of(started)]

    outcome = cloud_pods.outcome()
    assert codes == [[INFRASTRUCTURE_EXIT] * hosts] * 3 + [[FAILED_EXIT] * hosts]
    assert outcome is not None
    assert outcome.error["message"].startswith("gs://jobs rejected our credentials")
    assert cloud_pods.note(0).details["why"].count("\n") == 0


def test_a_storm_of_503_delays_a_job_and_loses_nothing(cloud_pods: Pods, bucket: Bucket) -> None:
    cloud_pods.order("def add(a, b):\n    print('adding')\n    return a + b", 1, 2)
    bucket.proxy.faults += [Fault("status", times=3), Fault("drop", times=2, after=4), Fault("lose", method="PUT")]

    code, out = cloud_pods.run()

    assert code == 0, out
    assert cloud_pods.value() == 3
    assert cloud_pods.log() == "adding\n"


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ({"method": "PUT", "status": 400}, "it is tried again"),
        ({"status": 403}, "kinetic| finished; waiting for credentials: "),
    ],
    ids=["a store that takes nothing", "credentials that expired while the job ran"],
)
def test_a_result_waits_for(cloud_pods: Pods, bucket: Bucket, tmp_path: Path, refusal: dict, said: str) -> None:
    refused = Fault("status", times=1e9, **refusal)
    cloud_pods.order(WAITS, str(tmp_path / "flag"))
    pod = cloud_pods.start()
    until((tmp_path / "flag").exists)
    bucket.proxy.faults.append(refused)
    (tmp_path / "flag.go").touch()
    assert any(said in line for line in iter(pod.stdout.readline, ""))

    refused.times = 0
    out, _ = pod.communicate(timeout=60)

    assert pod.returncode == 0, out
    assert cloud_pods.value() == "went on"
