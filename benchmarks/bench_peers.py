"""What others take for the same two things: one call of a function that does nothing, and 1,000 of them.

Each runs as its own documentation shows it, on this machine, with two processes. They promise different things: a job
of kinetic or submitit outlives the process that submitted it, a task of Dask, Ray or joblib does not.
`make bench PEERS=1` installs them and runs this file with the others.
"""

from __future__ import annotations

import importlib.util
import textwrap
from typing import NamedTuple

from _measure import NOOP, Bench, Sandbox, Session

KINETIC = (
    NOOP
    + """
def call():
    begun = time.perf_counter()
    noop()
    return time.perf_counter() - begun

def many(count):
    begun = time.perf_counter()
    assert noop.run_async_map(range(count)).results() == list(range(count))
    return time.perf_counter() - begun

serve(call=call, many=many)
"""
)
# What every peer needs: `one()` waits for one call, `each(count)` for many.
PEER = """
def noop(number=0):
    return number

if __name__ == "__main__":  # processes that a peer spawns import this file again
{setup}

def call():
    begun = time.perf_counter()
    one()
    return time.perf_counter() - begun

def many(count):
    begun = time.perf_counter()
    assert sorted(each(count)) == list(range(count))
    return time.perf_counter() - begun

if __name__ == "__main__":
    serve(call=call, many=many)
"""


class Peer(NamedTuple):
    """Another package, and how its documentation runs a function."""

    library: str
    title: str
    setup: str
    most: int  # jobs at once that it is asked for: one that takes a second for each need not take an hour


PEERS = (
    Peer(
        "submitit",
        "submitit, local executor",
        """
import submitit
executor = submitit.LocalExecutor("submitit")
one = lambda: executor.submit(noop).result()
def each(count):
    with executor.batch():
        jobs = [executor.submit(noop, number) for number in range(count)]
    return [job.result() for job in jobs]
""",
        20,
    ),
    Peer(
        "distributed",
        "Dask, two processes",
        """
from distributed import Client, LocalCluster
client = Client(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None))
one = lambda: client.submit(noop, pure=False).result()
each = lambda count: client.gather(client.map(noop, range(count), pure=False))
""",
        1000,
    ),
    Peer(
        "ray",
        "Ray, two processors",
        """
import ray
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
task = ray.remote(noop)
one = lambda: ray.get(task.remote())
each = lambda count: ray.get([task.remote(number) for number in range(count)])
""",
        1000,
    ),
    Peer(
        "joblib",
        "joblib, two processes",
        """
from joblib import Parallel, delayed
pool = Parallel(n_jobs=2)
one = lambda: pool([delayed(noop)()])
each = lambda count: pool(delayed(noop)(number) for number in range(count))
""",
        1000,
    ),
)


def main() -> None:
    bench = Bench("the same function by other packages", runs=9, quick_runs=3)
    with Sandbox() as sandbox:
        with sandbox.session("ours.py", KINETIC) as session:
            call, each = _measured(session, bench.runs, 1000)
        bench.limit("kinetic: a warm blocking call", call, 12, "ms")
        bench.limit("kinetic: one of 1000, submit included", each, 4, "ms")
        for peer in PEERS:
            if importlib.util.find_spec(peer.library) is None:
                bench.skip(peer.title, "it is not installed; make bench PEERS=1")
                continue
            with sandbox.session(
                f"of_{peer.library}.py", PEER.format(setup=textwrap.indent(peer.setup, "    "))
            ) as session:
                its_call, its_each = _measured(session, bench.runs, peer.most)
            bench.ratio(f"{peer.title}: a call; vs ours", its_call, call, None, "ms")
            bench.ratio(f"… one of {peer.most}; vs ours", its_each, each, None, "ms")
    bench.end()


def _measured(session: Session, runs: int, count: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of a call, and those of each of many, after one that does not count."""
    session.ask("call")
    call = [session.ask("call") * 1e3 for _ in range(runs)]
    return call, [session.ask("many", count) * 1e3 / count for _ in range(min(3, runs))]


if __name__ == "__main__":
    main()
