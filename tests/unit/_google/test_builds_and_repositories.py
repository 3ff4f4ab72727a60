"""Requests to Cloud Build and Artifact Registry, held against Google's discovery documents, bodies included."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from servers.discovery import document
from servers.google_cloud.tokens import Tokens
from servers.http11 import Answer, Request
from servers.scripted import Scripted, page

from kinetic._google import builds, login
from kinetic._google.api import Service
from kinetic._google.artifacts import Repository
from kinetic._google.builds import Source
from kinetic._stores.parallel import Retry
from kinetic._wire import proxies
from kinetic.errors import AccessDeniedError, BackendUnavailableError, ImageBuildError

HERE = Repository("team", "us", "kinetic")


@pytest.fixture
def google() -> Iterator[Callable[..., tuple[Service, list[Request]]]]:
    """Return a function that makes a service whose answers are given; each request must fit the document."""
    running: list[Scripted] = []

    def make(api: str, *answers: Any) -> tuple[Service, list[Request]]:
        server = Scripted(*(each if isinstance(each, Answer) else page(each) for each in answers))
        running.append(server)
        name, _, _ = api.partition(".")
        environ = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name.upper()}": server.url}
        return Service(api, Tokens(), Retry(3, sleep=lambda _: None), environ=environ), server.asked

    yield make
    for server in running:
        for request in server.asked:
            _check(request)
        server.__exit__()


def _check(request: Request) -> None:
    for name in ("cloudbuild.v1", "artifactregistry.v1"):
        try:
            method = document(name).method(request.method, request.path[1:])
        except LookupError:
            continue
        assert document(name).complaints(request.method, request.path[1:], request.query) == []
        if request.body:
            schema = method["request"]["$ref"]
            assert document(name).misfits(schema, json.loads(request.body)) == []
        return
    pytest.fail(f"no method is called by {request.method} {request.path}")


def error(status: int, message: str, reason: str = "") -> Answer:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}] if reason else []
    return page({"error": {"code": status, "message": message, "details": details}}, status)


def nothing(_: float) -> None:
    """Take no time."""


# ----------------------------------------------------------------------------------------------------- repositories


@pytest.mark.parametrize(
    ("host", "image", "expected"),
    [
        ("us-docker.pkg.dev", "team/kinetic/kinetic", HERE),
        ("europe-west4-docker.pkg.dev", "team/a/b/c", Repository("team", "europe-west4", "a")),
        ("registry.example.com", "team/a/b", None),
    ],
)
def test_the_repository_of_an_image_is_read_from_its_name(host, image, expected) -> None:
    assert Repository.of_image(host, image) == expected


# ------------------------------------------------------------------------------------------------------------ builds


SOURCE = Source("bucket", "prefix/data/builds/1.tar.gz")


def started() -> dict[str, Any]:
    return {"name": "operations/1", "metadata": {"build": {"id": "b-1"}}}


@pytest.mark.parametrize(
    "body",
    [
        builds.dockerfile_body(
            SOURCE, ["us-docker.pkg.dev/team/kinetic/own:1", "us-docker.pkg.dev/team/kinetic/own:2"]
        ),
        builds.python_body(SOURCE, "3.12", ["-m", "x"], account="projects/p/serviceAccounts/e"),
        builds.python_body(SOURCE, "3.12", ["-m", "x"], compiles=True, kept="made-*"),
    ],
)
def test_the_log_of_a_build_is_shown_while_it_grows(google, body) -> None:
    service, asked = google(builds.API, started(), {"status": "QUEUED"}, {"status": "WORKING"}, {"status": "SUCCESS"})
    grows = [b"", b"", b"first\n", b"first\nsecond\n"]
    shown: list[bytes] = []

    def read_log(start: int) -> bytes:
        data = grows.pop(0) if len(grows) > 1 else grows[0]
        return data[start:]

    build = builds.start(service, "team", "us-central1", body)
    builds.follow(service, build, read_log, shown.append, nothing)

    assert b"".join(shown) == b"first\nsecond\n"
    assert build.log_name == "log-b-1.txt"
    assert len(asked) == 4


def test_a_build_that_failed_says_how_and_where_to_look(google) -> None:
    failed = {"status": "FAILURE", "failureInfo": {"type": "USER_BUILD_STEP", "detail": "step 0 exited with 1"}}
    service, _ = google(builds.API, started(), failed)
    build = builds.start(service, "team", "us", builds.dockerfile_body(SOURCE, ["i"]))

    with pytest.raises(ImageBuildError, match="ended with FAILURE") as caught:
        builds.follow(service, build, lambda _: b"", lambda _: None, nothing)

    assert "step 0 exited with 1" in str(caught.value)
    assert "console.cloud.google.com/cloud-build/builds;region=us/b-1" in str(caught.value)


def test_a_build_that_may_have_started_is_not_started_twice(google) -> None:
    service, asked = google(builds.API, page({}, 500))

    with pytest.raises(BackendUnavailableError):
        builds.start(service, "team", "us", builds.dockerfile_body(SOURCE, ["i"]))

    assert len(asked) == 1


def test_a_proxy_that_demands_a_login_is_asked_once(google, monkeypatch) -> None:
    service, _ = google("cloudbuild.googleapis.com")
    asked: list[str] = []

    def send(url: str, *_: object) -> NoReturn:
        asked.append(url)
        raise proxies.RefusedError("the proxy proxy.lan answered with HTTP 407")

    monkeypatch.setattr(login, "send", send)

    with pytest.raises(BackendUnavailableError, match="does not let us through") as caught:
        service.get("v1/projects/team/builds/1")

    assert "http://USER:PASSWORD@HOST:PORT" in caught.value.next
    assert len(asked) == 1


def test_a_build_that_was_refused_for_now_is_asked_for_again(google) -> None:
    service, asked = google(builds.API, page({}, 429), started())

    assert builds.start(service, "team", "us", builds.dockerfile_body(SOURCE, ["i"])).id == "b-1"
    assert len(asked) == 2


def test_cancelling_a_build_that_has_ended_is_no_error(google) -> None:
    service, _ = google(builds.API, started(), error(400, "already finished"))
    build = builds.start(service, "team", "us", builds.dockerfile_body(SOURCE, ["i"]))

    builds.cancel(service, build)


def test_the_log_goes_to_the_folder_of_the_source() -> None:
    assert builds.python_body(SOURCE, "3.12", [])["logsBucket"] == "gs://bucket/prefix/data/builds"
    assert builds.python_body(Source("bucket", "1.tar.gz"), "3.12", [])["logsBucket"] == "gs://bucket"


@pytest.mark.parametrize(("reason", "step"), [("SERVICE_DISABLED", "gcloud services enable"), ("", "builds.editor")])
def test_a_build_that_may_not_be_started_names_the_command_or_the_role(google, reason, step) -> None:
    service, _ = google(builds.API, error(403, "denied", reason))

    with pytest.raises(AccessDeniedError) as caught:
        builds.start(service, "team", "us", builds.dockerfile_body(SOURCE, ["i"]))

    assert caught.value.code == "build-denied"
    assert step in str(caught.value.next)


def test_what_compiles_gets_the_full_image_of_python_and_what_is_kept_goes_beside_the_source() -> None:
    page = builds.python_body(SOURCE, "3.12", [], compiles=True, kept="made-*")

    assert page["steps"][0]["name"] == "python:3.12"
    assert page["artifacts"]["objects"] == {"location": "gs://bucket/prefix/data/builds/", "paths": ["made-*"]}
    assert "artifacts" not in builds.python_body(SOURCE, "3.12", [])


def test_the_output_of_a_build_is_that_of_its_first_step() -> None:
    assert builds.first_output({"results": {"buildStepOutputs": ["Zmlyc3Q=", "c2Vjb25k"]}}) == b"first"
    assert builds.first_output({"status": "SUCCESS"}) == b""


@pytest.mark.parametrize(
    ("answer", "expected"),
    [({"status": "WORKING"}, ""), ({"status": "TIMEOUT"}, "TIMEOUT"), (error(404, "unknown"), "EXPIRED")],
)
def test_whether_a_build_has_ended_is_asked_once(google, answer, expected) -> None:
    service, asked = google(builds.API, started(), answer)
    build = builds.start(service, "team", "us", builds.dockerfile_body(SOURCE, ["i"]))

    assert builds.ended_with(service, build) == expected
    assert len(asked) == 2
