"""What a job in a warm pod costs beside one with a pod of its own, alternately, 20 ms away from the API server.

Control plane, scheduler, kubelet and containerd are real, the store is the test suite's bucket, and clients are new
processes, as after an edit. Also: from a save under `kinetic dev` to the first line, the children of a batch, what many
jobs leave in the pod, what it takes and asks while it is idle, and a program that is compiled again in a fresh pod. It
needs root, the test cluster and the real node (`make node`); with --node 0, pods are processes of the tests' agent.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import _cluster
from _measure import COMPILED_SIZES, COMPILES, Bench, Sandbox, show_compiled

from kinetic._runner import processes

DELAY_SECONDS = 0.02  # of a request, and of a message there and back
STORE_SECONDS = 0.05  # of a request to a bucket far away
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
    job = first.run_async(sys.argv[2:])
    processor = time.process_time()  # since this process began, imports included
    entered, imported = job.result()
    noop()
    took = []
    for _ in range(8):
        time.sleep(0.5)  # the pod is idle again, with the processes of its next job; without that, see the batch below
        again = time.time()
        noop()
        took.append(time.time() - again)
    print(entered - float(sys.argv[1]), entered - begun, processor, imported - entered, min(took), sorted(took)[4])
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
    print(0)
"""
COMPILING = (
    """
import sys, time
import kinetic

@kinetic.run(accelerator="cpu", keep_warm="0")
"""
    + COMPILES
    + """
if __name__ == "__main__":
    print(*compiles(*map(int, sys.argv[1:])))
"""
)
SAVED = """
import time

def train():
    # save {number}
    print(f"begun at {{time.time()}}", flush=True)
"""
LOOK_SECONDS, IDLE_SECONDS = 65.0, 120.0
LINE_SECONDS = 90.0
IMPORT_TRIES, IMPORTED_MS = 10, 100.0
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
SWEEP = """
import sys, time
import kinetic

@kinetic.run(accelerator="cpu", keep_warm={keep!r})
def begun(number):
    return time.time()

if __name__ == "__main__":
    found = begun.run_async_map(range(8), max_concurrent=1).results()
    print(*(after - before for before, after in zip(found[1:], found[2:])))
"""


def main() -> None:
    sizes = {
        "jobs": (200, "jobs, one after the other, in one pod"),
        **COMPILED_SIZES,
        "compile": (1, "0: nothing is compiled"),
        "node": (1, "0: pods are processes of the test suite's agent, and not of a real node"),
    }
    bench = Bench("a job in a warm pod", runs=5, quick_runs=2, sizes=sizes)
    _cluster.measure(bench, _figures, real=bool(bench.sizes["node"]), KINETIC_BASE_PACKAGES="0")


def _figures(bench: Bench, sandbox: Sandbox, parts: _cluster.Parts) -> None:
    parts.plane.proxy.delay_seconds = DELAY_SECONDS
    _calls(bench, sandbox, parts)
    _saves(bench, sandbox)
    _batches(bench, sandbox)
    _end_pods(parts)
    _many(bench, sandbox, parts)
    if bench.sizes["compile"]:
        _compiled(bench, sandbox)


def _calls(bench: Bench, sandbox: Sandbox, parts: _cluster.Parts) -> None:
    """Measure calls of new clients, in a warm pod and in pods of their own."""
    runs = [0]
    project = _project(sandbox, "edits")

    def run(keep: str) -> tuple[float, ...]:
        runs[0] += 1
        script = project / "edited.py"
        script.write_text(SCRIPT.format(keep=keep, number=runs[0]))
        words = [sys.executable, str(script), str(time.time()), *MODULES]
        return tuple(1e3 * value for value in _printed(words, sandbox, project))

    imported = f"import {', '.join(MODULES)}"  # here, so that there is bytecode: pods may not write where it would be
    subprocess.run([sys.executable, "-c", imported], env=sandbox.environ | {"KERAS_BACKEND": "jax"}, check=True)
    for _ in range(IMPORT_TRIES):  # the first one makes the warm pod, which then imports what its task imported
        if run("30m")[3] < IMPORTED_MS:
            break
        time.sleep(15)
    warm, cold, requests = [], [], []
    for _ in range(bench.runs):
        parts.plane.proxy.seen.clear()
        warm.append(run("30m"))
        requests.append(float(len(parts.plane.proxy.seen)))
        cold.append(run("0"))
    parts.server.delay(STORE_SECONDS)
    far = [run("30m")[4] for _ in range(bench.runs)]
    parts.server.delay(0)
    edit, call, processor, imports, noop, middle = (list(each) for each in zip(*warm, strict=True))
    cold_edit, cold_call, cold_processor, cold_imports, cold_noop, cold_middle = map(list, zip(*cold, strict=True))
    bench.limit("a new client is started → the function begins; vs its own pod", edit, 1000, "ms", cold_edit)
    bench.show("… of it from the call on", call, "ms", cold_call)
    bench.limit("… processor time of the client until the job is launched", processor, 300, "ms", cold_processor)
    bench.limit("importing numpy, JAX and Keras there", imports, 1000, "ms", cold_imports)
    bench.limit("a blocking no-op, in the same client, pod idle, the best of 8", noop, 150, "ms", cold_noop)
    bench.show("… the median of 8", middle, "ms", cold_middle)
    bench.show(f"… the best of 8 with the bucket {STORE_SECONDS * 1e3:.0f} ms away; vs beside it", far, "ms", noop)
    bench.limit("requests to the API server for ten jobs of a new client", requests, 75, "")


def _compiled(bench: Bench, sandbox: Sandbox) -> None:
    """Measure programs that are compiled in one pod, and again in a fresh one."""
    layers, sorts = (1, 1) if bench.quick else (bench.sizes["layers"], bench.sizes["sorts"])
    project = _project(sandbox, "compiles")
    (project / "compiles.py").write_text(COMPILING)

    steps, sorted_ = (
        [[_printed([sys.executable, "compiles.py", str(layers), str(each), "0"], sandbox, project) for _ in range(2)]]
        for each in (0, sorts)
    )
    show_compiled(bench, "pod", layers, steps, sorts, sorted_)


def _printed(words: list[str], sandbox: Sandbox, project: Path) -> list[float]:
    done = subprocess.run(words, env=sandbox.environ, cwd=project, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr[-3000:]}")
    return [float(word) for word in done.stdout.splitlines()[-1].split()]  # above it, what its jobs printed


def _saves(bench: Bench, sandbox: Sandbox) -> None:
    """Measure from a save under `kinetic dev` to the function, in a warm pod and in pods of their own."""
    project = _project(sandbox, "saves")
    file = project / "saved.py"
    took: dict[str, list[float]] = {"30m": [], "0": []}
    for keep, values in took.items():
        file.write_text(SAVED.format(number=0))
        words = [sys.executable, "-m", "kinetic", "dev", "-a", "cpu", "--keep-warm", keep, "saved.py::train"]
        dev = subprocess.Popen(
            words, env=sandbox.environ, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
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
            dev.terminate()  # as Ctrl-C, which a program started in the background ignores
            dev.communicate()
    bench.limit("a save under kinetic dev → the function begins", took["30m"], 1000, "ms", took["0"])


def _batches(bench: Bench, sandbox: Sandbox) -> None:
    """Measure from one child of a batch to the next, in a warm pod and in pods of their own."""
    script = _project(sandbox, "sweep") / "sweep.py"
    took: dict[str, list[float]] = {}
    for keep in ("30m", "0"):
        script.write_text(SWEEP.format(keep=keep))
        seconds = _printed([sys.executable, str(script)], sandbox, script.parent)
        took[keep] = [1e3 * each for each in seconds]
    what = "a batch with max_concurrent=1: from one function's beginning to the next"
    bench.limit(what, took["30m"], 1000, "ms", took["0"])


def _begun_at(dev: subprocess.Popen[bytes]) -> float:
    """Wait for the function's line, and return the time in it."""
    while dev.stdout is not None and select.select([dev.stdout], [], [], LINE_SECONDS)[0]:
        line = os.read(dev.stdout.fileno(), 1 << 16).decode()
        if found := re.search(r"begun at ([0-9.]+)", line):
            return float(found[1])
        if not line:
            raise RuntimeError("kinetic dev has ended")
    raise RuntimeError(f"kinetic dev printed nothing for {LINE_SECONDS:g} s")


def _many(bench: Bench, sandbox: Sandbox, parts: _cluster.Parts) -> None:
    """Measure what many jobs leave in a warm pod, and what it takes and asks while it is idle."""
    script = _project(sandbox, "many") / "many.py"
    script.write_text(MANY)

    def run(count: int) -> tuple[float, float, float, float]:
        words = [sys.executable, str(script), str(count)]
        _printed(words, sandbox, script.parent)
        time.sleep(5)
        found = parts.plane.api.get(PODS, labelSelector="app=kinetic-warm")["items"]
        (pod,) = (each for each in found if each["status"]["phase"] == "Running")
        (pid,) = parts.agent.pids("default", pod["metadata"]["name"]).values()
        return _held(pid)

    jobs = bench.sizes["jobs"]
    before, after = run(10), run(jobs - 10)
    for name, most, unit, was, now in zip(
        ("processes", "descriptors", "memory"), (0, 0, 2), ("", "", "MB"), before[:3], after[:3], strict=True
    ):
        bench.limit(f"{jobs} jobs in one pod: more {name} than after 10", [now - was], most, unit)
    bench.limit("an idle warm pod: memory, shared pages by their share", [after[3]], 80, "MB")
    if not bench.quick:
        time.sleep(LOOK_SECONDS)  # its first look removes what the store has of its jobs
        parts.server.seen.clear()
        parts.plane.proxy.seen.clear()
        time.sleep(IDLE_SECONDS)
        for name, seen in (("store", parts.server.seen), ("API server", parts.plane.proxy.seen)):
            bench.limit(f"an idle warm pod: requests to the {name} per minute", [len(seen) * 60 / IDLE_SECONDS], 1, "")
    _end_pods(parts)


def _end_pods(parts: _cluster.Parts) -> None:
    """End all pods: the next figures have one of their own."""
    for job in parts.plane.api.get(JOBS)["items"]:
        parts.plane.api.delete(f"{JOBS}/{job['metadata']['name']}", propagationPolicy="Foreground")
    while parts.plane.api.get(PODS)["items"]:
        time.sleep(0.5)


def _project(sandbox: Sandbox, name: str) -> Path:
    project = sandbox.folder / name
    project.mkdir()
    (project / "pyproject.toml").write_text(f"[project]\nname = '{name}'\nversion = '1'\n")
    return project


def _held(pid: int) -> tuple[float, float, float, float]:
    """Return how many processes a pod has, their descriptors, and their memory in MB: without that of files, and all.

    Pages that several share are counted by their share: that of files grows when other programs of the machine end.
    """
    pids = processes.tree_of(pid)
    descriptors = sum(len(os.listdir(f"/proc/{each}/fd")) for each in pids)
    texts = [Path(f"/proc/{each}/smaps_rollup").read_text() for each in pids]

    def megabytes(kind: str) -> float:
        found = [re.search(rf"^{kind}:\s+(\d+)", text, re.MULTILINE) for text in texts]
        return sum(int(each[1]) for each in found if each) * 1024 / 1e6

    return float(len(pids)), float(descriptors), megabytes("Pss_Anon"), megabytes("Pss")


if __name__ == "__main__":
    main()
