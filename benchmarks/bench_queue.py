"""What a hundred jobs cost: submitted at once, until every value is there."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from _measure import NOOP, Bench, Sandbox, alternate

HUNDRED = (
    NOOP
    + """
def all_at_once(count):
    begun = time.perf_counter()
    handles = [noop.submit(number) for number in range(count)]
    submitted = time.perf_counter() - begun
    if [handle.result() for handle in handles] != list(range(count)):
        raise SystemExit("a result is wrong")
    return [submitted, time.perf_counter() - begun]

serve(all_at_once=all_at_once)
"""
)


def main() -> None:
    bench = Bench("a hundred jobs that do nothing", runs=3, quick_runs=2)
    count = 20 if bench.quick else 100
    submitting: list[float] = []
    with Sandbox() as sandbox:
        measured = alternate(
            bench.runs,
            jobs=lambda: _jobs(sandbox, count, submitting),
            pool=lambda: _pool(sandbox, count),
        )
        name = f"{count} jobs, no supervisor before; vs a pool, import cloudpickle"
        bench.ratio(name, measured["jobs"], measured["pool"], 1.0, "s")
        bench.ratio("… of which until all are submitted; no target", submitting[1:], measured["pool"], None, "s")
    bench.end()


def _jobs(sandbox: Sandbox, count: int, submitting: list[float]) -> float:
    sandbox.quiet()
    sandbox.end_supervisors()
    with sandbox.session("hundred.py", HUNDRED) as session:
        submitted, whole = session.ask("all_at_once", count)
    sandbox.quiet()
    submitting.append(submitted)
    return float(whole)


def _pool(sandbox: Sandbox, count: int) -> float:
    from kinetic._backends.local import limits  # as wide as the queue here

    words = (sys.executable, "-c", "import cloudpickle")
    begun = time.perf_counter()
    with ThreadPoolExecutor(limits.cores()) as pool:
        list(pool.map(lambda _: sandbox.seconds_of(*words), range(count)))
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
