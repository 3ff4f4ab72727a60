"""A container registry: blobs and manifests by digest, over the OCI distribution API, with Python's own HTTP client.

It needs no package, so that a pod can use it. Blobs are sent whole, in one PUT: Artifact Registry takes no pieces, and
a broken upload starts again. A manifest is sent last, so a tag never names what is incomplete.

Source: github.com/opencontainers/distribution-spec, spec.md 1.1; docs.docker.com/registry/spec/auth/token.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from kinetic._wire import http_client
from kinetic._wire.http_client import Body, HttpClient, Response
from kinetic.errors import AccessDeniedError, CredentialsError, ImageBuildError, ImageError, ImageUnavailableError

if TYPE_CHECKING:
    from http.client import HTTPResponse

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
_DOCKER = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
ACCEPT = ", ".join((MANIFEST, INDEX, *_DOCKER))
MOST_MANIFEST_BYTES = 4 << 20  # what the specification asks registries to take, and more than any of ours
ATTEMPTS = 5
_CHUNK = 1 << 20
_LONGEST_WAIT = 30.0  # seconds, whatever a registry asks for
_TOKEN_SECONDS = 60.0  # how long a token lives that does not say so
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')

Report = Callable[[int], None]  # takes how many more bytes have been sent


class Login(NamedTuple):
    """What a registry is shown; ``token`` is used as it is, as Artifact Registry takes an access token."""

    user: str = ""
    password: str = ""
    token: str = ""


class FindLogin(Protocol):
    """Returns the login of a registry."""

    def __call__(self, *, again: bool) -> Login:
        """Return it; ``again``: the registry rejected what was returned before."""
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
        if not host:
            host, name = "registry-1.docker.io", name if "/" in name else f"library/{name}"
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
    """One repository of a registry, e.g. "us-docker.pkg.dev/project/repository/kinetic". Threads may share it.

    Attributes:
        host: Host, and port if it is not 443.
        name: The name within the registry.
        find_login: Returns the login, asked again when the registry rejects one that was accepted before.
        plain_http: Speak without TLS; otherwise only to this machine.
        sleep: Waits between attempts.
    """

    host: str
    name: str
    find_login: FindLogin
    plain_http: bool = False
    sleep: Callable[[float], None] = time.sleep
    _tokens: dict[str, tuple[str, float]] = field(default_factory=dict)
    _basic: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
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
        """Return a manifest or index, and its digest.

        Raises:
            ImageUnavailableError: There is none.
        """
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
        return dict(json.loads(answer.body)), digest

    def put_manifest(self, reference: str, data: bytes, media_type: str = MANIFEST) -> str:
        """Send a manifest whose blobs are all there, and return its digest."""
        headers = {"Content-Type": media_type}
        self._ask("PUT", f"manifests/{reference}", body=data, headers=headers, accept=(201,), scope="pull,push")
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def tag(self, digest: str, name: str) -> None:
        """Let a tag name a manifest that is there."""
        headers = {"Accept": ACCEPT}
        answer = self._ask("GET", f"manifests/{digest}", headers=headers)
        self.put_manifest(name, answer.body, answer.headers.get("content-type", MANIFEST).partition(";")[0])

    def delete_manifest(self, digest: str) -> bool:
        """Remove a manifest; return whether it was there."""
        path = f"manifests/{digest}"
        return self._ask("DELETE", path, accept=(202, 404), scope="pull,push,delete").status == 202

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

    def read_blob(self, digest: str, sink: IO[bytes]) -> None:
        """Copy a blob into a file, and verify it on the way; a redirect is followed without our credentials.

        Raises:
            ImageUnavailableError: There is no such blob.
            ImageError: What came is not what the digest promises.
        """
        hasher = hashlib.sha256()

        def take(response: HTTPResponse) -> None:
            while piece := response.read(_CHUNK):
                hasher.update(piece)
                sink.write(piece)

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
        self.read_blob(digest, sink)
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
        """Send a blob that the registry lacks; return whether bytes were sent.

        Args:
            digest: Of the bytes.
            size: How many they are.
            read: Opens them, from the start, for each attempt.
            mount_from: Another name of the same registry that has the blob: it is taken from there if it can be.
            report: Is called with each number of bytes that has been sent; a negative one takes back a failed attempt.
        """
        for attempt in range(ATTEMPTS):
            query = f"?{urllib.parse.urlencode({'mount': digest, 'from': mount_from})}" if mount_from else ""
            begun = self._ask(
                "POST", f"blobs/uploads/{query}", body=b"", accept=(201, 202), scope="pull,push", also=mount_from
            )
            if begun.status == 201:
                return False
            sent = 0

            def pieces(file: IO[bytes]) -> Iterator[bytes]:
                nonlocal sent
                while piece := file.read(_CHUNK):
                    yield piece
                    sent += len(piece)
                    if report:
                        report(len(piece))

            location = urllib.parse.urljoin(
                f"{self._scheme}://{self.host}/v2/{self.name}/blobs/uploads/", begun.headers["location"]
            )
            target = location + ("&" if "?" in location else "?") + urllib.parse.urlencode({"digest": digest})
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            with read() as file:
                try:
                    answer = self._once("PUT", target, pieces(file), headers, "pull,push", None, "")
                except OSError as error:
                    answer = Response(0, {}, str(error).encode())
            if answer.status == 201:
                return True
            if report and sent:
                report(-sent)
            if attempt == ATTEMPTS - 1 or (
                answer.status and answer.status not in http_client.RETRYABLE and answer.status != 401
            ):
                raise self._rejected("PUT", f"blobs/{digest}", answer)
            self._wait(attempt, answer)
        raise AssertionError

    # ------------------------------------------------------------------------------------------------------- requests

    @property
    def _scheme(self) -> str:
        return "http" if self.plain_http or http_client.is_this_machine(self.host) else "https"

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (200,),
        scope: str = "pull",
        take: Callable[[HTTPResponse], None] | None = None,
        also: str = "",
    ) -> Response:
        """Send a request until it is answered for good."""
        url = f"{self._scheme}://{self.host}/v2/{self.name}/{path}"
        for attempt in range(ATTEMPTS):
            try:
                answer = self._once(method, url, body, dict(headers or {}), scope, take, also)
            except OSError as error:
                if take is not None and attempt:  # part of it may be in the caller's file already
                    raise self._silent(error) from error
                answer = Response(0, {}, str(error).encode())
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
        body: Body,
        headers: dict[str, str],
        scope: str,
        take: Callable[[HTTPResponse], None] | None,
        also: str,
    ) -> Response:
        """Send a request once, and once more with a new token if the registry asks who we are."""
        for renewed in (False, True):
            answer = self._http.send(
                method, url, body=body, headers=headers | self._authorization(url, scope, also), take=take
            )
            if answer.status != 401 or renewed or not isinstance(body, bytes | None):
                return answer
            self._log_in(answer.headers.get("www-authenticate", ""), scope, also, again=bool(self._tokens))
        raise AssertionError

    def _wait(self, attempt: int, answer: Response) -> None:
        self.sleep(min(_LONGEST_WAIT, max(0.25 * 2**attempt, answer.retry_after)))

    # ---------------------------------------------------------------------------------------------------------- login

    def _authorization(self, url: str, scope: str, also: str) -> dict[str, str]:
        if urllib.parse.urlsplit(url).netloc != self.host:
            return {}
        with self._lock:
            if self._basic:
                login = self.find_login(again=False)
                return {"Authorization": _basic(login)}
            token, until = self._tokens.get(f"{scope} {also}", ("", 0.0))
        return {"Authorization": f"Bearer {token}"} if token and time.monotonic() < until else {}

    def _log_in(self, challenge: str, scope: str, also: str, *, again: bool) -> None:
        """Get what the registry asks for: a token from the place that it names, or our own login itself."""
        kind, values = challenge.partition(" ")[0].lower(), dict(_CHALLENGE.findall(challenge))
        with self._lock:
            login = self.find_login(again=again)
            if login.token:
                self._tokens[f"{scope} {also}"] = (login.token, time.monotonic() + _TOKEN_SECONDS)
            elif kind == "basic":
                if not login.user:
                    raise self._no_login("it asks for a user and a password")
                self._basic = True
            elif kind == "bearer" and "realm" in values:
                self._tokens[f"{scope} {also}"] = self._fetch_token(values, login, scope, also)
            else:
                raise self._no_login(
                    f"it asks for a login that kinetic does not know: {challenge[:100] or 'none named'}"
                )

    def _fetch_token(self, values: Mapping[str, str], login: Login, scope: str, also: str) -> tuple[str, float]:
        query = [("service", values.get("service", "")), ("scope", f"repository:{self.name}:{scope}")]
        if also:
            query.append(("scope", f"repository:{also}:pull"))
        url = f"{values['realm']}?{urllib.parse.urlencode([pair for pair in query if pair[1]])}"
        headers = {"Authorization": _basic(login)} if login.user else {}
        answer = self._http.send("GET", url, headers=headers)
        if answer.status != 200:
            raise self._no_login(f"{urllib.parse.urlsplit(url).netloc} issued no token ({answer.status})")
        page = json.loads(answer.body)
        seconds = float(page.get("expires_in") or _TOKEN_SECONDS)
        return str(page.get("token") or page["access_token"]), time.monotonic() + 0.9 * seconds

    # --------------------------------------------------------------------------------------------------------- errors

    def _no_login(self, why: str) -> CredentialsError:
        return CredentialsError(
            f"{self.host} rejected our credentials",
            why=why,
            next=f"log in: docker login {self.host}, or for Google: gcloud auth application-default login",
            code="registry-login",
        )

    def _silent(self, error: Exception) -> ImageBuildError:
        return ImageBuildError(
            f"the registry {self.host} did not answer",
            why=str(error),
            next="check the network and try again",
            code="registry-silent",
        )

    def _rejected(self, method: str, path: str, answer: Response) -> Exception:
        """Return the error for an answer that nobody expected."""
        message = _message_of(answer.body)
        if not answer.status:
            return self._silent(OSError(message))
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


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _message_of(body: bytes) -> str:
    """Return what an answer's page of errors says, in one line."""
    try:
        errors = json.loads(body)["errors"]
        return "; ".join(f"{each.get('code', '')} {each.get('message', '')}".strip() for each in errors)[:500]
    except (ValueError, KeyError, TypeError, AttributeError):
        return " ".join(body[:300].decode(errors="replace").split()) or "no reason was given"
