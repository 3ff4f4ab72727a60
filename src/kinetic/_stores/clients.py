"""From an address and the environment to a client of obstore's. Only here is decided who we are to a cloud."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kinetic._stores import addresses, complaints
from kinetic._stores.addresses import Address
from kinetic._stores.retrying import Retry
from kinetic.errors import CredentialsError

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

# For one request, whose body is at most a piece of 8 MiB: passes at 35 KiB a second.
TIMEOUT = timedelta(seconds=240)


def client(address: Address, retry: Retry) -> GCSStore | S3Store:
    """Make the client; no request goes out yet.

    Raises:
        CredentialsError: The environment names credentials that cannot be read.
    """
    options: dict[str, Any] = {
        "client_options": {"timeout": TIMEOUT, "connect_timeout": timedelta(seconds=10), "user_agent": "kinetic"},
        "retry_config": {
            "max_retries": retry.attempts - 1,
            "retry_timeout": timedelta(seconds=retry.total_seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=retry.first_seconds),
                "max_backoff": timedelta(seconds=retry.most_seconds),
            },
        },
    }
    from obstore.exceptions import BaseError

    try:
        return _google(address, options) if address.scheme == "gs" else _amazon(address, options)
    except (BaseError, OSError, ValueError) as error:
        raise CredentialsError(
            f"the credentials for {address.url} cannot be used",
            why=complaints.short(error),
            next=complaints.GOOGLE_NEXT if address.scheme == "gs" else complaints.AMAZON_NEXT,
        ) from error


def _google(address: Address, options: dict[str, Any]) -> GCSStore:
    from obstore.store import GCSStore

    emulator = addresses.google_emulator()
    if emulator is None:
        return GCSStore(address.bucket, **options)
    options["client_options"]["allow_http"] = True
    # Always a token: without one obstore asks the metadata server, even for an emulator.
    return GCSStore(address.bucket, config={"base_url": emulator, "bearer_token": "emulator"}, **options)


def _amazon(address: Address, options: dict[str, Any]) -> S3Store:
    from obstore.store import S3Store

    environ = os.environ
    config: Any = {
        "region": environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        "copy_if_not_exists": "multipart",  # the only conditional copy of S3
    }
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
        options["client_options"]["allow_http"] = endpoint.startswith("http://")
    if not environ.get("AWS_ACCESS_KEY_ID") and not environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        config |= complaints.amazon_keys()  # obstore does not look there
    return S3Store(address.bucket, config=config, **options)
