"""The cluster that benchmarks run jobs on: a real control plane, one node of the test suite's agent, and its bucket.

Needs the test cluster (`make cluster`); a benchmark is passed over without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _measure import Bench, Ground

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]


class Parts(NamedTuple):
    """What a benchmark's cluster consists of; see tests/cluster and tests/servers."""

    plane: Any
    agent: Any
    server: Any  # of the bucket


def measure(bench: Bench, figures: Callable[[Bench, Ground, Parts], None], **environ: str) -> None:
    """Run a benchmark on a new cluster, which its processes find in their environment."""
    from cluster import binaries, containers

    if binaries.missing() or not containers.isolated():
        bench.skip("jobs on a cluster", "there is no test cluster that runs pods here: make cluster, as root")
    else:
        with Ground() as ground:
            _measure(bench, ground, figures, environ)
    bench.end()


def _measure(
    bench: Bench, ground: Ground, figures: Callable[[Bench, Ground, Parts], None], environ: dict[str, str]
) -> None:
    from cluster import nodes
    from cluster.agent import Agent
    from cluster.plane import Plane
    from servers.gcs import GcsServer

    folder = ground.folder / "cluster"
    folder.mkdir()
    plane = Plane(folder).start()
    agent = Agent(plane.nodes, plane.authority, folder / "nodes").start()
    server = GcsServer().start()
    server.bucket("jobs")
    try:
        agent.add_node(nodes.cpu("cpu"))
        ground.environ |= {
            "KUBECONFIG": str(plane.kubeconfig),
            "KINETIC_BACKEND": "gke",
            "KINETIC_KUBE_CONTEXT": "test",
            "KINETIC_STORE": "gs://jobs/bench",
            "STORAGE_EMULATOR_HOST": server.url,
            **environ,
        }
        figures(bench, ground, Parts(plane, agent, server))
    finally:
        server.close()
        agent.stop()
        plane.stop()
