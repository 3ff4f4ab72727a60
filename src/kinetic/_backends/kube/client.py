"""One API server with one identity: create, read, change and delete objects, which are plain dictionaries.

Two clusters in one process are two clients. All that is created has a derived name, so every request can be repeated.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._backends.kube.transport import (
    DEFAULT_RETRY,
    Transport,
    UnfinishedAnswerError,
    response_json,
    response_message,
)
from kinetic._wire import NamedTuple
from kinetic.errors import (
    AccessDeniedError,
    BackendError,
    BackendUnavailableError,
    CapacityError,
    KineticError,
    LaunchError,
)

if TYPE_CHECKING:
    from kinetic._backends.kube.transport import Access, Query, Reply
    from kinetic._stores.parallel import Retry


class Kind(NamedTuple):
    """A kind of object."""

    group: str  # of the API; "" for the core group
    version: str
    plural: str  # as in paths, e.g. "jobs"
    name: str  # as in manifests, e.g. "Job"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """Return the plural as kubectl takes it: "jobs.batch"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "", part: str = "") -> str:
        """Return the path of all of them, of one, or of a part of one, as in "log"."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        where = f"/namespaces/{namespace}" if self.namespaced else ""
        return "/".join(filter(None, (f"{root}{where}/{self.plural}", name, part)))


JOB = Kind("batch", "v1", "jobs", "Job")
JOB_SET = Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
POD = Kind("", "v1", "pods", "Pod")
SECRET = Kind("", "v1", "secrets", "Secret")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
SERVICE = Kind("", "v1", "services", "Service")
SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
RESOURCE_QUOTA = Kind("", "v1", "resourcequotas", "ResourceQuota")
EVENT = Kind("", "v1", "events", "Event")
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
VOLUME_CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
RUNTIME_CLASS = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
POD_GROUP = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
LOCAL_QUEUE = Kind("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue")
WORKLOAD = Kind("kueue.x-k8s.io", "v1beta1", "workloads", "Workload")
ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
RULES_REVIEW = Kind("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False)
WHO_REVIEW = Kind("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)

Object = dict[str, Any]

PAGE = 500  # objects of one page of a list: some 5 MB at most
_LEAST_PAGE = 20
_MOST_CONFLICTS = 8  # in a row; the pauses between them are some ten seconds together
_MERGE = {"Content-Type": "application/merge-patch+json"}
_APPLY = {"Content-Type": "application/apply-patch+yaml"}  # JSON is YAML
# A field that the server does not know would be dropped silently, and with it what it promised.
FIELD_MANAGER = "kinetic"  # how the server calls us as the writer of a field
_STRICT: Query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
_ADMISSION = (
    r"admission webhook|violates PodSecurity|ValidatingAdmissionPolicy|failed calling webhook|denied the request"
)
_OVER_QUOTA = "exceeded quota"


class Listing(NamedTuple):
    """The objects that existed at one moment, and its version, at which a watch can start."""

    objects: list[Object]
    version: str


class AccessReview(NamedTuple):
    """Whether we may do something, and the cluster's reason."""

    allowed: bool
    why: str


class Client:
    """Requests to one API server, and to one namespace for what is in one."""

    def __init__(self, access: Access, namespace: str, retry: Retry = DEFAULT_RETRY) -> None:
        self.transport = Transport(access, retry)
        self.namespace = namespace

    @property
    def about(self) -> str:
        return self.transport.access.about

    def in_namespace(self, namespace: str) -> Client:
        """Return a client of the same server for another namespace; it shares the connections."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def create(self, kind: Kind, manifest: Object, *, dry_run: bool = False) -> Object:
        """Create an object; if it exists already and is ours, that is success. Errors are those of ``error_for``."""
        body = json.dumps(manifest).encode()
        query = {**_STRICT, **({"dryRun": "All"} if dry_run else {})}
        name = manifest["metadata"].get("name", "")
        for attempt in range(_MOST_CONFLICTS):
            reply = self.transport.send("POST", kind.path(self.namespace), query=query, body=body)
            # Over a quota of the namespace, of which GKE has one in each; a name that is taken is another reason.
            if reply.status == 409 and response_json(reply.body).get("reason") == "Conflict":
                self.transport.pause(attempt)
                continue
            # A quota is asked before the name: it may be filled by this very object, whose answer was lost.
            is_over = reply.status == 403 and _OVER_QUOTA in response_message(reply.body)
            if not name or not (reply.status == 409 or is_over):
                return self._object(reply, "create", kind, name)
            found = self.get(kind, name)
            if found is not None:  # else what had the name is gone
                return self._ours(kind, manifest, found)
            if is_over:
                break
        raise self.error_for("create", kind, name, reply)

    def get(self, kind: Kind, name: str) -> Object | None:
        """Return an object, or None when there is none."""
        reply = self.transport.send("GET", kind.path(self.namespace, name))
        return None if _is_missing(reply) else self._object(reply, "get", kind, name)

    def pages(self, kind: Kind, query: Query) -> Iterator[Object | None]:
        """Yield a list page by page, and None when the rest has expired: all pages follow again.

        A server that does not finish a page is asked for fewer objects from there on: it may be busy.
        """
        rest, most = "", int(query.get("limit", 0))
        while True:
            size: Query = {"limit": most} if most else {}
            part: Query = {**query, **size, **({"continue": rest} if rest else {})}
            try:
                reply = self.transport.send(
                    "GET", kind.path(self.namespace), query=part, can_ask_for_less=most > _LEAST_PAGE
                )
            except UnfinishedAnswerError:
                most = max(_LEAST_PAGE, most // 5)
                continue
            if reply.status == 410 and rest:  # a page's token is valid for five minutes
                rest = ""
                yield None
                continue
            page = self._object(reply, "list", kind)
            yield page
            rest = str((page.get("metadata") or {}).get("continue") or "")
            if not rest:
                return

    def list(
        self, kind: Kind, selector: str = "", *, fields: str = "", reduce: Callable[[Object], Object] | None = None
    ) -> Listing:
        """Return all objects that a selector fits, each as `reduce` makes it smaller, page by page."""
        query: dict[str, str | int] = {"limit": PAGE}
        query |= {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": fields} if fields else {}
        found: list[Object] = []
        version = ""
        for page in self.pages(kind, query):
            if page is None:
                found.clear()
                continue
            items = (complete(kind, each) for each in page.get("items") or ())
            found += map(reduce, items) if reduce is not None else items
            version = str((page.get("metadata") or {}).get("resourceVersion", ""))
        return Listing(found, version)

    def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Object | None:
        """Merge a change into an object and return it, or None when there is none."""
        body = json.dumps(change).encode()
        reply = self.transport.send("PATCH", kind.path(self.namespace, name), query=_STRICT, body=body, headers=_MERGE)
        return None if _is_missing(reply) else self._object(reply, "patch", kind, name)

    def apply(self, kind: Kind, manifest: Object, *, force: bool = False) -> Object:
        """Create an object, or make its fields what a manifest says, as ``kubectl apply --server-side`` does.

        With `force`, fields that another writer owns are taken over: only for what is ours.
        """
        name = manifest["metadata"]["name"]
        query = {**_STRICT, **({"force": "true"} if force else {})}
        body = json.dumps(manifest).encode()
        reply = self.transport.send("PATCH", kind.path(self.namespace, name), query=query, body=body, headers=_APPLY)
        return self._object(reply, "patch", kind, name)

    def delete(self, kind: Kind, name: str, *, uid: str = "", version: str = "", pods_first: bool = False) -> bool:
        """Delete an object, of that uid and version only if they are given; False when there is none such.

        With `pods_first`, what it owns goes before it and not behind it.
        """
        options: Object = {"propagationPolicy": "Foreground" if pods_first else "Background"}
        only = {"uid": uid} | ({"resourceVersion": version} if version else {})
        options |= {"preconditions": only} if uid else {}
        reply = self.transport.send("DELETE", kind.path(self.namespace, name), body=json.dumps(options).encode())
        if _is_missing(reply):
            return reply.repeated  # our first attempt may be what deleted it
        if reply.status == 409 and uid:
            return False
        self._object(reply, "delete", kind, name)
        return True

    def review_access(self, verb: str, kind: Kind, *, part: str = "") -> AccessReview:
        """Ask whether we may do something."""
        wanted = {"verb": verb, "group": kind.group, "resource": kind.plural, "subresource": part}
        if kind.namespaced:
            wanted["namespace"] = self.namespace
        reply = self.review(ACCESS_REVIEW, {"resourceAttributes": wanted})
        status = self._object(reply, "create", ACCESS_REVIEW).get("status") or {}
        return AccessReview(
            bool(status.get("allowed")), str(status.get("reason") or status.get("evaluationError") or "")
        )

    def review(self, kind: Kind, spec: Object) -> Reply:
        """Ask a question that is an object whose status is the answer."""
        body = {"apiVersion": kind.api_version, "kind": kind.name, **({"spec": spec} if spec else {})}
        return self.transport.send("POST", kind.path(""), body=json.dumps(body).encode())

    def close(self) -> None:
        self.transport.close()

    def error_for(self, verb: str, kind: Kind, name: str, reply: Reply) -> KineticError:
        """Return the error for an answer that is not a success; of a watch or a log, too, which are not sent here."""
        message, about, namespace = response_message(reply.body), self.about, self.namespace
        thing = f"the {kind.name} {name}" if name else f"{kind.name}s"
        if reply.status == 401:
            return self.transport.access.rejected(message or "HTTP 401")
        if re.search(_ADMISSION, message):
            return LaunchError(
                f"an admission rule of {about} rejected {thing}",
                why=message,
                next="change what the message names (KINETIC_LABELS and KINETIC_ANNOTATIONS set those of pods), use "
                "another namespace, or ask an administrator of the cluster",
                code="admission",
            )
        if reply.status == 403 and _OVER_QUOTA in message:
            of_warm_pods = "those of warm pods that have ended stay for a day: kubectl delete job NAME, as listed by "
            of_warm_pods += f"kubectl get jobs -n {namespace} -l app=kinetic-warm     "
            return CapacityError(
                f"the quota of the namespace {namespace} is used up",
                why=message,
                next="remove jobs that have ended, which count as well: kinetic jobs cleanup --all     "
                f"{of_warm_pods if kind == JOB else ''}or wait for others; "
                f"kubectl describe resourcequota -n {namespace} shows it",
            )
        is_terminating = reply.status == 403 and "because it is being terminated" in message
        if is_terminating or (reply.status == 404 and message.startswith(f'namespaces "{namespace}" not found')):
            return LaunchError(
                f"there is no namespace {namespace} in {about}",
                why=f"it is being deleted: {message}" if is_terminating else message,
                next=f"kubectl create namespace {namespace}, or name another in KINETIC_NAMESPACE",
                code="namespace-missing",
            )
        if reply.status == 403 and response_json(reply.body).get("kind") != "Status":
            error = response_json(reply.body).get("error")  # of Google, before the DNS endpoint of a GKE cluster
            said = error.get("message") if isinstance(error, dict) else error
            return AccessDeniedError(
                f"access to {about} was denied before Kubernetes was asked",
                why=str(said or "HTTP 403, and no answer of an API server"),
                next="for a GKE cluster, ask for container.clusters.connect, as in roles/container.developer; "
                "for another, ask the administrator of the proxy before it",
            )
        if reply.status == 403:
            if "on a resource you can't delete" in message:  # of OwnerReferencesPermissionEnforcement, a plugin
                verb = "delete"
            return self._denied(verb, kind, message)
        if reply.status == 404 and not _is_missing(reply):
            return LaunchError(
                f"{about} has no {kind.name}",
                why=message,
                next=f"ask an administrator of the cluster to install {kind.group or 'it'}",
                code="kind-missing",
            )
        if reply.status == 404:
            return BackendError(f"{thing} does not exist in the namespace {namespace}", why=message)
        if reply.status in {400, 413, 415, 422}:
            return LaunchError(
                f"{about} rejected the manifest of {thing}",
                why=message,
                next="the message names the field; an older cluster may not support it: run kubectl version",
            )
        if reply.status == 409:
            return BackendError(f"{thing} was changed by another request", why=message, next="try again")
        return BackendUnavailableError(
            f"{about} could not {verb} {thing}", why=f"HTTP {reply.status}: {message}", next="try again later"
        )

    def _denied(self, verb: str, kind: Kind, message: str) -> AccessDeniedError:
        where, option = f"in the namespace {self.namespace} of {self.about}", f" -n {self.namespace}"
        if not kind.namespaced:  # no Role of a namespace grants it
            where, option = f"for all of {self.about}", ""
        can = f"kubectl auth can-i {verb} {kind.full_name}{option}"
        return AccessDeniedError(
            f"missing permission {where}: {verb} {kind.plural}",
            why=message,
            next=f"ask an administrator of the cluster; check with {can}",
        )

    def _object(self, reply: Reply, verb: str, kind: Kind, name: str = "") -> Object:
        if not 200 <= reply.status < 300:
            raise self.error_for(verb, kind, name, reply)
        return response_json(reply.body)

    def _ours(self, kind: Kind, wanted: Object, found: Object) -> Object:
        """Return an object that has the name we wanted, if it is what we wanted to create.

        It is if the answer to our first attempt was lost. What is being deleted is not.
        """
        leaving = found["metadata"].get("deletionTimestamp")
        if not leaving and is_same(wanted, found):
            return complete(kind, found)
        name = found["metadata"]["name"]
        raise LaunchError(
            f"the name {name} is taken in the namespace {self.namespace}",
            why=f"a {kind.name} of that name is being deleted" if leaving else f"another {kind.name} has it",
            next=f"try again in a moment, or inspect it: kubectl get {kind.plural} {name} -n {self.namespace} -o yaml",
            code="name-taken",
        )


def _is_missing(reply: Reply) -> bool:
    """Return whether a 404 means that there is no such object, rather than that the API has no such kind."""
    if reply.status != 404:
        return False
    page = response_json(reply.body)
    return bool(page) and "could not find the requested resource" not in str(page.get("message"))


def is_rejected(reply: Reply) -> bool:
    """Return whether a rule of the cluster rejected an object."""
    return reply.status >= 400 and bool(re.search(_ADMISSION, response_message(reply.body)))


def is_same(wanted: Object, found: Object) -> bool:
    """Return whether an object is the one that a manifest describes: its labels, our annotations, its owners."""
    mine, theirs = wanted["metadata"], found["metadata"]

    def pairs(about: Object, field: str) -> set[tuple[str, str]]:
        return set((about.get(field) or {}).items())

    def owners(about: Object) -> set[str]:
        return {each["uid"] for each in about.get("ownerReferences") or ()}

    ours = {pair for pair in pairs(mine, "annotations") if pair[0].startswith("kinetic/")}
    return (
        pairs(mine, "labels") <= pairs(theirs, "labels")
        and ours <= pairs(theirs, "annotations")
        and owners(mine) <= owners(theirs)
    )


def complete(kind: Kind, found: Object) -> Object:
    """Fill in what lists, and some answers, leave out."""
    return {"apiVersion": kind.api_version, "kind": kind.name, **found}


T = TypeVar("T")

AT_ONCE = 8  # requests side by side


def request_all(questions: Sequence[Callable[[], T]]) -> list[T]:
    """Ask several things side by side, and return the answers in their order; raise what the first that fails raises.

    All are asked, even if one fails. Ctrl-C waits for none of them.
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
