"""Blobs and manifests go to a real registry and come back: directly, and behind what registries of clouds demand."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Iterator

import pytest
from servers.faults import Fault
from servers.image_fixtures import registry_address
from servers.registry_proxy import RegistryProxy, Rules

from kinetic._images.container_registry import MANIFEST, Login, Registry
from kinetic.errors import AccessDeniedError, CredentialsError, ImageBuildError, ImageError, ImageUnavailableError

__all__ = ["registry_address"]

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry
_names = itertools.count()
KINDS = {
    "artifact-registry": (Rules("token"), Login(token="ya29.first")),
    "password": (Rules("realm"), Login("ann", "secret")),
    "identity-token": (Rules("realm"), Login(refresh_token="identity")),
    "basic": (Rules("basic"), Login("ann", "secret")),
}


@pytest.fixture(params=["plain", *KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(kind: str, registry_address: str) -> Iterator[RegistryProxy | None]:
    if kind == "plain":
        yield None
        return
    with RegistryProxy(registry_address, KINDS[kind][0]) as started:
        yield started
        assert not started.leaked, "a login was shown to the host that takes uploads"


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def registry(kind: str, proxy: RegistryProxy | None, registry_address: str, waits: list[float]) -> Iterator[Registry]:
    login = KINDS[kind][1] if proxy else Login()
    host = proxy.address if proxy else registry_address
    with Registry(host, f"team/contract-{next(_names)}", lambda again: login, sleep=waits.append) as opened:
        yield opened


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def put(registry: Registry, data: bytes, **more: object) -> bool:
    return registry.put_blob(digest_of(data), len(data), lambda: io.BytesIO(data), **more)


def manifest(config: bytes, *layers: bytes) -> bytes:
    entry = lambda data, kind: {"mediaType": kind, "digest": digest_of(data), "size": len(data)}  # noqa: E731
    page = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": entry(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [entry(layer, "application/vnd.oci.image.layer.v1.tar+gzip") for layer in layers],
    }
    return json.dumps(page).encode()


def test_a_blob_that_was_sent_is_there_and_comes_back(registry: Registry) -> None:
    data = b"layer" * 1_000_000
    sent: list[int] = []

    assert not registry.has_blob(digest_of(data))
    assert put(registry, data, report=sent.append)

    assert registry.has_blob(digest_of(data))
    assert sum(sent) == len(data)
    sink = io.BytesIO()
    registry.read_blob(digest_of(data), sink)
    assert sink.getvalue() == data


def test_a_blob_of_another_name_is_there_afterwards_mounted_or_sent(registry: Registry, proxy) -> None:
    put(registry, b"shared")
    with Registry(registry.host, f"{registry.name}/another", registry.find_login) as other:
        assert put(other, b"shared", mount_from=registry.name) is (proxy is not None)
        assert other.has_blob(digest_of(b"shared"))


def test_a_mount_that_is_not_granted_becomes_an_upload(registry: Registry) -> None:
    assert put(registry, b"nobody has this", mount_from="team/nothing") is True


def test_bytes_that_are_not_those_of_the_digest_are_rejected(registry: Registry) -> None:
    with pytest.raises(ImageError, match="DIGEST_INVALID"):
        registry.put_blob(digest_of(b"right"), 5, lambda: io.BytesIO(b"wrong"))
    assert not registry.has_blob(digest_of(b"right"))


def test_a_tag_names_a_manifest_once_its_blobs_are_there(registry: Registry) -> None:
    page = manifest(b"{}", b"layer")
    with pytest.raises(ImageError, match="rejected PUT"):
        registry.put_manifest("v1", page)
    assert registry.find_manifest("v1") is None

    put(registry, b"{}")
    put(registry, b"layer")

    assert registry.put_manifest("v1", page) == digest_of(page)
    assert registry.find_manifest("v1") == digest_of(page)
    assert registry.read_manifest("v1") == (json.loads(page), digest_of(page))
    assert [*registry.tags()] == ["v1"]


def test_a_removed_manifest_is_gone_and_removing_it_twice_is_no_error(registry: Registry) -> None:
    put(registry, b"{}")
    digest = registry.put_manifest("old", manifest(b"{}"))

    assert registry.delete_manifest(digest)
    assert not registry.delete_manifest(digest)
    with pytest.raises(ImageUnavailableError, match="has no image old"):
        registry.read_manifest("old")


def test_a_repository_without_images_has_no_tags(registry: Registry) -> None:
    assert [*registry.tags()] == []


def test_an_unchanged_image_costs_one_request(registry: Registry) -> None:
    put(registry, b"{}")
    registry.put_manifest("env", manifest(b"{}"))
    before = registry.requests

    assert registry.find_manifest("env")

    assert registry.requests - before == 1


def test_a_fresh_client_finds_an_unchanged_image_with_few_requests(registry: Registry, kind: str) -> None:
    put(registry, b"{}")
    registry.put_manifest("env", manifest(b"{}"))

    with Registry(registry.host, registry.name, registry.find_login) as fresh:
        assert fresh.find_manifest("env")

    # A place of tokens, as Docker Hub has one, costs a third: rejected, token, answer.
    assert fresh.requests == {"plain": 1, "password": 3, "identity-token": 3}.get(kind, 2)


# ------------------------------------------------------------------------------------------ what goes wrong on the way


@pytest.fixture
def cloud(registry_address: str) -> Iterator[RegistryProxy]:
    with RegistryProxy(registry_address, Rules("token")) as started:
        yield started
        assert not started.leaked


@pytest.fixture
def client(cloud: RegistryProxy, waits: list[float]) -> Iterator[Registry]:
    with Registry(
        cloud.address, f"team/faults-{next(_names)}", lambda again: Login(token="ya29.first"), sleep=waits.append
    ) as opened:
        yield opened


@pytest.mark.parametrize("kind_of_fault", ["half", "drop", "lose", "status"])
def test_an_upload_that_breaks_begins_again_as_a_whole(cloud, client, waits, kind_of_fault: str) -> None:
    data = bytes(range(256)) * 20_000
    fault = Fault(kind_of_fault, method="PUT", target="uploads", times=2)
    cloud.faults.append(fault)
    reports: list[int] = []

    assert put(client, data, report=reports.append)

    assert fault.met == 2
    assert sum(reports) == len(data)
    assert len([1 for method, _ in cloud.requests if method == "PUT"]) == 3
    assert not [1 for method, _ in cloud.requests if method == "PATCH"]
    assert len(waits) == 2
    sink = io.BytesIO()
    client.read_blob(digest_of(data), sink)
    assert sink.getvalue() == data


def test_a_download_that_breaks_begins_again_and_keeps_nothing_of_the_first_part(cloud, client) -> None:
    data = bytes(range(256)) * 20_000
    put(client, data)
    cloud.faults.append(Fault("cut", method="GET", target="blobs", times=2))
    sink = io.BytesIO()
    sink.write(b"before ")

    client.read_blob(digest_of(data), sink)

    assert sink.getvalue() == b"before " + data


def test_a_manifest_that_is_cut_off_is_read_again(cloud, client) -> None:
    put(client, b"{}")
    client.put_manifest("env", manifest(b"{}"))
    cloud.faults.append(Fault("cut", method="GET", target="manifests"))

    assert client.read_manifest("env")[1] == digest_of(manifest(b"{}"))


def test_too_many_requests_are_repeated_after_the_time_that_the_registry_names(cloud, client, waits) -> None:
    cloud.faults.append(Fault("status", status=429, times=2))

    assert client.find_manifest("env") is None

    assert waits == [3.0, 3.0]


@pytest.mark.parametrize(("status", "code"), [(429, "registry-quota"), (503, "registry"), (403, "registry-denied")])
def test_what_persists_is_said_with_its_code_and_nothing_was_tagged(cloud, client, status: int, code: str) -> None:
    put(client, b"{}")
    cloud.faults.append(Fault("status", status=status, method="PUT", times=99))

    with pytest.raises((ImageBuildError, AccessDeniedError)) as caught:
        client.put_manifest("env", manifest(b"{}"))

    assert caught.value.code == code
    assert caught.value.next
    assert client.find_manifest("env") is None


def test_a_rejected_upload_says_why_although_the_connection_was_closed_early(cloud, client) -> None:
    cloud.faults.append(Fault("status", status=403, method="PUT", times=99))

    with pytest.raises(AccessDeniedError, match="403"):
        put(client, bytes(8_000_000))

    assert len([1 for method, _ in cloud.requests if method == "PUT"]) == 1


def test_a_token_that_expires_during_a_long_push_is_renewed_and_the_push_continues(registry_address: str) -> None:
    tokens = itertools.count()
    asked: list[bool] = []
    with RegistryProxy(registry_address, Rules("token", access_tokens={"t0"}, elsewhere=False)) as cloud:

        def login(*, again: bool) -> Login:
            asked.append(again)
            return Login(token=f"t{next(tokens)}")

        def expire() -> None:
            if cloud.up > 3_000_000:
                cloud.rules.access_tokens = {"t1"}

        cloud.on_piece = expire
        with Registry(cloud.address, f"team/long-{next(_names)}", login, sleep=lambda _: None) as registry:
            for number in range(6):
                assert put(registry, bytes([number]) * 1_000_000)

    assert asked == [False, True]


def test_tokens_of_a_place_of_tokens_are_renewed_once_for_all_threads(registry_address: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with (
        RegistryProxy(registry_address, Rules("realm")) as cloud,
        Registry(cloud.address, f"team/many-{next(_names)}", lambda again: Login("ann", "secret")) as registry,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(registry.has_blob, [digest_of(bytes([number])) for number in range(40)]))
        assert cloud.issued == 1
        cloud.expire_tokens()
        list(pool.map(registry.has_blob, [digest_of(bytes([number])) for number in range(40)]))
        assert cloud.issued == 2


@pytest.mark.parametrize(
    ("rules", "login"),
    [
        (Rules("token"), Login(token="ya29.wrong-token")),
        (Rules("realm"), Login("ann", "wrong-password")),
        (Rules("realm"), Login(refresh_token="wrong-identity")),
        (Rules("basic"), Login("ann", "wrong-password")),
        (Rules("basic"), Login()),
    ],
)
def test_a_wrong_login_is_an_error_that_does_not_repeat_it(registry_address: str, rules: Rules, login: Login) -> None:
    with (
        RegistryProxy(registry_address, rules) as cloud,
        Registry(cloud.address, "team/private", lambda again: login) as registry,
        pytest.raises(CredentialsError, match="rejected our credentials") as caught,
    ):
        registry.find_manifest("env")

    assert "wrong" not in f"{caught.value} {caught.value.why} {caught.value.next}"
    assert "docker login" in str(caught.value.next)


def test_a_configuration_that_is_too_long_is_not_read_to_its_end(registry: Registry) -> None:
    put(registry, bytes(6 << 20))

    with pytest.raises(ImageError, match="returned more than"):
        registry.small_blob(digest_of(bytes(6 << 20)))
