"""One process that is Google's control plane for a project: what it has, what it answers, and what goes wrong."""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.parse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from servers.discovery import Document, document, masked
from servers.gcs import GcsServer
from servers.google_cloud import quotas, refusals
from servers.google_cloud.builds import Builds
from servers.google_cloud.compute import Compute
from servers.google_cloud.container import Container
from servers.google_cloud.projects import Projects
from servers.google_cloud.refusals import Refusal
from servers.google_cloud.repositories import Repositories
from servers.google_cloud.storage import Storage
from servers.http11 import Answer, Request, Server

Page = dict[str, Any]

VERSIONS = {
    "artifactregistry": "v1",
    "cloudbilling": "v1",
    "cloudbuild": "v1",
    "cloudquotas": "v1",
    "cloudresourcemanager": "v3",
    "compute": "v1",
    "container": "v1",
    "iam": "v1",
    "serviceusage": "v1",
    "storage": "v1",
}
APIS = {f"{name}.googleapis.com" for name in VERSIONS}
# Requests by these verbs change nothing.
_READING_VERBS = {"testIamPermissions", "getIamPolicy", "capacity", "capacityHistory", "calendarMode", "wait"}
_JSON = {"Content-Type": "application/json; charset=UTF-8"}
_HTML = b"<!DOCTYPE html><html><title>Error</title><p>That's an error.</html>"
# Where the permission that a method needs is not what its name says.
_PERMISSIONS = {
    "container.clusters.nodePools.create": "container.clusters.update",
    "container.clusters.nodePools.delete": "container.clusters.update",
    "container.clusters.nodePools.setAutoscaling": "container.clusters.update",
    "container.clusters.nodePools.get": "container.clusters.get",
    "container.clusters.nodePools.list": "container.clusters.get",
    "container.clusters.setResourceLabels": "container.clusters.update",
    "container.getServerConfig": "container.clusters.list",
    "serviceusage.services.batchEnable": "serviceusage.services.enable",
    "serviceusage.services.batchGet": "serviceusage.services.get",
    "cloudquotas.services.quotaInfos.get": "cloudquotas.quotas.get",
    "cloudquotas.services.quotaInfos.list": "cloudquotas.quotas.get",
    "cloudquotas.quotaPreferences.list": "cloudquotas.quotas.get",
    "cloudquotas.quotaPreferences.patch": "cloudquotas.quotas.update",
    "cloudbilling.getBillingInfo": "resourcemanager.projects.get",
    "cloudbilling.updateBillingInfo": "resourcemanager.projects.createBillingAssignment",
}
# What is asked without a project: an operation that makes one, and its parent.
_WITHOUT_PROJECT = {
    "cloudresourcemanager.projects.create",
    "cloudresourcemanager.operations.get",
    "cloudresourcemanager.folders.testIamPermissions",
    "cloudresourcemanager.organizations.testIamPermissions",
}
_OPEN = {"testIamPermissions", "testPermissions", "wait"}  # whoever asks may ask these


class Call(NamedTuple):
    """One request, read.

    Attributes:
        service: E.g. "compute".
        method: The discovery document's name, e.g. "compute.networks.insert".
        verb: The HTTP method.
        path: Without the service.
        parts: Of the path after the version, decoded, without a verb behind ":".
        query: Of the address.
        body: As JSON.
        headers: Of the request.
        writes: Whether it is made to change something.
        pairs: Of the address, names that are repeated included.
    """

    service: str
    method: str
    verb: str
    path: str
    parts: tuple[str, ...]
    query: dict[str, str]
    body: Page
    headers: dict[str, str]
    writes: bool
    pairs: tuple[tuple[str, str], ...] = ()

    def values(self, name: str) -> list[str]:
        """Return every value of a parameter that may be repeated."""
        return [value for each, value in self.pairs if each == name]

    @property
    def action(self) -> str:
        """Return the last word of the method, e.g. "insert"."""
        return self.method.rpartition(".")[2]

    def __str__(self) -> str:
        """Write it as a line of a golden file: names as they are, nothing that changes between two runs."""
        query = "&".join(f"{name}={value}" for name, value in sorted(self.pairs) if name != "requestId")
        return f"{self.verb} {self.service} /{self.path}{f'?{query}' if query else ''}"


class Fault(NamedTuple):
    """What goes wrong.

    Attributes:
        kind: "status" answers with ``status`` and ``message``; "reset" closes the connection; "time-out" never
            answers; "truncated" answers with half of the JSON; "html" with a page of HTML, as a proxy would.
        at: The index of the call that it happens to, counted from 0; None for any.
        method: A regular expression that the method's name fits, e.g. "compute.networks.insert".
        after: Whether the call has its effect first.
        times: How often; -1 for ever.
        status: The HTTP status of "status" and "html".
        message: What the refusal says.
        word: Its status or reason.
        reason: Of its ErrorInfo.
        retry_after: A header of the answer, in seconds; "" for none.
    """

    kind: str = "status"
    at: int | None = None
    method: str = ".*"
    after: bool = False
    times: int = 1
    status: int = 503
    message: str = "injected"
    word: str = ""
    reason: str = ""
    retry_after: str = ""

    def meets(self, index: int, method: str) -> bool:
        return (self.at is None or self.at == index) and bool(re.fullmatch(self.method, method))


class GoogleCloud:
    """A project of Google Cloud until closed, and its services behind one address.

    Attributes:
        project: Its id.
        number: Its number.
        enabled: The APIs that are on.
        billing: The billing account that pays; "" for none.
        denied: Permissions that our account does not have.
        account: Our account.
        token: The bearer token that a login gets; a real API server beside it wants one of its own.
        tokens: Bearer tokens that are let in; None lets in all.
        quota_projects: The projects whose quota may be named in a header.
        enabled_elsewhere: The APIs that are on in those of them that are not this one.
        pending: How many requests an operation stays unfinished for.
        fates: How operations of a type end: "error", "vanish" or "never"; else well. One of "error" takes the tuple
            ("error", message) or ("error", message, code of gRPC).
        spread: How many requests a service refuses after it was enabled.
        unseen: How many requests a new service account is invisible to.
        shown_late: How many requests a service account is shown to that was removed.
        exists: Whether there is such a project; one that is made has nothing but serviceusage, and nobody pays.
        counted_elsewhere: Whether requests that name no project count against the login's own, where all APIs are off.
        unseen_project: How many requests do not know of a project that was just made.
        constraints: Organisation policies that are violated, by the method that they forbid.
        read_only: Whether a request that would change something is refused, and noted in ``wrong``.
        faults: What goes wrong; the first that meets a call happens to it.
        calls: Every call, in order, those that were refused included.
        wrong: What Google's own documents have against them.
        before: Called with each call before it is answered, e.g. to let another client be faster.
    """

    def __init__(self, project: str = "kinetic-tests", number: str = "471100000001") -> None:
        self.project, self.number = project, number
        self.enabled = set(APIS)
        self.billing = "billingAccounts/000000-000000-000001"
        self.denied: set[str] = set()
        self.account = f"user@{project}.iam.gserviceaccount.com"
        self.token = "token"
        self.tokens: set[str] | None = None
        self.quota_projects = {project}
        self.enabled_elsewhere = set(APIS)
        self.pending = 2
        self.fates: dict[str, str | tuple[str, str] | tuple[str, str, int]] = {}
        self.spread = 0
        self.unseen = 0
        self.shown_late = 0
        self.exists = True
        self.unseen_project = 0
        self.counted_elsewhere = False
        self.constraints: dict[str, str] = {}
        self.read_only = False
        self.faults: list[Fault] = []
        self.calls: list[Call] = []
        self.wrong: list[str] = []
        self.before: Callable[[Call], object] = lambda _: None
        self.ids = itertools.count(1)
        self._refused_until: dict[str, int] = {}
        self._left: dict[int, int] = {}

        self.objects = GcsServer().start()
        self.compute = Compute(self)
        self.container = Container(self)
        self.projects = Projects(self)
        self.storage = Storage(self)
        self.repositories = Repositories(self)
        self.builds = Builds(self)
        self.quotas = quotas.Quotas(self)
        self._answers: dict[str, Callable[[Call], Page]] = {
            "artifactregistry": self.repositories.answer,
            "cloudbilling": self.projects.answer,
            "cloudbuild": self.builds.answer,
            "cloudquotas": self.quotas.answer,
            "cloudresourcemanager": self.projects.answer,
            "compute": self.compute.answer,
            "container": self.container.answer,
            "iam": self.projects.answer,
            "serviceusage": self.projects.answer,
            "storage": self.storage.answer,
        }
        self._server = Server(self._respond).start()
        self.url = self._server.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.close()
        self.objects.close()

    def delay(self, seconds: float) -> None:
        """Answer each request so much later, as over a network."""
        self._server.delay_seconds = seconds

    # ------------------------------------------------------------------------------------------------- how it is found

    @property
    def endpoints(self) -> dict[str, str]:
        """Return the variables that lead kinetic here instead of to Google, for each service."""
        return {
            **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name.upper()}": f"{self.url}/{name}" for name in VERSIONS},
            "STORAGE_EMULATOR_HOST": self.objects.url,
        }

    def environ(self, folder: Path) -> dict[str, str]:
        """Write a login to a folder; return the variables of a process that uses it, and finds everything here."""
        file = folder / "login.json"
        file.write_text(json.dumps(self._login()))
        return self.endpoints | {"GOOGLE_APPLICATION_CREDENTIALS": str(file), "CLOUDSDK_CONFIG": str(folder)}

    def _login(self) -> Page:
        return {
            "type": "service_account",
            "project_id": self.project,
            "client_email": self.account,
            "private_key": _private_key(),
            "private_key_id": "1",
            "token_uri": f"{self.url}/token",
        }

    # ---------------------------------------------------------------------------------------------- what was asked

    @property
    def writes(self) -> list[Call]:
        """Return the calls that were made to change something."""
        return [call for call in self.calls if call.writes]

    def methods(self, *, writes: bool = False) -> list[str]:
        """Return the names of the methods that were called."""
        return [call.method for call in (self.writes if writes else self.calls)]

    def forget(self) -> None:
        """Forget the calls so far, so that indices count from 0 again."""
        self.calls.clear()
        self._left.clear()

    # ------------------------------------------------------------------------------------------------------- answers

    def _respond(self, request: Request) -> Answer:
        if request.path == "/token":
            page = {"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"}
            return Answer(200, json.dumps(page).encode(), _JSON)
        _, service, path = request.path.split("/", 2)
        if service not in VERSIONS:
            return Answer(404, b"no such service")
        try:
            call = self._read(service, path, request)
        except LookupError as error:
            self.wrong.append(str(error))
            return _refused(service, Refusal(404, str(error)))
        index = len(self.calls)
        self.calls.append(call)
        fault = self._fault(index, call)
        if fault is not None and not fault.after:
            return self._broken(fault, service, None)
        self.before(call)
        try:
            self._admit(call, request)
            answer = self._answers[service](call)
        except Refusal as refusal:
            given = _refused(service, refusal)
        else:
            self._verify(call, answer)
            data = b"" if not answer and call.verb == "DELETE" and service == "storage" else self._page(call, answer)
            given = Answer(200 if data else 204, data, _JSON)
        return given if fault is None else self._broken(fault, service, given)

    def _page(self, call: Call, answer: Page) -> bytes:
        return json.dumps(masked(answer, call.query.get("fields", ""))).encode()

    def _read(self, service: str, path: str, request: Request) -> Call:
        method = described(service).method(request.method, path)
        self.wrong += [
            f"{method['id']}: {each}"
            for each in described(service).complaints(request.method, path, request.query, request.body)
        ]
        below = path.removeprefix(f"{service}/").partition("/")[2]
        parts = tuple(urllib.parse.unquote(part) for part in below.split("/"))
        last, _, _ = parts[-1].partition(":")
        body = json.loads(request.body or b"{}")
        reads = request.method == "GET" or method["id"].rpartition(".")[2] in _READING_VERBS
        parts = (*parts[:-1], last)
        about = (service, method["id"], request.method, path, parts)
        return Call(*about, request.query, body, request.headers, not reads, request.pairs)

    def _admit(self, call: Call, request: Request) -> None:
        """Refuse what Google would refuse before it looks at the resource."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not given or (self.tokens is not None and given not in self.tokens):
            raise Refusal(
                401, "Request had invalid authentication credentials.", reason="ACCESS_TOKEN_TYPE_UNSUPPORTED"
            )
        billed = request.headers.get("x-goog-user-project", "")
        if billed and billed not in self.quota_projects:
            raise Refusal(
                403,
                f"Caller does not have required permission to use project {billed}.",
                reason="USER_PROJECT_DENIED",
                metadata={"consumer": f"projects/{billed}"},
            )
        problem = [each for each in self.wrong if each.startswith(f"{call.method}: ")]
        if problem and self.wrong[-1] == problem[-1]:
            raise Refusal(400, problem[-1])
        if self.read_only and call.writes:
            self.wrong.append(f"{call.method}: writes, where nothing may be written")
            raise Refusal(400, "nothing may be written")
        if call.path.removeprefix(f"{call.service}/").partition("/")[2] != "projects" and not self._is_seen(call):
            raise refusals.denied("resourcemanager.projects.get", f"projects/{self.project}")
        api = f"{call.service}.googleapis.com"
        is_off = self.counted_elsewhere if not billed else billed != self.project and api not in self.enabled_elsewhere
        if is_off:
            raise refusals.disabled(api, billed or "project-of-the-login", "999000000009")
        if call.method in _WITHOUT_PROJECT:
            if permission_of(call.method) in self.denied:
                raise refusals.denied(permission_of(call.method), call.body.get("parent", "organizations/1"))
            return
        if api != "serviceusage.googleapis.com" and (api not in self.enabled or self._is_spreading(api)):
            raise refusals.disabled(api, self.project, self.number)
        permission = permission_of(call.method)
        if permission in self.denied and call.action not in _OPEN:
            raise refusals.denied(permission, f"projects/{self.project}")
        if call.method in self.constraints:
            raise refusals.violated(self.constraints[call.method], call.service, self.number)

    def _is_seen(self, call: Call) -> bool:
        """Return whether the project exists for who asks now; what is asked of nobody's project always does."""
        if call.method in _WITHOUT_PROJECT or (self.exists and not self.unseen_project):
            return True
        if self.exists:
            self.unseen_project -= 1
        return False

    def _is_spreading(self, api: str) -> bool:
        left = self._refused_until.get(api, 0)
        self._refused_until[api] = max(0, left - 1)
        return left > 0

    def enable(self, api: str) -> None:
        """Turn an API on; for a while it still refuses, if the switch says so."""
        if api not in self.enabled:
            self.enabled.add(api)
            self._refused_until[api] = self.spread

    def _fault(self, index: int, call: Call) -> Fault | None:
        for number, fault in enumerate(self.faults):
            left = self._left.setdefault(number, fault.times)
            if left and fault.meets(index, call.method):
                self._left[number] = left - 1
                return fault
        return None

    def _broken(self, fault: Fault, service: str, given: Answer | None) -> Answer:
        if fault.kind == "reset":
            return Answer(0, aborts=True)
        if fault.kind == "time-out":
            return Answer(200, b'{"', stays_open=True)
        if fault.kind == "truncated":
            body = given.body if given is not None else b'{"kind": "nothing", "items": [1, 2, 3]}'
            return Answer(200, bytes(body[: max(1, len(body) // 2)]), _JSON)
        if fault.kind == "html":
            return Answer(fault.status, _HTML, {"Content-Type": "text/html"})
        assert fault.kind == "status", fault.kind
        more = {"Retry-After": fault.retry_after} if fault.retry_after else {}
        answer = _refused(service, Refusal(fault.status, fault.message, fault.word, reason=fault.reason))
        return answer._replace(headers=answer.headers | more)

    def _verify(self, call: Call, answer: Page) -> None:
        """Hold our own answer against the document: a fake that says what Google never says proves nothing."""
        schema = described(call.service).method(call.verb, call.path).get("response")
        if schema:
            wrong = described(call.service).misfits(schema["$ref"], answer)
            self.wrong += [f"our answer to {call.method}: {each}" for each in wrong]


@cache
def _private_key() -> str:
    """Make a key for logins, once: it takes 0.2 s."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def described(service: str) -> Document:
    """Return what describes a service: Google's document, or ours where Google ships none."""
    return quotas.DOCUMENT if service == "cloudquotas" else document(f"{service}.{VERSIONS[service]}")


def permission_of(method: str) -> str:
    """Return the permission that a method needs, e.g. "compute.networks.create" for "compute.networks.insert"."""
    service, _, rest = method.partition(".")
    rest = rest.replace("projects.locations.", "").replace("projects.serviceAccounts", "serviceAccounts")
    rest = rest.removeprefix("projects.") if service in {"container", "cloudbilling"} else rest
    short = f"{service}.{rest}"
    if short in _PERMISSIONS:
        return _PERMISSIONS[short]
    service = "resourcemanager" if service == "cloudresourcemanager" else service
    head, _, action = rest.rpartition(".")
    action = {"insert": "create", "aggregatedList": "list", "patch": "update", "wait": "get"}.get(action, action)
    return f"{service}.{head}.{action}"


def now() -> str:
    """Return the time as Google writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())


def _refused(service: str, refusal: Refusal) -> Answer:
    return Answer(refusal.code, json.dumps(refusal.page(service)).encode(), _JSON)
