"""What the processes of a job hold, and when that is too much."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kinetic._runner import processes

MIB = 1 << 20
linux = pytest.mark.skipif(not processes.can_measure_memory(), reason="this system has no /proc")


class Job:
    """Processes with given figures, and a clock that is turned by hand."""

    def __init__(self, limit: int, resident: dict[int, int], share: dict[int, int] | None = None) -> None:
        self.now, self.looks, self.resident = 100.0, 0, resident
        self.shares_read = 0
        self.share = resident if share is None else share
        self.guard = processes.MemoryGuard(
            limit, self._pids, resident=self.resident.__getitem__, share=self._share, clock=lambda: self.now
        )

    def _pids(self) -> list[int]:
        self.looks += 1
        return list(self.resident)

    def _share(self, pid: int) -> int:
        self.shares_read += 1
        return self.share[pid]

    def after(self, seconds: float) -> int:
        self.now += seconds
        return self.guard.exceeded()


def test_what_all_processes_hold_together_is_held_against_the_limit_and_a_tenth_of_it() -> None:
    job = Job(100 * MIB, {1: 60 * MIB, 2: 50 * MIB})

    at_the_edge = job.after(1)
    job.resident[2] += 1

    assert at_the_edge == 0
    assert job.after(1) == 110 * MIB + 1


def test_it_looks_once_a_second_however_often_it_is_asked() -> None:
    job = Job(100 * MIB, {1: 500 * MIB})

    early = [job.after(0.25) for _ in range(3)]

    assert (early, job.looks) == ([0, 0, 0], 0)
    assert (job.after(0.25), job.looks) == (500 * MIB, 1)
    assert job.guard.due == 102.0


def test_pages_that_forked_processes_share_count_once() -> None:
    shared = Job(100 * MIB, {1: 90 * MIB, 2: 90 * MIB}, {1: 50 * MIB, 2: 50 * MIB})
    own = Job(100 * MIB, {1: 90 * MIB, 2: 90 * MIB}, {1: 80 * MIB, 2: 70 * MIB})

    assert shared.after(1) == 0
    assert own.after(1) == 150 * MIB


def test_the_share_which_costs_more_is_read_only_where_the_sum_is_too_much() -> None:
    job = Job(100 * MIB, {1: 60 * MIB, 2: 40 * MIB})

    job.after(1)

    assert job.shares_read == 0


@linux
def test_a_process_and_its_descendants_are_found_and_what_they_hold_is_read() -> None:
    code = f"""
import os, sys
data = bytearray({64 * MIB})
for at in range(0, len(data), 4096):
    data[at] = 1
if os.fork() == 0:
    print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"

        tree = processes.tree_of(process.pid)
        resident, share = sum(map(processes.resident, tree)), sum(map(processes.proportional_share, tree))
        process.stdin.close()

    assert len(tree) == 2
    assert resident > 128 * MIB  # both hold the same pages
    assert 64 * MIB < share < 100 * MIB


@linux
def test_a_process_that_is_gone_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()

    assert (
        processes.resident(process.pid),
        processes.proportional_share(process.pid),
        processes.tree_of(process.pid),
    ) == (
        0,
        0,
        [process.pid],
    )
