"""Where an image is built: here while the uplink allows it, elsewhere with the reason, and never nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.registry import anonymous

from kinetic._images import builders, pod_build, uplink, wheels
from kinetic._images.builders import NotWaitingError, RemoteImage, UnavailableError
from kinetic._images.container_registry import Registry
from kinetic._images.image import BuiltImage, ImageBuilder, Progress
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform, Source
from kinetic._images.request import BuildRequest, logins, with_folders
from kinetic._images.uplink import Meter, SlowUplinkError, Uplinks
from kinetic.errors import ImageBuildError

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry
MEGABYTE = 1_000_000


class Elsewhere:
    """A builder that notes what it is asked for."""

    builds_sources = True

    def __init__(self, where: str = "a pod of the cluster", error: Exception | None = None) -> None:
        self.where, self.error, self.asked = where, error, list[tuple[BuildRequest, bool]]()

    def build(self, request: BuildRequest, *, waits: bool) -> RemoteImage:
        self.asked.append((request, waits))
        if self.error:
            raise self.error
        return RemoteImage(BuiltImage("made@sha256:elsewhere", "env-1", 0, 0, 0.0), (), lambda: None)


@pytest.fixture
def uplinks(tmp_path: Path) -> Uplinks:
    return Uplinks(tmp_path / "cache/uplink.json", lambda: 1000.0)


@pytest.fixture
def make(registry: Registry, base, cache, wheel, lock_of, uplinks) -> Callable[..., RemoteImage]:
    """Return a function that builds an image of one package of 100 kB."""
    made = wheel("alpha", alpha=os.urandom(100_000))

    def build(*remotes: Elsewhere, lock: Lock | None = None, **more: Any) -> RemoteImage:
        source = f"{registry.host}/{registry.name}@{base.digest}"
        request = BuildRequest(lock or lock_of(made), base, source, f"{registry.host}/{registry.name}")
        return builders.build(
            request,
            ImageBuilder(registry, cache),
            lambda reference: Registry(reference.host, reference.name, anonymous),
            Progress(),
            uplinks,
            remotes,
            phase=contextlib.nullcontext,
            **more,
        )

    return build


def without_wheels() -> Lock:
    text = """
[[packages]]
name = "compiled"
version = "1.0"
sdist = { url = "http://index/compiled-1.0.tar.gz", hashes = { sha256 = "00" } }
"""
    return Lock(Platform("3.12", "x86_64", "2_36"), (), ("compiled",), text)


def test_an_image_is_built_here_where_nothing_is_known_of_a_slow_uplink(make, capsys) -> None:
    remote = Elsewhere()

    found = make(remote)

    assert "@sha256:" in found.built.uri
    assert remote.asked == []
    assert "building the image" not in capsys.readouterr().err  # its end is worth a line, its beginning is not


def test_what_takes_long_to_send_from_here_says_so_before(make, uplinks, registry, capsys) -> None:
    uplinks.note(registry.host, 10_000.0)

    make(Elsewhere())

    said = capsys.readouterr().err
    assert re.search(r"building the image here: \d+\.\d kB, about 1\d s to send to 127", said), said


def test_a_slow_uplink_sends_the_build_elsewhere_with_the_reason(make, uplinks, registry, capsys) -> None:
    uplinks.note(registry.host, 500.0)
    remote = Elsewhere()

    assert make(remote).built.uri == "made@sha256:elsewhere"
    assert len(remote.asked) == 1
    said = capsys.readouterr().err
    assert "building the image in a pod of the cluster: to send" in said
    assert "from here would take" in said


def test_a_builder_that_cannot_be_used_is_passed_over_and_at_last_this_machine_builds(
    make, uplinks, registry, capsys
) -> None:
    uplinks.note(registry.host, 500.0)
    first = Elsewhere(error=UnavailableError("no pod of the cluster can build it", why="no CPU machine"))
    second = Elsewhere("Cloud Build", error=UnavailableError("Cloud Build is off", why="403"))

    found = make(first, second)

    assert len(first.asked) == len(second.asked) == 1
    assert found.built.sent_bytes > 0
    assert "no pod of the cluster can build it: no CPU machine" in capsys.readouterr().err


def test_without_a_builder_elsewhere_a_slow_uplink_is_used_all_the_same(make, uplinks, registry) -> None:
    uplinks.note(registry.host, 500.0)

    assert make().built.sent_bytes > 0


def test_packages_without_wheels_need_a_builder_that_compiles(make) -> None:
    remote = Elsewhere()

    assert make(remote, lock=without_wheels()).built.uri == "made@sha256:elsewhere"
    remote.builds_sources = False
    with pytest.raises(ImageBuildError, match="compiled cannot be put into an image") as caught:
        make(remote, lock=without_wheels())
    assert caught.value.code == "source-only"


def test_whoever_does_not_wait_is_told_so(make, uplinks, registry) -> None:
    uplinks.note(registry.host, 500.0)
    remote = Elsewhere(error=NotWaitingError("it is being built"))

    with pytest.raises(NotWaitingError):
        make(remote, waits=False)

    assert remote.asked[0][1] is False


def test_a_request_and_its_sources_survive_as_plain_values(base, wheel) -> None:
    lock = Lock(without_wheels().platform, (wheel("alpha"),), ("compiled",), without_wheels().text)
    request = BuildRequest(lock, base, "registry/base@sha256:1", "registry/jobs")

    found, sources = BuildRequest.from_json(request.to_json())

    assert found == request._replace(lock=found.lock)
    assert (found.lock.wheels, found.lock.digest) == (lock.wheels, lock.digest)
    assert sources == [Source("compiled", "1.0", "compiled-1.0.tar.gz", "http://index/compiled-1.0.tar.gz", "00")]


def test_passwords_of_indexes_and_registries_go_along_and_nothing_else(base, wheel, tmp_path) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / "config.json").write_text('{"auths": {"registry.test": {"auth": "bWU6aGVyZQ=="}, "other.test": {}}}')
    environ = {"NETRC": str(tmp_path / "netrc"), "DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
    made = wheel("alpha")
    request = BuildRequest(
        Lock(without_wheels().platform, (made,), (), ""), base, f"base.test/p@sha256:{'0' * 64}", "registry.test/jobs"
    )

    found = logins(request, environ)

    host = made.url.split("/")[2]
    registries, indexes = {"registry.test": ["me", "here"]}, {host: ["me", "secret"]}
    assert found == {"registries": registries, "indexes": indexes, "folders": {}}
    in_address = request._replace(indexes=(f"http://ann:%40@{host}/simple",))
    assert logins(in_address, environ)["indexes"] == {host: ["ann", "@"]}
    assert logins(request._replace(indexes=(f"https://ann:no@{host}/simple",)), environ) == found
    assert "ann" not in str(in_address.to_json())


def test_a_builder_elsewhere_has_the_login_of_each_index_of_a_host(base, tmp_path) -> None:
    # as of two projects of GitLab, each with a deploy token
    project = "https://gitlab.example/api/v4/projects/{}/packages/pypi"
    addresses = [f"{project.format(number)}/files/ab/alpha-1.0-py3-none-any.whl" for number in (1, 12)]
    made = tuple(Wheel(f"alpha{number}", "1.0", "alpha", "00", 1, url) for number, url in enumerate(addresses))
    named = [
        f"{project.format(number)}/simple".replace("://", f"://ci:{word}@") for number, word in ((1, "a"), (12, "b"))
    ]
    request = BuildRequest(
        Lock(without_wheels().platform, made, (), ""), base, "base.test/p", "r.test/jobs", tuple(named)
    )

    there = json.loads(json.dumps(logins(request, {"HOME": str(tmp_path)})))

    environ = with_folders({"HOME": str(tmp_path)}, there)
    assert [wheels.find_login(address, environ) for address in addresses] == [("ci", "a"), ("ci", "b")]


@pytest.mark.parametrize("login", [("me", 'a b\\c"d#e'), ("token", ""), ("", "token")])
def test_a_builder_elsewhere_shows_an_index_the_very_login_whatever_is_in_it(tmp_path, login) -> None:
    given = {"one.test": list(login), "two.test:8080": ["ann", "plain"]}

    environ = {"NETRC": str(pod_build._write_netrc(tmp_path / "netrc", given))}

    assert wheels.find_login("https://one.test/alpha.whl", environ) == login
    assert wheels.find_login("https://two.test:8080/beta.whl", environ) == ("ann", "plain")


# ------------------------------------------------------------------------------------------------------------- uplink


class Clock:
    """Stands still until it is told otherwise."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_first_megabytes_tell_that_a_line_is_too_slow() -> None:
    clock = Clock()
    meter = Meter(Progress(), 100 * MEGABYTE, gives_up=True, clock=clock)
    meter.sending(100 * MEGABYTE)
    for _ in range(4):
        clock.seconds += 1
        meter.sent(MEGABYTE)

    clock.seconds += 1
    with pytest.raises(SlowUplinkError):
        meter.sent(MEGABYTE)

    assert meter.rate == MEGABYTE
    assert meter.rate * uplink.PATIENCE_SECONDS < 95 * MEGABYTE


def test_a_line_that_takes_less_than_a_minute_is_not_given_up() -> None:
    clock = Clock()
    meter = Meter(Progress(), 50 * MEGABYTE, gives_up=True, clock=clock)
    meter.sending(50 * MEGABYTE)
    for _ in range(50):
        clock.seconds += 1
        meter.sent(MEGABYTE)

    assert meter.rate == MEGABYTE


def test_time_in_which_nothing_is_there_to_send_says_nothing_about_the_line() -> None:
    clock = Clock()
    meter = Meter(Progress(), 50 * MEGABYTE, gives_up=True, clock=clock)
    for _ in range(5):
        clock.seconds += 60  # a package is fetched and written
        meter.sending(10 * MEGABYTE)
        for _ in range(10):
            clock.seconds += 1
            meter.sent(MEGABYTE)

    assert meter.rate == MEGABYTE


def test_a_rate_is_remembered_for_hours_and_by_host(tmp_path) -> None:
    file = tmp_path / "uplink.json"
    Uplinks(file, lambda: 1000.0).note("one", 5.0)
    Uplinks(file, lambda: 1000.0).note("two", 7.0)

    assert Uplinks(file, lambda: 2000.0).rate("one") == 5.0
    assert Uplinks(file, lambda: 2000.0).rate("two") == 7.0
    assert Uplinks(file, lambda: 2000.0).rate("three") is None
    assert Uplinks(file, lambda: 1000.0 + 24 * 3600).rate("one") is None
    file.write_text("{")
    assert Uplinks(file, lambda: 2000.0).rate("one") is None
