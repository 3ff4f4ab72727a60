"""A container registry: blobs and manifests by digest, over the OCI distribution API, with Python's own HTTP client.

It needs no package, so that a pod can use it. Blobs are sent whole, in one PUT: Artifact Registry takes no pieces, and
a broken upload starts again. A manifest is sent last, so a tag never names what is incomplete.

Source: github.com/opencontainers/distribution-spec, spec.md 1.1; docs.docker.com/registry/spec/auth/token.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from kinetic._wire import NamedTuple, http_client, proxies
from kinetic._wire.http_client import Body, HttpClient, Response, Take
from kinetic.errors import (
    AccessDeniedError,
    CredentialsError,
    ImageBuildError,
    ImageError,
    ImageUnavailableError,
    KineticError,
)

if TYPE_CHECKING:
    from http.client import HTTPResponse

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
_DOCKER_KINDS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
ACCEPT = ", ".join((MANIFEST, INDEX, *_DOCKER_KINDS))
MOST_MANIFEST_BYTES = 4 << 20  # what the specification asks registries to take, and more than any of ours
ATTEMPTS = 5
_CHUNK = 1 << 18  # of a body or a file in memory, for each of up to 16 threads
_LONGEST_WAIT = 30.0  # seconds, whatever a registry asks for
_TOKEN_SECONDS = 60.0  # how long a token lives that does not say so
_CLIENT = "kinetic"  # names us to those who issue tokens for identity tokens
DOCKER_HUB = "docker.io"  # as images of it are named; nodes have its logins and mirrors under that name
_DOCKER_HUBS = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})
_DOCKER_HUB_ADDRESS = "registry-1.docker.io"  # where it answers
_CHALLENGE = re.compile(r'([\w-]+)(?:\s*=\s*(?:"([^"]*)"|([^\s,"]+)))?')  # a scheme, or a field of the last one

Report = Callable[[int], None]  # takes how many more bytes have been sent


class _Scope(NamedTuple):
    """What a token has to allow."""

    actions: str = "pull"  # in our repository
    also: str = ""  # a repository that is read as well, where a blob is mounted from it


_PULL, _PUSH, _DELETE = _Scope(), _Scope("pull,push"), _Scope("pull,push,delete")
_EVERYTHING = _Scope("everything")  # of what is shown with every request


class Login(NamedTuple):
    """What a registry is shown."""

    user: str = ""  # with its password
    password: str = ""  # of the user
    token: str = ""  # is shown as it is, as Artifact Registry takes an access token
    refresh_token: str = ""  # is exchanged for a token of each repository, as an "identitytoken" of Docker's


class FindLogin(Protocol):
    """Returns the login of a registry."""

    def __call__(self, *, again: bool) -> Login:
        """Return it; ``again``: the registry rejected what was returned before."""
        ...


class Challenges(Protocol):
    """How registries ask for a login, as far as this machine remembers it; it never contains a login."""

    def known(self, host: str) -> str:
        """Return what a registry asked for last, as its WWW-Authenticate says it; "" where that is not known."""
        ...

    def note(self, host: str, challenge: str) -> None:
        """Remember what a registry asks for."""
        ...


class Reference(NamedTuple):
    """An image's name, e.g. "us-docker.pkg.dev/project/repository/kinetic:tag"."""

    host: str
    name: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read an image's name as Docker does: a first part without a dot, a port or "localhost" is Docker Hub's.

        Raises:
            ImageError: The text is not a valid name.
        """
        rest, _, digest = text.partition("@")
        first, slash, below = rest.partition("/")
        host = first if slash and ("." in first or ":" in first or first == "localhost") else ""
        path = below if host else rest
        name, colon, tag = path.rpartition(":") if ":" in path.rpartition("/")[2] else (path, "", "")
        if not host or host in _DOCKER_HUBS:
            host, name = DOCKER_HUB, name if "/" in name else f"library/{name}"
        legal = re.fullmatch(r"[a-z0-9]+(?:(?:/|[._-]+)[a-z0-9]+)*", name) and (not digest or _DIGEST.fullmatch(digest))
        if not legal or (colon and not re.fullmatch(r"\w[\w.-]{0,127}", tag)):
            raise ImageError(
                f"{text!r} is not a valid image name",
                why="a name looks like registry.example.com/team/image:tag, in lower case",
                next="correct the name",
                code="image-name",
            )
        return cls(host, name, tag or ("" if digest else "latest"), digest)

    def __str__(self) -> str:
        return (
            f"{self.host}/{self.name}"
            + (f":{self.tag}" if self.tag else "")
            + (f"@{self.digest}" if self.digest else "")
        )


_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass
class Registry:
    """One repository of a registry, e.g. "us-docker.pkg.dev/project/repository/kinetic". Threads may share it."""

    host: str  # host, and port if it is not 443; of Docker Hub, "docker.io"
    name: str  # the name within the registry
    find_login: FindLogin  # returns the login, asked again when the registry rejects one that was accepted before
    plain_http: bool = False  # speak without TLS; otherwise only to this machine
    sleep: Callable[[float], object] | None = None  # waits between attempts; None: until ``hang_up``
    # what is known of how this registry asks for a login: then the first request shows one already
    challenges: Challenges | None = None
    _shown: dict[_Scope, tuple[str, float]] = field(default_factory=dict)  # by scope: an Authorization, and until when
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of _shown; one thread logs in, the others wait
    _before: str | None = None  # how this registry asked for a login before; "" where that is not known, or not so now
    _hung_up: threading.Event = field(default_factory=threading.Event)
    _http: HttpClient = field(init=False)

    def __post_init__(self) -> None:
        self._http = HttpClient(plain_http=self.plain_http, most_bytes=MOST_MANIFEST_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of every thread; a later request opens new ones."""
        self._http.close()

    def hang_up(self) -> None:
        """End what other threads do here at once: they raise CancelledError. Nothing can be asked after that."""
        self._hung_up.set()
        self._http.hang_up()

    @property
    def requests(self) -> int:
        """How many requests were sent."""
        return self._http.requests

    # ------------------------------------------------------------------------------------------------------ manifests

    def find_manifest(self, reference: str) -> str | None:
        """Return the digest of the manifest that a tag or digest names, or None: one request, no body."""
        answer = self._ask("HEAD", f"manifests/{reference}", headers={"Accept": ACCEPT}, accept=(200, 404))
        return answer.headers.get("docker-content-digest") or None if answer.status == 200 else None

    def read_manifest(self, reference: str) -> tuple[dict[str, Any], str]:
        """Return a manifest or index, and its digest; raises ImageUnavailableError if there is none."""
        answer = self._ask("GET", f"manifests/{reference}", headers={"Accept": ACCEPT}, accept=(200, 404))
        if answer.status == 404:
            raise ImageUnavailableError(
                f"{self.host}/{self.name} has no image {reference}",
                why="it was never pushed, or a cleanup rule of the registry has removed it",
                next="check the name, or build the image: kinetic build-image",
            )
        digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
        if reference.startswith("sha256:") and digest != reference:
            raise ImageError(
                f"{self.host} returned another manifest than {reference}", why=f"it has the digest {digest}"
            )
        try:
            return dict(json.loads(answer.body)), digest
        except (ValueError, TypeError) as error:
            raise ImageError(
                f"{self.host} returned a manifest that cannot be read",
                why=f"{self.name} {reference}: {error}",
                next="check the address of the registry: a proxy or another service may answer there",
            ) from error

    def put_manifest(self, reference: str, data: bytes, media_type: str = MANIFEST) -> str:
        """Send a manifest whose blobs are all there, and return its digest."""
        headers = {"Content-Type": media_type}
        self._ask("PUT", f"manifests/{reference}", body=data, headers=headers, accept=(201,), scope=_PUSH)
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def tag(self, digest: str, name: str) -> None:
        """Let a tag name a manifest that is there."""
        headers = {"Accept": ACCEPT}
        answer = self._ask("GET", f"manifests/{digest}", headers=headers)
        self.put_manifest(name, answer.body, answer.headers.get("content-type", MANIFEST).partition(";")[0])

    def delete_manifest(self, digest: str) -> bool:
        """Remove a manifest; return whether it was there."""
        path = f"manifests/{digest}"
        return self._ask("DELETE", path, accept=(202, 404), scope=_DELETE).status == 202

    def tags(self) -> Iterator[str]:
        """Yield every tag, a page of the registry at a time."""
        path = "tags/list?n=1000"
        while path:
            answer = self._ask("GET", path, accept=(200, 404))
            if answer.status == 404:
                return
            yield from json.loads(answer.body).get("tags") or ()
            following = re.match(r"<([^>]+)>\s*;\s*rel=\"?next", answer.headers.get("link", ""))
            path = f"tags/list?{urllib.parse.urlsplit(following[1]).query}" if following else ""

    # ---------------------------------------------------------------------------------------------------------- blobs

    def has_blob(self, digest: str) -> bool:
        return self._ask("HEAD", f"blobs/{digest}", accept=(200, 404)).status == 200

    def read_blob(self, digest: str, sink: IO[bytes], *, most_bytes: int | None = None) -> None:
        """Copy a blob into a file, and verify it on the way; a redirect is followed without our credentials.

        A transfer that breaks begins again, and what it had written is removed.
        The sink takes it from its current position on, and can be cut off there.

        Raises:
            ImageUnavailableError: There is no such blob.
            ImageError: What came is not what the digest promises, or it is too long.
        """
        start, hasher = sink.tell(), hashlib.sha256()

        def take(response: HTTPResponse) -> None:
            nonlocal hasher
            hasher = hashlib.sha256()
            sink.seek(start)
            sink.truncate()
            while piece := response.read(_CHUNK):
                hasher.update(piece)
                sink.write(piece)
                if most_bytes is not None and sink.tell() - start > most_bytes:
                    raise ImageError(f"{self.host} returned more than {most_bytes} bytes for {digest}")

        answer = self._ask("GET", f"blobs/{digest}", accept=(200, 404), take=take)
        if answer.status == 404:
            raise ImageUnavailableError(f"{self.host}/{self.name} has no layer {digest}")
        if f"sha256:{hasher.hexdigest()}" != digest:
            raise ImageError(
                f"{self.host} returned other bytes than those of {digest}", why="they do not have this digest"
            )

    def small_blob(self, digest: str) -> bytes:
        """Return a blob of at most 4 MiB, e.g. an image's configuration; see ``read_blob``."""
        sink = io.BytesIO()
        self.read_blob(digest, sink, most_bytes=MOST_MANIFEST_BYTES)
        return sink.getvalue()

    def put_blob(
        self,
        digest: str,
        size: int,
        read: Callable[[], IO[bytes]],
        *,
        mount_from: str = "",
        report: Report | None = None,
    ) -> bool:
        """Send a blob that the registry lacks, as a whole; return whether bytes were sent.

        It is taken from another name of the same registry, ``mount_from``, if it can be. What ``read`` opens is read
        from its start for each attempt; ``report`` gets a negative number for one that failed.
        """
        for attempt in range(ATTEMPTS):
            target = self._begin_upload(digest, mount_from)
            if not target:
                return False
            with read() as file:
                pieces = _Pieces(file, report)
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
                try:
                    answer = self._once("PUT", target, _PUSH, body=pieces, headers=headers)
                except OSError as error:
                    answer = self._broken(error)
            if answer.status == 201:
                return True
            pieces.take_back()
            final = answer.status and answer.status not in http_client.RETRYABLE and answer.status != 401
            if final or attempt == ATTEMPTS - 1:
                raise self._rejected("PUT", f"blobs/{digest}", answer)
            self._wait(attempt, answer)
        raise AssertionError

    def _begin_upload(self, digest: str, mount_from: str) -> str:
        """Return the address for a blob's bytes, or "" where it was mounted from another name."""
        query = f"?{urllib.parse.urlencode({'mount': digest, 'from': mount_from})}" if mount_from else ""
        path = f"blobs/uploads/{query}"
        begun = self._ask("POST", path, body=b"", accept=(201, 202), scope=_PUSH._replace(also=mount_from))
        if begun.status == 201:
            return ""
        if not begun.headers.get("location"):
            raise self._rejected("POST", path, begun._replace(body=b"the answer names no place for the upload"))
        target = urllib.parse.urljoin(self._url("blobs/uploads/"), begun.headers["location"])
        return target + ("&" if "?" in target else "?") + urllib.parse.urlencode({"digest": digest})

    def check_writable(self) -> None:
        """Raise if this account cannot write here: an upload is begun and given up, before anything is made for it.

        Raises:
            AccessDeniedError: It may not.
            CredentialsError: The registry wants a login.
            ImageBuildError: There is no such repository, or no answer.
        """
        begun = self._ask("POST", "blobs/uploads/", body=b"", accept=(202,), scope=_PUSH)
        location = urllib.parse.urljoin(self._url("blobs/uploads/"), begun.headers.get("location", ""))
        with contextlib.suppress(OSError, KineticError):  # a registry forgets what is not finished
            self._once("DELETE", location, _PUSH)

    # ------------------------------------------------------------------------------------------------------- requests

    def _url(self, path: str) -> str:
        scheme = "http" if self.plain_http or http_client.is_this_machine(self.host) else "https"
        return f"{scheme}://{self._address}/v2/{self.name}/{path}"

    @property
    def _address(self) -> str:
        return _DOCKER_HUB_ADDRESS if self.host == DOCKER_HUB else self.host

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (200,),
        scope: _Scope = _PULL,
        take: Take | None = None,
    ) -> Response:
        """Send a request until it is answered for good."""
        for attempt in range(ATTEMPTS):
            try:
                answer = self._once(method, self._url(path), scope, body=body, headers=headers, take=take)
            except OSError as error:
                if error.errno in http_client.DISK_FULL:
                    raise
                answer = self._broken(error)
            if answer.status in accept:
                return answer
            if (answer.status and answer.status not in http_client.RETRYABLE) or attempt == ATTEMPTS - 1:
                break
            self._wait(attempt, answer)
        raise self._rejected(method, path, answer)

    def _once(
        self,
        method: str,
        url: str,
        scope: _Scope,
        *,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        take: Take | None = None,
    ) -> Response:
        """Send a request once, and once more with a new login if the registry asks who we are.

        The body of an upload cannot be sent again; the login is renewed for the next attempt all the same.
        """
        self._check()
        send = partial(self._http.send, method, url, body=body, take=take)
        shown = self._authorization(url, scope) or self._log_in_as_before(url, scope)
        answer = send(headers={**(headers or {}), **shown})
        if answer.status != 401 or urllib.parse.urlsplit(url).netloc != self._address:
            return answer
        challenge = answer.headers.get("www-authenticate", "")
        failed = self._log_in(challenge, scope, rejected=shown.get("Authorization", ""))
        if failed is not None or not isinstance(body, bytes | None):
            return failed or answer
        answer = send(headers={**(headers or {}), **self._authorization(url, scope)})
        if self.challenges is not None and answer.status != 401:
            self.challenges.note(self.host, _lasting(challenge))
        return answer

    def _wait(self, attempt: int, answer: Response) -> None:
        (self.sleep or self._hung_up.wait)(min(_LONGEST_WAIT, max(0.25 * 2**attempt, answer.retry_after)))
        self._check()

    def _broken(self, error: OSError) -> Response:
        """Return a placeholder for the answer that did not come."""
        self._check()
        if isinstance(error, proxies.RefusedError):
            what = f"the proxy for the registry {self.host} does not let us through"
            raise ImageBuildError(what, why=str(error), next=proxies.ADVICE, code="registry-silent") from error
        return Response(0, {}, str(error).encode())

    def _check(self) -> None:
        if self._hung_up.is_set():
            raise CancelledError

    # ---------------------------------------------------------------------------------------------------------- login

    def _authorization(self, url: str, scope: _Scope) -> dict[str, str]:
        """Return what a request shows; nothing to another host, which an upload may be sent to."""
        if urllib.parse.urlsplit(url).netloc != self._address:
            return {}
        with self._lock:
            shown = self._shown_for(scope)
        return {"Authorization": shown} if shown else {}

    def _log_in_as_before(self, url: str, scope: _Scope) -> dict[str, str]:
        """Log in as the registry wanted it the last time, and return what a request shows; {} where that fails.

        That saves the request that is answered with 401. What has changed since, the registry says itself.
        """
        if self.challenges is None or urllib.parse.urlsplit(url).netloc != self._address:
            return {}
        if self._before is None:
            self._before = self.challenges.known(self.host)
        with contextlib.suppress(OSError, KineticError):
            if self._before and self._log_in(self._before, scope, rejected="") is None:
                return self._authorization(url, scope)
        self._before = ""
        return {}

    def _shown_for(self, scope: _Scope) -> str:
        """Return what is shown for a scope: our own login, or a token for it or for more."""
        more = scope._replace(actions=_PUSH.actions) if scope.actions == _PULL.actions else scope
        for each in (_EVERYTHING, scope, more):
            shown, until = self._shown.get(each, ("", 0.0))
            if shown and time.monotonic() < until:
                return shown
        return ""

    def _log_in(self, challenge: str, scope: _Scope, *, rejected: str) -> Response | None:
        """Get what the registry asks for: a token from the place that it names, or our own login itself.

        Returns:
            The answer of a place of tokens that cannot give one just now; None when the next request may be sent.
        """
        kind, values = _read_challenge(challenge)
        with self._lock:
            now = time.monotonic()
            if self._shown_for(scope) not in {"", rejected}:
                return None  # another thread was faster
            if self._shown.get(_EVERYTHING, ("", 0.0))[0] == rejected:
                self._shown.pop(_EVERYTHING, None)
            login = self.find_login(again=bool(rejected))
            if login.token:
                self._shown[_EVERYTHING] = (f"Bearer {login.token}", float("inf"))  # until it is rejected
            elif kind == "basic" and login.user:
                self._shown[_EVERYTHING] = (_basic(login), float("inf"))
            elif kind == "basic":
                raise self._no_login("it asks for a user and a password, and none is stored for it")
            elif kind == "bearer" and "realm" in values:
                answer = self._ask_for_token(values, login, scope)
                if not answer.status or answer.status in http_client.RETRYABLE:
                    return answer
                token, seconds = self._token_in(answer, values["realm"])
                self._shown[scope] = (f"Bearer {token}", now + 0.9 * seconds)
            else:
                raise self._no_login(f"it asks for an unknown kind of login: {kind or 'none'}")
        return None

    def _ask_for_token(self, values: Mapping[str, str], login: Login, scope: _Scope) -> Response:
        scopes = [f"repository:{self.name}:{scope.actions}"]
        scopes += [f"repository:{scope.also}:pull"] if scope.also else []
        service = values.get("service", "")
        if login.refresh_token:  # OAuth 2, RFC 6749 section 6
            form = {"grant_type": "refresh_token", "service": service, "client_id": _CLIENT, "scope": " ".join(scopes)}
            body = urllib.parse.urlencode(form | {"refresh_token": login.refresh_token}).encode()
            return self._http.send(
                "POST", values["realm"], body=body, headers={"Content-Type": "application/x-www-form-urlencoded"}
            )
        query = [*([("service", service)] if service else ()), *(("scope", each) for each in scopes)]
        url = values["realm"] + ("&" if "?" in values["realm"] else "?") + urllib.parse.urlencode(query)
        return self._http.send("GET", url, headers={"Authorization": _basic(login)} if login.user else {})

    def _token_in(self, answer: Response, realm: str) -> tuple[str, float]:
        """Return the token of an answer, and the seconds for which it is valid."""
        where = urllib.parse.urlsplit(realm).hostname
        if answer.status != 200:
            raise self._no_login(f"{where} issued no token ({answer.status}): {_message_of(answer.body)}")
        try:
            page = json.loads(answer.body)
            return str(page.get("token") or page["access_token"]), float(page.get("expires_in") or _TOKEN_SECONDS)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._no_login(f"{where} issued a token that cannot be read") from error

    # --------------------------------------------------------------------------------------------------------- errors

    def _no_login(self, why: str) -> CredentialsError:
        return CredentialsError(
            f"{self.host} rejected our credentials",
            why=why,
            next=f"log in: docker login {self.host}, or for Google: gcloud auth application-default login",
            code="registry-login",
        )

    def _rejected(self, method: str, path: str, answer: Response) -> Exception:
        """Return the error for an unexpected answer."""
        message = _message_of(answer.body)
        if not answer.status:
            what, step = f"the registry {self.host} did not answer", "check the network and try again"
            return ImageBuildError(what, why=message, next=step, code="registry-silent")
        what = f"the registry {self.host} rejected {method} {self.name}/{path} ({answer.status})"
        if answer.status == 401:
            return self._no_login(message)
        if answer.status == 403:
            why = f"{message}; this account may not read or write {self.name}"
            return AccessDeniedError(
                what, why=why, next="ask for the role roles/artifactregistry.writer", code="registry-denied"
            )
        if answer.status == 404:
            why = f"{message}; the repository does not exist, or this account may not see it"
            return ImageBuildError(
                what, why=why, next="create the repository, or correct its name", code="registry-missing"
            )
        if answer.status == 429:
            return ImageBuildError(
                what, why=f"too many requests: {message}", next="try again in a minute", code="registry-quota"
            )
        return ImageBuildError(what, why=message, next="try again; if it persists, check the registry", code="registry")


class _Pieces(Iterator[bytes]):
    """A file in pieces, which counts those that were sent: a piece is, once the next one is asked for."""

    def __init__(self, file: IO[bytes], report: Report | None) -> None:
        self._file, self._report = file, report
        self._before = self._counted = 0

    def __next__(self) -> bytes:
        self._count(self._before)
        piece = self._file.read(_CHUNK)
        self._before = len(piece)
        if not piece:
            raise StopIteration
        return piece

    def take_back(self) -> None:
        """Report that nothing of it arrived."""
        self._count(-self._counted)

    def _count(self, size: int) -> None:
        self._counted += size
        if self._report and size:
            self._report(size)


def _read_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Return the way to log in of a WWW-Authenticate, and its fields: with tokens where there are several ways.

    Gitea names two, and gives tokens to everybody where its packages are public.
    """
    found: dict[str, dict[str, str]] = {}
    for match in _CHALLENGE.finditer(header):
        word, quoted, plain = match[1].lower(), match[2], match[3]
        if quoted is None and plain is None:
            fields = found.setdefault(word, {})
        elif found:
            fields[word] = quoted if quoted is not None else plain
    kind = next((each for each in ("bearer", "basic") if each in found), next(iter(found), ""))
    return kind, found.get(kind, {})


def _lasting(challenge: str) -> str:
    """Return of a challenge what holds for all repositories, or "" where it contains what must not be kept."""
    kind, values = _read_challenge(challenge)
    if "@" in values.get("realm", ""):
        return ""
    kept = ",".join(f'{name}="{values[name]}"' for name in ("realm", "service") if name in values)
    return f"{kind} {kept}"


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _message_of(body: bytes) -> str:
    """Return what an answer's page of errors says, in one line."""
    try:
        errors = json.loads(body)["errors"]
        return "; ".join(f"{each.get('code', '')} {each.get('message', '')}".strip() for each in errors)[:500]
    except (ValueError, KeyError, TypeError, AttributeError):
        return " ".join(body[:300].decode(errors="replace").split()) or "no reason was given"
