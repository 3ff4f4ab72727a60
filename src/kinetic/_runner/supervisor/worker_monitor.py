"""Workers until their end: what is measured of them meanwhile, and what a deadline, a limit or a request does to them.

A slice succeeds or fails as one. Whatever processes a worker leaves behind are ended with it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kinetic._runner import processes
from kinetic._runner.supervisor import verdicts
from kinetic._runner.supervisor.verdicts import Ending, ReportReader
from kinetic._wire import dataclass, folders
from kinetic._wire.outcomes import SUCCEEDED
from kinetic._wire.task import LOG_STACKS_SIGNAL, Task
from kinetic.errors import RunnerError

if TYPE_CHECKING:
    from kinetic._runner.supervisor.meter import Meter
    from kinetic._wire.measurements import Measurements

_GRACE_SECONDS = 5.0  # for atexit handlers after the result is complete, and between SIGTERM and SIGKILL
_STACKS_SECONDS = 0.5  # for writing the stacks before the deadline's kill
_MOST_STACKS_SECONDS = 3.0  # the same for a worker that has not begun with it: it is stopped, or its machine is busy
_PEER_SECONDS = 2.0  # between the first failure on a slice and the end of its peers, which wait for it in vain
_TRACKER_SECONDS = 2.0  # for what removes shared memory, once all others have ended
_STUCK_SECONDS = 60.0  # after SIGKILL: one that the kernel ends takes some, with devices or much memory
_MEASURE_SECONDS = 1.0  # after which it is measured what a job uses; a shorter job costs nothing
_LOOK_SECONDS = 60.0  # nothing is polled: this only guards against a lost wake-up


class JobControl(Protocol):
    """What ends a job from outside, and learns what it uses."""

    wake: int  # a descriptor that becomes readable when ``is_unwanted`` should be called

    @property
    def waits_for_exit(self) -> bool: ...  # whether its process must be gone before the verdict: 20 ms where JAX is
    @property
    def elsewhere(self) -> Callable[[], bool] | None: ...  # whether the hosts in other pods are done; None: no others

    def is_unwanted(self) -> bool:
        """Return whether the job should end."""

    def keep_usage(self, task: Task, found: Measurements) -> None:
        """Keep what one of our hosts used so far, in the place of what was kept before, without waiting for a store."""


@dataclass
class WatchedWorker:
    """One worker; its supervisor alone changes this. Times are monotonic seconds."""

    task: Task
    pid: int  # its process, and its process group
    reader: ReportReader
    began: float
    closing: Sequence[int]  # descriptors to close at the end
    memory_kills: int  # of the kernel, when it began
    guard: processes.MemoryGuard | None = None  # if a memory limit was asked for
    grace: float = _GRACE_SECONDS  # from SIGTERM to SIGKILL
    spare_children: bool = False  # SIGTERM goes to the worker alone, which may need its children to save its work
    status: int | None = None
    has_left: bool = False  # its exit handlers have run, and only the kernel's work at its process is left
    peak_bytes: int = 0
    cpu_seconds: float = 0.0  # of those of its processes that this one has reaped
    meter: Meter | None = None  # once it has run for a second
    measure_due: float = float("inf")
    held_bytes: int = 0  # what its processes held when that was too much
    done_at: float | None = None
    dumped_at: float | None = None
    stacks: Callable[[], list[str]] | None = None  # what its threads did at the deadline, once it has written that
    stacks_seconds: float = _STACKS_SECONDS  # from the deadline on
    term_at: float | None = None
    failed_at: float | None = None
    peer_limit: float | None = None
    deadline_hit: bool = False
    stopped: bool = False
    for_a_peer: bool = False
    killed_at: float | None = None  # the first SIGKILL

    @property
    def due(self) -> float:
        """Return when its deadline is; infinite for none."""
        begun = self.reader.report.begun_again or self.began
        return float("inf") if self.task.deadline is None else begun + self.task.deadline

    @property
    def last_seconds(self) -> float:
        """Return how long it has at its deadline: to write its stacks and end by itself, or for a command only that."""
        return self.grace if self.task.is_command else self.stacks_seconds

    @property
    def is_ending(self) -> bool:
        """Return whether it was asked to end before its deadline, which does not shorten the time that it got then."""
        return self.term_at is not None and self.dumped_at is None

    @property
    def is_over(self) -> bool:
        """Return whether this host has sent its final report, or its process has ended."""
        return self.status is not None or self.reader.report.done is not None

    @property
    def has_failed(self) -> bool:
        """Return whether this host reported a failure, or ended without a report."""
        done = self.reader.report.done
        return done.get("status") != SUCCEEDED if done is not None else self.status is not None


def watch(task: Task, pid: int, *closing: int) -> WatchedWorker:
    """Begin to watch a worker that was just forked; ``closing``: our end of its report first."""
    watched = WatchedWorker(task, pid, ReportReader(closing[0]), time.monotonic(), closing, _recent_memory_kills())
    if sys.platform == "linux":  # elsewhere there is no /proc
        watched.measure_due = watched.began + _MEASURE_SECONDS
    if task.memory_bytes and processes.can_measure_memory():
        watched.guard = processes.MemoryGuard(task.memory_bytes, lambda: _processes_of(pid))
    return watched


def _processes_of(worker: int, *, is_there: bool = True) -> list[int]:
    """Return the processes of a worker: its descendants, and those of its group whose parents have ended."""
    roots = [worker] if is_there else []
    for child in processes.children_of(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            if child != worker and os.getpgid(child) == worker:
                roots.append(child)
    return [pid for root in roots for pid in processes.tree_of(root)]


class ChildSignal:
    """SIGCHLD as a descriptor that becomes readable."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()
        for end in (self.descriptor, self._write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)


def watch_workers(hosts: Sequence[WatchedWorker], child_signal: ChildSignal, control: JobControl) -> list[Ending]:
    """Wait for the end of every host's worker, the leader first; enforce deadline and stop; leave no process behind.

    A slice succeeds or fails as one: when a host fails, its peers would wait for it in vain, so they are ended soon
    after; and a host that is done waits at its exit until the others are, as JAX wants it to.
    """
    inputs = _Inputs(hosts, child_signal, control.wake)
    while any(watched.status is None and not watched.has_left and not _is_stuck(watched) for watched in hosts):
        asked = inputs.wait(min(map(_seconds_to_next_action, hosts)))
        if asked and not hosts[0].stopped and control.is_unwanted():
            for watched in hosts:
                watched.stopped = True
        _reap(hosts)
        _end_peers_of_failed_hosts(hosts, control.elsewhere)
        if not control.waits_for_exit and len(hosts) == 1:
            hosts[0].has_left = _has_left(hosts[0])
        for watched in hosts:
            if watched.status is None:
                _act_on_time(watched)
                if time.monotonic() >= watched.measure_due:
                    _measure(watched, control)
    inputs.read_rest()
    _end_the_rest(hosts)
    for watched in hosts:
        _log_stacks(watched)
        if watched.meter is not None or watched.task.progress.exists():  # also what a short job reported
            _measure(watched, control)
        for descriptor in watched.closing:
            os.close(descriptor)
    return [
        Ending(
            status=watched.status,
            phase=_phase_of(watched),
            word=watched.reader.report.done,
            deadline=watched.deadline_hit,
            stopped=watched.stopped,
            peak_bytes=watched.peak_bytes,
            memory_kill=not watched.reader.report.done and _memory_kills() > watched.memory_kills,
            failed_at=watched.failed_at,
            for_a_peer=watched.for_a_peer,
            held_bytes=watched.held_bytes,
        )
        for watched in hosts
    ]


_stuck: set[int] = set()  # processes that do not end: they hold up no other job
helpers: set[int] = set()  # children of this process that belong to no job


def _is_stuck(watched: WatchedWorker) -> bool:
    """Return whether a worker does not end although it was killed: it waits in the kernel for what never answers."""
    if watched.killed_at is None or time.monotonic() < watched.killed_at + _STUCK_SECONDS:
        return False
    if watched.pid not in _stuck:
        _stuck.add(watched.pid)
        folders.append(
            watched.task.log,
            f"kinetic: process {watched.pid} does not end: it waits in the kernel for a device or a file system that "
            "does not answer; it is left to itself\n",
        )
    return True


def _has_left(watched: WatchedWorker) -> bool:
    """Return whether a worker has told all and left nothing behind; not one that was measured, which its end completes.

    Children of a process that is ending have no parent until it is gone.
    """
    report = watched.reader
    is_measured = watched.meter is not None or watched.task.progress.exists()
    return (
        report.is_closed
        and report.report.done is not None
        and not is_measured
        and not processes.children_of(watched.pid)
    )


def _phase_of(watched: WatchedWorker) -> str:
    """Return the phase in which a worker ended, as it reported last."""
    report = watched.reader.report
    if report.done is not None and report.done.get("phase"):
        return str(report.done["phase"])
    return verdicts.read_phase(watched.task.word) or report.phase


class _Inputs:
    """Everything that a supervisor waits for: the end of a child, reports of its workers, a request from outside."""

    def __init__(self, hosts: Sequence[WatchedWorker], child_signal: ChildSignal, wake: int) -> None:
        self._signals, self._asked = {child_signal.descriptor, wake}, time.monotonic()
        self._wake = wake
        self._readers = {watched.reader.descriptor: watched.reader for watched in hosts}
        self._poll = select.poll()
        for descriptor in (*self._signals, *self._readers):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait, read, and return whether there may be a request to stop; after a long silence one is assumed."""
        ready = [descriptor for descriptor, _ in self._poll.poll(seconds * 1000)]
        for descriptor in ready:
            if descriptor in self._signals:
                with contextlib.suppress(OSError):
                    while os.read(descriptor, 4096):
                        pass
            elif not self._readers[descriptor].read():
                self._poll.unregister(descriptor)
                del self._readers[descriptor]
        if self._wake in ready or time.monotonic() - self._asked >= _LOOK_SECONDS:
            self._asked = time.monotonic()
            return True
        return False

    def read_rest(self) -> None:
        """Read what was reported last."""
        for descriptor, reader in self._readers.items():
            while reader.read() and select.select([descriptor], [], [], 0)[0]:
                pass


def _end_peers_of_failed_hosts(hosts: Sequence[WatchedWorker], elsewhere: Callable[[], bool] | None) -> None:
    """Note who failed and when, and end the peers of a failed host; start the grace period when all are done."""
    now = time.monotonic()
    for watched in hosts:
        if watched.failed_at is None and watched.has_failed:
            watched.failed_at = now
    first = min((watched.failed_at for watched in hosts if watched.failed_at is not None), default=None)
    if all(watched.is_over for watched in hosts) and (elsewhere is None or elsewhere()):
        for watched in hosts:
            watched.done_at = watched.done_at or now
    elif first is not None and len(hosts) > 1:
        for watched in hosts:
            watched.peer_limit = first + _PEER_SECONDS
            if watched.status is None and now >= watched.peer_limit:
                watched.for_a_peer = watched.failed_at is None
                _signal(watched, signal.SIGKILL)


def _seconds_to_next_action(watched: WatchedWorker) -> float:
    """Return after how many seconds something must be done without any event."""
    now = time.monotonic()
    times = [now + _LOOK_SECONDS, watched.measure_due]
    if watched.status is not None:
        return _LOOK_SECONDS
    if watched.killed_at is not None:
        return max(0.0, watched.killed_at + _STUCK_SECONDS - now)
    if watched.guard is not None and watched.done_at is None:
        times.append(watched.guard.due)
    if watched.peer_limit is not None:
        times.append(max(watched.peer_limit, now + 0.01))
    if watched.done_at is not None:
        times.append(watched.done_at + _GRACE_SECONDS)
    elif not watched.reader.report.done and not watched.is_ending:
        dumped = watched.dumped_at
        times.append(watched.due if dumped is None else dumped + watched.last_seconds)
    if watched.stopped:
        times.append(now if watched.term_at is None else watched.term_at + watched.grace)
    return max(0.0, min(times) - now)


def _measure(watched: WatchedWorker, control: JobControl) -> None:
    """Measure what a host uses, or note the end; whatever goes wrong with that, the job continues unmeasured."""
    try:
        if watched.meter is None:
            from kinetic._runner.supervisor.meter import meter_of  # jobs that end within a second need none

            watched.meter = meter_of(
                watched.task, watched.began, lambda: _processes_of(watched.pid), lambda: watched.cpu_seconds
            )
        has_ended = watched.status is not None
        found = watched.meter.finish(watched.peak_bytes) if has_ended else watched.meter.measure()
        watched.measure_due = watched.meter.due
        if found is not None:
            control.keep_usage(watched.task, found)
    except Exception as error:  # noqa: BLE001 - see above
        watched.measure_due = float("inf")
        sys.stderr.write(f"{watched.task.job_id} is not measured any more: {type(error).__name__}: {error}\n")


def _act_on_time(watched: WatchedWorker) -> None:  # noqa: C901, PLR0912 - a table of limits
    """Do what a limit or a request demands by now."""
    now = time.monotonic()
    if watched.done_at is not None:
        if now >= watched.done_at + _GRACE_SECONDS:
            if watched.killed_at is None and not watched.reader.is_closed:
                _append_lines(watched.task.log, "kinetic: exit handlers still ran after 5 s and were ended\n")
            _signal(watched, signal.SIGKILL)
        return
    if watched.guard is not None and not watched.held_bytes and (held := watched.guard.exceeded()):
        watched.held_bytes = held
        _signal(watched, signal.SIGKILL)
        return
    if watched.stopped and watched.term_at is None:
        watched.term_at = now
        _signal(watched, signal.SIGTERM, alone=watched.spare_children)
    elif watched.term_at is not None and now >= watched.term_at + watched.grace:
        _signal(watched, signal.SIGKILL)
    if watched.reader.report.done or watched.is_ending:
        return
    if watched.dumped_at is None and now >= watched.due:
        watched.dumped_at, watched.deadline_hit = now, True
        if watched.task.is_command:
            with contextlib.suppress(ProcessLookupError):
                os.kill(watched.pid, signal.SIGTERM)
        else:
            _request_stacks(watched)
    elif watched.dumped_at is not None and now >= watched.dumped_at + watched.last_seconds:
        if watched.stacks is not None and watched.last_seconds < _MOST_STACKS_SECONDS and not _stacks_of(watched):
            watched.stacks_seconds += _STACKS_SECONDS
        elif watched.term_at is None and not watched.task.is_command:
            watched.term_at = now
            watched.stacks_seconds += watched.grace
            _signal(watched, signal.SIGTERM, alone=watched.spare_children)
        else:
            _signal(watched, signal.SIGKILL)


def _request_stacks(watched: WatchedWorker) -> None:
    """Have a worker write its stacks, for its log; straight into that, where its code has closed the file for them."""
    from kinetic._runner.worker import process_setup  # loaded when this worker was forked

    try:
        target = process_setup.read_header(watched.task.stacks)
        watched.stacks = functools.partial(process_setup.answer, target, process_setup.request(target))
    except (RunnerError, OSError):
        with contextlib.suppress(ProcessLookupError):
            os.kill(watched.pid, LOG_STACKS_SIGNAL)


def _log_stacks(watched: WatchedWorker) -> None:
    """Write into the log what the threads of a worker did at its deadline; it has ended since."""
    if watched.has_failed and (found := _stacks_of(watched)):
        _append_lines(watched.task.log, "\n\n".join(found) + "\n")


def _append_lines(log: Path, text: str) -> None:
    """Write lines of ours into a log, below one that has not ended, as a progress bar's."""
    with contextlib.suppress(OSError), log.open("rb") as file:  # OSError: it is empty, or gone
        file.seek(-1, os.SEEK_END)
        text = text if file.read() == b"\n" else "\n" + text
    folders.append(log, text)


def _stacks_of(watched: WatchedWorker) -> list[str]:
    with contextlib.suppress(OSError):  # the job's code has removed the file
        return watched.stacks() if watched.stacks is not None else []
    return []


def _reap(hosts: Sequence[WatchedWorker]) -> None:
    """Collect every child that ended: the workers, and orphans that became ours."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _stuck.discard(pid)
        is_helper = pid in helpers
        helpers.discard(pid)
        for watched in hosts:
            if pid == watched.pid or (len(hosts) == 1 and not is_helper):
                watched.cpu_seconds += usage.ru_utime + usage.ru_stime
            if pid == watched.pid:
                watched.status = status
                watched.peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _end_the_rest(hosts: Sequence[WatchedWorker]) -> None:
    """Kill what is left of the workers' groups, and whatever else of them became our child; trackers end last."""
    for watched in hosts:
        _signal(watched, signal.SIGKILL)
    begun = time.monotonic()
    me, leaving = os.getpid(), {watched.pid for watched in hosts if watched.has_left}
    while time.monotonic() < begun + _GRACE_SECONDS:
        _reap(hosts)
        try:
            left = {int(word) for word in Path(f"/proc/{me}/task/{me}/children").read_text().split()}
        except OSError:
            return
        left -= _stuck | leaving | helpers
        if not left:
            return
        _kill(left, spare_trackers=time.monotonic() < begun + _TRACKER_SECONDS)
        time.sleep(0.002)  # the kernel is at it; orphans of orphans come up one generation at a time


def _kill_group(watched: WatchedWorker) -> None:
    """Kill a worker's process group at once, or one by one what is not a tracker, if there is one."""
    there = _processes_of(watched.pid, is_there=watched.status is None)
    if any(map(processes.is_tracker, there)):
        _kill(there, spare_trackers=True)
    else:
        os.killpg(watched.pid, signal.SIGKILL)


def _kill(there: Iterable[int], *, spare_trackers: bool) -> None:
    for pid in there:
        if not (spare_trackers and processes.is_tracker(pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _signal(watched: WatchedWorker, number: signal.Signals, *, alone: bool = False) -> None:
    """Signal a worker and its process group; also a worker that has left its group, as user code may make it."""
    if number == signal.SIGKILL:
        watched.killed_at = watched.killed_at or time.monotonic()
    if not alone:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(watched.pid, 0 if number == signal.SIGKILL else number)
            if number == signal.SIGKILL:
                _kill_group(watched)
    if watched.status is not None:  # reaped: the number may be another process's by now
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if alone or os.getpgid(watched.pid) != watched.pid:
            os.kill(watched.pid, number)


_counted_kills = (float("-inf"), 0)  # when, and how many there were


def _recent_memory_kills() -> int:
    """Return what ``_memory_kills`` returned within the last second: counting takes the kernel 0.2 ms."""
    global _counted_kills  # noqa: PLW0603 - of this process
    if time.monotonic() > _counted_kills[0] + 1.0:
        _counted_kills = time.monotonic(), _memory_kills()
    return _counted_kills[1]


def _memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory so far; 0 if it does not tell."""
    try:
        with open("/proc/vmstat", "rb", buffering=0) as file:
            _, _, rest = file.read(1 << 16).partition(b"\noom_kill ")
            return int(rest.split(None, 1)[0]) if rest else 0
    except (OSError, ValueError):
        return 0
