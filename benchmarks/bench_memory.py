"""What memory it takes: a client that waits, a supervisor, and a large array on its way home."""

from __future__ import annotations

import importlib.util
import time

from _measure import Bench, Ground, memory_of

WAITING = """
import kinetic

@kinetic.run(accelerator="cpu")
def until(path):
    import os, time
    while not os.path.exists(path):
        time.sleep(0.01)

serve(until=until)
"""
ARRAY = """
import kinetic

def memory_at_the_end(path):
    # Runs when the value is delivered: only then is the peak known.
    import resource, sys
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    try:
        with open("/proc/self/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
    except OSError:
        pass
    with open(path, "w") as file:
        file.write(str(peak))

@kinetic.run(accelerator="cpu")
def array(size, path):
    import atexit
    import numpy
    atexit.register(memory_at_the_end, path)
    return numpy.ones(size // 8)

def collect(size, job_path, client_path):
    found = array(size, job_path)
    if found.nbytes != size:
        raise SystemExit("the array is not whole")
    memory_at_the_end(client_path)

serve(collect=collect)
"""
BARE = "serve(ready=lambda: 1)"


def main() -> None:
    bench = Bench("memory", runs=3, quick_runs=1)
    size = 256 << 20 if bench.quick else 1 << 30
    with Ground() as ground:
        _small(bench, ground)
        if importlib.util.find_spec("numpy") is None:
            bench.skip("a large array", "numpy is not installed")
        else:
            _array(bench, ground, size)
    bench.end()


def _small(bench: Bench, ground: Ground) -> None:
    clients, busy, idle, bare = [], [], [], []
    for number in range(bench.runs):
        go = ground.folder / f"go-{number}"
        with ground.session("waiting.py", WAITING) as session:
            session.send("until", str(go))
            _until_busy(ground)
            time.sleep(0.5)
            clients.append(memory_of(session.process.pid))
            busy += [memory_of(pid) for pid, state in ground.supervisors().items() if state == "busy"]
            go.touch()
            session.answer()
        ground.quiet()
        idle += [memory_of(pid) for pid in ground.supervisors()]
        with ground.session("bare.py", BARE) as session:
            session.ask("ready")
            bare.append(memory_of(session.process.pid))
    bench.limit("a client that waits; vs an interpreter with json", clients, 80, "MB", bare)
    bench.limit("a supervisor at work", busy, 25, "MB", bare)
    bench.limit("a supervisor that idles", idle, 25, "MB", bare)


def _array(bench: Bench, ground: Ground, size: int) -> None:
    peaks: dict[str, list[float]] = {"job": [], "client": []}
    for _ in range(bench.runs):
        paths = {side: ground.folder / f"{side}.peak" for side in peaks}
        with ground.session("large_array.py", ARRAY) as session:
            session.ask("collect", size, *map(str, paths.values()))
        ground.quiet()
        for side, path in paths.items():
            peaks[side].append(int(path.read_text()) / 1e6)
    name = f"an array of {size >> 20} MiB: peak of"
    bench.ratio(f"{name} the job, vs its size", peaks["job"], [size / 1e6], 2.2, "MB")
    bench.ratio(f"{name} the client, vs its size", peaks["client"], [size / 1e6], 2.2, "MB")


def _until_busy(ground: Ground) -> None:
    while "busy" not in ground.supervisors().values():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
