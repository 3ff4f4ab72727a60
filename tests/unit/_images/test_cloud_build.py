"""Images that Cloud Build builds: with our own builder, which runs here for real, and from Dockerfiles."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from servers.google_cloud import Fault, GoogleCloud
from servers.registry import anonymous

from kinetic._images import bundled, cloud_build, lock_store, pod_build
from kinetic._images.builders import NotWaitingError, UnavailableError
from kinetic._images.cloud_build import CloudBuilder
from kinetic._images.container_registry import Registry
from kinetic._images.image import ImageBuilder
from kinetic._images.request import BuildRequest
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import keys
from kinetic.errors import AccessDeniedError, ImageBuildError, IntegrityError

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry
ZONE = "europe-west4-b"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        cloud.objects.bucket("team-jobs")
        monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
        for name, value in cloud.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield cloud
    assert cloud.wrong == []


@pytest.fixture
def store(cloud: GoogleCloud) -> Store:
    return open_store("gs://team-jobs/kinetic")


@pytest.fixture
def connect(cloud: GoogleCloud, store: Store) -> Callable[..., cloud_build.CloudBuild]:
    def open_(repository: str = "us-docker.pkg.dev/acme/kinetic", **more: Any) -> cloud_build.CloudBuild:
        found = cloud_build.connect(more.get("project", cloud.project), ZONE, repository, store, os.environ)
        found._sleep = more.get("sleep", lambda _: None)
        return found

    return open_


@pytest.fixture
def builder(connect, store: Store) -> CloudBuilder:
    return CloudBuilder(connect, lambda request: bundled.find(request, environ=os.environ), store, os.environ)


@pytest.fixture
def request_of(registry: Registry, base, cache, wheel, lock_of) -> Callable[[], BuildRequest]:
    def make() -> BuildRequest:
        source = f"{registry.host}/{registry.name}@{base.digest}"
        return BuildRequest(
            lock_of(wheel("alpha", alpha=os.urandom(1000))), base, source, f"{registry.host}/{registry.name}"
        )

    return make


def objects(cloud: GoogleCloud) -> list[str]:
    """Return what is in the folder of builds."""
    there = sorted(cloud.objects.buckets["team-jobs"].items)
    return [name.removeprefix("kinetic/data/builds/") for name in there if "/data/builds/" in name]


def interrupted(times: int) -> Callable[[float], None]:
    """Return a pause in which Ctrl-C comes so often."""
    left = [times]

    def pause(_: float) -> None:
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt

    return pause


# --------------------------------------------------------------------------------------------------- our own builder


def test_an_image_is_built_in_cloud_build_by_the_code_of_all_other_places(
    builder, cloud, registry, cache, request_of, capsys
) -> None:
    request = request_of()

    made = builder.build(request, waits=True)

    with Registry(registry.host, registry.name, anonymous) as opened:
        assert made.built.uri == ImageBuilder(opened, cache).find(request.lock, request.base).uri
    (page,) = cloud.builds.pages.values()
    assert page["steps"][0]["name"] == f"python:{request.lock.platform.python}-slim"
    assert cloud.writes[-1].path == "v1/projects/kinetic-tests/locations/europe-west4/builds"
    said = capsys.readouterr().err
    assert "building an image of 1 packages" in said
    assert f"gcloud builds log --stream {page['id']} --region=europe-west4 --project=kinetic-tests" in said
    assert objects(cloud) == [f"log-{page['id']}.txt"]


def test_who_detaches_leaves_the_build_and_its_note_and_the_next_one_finds_it(
    builder, connect, cloud, store, request_of, capsys
) -> None:
    request, said = request_of(), list[str]()

    def pause(_: float) -> None:  # as Ctrl-C in the thread that submits a job
        said.extend(detaching.detach())

    detaching = CloudBuilder(lambda name: connect(name, sleep=pause), builder._find, store, os.environ)
    cloud.builds.stays = "QUEUED"
    with pytest.raises(CancelledError):
        detaching.build(request, waits=True)
    (build_id,) = cloud.builds.pages
    cloud.builds.stays = ""
    made = builder.build(request, waits=True)

    where = f"{build_id} --region=europe-west4 --project=kinetic-tests"
    assert said == [
        f"the build {build_id} keeps running in Cloud Build",
        f"follow:   gcloud builds log --stream {where}",
        f"cancel:   gcloud builds cancel {where}",
    ]
    assert list(cloud.builds.pages) == [build_id]
    assert made.built.uri.startswith(f"{request.repository}@sha256:")
    assert f"{build_id} is building it already" in capsys.readouterr().err


def test_a_build_that_fails_shows_its_log_and_leaves_nothing_to_build(builder, cloud, request_of, capsys) -> None:
    request = request_of()
    (wheel,) = request.lock.wheels
    lost = type(wheel)(**{**vars_of(wheel), "url": f"{wheel.url}.gone"})

    with pytest.raises(ImageBuildError) as caught:
        builder.build(request._replace(lock=with_wheel(request.lock, lost)), waits=True)

    assert caught.value.code == "cloud-build"
    assert "step 0 exited with 1" in str(caught.value.why)
    assert "console.cloud.google.com" in str(caught.value.next)
    assert f"{urlsplit(wheel.url).netloc}: HTTP 404" in capsys.readouterr().err
    assert objects(cloud) == ["log-b-1.txt"]


def vars_of(wheel) -> dict[str, Any]:
    return {name: getattr(wheel, name) for name in wheel.__dataclass_fields__}


def with_wheel(lock, wheel):
    return type(lock)(lock.platform, (wheel,), lock.to_build, lock.text)


# ------------------------------------------------------------------------------------------------------- from source

BACKEND = """
import zipfile
def build_wheel(folder, settings=None, metadata=None):
    name, about = "compiled-1.0-py3-none-any.whl", "compiled-1.0.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        archive.writestr("compiled.py", "VERSION = 'compiled'")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.2\\nName: compiled\\nVersion: 1.0\\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{about}/RECORD", "")
    return name
"""
SETTINGS = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "compiled"
version = "1.0"
"""


@pytest.fixture
def from_source(request_of, index, tmp_path: Path) -> Callable[..., BuildRequest]:
    """Return a function that returns a request with a package that has only source code."""

    def make(backend: str = BACKEND) -> BuildRequest:
        files = {"PKG-INFO": "Metadata-Version: 2.2\nName: compiled\nVersion: 1.0\n"}
        files |= {"backend.py": backend, "pyproject.toml": SETTINGS}
        archive = tmp_path / "compiled-1.0.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            for name, text in files.items():
                about = tarfile.TarInfo(f"compiled-1.0/{name}")
                about.size = len(text.encode())
                packed.addfile(about, io.BytesIO(text.encode()))
        entry = {
            "url": index(archive),
            "name": archive.name,
            "hashes": {"sha256": hashlib.sha256(archive.read_bytes()).hexdigest()},
        }
        words = ", ".join(f"{name} = {json.dumps(value)}" for name, value in entry.items() if name != "hashes")
        sdist = f'sdist = {{ {words}, hashes = {{ sha256 = "{entry["hashes"]["sha256"]}" }} }}'
        text = f'lock-version = "1.0"\n[[packages]]\nname = "compiled"\nversion = "1.0"\n{sdist}\n'
        request = request_of()
        return request._replace(
            lock=type(request.lock)(request.lock.platform, request.lock.wheels, ("compiled",), text)
        )

    return make


def test_a_package_without_a_wheel_is_compiled_in_cloud_build_and_its_wheel_comes_back(
    builder, cloud, store, registry, cache, from_source
) -> None:
    request = from_source()

    made = builder.build(request, waits=True)
    kept = lock_store.keep_built(request.lock, made.wheels, store, os.environ)
    left = objects(cloud)
    made.finish()

    ((wheel, data),) = made.wheels
    assert (wheel.name, wheel.url) == ("compiled", f"store:{hashlib.sha256(data).hexdigest()}")
    assert kept.to_build == ()
    with Registry(registry.host, registry.name, anonymous) as opened:
        assert made.built.uri == ImageBuilder(opened, cache).find(kept, request.base).uri
    (page,) = cloud.builds.pages.values()
    assert page["steps"][0]["name"] == f"python:{request.lock.platform.python}"  # with compilers, not -slim
    assert [name for name in left if name == f"made-{wheel.sha256}"]
    assert objects(cloud) == [f"log-{page['id']}.txt"]


def test_what_a_build_compiled_is_collected_by_the_next_client_if_the_first_one_died(
    builder, cloud, from_source
) -> None:
    request = from_source()
    cloud.builds.stays = "QUEUED"
    with pytest.raises(NotWaitingError):
        builder.build(request, waits=False)
    cloud.builds.stays = ""
    page = cloud.builds.pages["b-1"]
    while page["status"] != "SUCCESS":
        cloud.builds._continue(page)

    made = builder.build(request, waits=True)

    assert [wheel.name for wheel, _ in made.wheels] == ["compiled"]
    assert len(cloud.builds.pages) == 1


def test_a_compiled_wheel_that_somebody_changed_in_the_bucket_is_not_used(builder, cloud, from_source) -> None:
    request = from_source()
    keep = cloud.builds._keep

    def spoil(page: Any, folder: Path) -> Any:
        failure = keep(page, folder)
        items = cloud.objects.buckets["team-jobs"]
        for name in [name for name in items.items if "/made-" in name]:
            if items.get(name).data.startswith(b"PK"):
                items.put(name, b"PK another wheel")
        return failure

    cloud.builds._keep = spoil

    with pytest.raises(IntegrityError, match="is damaged"):
        builder.build(request, waits=True)


def test_source_code_that_does_not_compile_fails_the_build_with_its_log(builder, cloud, from_source, capsys) -> None:
    with pytest.raises(ImageBuildError) as caught:
        builder.build(from_source("raise SystemExit('no compiler likes this')"), waits=True)

    assert caught.value.code == "cloud-build"
    assert "no compiler likes this" in capsys.readouterr().err
    assert objects(cloud) == ["log-b-1.txt"]


@pytest.mark.parametrize("tag", ["py3-none-any", "py3-none-linux_x86_64"])
def test_what_was_compiled_on_another_processor_than_the_job_has_gets_into_no_image(
    request_of, from_source, cloud, registry, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    request = from_source(BACKEND.replace("py3-none-any", tag))
    lock = replace(request.lock, platform=replace(request.lock.platform, machine="aarch64"))
    page = {**request._replace(lock=lock).to_json(), "carried": {}}

    if tag.endswith("any"):
        assert [each["wheel"]["name"] for each in pod_build.build(page)["wheels"]] == ["compiled"]
        return
    with pytest.raises(ImageBuildError, match="compiled on x86_64 here, and the job runs on aarch64") as caught:
        pod_build.build(page)
    assert caught.value.code == "source-only"


def test_a_build_that_nobody_waits_for_is_found_by_the_next_submission(builder, cloud, request_of) -> None:
    request = request_of()
    cloud.builds.stays = "QUEUED"

    for _ in range(2):
        with pytest.raises(NotWaitingError) as caught:
            builder.build(request, waits=False)
    cloud.builds.stays = ""
    made = builder.build(request, waits=True)

    assert len(cloud.builds.pages) == 1
    assert "gcloud builds log --stream b-1" in str(caught.value.next)
    assert "@sha256:" in made.built.uri
    assert objects(cloud) == ["log-b-1.txt"]


def test_a_note_of_a_build_that_failed_meanwhile_does_not_stop_the_next(builder, cloud, request_of) -> None:
    request = request_of()
    cloud.builds.stays = "QUEUED"
    with pytest.raises(NotWaitingError):
        builder.build(request, waits=False)
    cloud.builds.pages["b-1"]["status"] = "TIMEOUT"
    cloud.builds.stays = ""

    assert "@sha256:" in builder.build(request, waits=True).built.uri
    assert objects(cloud) == ["log-b-2.txt"]


def test_a_build_that_may_not_begin_lets_another_place_build(builder, cloud, request_of) -> None:
    cloud.denied.add("cloudbuild.builds.create")

    with pytest.raises(UnavailableError) as caught:
        builder.build(request_of(), waits=True)

    assert caught.value.code == "build-denied"
    assert "roles/cloudbuild.builds.editor" in str(caught.value.next)
    assert objects(cloud) == []


def test_no_password_goes_into_the_bucket(builder, cloud, request_of, registry, tmp_path) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(f'{{"auths": {{"{registry.host}": {{"auth": "bWU6c2VjcmV0"}}}}}}')

    with pytest.raises(UnavailableError, match="cannot be used") as caught:
        builder.build(request_of(), waits=True)

    assert registry.host in str(caught.value.why)
    assert cloud.builds.pages == {}


def test_the_account_that_builds_can_be_named(connect, cloud, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_BUILD_ACCOUNT", "builder@acme.iam.gserviceaccount.com")

    connect().start_program(folder(), "3.12", ["-c", "pass"])

    (page,) = cloud.builds.pages.values()
    assert page["serviceAccount"] == "projects/kinetic-tests/serviceAccounts/builder@acme.iam.gserviceaccount.com"
    assert page["logsBucket"] == "gs://team-jobs/kinetic/data/builds"
    assert page["options"]["logging"] == "GCS_ONLY"


@pytest.mark.parametrize(
    ("project", "url", "login", "why"),
    [
        ("", "gs://team", True, "no Google Cloud project"),
        ("p", "memory://team", True, "reads from Cloud Storage only"),
        ("p", "gs://team", False, "no login"),
    ],
)
def test_where_cloud_build_cannot_be_used_it_says_why_and_what_to_do(
    cloud, monkeypatch, tmp_path, project, url, login, why
) -> None:
    if not login:
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "nothing"))

    with pytest.raises(UnavailableError) as caught:
        cloud_build.connect(project, ZONE, "ghcr.io/acme/kinetic", open_store(url), os.environ)

    assert caught.value.code == "no-cloud-build"
    assert why in str(caught.value.why)
    assert caught.value.next


# ------------------------------------------------------------------------------------------------------ any build


def folder(dockerfile: bytes = b"FROM scratch\n") -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        about = tarfile.TarInfo("Dockerfile")
        about.size = len(dockerfile)
        archive.addfile(about, io.BytesIO(dockerfile))
    return held.getvalue()


def test_ctrl_c_detaches_and_names_what_shows_and_cancels_the_build(connect, cloud, store, capsys) -> None:
    found = connect(sleep=interrupted(1))
    running = found.start_program(folder(), "3.12", ["-c", "pass"])

    with pytest.raises(KeyboardInterrupt):
        found.finish(running)

    said = capsys.readouterr().err
    assert "detached: the build b-1 keeps running" in said
    assert "gcloud builds log --stream b-1" in said
    assert "gcloud builds cancel b-1" in said
    assert cloud.builds.pages["b-1"]["status"] != "CANCELLED"
    assert store.size(running.source) is not None  # Cloud Build may not have read it yet


def test_a_region_in_which_a_project_may_not_build_is_passed_over(connect, cloud) -> None:
    cloud.builds.restricted.add("europe-west4")

    running = connect().start_program(folder(), "3.12", ["-c", "pass"])

    assert running.build.location == "global"
    assert "--region=global" in running.build.show_command


def test_ctrl_c_once_more_cancels_the_build(connect, cloud, store, capsys) -> None:
    found = connect(sleep=interrupted(2))
    running = found.start_program(folder(), "3.12", ["-c", "pass"])

    with pytest.raises(KeyboardInterrupt):
        found.finish(running)

    assert cloud.builds.pages["b-1"]["status"] == "CANCELLED"
    assert "cancelled: b-1" in capsys.readouterr().err
    assert store.size(running.source) is None


def test_a_build_is_not_shown_any_more_when_the_right_to_see_it_is_gone(connect, cloud) -> None:
    found = connect()
    running = found.start_program(folder(), "3.12", ["-c", "pass"])
    cloud.faults.append(
        Fault(method="cloudbuild.projects.locations.builds.get", status=403, message="denied", times=-1)
    )

    with pytest.raises(AccessDeniedError) as caught:
        found.finish(running)

    assert caught.value.code == "build-denied"


def test_a_log_is_read_from_where_it_was_left(connect, cloud, store) -> None:
    found = connect()
    running = found.start_program(folder(), "3.12", ["-c", "print('word ' * 1000)"])
    read: list[tuple[int, int]] = []
    get = store.get

    def note(key: str, *, start: int = 0, length: int | None = None) -> bytes:
        data = get(key, start=start, length=length)
        read.append((start, len(data)))
        return data

    store.get = note
    try:
        found.finish(running)
    finally:
        del store.get

    assert sum(size for _, size in read) == store.size(keys.build_log("log-b-1.txt"))
    assert all(start == sum(size for _, size in read[:number]) for number, (start, _) in enumerate(read))
