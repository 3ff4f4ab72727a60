"""Every error that is foreseen for images, raised by something real, in three parts, before anything is launched.

What makes an image is called by a submission before its order is written: an error here leaves no job behind, which
tests/flows/kube/test_images.py looks at in a cluster.
"""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.faults import Fault
from servers.image_fixtures import PYTHON, base_layer, put_base
from servers.registry_proxy import RegistryProxy, Rules
from servers.wheels import Index, made_wheel

from kinetic._images.container_registry import Registry
from kinetic.errors import KineticError

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry
DOCS = Path(__file__).parents[3] / "docs"


@dataclasses.dataclass
class Place:
    """Where an image is asked for, and everything that can be made to fail there."""

    ensure: Callable[..., Any]
    publish: Callable[..., None]
    index: Index
    registry: Registry
    proxy: RegistryProxy
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def image(self, *lines: str, **more: Any) -> Any:
        """Build the image of some lines behind the proxy."""
        repository = f"{self.proxy.address}/{self.registry.name}"
        return self.ensure([*lines] or ["alpha"], **{"repository": repository, **more})

    def refuse(self, status: int, method: str = "POST") -> None:
        self.proxy.faults.append(Fault("status", method=method, target="", times=float("inf"), status=status))
        self.monkeypatch.setattr(Registry, "_wait", lambda *_: None)


@pytest.fixture
def place(ensure, publish, index, registry, tmp_path, monkeypatch) -> Iterator[Place]:
    publish("alpha")
    with RegistryProxy(registry.host, Rules()) as proxy:
        yield Place(ensure, publish, index, registry, proxy, tmp_path, monkeypatch)


def no_solution(place: Place) -> None:
    place.image("alpha", "alpha==9")


def no_wheel_for_linux(place: Place) -> None:
    place.index(made_wheel(place.folder / "index", "beta", "1.0", {"beta.py": ""}, tag="cp311-cp311-win_amd64"))
    place.image("beta")


def no_wheel_for_arm(place: Place) -> None:
    tag = f"cp{PYTHON.replace('.', '')}-cp{PYTHON.replace('.', '')}-manylinux_2_17_x86_64"
    place.index(made_wheel(place.folder / "index", "beta", "1.0", {"beta.py": ""}, tag=tag))
    with Registry(place.registry.host, f"{place.registry.name}/arm", place.registry.find_login) as other:
        put_base(other, *base_layer(), {}, machine="aarch64")
    place.image("beta", machine="aarch64", base=f"{other.host}/{other.name}:base")


def source_only(place: Place) -> None:
    source = place.folder / "gamma-1.0"
    source.mkdir()
    (source / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: gamma\nVersion: 1.0\n")
    (source / "pyproject.toml").write_text('[project]\nname = "gamma"\nversion = "1.0"\n')
    with tarfile.open(place.folder / "index/gamma-1.0.tar.gz", "w:gz") as packed:
        packed.add(source, "gamma-1.0")
    place.index(place.folder / "index/gamma-1.0.tar.gz")
    place.image("gamma")


def index_wants_a_login(place: Place) -> None:
    place.index.login = ("ann", "secret")
    place.image()


def index_wants_a_login_for_wheels_only(place: Place) -> None:
    place.ensure(["alpha"], repository=f"{place.registry.host}/{place.registry.name}/first")
    for wheel in (place.folder / "home/cache/wheels").glob("*.whl"):
        wheel.unlink()
    place.index.login = ("ann", "secret")
    place.image("alpha")


def index_silent(place: Place) -> None:
    place.monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    place.monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    place.image()


def registry_silent(place: Place) -> None:
    place.monkeypatch.setattr(Registry, "_wait", lambda *_: None)
    place.image(repository="127.0.0.1:1/team/image")


def connection_cut_in_every_upload(place: Place) -> None:
    place.proxy.faults.append(Fault("half", method="PUT", target="", times=float("inf")))
    place.monkeypatch.setattr(Registry, "_wait", lambda *_: None)
    place.image()


def no_right_to_write(place: Place) -> None:
    place.refuse(403)
    place.image()


def repository_missing(place: Place) -> None:
    place.refuse(404)
    place.image()


def quota(place: Place) -> None:
    place.refuse(429)
    place.image()


def registry_wants_a_login(place: Place) -> None:
    place.proxy.rules.login = "realm"
    place.image()


def login_withdrawn_in_a_long_push(place: Place) -> None:
    (place.folder / ".docker").mkdir()
    page = {"auths": {place.proxy.address: {"auth": "YW5uOnNlY3JldA=="}}}  # ann:secret
    (place.folder / ".docker/config.json").write_text(json.dumps(page))
    place.proxy.rules.login = "realm"

    def withdraw() -> None:
        if any(method == "PUT" for method, _ in place.proxy.requests):
            place.proxy.rules.password = "another"
            place.proxy.expire_tokens()

    place.proxy.on_piece = withdraw
    place.image()


def no_base(place: Place) -> None:
    place.monkeypatch.setattr(Registry, "_wait", lambda *_: None)
    place.image(base="127.0.0.1:1/python:3")


def no_base_for_arm(place: Place) -> None:
    place.image(machine="aarch64")


def no_base_for_this_python(place: Place) -> None:
    place.image(base=f"{place.registry.host}/{place.registry.name}:3.99-slim")


def base_without_glibc(place: Place) -> None:
    with Registry(place.registry.host, f"{place.registry.name}/musl", place.registry.find_login) as other:
        put_base(other, b"no archive", f"sha256:{'0' * 64}", {})
    place.image(base=f"{other.host}/{other.name}:base")


def disk_full(place: Place) -> None:
    place.index(made_wheel(place.folder / "index", "large", "1.0", {"large.bin": bytes(range(256)) * 4000}))
    place.image("large", repository=f"{place.registry.host}/{place.registry.name}/first")
    for wheel in (place.folder / "home/cache/wheels").glob("*.whl"):
        wheel.unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # a write beyond it fails, as on a full disk
    try:
        place.image("large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def address_with_a_password(place: Place) -> None:
    address = place.index(made_wheel(place.folder / "index", "beta", "1.0", {"beta.py": ""}))
    place.image(f"beta @ {address.replace('://', '://ann:secret@')}")


def another_file_than_the_line_names(place: Place) -> None:
    place.image(f"alpha==1.0 --hash=sha256:{'0' * 64}")


def prebuilt_missing(place: Place) -> None:
    from kinetic._images import bundled

    bundled.find_published(f"{place.proxy.address}/{place.registry.name}/base-cpu", "7", PYTHON, None, {})


FORESEEN = {  # what docs/images.md lists: the code of each
    no_solution: "no-solution",
    no_wheel_for_linux: "no-solution",
    no_wheel_for_arm: "no-solution",
    no_base_for_arm: "image-unavailable",
    source_only: "source-only",
    index_wants_a_login: "index-login",
    index_wants_a_login_for_wheels_only: "index-login",
    index_silent: "index-silent",
    registry_silent: "registry-silent",
    connection_cut_in_every_upload: "registry-silent",
    no_right_to_write: "registry-denied",
    repository_missing: "registry-missing",
    quota: "registry-quota",
    registry_wants_a_login: "registry-login",
    login_withdrawn_in_a_long_push: "registry-login",
    no_base: "image-unavailable",
    no_base_for_this_python: "image-unavailable",
    base_without_glibc: "base-glibc",
    disk_full: "wheel-cache-full",
    address_with_a_password: "lock-credentials",
    another_file_than_the_line_names: "lock-hash",
    prebuilt_missing: "image-unavailable",
}


@pytest.mark.parametrize("happens", FORESEEN, ids=lambda each: each.__name__)
def test_what_is_foreseen_is_told_in_three_parts_and_no_tag_is_written(place: Place, happens: Any) -> None:
    with pytest.raises(KineticError) as caught:
        happens(place)

    assert caught.value.code == FORESEEN[happens]
    assert all((caught.value.what, caught.value.why, caught.value.next)), caught.value
    assert "secret" not in str(caught.value)
    place.proxy.faults.clear()
    assert not [tag for tag in place.registry.tags() if tag.startswith("env-")]


def test_all_errors_that_the_page_lists_are_in_this_table() -> None:
    page = (DOCS / "images.md").read_text().partition("## Errors")[2]
    listed = set(re.findall(r"`([a-z-]+)`", page))

    assert listed <= {*FORESEEN.values()}
    assert all(f"| `{code}` |" in (DOCS / "errors.md").read_text() for code in FORESEEN.values())
