"""One API server as one identity: make, read, change and remove objects, which are plain dictionaries.

Two clusters in one process are two clients. Whatever is made has a derived name, so that every request can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kinetic._backends.kube import refusals
from kinetic._backends.kube.kinds import ACCESS_REVIEW, Kind
from kinetic._backends.kube.refusals import Asked
from kinetic._backends.kube.transport import PATIENCE, Transport
from kinetic.errors import LaunchError

if TYPE_CHECKING:
    from kinetic._backends.kube.access import Access
    from kinetic._backends.kube.transport import Query, Reply
    from kinetic._stores.retrying import Retry

Object = dict[str, Any]
Propagation = Literal["Background", "Foreground", "Orphan"]

PAGE = 500  # objects of one page of a list: some 5 MB at most
MANAGER = "kinetic"
_MOST_CONFLICTS = 8  # in a row; the pauses between them are some ten seconds together
_MERGE = {"Content-Type": "application/merge-patch+json"}
# A field that the server does not know would be dropped without a word, and with it what it promised.
_STRICT: Query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}


class Listing(NamedTuple):
    """What there was at one moment.

    Attributes:
        objects: All of them.
        version: The moment, for a watch that goes on from it.
    """

    objects: list[Object]
    version: str


class May(NamedTuple):
    """Whether we may do something, and what the cluster says about it."""

    allowed: bool
    why: str


class Client:
    """Speak to one API server."""

    def __init__(self, access: Access, namespace: str, retry: Retry = PATIENCE) -> None:
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
            if refusals.is_conflict(reply):  # over a quota of the namespace: GKE has one in each
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
        if reply.status == 404 and not refusals.is_missing_kind(reply):
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
        if reply.status == 404 and not refusals.is_missing_kind(reply):
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
        if (reply.status == 404 and not refusals.is_missing_kind(reply)) or (reply.status == 409 and uid):
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

    def may(self, verb: str, kind: Kind, *, part: str = "") -> May:
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
        return May(bool(status.get("allowed")), str(status.get("reason") or status.get("evaluationError") or ""))

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

    def _asked(self, verb: str, kind: Kind, name: str = "") -> Asked:
        return Asked(self.about, verb, kind, self.namespace, name)

    def _object(self, reply: Reply, asked: Asked) -> Object:
        if not 200 <= reply.status < 300:
            raise self._refused(reply, asked)
        return refusals.page_of(reply.body)

    @staticmethod
    def _refused(reply: Reply, asked: Asked) -> Exception:
        return refusals.refusal(asked, reply)


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
