"""Application default credentials: read by google-auth, without a command of Google's, refreshed when they end."""

from __future__ import annotations

import json
import socket
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import other_user
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from servers.scripted import Scripted, page

from kinetic._google import default_credentials
from kinetic._google import login as google_login
from kinetic._google.login import Tokens
from kinetic._stores import credentials
from kinetic._stores.protocol import parse_address
from kinetic.errors import BackendUnavailableError, CredentialsError

if TYPE_CHECKING:
    from servers.http11 import Answer


def issued(token: str, seconds: int = 3600) -> Answer:
    return page({"access_token": token, "expires_in": seconds, "token_type": "Bearer"})


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


@pytest.fixture
def login(tmp_path: Path, private_key: str) -> Callable[..., dict[str, str]]:
    """Return a function that writes a key file and returns the environment that leads to it.

    A key file and not a user's login: google-auth asks Google for the latter's tokens, whatever address the file has.
    """

    def write(server: str, **more: Any) -> dict[str, str]:
        account = {
            "type": "service_account",
            "client_email": "bot@p.iam.gserviceaccount.com",
            "private_key": private_key,
            "private_key_id": "1",
            "token_uri": f"{server}/token",
            **more,
        }
        (tmp_path / "application_default_credentials.json").write_text(json.dumps(account))
        return {"CLOUDSDK_CONFIG": str(tmp_path)}

    return write


def test_a_folder_of_google_that_only_another_user_may_enter_has_no_login(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    monkeypatch.setenv("HOME", str(tmp_path / "closed"))

    with other_user.without_rights():
        found = default_credentials.file_of({"CLOUDSDK_CONFIG": str(tmp_path / "closed")})
        looked_for = credentials.of_cloud(parse_address("gs://bucket")).sources()

    assert found is None
    assert "application_default_credentials.json (missing)" in looked_for


def test_a_key_becomes_a_token_that_is_used_until_it_ends(login) -> None:
    with Scripted(issued("one"), issued("two")) as server:
        tokens = Tokens(login(server.url))

        assert [tokens.get(), tokens.get()] == ["one", "one"]

    (asked,) = server.asked
    form = urllib.parse.parse_qs(asked.body.decode())
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]


def test_a_token_that_was_refused_is_exchanged(login) -> None:
    with Scripted(issued("one"), issued("two")) as server:
        tokens = Tokens(login(server.url))

        assert [tokens.get(), tokens.get("one"), tokens.get("one")] == ["one", "two", "two"]

    assert len(server.asked) == 2


def test_a_token_that_is_about_to_end_is_not_handed_out(login) -> None:
    with Scripted(issued("one", seconds=10), issued("two")) as server:
        tokens = Tokens(login(server.url))

        assert [tokens.get(), tokens.get()] == ["one", "two"]


def test_the_project_that_requests_count_for_is_known(login) -> None:
    with Scripted(issued("one")) as server:
        assert Tokens({**login(server.url), "GOOGLE_CLOUD_QUOTA_PROJECT": "billed"}).quota_project == "billed"
        assert Tokens(login(server.url)).quota_project == ""


def test_a_named_key_file_comes_before_a_login(login, tmp_path: Path) -> None:
    with Scripted(issued("one")) as server:
        environ = login(server.url)
        named = tmp_path / "other.json"
        named.write_text(json.dumps(json.loads((tmp_path / "application_default_credentials.json").read_text())))
        (tmp_path / "application_default_credentials.json").write_text("no JSON")

        assert Tokens({**environ, "GOOGLE_APPLICATION_CREDENTIALS": str(named)}).get() == "one"


def test_a_login_that_ended_says_how_to_log_in(login) -> None:
    answer = page({"error": "invalid_grant", "error_description": "Token has been expired or revoked."}, 400)
    with Scripted(answer) as server, pytest.raises(CredentialsError) as caught:
        Tokens(login(server.url)).get()

    assert "expired or revoked" in caught.value.why
    assert caught.value.next.startswith("gcloud auth application-default login")


def test_nobody_at_the_other_end_is_not_called_a_wrong_login(login) -> None:
    with Scripted(issued("one")) as server:
        environ = login(server.url)

    with pytest.raises(BackendUnavailableError):
        Tokens(environ).get()


def test_nobody_at_the_other_end_of_a_federated_login_is_not_called_a_wrong_login(tmp_path: Path) -> None:
    (tmp_path / "subject").write_text("token of the CI system")
    federated = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/ci/providers/ci",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "http://127.0.0.1:1/v1/token",
        "credential_source": {"file": str(tmp_path / "subject")},
    }
    file = tmp_path / "federated.json"
    file.write_text(json.dumps(federated))

    with pytest.raises(BackendUnavailableError, match="did not respond"):
        Tokens({"GOOGLE_APPLICATION_CREDENTIALS": str(file)}).get()


@pytest.mark.parametrize("content", ["", "no JSON", "{}", '{"type": "from the future"}'])
def test_a_file_that_is_no_login_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key.json"
    file.write_text(content)

    with pytest.raises(CredentialsError, match=r"key\.json"):
        Tokens({"GOOGLE_APPLICATION_CREDENTIALS": str(file)}).get()


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"gone\.json"):
        Tokens({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "gone.json")}).get()


def test_only_the_metadata_server_is_asked_without_tls_and_never_with_a_token() -> None:
    assert google_login._client_for({"Metadata-Flavor": "Google"})._plain_http
    assert not google_login._client_for({"Metadata-Flavor": "Google", "Authorization": "Bearer token"})._plain_http
    assert not google_login._client_for({})._plain_http


def test_the_metadata_server_which_only_this_machine_reaches_is_asked_without_a_proxy(monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    asked: list[str] = []

    def connect(address: tuple[str, int], *_: object, **__: object) -> NoReturn:
        asked.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(OSError):
        google_login.send("http://169.254.169.254", headers={"Metadata-Flavor": "Google"})

    assert asked == ["169.254.169.254"]
