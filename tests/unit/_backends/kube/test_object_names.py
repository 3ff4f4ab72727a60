"""Names that are derived fit wherever Kubernetes repeats them."""

from __future__ import annotations

import re

import pytest

from kinetic._backends.kube import job_manifests
from kinetic._backends.kube.client import JOB, JOB_SET, LEADER_WORKER_SET
from kinetic._wire.keys import child_id, new_job_id

LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
DNS = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")  # as strict as it gets: a Service's
LONGEST = "7" + "x" * 61 + "9"  # a job's id may have 63 characters and begin with a digit
HOSTS = [2, 10, 11, 100, 256, 2304]


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("job_id", ["a", "v5litepod256-a-function-with-a-lo-20261121-143000-1a2b3c4", LONGEST])
def test_hostnames_of_a_slice_fit_with_everything_that_kubernetes_appends(job_id: str, hosts: int) -> None:
    last = hosts - 1

    jobset = f"{job_manifests.resource_name(JOB_SET, job_id, hosts)}-{job_manifests.SLICE_PREFIX}-0-{last}-x7k2p"
    indexed = f"{job_manifests.resource_name(JOB, job_id, hosts)}-{last}-x7k2p"
    worker = f"{job_manifests.resource_name(LEADER_WORKER_SET, job_id, hosts)}-0-{last}"
    revision = f"{job_manifests.resource_name(LEADER_WORKER_SET, job_id, hosts)}-0-86d7bcf9c4"

    assert max(map(len, (jobset, indexed, worker, revision, job_manifests.object_name(job_id)))) <= 63
    assert all(DNS.fullmatch(name) for name in (jobset, indexed, worker, revision, job_manifests.object_name(job_id)))


def test_an_id_that_fits_stands_whole_in_the_name() -> None:
    job_id = new_job_id("l4", "train")

    assert job_manifests.object_name(job_id) == f"kinetic-{job_id}"
    assert job_manifests.resource_name(JOB_SET, job_id, 4) == f"kinetic-{job_id}"


def test_two_long_ids_that_differ_at_their_ends_have_two_names() -> None:
    first, second = ("x" * 60 + end for end in "ab")

    assert job_manifests.object_name(first) != job_manifests.object_name(second)
    assert job_manifests.resource_name(JOB_SET, first, 4) != job_manifests.resource_name(JOB_SET, second, 4)


def test_children_of_a_batch_keep_names_of_their_own() -> None:
    children = {child_id("v5litepod-2x4", "a_long_function_name", "grp-0a1b2c3d", 0.0, at, 0) for at in range(1000)}

    assert len({job_manifests.resource_name(JOB_SET, child, 2) for child in children}) == 1000


@pytest.mark.parametrize("text", ["ann", "ann@example.com", "Änn Öster", "-._-", "a" * 80, "", "a/b", "x-"])
def test_any_text_becomes_a_value_that_a_label_may_have(text: str) -> None:
    value = job_manifests.label_value(text)

    assert LABEL.fullmatch(value)
    assert len(value) <= 63


def test_owners_that_look_alike_stay_apart() -> None:
    owners = ["ann@example.com", "ann-example.com", "ann/example.com", "ann example.com"]

    assert len({job_manifests.label_value(owner) for owner in owners}) == len(owners)


def test_the_runner_of_other_bytes_has_another_name() -> None:
    one, other = (
        job_manifests.runner_name("1.2.3.dev4+g5", "ab" * 32),
        job_manifests.runner_name("1.2.3.dev4+g5", "cd" * 32),
    )

    assert one == "kinetic-runner-1-2-3-dev4-g5-abababababababab"
    assert one != other


def test_a_selector_finds_the_jobs_of_an_owner_in_a_batch_and_all_jobs_of_all_kinds() -> None:
    selector = job_manifests.label_selector(owner="ann@example.com", group="grp-0a1b2c3d")

    owner = job_manifests.label_value("ann@example.com")
    assert selector == f"kinetic/owner={owner},kinetic/group=grp-0a1b2c3d"
    assert job_manifests.label_selector() == "app in (kinetic,kinetic-pathways)"
