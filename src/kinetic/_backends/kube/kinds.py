"""The kinds of objects that we speak about, and where the API has them."""

from __future__ import annotations

from typing import NamedTuple


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
