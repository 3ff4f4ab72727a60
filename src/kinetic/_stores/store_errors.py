"""What went wrong with a bucket, in our words: the errors of obstore are pages of debugging."""

from __future__ import annotations

import re
import urllib.parse

from kinetic._stores import credentials
from kinetic._stores.obstore_client import (
    BUSY,
    DEBUG,
    EXPIRED,
    OTHER_REGION,
    SIGN_IN,
    UNSUPPORTED,
    UNTRUSTED,
    code_in,
    is_missing,
    login_error,
    names_no_bucket,
    status_of,
)
from kinetic._stores.protocol import Address
from kinetic._wire import addresses, python_runtime
from kinetic.errors import CredentialsError, KineticError, StoreError, StoreUnreachableError

# "Generic GCS error: Error performing PUT URL in 2.6ms, after 7 retries, max_retries: 7, retry_timeout: 120s  - WORDS"
_OF_OBSTORE = (
    r"Error performing (?P<verb>[A-Z]+) (?P<url>\S+) in \S+?(?P<tries>, after \d+ retries)?"
    r"(?:, max_retries: \d+)?(?:, retry_timeout: \S+)?\s+- (?P<said>.*)"
)
_OF_PROXY = r"\b(?:ConnectFailed|ProxyAuthRequired)\b"  # in the debug text: it was the proxy that did not connect
_NO_LOGIN = "ProxyAuthRequired"  # in the debug text
_LOGIN = (
    "put the login of the proxy into its address: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT, @ and : as %40 and %3A"
)
_CAUSE = r'(?:message|error): "([^"\n]+)"|\b(ProxyAuthRequired|TimedOut)\b'  # the last one: why no connection was made
_MESSAGE = r"<(?:Details|Message|AuthenticationErrorDetail)>([^<\n]+)"
_MAY_NOT = frozenset({"AccessDenied", "AuthorizationPermissionMismatch"})  # the latter is Azure's
TWICE = "an object was created a second time under the same key"
_SKEWED = "RequestTimeTooSkewed|Request date header too old"
_CHECKSUM = "export AWS_CHECKSUM_ALGORITHM=sha256     as a bucket with Object Lock wants a checksum of each object"
_CLOCK = "set the clock of this machine, e.g. sudo timedatectl set-ntp true"


def translated(error: BaseException, address: Address, key: str) -> KineticError | None:
    """Return the error of ours for one of obstore's other than that an object is missing; None for any other."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    bucket = f"{address.scheme}://{address.bucket}"
    status = status_of(error) if isinstance(error, BaseError) else None
    if (is_missing(error) or status == 404) and names_no_bucket(error):
        return StoreError(
            f"the bucket {bucket} does not exist",
            why=brief(error),
            next="check its spelling in KINETIC_STORE or the profile, or create it",
            code="store-missing",
        )
    if isinstance(error, ValueError) and "parse path" in str(error):
        return StoreError(f"{key!r} cannot be requested", why=brief(error))
    if not isinstance(error, BaseError):
        return None
    if (login := login_error(error)) is not None:
        return login
    cloud, code = credentials.of_cloud(address), code_in(error)
    if address.scheme == "s3" and (region := re.search(OTHER_REGION, str(error))):
        ask = f"REGION     from: aws s3api get-bucket-location --bucket {address.bucket}"
        return StoreError(
            f"{bucket} is not in the region {credentials.amazon_region()}",
            why=brief(error),
            next=f"export AWS_REGION={region[1] or ask}",
            code="store-region",
        )
    if code in _MAY_NOT:
        return CredentialsError(
            f"{bucket} does not let our account do that",
            why=brief(error),
            next=f"check that the bucket is yours; if so, give the account {cloud.rights}",
        )
    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in {401, 403}
    refused |= code in EXPIRED or (
        address.scheme == "s3" and status == 400 and not code
    )  # HEAD has no body that would name it
    if re.search(_SKEWED, str(error)):
        return CredentialsError(f"{bucket} rejected the time of our request", why=brief(error), next=_CLOCK)
    if refused or re.search(SIGN_IN, str(error).partition("\n")[0]):
        return CredentialsError(
            f"{bucket} rejected our credentials",
            why=f"{brief(error)}; looked for {cloud.sources()}",
            next=credentials.next_step(address),
        )
    if status is None or (status >= 500 and status != UNSUPPORTED) or status in BUSY:
        return unreachable(address, key, error)
    next_ = _CHECKSUM if re.search("Content-MD5|x-amz-checksum", str(error).partition(DEBUG)[0]) else None
    return StoreError(f"the store rejected the request{_for(key)}", why=brief(error), next=next_)


def _for(key: str) -> str:
    return f" for {key!r}" if key else ""  # of a list of all


def unconditional(url: str, why: str) -> StoreError:
    """Return the error that a store cannot be used."""
    return StoreError(
        f"{url} does not support conditional writes, so results in it could be lost",
        why=why,
        next="use a service that honors If-None-Match: Amazon S3, Cloud Storage, Azure, Ceph, or MinIO since 2024",
        code="store-unconditional",
    )


def too_large(most: int) -> StoreError:
    """Return the error that an object has more bytes than a service copies in one step."""
    return StoreError(
        f"an object of more than {most >> 30} GiB cannot be created in S3 in one step",
        next="make it smaller, e.g. save large arrays to files of their own below KINETIC_OUTPUT_DIR",
    )


def unreachable(address: Address, key: str, error: BaseException) -> StoreUnreachableError:
    """Return the error that no useful answer came, however often we asked."""
    network = "check the network and the service's status page, and try again; what was stored is safe"
    return StoreUnreachableError(
        f"{address.scheme}://{address.bucket} did not answer{_for(key)}",
        why=brief(error),
        next=python_runtime.TRUST if UNTRUSTED in str(error) else _LOGIN if _NO_LOGIN in str(error) else network,
    )


def brief(error: object) -> str:
    """Return what was asked and what the answer was: obstore's errors say it in pages of debugging."""
    told = addresses.without_secrets(str(error).partition(DEBUG)[0])  # an endpoint may have a login
    line = told.partition("\n")[0]
    found = re.search(_OF_OBSTORE, line)
    if found is None:
        return line[:500]
    said, _, _ = found["said"].removeprefix("Server returned non-2xx status code: ").partition(": <")
    code, message = code_in(error), re.findall(_MESSAGE, told)[-1:]  # details are the last, and say more
    asked = f"{found['verb']} {urllib.parse.unquote(found['url'])}{found['tries'] or ''}"
    if UNTRUSTED in str(error):
        return f"{asked}: the server's certificate is not trusted"[:500]
    if said.startswith("HTTP error"):
        through = ["the proxy"] if re.search(_OF_PROXY, str(error)) else []
        message = through + [text or word for text, word in re.findall(_CAUSE, str(error))[-1:]]
    return ": ".join(filter(None, [asked, said.removesuffix(": "), code, *message]))[:500]
