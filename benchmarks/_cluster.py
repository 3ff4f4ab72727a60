"""The cluster that benchmarks run jobs on: a real control plane, one node, and the test suite's bucket.

The node is the test suite's agent, or a real one: kubelet and containerd, with the packages of this Python in its
containers. Needs the test cluster (`make cluster`, `make node`); a benchmark is passed over without it.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _measure import Bench, Sandbox

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]


class Parts(NamedTuple):
    """What a benchmark's cluster consists of; see tests/cluster and tests/servers."""

    plane: Any
    agent: Any  # of the nodes: an Agent, or RealNodes
    server: Any  # of the bucket


def measure(
    bench: Bench, figures: Callable[[Bench, Sandbox, Parts], None], *, real: bool = False, **environ: str
) -> None:
    """Run a benchmark on a new cluster, which its processes find in their environment; ``real``: on a real node."""
    from cluster import binaries, containers, node_host

    if binaries.missing() or not containers.isolated():
        bench.skip("jobs on a cluster", "there is no test cluster that runs pods here: make cluster, as root")
    elif why := node_host.why_not() if real else "":
        bench.skip("jobs on a real node", why)
    else:
        with Sandbox() as sandbox, started(sandbox, real=real, **environ) as parts:
            figures(bench, sandbox, parts)
    bench.end()


@contextlib.contextmanager
def started(sandbox: Sandbox, *, real: bool, **environ: str) -> Iterator[Parts]:
    """Start such a cluster, and end it; ``environ``: more variables of its clients."""
    from cluster import nodes
    from cluster.agent import Agent
    from cluster.node_host import Host
    from cluster.plane import Plane
    from cluster.real_node import RealNodes
    from servers.gcs import GcsServer

    folder = sandbox.folder / "cluster"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        plane = Plane(folder, names=real).start()
        stack.callback(plane.stop)
        if real:
            packages = Path(sysconfig.get_path("purelib"))
            agent: Any = RealNodes(plane.nodes, plane.authority, Host(), packages).start()
        else:
            agent = Agent(plane.nodes, plane.authority, folder / "nodes").start()
        stack.callback(agent.stop)
        server = GcsServer(host=agent.gateway if real else "127.0.0.1").start()
        stack.callback(server.close)
        server.bucket("jobs")
        agent.add_node(nodes.cpu("cpu"))
        sandbox.environ |= {
            "KUBECONFIG": str(plane.kubeconfig),
            "KINETIC_BACKEND": "gke",
            "KINETIC_KUBE_CONTEXT": "test",
            "KINETIC_STORE": "gs://jobs/bench",
            "STORAGE_EMULATOR_HOST": server.url,
            **environ,
        }
        yield Parts(plane, agent, server)
