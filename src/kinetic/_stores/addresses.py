"""What an address of a store says: ``gs://bucket/prefix`` taken apart, and where its service answers."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from kinetic.errors import OptionError

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")

# What stores read of the environment. A job that is to reach the same store needs the same variables.
CREDENTIAL_VARIABLES = (
    # Cloud Storage, as Google's own clients name them, and as obstore does
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SERVICE_ACCOUNT_PATH", "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST", "GCE_METADATA_IP",
    "GCE_METADATA_ROOT",
    # S3
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
    "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_METADATA_ENDPOINT",
)  # fmt: skip

# Those of them that say where a store is, and nothing about who we are: whoever can read pods may read them.
PUBLIC_VARIABLES = (
    "STORAGE_EMULATOR_HOST", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
)  # fmt: skip


class Address(NamedTuple):
    """Where a store in the cloud lies.

    Attributes:
        scheme: "gs" or "s3".
        bucket: Its name.
        prefix: Empty, or ends in "/".
    """

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The address in its one spelling."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def parse(url: str) -> Address:
    """Take ``gs://bucket/prefix`` or ``s3://bucket/prefix`` apart.

    Raises:
        OptionError: It has no bucket, or a prefix that no key could start with.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise OptionError(f"{url!r} names no bucket", why=f"{bucket!r} stands where the bucket's name belongs")
    prefix = prefix.strip("/")
    if prefix:
        from kinetic._stores.protocol import check_key

        check_key(prefix)
    return Address(scheme, bucket, prefix and prefix + "/")


def google_emulator() -> str | None:
    """Return the address of the emulator that Google's clients would use, or None for the real service."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not host:
        return None
    return host if "://" in host else f"http://{host}"
