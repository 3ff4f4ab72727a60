"""Start a test cluster with one real node by hand: `make node`; Ctrl-C ends it and puts the machine back.

On stdout stands what a shell needs to run jobs there: the output can be read by `eval` or be copied.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from cluster import binaries, node_host, nodes
from cluster.node_host import Host, NodeUnavailableError
from cluster.plane import Plane
from cluster.real_node import RealNodes
from servers.faults import FaultyProxy
from servers.gcs import GcsServer

BUCKET = "jobs"


def main() -> int:
    """Run until somebody says stop; return the exit status."""
    if reason := "run `make cluster`" if binaries.missing() else node_host.why_not():
        print(f"kinetic: {reason}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="kinetic-cluster-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        plane = Plane(folder, names=True).start()
        stack.callback(plane.stop)
        try:
            real = RealNodes(plane.nodes, plane.authority, Host()).start()
        except NodeUnavailableError as error:
            print(f"kinetic: {error}", file=sys.stderr)
            return 1
        stack.callback(real.stop)
        real.add_node(nodes.cpu("real"))
        store = GcsServer().start()
        stack.callback(store.close)
        store.bucket(BUCKET)
        reachable = FaultyProxy(store.url, real.gateway)
        stack.callback(reachable.close)
        for name, value in {
            "KUBECONFIG": plane.kubeconfig,
            "KINETIC_BACKEND": "gke",
            "KINETIC_KUBE_CONTEXT": "test",
            "KINETIC_NAMESPACE": "default",
            "KINETIC_STORE": f"gs://{BUCKET}/all",
            "STORAGE_EMULATOR_HOST": reachable.url,
            "KINETIC_BASE_PACKAGES": "0",
        }.items():
            print(f"export {name}={value}", flush=True)
        print("kinetic: the node is ready; paste these lines into another shell, and run jobs there", file=sys.stderr)
        print(
            "kinetic: pods reach this machine and one another, and no internet; Ctrl-C ends everything", file=sys.stderr
        )
        stack.callback(print, "kinetic: ending the node, and putting back what it changed", file=sys.stderr)
        stack.callback(_ignore_signals)
        signal.pause()
    return 0


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    # Not blocked, as a mask of signals: what is started here would inherit it, down to the pods, which need SIGTERM.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
