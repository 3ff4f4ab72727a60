"""How far a job is, as its own code reports it: a small file beside the log, replaced at most twice a second.

It is JSON and not sealed; the supervisor reads it and puts it into the sealed page of what the job uses. Outside of a
job nothing is written.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import field
from typing import Any, SupportsFloat

from kinetic._wire import dataclass, fields, folders, python_runtime
from kinetic.errors import OptionError

VARIABLE = "KINETIC_PROGRESS_FILE"  # the worker sets it; processes that user code starts write there as well
_PAUSE_SECONDS = 0.5  # between two writes
_MOST_METRICS, _LONGEST_NAME = 16, 64
_MOST_BYTES = 8192
_LARGEST = 1e300


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes:
        done: How many of its steps, in the units of the function.
        total: How many there are in all; None where that is not known.
        metrics: What the function reported with it, by name; None stands for a number that is not finite.
        at: Unix time of the last report.
        began: Unix time of the first report of this count; a count that goes back begins anew.
        began_with: What was done then.
    """

    done: float
    total: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    at: float = 0.0
    began: float = 0.0
    began_with: float = 0.0

    @property
    def share(self) -> float | None:
        """How much of the total is done, from 0 to 1; None without a total."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total else None

    def seconds_left(self, now: float | None = None) -> float | None:
        """Return how long the rest takes at the average rate so far; None where that cannot be said.

        Args:
            now: Unix time; None means now.
        """
        done, seconds = self.done - self.began_with, self.at - self.began
        if self.total is None or done <= 0 or seconds <= 0 or self.done >= self.total:
            return None
        since = max((time.time() if now is None else now) - self.at, 0.0)
        left = max((self.total - self.done) * seconds / done - since, 0.0)
        return left if left <= fields.SECONDS else None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "metrics": dict(self.metrics)}


_NUMBER = fields.number(-_LARGEST, _LARGEST)
READERS: dict[str, fields.Reader[Any]] = {
    **fields.each(_NUMBER, "done", "began_with"),
    "total": fields.optional(_NUMBER),
    "metrics": fields.map_of(fields.optional(_NUMBER), _MOST_METRICS, fields.text(_LONGEST_NAME, least=1)),
    **fields.each(fields.number(0, fields.SECONDS), "at", "began"),
}
READER = fields.nested(Progress, READERS)


def read(path: str | os.PathLike[str]) -> Progress | None:
    """Return what a job reported last; None where it has not, or where the file holds something else."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return READER(json.loads(folders.read_file(*os.path.split(path), _MOST_BYTES)))
    return None


def progress(done: SupportsFloat, total: SupportsFloat | None = None, **metrics: SupportsFloat) -> None:
    """Report how far the present job is; outside of a job, only check the numbers.

    It is cheap enough for each step of a loop: at most two reports a second are written, and the last one always is.
    ``kinetic jobs list``, ``kinetic jobs show``, a blocking call, a notebook and the dashboard show it, with the time
    that is left. Where several hosts or processes report, host 0 and the last report count.

    Args:
        done: How many steps are done, in any unit. It may begin anew, as with each epoch.
        total: How many there are in all; None if that is not known.
        **metrics: Up to 16 numbers to show with it, such as loss=0.3. One that is NaN or infinite is shown as such.

    Raises:
        OptionError: ``done`` or ``total`` is not a finite number, ``total`` is negative, or a metric is not a number.

    Example:
        for step in range(1000):
            loss = train_step()
            kinetic.progress(step + 1, 1000, loss=loss)
    """
    count, all_ = _finite("done", done), None if total is None else _finite("total", total)
    if all_ is not None and all_ < 0:
        raise _refused(f"total must be 0 or more, got {all_:g}", "it is the number of steps in all")
    if len(metrics) > _MOST_METRICS or any(len(name) > _LONGEST_NAME for name in metrics):
        why = f"at most {_MOST_METRICS} metrics are shown, with names of up to {_LONGEST_NAME} characters"
        raise _refused(f"{len(metrics)} metrics cannot be reported", why)
    values = {name: _number(name, value) for name, value in metrics.items()}
    path = os.environ.get(VARIABLE)
    if path:
        _writer.report(path, count, all_, {n: v if abs(v) <= _LARGEST else None for n, v in values.items()})


def flush() -> None:
    """Write the last report now, if it waits."""
    _writer.flush()


def _number(name: str, value: SupportsFloat) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _refused(f"{name} is not a number: {value!r:.60}", f"it is of type {type(value).__qualname__}") from None


def _finite(name: str, value: SupportsFloat) -> float:
    found = _number(name, value)
    if not math.isfinite(found) or abs(found) > _LARGEST:
        raise _refused(f"{name} must be a finite number, got {found}", "steps are counted")
    return found


def _refused(what: str, why: str) -> OptionError:
    return OptionError(what, why=why, next="for example: kinetic.progress(3, 100, loss=0.5)")


class _Writer:
    """Writes reports of this process, at most one each half second."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler of a signal may report, too
        self._waiting: tuple[str, Progress] | None = None
        self._last: Progress | None = None
        self._begun = 0.0, 0.0  # monotonic time of the first report, and what was done then
        self._due = 0.0  # monotonic time at which the next report may be written
        self._thread: threading.Thread | None = None

    def report(self, path: str, done: float, total: float | None, metrics: Mapping[str, float | None]) -> None:
        now, tick, last = time.time(), time.monotonic(), self._last
        if last is None or done < last.done:
            self._begun = tick, done
        # By this clock, neither a suspend of the machine nor a change of its clock counts as time that the job took.
        began = max(now - (tick - self._begun[0]), 0.0)
        found = self._last = Progress(done, total, metrics, now, began, self._begun[1])
        with self._lock:
            if time.monotonic() >= self._due:
                self._write(path, found)
                return
            if self._waiting is None and self._thread is None:
                self._thread = python_runtime.start_thread(self._write_later, "kinetic-progress")
                atexit.unregister(flush)
                atexit.register(flush)  # for a process that user code starts; a worker calls it itself
            self._waiting = path, found

    def flush(self) -> None:
        with self._lock:
            if self._waiting is not None:
                self._write(*self._waiting)

    def _write_later(self) -> None:
        while True:
            time.sleep(max(self._due - time.monotonic(), 0.0))
            with self._lock:
                if self._waiting is None:
                    self._thread = None
                    return
                self._write(*self._waiting)

    def _write(self, path: str, found: Progress) -> None:
        self._waiting, self._due = None, time.monotonic() + _PAUSE_SECONDS
        beside = f"{path}~{os.getpid()}"
        with contextlib.suppress(OSError):  # a full disk, or a folder that is gone: the job does not need it
            with open(beside, "w", encoding="utf-8") as file:
                json.dump(found.to_json(), file, allow_nan=False)
            os.replace(beside, path)


_writer = _Writer()


def _after_fork() -> None:
    """Give a child a writer of its own: the thread of the parent's is not there, and its lock may be held for ever."""
    global _writer  # noqa: PLW0603 - a process has one
    _writer = _Writer()


os.register_at_fork(after_in_child=_after_fork)
