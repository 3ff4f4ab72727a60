"""Requests through obstore: repeated where that is safe, interruptible by Ctrl-C, with errors of ours."""

from __future__ import annotations

import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._stores import parallel, protocol
from kinetic._stores.parallel import Retry
from kinetic._stores.protocol import Address
from kinetic._wire import python_runtime
from kinetic.errors import (
    BackendUnavailableError,
    CredentialsError,
    KeyMissingError,
    KineticError,
    StoreError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import GCSStore, S3Store

T = TypeVar("T")

TIMEOUT = timedelta(seconds=240)  # for one request, whose body is at most a piece of 8 MiB: passes at 35 KiB a second
_STATUS = r"status code: (\d{3})"
_NO_RETRY = r"(?<!_)retries: 0,"  # in the debug text; "max_retries: 0" is something else
_RETRIES = r"(?<!_)retries: (\d+),\s*max_retries: (\d+)"
_NO_BUCKET = r"(?i)NoSuchBucket|bucket does not exist"
_SIGN_IN = r"(?i)token request|computeMetadata|/latest/(?:api/token|meta-data)|oauth2|AssumeRole|credential"
_BUSY = frozenset({408, 429})  # obstore repeats after 5xx, not after these
# "Generic GCS error: Error performing PUT URL in 2.6ms, after 7 retries, max_retries: 7, retry_timeout: 120s  - WORDS"
_OF_OBSTORE = (
    r"Error performing (?P<verb>[A-Z]+) (?P<url>\S+) in \S+?(?P<tries>, after \d+ retries)?"
    r"(?:, max_retries: \d+)?(?:, retry_timeout: \S+)?\s+- (?P<said>.*)"
)
_UNTRUSTED = "InvalidCertificate"  # in the debug text: the server's was refused, and asking again does not help
_CODE = r"<Code>([^<]+)</Code>"  # of the XML in which both services say what is wrong

_MESSAGE = r"<(?:Details|Message)>([^<]+)</"
_EXPIRED = frozenset({"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"})  # S3's
_OTHER_REGION = r"configured region|<Region>([^<]*)<"  # of a redirect, and of a body

_OF_LOGIN = r"External \w+ credential provider: (.+)"

_refused: dict[str, KineticError] = {}  # by their type and first line, as obstore names them: with what logins ended
_first_process: int | None = None  # in which obstore started its threads


def was_used() -> bool:
    """Return whether obstore has started its threads, here or in a process that this one was forked from."""
    return _first_process is not None


def is_forked() -> bool:
    """Return whether obstore cannot work here: its threads stayed in the process that this one was forked from."""
    return _first_process not in {None, os.getpid()}


def version() -> str:
    """Return obstore's version."""
    import obstore  # as below

    return obstore.__version__


class ObstoreClient:
    """A client of one bucket, made with the first request."""

    def __init__(self, address: Address, retry: Retry) -> None:
        self.address = address
        self.retry = retry
        self._client: GCSStore | S3Store | None = None
        self._lock = threading.Lock()

    def ask_named(self, verb: str, *arguments: Any, again: bool = True, **options: Any) -> Any:
        """Call one of obstore's functions on our client."""
        import obstore  # 12 ms; only when a store in the cloud is used

        return self.ask(getattr(obstore, verb), *arguments, again=again, **options)

    def ask_about(self, verb: str, key: str, *arguments: Any, again: bool = True, **options: Any) -> Any:
        """Call one of obstore's functions about a key, or about the folder that a prefix names."""
        return self.ask_named(verb, self.full(key).rstrip("/") or None, *arguments, again=again, **options)

    def about(self, key: str) -> ObjectMeta | None:
        """Return what is known of an object, or None when there is none."""
        try:
            found: ObjectMeta = self.ask_about("head", key)
        except FileNotFoundError:
            return None
        return found

    def full(self, key: str) -> str:
        """Return the name of a key inside the bucket."""
        return self.address.prefix + key

    def ask(
        self,
        function: Callable[..., T],
        *arguments: Any,
        again: bool = True,
        is_whole: Callable[[], bool] = lambda: True,
        **options: Any,
    ) -> T:
        """Call a function on our client, and again after a temporary error that obstore does not retry itself.

        ``again``: the request may be repeated though the first one may have arrived. ``is_whole``: whether what it
        sends can still be read from the front.
        """
        begun, rejected = time.monotonic(), None
        for attempt in range(self.retry.attempts):
            client = self._current(rejected)
            try:
                return self.run(partial(function, client, *arguments, **options))
            except Exception as error:
                is_last = attempt == self.retry.attempts - 1
                if rejected is None and not is_last and is_refused(error) and is_whole():
                    rejected = client  # the next one reads keys and asks for a token anew
                    continue
                if re.search(_SIGN_IN, str(error)):
                    self._forget(client)  # the next request may come after another login
                if not again or is_last or time.monotonic() - begun > self.retry.total_seconds:
                    raise
                if not is_transient(error):
                    raise
            self.retry.pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    def make(self) -> None:
        """Make our client, unless there is one; no request is sent and no thread starts."""
        self._current(None)

    def _current(self, rejected: GCSStore | S3Store | None) -> GCSStore | S3Store:
        """Return our client; another one than that whose credentials were rejected."""
        with self._lock:
            if self._client is None or self._client is rejected:
                self._client = make_client(self.address, self.retry)
            return self._client

    def _forget(self, client: GCSStore | S3Store) -> None:
        with self._lock:
            if self._client is client:
                self._client = None

    def run(self, call: Callable[[], T]) -> T:
        """Call into obstore; on the main thread so that Ctrl-C does not have to wait for the network."""
        global _first_process  # noqa: PLW0603 - a fact of this process
        if is_forked():
            raise StoreError(
                "this process cannot use the store",
                why="it was forked from a process that had used the store, whose network threads it does not have",
                next='start processes with multiprocessing.get_context("spawn"), or use the store in the child only',
            )
        _first_process = os.getpid()
        if threading.current_thread() is not threading.main_thread():
            return call()
        return _on_own_thread(call)

    def translated_errors(self, key: str) -> _TranslatedErrors:
        """Translate obstore's errors while a block runs."""
        return _TranslatedErrors(self.address, key)


def make_client(address: Address, retry: Retry) -> GCSStore | S3Store:
    """Make the client; no request is sent yet."""
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
        return _google_client(address, options) if address.scheme == "gs" else _amazon_client(address, options)
    except (BaseError, OSError, ValueError) as error:
        raise CredentialsError(
            f"the credentials for {address.url} cannot be used",
            why=brief(error),
            next=_next_about_rights(google=address.scheme == "gs"),
        ) from error


def _google_client(address: Address, options: dict[str, Any]) -> GCSStore:
    from obstore.store import GCSStore

    emulator = protocol.google_emulator()
    if emulator is None:
        return GCSStore(address.bucket, **options, **google_login())
    options["client_options"]["allow_http"] = True
    # Always a token: without one obstore asks the metadata server, even for an emulator.
    return GCSStore(address.bucket, config={"base_url": emulator, "bearer_token": "emulator"}, **options)


def _amazon_client(address: Address, options: dict[str, Any]) -> S3Store:
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
            options["credential_provider"] = _told(_amazon_login)
    return S3Store(address.bucket, config=config, **options)


def _on_own_thread(call: Callable[[], T]) -> T:
    """Run a call on a thread of its own: obstore holds off signals until the answer is there."""
    done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            done.put((None, error))

    if python_runtime.start_thread(work, "kinetic-request") is None:
        return call()  # and Ctrl-C waits
    result, error = parallel.wait_for_item(done)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # of the call, whose result is a T


# --------------------------------------------------------------------------------------------------------------- errors


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error of obstore tells of, or None where no answer came."""
    found = re.search(_STATUS, str(error))
    return int(found[1]) if found else None


def is_refused(error: BaseException) -> bool:
    """Return whether other credentials may be let in: a token was revoked, keys have expired, or a clock is wrong.

    The answer to a HEAD has no body that would say why.
    """
    status, code = status_of(error), _code_in(error)
    return status == 401 or code in _EXPIRED or (status in {400, 403} and not code)


def names_no_bucket(error: BaseException) -> bool:
    """Return whether it is the bucket that is missing."""
    return re.search(_NO_BUCKET, str(error)) is not None


def is_ambiguous(error: BaseException, *, first: bool) -> bool:
    """Return whether a conditional write that failed may have been carried out.

    Args:
        error: What it failed with.
        first: Nothing like it was sent before.
    """
    from obstore.exceptions import AlreadyExistsError

    if isinstance(error, AlreadyExistsError):  # perhaps our own object, when obstore repeated the request
        return not (first and re.search(_NO_RETRY, str(error)))
    status = status_of(error)
    return status is None or status >= 500 or status in _BUSY


def _login_error(error: BaseException) -> KineticError | None:
    """Return the error of ours for which a request was not sent."""
    found = re.search(_OF_LOGIN, str(error).partition("\n")[0])
    ours = next((ours for name, ours in _refused.items() if found and found[1].startswith(name)), None)
    if isinstance(ours, BackendUnavailableError):
        return StoreUnreachableError(ours.what, why=ours.why, next=ours.next)
    return ours


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later, and obstore has not tried that often enough."""
    from obstore.exceptions import GenericError

    if isinstance(_login_error(error), StoreUnreachableError):
        return True
    if not isinstance(error, GenericError) or re.search(f"{_SIGN_IN}|{_OTHER_REGION}|{_UNTRUSTED}", str(error)):
        return False
    status = status_of(error)
    if status is not None:
        return status in _BUSY
    counts = re.search(_RETRIES, str(error))  # obstore's own are used up where it repeats such errors
    return counts is None or int(counts[1]) < int(counts[2])


class _TranslatedErrors:
    def __init__(self, address: Address, key: str) -> None:
        self._address = address
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None or isinstance(error, KineticError):
            return
        ours = _translated(error, self._address, self._key)
        if ours is not None:
            raise ours from None  # its words are in ours, and its pages of debugging in __context__


def _translated(error: BaseException, address: Address, key: str) -> KineticError | None:
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    bucket = f"{address.scheme}://{address.bucket}"
    status = status_of(error) if isinstance(error, BaseError) else None
    is_missing = isinstance(error, FileNotFoundError) and error.errno is None  # obstore's; the system's have a number
    if (is_missing or status == 404) and names_no_bucket(error):
        return StoreError(
            f"the bucket {bucket} does not exist",
            why=brief(error),
            next="check its spelling in KINETIC_STORE or the profile, or create it",
            code="store-missing",
        )
    if is_missing:
        return key_missing(address, key)
    if isinstance(error, ValueError) and "parse path" in str(error):
        return StoreError(f"{key!r} cannot be requested", why=brief(error))
    if not isinstance(error, BaseError):
        return None
    if (login := _login_error(error)) is not None:
        return login
    google, code = address.scheme == "gs", _code_in(error)
    if not google and (region := re.search(_OTHER_REGION, str(error))):
        ask = f"REGION     from: aws s3api get-bucket-location --bucket {address.bucket}"
        return StoreError(
            f"{bucket} is not in the region {amazon_region()}",
            why=brief(error),
            next=f"export AWS_REGION={region[1] or ask}",
            code="store-region",
        )
    if code == "AccessDenied":
        rights = _GOOGLE_ROLE if google else _AMAZON_RIGHTS
        return CredentialsError(
            f"{bucket} does not let our account do that",
            why=brief(error),
            next=f"check that the bucket is yours; if so, give the account {rights}",
        )
    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in {401, 403}
    refused |= code in _EXPIRED or (not google and status == 400 and not code)  # HEAD has no body that would name it
    if code == "RequestTimeTooSkewed":
        return CredentialsError(f"{bucket} rejected the time of our request", why=brief(error), next=_CLOCK)
    if refused or re.search(_SIGN_IN, str(error).partition("\n")[0]):
        return CredentialsError(
            f"{bucket} rejected our credentials",
            why=f"{brief(error)}; looked for {_google_sources() if google else _amazon_sources()}",
            next=_next_about_rights(google=google),
        )
    if status is None or status >= 500 or status in _BUSY:
        return unreachable(address, key, error)
    return StoreError(f"the store rejected the request for {key!r}", why=brief(error))


def key_missing(address: Address, key: str) -> KeyMissingError:
    """Return the error that there is no such object."""
    return KeyMissingError(f"nothing is stored under {key!r}", why=f"looked in {address.url}")


def unreachable(address: Address, key: str, error: BaseException) -> StoreUnreachableError:
    """Return the error that no useful answer came, however often we asked."""
    return StoreUnreachableError(
        f"{address.scheme}://{address.bucket} did not answer for {key!r}",
        why=brief(error),
        next="check the network and the service's status page, and try again; what was stored is safe",
    )


def brief(error: object) -> str:
    """Return what was asked and what the answer was: obstore's errors say it in pages of debugging."""
    line = str(error).partition("\n")[0]
    found = re.search(_OF_OBSTORE, line)
    if found is None:
        return line[:500]
    said, _, _ = found["said"].removeprefix("Server returned non-2xx status code: ").partition(": <")
    code, message = _code_in(error), re.findall(_MESSAGE, line)[-1:]  # details are the last, and say more
    asked = f"{found['verb']} {urllib.parse.unquote(found['url'])}{found['tries'] or ''}"
    if _UNTRUSTED in str(error):
        return f"{asked}: the server's certificate is not trusted"[:500]
    return ": ".join(filter(None, [asked, said.removesuffix(": "), code, *message]))[:500]


def _code_in(error: object) -> str:
    """Return what a service calls the error in the XML of its answer, or ""."""
    found = re.search(_CODE, str(error).partition("\n")[0])
    return found[1] if found else ""


# ---------------------------------------------------------------------------------------------------------- credentials

_GOOGLE_FILE = ".config/gcloud/application_default_credentials.json"
_GOOGLE_ROLE = "the role Storage Object User (roles/storage.objectUser) on the bucket"
_AMAZON_RIGHTS = "s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and s3:DeleteObject on its objects"
_GOOGLE_NEXT = (
    "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file; the account needs "
    f"{_GOOGLE_ROLE}"
)
_CLOCK = "set the clock of this machine, e.g. sudo timedatectl set-ntp true"
_GOOGLE_KEYS = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")  # obstore's own
_READ_BY_OBSTORE = frozenset({"service_account", "authorized_user"})
_AMAZON_NEXT = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in: aws configure, aws sso login; the account needs "
    f"{_AMAZON_RIGHTS}"
)


def _next_about_rights(*, google: bool) -> str:
    if "KUBERNETES_SERVICE_HOST" in os.environ:  # in a pod nobody can log in
        return f"give the pod's service account {_GOOGLE_ROLE if google else _AMAZON_RIGHTS}"
    return _GOOGLE_NEXT if google else _AMAZON_NEXT


# Settings of a profile with which only the ``aws`` command, or the libraries of Amazon, find keys.
_BY_COMMAND = frozenset({"credential_process", "login_session", "role_arn", "sso_session", "sso_start_url"})
_COMMAND_SECONDS = 60.0  # a role is assumed over the network


def google_login() -> dict[str, Any]:
    """Return what obstore is told of a login that it does not find or cannot read: federated, impersonated, moved."""
    if any(map(os.environ.get, _GOOGLE_KEYS)):
        return {}
    from kinetic._google import login

    kind = login.credentials_kind(os.environ)
    if kind in _READ_BY_OBSTORE and os.environ.get("CLOUDSDK_CONFIG"):
        return {"config": {"application_credentials": str(login.credentials_file(os.environ))}}
    if not kind or kind in _READ_BY_OBSTORE:
        return {}
    tokens = login.Tokens(os.environ)

    def credential() -> dict[str, Any]:
        token, expires = tokens.with_expiry()
        return {"token": token, "expires_at": expires}

    return {"credential_provider": _told(credential)}


def _told(credential: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Keep the error of a login: obstore's has its first line only."""

    def told() -> dict[str, Any]:
        try:
            return credential()
        except KineticError as error:
            _refused[f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"] = error
            raise

    return told


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


def _google_sources() -> str:
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    file = Path.home() / _GOOGLE_FILE
    return (
        f"GOOGLE_APPLICATION_CREDENTIALS ({named or 'not set'}), {file} ({'there' if file.exists() else 'missing'}), "
        "the metadata server of Google's machines"
    )


def _amazon_sources() -> str:
    key = os.environ.get("AWS_ACCESS_KEY_ID")
    profile, file = _amazon_profile()
    return (
        f"AWS_ACCESS_KEY_ID ({f'ends in {key[-4:]}' if key else 'not set'}), the profile {profile!r} of "
        f"{file} (keys {'there' if _amazon_keys() else 'none'}), AWS_WEB_IDENTITY_TOKEN_FILE, "
        "container credentials, the metadata server of Amazon's machines"
    )
