"""A job that builds an image: who builds it instead where its account may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinetic._images.builders import UnavailableError
from kinetic._images.cloud_build import CloudBuilder
from kinetic._jobs import image_job, submit
from kinetic._jobs.image_job import PodBuilder
from kinetic._stores import open_store
from kinetic.errors import AccessDeniedError, CredentialsError, ImageBuildError, KineticError


class Ended:
    """A job that ended with an error of ours, which its pod raised."""

    job_id, debug = "cpu-build-1", False

    def __init__(self, error: KineticError) -> None:
        self.error = error

    def result(self, *, cleanup: bool) -> Any:
        raise self.error


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("error", "passed_on"),
    [
        (AccessDeniedError("the repository refuses (403)", next="ask for a role", code="registry-denied"), True),
        (CredentialsError("the pod has no Google account", code="registry-login"), True),
        (ImageBuildError("alpha could not be built from source", code="source-build"), False),
    ],
)
def test_a_pod_whose_account_may_not_push_leaves_the_build_to_another_builder(
    home, monkeypatch, error, passed_on
) -> None:
    monkeypatch.setattr(image_job.wait, "wait", lambda *_, **__: None)
    store = open_store(f"file://{home}/store")
    store.put("data/builds/env-1", b"note")
    builder = PodBuilder(lambda _: None, store, {"KINETIC_HOME": str(home)})

    with pytest.raises(UnavailableError if passed_on else ImageBuildError) as caught:
        builder._finished("data/builds/env-1", Ended(error))

    assert isinstance(caught.value, UnavailableError) is passed_on
    assert caught.value.code == error.code
    assert store.size("data/builds/env-1") is None


@pytest.mark.parametrize(
    ("store", "login", "expected"),
    [
        ("gs://team-jobs", True, [PodBuilder, CloudBuilder]),
        ("gs://team-jobs", False, [PodBuilder]),
        ("memory://team-jobs", True, [PodBuilder]),
    ],
)
def test_cloud_build_comes_after_the_pod_and_only_with_a_login_and_a_bucket_of_googles(
    home, tmp_path, monkeypatch, store, login, expected
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    if login:
        (tmp_path / "application_default_credentials.json").write_text("{}")
    found = image_job.remote_builders(submit.submit, None, None, open_store(store))

    assert [type(each) for each in found] == expected
