"""`up` and `down` against the fake of Google's control plane, in this process: with a clock of their own, and kills.

The cluster's own API server is a dictionary here; tests/cluster/test_what_up_makes_in_a_cluster.py has the real one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kinetic import _hardware as hardware
from kinetic._backends.kube.client import Kind, Listing
from kinetic._cluster import teardown
from kinetic._cluster.plan import Plan, carry_out, make_plan
from kinetic._cluster.project_apis import ProjectApis
from kinetic._cluster.resource import Setup, Spec
from kinetic._google import login
from kinetic._stores.parallel import Retry
from kinetic._wire.http_client import HttpClient
from kinetic.errors import BackendUnavailableError

if TYPE_CHECKING:
    from servers.google_cloud import GoogleCloud
from servers.google_cloud.tokens import Tokens

Page = dict[str, Any]
LIMIT_SECONDS = 2400.0


class Clock:
    """Time that passes where something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lock = threading.Lock()

    def sleep(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds

    def __call__(self) -> float:
        return self.now


class Objects:
    """The objects of a cluster, by kind and name."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Page] = {}
        self.going: dict[tuple[str, str], int] = {}  # how often a namespace that goes is still shown
        self.writes = 0

    def get(self, kind: Kind, name: str) -> Page | None:
        if left := self.going.get((kind.name, name), 0):
            self.going[kind.name, name] = left - 1
            if left == 1:
                self.kept.pop((kind.name, name), None)
        return self.kept.get((kind.name, name))

    def list(self, kind: Kind, selector: str = "") -> Listing:
        """Return those of a kind; a selector is the name of a label that they have."""
        found = [page for (name, _), page in self.kept.items() if name == kind.name]
        return Listing([each for each in found if not selector or selector in each["metadata"].get("labels", {})], "1")

    def apply(self, kind: Kind, manifest: Page, *, force: bool = False) -> Page:
        before = self.kept.get((kind.name, manifest["metadata"]["name"]))
        is_same = before is not None and before["metadata"] == manifest["metadata"]  # of another `up` at the same time
        assert before is None or force or is_same, "what exists is taken over only where that is meant"
        self.writes += 1
        status = {"status": {"availableReplicas": 1}} if kind.name == "Deployment" else {}
        self.kept[kind.name, manifest["metadata"]["name"]] = manifest | status
        return manifest

    def in_namespace(self, namespace: str) -> Objects:
        """Return the same: no two names here are alike."""
        return self

    def delete(self, kind: Kind, name: str, *, uid: str = "") -> bool:
        self.writes += 1
        if kind.name == "Namespace" and (found := self.kept.get((kind.name, name))):
            found["metadata"] = found["metadata"] | {"deletionTimestamp": "2026-11-23T00:00:00Z"}
            self.going[kind.name, name] = 3
            return True
        return self.kept.pop((kind.name, name), None) is not None


class Maker:
    """Calls `up` and `down` for one project, each time like a new process."""

    def __init__(self, cloud: GoogleCloud) -> None:
        self.cloud = cloud
        self.objects = Objects()
        self.answers = True  # whether the cluster can be asked
        self.clock = Clock()
        cloud.container.on_made = lambda _: None

    def setup(self, *accelerators: str, **more: Any) -> Setup:
        given = {"project": self.cloud.project, "cluster": "team", "hardware": tuple(map(hardware.place, accelerators))}
        retry = Retry(4, sleep=self.clock.sleep, random=lambda: 0.5)
        apis = ProjectApis(
            more.get("project", self.cloud.project),
            Tokens(),  # type: ignore[arg-type]  # as much of it as is used
            self.cloud.endpoints,
            retry=retry,
            sleep=self.clock.sleep,
            clock=self.clock,
            limit_seconds=LIMIT_SECONDS,
        )
        return Setup(Spec(**(given | more)), apis, self._connect)  # type: ignore[arg-type]

    def _connect(self, _: Setup) -> Any:
        if not self.answers:
            raise BackendUnavailableError("the cluster team does not respond")
        return self.objects

    def plan(self, *accelerators: str, **more: Any) -> Plan:
        return make_plan(self.setup(*accelerators, **more))

    def up(self, *accelerators: str, **more: Any) -> Plan:
        plan = self.plan(*accelerators, **more)
        if plan.blocking is not None:
            raise plan.blocking
        carry_out(plan)
        return plan

    def down(self, *, delete_data: bool = True, keep_cluster: bool = False, **more: Any) -> teardown.Remains:
        setup = self.setup(**({"registry": True} | more))
        plan = teardown.plan_removal(setup, delete_data=delete_data, keep_cluster=keep_cluster)
        remains = teardown.remove(plan)
        if not self.cloud.container.clusters:
            self.objects.kept.clear()  # they are gone with their cluster
        return remains

    def state(self) -> Page:
        """Return everything that exists, without what differs between two runs: numbers, times and etags."""
        cloud = self.cloud
        return {
            "compute": sorted(cloud.compute.things),
            "accounts": sorted(cloud.projects.accounts),
            "policy": sorted((each["role"], sorted(each["members"])) for each in cloud.projects.policy.bindings),
            "buckets": sorted(cloud.storage.buckets),
            "access": {
                name: sorted((each["role"], sorted(each["members"])) for each in policy.bindings)
                for name, policy in cloud.storage.policies.items()
            },
            "repositories": sorted(map(str, getattr(cloud.repositories, "repositories", ()))),
            "clusters": sorted(
                (*key, page["status"], sorted((pool["name"], pool["status"]) for pool in page.get("nodePools", ())))
                for key, page in cloud.container.clusters.items()
            ),
            "objects": sorted(self.objects.kept),
        }


class Killed(BaseException):
    """The process is gone: nothing of it sends any more."""


@contextmanager
def killed_at(index: int, *, after: bool) -> Iterator[Callable[[], int]]:
    """Let a process die at one of its requests, before it is sent or before its answer arrives; yield its count."""
    send, lock, count = login.send, threading.Condition(), itertools.count()
    state = {"dead": False, "open": 0, "sent": 0}

    def dying(url: str, *args: Any, **options: Any) -> Any:
        with lock:
            number = next(count)
            if number == index and not after:
                state["dead"] = True
            if state["dead"]:
                raise Killed
            state["open"] += 1
            state["sent"] += 1
        try:
            found = send(url, *args, **options)
        finally:
            with lock:
                state["open"] -= 1
                state["dead"] |= number == index
                lock.notify_all()
        if state["dead"]:
            raise Killed
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(login, "send", dying)
        yield lambda: state["sent"]
        with lock:
            assert lock.wait_for(lambda: not state["open"], timeout=10)


@contextmanager
def impatient() -> Iterator[None]:
    """Let a request that is not answered fail soon."""
    client = HttpClient(timeout_seconds=0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(login, "_client", lambda **_: client)
        yield
    client.close()
