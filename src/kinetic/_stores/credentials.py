"""Who we are to each cloud: where its credentials are found, what a client is made with, and what a refusal advises."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._stores import protocol
from kinetic._stores.protocol import Address
from kinetic._wire import NamedTuple
from kinetic.errors import CredentialsError, KineticError

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

refused: dict[str, KineticError] = {}  # by their type and first line, as obstore names them: with what logins ended


class Cloud(NamedTuple):
    """What is particular about a cloud."""

    client: Callable[[str, dict[str, Any]], Any]  # makes that of a bucket; no request is sent yet
    rights: str  # that an account needs
    login: str  # how a user gets credentials
    sources: Callable[[], str]  # where credentials were looked for


def of_cloud(address: Address) -> Cloud:
    """Return what is particular about the cloud of an address."""
    if address.scheme == "az":
        from kinetic._stores import azure  # few need it

        return Cloud(azure.client, azure.RIGHTS, azure.LOGIN, azure.sources)
    return _CLOUDS[address.scheme]


def next_step(address: Address) -> str:
    """Return what to do about credentials that were refused."""
    cloud = of_cloud(address)
    if "KUBERNETES_SERVICE_HOST" in os.environ:  # in a pod nobody can log in
        return f"give the pod's service account {cloud.rights}"
    return f"{cloud.login}; the account needs {cloud.rights}"


def told(credential: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Keep the error of a login: obstore's has its first line only."""

    def asked() -> dict[str, Any]:
        try:
            return credential()
        except KineticError as error:
            refused[f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"] = error
            raise

    return asked


# --------------------------------------------------------------------------------------------------------- Google Cloud

_GOOGLE_FILE = ".config/gcloud/application_default_credentials.json"
_GOOGLE_KEYS = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")  # obstore's own
_READ_BY_OBSTORE = frozenset({"service_account", "authorized_user"})


def _google_client(bucket: str, options: dict[str, Any]) -> GCSStore:
    from obstore.store import GCSStore

    emulator = protocol.google_emulator()
    if emulator is None:
        return GCSStore(bucket, **options, **google_login())
    options["client_options"]["allow_http"] = True
    # Always a token: without one obstore asks the metadata server, even for an emulator.
    return GCSStore(bucket, config={"base_url": emulator, "bearer_token": "emulator"}, **options)


def google_login() -> dict[str, Any]:
    """Return what obstore is told of a login that it does not find or cannot read: federated, impersonated, moved."""
    if any(map(os.environ.get, _GOOGLE_KEYS)):
        return {}
    from kinetic._google import default_credentials

    kind = default_credentials.kind_of(os.environ)
    if kind in _READ_BY_OBSTORE and os.environ.get("CLOUDSDK_CONFIG"):
        return {"config": {"application_credentials": str(default_credentials.file_of(os.environ))}}
    if not kind or kind in _READ_BY_OBSTORE:
        return {}
    from kinetic._google import login  # few pods have such a login

    tokens = login.Tokens(os.environ)

    def credential() -> dict[str, Any]:
        token, expires = tokens.with_expiry()
        return {"token": token, "expires_at": expires}

    return {"credential_provider": told(credential)}


def _google_sources() -> str:
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    file = Path.home() / _GOOGLE_FILE
    return (
        f"GOOGLE_APPLICATION_CREDENTIALS ({named or 'not set'}), {file} "
        f"({'there' if os.path.exists(file) else 'missing'}), the metadata server of Google's machines"
    )


# ------------------------------------------------------------------------------------------------------------ Amazon S3

# Settings of a profile with which only the ``aws`` command, or the libraries of Amazon, find keys.
_BY_COMMAND = frozenset({"credential_process", "login_session", "role_arn", "sso_session", "sso_start_url"})
_COMMAND_SECONDS = 60.0  # a role is assumed over the network


def _amazon_client(bucket: str, options: dict[str, Any]) -> S3Store:
    from obstore.store import S3Store

    environ = os.environ
    config: Any = {
        "region": amazon_region(),
        "copy_if_not_exists": "multipart",  # the only conditional copy of S3
    }
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
        options["client_options"]["allow_http"] = endpoint.startswith("http://")
    if not environ.get("AWS_ACCESS_KEY_ID") and not environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        keys = _amazon_keys()  # obstore does not look there
        config |= keys
        if not keys and any(name in _amazon_settings() for name in _BY_COMMAND):
            options["credential_provider"] = told(_amazon_login)
    return S3Store(bucket, config=config, **options)


def amazon_region() -> str:
    """Return the region of buckets in S3: that of the environment, else of the profile, else Amazon's first."""
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return named or _amazon_settings().get("region") or "us-east-1"


def _amazon_login() -> dict[str, Any]:
    """Ask the ``aws`` command for keys, as its profile has a role, single sign-on or a process for them."""
    import json
    import subprocess
    from datetime import datetime

    profile, _ = _amazon_profile()
    words = ["aws", "configure", "export-credentials", "--profile", profile, "--format", "process"]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
        page = json.loads(done.stdout) if done.returncode == 0 else {}
        why = done.stderr.strip()
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        page, why = {}, str(error)
    if not isinstance(page, dict) or not page.get("AccessKeyId"):
        raise CredentialsError(
            f"{' '.join(words)} returned no keys",
            why=why[-500:],
            next=f"aws sso login --profile {profile}     with version 2 of the AWS CLI; version 1 does not export keys",
        )
    expires = page.get("Expiration")
    return {
        "access_key_id": page["AccessKeyId"],
        "secret_access_key": page["SecretAccessKey"],
        "token": page.get("SessionToken"),
        "expires_at": datetime.fromisoformat(expires) if expires else None,
    }


def _amazon_profile() -> tuple[str, Path]:
    """Return the name of the profile of the ``aws`` command that counts, and the file of its keys."""
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    return os.environ.get("AWS_PROFILE") or "default", Path(file or Path.home() / ".aws" / "credentials")


def _amazon_settings() -> dict[str, str]:
    """Read what both files of the ``aws`` command say of the profile; that of its keys counts more."""
    import configparser  # 2 ms; only for S3, without all of it in the environment

    profile, keys = _amazon_profile()
    config = Path(os.environ.get("AWS_CONFIG_FILE") or Path.home() / ".aws" / "config")
    found: dict[str, str] = {}
    for file, section in ((config, profile if profile == "default" else f"profile {profile}"), (keys, profile)):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except configparser.Error as error:
            raise ValueError(f"{file}: {error}") from error
        if parser.has_section(section):
            found |= parser[section]
    return found


def _amazon_keys() -> dict[str, str]:
    """Return the keys of the profile, in obstore's words; empty where there are none."""
    found, names = _amazon_settings(), ("access_key_id", "secret_access_key", "session_token")
    return {name: found[f"aws_{name}"] for name in names if f"aws_{name}" in found}


def _amazon_sources() -> str:
    key = os.environ.get("AWS_ACCESS_KEY_ID")
    profile, file = _amazon_profile()
    return (
        f"AWS_ACCESS_KEY_ID ({f'ends in {key[-4:]}' if key else 'not set'}), the profile {profile!r} of "
        f"{file} (keys {'there' if _amazon_keys() else 'none'}), AWS_WEB_IDENTITY_TOKEN_FILE, "
        "container credentials, the metadata server of Amazon's machines"
    )


_CLOUDS = {
    "gs": Cloud(
        _google_client,
        "the role Storage Object User (roles/storage.objectUser) on the bucket",
        "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
        _google_sources,
    ),
    "s3": Cloud(
        _amazon_client,
        "s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and s3:DeleteObject on its objects",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in: aws configure, aws sso login",
        _amazon_sources,
    ),
}
