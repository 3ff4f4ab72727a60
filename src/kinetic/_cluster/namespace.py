"""What is inside the cluster: the namespace of jobs, the account that they run as, and what they may hold together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinetic._backends.kube import preflight
from kinetic._backends.kube.client import NAMESPACE, RESOURCE_QUOTA, SERVICE_ACCOUNT
from kinetic._cluster.jobset import KINDS
from kinetic._cluster.resource import KUBERNETES_MARK, Change, Found, Resource, foreign_error

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Kind, Object

LIMITS = {"tpu": "requests.google.com/tpu", "gpu": "requests.nvidia.com/gpu", "pods": "pods", "cpu": "requests.cpu"}
_GONE_SECONDS = 120.0  # until an object that is being deleted is gone
_BUILT_IN = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


class KubernetesResource(Resource):
    """An object of the cluster, found by its label."""

    kind: Kind
    is_local = True
    in_cluster = True
    seconds = (1, 5)

    @property
    def object_name(self) -> str:
        return preflight.ACCOUNT

    @property
    def title(self) -> str:
        return f"{self.kind.name} {self.object_name}"

    def read(self) -> Found:
        page = self.setup.client().get(self.kind, self.object_name)
        if page is None:
            return Found("missing")
        if page["metadata"].get("deletionTimestamp"):
            return Found("pending", page, "it is being deleted")
        labels = {"labels": page["metadata"].get("labels") or {}}
        return self.marked(labels, KUBERNETES_MARK, "labels")._replace(page=page)

    def make(self, found: Found) -> None:
        waited = 0.0
        # Looked at again: when the plan was made, the cluster may not have run yet.
        while (found := self.read()).state == "pending" and waited < _GONE_SECONDS:
            self.apis.sleep(2.0)
            waited += 2.0
        if found.state == "given":
            return
        if found.state == "foreign":
            raise foreign_error(self, found)
        self.apis.writes += 1
        # Forced only for what is ours: fields that another tool set on it become ours again.
        self.setup.client().apply(self.kind, self.manifest(), force=found.state == "ours")

    def change(self, found: Found, changes: Sequence[Change]) -> None:
        self.make(found)

    def remove(self, found: Found) -> None:
        self.apis.writes += 1
        self.setup.client().delete(self.kind, self.object_name, uid=str(found.page["metadata"].get("uid", "")))

    def manifest(self) -> Object:
        return {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.name,
            "metadata": {"name": self.object_name, "labels": dict(KUBERNETES_MARK)},
        }


class Namespace(KubernetesResource):
    """The namespace; one that Kubernetes brings, or somebody else made, is used as it is."""

    key = "namespace"
    needs = ("cluster",)
    rights = ("container.namespaces.create",)
    kind = NAMESPACE

    @property
    def object_name(self) -> str:
        return self.spec.namespace

    def read(self) -> Found:
        if self.spec.namespace in _BUILT_IN:
            return Found("given")
        found = super().read()
        return found._replace(state="given") if found.state == "foreign" else found


class ServiceAccount(KubernetesResource):
    """The account of jobs. Its token is not put into pods that do not ask for it; its annotation lets them ask."""

    key = "service-account"
    needs = ("namespace",)
    rights = ("container.serviceAccounts.create",)
    kind = SERVICE_ACCOUNT
    starts_followers = True

    def read(self) -> Found:
        """Return how it is; one that was made by hand, as the manual has it, is used as it is."""
        found = super().read()
        return found._replace(state="given") if found.state == "foreign" else found

    def manifest(self) -> Object:
        page = super().manifest()
        if self.starts_followers:
            page["metadata"]["annotations"] = {preflight.STARTS_FOLLOWERS: "true"}
        return page | {"automountServiceAccountToken": False}

    def diff(self, found: Found) -> list[Change]:
        mounts = found.page.get("automountServiceAccountToken")
        changes = [] if mounts is False else [Change("automountServiceAccountToken", str(mounts).lower(), "false")]
        name = preflight.STARTS_FOLLOWERS
        now = (found.page["metadata"].get("annotations") or {}).get(name)
        if self.starts_followers and now != "true":
            changes.append(Change(name, str(now or "none"), "true"))
        return changes


class BuilderAccount(ServiceAccount):
    """The account of pods that build images; what they build starts nothing."""

    key = "builder-account"
    object_name = preflight.BUILDER_ACCOUNT
    starts_followers = False


class FollowerRole(KubernetesResource):
    """What the pod of a job may do with the jobs that wait for it: start them, or remove what cannot start."""

    key = "follower-role"
    needs = ("namespace",)
    rights = ("container.roles.create", "container.roles.escalate")
    kind = KINDS["Role"]
    object_name = "kinetic-followers"

    @property
    def _rules(self) -> list[dict[str, list[str]]]:
        verbs = ["get", "list", "patch", "delete"]
        groups = {"batch": "jobs", "jobset.x-k8s.io": "jobsets"}
        return [{"apiGroups": [group], "resources": [name], "verbs": verbs} for group, name in groups.items()]

    def manifest(self) -> Object:
        return super().manifest() | {"rules": self._rules}

    def diff(self, found: Found) -> list[Change]:
        return [] if found.page.get("rules") == self._rules else [Change("rules", "others", "of jobs and jobsets")]


class FollowerBinding(KubernetesResource):
    """Gives that role to the account of jobs."""

    key = "follower-binding"
    needs = ("follower-role", "service-account")
    rights = ("container.roleBindings.create", "container.roles.bind")
    kind = KINDS["RoleBinding"]
    object_name = FollowerRole.object_name

    def manifest(self) -> Object:
        account = {"kind": "ServiceAccount", "name": preflight.ACCOUNT, "namespace": self.spec.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.object_name}
        return super().manifest() | {"roleRef": role, "subjects": [account]}


class Quota(KubernetesResource):
    """What all jobs of the namespace may hold at once: the only upper bound on the bill that Autopilot has."""

    key = "quota"
    needs = ("namespace",)
    rights = ("container.resourceQuotas.create",)
    kind = RESOURCE_QUOTA

    @property
    def _hard(self) -> dict[str, str]:
        return {LIMITS.get(name, name): str(count) for name, count in self.spec.limits}

    @property
    def title(self) -> str:
        limits = ", ".join(f"{name} ≤ {count}" for name, count in self.spec.limits)
        return f"{super().title}: {limits}"

    def manifest(self) -> Object:
        return super().manifest() | {"spec": {"hard": self._hard}}

    def diff(self, found: Found) -> list[Change]:
        hard = (found.page.get("spec") or {}).get("hard") or {}
        wanted = self._hard
        names = sorted({*hard, *wanted})
        return [
            Change(name, str(hard.get(name, "none")), wanted.get(name, "none"))
            for name in names
            if hard.get(name) != wanted.get(name)
        ]
