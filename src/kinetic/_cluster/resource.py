"""One thing that ``kinetic up`` makes and ``kinetic down`` removes, and what all of them have in common.

Nothing is remembered anywhere. Each thing is found again by its name and by a mark that says that it is ours:

    clusters, buckets, repositories, pools    labels  managed-by: kinetic, kinetic-cluster: NAME
    networks, subnets, routers, accounts      description "kinetic: cluster NAME"; they have no labels
    objects in the cluster                    label app.kubernetes.io/managed-by: kinetic
    bindings of roles                         their member is ours

A thing with our name and without our mark is somebody else's: it is named, and never changed or removed.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from kinetic._google.locations import region_of
from kinetic._wire import NamedTuple, dataclass
from kinetic.errors import ClusterError, OptionError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client
    from kinetic._cluster.project_apis import ProjectApis
    from kinetic._google.api import Page
    from kinetic._hardware import Placement

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_NAME = 20  # characters: so that the names of accounts (30), buckets (63) and pools fit with any project
KUBERNETES_MARK = {"app.kubernetes.io/managed-by": "kinetic"}
DEFAULT_REGION = "us-central1"

State = Literal["missing", "ours", "foreign", "given", "pending", "failed"]


@dataclass(frozen=True)
class Spec:
    """What was asked for."""

    project: str  # the id of the project
    cluster: str  # the name of the cluster
    location: str = ""  # the region or zone that the user named; "" to choose one
    standard: bool = False  # a zonal Standard cluster with node pools instead of Autopilot
    network: str = ""  # the full or short name of a network that exists; "" to make one
    subnet: str = ""  # the full or short name of a subnet of that network; "" for the only one in the region
    pod_range: str = ""  # the name of the range of a subnet of another project that pods use; "" for what its names say
    service_range: str = ""  # the same for services; "" for one that Google makes, too
    node_account: str = ""  # the email of a service account that exists; "" to make one
    namespace: str = "default"  # where jobs run
    limits: tuple[tuple[str, int], ...] = ()  # what all jobs together may hold, as in {"tpu": 16}
    registry: bool = False  # whether a repository for images is made
    jobset: bool = False  # whether JobSet is installed, which slices of several hosts need
    public_nodes: bool = False  # nodes with addresses of their own instead of a NAT
    billing_account: str = ""  # the id of the account that is linked to a project that has none; "" to link none
    create_project: bool = False  # whether the project is made where there is none of its id
    parent: str = ""  # the organization or folder of a project that is made, as in "folders/123"; "" for none
    hardware: tuple[Placement, ...] = ()  # what the accelerators mean that were named

    @property
    def own_name(self) -> str:
        """The name of the network, subnet, router and repository."""
        return f"kn-{self.cluster}"

    @property
    def description(self) -> str:
        """The mark of what has no labels."""
        return f"kinetic: cluster {self.cluster}"

    @property
    def labels(self) -> dict[str, str]:
        """The mark of what has labels."""
        return {"managed-by": "kinetic", "kinetic-cluster": self.cluster}

    @property
    def account(self) -> str:
        """The email of the service account of nodes."""
        return self.node_account or f"kn-{self.cluster}-nodes@{self.project}.iam.gserviceaccount.com"

    @property
    def account_member(self) -> str:
        """The same, as policies name it."""
        return f"serviceAccount:{self.account}"

    @property
    def bucket(self) -> str:
        return f"{self.project}-kn-{self.cluster}-jobs"

    @property
    def pool(self) -> str:
        """The identity pool of the project, in which the accounts of Kubernetes are."""
        return f"{self.project}.svc.id.goog"


def check_name(cluster: str) -> None:
    """Refuse a name that would not fit into the names of everything that is made with the cluster."""
    if not _NAME.fullmatch(cluster) or len(cluster) > LONGEST_NAME:
        raise OptionError(
            f"{cluster!r} cannot be the name of a cluster that kinetic makes",
            why=f"it begins with a letter, has lower-case letters, digits and '-', and at most {LONGEST_NAME} "
            "characters: the names of the bucket and of the service account contain it",
            next="kinetic up --cluster team",
        )


class Change(NamedTuple):
    """A field that is not as it should be."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field} {self.before} → {self.after}"


class Found(NamedTuple):
    """How a thing is now."""

    # "missing"; "ours", with our mark; "foreign", our name and no mark; "given", which exists and is used but is never
    # removed; "pending", being made or removed; "failed", made in part and not usable
    state: State
    # what Google or Kubernetes says of it
    page: Page = {}  # noqa: RUF012 - never changed
    why: str = ""  # a sentence about "foreign" and "failed"


class Setup:
    """What all resources of one command share: what was asked for, the APIs, and what the first reads found."""

    def __init__(self, spec: Spec, apis: ProjectApis, connect: Callable[[Setup], Client] | None = None) -> None:
        self.spec = spec  # what was asked for
        self.apis = apis  # Google's
        self.location = spec.location  # the region or zone; "" until it is chosen
        self.subnet = ""  # the path of the subnet of a network that was named; "" until it is chosen
        # what a cluster is told of the ranges of that subnet, for its pods and services
        self.ranges: dict[str, str] = {}
        self.report: Callable[[str], object] = lambda _: None  # called with a sentence about what is waited for
        self._connect = connect
        self._client: Client | None = None
        self._lock = threading.Lock()

    @property
    def project(self) -> str:
        return self.spec.project

    @property
    def region(self) -> str:
        return region_of(self.location)

    def client(self) -> Client:
        """Return the client of the cluster, which must be running."""
        with self._lock:  # several resources of the cluster are read at once
            if self._client is None:
                connect = self._connect or _connect
                self._client = connect(self)
            return self._client


def _connect(setup: Setup) -> Client:
    from kinetic._backends.kube.connection import ClusterAddress, connect

    spec = setup.spec
    return connect(ClusterAddress(spec.project, setup.location, spec.cluster, spec.namespace, ""))


class Resource(ABC):
    """One thing of a cluster's."""

    key: str = ""  # its one word, e.g. "router"
    needs: tuple[str, ...] = ()  # keys of what must exist before it
    rights: tuple[str, ...] = ()  # permissions that making it needs
    # how long making it usually takes (shortest, longest). Not measured by us: reports of others
    seconds: tuple[int, int] = (1, 2)
    dollars_per_hour: float = 0.0  # its list price while no job runs, in us-central1
    is_local: bool = False  # whether the region must be known to read it
    in_cluster: bool = False  # whether it is read and made through the cluster's own API server

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.spec = setup.spec
        self.apis = setup.apis

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is and its name, as in "network kn-main"."""

    @abstractmethod
    def read(self) -> Found:
        """Return how it is now."""

    def diff(self, found: Found) -> list[Change]:
        """Return what is not as it should be, of one that is ours."""
        return []

    @abstractmethod
    def make(self, found: Found) -> None:
        """Make it, and wait until it exists; one that was made in the meantime and is ours is success."""

    def change(self, found: Found, changes: Sequence[Change]) -> None:
        """Make it as it should be."""
        raise NotImplementedError

    def remove(self, found: Found) -> None:  # noqa: B027 - as with what others may use
        """Remove it, and wait until it is gone; one that is gone already is success. What others may use is left."""

    # ------------------------------------------------------------------------------------------------------------ help

    def marked(self, page: Page | None, mark: object, field: str) -> Found:
        """Return how a thing is by its mark, a text in a field or labels among others."""
        if page is None:
            return Found("missing")
        written = page.get(field)
        if isinstance(mark, Mapping):
            theirs = written if isinstance(written, Mapping) else {}
            is_ours = all(theirs.get(name) == value for name, value in mark.items())
        else:
            is_ours = written == mark
        if is_ours:
            return Found("ours", page)
        return Found("foreign", page, f"it has our name but not our mark ({field})")

    def check_is_ours(self) -> None:
        """Raise an error unless the thing, which was made by another request, is ours."""
        found = self.read()
        if found.state == "foreign":
            raise foreign_error(self, found)
        if found.state == "missing":
            raise ClusterError(
                f"{self.title} was not made",
                why="Google says that it exists, and does not show it",
                next="run the same command again",
                code="google-refused",
            )


def foreign_error(resource: Resource, found: Found) -> ClusterError:
    """Return the error that somebody else has our name."""
    spec = resource.spec
    step = f"kinetic up --cluster another-name     or remove it yourself; it is in the project {spec.project}"
    return ClusterError(
        f"{resource.title} exists and was not made by kinetic", why=found.why, next=step, code="not-ours"
    )
