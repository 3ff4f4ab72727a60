"""Run every benchmark, one after the other, and say how long each took: ``make bench``.

On two quiet cores all of it takes less than ten minutes. A benchmark that does not end is killed with everything that
it started, and counts as failed; the others still run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TARGET_SECONDS = 600
LIMIT_SECONDS = 900.0  # for one file: many times what any takes, also on a loaded machine
PATIENCE_SECONDS = 30.0  # for one that was interrupted, to remove what it made


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every benchmark. All options are handed to each of them.")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds after which a file is killed")
    options, words = parser.parse_known_args()
    warn_of_load()
    files = sorted(Path(__file__).parent.glob("bench_*.py"))
    taken: dict[str, float] = {}
    failed: dict[str, str] = {}
    for file in files:
        print(f"== {file.name}", flush=True)
        begun = time.perf_counter()
        if (why := run([sys.executable, str(file), *words], options.limit)) is not None:
            failed[file.name] = why
        taken[file.name] = time.perf_counter() - begun
        print(f"== {file.name}: {taken[file.name]:.0f} s{' FAILED: ' + why if why else ''}\n", flush=True)
    for name, seconds in taken.items():
        print(f"{name:24}{seconds:6.0f} s  {failed.get(name, '')}".rstrip())
    total = sum(taken.values())
    verdict = "ok" if total <= TARGET_SECONDS else "OVER"
    print(f"{'total':24}{total:6.0f} s  at most {TARGET_SECONDS} s on two quiet cores  {verdict}")
    raise SystemExit(1 if failed else 0)


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


def warn_of_load() -> None:
    """Say that the figures are worthless where other programs keep the cores busy."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        print(
            f"WARNING: this machine is loaded: load {load:.1f} on {cores} cores, before anything was started.\n"
            "WARNING: the figures below mean little; repeat this on a quiet machine.\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
