"""Asking Google for a larger quota: which rows, once each, and what is said where that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic._cluster import quotas
from kinetic._cluster.project_apis import ProjectApis
from kinetic._google.login import Tokens
from kinetic._hardware import place
from kinetic._stores.parallel import Retry
from kinetic.errors import AccessDeniedError, ClusterError

EAST = "us-east5"


@pytest.fixture
def apis(cloud, tmp_path: Path) -> ProjectApis:
    environ = cloud.environ(tmp_path)
    return ProjectApis(cloud.project, Tokens(environ), environ, retry=Retry(2, 0.0, 0.0))


def test_the_row_of_the_region_and_family_is_asked_for(cloud, apis) -> None:
    (request,) = quotas.requests_for(apis, place("v6e-8"), EAST, 16)

    answer = quotas.send_request(apis, request, "you@example.com")

    assert str(request) == "TPUS-PER-TPU-FAMILY-per-project-region in us-east5: 16 (now 8)"
    (sent,) = cloud.quotas.preferences.values()
    assert sent == answer
    assert sent["dimensions"] == {"region": EAST, "tpu_family": "CT6E"}
    assert sent["quotaConfig"]["preferredValue"] == "16"


def test_a_gpu_needs_its_family_and_the_quota_of_all_gpus(apis) -> None:
    found = quotas.requests_for(apis, place("h100x8"), EAST, 8)

    assert [(each.quota_id, each.limit) for each in found] == [
        ("GPUS-PER-GPU-FAMILY-per-project-region", 0),
        ("GPUS-ALL-REGIONS-per-project", 4),
    ]


def test_what_is_large_enough_is_not_asked_for(cloud, apis) -> None:
    assert quotas.requests_for(apis, place("v6e-8"), EAST, 8) == []
    assert quotas.requests_for(apis, place("v5litepod-4"), EAST, 16) == []
    assert quotas.requests_for(apis, place("v6e-8", spot=True), EAST, 1000) == []
    assert cloud.writes == []


def test_a_row_has_one_request_whoever_made_it(cloud, apis) -> None:
    cloud.quotas.preferences["from-the-console"] = {
        "name": f"projects/{cloud.project}/locations/global/quotaPreferences/from-the-console",
        "quotaId": "TPU-V5P-per-project-region",
        "dimensions": {"region": EAST},
        "quotaConfig": {"preferredValue": "8"},
    }

    (same,) = quotas.requests_for(apis, place("v5p-8"), EAST, 8)
    (more,) = quotas.requests_for(apis, place("v5p-8"), EAST, 32)
    quotas.send_request(apis, more, "you@example.com")

    assert same.was_sent
    assert not more.was_sent
    assert [*cloud.quotas.preferences] == ["from-the-console"]
    assert cloud.quotas.preferences["from-the-console"]["quotaConfig"]["preferredValue"] == "32"


def test_asking_again_makes_no_second_request(cloud, apis) -> None:
    for count in (16, 32):
        (request,) = quotas.requests_for(apis, place("v6e-8"), EAST, count)
        quotas.send_request(apis, request, "you@example.com")

    assert len(cloud.quotas.preferences) == 1


def test_without_the_right_the_role_is_named(cloud, apis) -> None:
    (request,) = quotas.requests_for(apis, place("v6e-8"), EAST, 16)
    cloud.denied.add("cloudquotas.quotas.update")

    with pytest.raises(AccessDeniedError) as refused:
        quotas.send_request(apis, request, "you@example.com")

    assert "roles/cloudquotas.admin" in str(refused.value.next)


def test_an_api_that_is_off_and_a_quota_that_google_does_not_have_are_named(cloud, apis) -> None:
    with pytest.raises(ClusterError, match="read the quota of gpu-l4"):
        quotas.requests_for(apis, place("l4"), EAST, 4)  # the fake has no NVIDIA-L4-GPUS-per-project-region

    cloud.enabled.discard("cloudquotas.googleapis.com")
    with pytest.raises(ClusterError) as refused:
        quotas.requests_for(apis, place("v6e-8"), EAST, 16)
    assert "kinetic doctor --fix" in str(refused.value.next)
