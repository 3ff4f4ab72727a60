"""Measure this commit and another one alternately, and print the ratios: ``make bench-compare BASE=<commit>``.

Each commit is checked out into a folder of its own, with an environment of its own and its own benchmarks, so that
neither is measured with what belongs to the other. A round runs each benchmark of both, one after the other; a ratio is
that of the medians over all rounds, with the lowest and the highest ratio of a round beside it. A ratio whose spread
contains 1 says nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import run_all

ROOT = Path(__file__).resolve().parents[1]
Series = dict[tuple[str, str], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of two commits.")
    parser.add_argument("base", help="the commit to compare with, e.g. main~20")
    parser.add_argument("--rounds", type=int, default=3, help="how often each benchmark runs for each commit (3)")
    parser.add_argument("--only", default="", help="words in the names of the benchmarks to run, e.g. call,list")
    parser.add_argument("--loaded", action="store_true", help="compare also where other programs keep the cores busy")
    parser.add_argument("--uv", default="uv", help="the uv that makes the environments")
    options, words = parser.parse_known_args()
    run_all.refuse_load(allowed=options.loaded)
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(checked_out(commit, options.uv)) for commit in (options.base, "HEAD")]
        names = [file.name for file in run_all.files(options.only, run_all.OF_A_CLUSTER | run_all.OF_PEERS)]
        found: tuple[Series, Series] = ({}, {})
        for _ in range(options.rounds):
            for name in names:
                for series, folder in zip(found, sides, strict=True):
                    collect(series, folder, name, words)
    print_ratios(*found)


@contextlib.contextmanager
def checked_out(commit: str, uv: str) -> Iterator[Path]:
    """Yield a folder with a commit and its environment; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kinetic-compare-") as name:
        folder = Path(name) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(folder), commit], cwd=ROOT, check=True)
        try:
            subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, ".venv"], cwd=folder, check=True)
            install = [
                uv,
                "pip",
                "install",
                "--quiet",
                "--python",
                ".venv/bin/python",
                "--editable",
                ".",
                "--group",
                "test",
            ]
            subprocess.run(install, cwd=folder, check=True)
            yield folder
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=ROOT, check=False)


def collect(series: Series, folder: Path, name: str, words: list[str]) -> None:
    """Run one benchmark of one commit, and add each of its figures to those of the rounds before."""
    file = folder / "benchmarks" / name
    if not file.exists():
        return
    report: dict[str, Any] = {"figures": [], "seconds": {}, "failed": {}}
    run_all.measure(file, words, run_all.LIMIT_SECONDS, report, python=str(folder / ".venv" / "bin" / "python"))
    for figure in report["figures"]:
        series.setdefault((name, figure["name"]), []).append(figure["value"])


def print_ratios(base: Series, head: Series) -> None:
    print(f"{'':80}{'base':>10}{'now':>10}{'ratio':>8}  lowest to highest")
    for key in [*head, *(key for key in base if key not in head)]:
        name = f"{key[0].removeprefix('bench_').removesuffix('.py')}: {key[1]}"
        if key not in base or key not in head:
            print(f"{name:80}  only in {'the base' if key in base else 'this commit'}")
            continue
        before, after = statistics.median(base[key]), statistics.median(head[key])
        ratios = sorted(now / then for then, now in zip(base[key], head[key], strict=False) if then)
        if ratios:
            ratio = f"x {after / before:.2f}" if before else "-"
            print(f"{name:80}{before:10.4g}{after:10.4g}{ratio:>8}  {ratios[0]:.2f} to {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()
