"""Run every benchmark, one after the other, and say how long each took: ``make bench``.

On two quiet cores all of it takes less than ten minutes. The figures are printed and written as JSON. A benchmark that
does not end is killed with everything that it started, and counts as failed; the others still run. ``--peers``
adds rows for other packages that run functions: ``make bench PEERS=1`` installs them first. ``--cluster`` adds
what runs on the test cluster, some fifteen minutes more: ``make bench CLUSTER=1``. Whatever ``--only`` names runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER.parent / "build" / "bench.json"
TARGET_SECONDS = 600
# The last of these needs `make node-build` as well. And what needs packages that are installed only on request.
OF_A_CLUSTER = {"bench_cluster.py", "bench_cluster_batch.py", "bench_warm.py"}
OF_PEERS = {"bench_peers.py"}
LIMIT_SECONDS = 900.0  # for one file: many times what any takes, also on a loaded machine
PATIENCE_SECONDS = 30.0  # for one that was interrupted, to remove what it made
LOOK_SECONDS = 3.0  # long enough to see a test suite beside us, short enough to wait for
MOST_BUSY = 0.2  # of all cores; a quiet machine of two cores shows 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every benchmark. Unknown options are passed to each of them.")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds after which a file is killed")
    parser.add_argument("--only", default="", help="words in the names of the files to run, e.g. call,list")
    parser.add_argument("--peers", action="store_true", help="add rows for submitit, joblib, Dask and Ray")
    parser.add_argument("--cluster", action="store_true", help="add what needs the test cluster: minutes")
    parser.add_argument("--loaded", action="store_true", help="measure also where other programs keep the cores busy")
    parser.add_argument("--json", type=Path, default=FIGURES, help=f"where to write the figures ({FIGURES.name})")
    options, words = parser.parse_known_args()
    busy = refuse_load(allowed=options.loaded)
    report: dict[str, Any] = {**machine(), "busy": round(busy, 3), "figures": [], "seconds": {}, "failed": {}}
    left_out = (set() if options.cluster else OF_A_CLUSTER) | (set() if options.peers else OF_PEERS)
    for file in files(options.only, left_out):
        measure(file, words, options.limit, report)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    for name, seconds in report["seconds"].items():
        print(f"{name:24}{seconds:6.0f} s  {report['failed'].get(name, '')}".rstrip())
    total = sum(report["seconds"].values())
    verdict = "ok" if total <= TARGET_SECONDS else "OVER"
    print(f"{'total':24}{total:6.0f} s  at most {TARGET_SECONDS} s on two quiet cores  {verdict}")
    print(f"{len(report['figures'])} figures are in {options.json}")
    raise SystemExit(1 if report["failed"] else 0)


def files(only: str, left_out: set[str], folder: Path = FOLDER) -> list[Path]:
    """Return the benchmarks with a word of ``only`` in their names, or without any word all that are not left out."""
    words = [word for word in only.split(",") if word]
    found = sorted(folder.glob("bench_*.py"))
    if not words:
        return [file for file in found if file.name not in left_out]
    return [file for file in found if any(word in file.name for word in words)]


def measure(file: Path, words: list[str], limit: float, report: dict[str, Any], python: str = sys.executable) -> None:
    """Run one benchmark to its end, and add its figures, its seconds, and why it failed if it did."""
    print(f"== {file.name}", flush=True)
    begun = time.perf_counter()
    with tempfile.NamedTemporaryFile("r", prefix="kinetic-bench-", suffix=".jsonl") as figures:
        if (why := run([python, str(file), "--json", figures.name, *words], limit)) is not None:
            report["failed"][file.name] = why
        report["figures"] += [{"file": file.name, **json.loads(line)} for line in figures]
    report["seconds"][file.name] = round(time.perf_counter() - begun, 1)
    print(f"== {file.name}: {report['seconds'][file.name]:.0f} s{' FAILED: ' + why if why else ''}\n", flush=True)


def run(command: list[str], limit: float) -> str | None:
    """Run a benchmark to its end; return why it failed, or None."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        end(process)
        return f"it did not end within {limit:g} s"
    except KeyboardInterrupt:
        end(process)
        raise
    return f"exit code {code}" if code else None


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a benchmark, so that it removes what it made, and kill it where that does not help."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)
            return


def refuse_load(*, allowed: bool) -> float:
    """Return how busy the cores are, from 0 to 1; exit with 2 if other programs would distort every figure."""
    busy = busy_share(LOOK_SECONDS)
    if busy > MOST_BUSY:
        what = f"other programs use {busy:.0%} of this machine's cores"
        if not allowed:
            raise SystemExit(
                f"kinetic: {what}; nothing was measured\n"
                f"  Why: above {MOST_BUSY:.0%}, figures of two runs cannot be compared.\n"
                "  Next: end those programs and repeat, or measure nevertheless: make bench ARGS=--loaded"
            )
        print(f"WARNING: {what}; do not compare the figures below with others.\n", flush=True)
    return busy


def busy_share(seconds: float) -> float:
    """Return which share of all cores was in use in the next seconds, or the load where the kernel tells no more."""
    before = processor_ticks()
    if before is None:
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    time.sleep(seconds)
    after = processor_ticks() or before
    return 1 - (after[1] - before[1]) / max(1, after[0] - before[0])


def processor_ticks() -> tuple[int, int] | None:
    """Return the clock ticks of all cores since the start of the machine, all and idle ones (Linux), or None."""
    with contextlib.suppress(OSError):
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]  # idle, and waiting for the disk
    return None


def machine() -> dict[str, Any]:
    """Return what a reader of the figures needs to know of where and when they were taken."""
    words = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(words, cwd=FOLDER, capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    main()
