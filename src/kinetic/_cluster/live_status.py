"""How a cluster is now: its version, its nodes and what they cost, who waits and why. Nothing is remembered.

All questions are asked side by side, at most six of them; what may not be asked is left out and named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import diagnosis
from kinetic._backends.kube.client import EVENT, NODE, POD
from kinetic._backends.kube.job_manifests import APP_LABEL, APP_WARM, JOB_LABEL
from kinetic._backends.kube.transport import response_json
from kinetic._cluster.control_plane import CONTROL_PLANE_DOLLARS
from kinetic._cluster.project_apis import COMPUTE, CONTAINER, ProjectApis
from kinetic._google.api import ApiError
from kinetic._google.locations import region_of
from kinetic._hardware import GPUS, TPUS, prices
from kinetic._wire import NamedTuple
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Object

_TPU_LABEL, _GPU_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-accelerator"
_MACHINE, _SPOT, _POOL = (
    "node.kubernetes.io/instance-type",
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-nodepool",
)
_MOST_PENDING = 20  # pods that are explained


class Node(NamedTuple):
    """One node; dollars are of its accelerator, at list price."""

    name: str
    machine: str
    pool: str
    chips: int  # TPU chips or GPUs (count)
    spot: bool
    ready: bool
    dollars_per_hour: float | None  # None where no price is known


class Waiting(NamedTuple):
    """One pod without a node or container, and why."""

    pod: str
    job: str
    why: str
    stuck: bool


class Status(NamedTuple):
    """How a cluster is."""

    about: str  # the cluster, as it is shown
    state: str  # "RUNNING" or another word of Google's; "answers" for a cluster that is not Google's
    version: str  # of Kubernetes
    mode: str  # "Autopilot", "Standard", or "" for a cluster that is not Google's
    nodes: tuple[Node, ...]  # all nodes
    idle: tuple[str, ...]  # names of nodes with an accelerator on which no job runs
    waiting: tuple[Waiting, ...]  # pods of jobs that wait
    running: int  # pods of jobs that run (count)
    # metric, limit and use of the region, of accelerators that are used or allowed
    quotas: tuple[tuple[str, float, float], ...]
    unknown: tuple[str, ...]  # what could not be asked, and why
    warm: tuple[str, ...] = ()  # pods that stay for the next job
    warm_dollars_per_hour: float = 0.0  # of the accelerators of their nodes, as far as prices are known

    @property
    def is_usable(self) -> bool:
        """Whether jobs can be submitted."""
        return self.state in {"RUNNING", "RECONCILING", "DEGRADED", "answers"}  # DEGRADED: nodes or add-ons need work

    def knows(self, name: str) -> bool:
        """Return whether a question was answered: "nodes", "pods"."""
        return not any(each.startswith(f"{name}: ") for each in self.unknown)

    @property
    def dollars_per_hour(self) -> float | None:
        """The price now: the control plane of Google's, and accelerators of all nodes; None if these are not known."""
        if not self.knows("nodes"):
            return None
        plane = CONTROL_PLANE_DOLLARS if self.mode else 0.0
        return plane + sum(node.dollars_per_hour or 0.0 for node in self.nodes)

    @property
    def without_price(self) -> list[str]:
        """Nodes whose price is not in the table."""
        return [node.name for node in self.nodes if node.dollars_per_hour is None]


def read_status(
    client: Client, apis: ProjectApis | None, project: str, location: str, cluster: str, *, gpu_resource: str = ""
) -> Status:
    """Ask how a cluster is; without Google's APIs, only the cluster itself. ``gpu_resource``: its own name of a GPU."""
    unknown: list[str] = []

    def ask(name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (KineticError, ApiError) as error:
            unknown.append(f"{name}: {error.what if isinstance(error, KineticError) else error.message}")
            return None

    questions: dict[str, Callable[[], Any]] = {
        "version": lambda: _version(client),
        "nodes": lambda: client.list(NODE).objects,
        "pods": lambda: client.list(POD, JOB_LABEL).objects,
        "events": lambda: client.list(EVENT, fields="involvedObject.kind=Pod").objects,
    }
    if apis is not None:
        path = f"v1/projects/{project}/locations/{location}/clusters/{cluster}"
        fields = "status,statusMessage,autopilot/enabled,currentMasterVersion"
        questions["cluster"] = lambda: apis.call(CONTAINER, "GET", path, query={"fields": fields})
        where = f"compute/v1/projects/{project}/regions/{region_of(location)}"
        questions["quotas"] = lambda: apis.call(COMPUTE, "GET", where, query={"fields": "quotas"}).get("quotas")
    names = [*questions]
    found = dict(
        zip(names, kube_client.request_all([partial(ask, name, questions[name]) for name in names]), strict=True)
    )
    page = found.get("cluster") or {}
    pods: Sequence[Object] = found["pods"] or ()
    nodes = tuple(_node(each, gpu_resource) for each in found["nodes"] or ())
    busy = {(each.get("spec") or {}).get("nodeName") for each in pods if _phase(each) in {"Pending", "Running"}}
    warm = [each for each in pods if _is_warm(each)]
    held = {(each.get("spec") or {}).get("nodeName") for each in warm}
    mode = "" if apis is None else "Autopilot" if (page.get("autopilot") or {}).get("enabled") else "Standard"
    state = str(page.get("status") or "") if apis is not None else "answers" if found["version"] else ""
    return Status(
        about=client.about,
        state=state,
        version=str(page.get("currentMasterVersion") or found["version"] or ""),
        mode=mode,
        nodes=nodes,
        idle=tuple(each.name for each in nodes if each.chips and each.name not in busy),
        waiting=_waiting(pods, found["events"] or ()),
        running=sum(_phase(each) == "Running" for each in pods),
        quotas=_accelerators(found.get("quotas") or ()),
        unknown=tuple(sorted(unknown)),
        warm=tuple(dict.fromkeys(str(each["metadata"]["labels"][JOB_LABEL]) for each in warm)),
        warm_dollars_per_hour=sum(each.dollars_per_hour or 0.0 for each in nodes if each.name in held),
    )


def _version(client: Client) -> str:
    reply = client.transport.send("GET", "/version")
    return str(response_json(reply.body).get("gitVersion") or "") if reply.status == 200 else ""


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def _is_warm(pod: Object) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get(APP_LABEL) == APP_WARM and _phase(pod) == "Running"


def _node(page: Object, gpu_resource: str) -> Node:
    labels = page["metadata"].get("labels") or {}
    status = page.get("status") or {}
    allocatable = status.get("allocatable") or {}
    counted = next((name for name in ("google.com/tpu", gpu_resource, "nvidia.com/gpu") if name in allocatable), "")
    chips = int(allocatable.get(counted, 0))
    is_part = counted not in {"", "google.com/tpu", "nvidia.com/gpu"}  # of a GPU, or it may be
    ready = [each.get("status") for each in status.get("conditions") or () if each.get("type") == "Ready"]
    return Node(
        name=str(page["metadata"]["name"]),
        machine=str(labels.get(_MACHINE, "")),
        pool=str(labels.get(_POOL, "")),
        chips=chips,
        spot=labels.get(_SPOT) == "true",
        ready=ready[:1] in ([], ["True"]),
        dollars_per_hour=None if is_part else _price(labels, chips),
    )


def _price(labels: Mapping[str, str], chips: int) -> float | None:
    """Return the list price of a node with chips or GPUs; None for CPUs, and for what the table does not have."""
    if gpu := labels.get(_GPU_LABEL):
        kind = next((each.name for each in GPUS.values() if each.label == gpu), "")
        return prices.node_dollars(str(labels.get(_MACHINE, "")), kind, chips) if kind else None
    label = labels.get(_TPU_LABEL)
    family = next((each.name for each in TPUS.values() for one in each.machines if label and one.label == label), "")
    price = prices.chip_dollars(family)
    return None if price is None else price * chips


def _waiting(pods: Sequence[Object], events: Sequence[Object]) -> tuple[Waiting, ...]:
    found = []
    for pod in [each for each in pods if _phase(each) == "Pending"][:_MOST_PENDING]:
        name = pod["metadata"]["name"]
        about = [each for each in events if (each.get("involvedObject") or {}).get("name") == name]
        job = str((pod["metadata"].get("labels") or {}).get(JOB_LABEL, ""))
        state = diagnosis.diagnose(diagnosis.Evidence({"metadata": {"name": job}}, [pod], about))
        found.append(Waiting(name, job, state.what or state.why or state.status.value, state.stuck))
    return tuple(found)


def _accelerators(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, float, float], ...]:
    """Return metric, limit and use of accelerators that are allowed or used."""
    return tuple(
        (str(each["metric"]), float(each.get("limit") or 0), float(each.get("usage") or 0))
        for each in rows
        if ("TPU" in str(each.get("metric")) or "GPU" in str(each.get("metric")))
        and (each.get("limit") or each.get("usage"))
    )
