"""``kinetic image`` and ``kinetic build-image``, against a real registry, a real uv and an index of the test."""

from __future__ import annotations

import json
import os
import platform

import pytest
from servers.image_fixtures import base, registry, registry_address
from servers.wheels import Index, made_wheel

from kinetic._images import bundled
from kinetic._images.lock_store import LockRequest
from kinetic._jobs import status
from kinetic._jobs.status import Snapshot
from kinetic._stores.files import FileStore
from kinetic.job_status import JobStatus

__all__ = ["base", "registry", "registry_address"]
pytestmark = pytest.mark.timeout(180)  # the first test builds the registry
PYTHON = ".".join(platform.python_version_tuple()[:2])


@pytest.fixture
def publish(tmp_path, monkeypatch):
    index = Index()
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.simple)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))

    def make(name: str, version: str = "1.0", needs: str = "") -> None:
        index(made_wheel(tmp_path / "index", name, version, {f"{name}.py": ""}, needs=needs))

    for name in (*bundled.POD_PACKAGES, "jax", "keras"):
        make(name)
    yield make
    index.close()


@pytest.fixture
def built(home, kinetic, publish, registry, base, monkeypatch):
    """Build an image for jobs; return its address."""
    monkeypatch.setenv("KINETIC_BASE_IMAGE", f"{registry.host}/{registry.name}@{base.digest}")
    request = LockRequest(["jax"], PYTHON, "x86_64", FileStore(home / "store"), os.environ)
    return bundled.ensure(request, f"{registry.host}/{registry.name}", base=os.environ["KINETIC_BASE_IMAGE"])


def test_an_image_is_listed_shown_and_verified(kinetic, built) -> None:
    name = built.built.tag.removeprefix("env-")[:12]

    listed = kinetic("image", "list")
    shown = kinetic("image", "show", name)
    verified = kinetic("image", "verify", name)

    assert name in listed.stdout
    assert "jax" in shown.stdout
    assert "obstore" in shown.stdout
    assert verified.exit_code == 0, verified.output
    assert "verified" in verified.stdout
    assert json.loads(kinetic("image", "list", "--json").stdout)["images"][0]["uri"] == built.uri


def test_an_image_that_is_not_used_goes_with_its_layers_and_others_stay(kinetic, built, registry) -> None:
    kept = kinetic("image", "prune", "--older", "1d", "--yes", "--json")
    would = json.loads(kinetic("image", "prune", "--older", "0s", "--dry-run", "--json").stdout)
    assert (json.loads(kept.stdout)["images"], [each["uri"] for each in would["images"]]) == ([], [built.uri])
    assert would["removed"] is False
    assert registry.find_manifest(built.built.tag) is not None

    removed = kinetic("image", "prune", "--older", "0s", "--yes", "--json")

    assert removed.exit_code == 0, removed.output
    assert json.loads(removed.stdout) == {**would, "removed": True}
    assert registry.find_manifest(built.built.tag) is None
    assert "There are no images" in kinetic("image", "list").stderr


def test_the_image_of_a_job_that_has_not_ended_stays(kinetic, built, registry, made_job, monkeypatch) -> None:
    made_job("", image_uri=built.uri)
    seen = Snapshot(JobStatus.PENDING)
    monkeypatch.setattr(status, "observe_many", lambda handles: [seen for _ in handles])

    kept = kinetic("image", "prune", "--older", "0s", "--yes")

    assert "1 image kept: jobs that have not ended use them" in kept.stderr
    assert registry.find_manifest(built.built.tag) is not None

    seen = Snapshot(JobStatus.SUCCEEDED)
    assert kinetic("image", "prune", "--older", "0s", "--yes").exit_code == 0
    assert registry.find_manifest(built.built.tag) is None


def test_without_a_terminal_no_image_is_removed_unless_yes_is_said(kinetic, built, registry) -> None:
    refused = kinetic("image", "prune", "--older", "0s")

    assert refused.exit_code == 2
    assert refused.stderr.endswith("next:  kinetic image prune --older 0s --yes\n")
    assert registry.find_manifest(built.built.tag) is not None


def test_prebuilt_images_are_built_without_a_cluster_and_found_by_both_tags(
    kinetic, publish, registry, base, monkeypatch
):
    monkeypatch.setenv("KINETIC_BASE_IMAGE", f"{registry.host}/{registry.name}@{base.digest}")
    repository = f"{registry.host}/{registry.name}"

    planned = kinetic("build-image", "--repo", repository, "--category", "cpu", "--dry-run")
    done = kinetic("build-image", "--repo", repository, "--category", "cpu", "--tag", "7", "--yes")

    unasked = kinetic("build-image", "--repo", repository, "--category", "cpu")
    arm = kinetic("build-image", "--repo", repository, "--platform", "arm64", "--yes")
    other = kinetic("build-image", "--repo", repository, "--python", "3.99", "--yes")

    assert planned.exit_code == 0
    assert (unasked.exit_code, arm.exit_code, other.exit_code) == (2, 2, 2)
    assert f"{repository}/base-cpu:" in unasked.stderr
    assert f"next:  kinetic build-image --repo {repository} --category cpu --yes\n" in unasked.stderr
    assert "--platform=arm64 needs --tag" in arm.stderr
    assert "cannot be built with Python" in other.stderr
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{repository}/base-cpu:7\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [(("image", "show", "nothing"), 1), (("image", "verify", "nothing"), 1), (("build-image", "--yes"), 2)],
)
def test_what_is_missing_is_named_with_the_next_command(kinetic, home, words, code) -> None:
    done = kinetic(*words)

    assert done.exit_code == code
    assert "next:" in done.stderr
