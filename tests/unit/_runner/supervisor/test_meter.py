"""What a job uses, by its control group or by its processes, at which pace, and never at the cost of the job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic._runner import processes
from kinetic._runner.supervisor.meter import ControlGroup, Meter, ProcessTree
from kinetic._wire.measurements import CPU, DISK, MEMORY, READ, SECONDS, WRITTEN
from kinetic._wire.task import Task

MIB = 1 << 20
SECOND = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "cgroup.procs": f"{os.getpid()}\n77\n",
    "cpu.max": "150000 100000\n",
    "memory.current": f"{300 * MIB}\n",
    "memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
    "memory.max": f"{512 * MIB}\n",
    "io.stat": "8:0 rbytes=10 wbytes=20 rios=1 wios=1\n8:16 rbytes=5 wbytes=6\n",
}
FIRST = {
    "cpuacct/cpuacct.usage": "2500000000\n",
    "memory/cgroup.procs": f"{os.getpid()}\n77\n",
    "cpu/cpu.cfs_quota_us": "150000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "memory/memory.usage_in_bytes": f"{300 * MIB}\n",
    "memory/memory.stat": f"cache 7\ntotal_inactive_file {100 * MIB}\n",
    "memory/memory.limit_in_bytes": f"{512 * MIB}\n",
    "blkio/blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\n8:16 Read 5\n8:16 Write 6\nTotal 41",
}
BURN = """
import os, sys
data = b"x" * (200 << 20)
child = os.fork()
if child == 0:
    print("child", flush=True)
    sys.stdin.read()
    os._exit(0)
while os.times().user + os.times().system < 0.6:
    pass
print("parent", flush=True)
sys.stdin.read()
"""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def task(**more: Any) -> Task:
    return Task("cpu-x", "0" * 64, "file:///x", "key", 0o022, None, {}, base="/tmp", **more)


def folder_of(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("files", [SECOND, FIRST], ids=["second", "first"])
def test_a_control_group_of_either_version_tells_cpu_working_set_disk_and_limits(
    files: dict[str, str], tmp_path: Path
) -> None:
    group = ControlGroup(folder_of(tmp_path, files))

    assert group.is_ours()
    assert group.read() == (2.5, 200 * MIB, 15, 26)
    assert group.limits() == (min(1.5, len(os.sched_getaffinity(0))), 512 * MIB)


def test_without_limits_those_of_the_machine_count(tmp_path: Path) -> None:
    unlimited = {
        "cpu.stat": "usage_usec 1\n",
        "cpu.max": "max 100000\n",
        "memory.max": "max\n",
        "memory.current": "5\n",
    }
    group = ControlGroup(folder_of(tmp_path, unlimited))

    assert group.limits() == (float(len(os.sched_getaffinity(0))), processes.memory_bytes())
    assert group.read()[2:] == (None, None)


@pytest.mark.parametrize("pids", ["", "77\n", f"{os.getpid()}\n0\n0\n"], ids=["none", "not this one", "of others"])
def test_a_group_that_counts_processes_outside_of_this_container_is_not_used(pids: str, tmp_path: Path) -> None:
    assert not ControlGroup(folder_of(tmp_path, {**SECOND, "cgroup.procs": pids})).is_ours()


@pytest.fixture
def burning() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", BURN], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    assert {process.stdout.readline().strip(), process.stdout.readline().strip()} == {"child", "parent"}
    yield process
    process.communicate()


def test_processes_that_share_their_memory_are_not_counted_twice_and_their_cpu_time_is_true(
    burning: subprocess.Popen[str],
) -> None:
    pids = processes.tree_of(burning.pid)

    found = ProcessTree(lambda: pids, lambda: 10.0).read()

    assert len(pids) == 2
    assert 10.5 < found.cpu_seconds < 11.5
    assert found.memory_bytes is not None
    assert 200 * MIB < found.memory_bytes < 240 * MIB  # each of the two has 200 MiB resident


def test_a_walk_through_many_pages_is_not_repeated_before_a_hundred_times_as_long(
    burning: subprocess.Popen[str],
) -> None:
    clock, walks = Clock(), []
    pids = processes.tree_of(burning.pid)

    def slow_share(pid: int) -> int:
        walks.append(pid)
        clock.now += 0.1
        return processes.resident(pid) // 2

    tree = ProcessTree(lambda: pids, lambda: 0.0, share=slow_share, clock=clock)
    seen = []
    for _ in range(8):
        seen.append(tree.read().memory_bytes)
        clock.now += 5.0

    assert len(walks) == 2 * len(pids)  # at first, and after 20 s: each of the two took 0.2 s
    assert all(abs((memory or 0) - 200 * MIB) < 40 * MIB for memory in seen)


def test_processes_that_have_ended_count_nothing_and_raise_nothing() -> None:
    assert ProcessTree(lambda: [2**22 - 1], lambda: 1.5).read() == (1.5, None, None, None)


def test_it_measures_each_second_at_first_and_every_five_seconds_later(burning: subprocess.Popen[str]) -> None:
    clock = Clock()
    meter = Meter(task(), 100.0, lambda: [burning.pid], lambda: 0.0, clock=clock)
    seen = []
    while clock.now < 100.0 + 90:
        clock.now = max(meter.due, clock.now + 1.0) if not seen else meter.due
        seen.append(clock.now - 100.0)
        meter.measure()

    assert seen[:10] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert seen[10:13] == [12.0, 14.0, 16.0]
    assert seen[-2] - seen[-3] == 5.0


def test_the_rows_have_what_was_read_and_the_end_has_the_cpu_time_of_what_was_reaped(
    burning: subprocess.Popen[str],
) -> None:
    clock, reaped = Clock(), [0.0]
    meter = Meter(task(memory_bytes=1 << 30), 100.0, lambda: [burning.pid], lambda: reaped[0], clock=clock)
    clock.now = 101.0
    first = meter.measure()
    reaped[0], clock.now = 7.5, 103.0

    last = meter.finish(900 * MIB)

    (row,) = first.rows
    assert row[SECONDS] == 1.0
    assert 0.5 < (row[CPU] or 0) < 1.5
    assert 200 * MIB < (row[MEMORY] or 0) < 240 * MIB
    assert row[READ] is not None
    assert row[WRITTEN] is not None
    assert 0 < (row[DISK] or 0) < first.disk_bytes
    assert first.memory_limit_bytes == 1 << 30
    assert last is not None
    assert (last.seconds, last.cpu_seconds, last.peak_memory_bytes) == (3.0, 7.5, 900 * MIB)
    assert last.rows == first.rows


def test_the_length_of_the_log_is_noted_with_the_first_and_the_last_look_that_found_it(tmp_path: Path) -> None:
    clock = Clock()
    own = replace(task(), base=str(tmp_path))
    meter = Meter(own, 100.0, list, lambda: 0.0, clock=clock)
    lengths = (0, 5, 5, 5, 9)
    for second, length in enumerate(lengths, 1):
        own.log.write_bytes(b"x" * length)
        clock.now = 100.0 + second
        found = meter.measure()
    own.log.write_bytes(b"x" * 12)
    clock.now = 107.0

    assert found.log == ((1.0, 1.0, 0), (2.0, 4.0, 5), (5.0, 5.0, 9))
    assert (meter.finish() or found).log == (*found.log, (7.0, 7.0, 12))


def test_what_a_job_computes_while_its_supervisor_is_stopped_belongs_to_the_time_at_which_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, group = Clock(), ControlGroup(folder_of(tmp_path, SECOND))
    meter = Meter(task(), 100.0, list, lambda: 0.0, group=group, clock=clock)
    read, stopped = group.read, [0.0, 0.0, 0.0, 9.0]  # between looking at the clock and reading, of one that computes

    def read_late() -> Any:
        clock.now += stopped.pop() if stopped else 0.0
        return read()._replace(cpu_seconds=2.5 + clock.now - 100.0)

    monkeypatch.setattr(group, "read", read_late)
    for second in (1.0, 11.0):
        clock.now = max(clock.now, 100.0 + second)
        found = meter.measure()

    assert [(row[SECONDS], row[CPU]) for row in found.rows] == [(10.0, 10.0), (11.0, 11.0)]
    assert found.peak_cores == 1.0


def test_a_container_counts_from_the_beginning_of_the_job_and_not_from_its_own(tmp_path: Path) -> None:
    clock = Clock()
    root = folder_of(tmp_path, SECOND)
    meter = Meter(task(), 100.0, list, lambda: 0.0, group=ControlGroup(root), clock=clock)
    (root / "cpu.stat").write_text("usage_usec 3500000\n")
    clock.now = 102.0

    found = meter.measure()

    assert (found.source, found.cpu_seconds, found.peak_cores) == ("cgroup", 1.0, 0.5)
    assert found.rows[0][MEMORY] == 200 * MIB


def test_nothing_is_known_of_a_job_that_was_never_measured() -> None:
    assert Meter(task(), 100.0, list, lambda: 0.0, clock=Clock()).finish(5) is None
