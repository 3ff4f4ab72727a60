"""Start a test cluster by hand, to look at it: `cd tests && python -m cluster.up`; Ctrl-C ends it.

On stdout stands the path of the kubeconfig. There is one node of 8 cores, one with an L4, and a slice of two TPU hosts.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path

from cluster import binaries, nodes
from cluster.agent import Agent
from cluster.plane import Plane


def main() -> int:
    """Run until somebody says stop; return the exit status."""
    if binaries.missing():
        print("kinetic: there is no test cluster here yet: run `make cluster`", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="kinetic-cluster-"))
    plane = Plane(folder).start()
    agent = Agent(plane.nodes, plane.authority, folder / "nodes").start()
    try:
        agent.add_node(nodes.cpu("cpu"))
        agent.add_node(nodes.gpu("l4"))
        for host in range(2):
            agent.add_node(nodes.tpu(f"tpu-{host}", topology="2x4", pool="slice"))
        print(plane.kubeconfig, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        agent.stop()
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    # Threads inherit it, so that the signals wait for sigwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main())
