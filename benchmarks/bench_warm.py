"""What a job in a warm pod costs beside one with a pod of its own, alternately, 20 ms away from the API server.

Control plane and scheduler are real, the node is the test suite's agent, the store is its bucket, and clients are new
processes, as after an edit. In the end: from a save under `kinetic dev` to the first line of the function, what many
jobs leave in the pod, and what it takes and asks while it is idle. Needs the test cluster (`make cluster`), and is
passed over without it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import _cluster
from _measure import Bench, Ground

from kinetic._runner import processes

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
    took = []
    for _ in range(5):
        again = time.time()
        noop()
        took.append(time.time() - again)
    print(entered_after, imports, min(took))
"""
MANY = """
import sys
import kinetic

@kinetic.run(accelerator="cpu", keep_warm="30m")
def noop():
    return None

if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        noop()
"""
SAVED = """
import time

def train():
    # save {number}
    print(f"begun at {{time.time()}}", flush=True)
"""
LOOK_SECONDS, IDLE_SECONDS = 65.0, 120.0
LINE_SECONDS = 90.0
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


def main() -> None:
    sizes = {"jobs": (200, "jobs, one after the other, in one pod")}
    bench = Bench("a job in a warm pod", runs=5, quick_runs=2, sizes=sizes)
    _cluster.measure(bench, _figures, KINETIC_BASE_PACKAGES="0")


def _figures(bench: Bench, ground: Ground, parts: _cluster.Parts) -> None:
    parts.plane.proxy.delay_seconds = DELAY_SECONDS
    _many(bench, ground, parts)
    _calls(bench, ground, parts)
    _saves(bench, ground)


def _calls(bench: Bench, ground: Ground, parts: _cluster.Parts) -> None:
    """Measure calls of new clients, in a warm pod and in pods of their own."""
    runs = [0]
    project = _project(ground, "edits")

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
        parts.plane.proxy.seen.clear()
        warm.append(run("30m"))
        requests.append(float(len(parts.plane.proxy.seen)))
        cold.append(run("0"))
    first, imports, noop = (list(each) for each in zip(*warm, strict=True))
    cold_first, cold_imports, cold_noop = (list(each) for each in zip(*cold, strict=True))
    bench.limit("call → the function begins; vs a pod of its own", first, 1000, "ms", cold_first)
    bench.limit("importing numpy, JAX and Keras there", imports, 1000, "ms", cold_imports)
    bench.limit("a blocking no-op, in the same client, the best of 5", noop, 150, "ms", cold_noop)
    bench.limit("requests to the API server for seven jobs of a new client", requests, 50, "")


def _saves(bench: Bench, ground: Ground) -> None:
    """Measure from a save under `kinetic dev` to the function, in a warm pod and in pods of their own."""
    project = _project(ground, "saves")
    file = project / "saved.py"
    took: dict[str, list[float]] = {"30m": [], "0": []}
    for keep, values in took.items():
        file.write_text(SAVED.format(number=0))
        words = [sys.executable, "-m", "kinetic", "dev", "-a", "cpu", "--keep-warm", keep, "saved.py::train"]
        dev = subprocess.Popen(
            words, env=ground.environ, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            _begun_at(dev)
            time.sleep(5)  # the pod is idle again
            for number in range(1, 1 + (2 if keep == "0" else bench.runs)):
                saved = time.time()
                file.write_text(SAVED.format(number=number))
                values.append((_begun_at(dev) - saved) * 1e3)
                time.sleep(3)
        finally:
            dev.send_signal(signal.SIGINT)
            dev.communicate()
    bench.limit("a save under kinetic dev → the function begins", took["30m"], 1000, "ms", took["0"])


def _begun_at(dev: subprocess.Popen[bytes]) -> float:
    """Wait for the function's line, and return the time in it."""
    while dev.stdout is not None and select.select([dev.stdout], [], [], LINE_SECONDS)[0]:
        line = os.read(dev.stdout.fileno(), 1 << 16).decode()
        if found := re.search(r"begun at ([0-9.]+)", line):
            return float(found[1])
        if not line:
            raise RuntimeError("kinetic dev has ended")
    raise RuntimeError(f"kinetic dev printed nothing for {LINE_SECONDS:g} s")


def _many(bench: Bench, ground: Ground, parts: _cluster.Parts) -> None:
    """Measure what many jobs leave in a warm pod, and what it takes and asks while it is idle."""
    script = _project(ground, "many") / "many.py"
    script.write_text(MANY)

    def run(count: int) -> tuple[float, float, float]:
        words = [sys.executable, str(script), str(count)]
        subprocess.run(words, env=ground.environ, cwd=script.parent, capture_output=True, check=True)
        time.sleep(5)
        found = parts.plane.api.get(PODS, labelSelector="app=kinetic-warm")["items"]
        (pod,) = (each for each in found if each["status"]["phase"] == "Running")
        (pid,) = parts.agent.pids("default", pod["metadata"]["name"]).values()
        return _held(pid)

    jobs = bench.sizes["jobs"]
    before, after = run(10), run(jobs)
    for name, most, unit, was, now in zip(
        ("processes", "descriptors", "memory"), (0, 0, 2), ("", "", "MB"), before, after, strict=True
    ):
        bench.limit(f"{jobs} jobs in one pod: more {name}", [now - was], most, unit)
    bench.limit("an idle warm pod: memory, shared pages by their share", [after[2]], 80, "MB")
    if not bench.quick:
        time.sleep(LOOK_SECONDS)  # its first look removes what the store has of its jobs
        parts.server.seen.clear()
        parts.plane.proxy.seen.clear()
        time.sleep(IDLE_SECONDS)
        for name, seen in (("store", parts.server.seen), ("API server", parts.plane.proxy.seen)):
            bench.limit(f"an idle warm pod: requests to the {name} per minute", [len(seen) * 60 / IDLE_SECONDS], 1, "")
    for job in parts.plane.api.get(JOBS)["items"]:  # the next figures have a pod of their own
        parts.plane.api.delete(f"{JOBS}/{job['metadata']['name']}", propagationPolicy="Foreground")


def _project(ground: Ground, name: str) -> Path:
    project = ground.folder / name
    project.mkdir()
    (project / "pyproject.toml").write_text(f"[project]\nname = '{name}'\nversion = '1'\n")
    return project


def _held(pid: int) -> tuple[float, float, float]:
    """Return how many processes a pod has, their descriptors, and their memory in MB."""
    pids = processes.tree_of(pid)
    descriptors = sum(len(os.listdir(f"/proc/{each}/fd")) for each in pids)
    texts = [Path(f"/proc/{each}/smaps_rollup").read_text() for each in pids]
    kilobytes = sum(int(found[1]) for text in texts if (found := re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)))
    return float(len(pids)), float(descriptors), kilobytes * 1024 / 1e6


if __name__ == "__main__":
    main()
