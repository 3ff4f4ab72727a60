"""Slices on a cluster where only LeaderWorkerSets may be made: they cannot stay warm, and every job says so and runs.

Its controller is not among those of the control plane here: a thread makes the pods of each set as that does, and the
garbage collector of the control plane removes them with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.access import RefusedError
from cluster.plane import wait_for
from flows.kube.test_warm_slices import team

__all__ = ["team"]
pytestmark = pytest.mark.timeout(300)
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets"
PREFIX = "leaderworkerset.sigs.k8s.io"


@pytest.fixture
def controller(site: Any) -> Iterator[None]:
    """Make the pods of each set."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.1):
            with contextlib.suppress(RefusedError):  # the account of the pods is not there yet
                for found in sets(site):
                    make_pods(site, found)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


def sets(site: Any) -> list[dict[str, Any]]:
    """List the sets that are not on their way out."""
    found: list[dict[str, Any]] = site.api.get(SETS.format(site.namespace))["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def make_pods(site: Any, found: dict[str, Any]) -> None:
    about, group = found["metadata"], found["spec"]["leaderWorkerTemplate"]
    owner = {"apiVersion": found["apiVersion"], "kind": found["kind"], "name": about["name"], "uid": about["uid"]}
    made, template = {pod["metadata"]["name"] for pod in site.pods_of()}, group["workerTemplate"]
    for host in range(group["size"]):
        name = f"{about['name']}-0" + (f"-{host}" if host else "")
        if name in made:
            continue
        numbers = {"LWS_WORKER_INDEX": str(host), "LWS_GROUP_SIZE": str(group["size"])}
        numbers["LWS_LEADER_ADDRESS"] = f"{about['name']}-0.{about['name']}.{site.namespace}"
        spec = {**template["spec"], "hostname": name, "subdomain": about["name"]}
        (container,) = spec["containers"]
        more = [{"name": each, "value": value} for each, value in numbers.items()]
        spec["containers"] = [{**container, "env": [*container.get("env", ()), *more]}]
        labels = {
            **template["metadata"]["labels"],
            f"{PREFIX}/name": about["name"],
            f"{PREFIX}/worker-index": str(host),
        }
        own = {**template["metadata"], "name": name, "labels": labels, "ownerReferences": [owner]}
        site.put("pods", {"metadata": own, "spec": spec})


def test_jobs_of_a_slice_that_cannot_stay_warm_run_one_after_the_other_and_a_line_says_why(
    only_leader_worker_sets: None, controller: None, team: Any, site: Any, machines: Any, kinetic: Any
) -> None:
    machines()

    values, said = team.both("from team import report\ntell([report() for _ in range(2)])")
    started = kinetic("warm", "start", "tpu-v4-2x2x2")

    assert values == [{"host": 0, "attempt": 0}] * 2
    assert said.count("the pod is not kept warm: a LeaderWorkerSet starts again what has ended") == 1
    assert started.code != 0
    assert "no warm pod can be started" in started.err
    assert "a LeaderWorkerSet starts again what has ended" in started.err
    wait_for("the end of all", lambda: not sets(site) and not site.pods_of(), 60)
    assert site.bucket.names("warm/") == []
