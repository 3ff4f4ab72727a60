"""What printing costs: a million short lines in a job, beside the same lines written to a file, block-buffered.

And what it costs to show them again, beside a process that copies the log and takes its digest.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from _measure import Bench, Sandbox, alternate

LINES = """\
def lines(count):
    import sys, time
    begun = time.perf_counter()
    for number in range(count):
        print("step", number)
    sys.stdout.flush()
    return (time.perf_counter() - begun) * 1e3
"""
PRINTING = f"""
import kinetic

{LINES}
job = kinetic.run(accelerator="cpu")(lines)

def alone(count):
    begun = time.perf_counter()
    inside = job.submit(count).result()
    return [inside, (time.perf_counter() - begun) * 1e3]

def followed(count):
    begun = time.perf_counter()
    inside = job(count)
    sys.stdout.flush()
    return [inside, (time.perf_counter() - begun) * 1e3]

def kept(count):
    handle = job.submit(count)
    handle.wait()
    return handle.job_id

serve(alone=alone, followed=followed, kept=kept)
"""
COPY = """\
import hashlib, sys

digest = hashlib.sha256()
with open(sys.argv[1], "rb") as log:
    while piece := log.read(1 << 20):
        digest.update(piece)
        sys.stdout.buffer.write(piece)
"""
PLAIN = f"""\
import sys

{LINES}
print(lines(int(sys.argv[1])), file=sys.stderr)
"""


def main() -> None:
    bench = Bench("printing short lines", runs=3, quick_runs=3)
    count = 100_000 if bench.quick else 1_000_000
    with Sandbox() as sandbox, sandbox.session("printing.py", PRINTING) as session:
        plain = sandbox.script("plain.py", PLAIN)
        inside: dict[str, list[float]] = {"alone": [], "followed": [], "plain": []}

        def job(action: str) -> float:
            sandbox.quiet()
            loop, whole = session.ask(action, count)
            inside[action].append(loop)
            return float(whole)

        def file() -> float:
            loop, whole = _to_a_file(sandbox, plain, count)
            inside["plain"].append(loop)
            return whole

        whole = alternate(bench.runs, alone=lambda: job("alone"), plain=file, followed=lambda: job("followed"))
        loops = {name: values[1:] for name, values in inside.items()}
        bench.ratio(f"{count} lines, submit to value; vs a process", whole["alone"], whole["plain"], 1.2, "ms")
        bench.ratio("… the loop alone", loops["alone"], loops["plain"], 1.2, "ms")
        bench.ratio("blocking call, log followed into a file", whole["followed"], whole["plain"], 1.2, "ms")
        bench.ratio("… the loop alone; no target", loops["followed"], loops["plain"], None, "ms")
        _show_again(bench, sandbox, str(session.ask("kept", count)))
    bench.end()


def _show_again(bench: Bench, sandbox: Sandbox, job_id: str) -> None:
    """Measure what prints the log of a job that has ended, all of it, into a file."""
    of_the_job = [path for path in sandbox.store.rglob("*") if job_id in str(path) and path.is_file()]
    log = max(of_the_job, key=lambda path: path.stat().st_size)
    words = ("-m", "kinetic", "jobs", "logs", job_id)
    found = alternate(
        bench.runs,
        copy=lambda: sandbox.milliseconds_of_python(str(sandbox.script("copy.py", COPY)), str(log)),
        all=lambda: sandbox.milliseconds_of_python(*words),
        dated=lambda: sandbox.milliseconds_of_python(*words, "--timestamps"),
        searched=lambda: sandbox.milliseconds_of_python(*words, "--search", "nowhere"),
    )
    for name, kind in {"kinetic jobs logs": "all", "… --timestamps": "dated", "… --search": "searched"}.items():
        bench.ratio(f"{name} of it; vs a copy with its digest", found[kind], found["copy"], None, "ms")


def _to_a_file(sandbox: Sandbox, script: Path, count: int) -> tuple[float, float]:
    """Run the plain process; return the milliseconds of its loop, and of the whole."""
    with (sandbox.folder / "plain.out").open("wb") as out:
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(script), str(count)],
            env=sandbox.environ,
            cwd=sandbox.project,
            stdout=out,
            stderr=subprocess.PIPE,
            check=True,
        )
        return float(done.stderr), (time.perf_counter() - begun) * 1e3


if __name__ == "__main__":
    main()
