"""What a pod adds: from the start of its first process to the first line of the user's function.

The runner's zip is started as a container would start it, with a bucket that answers each request after 20 ms. Beside
it the requests to the store until then, which weigh as much as anything where the store is far away.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
from _measure import Bench, Sandbox, alternate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from servers.gcs import GcsServer

from kinetic._project import archive, runner_bundle
from kinetic._project.root import Plan
from kinetic._stores import open_store
from kinetic._wire import digests, keys, python_runtime
from kinetic._wire.order import Artifact, Order
from kinetic._wire.task import PodSettings, Task

LATENCY_SECONDS = 0.020
TARGET_MS = 400
STAMPS = """\
import time


def stamp(path):
    reached = time.monotonic_ns()
    with open(path, "w") as file:
        file.write(str(reached))
"""


def main() -> None:
    bench = Bench(f"a pod's start, with {LATENCY_SECONDS * 1e3:g} ms to its store", runs=11, quick_runs=3)
    server = GcsServer().start()
    server.bucket("jobs")
    os.environ["STORAGE_EMULATOR_HOST"] = server.url
    try:
        with Sandbox() as sandbox:
            _measure(bench, sandbox, server)
    finally:
        server.close()
    bench.end()


def _measure(bench: Bench, sandbox: Sandbox, server: GcsServer) -> None:
    cloud, local = Pods(sandbox, "gs://jobs/here", server), Pods(sandbox, f"file://{sandbox.folder}/store", server)
    counts: list[int] = []

    def in_a_bucket() -> float:
        took, requests = cloud.start()
        counts.append(requests)
        return took

    measured = alternate(
        bench.runs,
        bucket=in_a_bucket,
        folder=lambda: local.start()[0],
        cloudpickle=lambda: sandbox.milliseconds_of_python("-c", "import cloudpickle"),
        obstore=lambda: sandbox.milliseconds_of_python("-c", "import obstore.store"),
    )
    imported = measured["cloudpickle"]
    bench.limit("to the function's first line, store in a bucket", measured["bucket"], TARGET_MS, "ms", imported)
    bench.ratio("… the same, store in a mounted folder", measured["folder"], imported, None, "ms")
    bench.ratio("… of which import obstore alone, with its Python", measured["obstore"], imported, None, "ms")
    bench.limit("requests to the store until then", counts, 5, "")


class Pods:
    """One project and one function in a store, and pods that call it."""

    def __init__(self, sandbox: Sandbox, url: str, server: GcsServer) -> None:
        self._sandbox, self._server, self._url = sandbox, server, url
        self._store, self._made = open_store(url), 0
        self._zip = sandbox.folder / "runner.zip"
        self._zip.write_bytes(runner_bundle.build().data)
        self._secret = sandbox.folder / "secret"
        self._secret.mkdir(exist_ok=True)
        (self._secret / "job-key").write_bytes(bytes(range(32)))
        sandbox.script("stamps.py", STAMPS)
        self._plan = Plan(sandbox.project, "", "", ("",))
        self._shipped = archive.ship(self._plan, self._store, cache=sandbox.folder / "cache", environ=sandbox.environ)
        sys.path.insert(0, str(sandbox.project))
        self._function = Artifact.within(cloudpickle.dumps(importlib.import_module("stamps").stamp))
        sys.path.remove(str(sandbox.project))

    def start(self) -> tuple[float, int]:
        """Run a pod to its end; return the milliseconds until its function began, and the requests until then."""
        self._made += 1
        beside = self._sandbox.folder / f"{self._url.partition(':')[0]}-{self._made}"
        beside.mkdir()
        task, stamp = self._order(beside / "stamp"), beside / "stamp"
        environ = {**os.environ, "TMPDIR": str(beside)}
        words = [sys.executable, str(self._zip), task.to_argument()]
        self._server.delay(LATENCY_SECONDS)
        before = len(self._server.seen)
        begun = time.monotonic_ns()
        process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with contextlib.suppress(FileNotFoundError):
            while process.poll() is None and not stamp.exists():
                time.sleep(0.001)
        requests = len(self._server.seen) - before
        out, _ = process.communicate(timeout=60)
        self._server.delay(0)
        if process.returncode:
            raise RuntimeError(f"a pod ended with {process.returncode}: {out.decode()[-2000:]}")
        return (int(stamp.read_text()) - begun) / 1e6, requests

    def _order(self, stamp: Path) -> Task:
        job_id = f"cpu-stamp-20261121-120000-{self._made:07x}"
        page = Order(
            job_id,
            "stamp",
            self._function,
            Artifact.within(pickle.dumps(((str(stamp),), {}))),
            manifest=self._shipped.manifest,
            packs=self._shipped.packs,
            plan=self._plan.to_json(),
            fingerprint={"python": python_runtime.python_version()},
        ).to_bytes()
        self._store.put(keys.order(job_id), page)
        self._store.put(keys.record(job_id), b"{}")
        settings = PodSettings(secret=str(self._secret), last_words=os.devnull)
        return Task(job_id, digests.of_bytes(page), self._url, "key-1", 0o022, None, {}, pod=settings)


if __name__ == "__main__":
    main()
