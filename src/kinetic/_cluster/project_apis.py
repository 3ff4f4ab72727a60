"""The APIs of one project: requests with the patience that what was just made needs, and operations that are followed.

a 403 SERVICE_DISABLED of an API that we just enabled    again, for up to five minutes
the same about another project than ours                 again, counted against ours
a 400 resourceNotReady, a 409 operationInProgress        again, for up to five minutes
a 400 "running incompatible operation" of a cluster      again, until the limit of the whole command
a 403 of a project that we just made                     again, for up to a minute
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from kinetic._google import artifacts, clusters
from kinetic._google.api import ApiError, Page, Service, constraints_text
from kinetic._google.login import Tokens
from kinetic._stores.parallel import Retry
from kinetic.errors import AccessDeniedError, BackendUnavailableError, ClusterError

BILLING = "cloudbilling.googleapis.com"
COMPUTE = "compute.googleapis.com"
CONTAINER = clusters.CONTAINER_API
IAM = "iam.googleapis.com"
PROJECTS = "cloudresourcemanager.googleapis.com"
SERVICES = "serviceusage.googleapis.com"
STORAGE = "storage.googleapis.com"
ARTIFACTS = artifacts.API
QUOTAS = "cloudquotas.googleapis.com"
_ALL = (BILLING, COMPUTE, CONTAINER, IAM, PROJECTS, SERVICES, STORAGE, ARTIFACTS, QUOTAS)

RETRY = Retry(attempts=5, first_seconds=0.5, most_seconds=16.0)
_SPREAD_SECONDS = 300.0  # until what was just made or enabled is known everywhere
_NEW_PROJECT_SECONDS = 60.0
_PAUSE_SECONDS = 5.0
_OTHER_PROJECT = ("USER_PROJECT_DENIED", "SERVICE_DISABLED")
_NOT_READY = frozenset({"resourceNotReady", "operationInProgress"})
_BUSY = ("incompatible operation", "operation is in progress", "Another activation")
_UNSEEN_SECONDS = 90.0
_UNSEEN = ("does not exist", "Identity Pool does not exist")

Query = Mapping[str, str | Sequence[str]]


class ProjectApis:
    """Google's APIs for one project. Threads may share it."""

    def __init__(
        self,
        project: str,
        tokens: Tokens,
        environ: Mapping[str, str],
        *,
        retry: Retry = RETRY,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        limit_seconds: float = 2400.0,
    ) -> None:
        self.project = project  # the id of the project
        self.tokens = tokens
        self.enabled: set[str] = set()  # APIs that were enabled by us, which may not be known everywhere yet
        self.writes = 0  # requests that change something, sent so far (count)
        self.sleep = sleep
        self._clock = clock
        self._ends = clock() + limit_seconds
        self._limit = limit_seconds
        self._made_until = 0.0  # a project that is just made is not seen everywhere until then
        self.services = {name: Service(name, tokens, retry, environ=environ) for name in _ALL}

    def read(self, api: str, path: str, **query: str | Sequence[str]) -> Page | None:
        """Read a thing; None where there is none, or where its API is off: then nothing of ours can be there."""
        try:
            return self.call(api, "GET", path, query=query)
        except ApiError as error:
            if error.status == 404 or (is_disabled(error) and api not in self.enabled):
                return None
            raise

    def call(self, api: str, method: str, path: str, body: Page | None = None, *, query: Query | None = None) -> Page:
        """Send a request, again while what it needs is not known everywhere yet.

        Raises:
            ApiError: The service rejected it.
        """
        service = self.services[api]
        if method in {"PUT", "PATCH", "DELETE"} or (method == "POST" and not path.endswith(_ASKING)):
            self.writes += 1
        ends = self._clock() + _SPREAD_SECONDS
        while True:
            try:
                return service.request(method, path, body, query=query)
            except ApiError as error:
                if self._is_counted_elsewhere(service, error):
                    service.user_project = self.project
                    continue
                limit = self._ends if any(words in error.message for words in _BUSY) else ends
                if not self._passes(api, error) or self._clock() >= limit:
                    raise
            self.sleep(_PAUSE_SECONDS)

    def _is_counted_elsewhere(self, service: Service, error: ApiError) -> bool:
        """Return whether our credentials' own project was asked instead of the one that is worked on."""
        if service.user_project or error.status != 403:
            return False
        own = {f"projects/{self.project}", f"projects/{self.number}"}
        is_other = bool(error.consumer) and error.consumer not in own
        return (error.reason in _OTHER_PROJECT and is_other) or "requires a quota project" in error.message

    number = ""  # of the project, once it was read

    def note_new_project(self) -> None:
        """Expect for a while that Google does not know everywhere that the project is there, and ours."""
        self._made_until = self._clock() + _NEW_PROJECT_SECONDS

    def _passes(self, api: str, error: ApiError) -> bool:
        """Return whether an answer may be another one in a while."""
        if is_disabled(error):
            return api in self.enabled
        if error.status == 403 and self._clock() < self._made_until:
            return True
        if error.status in {400, 409} and error.reason in _NOT_READY:
            return True
        if error.status == 403 and _is_rate(error):  # not a lack of machines
            return True
        return error.status in {400, 409} and any(words in error.message for words in _BUSY)

    def retry_unseen(self, send: Callable[[], Page]) -> Page:
        """Send something that names what was just made, again while it is not seen everywhere."""
        ends = self._clock() + _UNSEEN_SECONDS
        while True:
            try:
                return send()
            except ApiError as error:
                unseen = error.status in {400, 404} and any(words in error.message for words in _UNSEEN)
                if not unseen or self._clock() >= ends:
                    raise
            self.sleep(_PAUSE_SECONDS)

    # ------------------------------------------------------------------------------------------------------ operations

    def write_compute(self, method: str, path: str, body: Page | None = None) -> None:
        """Change something of Compute Engine, and wait until it is done.

        Each logical write has an id of its own, which is kept over its repeats: Google ignores a second one.
        """
        operation = self.call(COMPUTE, method, path, body, query={"requestId": str(uuid.uuid4())})
        where = path.partition("/projects/")[2].split("/")
        scope = f"regions/{where[2]}" if where[1] == "regions" else f"zones/{where[2]}" if where[1] == "zones" else ""
        follow = f"compute/v1/projects/{self.project}/{scope or 'global'}/operations/{operation['name']}"
        if operation.get("status") != "DONE":
            # Read, and not its method "wait": that may answer after two minutes, and requests of ours wait less.
            done = self.follow(COMPUTE, follow, lambda page: page.get("status") == "DONE")
            operation = done or {}  # forgotten after a day; the thing itself is read afterwards
        failed = (operation.get("error") or {}).get("errors") or ()
        if failed:
            first = failed[0]
            raise ApiError(int(operation.get("httpErrorStatusCode") or 400), str(first.get("code", "")), _texts(failed))

    def follow(
        self, api: str, path: str, is_done: Callable[[Page], bool], report: Callable[[Page], object] | None = None
    ) -> Page | None:
        """Read an operation until it is done; None when it has vanished. Pauses grow from 1 to 5 seconds."""
        seconds = 1.0
        while True:
            page = self.read(api, path)
            if page is None or is_done(page):
                return page
            if report is not None:
                report(page)
            self.check_time(path)
            self.sleep(seconds)
            seconds = min(_PAUSE_SECONDS, seconds * 1.3)

    def finish(self, api: str, operation: Page, version: str = "v1") -> None:
        """Wait until an operation of an API that names them alike is done; raise an ApiError if it has failed."""
        if not operation.get("done"):
            path = f"{version}/{operation['name']}"
            operation = self.follow(api, path, lambda page: bool(page.get("done"))) or {}
        check_operation(operation)

    def check_time(self, what: str) -> None:
        """Raise an error when the command has taken longer than its limit."""
        if self._clock() >= self._ends:
            raise ClusterError(
                f"Google did not finish within {self._limit / 60:.0f} minutes",
                why=f"it still works on {what.rpartition('/')[2]}, and continues without us",
                next="run the same command again: it continues where this one stopped",
                code="cluster-timeout",
            )


def pages(ask: Callable[[dict[str, str]], Page | None], most: int | None = None, **query: str) -> Iterator[Page]:
    """Yield all pages of a list, or at most so many."""
    for _ in count() if most is None else range(most):
        page = ask(query) or {}
        yield page
        if not page.get("nextPageToken"):
            return
        query["pageToken"] = str(page["nextPageToken"])


# Of iam.allowedPolicyMemberDomains, which new organizations have; its status is that of a policy that was changed.
NOT_PERMITTED = "do not belong to a permitted customer"
_POLICY = re.compile(rf"constraints/|org policy|organization('s)? policy|{NOT_PERMITTED}", re.IGNORECASE)
_UNPAID = re.compile(r"billing account|billing to be enabled", re.IGNORECASE)
_TOO_FAST = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
_WAYS_AROUND = {  # by policies that leave one
    "gcp.resourceLocations": "kinetic up --region REGION, with one that the policy allows",
    "iam.disableServiceAccountCreation": "kinetic up --node-service-account EMAIL, with an account that exists",
    "compute.restrictCloudNATUsage": "kinetic up --network NAME, with one whose nodes reach the internet",
    "compute.vmExternalIpAccess": "kinetic up without --public-nodes",
}
_ASKING = (":testIamPermissions", ":getIamPolicy", "advice/capacity")  # POST requests that change nothing


def is_disabled(error: ApiError) -> bool:
    """Return whether a request was refused because its API is off."""
    return error.status == 403 and (
        error.reason in {"SERVICE_DISABLED", "accessNotConfigured"} or "has not been used in project" in error.message
    )


@contextmanager
def ignoring(status: int) -> Iterator[None]:
    """Ignore one answer of Google's: 404 where what is to be removed is gone, 409 where what is to be made is there."""
    try:
        yield
    except ApiError as error:
        if error.status != status:
            raise


# Operations fail with codes of gRPC; google/rpc/code.proto has the HTTP status of each.
_STATUS_BY_CODE = {3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501, 14: 503, 16: 401}


def check_operation(operation: Page) -> None:
    """Raise an error if an operation that is done has failed."""
    failed = operation.get("error") or {}
    message = str(failed.get("message") or operation.get("statusMessage") or "")
    if failed or message:
        message += constraints_text(failed)
        details = [each for each in failed.get("details") or () if isinstance(each, dict)]
        reason = next((str(each["reason"]) for each in details if each.get("reason")), "")
        code = failed.get("code")
        raise ApiError(_STATUS_BY_CODE.get(int(code), 500) if code else 400, reason, message)


def is_unpaid(error: ApiError) -> bool:
    """Return whether a request was refused because nobody pays for the project."""
    return "BILLING" in error.reason.upper() or "BILLING" in error.message or bool(_UNPAID.search(error.message))


def _is_rate(error: ApiError) -> bool:
    return error.reason in _TOO_FAST or "per minute" in error.message


def _texts(errors: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(str(each.get("message") or each.get("code")) for each in errors)


def billing_error(project: str, why: str) -> ClusterError:
    """Return the error that nobody pays for a project."""
    link = f"https://console.cloud.google.com/billing/linkedaccount?project={project}"
    step = f"link one: {link}     or kinetic up --billing-account 012345-567890-ABCDEF"
    return ClusterError(f"the project {project} has no billing account", why=why, next=step, code="billing")


@contextmanager
def explaining(doing: str, project: str) -> Iterator[None]:
    """Turn a refusal of Google's into our error, with what to do about it."""
    try:
        yield
    except ApiError as error:
        raise explained(error, doing, project) from error


def explained(error: ApiError, doing: str, project: str) -> AccessDeniedError | BackendUnavailableError | ClusterError:
    """Return our error for a refusal, with what to do about it."""
    what, again = f"Google refused to {doing} ({error.status})", "correct it, and run the same command again"
    text = error.message
    if is_unpaid(error):
        return billing_error(project, text)
    if _POLICY.search(text) or "CONDITION_NOT_MET" in error.reason:
        step = "ask an administrator of the organization about the policy that the message names"
        step = next((f"{way}, or {step}" for name, way in _WAYS_AROUND.items() if name in text), step)
        return AccessDeniedError(what, why=text, next=step, code="organization-policy")
    if "iam.serviceAccounts.actAs" in text:
        step = "ask for the role roles/iam.serviceAccountUser, or name an account: --node-service-account"
        return AccessDeniedError(what, why=text, next=step)
    if _is_rate(error):
        return BackendUnavailableError(what, why=text, next="run the same command again in some minutes")
    if "quota" in text.lower():
        step = f"ask for more: https://console.cloud.google.com/iam-admin/quotas?project={project}, or use --region"
        return BackendUnavailableError(what, why=text, next=step, code="google-quota")
    if is_disabled(error):
        step = f"turn it on: https://console.cloud.google.com/apis/library?project={project}, or ask an administrator"
        return AccessDeniedError(what, why=text, next=step)
    if error.status == 403:
        step = f"kinetic up --dry-run --project {project}     lists the missing rights and their roles"
        return AccessDeniedError(what, why=text, next=step)
    return ClusterError(what, why=text, next=again, code="google-refused")
