"""What a job in a warm pod costs beside one with a pod of its own, alternately, 20 ms away from the API server.

Control plane and scheduler are real, the node is the test suite's agent, the store is its bucket, and clients are new
processes, as after an edit. Needs the test cluster (`make cluster`), and is passed over without it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import _cluster
from _measure import Bench, Ground

DELAY_SECONDS = 0.02
MODULES = ("numpy", "jax", "keras")
SCRIPT = """
import sys, time
import kinetic

@kinetic.run(accelerator="cpu", keep_warm={keep!r})
def first(modules):
    # edit {number}
    begun = time.time()
    for name in modules:
        __import__(name)
    return begun, time.time()

@kinetic.run(accelerator="cpu", keep_warm={keep!r})
def noop():
    return time.time()

if __name__ == "__main__":
    begun = time.time()
    entered, imported = first(sys.argv[1:])
    entered_after, imports = entered - begun, imported - entered
    noop()
    again = time.time()
    noop()
    print(entered_after, imports, time.time() - again)
"""


def main() -> None:
    _cluster.measure(Bench("a job in a warm pod", runs=5, quick_runs=2), _figures, KINETIC_BASE_PACKAGES="0")


def _figures(bench: Bench, ground: Ground, plane: Any) -> None:
    plane.proxy.delay_seconds = DELAY_SECONDS
    runs = [0]
    project = ground.folder / "edits"
    project.mkdir()
    (project / "pyproject.toml").write_text("[project]\nname = 'edits'\nversion = '1'\n")

    def run(keep: str) -> tuple[float, float, float]:
        runs[0] += 1
        script = project / "edited.py"
        script.write_text(SCRIPT.format(keep=keep, number=runs[0]))
        words = [sys.executable, str(script), *MODULES]
        out = subprocess.run(words, env=ground.environ, cwd=project, capture_output=True, text=True, check=True)
        entered, imports, noop = map(float, out.stdout.split())
        return entered * 1e3, imports * 1e3, noop * 1e3

    run("30m")  # makes the warm pod
    time.sleep(30)  # it imports what its tasks imported
    warm, cold, requests = [], [], []
    for _ in range(bench.runs):
        plane.proxy.seen.clear()
        warm.append(run("30m"))
        requests.append(float(len(plane.proxy.seen)))
        cold.append(run("0"))
    first, imports, noop = (list(each) for each in zip(*warm, strict=True))
    cold_first, cold_imports, cold_noop = (list(each) for each in zip(*cold, strict=True))
    bench.limit("call → the function begins; vs a pod of its own", first, 1000, "ms", cold_first)
    bench.limit("importing numpy, JAX and Keras there", imports, 1000, "ms", cold_imports)
    bench.limit("a blocking no-op, in the same client", noop, 150, "ms", cold_noop)
    bench.limit("requests to the API server for three jobs in a warm pod", requests, 60, "")


if __name__ == "__main__":
    main()
