"""What a job uses, measured from outside while it runs: CPU, memory, disk, and its GPUs or TPU chips.

In a container of its own the kernel counts for all of it (control group, version 2 or 1). Elsewhere the worker and its
descendants are added up: CPU time with that of children that have ended; the resident memory of a single process, and
of several the proportional shares, since forked ones have most of their pages in common.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._runner import processes
from kinetic._wire import NamedTuple, measurements, progress
from kinetic._wire.measurements import Measurements, Row

if TYPE_CHECKING:
    from kinetic._runner.supervisor.device_metrics import DeviceReader
    from kinetic._wire.progress import Progress
    from kinetic._wire.task import Task

# Until a job has run for so many seconds (first), it is measured every so many seconds (second): a short one has a
# peak, too, and later 0.5 ms every 5 s, written file included, is 0.01 % of a core.
_PACES = ((10.0, 1.0), (60.0, 2.0), (float("inf"), 5.0))
_TRIES, _STOPPED_SECONDS = 3, 0.25  # a reading that takes longer does not belong to its time: this process was stopped
_IDLE_SHARE = 0.01  # of a core: what an interpreter with waiting threads uses is less
_MOST_OF_SHARES = 100  # after a walk through all pages, so many times as long without one
_CGROUPS = Path("/sys/fs/cgroup")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USER, _CHILDREN_SYSTEM, _RESIDENT = 11, 14, 21  # of /proc/PID/stat behind the name


class Reading(NamedTuple):
    """What is read at one moment; None where the kernel does not tell."""

    cpu_seconds: float
    memory_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None


class ProcessTree:
    """Adds up processes; ``reaped`` returns the CPU seconds of those that ended as children of this one.

    For a proportional share the kernel walks all pages of a process, 20 ms for each GiB, and keeps it from mapping
    memory meanwhile. So shares take 1 % of the time at most; in between, their part of the resident memory stays.
    """

    source = measurements.PROCESSES

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        reaped: Callable[[], float],
        *,
        share: Callable[[int], int] = processes.proportional_share,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pids, self._reaped, self._share, self._clock = pids, reaped, share, clock
        self._part, self._part_due = 1.0, float("-inf")

    def limits(self) -> tuple[float, int]:
        """Return cores and bytes of memory that there are."""
        return float(len(os.sched_getaffinity(0))), processes.memory_bytes()

    def read(self) -> Reading:
        pids = self._pids()
        cpu, resident, disk = self._reaped(), 0, [0, 0]
        is_told = False
        for pid in pids:
            words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            if len(words) > _RESIDENT:
                cpu += sum(map(int, words[_USER : _CHILDREN_SYSTEM + 1])) / _TICKS
                resident += int(words[_RESIDENT]) * _PAGE_BYTES
            for line in _read(f"/proc/{pid}/io").splitlines():
                name, _, count = line.partition(b": ")
                if name in {b"read_bytes", b"write_bytes"}:
                    disk[name == b"write_bytes"] += int(count)
                    is_told = True
        memory = resident if len(pids) < 2 else round(resident * self._own_part(pids, resident))
        return Reading(cpu, memory or None, *(disk if is_told else (None, None)))

    def _own_part(self, pids: Sequence[int], resident: int) -> float:
        """Return which part of their resident memory several processes have, once what they share counts once."""
        began = self._clock()
        if began >= self._part_due and resident:
            self._part = min(sum(map(self._share, pids)) / resident, 1.0)
            now = self._clock()
            self._part_due = now + _MOST_OF_SHARES * (now - began)
        return self._part


class ControlGroup:
    """Reads what the kernel counts for this container."""

    source = measurements.CGROUP

    def __init__(self, root: Path = _CGROUPS) -> None:
        self._root, self._is_second = root, (root / "cpu.stat").exists()

    def is_ours(self) -> bool:
        """Return whether it can be read, and counts this container alone: processes of others have the number 0."""
        pids = self._text("cgroup.procs" if self._is_second else "memory/cgroup.procs").split()
        alone = str(os.getpid()) in pids and "0" not in pids
        return alone and self._cpu() is not None and self._memory() is not None

    def limits(self) -> tuple[float, int]:
        cores, machine = float(len(os.sched_getaffinity(0))), processes.memory_bytes()
        if self._is_second:
            quota, period = [*self._text("cpu.max").split(), "max", "max"][:2]
            most = self._text("memory.max").strip()
        else:
            quota, period = self._text("cpu/cpu.cfs_quota_us").strip(), self._text("cpu/cpu.cfs_period_us").strip()
            most = self._text("memory/memory.limit_in_bytes").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            cores = min(cores, int(quota) / int(period))
        return cores, min(machine, int(most)) if most.isdigit() else machine

    def read(self) -> Reading:
        # Not the kernel's own peak: the page cache is in it, which is taken back before anything is killed.
        return Reading(self._cpu() or 0.0, self._memory(), *self._disk())

    def _cpu(self) -> float | None:
        if self._is_second:
            found = self._numbers("cpu.stat").get("usage_usec")
            return found / 1e6 if found is not None else None
        text = self._text("cpuacct/cpuacct.usage").strip()
        return int(text) / 1e9 if text.isdigit() else None

    def _memory(self) -> int | None:
        """Return the working set, as Kubernetes counts it: without what is only cached and was not used lately."""
        name, stat, inactive = (
            ("memory.current", "memory.stat", "inactive_file")
            if self._is_second
            else ("memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file")
        )
        text = self._text(name).strip()
        return max(int(text) - self._numbers(stat).get(inactive, 0), 0) if text.isdigit() else None

    def _disk(self) -> tuple[int | None, int | None]:
        if self._is_second:
            words = self._text("io.stat").split()
            pairs = [word.partition("=") for word in words]
        else:
            text = self._text("blkio/blkio.throttle.io_service_bytes_recursive")
            lines = [words for words in map(str.split, text.splitlines()) if len(words) > 2]
            pairs = [({"Read": "rbytes", "Write": "wbytes"}.get(kind, ""), "", count) for _, kind, count in lines]
        found = {name: sum(int(count) for each, _, count in pairs if each == name) for name in ("rbytes", "wbytes")}
        return (found["rbytes"], found["wbytes"]) if pairs else (None, None)

    def _text(self, name: str) -> str:
        return _read(f"{self._root}/{name}").decode(errors="replace")

    def _numbers(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in self._text(name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


class Meter:
    """Measures one host of a job; its supervisor alone calls it, in its one thread.

    Args:
        task: The job.
        began: Monotonic time at which its worker was started.
        pids: Returns the processes of this host.
        reaped: Returns the CPU seconds of those that this process has reaped.
        group: The container's control group, if there is one of its own.
        devices: What reads its accelerators, if it has any.
        clock: Monotonic time.
    """

    def __init__(
        self,
        task: Task,
        began: float,
        pids: Callable[[], Sequence[int]],
        reaped: Callable[[], float],
        *,
        group: ControlGroup | None = None,
        devices: DeviceReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        tree = ProcessTree(pids, reaped)
        self._task, self._began, self._devices, self._clock = task, began, devices, clock
        self._kernel: ProcessTree | ControlGroup = tree if group is None else group
        # The container counts from its own start, and not from the job's.
        self._before = 0.0 if group is None else max(group.read().cpu_seconds - tree.read().cpu_seconds, 0.0)
        self._reaped = reaped
        self._rows: list[Row] = []
        self._log: list[Row] = []
        self._peak_cores = self._computed = 0.0  # the second: when it last used CPU, in seconds
        self._last = (0.0, 0.0)  # seconds and CPU seconds
        self._peak_bytes = self._disk_bytes = 0
        cores, memory = self._kernel.limits()
        self._cores, self._memory_limit = cores, min(memory, task.memory_bytes or memory)
        self._unix = time.time() - (clock() - began)
        self.due = clock()

    def measure(self) -> Measurements:
        """Measure now, and return all so far; it is due again after a while."""
        for _ in range(_TRIES):
            seconds = self._clock() - self._began
            found = self._kernel.read()
            if self._clock() - self._began < seconds + _STOPPED_SECONDS:
                break
        cpu = max(found.cpu_seconds - self._before, self._last[1])
        if seconds > self._last[0]:
            self._peak_cores = max(self._peak_cores, (cpu - self._last[1]) / (seconds - self._last[0]))
        self._peak_bytes = max(self._peak_bytes, found.memory_bytes or 0)
        if cpu - self._last[1] > _IDLE_SHARE * (seconds - self._last[0]):
            self._computed = seconds
        self._last = seconds, cpu
        read_devices = [value for reading in (self._devices.latest if self._devices else ()) for value in reading]
        kernel = found.memory_bytes, found.read_bytes, found.written_bytes
        row = (seconds, cpu, *kernel, self._disk_used(), *read_devices)
        rounded = tuple(round(value, 2) if isinstance(value, float) else value for value in row)
        self._rows = measurements.thinned([*self._rows, rounded])
        self._look_at_log(seconds)
        pace = next(each for until, each in _PACES if seconds < until)
        self.due = self._clock() + pace
        return self._page(seconds)

    def finish(self, peak_bytes: int = 0) -> Measurements | None:
        """Return what is known once no process is left, or None where nothing was measured.

        ``peak_bytes``: the most memory that one process had, as the kernel noted it.
        """
        if self._devices is not None:
            self._devices.close()
        if not self._rows and not self._task.progress.exists():
            return None
        self._peak_bytes = max(self._peak_bytes, peak_bytes)
        if self._kernel.source == measurements.PROCESSES:
            self._last = self._last[0], max(self._last[1], self._reaped())
        self._look_at_log(seconds := self._clock() - self._began)
        return self._page(seconds)

    def _look_at_log(self, seconds: float) -> None:
        """Note how long the log is now; what was there before stays with the time of the first look that saw it."""
        with contextlib.suppress(OSError):
            size, now = os.stat(self._task.log).st_size, round(seconds, 1)
            if size and self._log and self._log[-1][2] == size:
                self._log[-1] = self._log[-1][0], now, size
            else:
                self._log = measurements.thinned([*self._log, (now, now, size)])

    def _page(self, seconds: float) -> Measurements:
        return Measurements(
            job_id=self._task.job_id,
            attempt=self._task.attempt,
            host=self._task.host,
            began=round(self._unix, 3),
            source=self._kernel.source,
            cores=self._cores,
            memory_limit_bytes=self._memory_limit,
            disk_bytes=self._disk_bytes,
            devices=self._devices.devices if self._devices is not None else (),
            seconds=round(seconds, 2),
            cpu_seconds=round(self._last[1], 2),
            peak_cores=round(self._peak_cores, 2),
            peak_memory_bytes=self._peak_bytes,
            rows=tuple(self._rows),
            log=tuple(self._log),
            progress=(reported := progress.read(self._task.progress)),
            active=round(self._active(reported), 3),
        )

    def _active(self, reported: Progress | None) -> float:
        """Return the Unix time at which it last printed, computed, used a device or reported something."""
        printed = 0.0
        with contextlib.suppress(OSError):
            printed = os.stat(self._task.log).st_mtime
        latest = [self._unix + self._computed, printed, reported.at if reported is not None else 0.0]
        if any(busy for busy, _ in (self._devices.latest if self._devices else ())):
            latest.append(self._unix + self._last[0])
        return min(max(latest), self._unix + (self._clock() - self._began))  # not later than now

    def _disk_used(self) -> int | None:
        """Return how many bytes are used on the file system of the job's folder."""
        try:
            found = os.statvfs(self._task.base)
        except OSError:
            return None
        self._disk_bytes = found.f_blocks * found.f_frsize
        return (found.f_blocks - found.f_bfree) * found.f_frsize


def meter_of(task: Task, began: float, pids: Callable[[], Sequence[int]], reaped: Callable[[], float]) -> Meter:
    """Return what measures a host of a job here: by its control group if this is the first process of a container."""
    group = ControlGroup() if task.is_in_a_pod and os.getpid() == 1 else None
    devices = None
    visible = task.environment.get("CUDA_VISIBLE_DEVICES")
    if task.kind in {measurements.GPU, measurements.TPU} or (not task.is_in_a_pod and visible):
        from kinetic._runner.supervisor import device_metrics  # with ctypes; only where there are devices

        devices = device_metrics.reader_of(task.kind, visible)
    return Meter(task, began, pids, reaped, group=group if group and group.is_ours() else None, devices=devices)


def _read(path: str) -> bytes:
    """Read a file of the kernel's whole; b"" where there is none."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16)
    except OSError:  # also of a process that has just ended
        return b""
