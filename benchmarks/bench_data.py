"""What data costs: hashing 2 GB in 20,000 files, the first time and unchanged; and shipping 10,000 unchanged files."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import time
from pathlib import Path

from _measure import Bench, Sandbox, alternate, seconds_of_a_look

SHIP = """
import json, os
from pathlib import Path
from kinetic._config.home import kinetic_home

class Counting:
    def __init__(self, store):
        self.store, self.url, self.requests = store, store.url, []

    def __getattr__(self, name):
        found = getattr(self.store, name)
        if not callable(found):
            return found
        def counted(*arguments, **options):
            self.requests.append(name)
            return found(*arguments, **options)
        return counted

def ship(root):
    begun = time.perf_counter()
    from kinetic._data.data import Data
    from kinetic._data.ship import ship_all
    from kinetic._stores import open_store
    home = kinetic_home(os.environ)
    store = Counting(open_store(f"file://{home}/store"))
    refs = ship_all([Data(root)], {}, store, cache=home / "cache")
    return [time.perf_counter() - begun, store.requests, refs[0].manifest]

serve(ship=ship)
"""


def main() -> None:
    bench = Bench("data", runs=3, quick_runs=2)
    files, size = (2_000, 200_000_000) if bench.quick else (20_000, 2_000_000_000)
    with Sandbox() as sandbox:
        os.environ["KINETIC_HOME"] = str(sandbox.home)
        folder = _make_tree(sandbox.folder / "set", files, size)
        _hash(bench, sandbox, folder)
        shutil.rmtree(folder)
        _ship(bench, sandbox, _make_tree(sandbox.folder / "small", 1_000 if bench.quick else 10_000, 40_000_000))
    bench.end()


def _hash(bench: Bench, sandbox: Sandbox, folder: Path) -> None:
    from kinetic._data import Data

    def first() -> float:
        shutil.rmtree(sandbox.home, ignore_errors=True)
        return again()

    def again() -> float:
        begun = time.perf_counter()
        hashes.add(Data(folder).content_hash())
        return time.perf_counter() - begun

    hashes: set[str] = set()
    time.sleep(0.1)  # files that were written a moment ago are not trusted
    measured = alternate(bench.runs, first=first, plain=lambda: _plain_hash(folder), again=again)
    if len(hashes) != 1:
        raise RuntimeError(f"the same files have {len(hashes)} hashes")
    first, plain, unchanged = measured["first"], measured["plain"], measured["again"]
    bench.ratio("hashing, warm page cache; vs one thread of hashlib", first, plain, 1 / 1.3, "s")
    bench.ratio("… again, unchanged", unchanged, plain, 1 / 15, "s")
    looks = [seconds_of_a_look(folder) for _ in range(bench.runs)]
    bench.ratio("… beside one look at each file, the least that can be done", unchanged, looks, None, "s")


def _ship(bench: Bench, sandbox: Sandbox, folder: Path) -> None:
    times, requests, told = [], [], set()
    time.sleep(0.1)
    for number in range(bench.runs + 1):
        with sandbox.session("ship.py", SHIP) as session:  # a fresh process each time
            took, asked, manifest = session.ask("ship", str(folder))
        if number:
            times.append(took * 1e3)
            requests.append(len(asked))
            told.add(manifest)
    if len(told) != 1:
        raise RuntimeError(f"the same files have {len(told)} manifests")
    count = sum(len(names) for _, _, names in os.walk(folder))
    bench.limit(f"shipping {count:,} unchanged files, imports included", times, 300, "ms")
    bench.limit("… requests", requests, 1, "")


def _plain_hash(folder: Path) -> float:
    """Do what the hash is documented to be, on one thread, in the plainest way that is not slow on purpose."""
    begun = time.perf_counter()
    whole = hashlib.sha256(b"dir:")
    for above, below, names in os.walk(folder):
        below.sort()
        for name in sorted(names):
            path = f"{above}/{name}"
            digest = hashlib.sha256(os.fsencode(os.path.relpath(path, folder)) + b"\0")
            with open(path, "rb", buffering=0) as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
            whole.update(digest.digest())
    return time.perf_counter() - begun


def _make_tree(root: Path, files: int, size: int) -> Path:
    """Write bytes that do not compress, in files of very different sizes; the same in every run."""
    dice = random.Random(20261120)
    pool = dice.randbytes(8 << 20)
    sizes = [dice.lognormvariate(0, 0.8) for _ in range(files)]
    scale = size / sum(sizes)
    for number, part in enumerate(sizes):
        path = root / f"part_{number % 100:02}" / f"image_{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        length = min(len(pool) // 2, round(part * scale))
        start = dice.randrange(len(pool) - length)
        path.write_bytes(pool[start : start + length])
    return root


if __name__ == "__main__":
    main()
