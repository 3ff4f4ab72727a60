"""One API server as one identity: make, read, change and remove objects, which are plain dictionaries.

Two clusters in one process are two clients. Whatever is made has a derived name, so that every request can be repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from kinetic._backends.kube.transport import DEFAULT_RETRY, Transport
from kinetic.errors import (
    AccessDeniedError,
    BackendError,
    BackendUnavailableError,
    CapacityError,
    CredentialsError,
    KineticError,
    LaunchError,
)

if TYPE_CHECKING:
    from kinetic._backends.kube.credentials import Access
    from kinetic._backends.kube.transport import Query, Reply
    from kinetic._stores.parallel import Retry


class Kind(NamedTuple):
    """A kind of object.

    Attributes:
        group: Of the API; "" for the first one.
        version: Of the group.
        plural: As it stands in paths, e.g. "jobs".
        name: As it stands in manifests, e.g. "Job".
        namespaced: Whether it lies in a namespace.
    """

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return what stands in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Return the path of its group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str, name: str = "", part: str = "") -> str:
        """Return the path of all of them, of one, or of a part of one, as in "log"."""
        where = f"/namespaces/{namespace}" if self.namespaced else ""
        return "/".join(filter(None, (f"{self.root}{where}/{self.plural}", name, part)))


JOB = Kind("batch", "v1", "jobs", "Job")
JOB_SET = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
POD = Kind("", "v1", "pods", "Pod")
SECRET = Kind("", "v1", "secrets", "Secret")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
SERVICE = Kind("", "v1", "services", "Service")
SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
EVENT = Kind("", "v1", "events", "Event")
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
LOCAL_QUEUE = Kind("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue")
WORKLOAD = Kind("kueue.x-k8s.io", "v1beta1", "workloads", "Workload")
ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
RULES_REVIEW = Kind("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False)
WHO_REVIEW = Kind("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


_ADMISSION = re.compile(
    r"admission webhook|violates PodSecurity|ValidatingAdmissionPolicy|failed calling webhook|denied the request"
)
_LONGEST = 600  # characters of what a server says


class ApiRequest(NamedTuple):
    """What was asked for.

    Attributes:
        about: Of the access: which cluster.
        verb: As in roles: "create", "get", "list", "watch", "patch", "delete".
        kind: Of what.
        namespace: Where.
        name: Which, or "".
    """

    about: str
    verb: str
    kind: Kind
    namespace: str
    name: str = ""

    @property
    def thing(self) -> str:
        """Write what it was about: "the Job x", "Jobs"."""
        return f"the {self.kind.name} {self.name}" if self.name else f"{self.kind.name}s"


def response_json(body: bytes) -> dict[str, Any]:
    """Read an answer of the API, or return an empty page for what is none."""
    try:
        page = json.loads(body)
    except ValueError:
        return {}
    return page if isinstance(page, dict) else {}


def response_message(body: bytes) -> str:
    """Return the words of a refusal."""
    written = response_json(body).get("message")
    return str(written or body.decode(errors="replace").strip())[:_LONGEST]


def is_missing_kind(reply: Reply) -> bool:
    """Say whether a 404 means that the API has no such kind, rather than that it has no such object."""
    page = response_json(reply.body)
    return reply.status == 404 and (not page or "could not find the requested resource" in str(page.get("message")))


def is_conflict(reply: Reply) -> bool:
    """Say whether a 409 means that somebody else was quicker, and not that a name is taken: the same again may do."""
    return reply.status == 409 and response_json(reply.body).get("reason") == "Conflict"


def api_error(asked: ApiRequest, reply: Reply) -> KineticError:
    """Return the error for an answer that is no success."""
    said = response_message(reply.body)
    if reply.status == 401:
        return _rejected_credentials(asked, said)
    if _ADMISSION.search(said):
        return _admission_error(asked, said)
    if reply.status == 403:
        return _forbidden(asked, said)
    if reply.status == 404:
        return _not_found(asked, said, reply)
    if reply.status in {400, 413, 415, 422}:
        return LaunchError(
            f"{asked.about} does not take {asked.thing} as it is written",
            why=said,
            next="the message names the field; an older cluster may not know it yet: kubectl version tells",
        )
    if reply.status == 409:
        return BackendError(f"{asked.thing} was changed by somebody else in this moment", why=said, next="try again")
    return BackendUnavailableError(
        f"{asked.about} did not {asked.verb} {asked.thing}", why=f"HTTP {reply.status}: {said}", next="try again later"
    )


def _rejected_credentials(asked: ApiRequest, said: str) -> CredentialsError:
    return CredentialsError(
        f"{asked.about} does not know who we are",
        why=said or "HTTP 401",
        next="log in again: gcloud auth application-default login for GKE, or what your kubeconfig's user needs",
    )


def _admission_error(asked: ApiRequest, said: str) -> LaunchError:
    return LaunchError(
        f"a rule of {asked.about} refuses {asked.thing}",
        why=said,
        next="change what the message names, use another namespace, or ask who runs the cluster",
        code="admission",
    )


def _forbidden(asked: ApiRequest, said: str) -> KineticError:
    if "exceeded quota" in said:
        return CapacityError(
            f"the quota of the namespace {asked.namespace} is used up",
            why=said,
            next=f"wait for other jobs, or look at kubectl describe resourcequota -n {asked.namespace}",
        )
    if "because it is being terminated" in said:
        return _no_namespace(asked, f"it is being removed: {said}")
    plural = f"{asked.kind.plural}.{asked.kind.group}" if asked.kind.group else asked.kind.plural
    return AccessDeniedError(
        f"{asked.about} does not let us {asked.verb} {asked.kind.plural} in the namespace {asked.namespace}",
        why=said,
        next=f"ask who runs the cluster; kubectl auth can-i {asked.verb} {plural} -n {asked.namespace} tells",
    )


def _not_found(asked: ApiRequest, said: str, reply: Reply) -> KineticError:
    if said.startswith(f'namespaces "{asked.namespace}" not found'):
        return _no_namespace(asked, said)
    if is_missing_kind(reply):
        return LaunchError(
            f"{asked.about} has no {asked.kind.name}",
            why=said,
            next=f"ask who runs the cluster to install {asked.kind.group or 'it'}",
            code="kind-missing",
        )
    return BackendError(f"{asked.thing} is not in the namespace {asked.namespace}", why=said)


def _no_namespace(asked: ApiRequest, why: str) -> LaunchError:
    return LaunchError(
        f"there is no namespace {asked.namespace} in {asked.about}",
        why=why,
        next=f"kubectl create namespace {asked.namespace}, or name another in KINETIC_NAMESPACE",
        code="namespace-missing",
    )


Object = dict[str, Any]
Propagation = Literal["Background", "Foreground", "Orphan"]

PAGE = 500  # objects of one page of a list: some 5 MB at most
FIELD_MANAGER = "kinetic"
_MOST_CONFLICTS = 8  # in a row; the pauses between them are some ten seconds together
_MERGE = {"Content-Type": "application/merge-patch+json"}
# A field that the server does not know would be dropped without a word, and with it what it promised.
_STRICT: Query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}


class Listing(NamedTuple):
    """What there was at one moment.

    Attributes:
        objects: All of them.
        version: The moment, for a watch that goes on from it.
    """

    objects: list[Object]
    version: str


class Permissions(NamedTuple):
    """Whether we may do something, and what the cluster says about it."""

    allowed: bool
    why: str


class Client:
    """Speak to one API server."""

    def __init__(self, access: Access, namespace: str, retry: Retry = DEFAULT_RETRY) -> None:
        self.transport = Transport(access, retry)
        self.namespace = namespace

    @property
    def about(self) -> str:
        """Say in words which cluster this is."""
        return self.transport.access.about

    def create(self, kind: Kind, manifest: Object, *, dry_run: bool = False) -> Object:
        """Make an object; one that is there already and is ours is success.

        Args:
            kind: Of the object.
            manifest: With its name.
            dry_run: Let the server check it as if, and make nothing.

        Raises:
            LaunchError: Another object has the name, or the server does not take it.
            AccessDeniedError: We may not.
            CapacityError: A quota of the namespace is used up.
        """
        body = json.dumps(manifest).encode()
        query = {**_STRICT, **({"dryRun": "All"} if dry_run else {})}
        name = manifest["metadata"].get("name", "")
        for attempt in range(_MOST_CONFLICTS):
            reply = self.transport.send("POST", kind.path(self.namespace), query=query, body=body)
            if is_conflict(reply):  # over a quota of the namespace: GKE has one in each
                self.transport.pause(attempt)
                continue
            if reply.status != 409 or not name:
                return self._object(reply, self._asked("create", kind, name))
            found = self.get(kind, name)
            if found is not None:  # else what was in the way is gone
                return self._ours(kind, manifest, found)
        raise self._refused(reply, self._asked("create", kind, name))

    def get(self, kind: Kind, name: str) -> Object | None:
        """Return an object, or None when there is none."""
        reply = self.transport.send("GET", kind.path(self.namespace, name))
        if reply.status == 404 and not is_missing_kind(reply):
            return None
        return self._object(reply, self._asked("get", kind, name))

    def list(self, kind: Kind, selector: str = "", *, fields: str = "") -> Listing:
        """Return all objects that a selector fits, in pages; when the pages grow stale, from the beginning.

        Args:
            kind: Of the objects.
            selector: Of labels.
            fields: Of fields, as in "involvedObject.name=x".
        """
        asked = self._asked("list", kind)
        query: dict[str, str | int] = {"limit": PAGE}
        query |= {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": fields} if fields else {}
        found: list[Object] = []
        while True:
            reply = self.transport.send("GET", kind.path(self.namespace), query=query)
            if reply.status == 410 and "continue" in query:  # a page's token lives five minutes
                del query["continue"]
                found.clear()
                continue
            page = self._object(reply, asked)
            found += [_complete(kind, each) for each in page.get("items") or ()]
            about = page.get("metadata") or {}
            if not about.get("continue"):
                return Listing(found, str(about.get("resourceVersion", "")))
            query["continue"] = about["continue"]

    def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Object | None:
        """Merge a change into an object and return it, or None when there is none."""
        body = json.dumps(change).encode()
        reply = self.transport.send("PATCH", kind.path(self.namespace, name), query=_STRICT, body=body, headers=_MERGE)
        if reply.status == 404 and not is_missing_kind(reply):
            return None
        return self._object(reply, self._asked("patch", kind, name))

    def delete(
        self, kind: Kind, name: str, *, uid: str = "", propagation: Propagation = "Background", grace: int | None = None
    ) -> bool:
        """Remove an object; False when there was none, or when another one has its name by now.

        Args:
            kind: Of the object.
            name: Which.
            uid: Remove this very one only.
            propagation: What becomes of what it owns: removed after it, before it, or not at all.
            grace: Seconds that its pods get; None for their own.
        """
        options: Object = {"propagationPolicy": propagation}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        options |= {"gracePeriodSeconds": grace} if grace is not None else {}
        body = json.dumps(options).encode()
        reply = self.transport.send("DELETE", kind.path(self.namespace, name), body=body)
        if (reply.status == 404 and not is_missing_kind(reply)) or (reply.status == 409 and uid):
            return reply.status == 404 and reply.repeated  # our first try may be what removed it
        self._object(reply, self._asked("delete", kind, name))
        return True

    def delete_all(self, kind: Kind, selector: str, *, propagation: Propagation = "Background") -> None:
        """Remove all objects that a selector fits, with one request."""
        body = json.dumps({"propagationPolicy": propagation}).encode()
        query = {"labelSelector": selector}
        reply = self.transport.send("DELETE", kind.path(self.namespace), query=query, body=body)
        self._object(reply, self._asked("deletecollection", kind))

    def serves(self, kind: Kind) -> bool:
        """Say whether the cluster knows a kind."""
        reply = self.transport.send("GET", kind.root)
        if reply.status == 404:
            return False
        page = self._object(reply, self._asked("get", kind))
        return any(each.get("name") == kind.plural for each in page.get("resources") or ())

    def may(self, verb: str, kind: Kind, *, part: str = "") -> Permissions:
        """Ask whether we may do something.

        Args:
            verb: As in roles, e.g. "create".
            kind: To what.
            part: To which part of it, e.g. "log".
        """
        wanted = {"verb": verb, "group": kind.group, "resource": kind.plural, "subresource": part}
        if kind.namespaced:
            wanted["namespace"] = self.namespace
        review = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.name,
            "spec": {"resourceAttributes": wanted},
        }
        reply = self.transport.send("POST", ACCESS_REVIEW.path(""), body=json.dumps(review).encode())
        status = self._object(reply, self._asked("create", ACCESS_REVIEW)).get("status") or {}
        return Permissions(
            bool(status.get("allowed")), str(status.get("reason") or status.get("evaluationError") or "")
        )

    def close(self) -> None:
        """Close all connections."""
        self.transport.close()

    def refuse(self, verb: str, kind: Kind, name: str, reply: Reply) -> Exception:
        """Return the error for an answer to a request that somebody else sent for us: a watch, a log."""
        return self._refused(reply, self._asked(verb, kind, name))

    def _ours(self, kind: Kind, wanted: Object, found: Object) -> Object:
        """Return an object that has the name we wanted, if it is what we wanted to make.

        The answer to our first try may have been lost; then it is. What is on its way out is not.
        """
        leaving = found["metadata"].get("deletionTimestamp")
        if not leaving and is_same(wanted, found):
            return _complete(kind, found)
        name = found["metadata"]["name"]
        raise LaunchError(
            f"the name {name} is taken in the namespace {self.namespace}",
            why=f"a {kind.name} of that name is being removed" if leaving else f"another {kind.name} has it",
            next=f"try again in a moment, or look at it: kubectl get {kind.plural} {name} -n {self.namespace} -o yaml",
            code="name-taken",
        )

    def _asked(self, verb: str, kind: Kind, name: str = "") -> ApiRequest:
        return ApiRequest(self.about, verb, kind, self.namespace, name)

    def _object(self, reply: Reply, asked: ApiRequest) -> Object:
        if not 200 <= reply.status < 300:
            raise self._refused(reply, asked)
        return response_json(reply.body)

    @staticmethod
    def _refused(reply: Reply, asked: ApiRequest) -> Exception:
        return api_error(asked, reply)


def is_same(wanted: Object, found: Object) -> bool:
    """Say whether an object is the one that a manifest describes: its labels, our annotations, its owners."""
    mine, theirs = wanted["metadata"], found["metadata"]
    labels = _pairs(mine, "labels") <= _pairs(theirs, "labels")
    ours = {pair for pair in _pairs(mine, "annotations") if pair[0].startswith("kinetic/")}
    return labels and ours <= _pairs(theirs, "annotations") and _owners(mine) <= _owners(theirs)


def _pairs(about: Object, field: str) -> set[tuple[str, str]]:
    return set((about.get(field) or {}).items())


def _owners(about: Object) -> set[str]:
    return {each["uid"] for each in about.get("ownerReferences") or ()}


def _complete(kind: Kind, found: Object) -> Object:
    """Fill in what lists leave out."""
    return {"apiVersion": kind.api_version, "kind": kind.name, **found}


T = TypeVar("T")

AT_ONCE = 8  # requests side by side


def request_all(questions: Sequence[Callable[[], T]]) -> list[T]:
    """Ask several things, and return the answers in their order; raise what the first of them raises that does.

    All are asked, whatever one of them says. Ctrl-C waits for none of them.
    """
    if len(questions) <= 1:
        return [question() for question in questions]
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kinetic-ask")
    try:
        answers = [_submit_or_run(pool, question) for question in questions]
        wait(answers)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return [answer.result() for answer in answers]


def _submit_or_run(pool: ThreadPoolExecutor, question: Callable[[], T]) -> Future[T]:
    try:
        return pool.submit(question)
    except RuntimeError:  # "cannot schedule new futures after interpreter shutdown", "can't start new thread"
        answer: Future[T] = Future()
        try:
            answer.set_result(question())
        except Exception as error:  # noqa: BLE001 - raised again where the answer is read
            answer.set_exception(error)
        return answer
