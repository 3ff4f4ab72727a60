"""From requirement lines to an image: locked, built and found again, against a real registry and a real uv."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from servers.http11 import Answer, Request, Server
from servers.registry_proxy import RegistryProxy, Rules
from servers.wheels import Index, made_wheel

from kinetic._images import base_image, bundled, container_registry, uv
from kinetic._images.bundled import Bundled
from kinetic._images.container_registry import Registry
from kinetic._wire.http_client import HttpClient
from kinetic._wire.python_runtime import SETTING
from kinetic.errors import ImageBuildError, ImageError, ImageUnavailableError, KineticError

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry
PYTHON = ".".join(platform.python_version_tuple()[:2])


@pytest.fixture
def no_uv(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which starting uv fails the test."""

    def forbid() -> None:
        def started(*_: object, **__: object) -> None:
            pytest.fail("uv was started")

        monkeypatch.setattr(uv, "run_uv", started)

    return forbid


def names(found: Bundled) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in found.lock.wheels}


def test_lines_become_an_image_by_digest_and_the_same_lines_the_same_image(ensure, publish, no_uv, index) -> None:
    publish("alpha")
    first = ensure(["alpha"])
    no_uv()
    asked = len(index.asked)

    again = ensure(["alpha"])

    assert first.uri == again.uri
    assert "@sha256:" in first.uri
    assert names(first) == {"alpha": "1.0", "obstore": "1.0", "uv": "1.0"}
    assert (again.built.sent_bytes, again.built.built_layers, len(index.asked)) == (0, 0, asked)


def test_another_machine_of_this_user_takes_the_lock_from_the_store(ensure, publish, no_uv, tmp_path) -> None:
    publish("alpha")
    first = ensure(["alpha"])
    publish("alpha", "2.0")
    no_uv()
    (tmp_path / "home/cache").rename(tmp_path / "cache of another machine")

    assert ensure(["alpha"]).uri == first.uri


def test_a_lock_that_somebody_else_wrote_into_the_store_is_not_believed(ensure, publish, store, tmp_path) -> None:
    publish("alpha")
    publish("evil")
    good, evil = ensure(["alpha"]), ensure(["evil"])
    store.put(good.lock_key, store.get(evil.lock_key))  # sealed by this very home, for another place
    (tmp_path / "home/cache").rename(tmp_path / "cache of another machine")

    assert names(ensure(["alpha"])) == names(good)


def test_a_new_line_keeps_all_other_versions_and_an_upgrade_renews_them(ensure, publish, tmp_path) -> None:
    publish("alpha")
    publish("beta")
    ensure(["alpha"], project="/work/project")
    publish("alpha", "2.0")

    kept = ensure(["alpha", "beta"], project="/work/project")
    upgrade = {"KINETIC_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "KINETIC_UPGRADE": "1"}
    renewed = ensure(["alpha", "beta"], project="/work/project", environ=upgrade)

    assert names(kept)["alpha"] == "1.0"
    assert names(renewed)["alpha"] == "2.0"
    assert ensure(["alpha", "beta"], project="/work/project").uri == renewed.uri


def test_without_a_base_image_every_source_is_named(ensure, publish, monkeypatch) -> None:
    monkeypatch.setattr(bundled.base_image, "SOURCES", ("127.0.0.1:1/python", "127.0.0.1:9/python"))
    monkeypatch.setattr(container_registry, "_LONGEST_WAIT", 0.0)
    publish("alpha")

    with pytest.raises(ImageUnavailableError, match="no base image for Python") as caught:
        ensure(["alpha"], base="")

    assert all(f"{host}: the registry {host}" in str(caught.value) for host in ("127.0.0.1:1", "127.0.0.1:9"))
    assert "KINETIC_BASE_IMAGE" in str(caught.value)


def test_a_prebuilt_image_gets_more_tags_and_keeps_its_own(ensure, publish, registry, tmp_path) -> None:
    publish("alpha")
    found = ensure(["alpha"])

    bundled.publish(found, ["0.1.0-py3.12", "0.1.0"], None, {"HOME": str(tmp_path)})

    digest = found.uri.partition("@")[2]
    assert {registry.find_manifest(tag) for tag in ("0.1.0-py3.12", "0.1.0", found.built.tag)} == {digest}


def test_the_glibc_of_a_base_image_of_the_users_is_read_from_its_layers(registry, base) -> None:
    assert base_image.glibc_of(base, registry) == "2_36"


def test_a_base_image_without_glibc_is_refused_before_anything_is_resolved(ensure, publish, registry, base) -> None:
    publish("alpha")
    bare = dataclasses.replace(base, layers=())

    with pytest.raises(ImageError, match="cannot be a base image") as caught:
        base_image.glibc_of(bare, registry)

    assert caught.value.code == "base-glibc"
    assert "KINETIC_BASE_IMAGE=" in (caught.value.next or "")


def test_a_repository_that_may_not_be_written_is_refused_before_a_wheel_is_fetched(
    ensure, publish, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(container_registry, "_LONGEST_WAIT", 0.0)
    publish("alpha")

    with pytest.raises(ImageBuildError) as caught:
        ensure(["alpha"], repository="127.0.0.1:1/team/image")

    assert caught.value.code == "registry-silent"
    assert not (tmp_path / "home/cache/wheels").exists()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect every request to a registry."""
    seen: list[str] = []
    send = HttpClient.send

    def counted(self: HttpClient, method: str, url: str, **more: Any) -> Any:
        seen.append(f"{method} {url}")
        return send(self, method, url, **more)

    monkeypatch.setattr(HttpClient, "send", counted)
    return seen


def test_an_unchanged_submission_sends_one_request_and_no_byte_and_starts_no_uv(
    ensure, publish, no_uv, requests, store, monkeypatch
) -> None:
    publish("alpha")
    first = ensure(["alpha"], project="/work/project")
    no_uv()
    requests.clear()
    monkeypatch.setattr(store, "get", lambda *_, **__: pytest.fail("the store was asked"))

    again = ensure(["alpha"], project="/work/project")

    assert again.uri == first.uri
    assert again.built.sent_bytes == 0
    assert len(requests) == 1
    assert requests[0].startswith("HEAD ")


@pytest.fixture
def guarded(registry, base, ensure, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Return a function that asks a registry for the image that wants a login of this kind."""
    with RegistryProxy(registry.host, Rules(request.param)) as proxy:
        shown = base64.b64encode(b"ann:secret").decode()
        (tmp_path / ".docker").mkdir()
        (tmp_path / ".docker/config.json").write_text(json.dumps({"auths": {proxy.address: {"auth": shown}}}))
        find = partial(ensure, ["alpha"], repository=f"{proxy.address}/{registry.name}", project="/work/project")
        find.proxy = proxy
        yield find


@pytest.mark.parametrize(
    ("guarded", "expected"), [("realm", ["GET", "HEAD"]), ("basic", ["HEAD"])], indirect=["guarded"]
)
def test_an_unchanged_submission_logs_in_as_before_and_sends_two_requests_at_most(
    guarded, publish, no_uv, requests, tmp_path, expected: list[str]
) -> None:
    publish("alpha")
    first = guarded()
    no_uv()
    requests.clear()
    guarded.proxy.forget()

    again = guarded()

    assert again.uri == first.uri
    assert [each.split()[0] for each in requests] == expected
    assert [method for method, _ in guarded.proxy.requests] == expected
    assert guarded.proxy.up == 0
    known = (tmp_path / "home/cache/images/registries.json").read_text()
    assert guarded.proxy.address in known
    assert not any(each in known for each in ("ann", "secret", base64.b64encode(b"ann:secret").decode()))
    assert not any(token in file.read_text(errors="replace") for token in guarded.proxy.tokens
                   for file in (tmp_path / "home").rglob("*") if file.is_file())  # fmt: skip


@pytest.mark.parametrize("guarded", ["realm"], indirect=True)
def test_a_registry_that_asks_in_another_way_than_before_is_asked_how(guarded, publish, tmp_path) -> None:
    publish("alpha")
    first = guarded()
    known = tmp_path / "home/cache/images/registries.json"
    right = known.read_text()

    for changed in ('Bearer realm="http://127.0.0.1:1/token",service="s"', 'Basic realm="r"', "Magic", "damaged"):
        known.write_text("{" if changed == "damaged" else json.dumps({guarded.proxy.address: changed}))
        again = guarded()

        assert again.uri == first.uri, changed
        assert known.read_text() == right, changed


def test_a_build_that_is_to_stop_writes_no_tag_and_the_next_one_uses_what_was_sent(
    ensure, publish, registry, monkeypatch, tmp_path
) -> None:
    for name in ("alpha", "beta", "gamma"):
        publish(name)
    stop = uv.Stop()
    put = bundled.image.ImageBuilder._put_image

    def interrupted(self: Any, *given: Any) -> Any:  # all layers are there, the image is not
        stop.set()
        return put(self, *given)

    monkeypatch.setattr(bundled.image.ImageBuilder, "_put_image", interrupted)
    with pytest.raises(CancelledError):
        ensure(["alpha", "beta", "gamma"], stop=stop)
    monkeypatch.undo()
    assert [tag for tag in registry.tags() if tag.startswith("env-")] == []

    found = ensure(["alpha", "beta", "gamma"])

    assert found.built.built_layers == 0
    assert registry.find_manifest(found.built.tag)


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "registry-login"), (403, "registry-denied"), (404, "registry-missing"), (429, "registry-quota")],
)
def test_a_registry_that_refuses_is_told_before_anything_is_fetched(
    ensure, publish, tmp_path, monkeypatch, status: int, code: str
) -> None:
    publish("alpha")
    monkeypatch.setattr(Registry, "_wait", lambda *_: None)

    def answer(request: Request) -> Answer:
        return Answer(404 if request.method == "HEAD" else status, b"", {})

    server = Server(answer).start()
    try:
        with pytest.raises(KineticError) as caught:
            ensure(["alpha"], repository=f"{server.url.removeprefix('http://')}/team/image")
    finally:
        server.close()

    assert caught.value.code == code
    assert caught.value.why
    assert caught.value.next
    assert not (tmp_path / "home/cache/wheels").exists()


def test_an_image_that_was_removed_is_built_again_with_the_same_digest(ensure, publish, registry, store, tmp_path):
    publish("alpha")
    found = ensure(["alpha"])
    for tag in [*registry.tags()]:
        if digest := registry.find_manifest(tag):
            registry.delete_manifest(digest) if tag != "base" else None
    assert registry.find_manifest(found.built.tag) is None

    same = bundled.rebuild(found.uri, found.lock_key, store, {"KINETIC_HOME": str(tmp_path / "home")})

    assert same
    assert registry.find_manifest(found.uri.partition("@")[2])


def test_an_image_is_built_again_with_the_login_of_an_index_that_only_its_project_names(
    ensure, publish, registry, store, tmp_path, monkeypatch
) -> None:
    acme = Index()
    acme.login = ("ci", "secret-word")
    acme(made_wheel(tmp_path / "acme", "ours", "1.0", {"ours.py": ""}))
    settings = [
        'project.name = "x"',
        'project.version = "0"',
        'project.dependencies = ["ours"]',
        f'tool.uv.index = [{{name = "acme", url = "{acme.simple}", explicit = true}}]',
        'tool.uv.sources.ours = [{index = "acme"}]',
    ]
    environ = {"KINETIC_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    for name, value in (("USERNAME", "ci"), ("PASSWORD", "secret-word")):
        monkeypatch.setenv(f"UV_INDEX_ACME_{name}", value)
        environ[f"UV_INDEX_ACME_{name}"] = value
    with contextlib.closing(acme):
        found = ensure(["ours", *(f"{SETTING}{line}" for line in settings)], environ=environ)
        for tag in [tag for tag in registry.tags() if tag != "base"]:
            if digest := registry.find_manifest(tag):
                registry.delete_manifest(digest)
        (tmp_path / "home/cache").rename(tmp_path / "cache of another machine")

        assert bundled.rebuild(found.uri, found.lock_key, store, environ)

    assert b"secret-word" not in store.get(found.lock_key)


@pytest.mark.parametrize(
    ("tags", "expected"), [(("7-pyX", "7"), "7-pyX"), (("7",), "7"), ((), None)], ids=["both", "plain", "none"]
)
def test_a_prebuilt_image_is_looked_for_with_its_python_first(registry, base, tags, expected) -> None:
    python = PYTHON
    name = f"{registry.host}/{registry.name}"
    for tag in tags:
        registry.tag(base.digest, tag.replace("X", python))

    if expected is None:
        with pytest.raises(ImageUnavailableError, match="there is no prebuilt image") as caught:
            bundled.find_published(name, "7", python, None, {})
        assert "kinetic build-image --repo" in (caught.value.next or "")
    else:
        assert bundled.find_published(name, "7", python, None, {}) == expected.replace("X", python)


def test_a_registry_of_prebuilt_images_that_does_not_answer_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it slept"))

    with pytest.raises((OSError, KineticError)):
        bundled.find_published("127.0.0.1:1/team/base-cpu", "7", PYTHON, None, {})


def test_progress_names_the_rate_and_the_time_left_once_they_mean_something() -> None:
    now = iter([100.0, 100.5, 110.0])
    lines = bundled._Lines(uv.Stop(), lambda: next(now))
    lines.sending(50_000_000)
    lines.sent(1_000_000)
    first = lines.detail()
    lines.sent(19_000_000)

    assert first == "1.0 MB of 50.0 MB sent"
    assert lines.detail() == "20.0 MB of 50.0 MB sent at 2.0 MB/s, 15 s left"


@pytest.mark.parametrize("kind", ["upload", "wheel"])
def test_a_build_that_is_to_stop_does_not_wait_for_servers_that_hang(
    ensure, publish, registry, index, kind: str
) -> None:
    publish("alpha")
    hangs, over, stop = threading.Event(), threading.Event(), uv.Stop()
    with RegistryProxy(registry.host, Rules()) as proxy:

        def hang() -> None:
            if any(method == "PUT" for method, _ in proxy.requests):
                hangs.set()
                over.wait(60)

        if kind == "upload":
            proxy.on_piece = hang
        else:
            index.gate.clear()
        begun = len(index.asked)
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(ensure, ["alpha"], repository=f"{proxy.address}/{registry.name}", stop=stop)
            limit = time.monotonic() + 60
            while not (
                hangs.is_set() or (kind == "wheel" and any(each.endswith(".whl") for each in index.asked[begun:]))
            ):
                assert time.monotonic() < limit
                time.sleep(0.01)
            asked = time.monotonic()
            stop.set()
            with pytest.raises(CancelledError):
                working.result(timeout=60)
            took = time.monotonic() - asked
            over.set()
            index.gate.set()

    assert took < 10, "it waited for a server that hangs"


@pytest.mark.parametrize("named_in", ["a line", "a variable"])
def test_the_login_in_the_address_of_an_index_fetches_its_wheels_and_is_kept_nowhere(
    ensure, publish, index, store, tmp_path, monkeypatch, named_in
) -> None:
    publish("alpha")
    index.login = ("ann", "hunter/2")
    address = index.simple.replace("://", "://ann:hunter%2F2@")
    variables = {"KINETIC_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "INDEX_PASSWORD": "hunter%2F2"}
    if named_in == "a line":
        monkeypatch.setenv("INDEX_PASSWORD", variables["INDEX_PASSWORD"])
        lines = [f"--extra-index-url {index.simple.replace('://', '://ann:${INDEX_PASSWORD}@')}", "alpha"]
    else:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        variables["UV_DEFAULT_INDEX"] = address
        lines = ["alpha"]

    found = ensure(lines, environ=variables)

    assert names(found) == {"alpha": "1.0", "obstore": "1.0", "uv": "1.0"}
    kept = [store.get(entry.key) for entry in store.entries("")]
    kept += [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert found.lock_key in {entry.key for entry in store.entries("")}
    assert not [data for data in kept if b"hunter" in data]
