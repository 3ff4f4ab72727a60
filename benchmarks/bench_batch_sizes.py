"""What a batch costs by its number of inputs: submitting, driving, looking, collecting; and the memory of all of it.

The work is fake: jobs end in this process, on a clock that takes no time. What is left is what kinetic does itself.
Each size has a process of its own, whose time on the processor is printed, and whose memory at its peak. The store is a
folder in memory where there is one, so that the memory is the client's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES, QUICK, LARGEST = (1, 10, 100, 1000, 10_000), (1, 10, 100, 1000), 100_000  # the largest takes four minutes
_MOST_MB, _MOST_LOOK_SECONDS = 300, 1.0
_SHM = Path("/dev/shm")
_HEADS = {
    "submit": "submit",
    "drive": "drive and wait",
    "each": "of it for one input",
    "look": "`status_counts()`",
    "attach": "`attach_batch()`",
    "statuses": "`statuses()`",
    "collect": "`results()`",
}


def main() -> None:
    """Print the table, or measure one size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"only sizes to {QUICK[-1]:,}")
    parser.add_argument("--whole", action="store_true", help=f"also {LARGEST:,}, which takes four minutes")
    parser.add_argument("--size", type=int, help="one row")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a figure is over its target")
    parser.add_argument("--json", type=Path, help="a file to which each figure is appended as a line of JSON")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(_measure(options.measure)))
        return
    print(f"| inputs | {' | '.join(_HEADS.values())} | memory |\n|{'---:|' * (len(_HEADS) + 2)}")
    over = False
    sizes = QUICK if options.quick else (*SIZES, LARGEST) if options.whole else SIZES
    for size in (options.size,) if options.size else sizes:
        words = [sys.executable, __file__, "--measure", str(size)]
        found = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
        print(f"| {size:,} | {' | '.join(_text(found[name]) for name in _HEADS)} | {found['mb']:.0f} MB |", flush=True)
        over = over or found["mb"] > _MOST_MB or found["look"] > _MOST_LOOK_SECONDS
        if options.json is not None:
            _append(options.json, size, found)
    raise SystemExit(1 if options.strict and over else 0)


def _append(path: Path, size: int, found: dict[str, float]) -> None:
    """Add the figures of one size to a file, in the lines of the other benchmarks."""
    most = {"look": (_MOST_LOOK_SECONDS, "s"), "mb": (_MOST_MB, "MB")}
    with path.open("a", encoding="utf-8") as file:
        for name, value in found.items():
            limit, unit = most.get(name, (None, "s"))
            page = {"name": f"{_HEADS.get(name, 'memory').strip('`')} of {size}", "value": value, "baseline": None}
            target = None if limit is None else f"{limit:g} {unit}"
            over = limit is not None and value > limit
            file.write(json.dumps({**page, "unit": unit, "target": target, "over": over}) + "\n")


def _text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.{0 if seconds >= 0.1 else 2}f} ms"


def _measure(size: int) -> dict[str, float]:
    import kinetic
    from kinetic.testing import FakeBackend, fake_backend

    @kinetic.run(accelerator="cpu")
    def act(number: int) -> int:
        return number

    found: dict[str, float] = {}

    def timed(name: str, action: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = action()
        found[name] = time.process_time() - begun
        return result

    with (
        tempfile.TemporaryDirectory(dir=_SHM if _SHM.is_dir() else None) as folder,
        fake_backend(Path(folder), FakeBackend(pending_seconds=0.0)),
    ):
        os.environ["KINETIC_STORE"] = f"file://{folder}/store"
        act(0)  # the first job of a home makes its key
        batch = timed("submit", lambda: act.run_async_map(range(size)))
        timed("drive", batch.wait)
        found["drive"] += found["submit"]  # they overlap
        found["each"] = found["drive"] / size
        counts = timed("look", batch.status_counts)
        timed("statuses", batch.statuses)
        found["attach"] = _in_a_copy(lambda: kinetic.attach_batch(batch.group_id))
        values = timed("collect", batch.results)
        if counts != {"SUCCEEDED": size} or values != list(range(size)):
            raise SystemExit(f"the results are wrong: {counts}")
    return {**found, "mb": _peak_mb()}


def _in_a_copy(action: Callable[[], Any]) -> float:
    """Do something in a copy of this process, as another one would, and return its seconds on the processor."""
    answer, said = os.pipe()
    child = os.fork()
    if child == 0:
        begun = time.process_time()
        action()
        os.write(said, str(time.process_time() - begun).encode())
        os._exit(0)
    os.close(said)
    with open(answer) as file:
        seconds = float(file.read())
    os.waitpid(child, 0)
    return seconds


def _peak_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


if __name__ == "__main__":
    main()
