"""Children of a batch: what their records say is derived, and true where they run."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from kinetic._backends.kube import job_manifests
from kinetic._backends.kube.client import JOB, JOB_SET, LEADER_WORKER_SET
from kinetic._batches import tracker
from kinetic._jobs import locate
from kinetic._wire.records import Group, Settings

FIELDS = {
    **dict.fromkeys(("project", "cluster_name", "zone", "namespace", "bucket_name", "image_uri"), "here"),
    "backend": "gke",
    "accelerator": "v5litepod-256",
    "func_name": "train",
    "created_at": "2026-11-20T14:30:00Z",
}
KINDS = {
    "a job": (1, lambda job_id, _: job_manifests.object_name(job_id)),
    "an indexed job": (64, partial(job_manifests.resource_name, JOB)),
    "a job set": (64, partial(job_manifests.resource_name, JOB_SET)),
    "a leader-worker set": (64, partial(job_manifests.resource_name, LEADER_WORKER_SET)),
}


def group_of(**handle: object) -> Group:
    return Group(
        group_id="grp-00000001",
        group_name=None,
        tags={},
        created=1_800_000_000.0,
        total_expected=3,
        submit_fn_name="train_with_a_long_name",
        slug="v5litepod256spot",
        handle={**FIELDS, **handle},
        more={},
        settings=Settings(),
        order_sha256="",
        table_sha256="",
        outputs="/outputs",
        key_id="",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_childs_object_is_the_one_that_its_place_gives_it(kind: str) -> None:
    hosts, name_of = KINDS[kind]
    backend = SimpleNamespace(name_of=name_of)

    group = group_of(**{locate.LONGEST_NAME: locate.longest_name(backend, hosts)})
    handle = tracker.record_of(group, 2, 1)

    assert len(handle.job_id) > 55
    assert handle.k8s_name == name_of(handle.job_id, hosts)


def test_a_batch_of_an_older_kinetic_has_names_that_fit() -> None:
    handle = tracker.record_of(group_of(), 0, 0)

    assert handle.k8s_name == job_manifests.object_name(handle.job_id)
