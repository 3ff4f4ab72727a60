"""What we say when a bucket does not do what it was asked to: which one, as whom we came, and what to do."""

from __future__ import annotations

import configparser
import os
import re
import urllib.parse
from pathlib import Path

from kinetic._stores.addresses import Address
from kinetic.errors import CredentialsError, KeyMissingError, StoreError, StoreUnreachableError

# "Generic GCS error: Error performing PUT URL in 2.6ms, after 7 retries, max_retries: 7, retry_timeout: 120s  - WORDS"
_OF_OBSTORE = re.compile(
    r"Error performing (?P<verb>[A-Z]+) (?P<url>\S+) in \S+?(?P<tries>, after \d+ retries)?"
    r"(?:, max_retries: \d+)?(?:, retry_timeout: \S+)?\s+- (?P<said>.*)"
)
UNTRUSTED = "InvalidCertificate"  # in the pages of debugging: the server's was refused, and asking again is no use
_NOT_WELL = "Server returned non-2xx status code: "
_CODE = re.compile(r"<Code>([^<]+)</Code>")  # of the XML in which both services say what is wrong
GOOGLE_FILE = ".config/gcloud/application_default_credentials.json"
GOOGLE_NEXT = (
    "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file; the account needs "
    "the role Storage Object User on the bucket"
)
AMAZON_NEXT = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; where you log in with SSO or a role, run "
    'eval "$(aws configure export-credentials --format env)"'
)


def access_denied(address: Address, why: object) -> CredentialsError:
    """Say that we are not let in, and who we said we were."""
    google = address.scheme == "gs"
    return CredentialsError(
        f"{address.scheme}://{address.bucket} does not let us in",
        why=f"{brief(why)}; looked for {_google_credential_sources() if google else _amazon_credential_sources()}",
        next=GOOGLE_NEXT if google else AMAZON_NEXT,
    )


def key_missing(address: Address, key: str) -> KeyMissingError:
    """Say that nothing lies under a key."""
    return KeyMissingError(f"nothing is stored under {key!r}", why=f"looked in {address.url}")


def bucket_missing(address: Address, why: object) -> StoreError:
    """Say that the bucket does not exist."""
    return StoreError(
        f"the bucket {address.scheme}://{address.bucket} does not exist",
        why=brief(why),
        next="look at its spelling in KINETIC_STORE or the profile, or make it",
        code="store-missing",
    )


def unreachable(address: Address, key: str, why: object) -> StoreUnreachableError:
    """Say that no useful answer came, however often we asked."""
    return StoreUnreachableError(
        f"{address.scheme}://{address.bucket} did not answer for {key!r}",
        why=brief(why),
        next="look at the network and the service's status page, and try again: what was stored is stored",
    )


def brief(error: object) -> str:
    """Return what was asked and what the answer was: obstore's errors say it in pages of debugging."""
    line = str(error).partition("\n")[0]
    found = _OF_OBSTORE.search(line)
    if found is None:
        return line[:500]
    said, xml, _ = found["said"].removeprefix(_NOT_WELL).partition(": <")
    code = _CODE.search(found["said"]) if xml else None
    asked = f"{found['verb']} {urllib.parse.unquote(found['url'])}{found['tries'] or ''}"
    if UNTRUSTED in str(error):
        return f"{asked}: the server's certificate is not trusted"[:500]
    return f"{asked}: {said}{f': {code[1]}' if code else ''}"[:500]


def amazon_profile() -> str:
    """Return the name of the profile of the ``aws`` command that counts."""
    return os.environ.get("AWS_PROFILE") or "default"


def amazon_file() -> Path:
    """Return where ``aws configure`` writes keys."""
    return Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials")


def amazon_keys() -> dict[str, str]:
    """Read the keys of the profile, in obstore's words; empty where there are none."""
    file = amazon_file()
    if not file.is_file():
        return {}
    parser = configparser.RawConfigParser()
    parser.read(file, encoding="utf-8")
    profile = amazon_profile()
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    }
    return {ours: parser[profile][theirs] for theirs, ours in names.items() if parser.has_option(profile, theirs)}


def _google_credential_sources() -> str:
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    file = Path.home() / GOOGLE_FILE
    return (
        f"GOOGLE_APPLICATION_CREDENTIALS ({named or 'not set'}), {file} ({'there' if file.exists() else 'missing'}), "
        "the metadata server of Google's machines"
    )


def _amazon_credential_sources() -> str:
    key = os.environ.get("AWS_ACCESS_KEY_ID")
    return (
        f"AWS_ACCESS_KEY_ID ({f'ends in {key[-4:]}' if key else 'not set'}), the profile {amazon_profile()!r} of "
        f"{amazon_file()} (keys {'there' if amazon_keys() else 'none'}), AWS_WEB_IDENTITY_TOKEN_FILE, "
        "container credentials, the metadata server of Amazon's machines"
    )
