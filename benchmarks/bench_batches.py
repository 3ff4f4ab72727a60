"""What a batch costs its client: submitting, driving, remembering, counting.

The baseline is a pool of interpreters that import cloudpickle, and costs are compared for each job: what a pool takes
grows with the number of interpreters and with nothing else, so 100 of them tell what 1,000 would, in a tenth of the
time.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from _measure import NOOP, Bench, Sandbox, alternate

POOL = 100  # interpreters
BATCH = (
    NOOP
    + """
batches = []

def prepare():
    # The first job of a home makes its folders, its key and the runner; a batch is not the place to measure that.
    return noop(1)

def submit(count):
    begun = time.perf_counter()
    batches.append(noop.run_async_map(range(count), max_concurrent=None))
    return time.perf_counter() - begun

def submit_singly(count):
    begun = time.perf_counter()
    jobs = [noop.run_async(number) for number in range(count)]
    seconds = time.perf_counter() - begun
    if [job.result() for job in jobs] != list(range(count)):
        raise SystemExit("a result is wrong")
    return seconds

def cancel():
    batches[-1].cleanup()
    return True

def drive(count):
    begun = time.perf_counter()
    batch = noop.run_async_map(range(count))
    if batch.results(cleanup=False) != list(range(count)):
        raise SystemExit("a result is wrong")
    batches.append(batch)
    return time.perf_counter() - begun

def count_statuses():
    begun = time.perf_counter()
    counts = batches[-1].status_counts()
    return [time.perf_counter() - begun, counts]

def peak():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024 / 1e6
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6

def end_all(count):
    # Ends the jobs of the last batch as their supervisors would, without running them.
    from functools import partial
    from kinetic._stores import parallel as transfer
    from kinetic._jobs import locate as places
    from kinetic._wire import keys, documents as seal
    batch = batches.pop()
    batch.cancel()
    state = batch._tracker
    seals = places.group_key(state.group)
    tasks = []
    for index in range(count):
        tasks.append((seal.sealed_name(keys.children_of(batch.group_id, range(index, index + 1), 0), "", seals), b""))
        own = places.key_for(state.group.child_id(index, 0), state.group.key_id, state.store.url)
        tasks.append((seal.sealed_name(keys.mark(batch.group_id, index, 0), "succeeded", own), b""))
    list(transfer.in_parallel(state.store, [partial(state.store.put, *task) for task in tasks]))
    batches.append(kinetic.attach_batch(batch.group_id))
    return True

serve(prepare=prepare, submit=submit, submit_singly=submit_singly, cancel=cancel, drive=drive,
      count_statuses=count_statuses, peak=peak, end_all=end_all)
"""
)


def main() -> None:
    bench = Bench("a batch of jobs that do nothing", runs=2, quick_runs=1)
    count, many = (100, 1000) if bench.quick else (1000, 10_000)
    with Sandbox() as sandbox:
        _submitting(bench, sandbox, count)
        _submitting_singly(bench, sandbox)
        _driving(bench, sandbox, count)
        _remembering_and_counting(bench, sandbox, many)
    bench.end()


def _submitting(bench: Bench, sandbox: Sandbox, count: int) -> None:
    blobs: list[float] = []

    def submit() -> float:
        sandbox.quiet()
        sandbox.script("news.py", f"NUMBER = {len(blobs)}\n")  # there is something to pack, and to send
        before = set(sandbox.stored())
        with sandbox.session("batch.py", BATCH) as session:
            seconds = float(session.ask("submit", count))
            new = set(sandbox.stored()) - before
            blobs.append(sum("/data/blobs/" in path for path in new))
            session.ask("cancel")
        return seconds * 1e3 / count

    with sandbox.session("first.py", BATCH) as session:
        session.ask("prepare")
    measured = alternate(bench.runs, warm=False, batch=submit, pool=lambda: _pool(sandbox))
    name = f"submitting one of {count}, max_concurrent=None; vs one of a pool"
    bench.limit(name, measured["batch"], 5, "ms", measured["pool"])
    bench.limit("… blobs of the project that were sent for all of them", [max(blobs)], 1, "")


def _submitting_singly(bench: Bench, sandbox: Sandbox) -> None:
    """Submit jobs that are no batch: each has an order, a record, a launch page and forced writes of its own."""
    with sandbox.session("singly.py", BATCH) as session:
        session.ask("prepare")

        def submit() -> float:
            sandbox.quiet()
            return float(session.ask("submit_singly", POOL)) * 1e3 / POOL

        measured = alternate(bench.runs, warm=False, single=submit, pool=lambda: _pool(sandbox))
    name = f"submitting one of {POOL} by itself; vs one of a pool"
    bench.ratio(name, measured["single"], measured["pool"], 0.6, "ms")


def _driving(bench: Bench, sandbox: Sandbox, count: int) -> None:
    def drive() -> float:
        sandbox.quiet()
        with sandbox.session("batch.py", BATCH) as session:
            seconds = float(session.ask("drive", count))
            session.ask("cancel")
        sandbox.quiet()
        return seconds * 1e3 / count

    measured = alternate(bench.runs, warm=False, batch=drive, pool=lambda: _pool(sandbox))
    name = f"driving one of {count} to its result; vs one of a pool"
    bench.ratio(name, measured["batch"], measured["pool"], 1.0, "ms")


def _remembering_and_counting(bench: Bench, sandbox: Sandbox, count: int) -> None:
    sandbox.quiet()
    with sandbox.session("batch.py", BATCH) as session:
        session.ask("prepare")
        bare = float(session.ask("peak"))
        seconds = float(session.ask("submit", count))
        submitted = float(session.ask("peak"))
        session.ask("end_all", count)
        sandbox.quiet()  # supervisors forget what was cancelled
        found = [session.ask("count_statuses") for _ in range(7)]
    if any(sum(counts.values()) != count for _, counts in found):
        raise SystemExit(f"the counts are wrong: {found}")
    bench.limit(f"peak memory of a client that submits {count}; vs after one job", [submitted], 150, "MB", [bare])
    bench.limit("… and how long each takes it", [seconds * 1e3 / count], 5, "ms")
    bench.limit(f"status_counts() of {count} that have ended", [seconds * 1e3 for seconds, _ in found], 200, "ms")


def _pool(sandbox: Sandbox) -> float:
    """Return the milliseconds that an interpreter takes in a pool as wide as the queue."""
    from kinetic._backends.local import limits

    words = (sys.executable, "-c", "import cloudpickle")
    begun = time.perf_counter()
    with ThreadPoolExecutor(limits.read_limits(os.environ).slots) as pool:
        list(pool.map(lambda _: sandbox.seconds_of(*words), range(POOL)))
    return (time.perf_counter() - begun) * 1e3 / POOL


if __name__ == "__main__":
    main()
