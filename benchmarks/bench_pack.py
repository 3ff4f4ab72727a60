"""What a large project costs: 10,000 files, 120 MB of source text; sent first, unchanged, and after a few edits."""

from __future__ import annotations

import os
import random
import shutil
import time
import zipfile
import zlib
from pathlib import Path

from _measure import NOOP, Bench, Sandbox, alternate, seconds_of_a_look

SUBMIT = (
    NOOP
    + """
handles = []

def submit():
    begun = time.perf_counter()
    handles.append(noop.submit())
    return time.perf_counter() - begun

def wait():
    handles.pop().wait()

serve(submit=submit, wait=wait)
"""
)
EDITED = 20
_WORDS = (
    "self return value result index config layer model batch train loss state optimizer shape dtype tensor name path"
    " for in if not None True False raise def class import from with as lambda yield assert try except finally len"
    " range get set update append items keys values join split format open read write close super isinstance property"
).split()


def main() -> None:
    bench = Bench("packing", runs=2, quick_runs=1)
    files, size = (1_000, 12_000_000) if bench.quick else (10_000, 120_000_000)
    with Sandbox() as sandbox:
        made = _make_tree(sandbox.project, files, size)
        compressed = sum(len(zlib.compress(path.read_bytes(), 6)) for path in made)
        whole = sum(path.stat().st_size for path in made)
        told = f"{files} files, {whole / 1e6:.0f} MB ({compressed / 1e6:.0f} MB with zlib 6)"
        _first(bench, sandbox, told)
        _unchanged(bench, sandbox)
        _edited(bench, sandbox, made, compressed)
    bench.end()


def _first(bench: Bench, sandbox: Sandbox, told: str) -> None:
    def unknown_project() -> float:
        shutil.rmtree(sandbox.home / "cache", ignore_errors=True)
        shutil.rmtree(sandbox.store / "data" / "blobs", ignore_errors=True)
        os.sync()  # what earlier runs left to the disk is not this one's to wait for
        return _submit(sandbox)

    def unknown_machine() -> float:
        sandbox.forget()
        os.sync()
        return _submit(sandbox)

    measured = alternate(
        bench.runs,
        machine=unknown_machine,
        stored=lambda: _zip(sandbox, forced=False),
        project=unknown_project,
        forced=lambda: _zip(sandbox, forced=True),
    )
    bench.ratio("submitting the first time; vs a zip, stored", measured["project"], measured["stored"], 1.5, "s")
    bench.ratio("… and the first of all on this machine", measured["machine"], measured["stored"], 1.5, "s")
    bench.ratio("… vs a zip that is forced to disk, as packs are", measured["project"], measured["forced"], None, "s")
    print(f"  ({told})")


def _unchanged(bench: Bench, sandbox: Sandbox) -> None:
    fresh, again, written, walked = [], [], [], []
    for _ in range(bench.runs):
        with sandbox.session("submit.py", SUBMIT) as session:
            for times in (fresh, again):
                sandbox.quiet()
                before = sandbox.stored()
                times.append(session.ask("submit") * 1e3)
                session.ask("wait")
                written.append(sandbox.written_since(before) / 1e3)
                sandbox.quiet()
                walked.append(seconds_of_a_look(sandbox.project) * 1e3)
    bench.limit("unchanged, from a fresh process; beside one look at each file", fresh, 150, "ms", walked)
    bench.limit("unchanged, from the same process", again, 150, "ms", walked)
    bench.limit("… newly written to the store, Order and Outcome included", written, 10, "KB")


def _edited(bench: Bench, sandbox: Sandbox, made: list[Path], compressed: int) -> None:
    sent = []
    times = []
    for number in range(bench.runs):
        for path in made[number :: len(made) // EDITED][:EDITED]:
            lines = path.read_text().splitlines(keepends=True)
            lines[len(lines) // 2] = f"    edited = {number}\n"
            path.write_text("".join(lines))
        time.sleep(0.05)  # a file that changed a moment ago is read twice
        before = sandbox.stored()
        times.append(_submit(sandbox) * 1e3)
        sent.append(sandbox.written_since(before) / 1e6)
    bench.ratio(f"{EDITED} files edited: sent, vs the tree's compressed size", sent, [compressed / 1e6], 0.015, "MB")
    bench.limit("… time to submit; target as for an unchanged tree", times, 150, "ms")


def _submit(sandbox: Sandbox) -> float:
    """Submit from a fresh process, let the job end, and return the seconds that submitting took."""
    sandbox.quiet()
    with sandbox.session("submit.py", SUBMIT) as session:
        took = float(session.ask("submit"))
        session.ask("wait")
    sandbox.quiet()
    return took


def _zip(sandbox: Sandbox, *, forced: bool) -> float:
    """Store the project into a zip, and return the seconds that took."""
    target = sandbox.folder / "tree.zip"
    os.sync()
    begun = time.perf_counter()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for folder, _, names in os.walk(sandbox.project):
            for name in names:
                path = f"{folder}/{name}"
                archive.write(path, os.path.relpath(path, sandbox.project))
    if forced:
        with target.open("rb") as file:
            os.fsync(file.fileno())
    took = time.perf_counter() - begun
    target.unlink()
    return took


def _make_tree(root: Path, files: int, size: int) -> list[Path]:
    """Write text that compresses as source does (to about a quarter), the same in every run."""
    dice = random.Random(20261120)
    names = _WORDS + ["_".join(dice.choices(_WORDS, k=2)) + str(dice.randrange(50)) for _ in range(4000)]
    weights = [1 / (rank + 10) for rank in range(len(names))]  # as in every language: few words make most of the text
    lines = [_line(dice, names, weights) for _ in range(40_000)]
    mean = sum(map(len, lines)) / len(lines)
    lengths = [dice.lognormvariate(0, 0.8) for _ in range(files)]
    scale = size / mean / sum(lengths)
    made = []
    for number, length in enumerate(lengths):
        path = root / f"part_{number % 100:02}" / f"module_{number:05}.py"
        path.parent.mkdir(exist_ok=True)
        own = dice.choices(lines, k=max(3, round(length * scale * 0.8)))  # a file says some things more than once
        path.write_text(f"# module {number}\n" + "".join(dice.choices(own, k=max(3, round(length * scale)))))
        made.append(path)
    return made


def _line(dice: random.Random, names: list[str], weights: list[float]) -> str:
    words = dice.choices(names, weights, k=dice.randrange(1, 8))
    signs = dice.choices([".", "(", ", ", " = ", " + ", "[", ") "], k=len(words))
    body = "".join(map("".join, zip(words, signs, strict=True)))
    return " " * (4 * dice.randrange(4)) + body + "\n"


if __name__ == "__main__":
    main()
