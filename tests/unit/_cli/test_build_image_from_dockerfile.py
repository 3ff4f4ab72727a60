"""``kinetic build-image --dockerfile``, against a fake of Cloud Build and its bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.google_cloud import GoogleCloud

from kinetic._google import builds
from kinetic._images.cloud_build import CloudBuild
from kinetic._project import root

REPOSITORY = "us-docker.pkg.dev/acme/kinetic"
WORDS = ("build-image", "--repo", REPOSITORY, "--category", "gpu", "--tag", "7", "--python", "3.12")


@pytest.fixture
def cloud(home, monkeypatch, tmp_path) -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        cloud.objects.bucket("team-jobs")
        (tmp_path / "login").mkdir()
        for name, value in cloud.environ(tmp_path / "login").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KINETIC_PROJECT", cloud.project)
        monkeypatch.setenv("KINETIC_STORE", "gs://team-jobs/kinetic")
        monkeypatch.setitem(CloudBuild.__init__.__kwdefaults__, "sleep", lambda _: None)
        yield cloud
    assert cloud.wrong == []


@pytest.fixture
def dockerfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a project with files that are sent and files that are not."""
    folder = tmp_path / "project"
    files = {
        "pyproject.toml": "[project]\nname = 'p'\n",
        "images/Dockerfile": "FROM python:3.12-slim\nCOPY train.py /\n",
        "train.py": "print(1)\n",
        ".env": "PASSWORD=secret\n",
        "ignored/large.bin": "x" * 1000,
        ".kineticignore": "/ignored\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    monkeypatch.chdir(folder)
    return folder / "images" / "Dockerfile"


def test_a_dockerfile_is_built_in_its_project_and_pushed_with_both_tags(kinetic, cloud, dockerfile) -> None:
    done = kinetic(*WORDS, "--dockerfile", str(dockerfile), "--yes")

    assert done.exit_code == 0, done.output
    assert done.stdout == f"{REPOSITORY}/base-gpu:7\n"
    assert cloud.builds.pushed == [f"{REPOSITORY}/base-gpu:7-py3.12", f"{REPOSITORY}/base-gpu:7"]
    assert "FROM python:3.12-slim" in done.stderr  # the log
    sent = cloud.builds.folders["b-1"]
    assert sent["train.py"] == b"print(1)\n"
    assert not {".env", "ignored/large.bin"} & sent.keys()
    left = [name for name in cloud.objects.buckets["team-jobs"].items if name.startswith("kinetic/data/builds/")]
    assert left == ["kinetic/data/builds/log-b-1.txt"]


def test_the_same_image_gets_the_names_of_all_categories(kinetic, cloud, dockerfile) -> None:
    done = kinetic("build-image", "--repo", REPOSITORY, "--tag", "7", "--dockerfile", str(dockerfile), "--yes")

    assert done.exit_code == 0, done.output
    assert [name.rpartition("/")[2] for name in cloud.builds.pushed][1::2] == ["base-cpu:7", "base-gpu:7", "base-tpu:7"]
    assert len(cloud.builds.pages) == 1


def test_what_would_be_built_and_sent_is_said_before_it_is(kinetic, cloud, dockerfile) -> None:
    done = kinetic(*WORDS, "--dockerfile", str(dockerfile), "--dry-run")
    unasked = kinetic(*WORDS, "--dockerfile", str(dockerfile))

    assert done.exit_code == 0, done.output
    assert f"{REPOSITORY}/base-gpu:7  7-py3.12, from images/Dockerfile" in done.stderr
    assert "Cloud Build gets 4 files" in done.stderr
    assert unasked.exit_code == 2
    assert "--dockerfile" in unasked.stderr
    assert cloud.calls == []
    assert cloud.objects.buckets["team-jobs"].items == {}


def test_a_build_that_fails_exits_with_1_and_shows_its_log(kinetic, cloud, dockerfile) -> None:
    cloud.builds.fate = "COPY failed: no such file\n"

    done = kinetic(*WORDS, "--dockerfile", str(dockerfile), "--yes")

    assert done.exit_code == 1
    assert done.stdout == ""
    assert "COPY failed: no such file" in done.stderr
    assert "step 0 exited with 1" in done.stderr
    assert "[cloud-build]" in done.stderr
    assert list(cloud.objects.buckets["team-jobs"].items) == ["kinetic/data/builds/log-b-1.txt"]


@pytest.mark.parametrize(("denied", "api", "step"), [(True, True, "builds.editor"), (False, False, "services enable")])
def test_a_refusal_names_the_role_or_the_command(kinetic, cloud, dockerfile, denied, api, step) -> None:
    if denied:
        cloud.denied.add("cloudbuild.builds.create")
    if not api:
        cloud.enabled.discard(builds.API)

    done = kinetic(*WORDS, "--dockerfile", str(dockerfile), "--yes")

    assert done.exit_code == 1
    assert "[build-denied]" in done.stderr
    assert step in done.stderr
    assert cloud.objects.buckets["team-jobs"].items == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"words": ("--platform", "arm64")}, "cannot be built for arm64"),
        ({"words": ("--python", "three")}, "is not a version"),
        ({"ignored": "/images\n"}, "!images/Dockerfile"),
        ({"outside": True}, "KINETIC_PACKAGE_ROOT does not contain"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_sent(
    kinetic, cloud, dockerfile, tmp_path, monkeypatch, change, said
) -> None:
    if "ignored" in change:
        (dockerfile.parents[1] / ".kineticignore").write_text(change["ignored"])
    if "outside" in change:
        (tmp_path / "other").mkdir()
        monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(tmp_path / "other"))

    done = kinetic(*WORDS, *change.get("words", ()), "--dockerfile", str(dockerfile), "--yes")

    assert done.exit_code != 0
    assert said in done.stderr
    assert cloud.calls == []


def test_a_dockerfile_of_an_installed_package_is_refused(kinetic, cloud, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(root, "is_installed", lambda file: True)
    (tmp_path / "project").mkdir()
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.chdir(tmp_path / "project")

    done = kinetic(*WORDS, "--dockerfile", str(tmp_path / "Dockerfile"), "--yes")

    assert done.exit_code == 2
    assert "is not in the project" in done.stderr


def test_a_store_that_is_no_bucket_of_googles_is_named(kinetic, cloud, dockerfile, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("KINETIC_STORE", f"file://{tmp_path}/store")

    done = kinetic(*WORDS, "--dockerfile", str(dockerfile), "--yes")

    assert done.exit_code == 1
    assert "[no-cloud-build]" in done.stderr
    assert "KINETIC_STORE=gs://" in done.stderr


def test_ctrl_c_detaches_from_the_build(kinetic, cloud, dockerfile, monkeypatch) -> None:
    left = [KeyboardInterrupt]

    def pause(_: float) -> None:
        if left:
            raise left.pop()

    monkeypatch.setitem(CloudBuild.__init__.__kwdefaults__, "sleep", pause)

    done = kinetic(*WORDS, "--dockerfile", str(dockerfile), "--yes")

    assert done.exit_code != 0
    assert "detached: the build b-1 keeps running" in done.stderr
    assert cloud.builds.pages["b-1"]["status"] != "CANCELLED"
