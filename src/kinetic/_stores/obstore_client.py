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
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._stores import credentials, parallel, protocol
from kinetic._stores.parallel import Retry
from kinetic._stores.protocol import Address
from kinetic._wire import python_runtime
from kinetic.errors import (
    BackendUnavailableError,
    CredentialsError,
    KeyMissingError,
    KineticError,
    SettingsError,
    StoreError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureStore, GCSStore, S3Store

    Client = AzureStore | GCSStore | S3Store

T = TypeVar("T")

TIMEOUT = timedelta(seconds=240)  # for one request, whose body is at most a piece of 8 MiB: passes at 35 KiB a second
_STATUS = r"(?:status code: |\(code: )(\d{3})"  # the latter in a batch of Azure
_NO_RETRY = r"(?<!_)retries: 0,"  # in the debug text; "max_retries: 0" is something else
_RETRIES = r"(?<!_)retries: (\d+),\s*max_retries: (\d+)"
_NO_BUCKET = r"(?i)NoSuchBucket|bucket does not exist|ContainerNotFound"
SIGN_IN = r"(?i)token request|computeMetadata|/latest/(?:api/token|meta-data)|oauth2|AssumeRole|credential|az account"
BUSY = frozenset({408, 429})  # obstore repeats after 5xx, not after these
UNSUPPORTED = 501  # a header or an operation that the service does not have
UNTRUSTED = "InvalidCertificate"  # in the debug text: the server's was refused, and asking again does not help
CODE = r"<Code>([^<]+)</Code>"  # of the XML in which all services say what is wrong
DEBUG = "\n\nDebug source:"  # pages of it follow
EXPIRED = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"}  # of S3
    | {"InvalidTokenId", "AuthenticationFailed"}  # of MinIO; of Azure
)
OTHER_REGION = r"configured region|<Region>([^<]*)<"  # of a redirect, and of a body

_OF_LOGIN = r"External \w+ credential provider: (.+)"

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

    def __init__(self, address: Address, retry: Retry, timeout: timedelta = TIMEOUT) -> None:
        self.address = address
        self.retry = retry
        self._timeout = timeout
        self._client: Client | None = None
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
                if re.search(SIGN_IN, str(error)):
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

    def _current(self, rejected: Client | None) -> Client:
        """Return our client; another one than that whose credentials were rejected."""
        with self._lock:
            if self._client is None or self._client is rejected:
                self._client = make_client(self.address, self.retry, self._timeout)
            return self._client

    def _forget(self, client: Client) -> None:
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


def make_client(address: Address, retry: Retry, timeout: timedelta = TIMEOUT) -> Client:
    """Make the client; no request is sent yet."""
    options: dict[str, Any] = {
        "client_options": {"timeout": timeout, "connect_timeout": timedelta(seconds=10), "user_agent": "kinetic"},
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
        made: Client = credentials.of_cloud(address).client(address.bucket, options)
    except (BaseError, OSError, ValueError) as error:
        raise CredentialsError(
            f"the credentials for {address.url} cannot be used",
            why=str(error).partition("\n")[0][:500],
            next=credentials.next_step(address),
        ) from error
    if any(name.lower().endswith("_proxy") and url[:5].lower() == "socks" for name, url in os.environ.items()):
        _check_proxy(address, str(dict(made.config).get("endpoint") or ""))
    return made


def _check_proxy(address: Address, endpoint: str) -> None:
    """Refuse a SOCKS proxy at once: obstore would try in vain, or connect without it where it begins with socks://."""
    from kinetic._wire import proxies  # 30 ms; only where there is such a proxy

    hosts = {"gs": "storage.googleapis.com", "s3": f"s3.{credentials.amazon_region()}.amazonaws.com"}
    service = endpoint or protocol.google_emulator() or f"https://{hosts[address.scheme]}"
    parts = urllib.parse.urlsplit(service)
    kind = proxies.proxy_for(service, as_curl=True).partition("://")[0].lower()
    if kind.startswith("socks"):
        raise SettingsError(
            f"the proxy for {address.url} cannot be used",
            why=f"its address begins with {kind}://, and buckets are reached through HTTP proxies only",
            next=f"export {parts.scheme.upper()}_PROXY=http://HOST:PORT with an HTTP proxy; "
            f"or, where no proxy is needed, NO_PROXY={parts.hostname}",
        )


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
    status, code = status_of(error), code_in(error)
    return status == 401 or code in EXPIRED or (status in {400, 403} and not code)


def begins_behind_the_end(error: BaseException) -> bool:
    """Return whether an object ends before the range that was asked for; Azurite answers with no bytes then."""
    return status_of(error) == 416 or "Wanted range starting at" in str(error)


def is_missing(error: BaseException) -> bool:
    """Return whether obstore says that there is no such object; the system's errors have a number."""
    return isinstance(error, FileNotFoundError) and error.errno is None


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
    return status is None or status >= 500 or status in BUSY


def login_error(error: BaseException) -> KineticError | None:
    """Return the error of ours for which a request was not sent."""
    found = re.search(_OF_LOGIN, str(error).partition("\n")[0])
    ours = next((ours for name, ours in credentials.refused.items() if found and found[1].startswith(name)), None)
    if isinstance(ours, BackendUnavailableError):
        return StoreUnreachableError(ours.what, why=ours.why, next=ours.next)
    return ours


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later, and obstore has not tried that often enough."""
    from obstore.exceptions import GenericError

    if isinstance(login_error(error), StoreUnreachableError):
        return True
    if not isinstance(error, GenericError) or begins_behind_the_end(error):
        return False
    if re.search(f"{SIGN_IN}|{OTHER_REGION}|{UNTRUSTED}", str(error)):
        return False
    status = status_of(error)
    if status is not None:
        return status in BUSY
    counts = re.search(_RETRIES, str(error))  # obstore's own are used up where it repeats such errors
    return counts is None or int(counts[1]) < int(counts[2])


def is_late(error: BaseException) -> bool:
    """Return whether a request took longer than it may; a connection that was not made in time is something else."""
    return re.search(r"kind: Request,\s*source: TimedOut", str(error)) is not None


def key_missing(address: Address, key: str) -> KeyMissingError:
    """Return the error that there is no such object."""
    return KeyMissingError(f"nothing is stored under {key!r}", why=f"looked in {address.url}")


def code_in(error: object) -> str:
    """Return what a service calls the error in the XML of its answer, or ""."""
    found = re.search(CODE, str(error).partition(DEBUG)[0])
    return found[1] if found else ""
