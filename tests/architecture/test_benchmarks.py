"""What ``make bench`` passes to each benchmark is an option of each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[2] / "benchmarks").glob("bench_*.py"))


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_each_benchmark_takes_the_options_of_make_bench(file: Path) -> None:
    told = subprocess.run(
        [sys.executable, str(file), "--help"], capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )

    assert told.returncode == 0, told.stderr
    assert {"--json", "--quick"} <= set(told.stdout.replace("[", " ").replace("]", " ").split())
