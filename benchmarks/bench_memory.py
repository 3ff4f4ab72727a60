"""What memory it takes: a client that waits, a supervisor, and a large array on its way home."""

from __future__ import annotations

import importlib.util
import time

from _measure import Bench, Sandbox, memory_of

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
    with Sandbox() as sandbox:
        _small(bench, sandbox)
        if importlib.util.find_spec("numpy") is None:
            bench.skip("a large array", "numpy is not installed")
        else:
            _array(bench, sandbox, size)
    bench.end()


def _small(bench: Bench, sandbox: Sandbox) -> None:
    clients, busy, idle, bare = [], [], [], []
    for number in range(bench.runs):
        go = sandbox.folder / f"go-{number}"
        with sandbox.session("waiting.py", WAITING) as session:
            session.send("until", str(go))
            _until_busy(sandbox)
            time.sleep(0.5)
            clients.append(memory_of(session.process.pid))
            busy += [memory_of(pid) for pid, state in sandbox.supervisors().items() if state == "busy"]
            go.touch()
            session.answer()
        sandbox.quiet()
        idle += [memory_of(pid) for pid in sandbox.supervisors()]
        with sandbox.session("bare.py", BARE) as session:
            session.ask("ready")
            bare.append(memory_of(session.process.pid))
    bench.limit("a client that waits; vs an interpreter with json", clients, 80, "MB", bare)
    bench.limit("a supervisor at work", busy, 25, "MB", bare)
    bench.limit("a supervisor that idles", idle, 25, "MB", bare)


def _array(bench: Bench, sandbox: Sandbox, size: int) -> None:
    peaks: dict[str, list[float]] = {"job": [], "client": []}
    for _ in range(bench.runs):
        paths = {side: sandbox.folder / f"{side}.peak" for side in peaks}
        with sandbox.session("large_array.py", ARRAY) as session:
            session.ask("collect", size, *map(str, paths.values()))
        sandbox.quiet()
        for side, path in paths.items():
            peaks[side].append(int(path.read_text()) / 1e6)
    name = f"an array of {size >> 20} MiB: peak of"
    bench.ratio(f"{name} the job, vs its size", peaks["job"], [size / 1e6], 2.2, "MB")
    bench.ratio(f"{name} the client, vs its size", peaks["client"], [size / 1e6], 2.2, "MB")


def _until_busy(sandbox: Sandbox) -> None:
    while "busy" not in sandbox.supervisors().values():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
