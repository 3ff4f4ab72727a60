"""What a cluster's refusals mean, in three parts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from kinetic._backends.kube.kinds import Kind
    from kinetic._backends.kube.transport import Reply

_ADMISSION = re.compile(
    r"admission webhook|violates PodSecurity|ValidatingAdmissionPolicy|failed calling webhook|denied the request"
)
_LONGEST = 600  # characters of what a server says


class Asked(NamedTuple):
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


def page_of(body: bytes) -> dict[str, Any]:
    """Read an answer of the API, or return an empty page for what is none."""
    try:
        page = json.loads(body)
    except ValueError:
        return {}
    return page if isinstance(page, dict) else {}


def message_of(body: bytes) -> str:
    """Return the words of a refusal."""
    written = page_of(body).get("message")
    return str(written or body.decode(errors="replace").strip())[:_LONGEST]


def is_missing_kind(reply: Reply) -> bool:
    """Say whether a 404 means that the API has no such kind, rather than that it has no such object."""
    page = page_of(reply.body)
    return reply.status == 404 and (not page or "could not find the requested resource" in str(page.get("message")))


def is_conflict(reply: Reply) -> bool:
    """Say whether a 409 means that somebody else was quicker, and not that a name is taken: the same again may do."""
    return reply.status == 409 and page_of(reply.body).get("reason") == "Conflict"


def refusal(asked: Asked, reply: Reply) -> KineticError:
    """Return the error for an answer that is no success."""
    said = message_of(reply.body)
    if reply.status == 401:
        return _unknown(asked, said)
    if _ADMISSION.search(said):
        return _not_admitted(asked, said)
    if reply.status == 403:
        return _forbidden(asked, said)
    if reply.status == 404:
        return _missing(asked, said, reply)
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


def _unknown(asked: Asked, said: str) -> CredentialsError:
    return CredentialsError(
        f"{asked.about} does not know who we are",
        why=said or "HTTP 401",
        next="log in again: gcloud auth application-default login for GKE, or what your kubeconfig's user needs",
    )


def _not_admitted(asked: Asked, said: str) -> LaunchError:
    return LaunchError(
        f"a rule of {asked.about} refuses {asked.thing}",
        why=said,
        next="change what the message names, use another namespace, or ask who runs the cluster",
        code="admission",
    )


def _forbidden(asked: Asked, said: str) -> KineticError:
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


def _missing(asked: Asked, said: str, reply: Reply) -> KineticError:
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


def _no_namespace(asked: Asked, why: str) -> LaunchError:
    return LaunchError(
        f"there is no namespace {asked.namespace} in {asked.about}",
        why=why,
        next=f"kubectl create namespace {asked.namespace}, or name another in KINETIC_NAMESPACE",
        code="namespace-missing",
    )
