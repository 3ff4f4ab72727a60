"""What a job on a cluster costs beside a bare Job of Kubernetes that starts the same Python and does nothing.

Control plane and scheduler are real, the node is the test suite's agent, the store is its bucket; so only ratios mean
something. Needs the test cluster (`make cluster`), and is passed over without it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import _cluster
from _measure import NOOP, Bench, Sandbox, alternate

JOB = (
    NOOP
    + """
def call():
    begun = time.perf_counter()
    if noop(1) != 1:
        raise SystemExit("the result is wrong")
    return time.perf_counter() - begun

def submit():
    begun = time.perf_counter()
    job = noop.run_async(1)
    seconds = time.perf_counter() - begun
    job.result()
    return seconds

def drive(count):
    begun = time.perf_counter()
    if noop.run_async_map(range(count), max_concurrent=None).results() != list(range(count)):
        raise SystemExit("a result is wrong")
    return time.perf_counter() - begun

serve(call=call, submit=submit, drive=drive)
"""
)


def main() -> None:
    _cluster.measure(Bench("a job that does nothing, on a cluster", runs=5, quick_runs=3), _figures)


def _figures(bench: Bench, sandbox: Sandbox, parts: _cluster.Parts) -> None:
    plane = parts.plane
    bare = Bare(plane)
    with sandbox.session("job.py", JOB) as session:
        session.ask("call")  # makes the runner's ConfigMap, and checks what is then remembered
        measured = alternate(
            bench.runs,
            call=lambda: float(session.ask("call")) * 1e3,
            submit=lambda: float(session.ask("submit")) * 1e3,
            bare=lambda: bare.run() * 1e3,
        )
        bench.ratio("a blocking call; vs a bare Job that starts Python", measured["call"], measured["bare"], 3.0, "ms")
        bench.limit("run_async until it returns; vs the same Job", measured["submit"], 500, "ms", measured["bare"])
        count = 10 if bench.quick else 30
        seconds = [float(session.ask("drive", count)) * 1e3 / count for _ in range(3)]
        together = [bare.run(count) * 1e3 / count for _ in range(3)]
        bench.ratio(f"one of a batch of {count}; vs bare Jobs made at once", seconds, together, 3.0, "ms")


class Bare:
    """Jobs as anybody would write them: the same image, `python3 -c pass`."""

    def __init__(self, plane: Any) -> None:
        self._api = plane.api
        self._path = "/apis/batch/v1/namespaces/default/jobs"
        self._count = 0

    def run(self, count: int = 1) -> float:
        """Make Jobs, wait until all are complete, and return how many seconds that took."""
        begun = time.perf_counter()
        threads = [threading.Thread(target=self._make) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while self._open():
            time.sleep(0.02)
        return time.perf_counter() - begun

    def _make(self) -> None:
        container = {"name": "c", "image": "python:3", "command": ["python3", "-c", "pass"]}
        template = {
            "metadata": {"labels": {"bare": "yes"}},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        self._count += 1
        about = {"name": f"bare-{self._count}-{threading.get_ident()}", "labels": {"bare": "yes"}}
        self._api.create(self._path, {"metadata": about, "spec": {"template": template, "backoffLimit": 0}})

    def _open(self) -> bool:
        found = self._api.get(self._path, labelSelector="bare=yes")["items"]
        return any(not each["status"].get("succeeded") for each in found)


if __name__ == "__main__":
    main()
