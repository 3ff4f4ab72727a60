"""What a worker reports, through a pipe and in a file that outlives both processes, and the verdict that follows.

User code runs between two reports. It may fork, close our descriptors and open files of its own under their numbers,
drop its rights, or fill the pipe with anything. So every descriptor is checked before it is used, a forked child never
reports, and a supervisor checks what arrives before it believes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from json import dumps, loads
from os import _exit
from os import fstat as _fstat
from os import ftruncate as _ftruncate
from os import getpid as _getpid
from os import getppid as _getppid
from os import kill as _kill
from os import lseek as _lseek
from os import open as _open
from os import pwrite as _pwrite
from os import write as _write
from pathlib import Path
from time import monotonic
from typing import Any

from kinetic._wire import dataclass, folders, outcomes
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import Outcome
from kinetic._wire.task import MORE_MEMORY, Task

_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO in its place blocks no process
_PHASE_BYTES = 64  # of the page that names a phase: the next one covers it
_MOST_BYTES = 8 << 20  # of a final report: the longest traceback that is kept, escaped
_SCALARS = (str, int, float, type(None))
_C_STACK = "Current thread's C stack trace"  # from Python 3.14 on, below those of Python that say more
_KILLED_BY_MEMORY = 0.7  # of the memory here: above it, an unexpected SIGKILL was most likely the kernel's
OUT_OF_REACH = "its store was out of reach"  # how the reason begins of an attempt that could not fetch what it needs
PREEMPTED = "preempted"  # how a host of a slice ended that was taken away; never the status of the job's Outcome

# What frameworks say when another host is gone: messages of JAX's coordination service, gRPC, NCCL and Gloo.
_PEER_LOSS = re.compile(
    r"coordination.?service|heartbeat|barrier.{0,40}(?:timed out|failed)|(?:task|process|peer|rank).{0,60}"
    r"(?:disconnected|unhealthy|is dead|not responding|exited|failed)|connection (?:reset|closed|refused|aborted)"
    r"|socket closed|broken pipe|UNAVAILABLE|DEADLINE_EXCEEDED|NCCL|gloo",
    re.IGNORECASE,
)


# ---------------------------------------------------------------------------------------------------------- the worker


class OwnDescriptor:
    """A descriptor of ours in a process that runs user code: its number may be another file's by now."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._identity = _identity(descriptor)

    @property
    def is_ours(self) -> bool:
        """Return whether the number still means the file that it meant at first."""
        return self._identity is not None and _identity(self.descriptor) == self._identity


class PrivateFile:
    """A file in a private folder, opened before any user code runs.

    Later it needs neither its name, nor the rights to open it, nor a free descriptor; only if user code has closed the
    descriptor, the file is opened again by name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own: OwnDescriptor | None = None
        with contextlib.suppress(OSError):  # tried again when it is needed
            self._own = OwnDescriptor(_open(path, _FILE, folders.PRIVATE_FILE))

    def descriptor(self) -> int:
        """Return the descriptor, open for reading and writing; raises OSError if it cannot be opened again."""
        if self._own is None or not self._own.is_ours:
            self._own = OwnDescriptor(_open(self._path, _FILE, folders.PRIVATE_FILE))
        return self._own.descriptor


@dataclass
class Report:
    """What the worker reported last: the supervisor's only source while the worker lives."""

    phase: str = "order"
    workspace: dict[str, Any] | None = None  # what it said first of its working folder, see ``workspace.Left``
    done: dict[str, Any] | None = None  # the final report
    begun_again: float = 0.0  # when it did, if it did: its deadline counts from there


class ReportWriter:
    """The worker's end of the report: a pipe that the supervisor reads, and a private file for the final report."""

    def __init__(self, pipe: int, file: Path) -> None:
        self._pid = _getpid()
        self._pipe = OwnDescriptor(pipe)
        self._file = PrivateFile(file)
        self._parent = os.getppid()
        self.phase = Report.phase
        self._is_final = False

    @property
    def descriptor(self) -> int:
        return self._pipe.descriptor

    @property
    def is_the_worker(self) -> bool:
        """Return whether this process was started as the worker, and is not a child that user code forked."""
        return _getpid() == self._pid

    def enter(self, phase: str) -> None:
        """Report that a phase begins: in the file, which wakes no supervisor, and is read if no final report comes."""
        self.phase = phase
        if not self.is_the_worker or self._is_final:
            return
        try:
            _pwrite(self._file.descriptor(), dumps({"phase": phase}).encode().ljust(_PHASE_BYTES), 0)
        except OSError:  # a full disk: the pipe remains
            self._send({"phase": phase})

    def unpacked(self, found: dict[str, Any]) -> None:
        """Report what is in the working folder before any code of the user's runs: the first report counts."""
        self._send({"phase": self.phase, "workspace": found})

    def begins_again(self) -> None:
        """Report that an interpreter of its own does all of it again."""
        self._send({"phase": Report.phase, "again": True})

    def done(self, final: dict[str, Any]) -> bool:
        """Write the final report, once: on disk first, so that it outlives both processes.

        Returns whether the supervisor was reached; if not, it finds the report on disk when this process has ended.
        """
        if not self.is_the_worker or self._is_final:
            return False
        self._is_final = True
        with contextlib.suppress(OSError):  # a full disk: the pipe remains
            # Half of it is not JSON, so a report that was cut short is never believed.
            descriptor = self._file.descriptor()
            _ftruncate(descriptor, 0)
            _lseek(descriptor, 0, os.SEEK_SET)
            folders.write_all(descriptor, dumps(final).encode())
            step("worker:meta-written")
        if _getppid() == self._parent:
            with contextlib.suppress(OSError):
                _kill(self._parent, signal.SIGCONT)  # a supervisor that user code has stopped would never read it
        return self._send({"phase": self.phase, "done": final})

    def leave(self) -> None:
        """Close our end: nothing is left to do. The kernel does the same only after it has taken all memory back."""
        if self.is_the_worker and self._pipe.is_ours:
            os.close(self._pipe.descriptor)

    def _send(self, page: dict[str, Any]) -> bool:
        if not self.is_the_worker or not self._pipe.is_ours:
            return False
        line = b"\n" + dumps(page).encode() + b"\n"  # also at the start: user code may have left half a line here
        try:
            while line:
                line = line[_write(self._pipe.descriptor, line) :]
        except OSError:  # the supervisor is gone; the file remains
            return False
        return True


def end_after(seconds: float, code: int) -> None:
    """End this process after a while, whatever exit handlers do: the supervisor did not get the final report."""
    from time import sleep

    def end() -> None:
        sleep(seconds)
        _exit(code)

    threading.Thread(target=end, name="kinetic-end", daemon=True).start()


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = _fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ------------------------------------------------------------------------------------------------------ the supervisor


class ReportReader:
    """The supervisor's end of the report."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.report = Report()
        self.is_closed = False  # whether the worker's end is
        self._half = b""

    def read(self) -> bool:
        """Read what is there; False when the worker's end is closed."""
        try:
            data = os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._half = (self._half + data).split(b"\n")
        for page in filter(None, map(_parsed, lines)):
            phase = page.get("phase")
            self.report.phase = phase if isinstance(phase, str) else self.report.phase
            found = page.get("workspace")
            if isinstance(found, dict) and self.report.workspace is None:  # the first is the worker's own
                self.report.workspace = found
            if page.get("again") is True and not self.report.begun_again:  # once, whatever user code writes here
                self.report.begun_again = monotonic()
            self.report.done = checked_report(page.get("done")) or self.report.done
        if len(self._half) > _MOST_BYTES:
            self._half = b""  # not a line of ours: user code that writes here harms its own job only
        self.is_closed = not data
        return bool(data)


def read_final_report(path: Path) -> dict[str, Any] | None:
    """Return the final report of a worker as it is on disk, or None: for a supervisor that did not get it."""
    return checked_report(_read_page(path))


def read_phase(path: Path) -> str:
    """Return the phase that a worker without a final report was in, "" if it did not say."""
    phase = (_read_page(path) or {}).get("phase")
    return phase if isinstance(phase, str) else ""


def _read_page(path: Path) -> dict[str, Any] | None:
    try:
        return _parsed(folders.read_file(path.parent, path.name, _MOST_BYTES))
    except OSError:
        return None


def checked_report(page: object) -> dict[str, Any] | None:
    """Return a final report with fields of known types only, or None when it is not one."""
    if not isinstance(page, dict) or page.get("status") not in (outcomes.SUCCEEDED, outcomes.FAILED):
        return None
    length = page.get("body_length", 0)
    if type(length) is not int or not 0 <= length < 1 << 62:
        return None
    texts = {name: page[name] for name in ("status", "cause", "phase", "body_sha256", "value_type") if name in page}
    error, phases, files = page.get("error") or {}, page.get("phases") or {}, page.get("files") or ()
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    if not (isinstance(error, dict) and isinstance(phases, dict) and isinstance(files, list | tuple)):
        return None
    return {
        "cause": "",
        **{name: _plain(text) for name, text in texts.items()},
        "body_length": length,
        "exited": page.get("exited") is True,
        "error": {_plain(name): _plain(value) for name, value in error.items() if isinstance(value, _SCALARS)},
        "phases": {_plain(name): seconds for name, seconds in phases.items() if isinstance(seconds, int | float)},
        "files": [_plain(name) for name in files if isinstance(name, str)],
    }


def _plain(value: Any) -> Any:
    """Return a value that UTF-8 can hold: the name of a file that is not UTF-8 has halves of characters in it."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        page = loads(line)
    except (ValueError, RecursionError):
        return None
    return page if isinstance(page, dict) else None


# --------------------------------------------------------------------------------------------------------- the verdict


@dataclass(frozen=True)
class Ending:
    """How a worker's process ended."""

    status: int | None  # as os.waitpid gives it; None when the process was not our child
    phase: str  # in which it ended
    word: dict[str, Any] | None = None  # its final report
    deadline: bool = False  # the supervisor ended it at its deadline
    stopped: bool = False  # the supervisor ended it on request
    peak_bytes: int = 0  # resident
    memory_kill: bool = False  # the kernel counted an out-of-memory kill in this control group meanwhile
    failed_at: float | None = None  # monotonic time at which this host of a slice was seen to have failed
    for_a_peer: bool = False  # the supervisor ended it because another host of its slice had failed
    held_bytes: int = 0  # what its processes held when they were ended because that was more than asked for

    @property
    def was_killed(self) -> bool:
        """Return whether the process was killed from outside, neither by us nor by the kernel for lack of memory."""
        explained = self.deadline or self.stopped or self.memory_kill or self.held_bytes
        killed = self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL
        return killed and not explained


def decisive_host(tasks: Sequence[Task], endings: Sequence[Ending]) -> int:
    """Return whose ending decides for a slice: the leader's if every host succeeded, else the first that failed itself.

    A host that was ended because a peer had failed decides nothing, and neither does one that failed later: most often
    it reports the loss of that peer.
    """
    if len(tasks) == 1:
        return 0
    failed = []
    for host, (task, ending) in enumerate(zip(tasks, endings, strict=True)):
        report = final_report(task, ending)
        if not ending.for_a_peer and (report is None or report["status"] != outcomes.SUCCEEDED):
            when = ending.failed_at if ending.failed_at is not None else float("inf")
            failed.append((when, report is None, host))
    return min(failed)[2] if failed else 0


def judge(task: Task, ending: Ending, *, started: float, ended: float, machine_bytes: int = 0) -> Outcome:
    """Return the verdict on an attempt."""
    report = final_report(task, ending)
    if report is None or (ending.deadline and report["status"] != outcomes.SUCCEEDED):
        report = _without_final_report(task, ending, machine_bytes)
    failed = report["status"] != outcomes.SUCCEEDED
    error = dict(report.get("error", {}))
    if failed and report.get("cause") not in {"exception", "runner"}:  # these have a traceback that explains them
        error["log"] = last_lines(task.log)
    if failed and task.hosts > 1:
        error["hosts"] = task.hosts
    return Outcome(
        job_id=task.job_id,
        attempt=task.attempt,
        host=task.host,
        status=str(report["status"]),
        cause=str(report.get("cause", "")),
        phase=str(report.get("phase", ending.phase)),
        error=error,
        body_length=int(report.get("body_length", 0)),
        body_sha256=str(report.get("body_sha256", "")),
        value_type=str(report.get("value_type", "")),
        phases=dict(report.get("phases", {})),
        files=tuple(report.get("files", ())),
        started=started,
        ended=ended,
    )


def final_report(task: Task, ending: Ending) -> dict[str, Any] | None:
    """Return the worker's final report if it is valid: a body that it promises must be there in full."""
    report = checked_report(ending.word) or read_final_report(task.word)  # it may have died between the two
    promised = report.get("body_length", 0) if report is not None else 0
    # It may be longer: a supervisor may have died between writing its page behind the body and handing both over.
    if promised and (not task.body.exists() or task.body.stat().st_size < promised):
        return None
    return report


def last_lines(log: Path) -> str:
    """Return the last lines of a log for its verdict, without reading the rest, and without the stack of C."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - outcomes.LOG_BYTES))
            text = file.read(outcomes.LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.partition(_C_STACK)[0].splitlines()[-outcomes.LOG_LINES :])


def _without_final_report(task: Task, ending: Ending, machine_bytes: int) -> dict[str, Any]:
    if ending.deadline:
        what = f"the job was ended at its deadline of {task.deadline:g} s"
        has_stacks = not task.is_command and '\n  File "' in last_lines(task.log)  # not one that was stopped, say
        what += "; the stacks of all threads are in its log" if has_stacks else ""
        return _failed("deadline", what)
    if ending.stopped:
        return _failed("stopped", "the job was ended on request")
    if ending.held_bytes:
        asked, held = map(_memory_text, (task.memory_bytes or 0, ending.held_bytes))
        what = f"the job ran out of memory: it asked for {asked}, and its processes held {held}"
        return _failed("memory", what, limit_bytes=task.memory_bytes, held_bytes=ending.held_bytes, next=MORE_MEMORY)
    if ending.status is None:
        return _failed("lost", "the supervisor of this job was killed, and the job with it")
    if os.WIFSIGNALED(ending.status):
        return _by_signal(task, os.WTERMSIG(ending.status), ending, machine_bytes)
    code = os.waitstatus_to_exitcode(ending.status)
    what = f"the job's process ended by itself with exit code {code}, as os._exit({code}) does, and left no result"
    return _failed("exit", what, exit_code=code)


def _memory_text(count: int) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _by_signal(task: Task, number: int, ending: Ending, machine_bytes: int) -> dict[str, Any]:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    what = f"the job's process was ended by {name}"
    big = machine_bytes and ending.peak_bytes > _KILLED_BY_MEMORY * machine_bytes
    if number == signal.SIGKILL and (ending.memory_kill or big):
        gib = ending.peak_bytes / 2**30
        what = f"the job's process ran out of memory: the kernel killed it (SIGKILL) at about {gib:.1f} GiB"
        return _failed("memory", what, signal=name, **({"next": MORE_MEMORY} if task.is_in_a_pod else {}))
    if number == signal.SIGKILL:
        what += ": it was killed with kill -9, or by the kernel for lack of memory"
    elif number == signal.SIGSEGV:
        what += ", a segmentation fault in native code; the Python stacks are in its log"
    elif number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
        what += ", sent from outside"
    return _failed("signal", what, signal=name)


def _failed(cause: str, message: str, **more: Any) -> dict[str, Any]:
    return {"status": outcomes.FAILED, "cause": cause, "error": {"message": message, **more}}


# ------------------------------------------------------------------------------------- in a pod: verdict, or try again


def reason_without_verdict(
    report: Mapping[str, Any] | None, ending: Ending, *, end_requested: bool, began: bool
) -> str:
    """Return why an attempt has no verdict, "" when it has one; ``began``: the user's function had begun."""
    report_ = report or {}
    error = report_.get("error") or {}
    ours = error.get("type") if error.get("module") == "kinetic.errors" else ""
    if ours == "Preempted":
        return "the function raised kinetic.errors.Preempted"
    returned = report_.get("status") == outcomes.SUCCEEDED and not report_.get("exited")
    if end_requested and not returned:  # whatever was raised meanwhile: the next attempt tells whether it was the cause
        return "this machine was taken away, or the job was stopped"
    if report is None and ending.was_killed and not began:
        return "the worker was killed before the function began"
    out_of_reach = report_.get("cause") == "runner" and ours in {"StoreUnreachableError", "CredentialsError"}
    if out_of_reach and not began:
        message = str(error.get("message") or "").partition("\n")[0]
        return f"{OUT_OF_REACH} before the function began: {message}"
    return ""


def first_failure(failures: Iterable[Outcome]) -> Outcome:
    """Return the failure of a slice that caused the others: the first that does not report a lost peer."""
    return min(failures, key=lambda failure: (is_peer_loss(failure), failure.ended or 0.0, failure.host))


def is_peer_loss(failure: Outcome) -> bool:
    """Return whether a failure reads like one that another host's end has caused."""
    error = failure.error
    words = f"{error.get('type', '')}: {error.get('message', '')}\n{error.get('log', '')}"
    return _PEER_LOSS.search(words) is not None
