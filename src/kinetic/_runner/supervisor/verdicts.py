"""Judging: from what the worker said and how its process ended to the verdict, in plain sentences."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps, loads
from os import _exit
from os import fstat as _fstat
from os import ftruncate as _ftruncate
from os import getpid as _getpid
from os import getppid as _getppid
from os import kill as _kill
from os import lseek as _lseek
from os import open as _open
from os import write as _write
from pathlib import Path
from typing import Any

from kinetic._wire import folders, outcomes
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import Outcome
from kinetic._wire.task import MORE_MEMORY, Task

_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO in its place holds nobody up
_MOST_BYTES = 8 << 20  # of a word: the longest traceback that is kept, escaped


class OwnDescriptor:
    """A descriptor of ours in a process that runs user code.

    Attributes:
        descriptor: Its number, which may be another file's by now.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._identity = _identity(descriptor)

    @property
    def is_ours(self) -> bool:
        """Return whether the number still stands for the file that it stood for at first."""
        return self._identity is not None and _identity(self.descriptor) == self._identity


class PrivateFile:
    """A file in a private folder, opened before any user code runs.

    Later it needs neither its name, nor the rights to open it, nor a free descriptor; only where user code closed the
    descriptor, the file is opened again by name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: OwnDescriptor | None = None
        with contextlib.suppress(OSError):  # tried again when it is needed
            self._held = OwnDescriptor(_open(path, _FILE, folders.PRIVATE_FILE))

    def descriptor(self) -> int:
        """Return the descriptor, open for reading and writing.

        Raises:
            OSError: The file had to be opened again, and could not be.
        """
        if self._held is None or not self._held.is_ours:
            self._held = OwnDescriptor(_open(self._path, _FILE, folders.PRIVATE_FILE))
        return self._held.descriptor


@dataclass
class Report:
    """What the worker said last; the supervisor's only source while it lives.

    Attributes:
        phase: In which phase it is.
        done: The last word, or None.
    """

    phase: str = "order"
    done: dict[str, Any] | None = None


class ReportWriter:
    """The worker's end of the report.

    Args:
        pipe: The descriptor that the supervisor reads.
        page: The file for the last word, in a private folder.
    """

    def __init__(self, pipe: int, page: Path) -> None:
        self._pid = _getpid()
        self._pipe = OwnDescriptor(pipe)
        self._page = PrivateFile(page)
        self._parent = os.getppid()
        self.phase = Report.phase
        self.has_spoken = False

    @property
    def is_the_worker(self) -> bool:
        """Return whether this process is the one that was started as the worker, not a child that user code forked."""
        return _getpid() == self._pid

    def enter(self, phase: str) -> None:
        """Say that a phase begins."""
        self.phase = phase
        self._tell({"phase": phase})

    def done(self, word: dict[str, Any]) -> bool:
        """Say the last word, once: on disk first, so that it outlives both processes.

        Returns:
            Whether the supervisor was told; if not, it finds the word on the disk when this process has ended.
        """
        if not self.is_the_worker or self.has_spoken:
            return False
        self.has_spoken = True
        with contextlib.suppress(OSError):  # a full disk: the pipe remains
            self._keep(dumps(word).encode())
            step("worker:meta-written")
        if _getppid() == self._parent:
            with contextlib.suppress(OSError):
                _kill(self._parent, signal.SIGCONT)  # a supervisor that user code has stopped would never hear it
        return self._tell({"phase": self.phase, "done": word})

    def _keep(self, data: bytes) -> None:
        """Write the word into its file. Half of it is no JSON, so a word that was cut short is never believed."""
        descriptor = self._page.descriptor()
        _ftruncate(descriptor, 0)
        _lseek(descriptor, 0, os.SEEK_SET)
        folders.write_all(descriptor, data)

    def _tell(self, page: dict[str, Any]) -> bool:
        if not self.is_the_worker or not self._pipe.is_ours:
            return False
        line = b"\n" + dumps(page).encode() + b"\n"  # also at a start: what user code wrote here ended no line
        try:
            while line:
                line = line[_write(self._pipe.descriptor, line) :]
        except OSError:  # a supervisor that is gone hears nothing; the file remains
            return False
        return True


class ReportReader:
    """The supervisor's end of the report."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.report = Report()
        self._half = b""

    def hear(self) -> bool:
        """Read what is there; False when the worker's end is closed."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._half) > _MOST_BYTES:
            self._half = b""  # no line of ours: user code that writes here harms its own job only
        return bool(data)

    def _take(self, line: bytes) -> None:
        page = _parsed(line)
        if page is not None:
            phase = page.get("phase")
            self.report.phase = phase if isinstance(phase, str) else self.report.phase
            self.report.done = checked_report(page.get("done")) or self.report.done


def read_final_report(page: Path) -> dict[str, Any] | None:
    """Return the last word of a worker as it is on the disk, or None: for a supervisor that did not hear it."""
    try:
        descriptor = os.open(page, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return checked_report(_parsed(file.read(_MOST_BYTES)))


def checked_report(word: object) -> dict[str, Any] | None:
    """Return a last word as a supervisor can work with it, or None when it is no such thing."""
    if not isinstance(word, dict) or word.get("status") not in (outcomes.SUCCEEDED, outcomes.FAILED):
        return None
    length = word.get("body_length", 0)
    if type(length) is not int or not 0 <= length < 1 << 62:
        return None
    texts = {name: word[name] for name in ("status", "cause", "phase", "body_sha256", "value_type") if name in word}
    error, phases, files = word.get("error") or {}, word.get("phases") or {}, word.get("files") or ()
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    if not (isinstance(error, dict) and isinstance(phases, dict) and isinstance(files, list | tuple)):
        return None
    return {
        "cause": "",
        **{name: _plain(text) for name, text in texts.items()},
        "body_length": length,
        "exited": word.get("exited") is True,
        "error": {_plain(name): _plain(value) for name, value in error.items() if isinstance(value, _SCALARS)},
        "phases": {_plain(name): seconds for name, seconds in phases.items() if isinstance(seconds, int | float)},
        "files": [_plain(name) for name in files if isinstance(name, str)],
    }


_SCALARS = (str, int, float, type(None))


def _plain(value: Any) -> Any:
    """Return a value that UTF-8 can hold: the name of a file that is not UTF-8 comes with halves of characters."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def end_after(seconds: float, code: int) -> None:
    """End this process after a while, whatever exit handlers do: for a word that the supervisor did not hear."""
    from time import sleep

    def end() -> None:
        sleep(seconds)
        _exit(code)

    threading.Thread(target=end, name="kinetic-end", daemon=True).start()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        page = loads(line)
    except (ValueError, RecursionError):
        return None
    return page if isinstance(page, dict) else None


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = _fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_LOG_LINES = 20
_LOG_BYTES = 8192
_KILLED_BY_MEMORY = 0.7  # of the memory here: above it, a SIGKILL nobody asked for was most likely the kernel's


@dataclass(frozen=True)
class Ending:
    """How a worker's process ended.

    Attributes:
        status: As ``os.waitpid`` gives it, or None when the process was not ours to wait for.
        phase: The phase it was in.
        word: Its final word, or None.
        deadline: True when the supervisor ended it because of the deadline.
        stopped: True when the supervisor ended it because somebody asked for it.
        peak_bytes: Its peak resident memory.
        memory_kill: True when the kernel counted an out-of-memory kill in this control group meanwhile.
        failed_at: Monotonic time at which this host of a slice was seen to have failed, or None.
        for_a_peer: True when the supervisor ended it because another host of its slice had failed.
        held_bytes: What its processes held when they were ended because that was more than asked for; else 0.
    """

    status: int | None
    phase: str
    word: dict[str, Any] | None = None
    deadline: bool = False
    stopped: bool = False
    peak_bytes: int = 0
    memory_kill: bool = False
    failed_at: float | None = None
    for_a_peer: bool = False
    held_bytes: int = 0

    @property
    def was_killed(self) -> bool:
        """Say whether somebody from outside killed the process, and neither we nor the kernel for want of memory."""
        wished = self.deadline or self.stopped or self.memory_kill or self.held_bytes
        killed = self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL
        return killed and not wished


def decisive_host(tasks: Sequence[Task], endings: Sequence[Ending]) -> int:
    """Say whose ending decides for a slice: the leader's when every host succeeded, else the first that failed itself.

    A host that was ended because a peer had failed decides nothing, and neither does one that failed later: it mostly
    complains of the peer it lost.
    """
    failed = []
    for host, (task, ending) in enumerate(zip(tasks, endings, strict=True)):
        word = final_report(task, ending)
        if not ending.for_a_peer and (word is None or word["status"] != outcomes.SUCCEEDED):
            when = ending.failed_at if ending.failed_at is not None else float("inf")
            failed.append((when, word is None, host))
    return min(failed)[2] if failed else 0


def judge(task: Task, ending: Ending, *, started: float, ended: float, machine_bytes: int = 0) -> Outcome:
    """Say what became of an attempt."""
    word = final_report(task, ending)
    if word is None:
        word = _without_final_report(task, ending, machine_bytes)
    return Outcome(
        job_id=task.job_id,
        attempt=task.attempt,
        host=task.host,
        status=str(word["status"]),
        cause=str(word.get("cause", "")),
        phase=str(word.get("phase", ending.phase)),
        error={**word.get("error", {}), **_log_of(task, word), **_hosts_of(task, word)},
        body_length=int(word.get("body_length", 0)),
        body_sha256=str(word.get("body_sha256", "")),
        value_type=str(word.get("value_type", "")),
        phases=dict(word.get("phases", {})),
        files=tuple(word.get("files", ())),
        started=started,
        ended=ended,
    )


def final_report(task: Task, ending: Ending) -> dict[str, Any] | None:
    """Return the worker's final word if it holds: a body that it promised must be there in full."""
    word = checked_report(ending.word) or read_final_report(task.word)  # it may have died between the two
    if word is None:
        return None
    promised = word.get("body_length", 0)
    # It may be longer: a supervisor may have died between writing its page behind the body and handing both over.
    if promised and (not task.body.exists() or task.body.stat().st_size < promised):
        return None
    return word


def _without_final_report(task: Task, ending: Ending, machine_bytes: int) -> dict[str, Any]:
    if ending.deadline:
        what = f"the job was ended at its deadline of {task.deadline:g} s; the stacks of all threads are in its log"
        return _failed("deadline", what, next=f"kinetic jobs logs {task.job_id}")
    if ending.stopped:
        return _failed("stopped", "the job was ended because somebody asked for it")
    if ending.held_bytes:
        asked, held = ((amount or 0) / 2**30 for amount in (task.memory_bytes, ending.held_bytes))
        what = f"the job ran out of memory: it asked for {asked:.3g} GiB, and its processes held {held:.3g} GiB"
        return _failed("memory", what, limit_bytes=task.memory_bytes, held_bytes=ending.held_bytes, next=MORE_MEMORY)
    if ending.status is None:
        return _failed("lost", "the process that kept this job was killed, and the job with it")
    if os.WIFSIGNALED(ending.status):
        return _by_signal(task, os.WTERMSIG(ending.status), ending, machine_bytes)
    code = os.waitstatus_to_exitcode(ending.status)
    what = f"the job's process ended by itself with exit code {code}, as os._exit({code}) does, and left no result"
    return _failed("exit", what, exit_code=code)


def _by_signal(task: Task, number: int, ending: Ending, machine_bytes: int) -> dict[str, Any]:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    what = f"the job's process was ended by {name}"
    big = machine_bytes and ending.peak_bytes > _KILLED_BY_MEMORY * machine_bytes
    if number == signal.SIGKILL and (ending.memory_kill or big):
        gib = ending.peak_bytes / 2**30
        what = f"the job's process ran out of memory: the kernel killed it (SIGKILL) at about {gib:.1f} GiB"
        return _failed("memory", what, signal=name, **({"next": MORE_MEMORY} if task.is_in_a_pod else {}))
    if number == signal.SIGKILL:
        what += ": somebody ran kill -9 on it, or the kernel ended it for want of memory"
    elif number == signal.SIGSEGV:
        what += ", a segmentation fault in native code; the Python stacks are in its log"
    elif number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
        what += ", sent from outside"
    return _failed("signal", what, signal=name)


def _failed(cause: str, message: str, **more: Any) -> dict[str, Any]:
    return {"status": outcomes.FAILED, "cause": cause, "error": {"message": message, **more}}


def _hosts_of(task: Task, word: dict[str, Any]) -> dict[str, Any]:
    """Say on how many hosts it ran, for a failure on a slice."""
    return {"hosts": task.hosts} if task.hosts > 1 and word["status"] != outcomes.SUCCEEDED else {}


def _log_of(task: Task, word: dict[str, Any]) -> dict[str, Any]:
    """Add the last lines of the log to a verdict that has no exception to tell the story."""
    if word["status"] == outcomes.SUCCEEDED or word.get("cause") in {"exception", "runner"}:
        return {}
    return {"log": last_lines(task.log)}


def last_lines(log: Path) -> str:
    """Return the last 20 lines of a log, at most 8 KiB, without reading the rest."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LOG_LINES:])


PREEMPTED = "preempted"  # how a host of a slice ended that was taken away; never the status of an Outcome in its place

# What frameworks say when another host is gone. Words of JAX's coordination service, gRPC, NCCL and Gloo.
_PEER_LOSS = re.compile(
    r"coordination.?service|heartbeat|barrier.{0,40}(?:timed out|failed)|(?:task|process|peer|rank).{0,60}"
    r"(?:disconnected|unhealthy|is dead|not responding|exited|failed)|connection (?:reset|closed|refused|aborted)"
    r"|socket closed|broken pipe|UNAVAILABLE|DEADLINE_EXCEEDED|NCCL|gloo",
    re.IGNORECASE,
)


def reason_without_verdict(word: Mapping[str, Any] | None, ending: Ending, *, end_requested: bool, began: bool) -> str:
    """Say why an attempt has no verdict, in a few words; "" when it has one.

    Args:
        word: What the worker said at its end, if that holds.
        ending: How its process ended.
        end_requested: The cluster told this pod to end.
        began: The user's function had begun.
    """
    if word is not None and _raised_preempted(word):
        return "the function raised kinetic.errors.Preempted"
    returned = word is not None and word.get("status") == outcomes.SUCCEEDED and not word.get("exited")
    if end_requested and not returned:  # whatever was raised meanwhile: the next attempt tells whether it was the cause
        return "this machine was taken away, or somebody stopped the job"
    if word is None and ending.was_killed and not began:
        return "the worker was killed before the function began"
    if word is not None and not began and _missed_the_store(word):
        return f"its store was out of reach before the function began: {(word.get('error') or {}).get('message', '')}"
    return ""


def first_failure(failures: Iterable[Outcome]) -> Outcome:
    """Return the failure of a slice that the others follow from: the first that does not complain of a lost peer."""
    return min(failures, key=lambda failure: (is_peer_loss(failure), failure.ended or 0.0, failure.host))


def is_peer_loss(failure: Outcome) -> bool:
    """Say whether a failure reads like one that another host's end has caused."""
    error = failure.error
    words = f"{error.get('type', '')}: {error.get('message', '')}\n{error.get('log', '')}"
    return _PEER_LOSS.search(words) is not None


def _missed_the_store(word: Mapping[str, Any]) -> bool:
    """Say whether a phase before the function failed because of what may pass, as in ``starting``."""
    error = word.get("error") or {}
    passes = {"StoreUnreachableError", "CredentialsError"}
    return word.get("cause") == "runner" and error.get("module") == "kinetic.errors" and error.get("type") in passes


def _raised_preempted(word: Mapping[str, Any]) -> bool:
    error = word.get("error") or {}
    return error.get("type") == "Preempted" and error.get("module") == "kinetic.errors"
