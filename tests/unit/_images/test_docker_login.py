"""Logins of registries are found where Docker and podman keep them, and a broken file or helper is said."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import other_user
import pytest

from kinetic._images.container_registry import Login
from kinetic._images.docker_login import find_login
from kinetic.errors import CredentialsError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run"), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes Docker's configuration, or another file like it."""

    def write(file: str = ".docker/config.json", **page: object) -> Path:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(page))
        return path

    return write


@pytest.fixture
def helper(tmp_path: Path) -> Callable[[str, str], None]:
    """Return a function that installs a credential helper: a shell script that has the host in $host."""

    def install(name: str, script: str) -> None:
        path = tmp_path / "bin" / f"docker-credential-{name}"
        path.write_text(f'#!/bin/sh\n[ "$1" = get ] || exit 9\nread host || true\n{script}\n')
        path.chmod(0o755)

    return install


def auth(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_password_is_read_and_may_contain_a_colon(environ, config) -> None:
    config(auths={"r.example.com": {"auth": auth("ann:pass:word")}})

    assert find_login("r.example.com", None, environ) == Login("ann", "pass:word")
    assert find_login("other.example.com", None, environ) == Login()


def test_an_identity_token_is_to_be_exchanged(environ, config) -> None:
    config(auths={"r.example.com": {"auth": "", "identitytoken": "long-lived"}})

    assert find_login("r.example.com", None, environ) == Login(refresh_token="long-lived")


def test_docker_hub_has_a_key_of_its_own(environ, config) -> None:
    config(auths={"https://index.docker.io/v1/": {"auth": auth("ann:secret")}})

    assert find_login("docker.io", None, environ) == Login("ann", "secret")


def test_the_file_that_a_variable_names_counts_first(environ, config) -> None:
    config(auths={"r.example.com": {"auth": auth("docker:1")}})
    named = config("auth.json", auths={"r.example.com": {"auth": auth("podman:2")}})

    assert find_login("r.example.com", None, environ | {"REGISTRY_AUTH_FILE": str(named)}) == Login("podman", "2")


def test_a_token_of_google_is_shown_to_its_own_registries_only(environ) -> None:
    def shown(host: str) -> str:
        return find_login(host, lambda _: "ya29", environ).token

    assert [shown(host) for host in ("gcr.io", "eu.gcr.io", "us-docker.pkg.dev")] == ["ya29"] * 3
    assert [shown(host) for host in ("notgcr.io", "gcr.io.example.com", "gcr.io:5000")] == [""] * 3


@pytest.mark.parametrize("place", ["xdg/containers", ".config/containers"])
def test_a_login_of_podman_is_found_where_podman_keeps_it(environ, config, tmp_path: Path, place: str) -> None:
    config(auths={"other.example.com": {"auth": auth("docker:1")}})
    (tmp_path / place).mkdir(parents=True)
    config(f"{place}/auth.json", auths={"r.example.com": {"auth": auth("podman:2")}})

    assert find_login("r.example.com", None, environ | {"XDG_RUNTIME_DIR": f"{tmp_path}/xdg"}) == Login("podman", "2")


def test_a_login_of_podman_for_a_part_of_a_registry_counts_there(environ, config, tmp_path: Path) -> None:
    # as `skopeo login HOST/team` of skopeo 1.9.3 writes it
    (tmp_path / ".config").mkdir()
    entries = {"r.example.com": "all:1", "r.example.com/team": "team:2", "docker.io/team": "hub:3"}
    config(".config/containers/auth.json", auths={name: {"auth": auth(login)} for name, login in entries.items()})

    def login(host: str, repository: str) -> str:
        return find_login(host, None, environ, repository=repository).user

    assert login("r.example.com", "team/jobs") == "team"
    assert login("r.example.com", "teams/jobs") == "all"
    assert login("docker.io", "team/jobs") == "hub"


def test_a_folder_that_only_another_user_may_enter_has_no_login(environ, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0)

    with other_user.without_rights():
        found = find_login("r.example.com", None, environ)

    assert found == Login()


def test_a_helper_of_one_registry_is_asked_for_that_one_and_the_store_for_all_others(environ, config, helper) -> None:
    config(credHelpers={"123.dkr.ecr.example.com": "ecr"}, credsStore="desktop")
    helper("ecr", """printf '{"Username":"AWS","Secret":"for %s"}' "$host" """)
    helper("desktop", """printf '{"Username":"<token>","Secret":"identity"}'""")

    assert find_login("123.dkr.ecr.example.com", None, environ) == Login("AWS", "for 123.dkr.ecr.example.com")
    assert find_login("r.example.com", None, environ) == Login(refresh_token="identity")


def test_a_helper_that_knows_nothing_leaves_it_to_the_file_and_to_google(environ, config, helper) -> None:
    config(credsStore="none", auths={"r.example.com": {"auth": auth("ann:secret")}})
    helper("none", "echo credentials not found in native keychain; exit 1")

    assert find_login("r.example.com", None, environ) == Login("ann", "secret")
    assert find_login("us-docker.pkg.dev", lambda rejected: f"ya29{rejected}", environ) == Login(token="ya29")


@pytest.mark.parametrize(
    ("page", "script", "why"),
    [
        ({"credsStore": "absent"}, "", "docker-credential-absent, which is not installed"),
        ({"credsStore": "mad"}, "echo the keychain is locked >&2; exit 1", "the keychain is locked"),
        ({"credsStore": "mad"}, """echo '{"Username":"a","Secret":"hidden"}'; exit 1""", "failed: exit 1"),
        ({"credsStore": "mad"}, "echo hidden", "printed no login"),
        ({"credsStore": "../mad"}, "", "not the name of a credential helper"),
        ({"auths": {"r.example.com": {"auth": "not base64"}}}, "", "is not base64"),
    ],
)
def test_what_does_not_work_is_said_and_no_secret_with_it(environ, config, helper, page, script, why) -> None:
    config(**page)
    helper("mad", script)

    with pytest.raises(CredentialsError, match="could not be read") as caught:
        find_login("r.example.com", None, environ)

    assert why in str(caught.value.why)
    assert "hidden" not in str(caught.value)
    assert caught.value.code == "registry-login"


def test_an_empty_file_has_no_logins_as_for_docker(environ, tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").touch()

    assert find_login("r.example.com", None, environ) == Login()


def test_a_damaged_file_is_named(environ, tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text('{"auths": ')

    with pytest.raises(CredentialsError, match="could not be read") as caught:
        find_login("r.example.com", None, environ)

    assert str(tmp_path / ".docker/config.json") in str(caught.value.why)
