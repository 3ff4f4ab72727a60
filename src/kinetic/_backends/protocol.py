"""What every backend can do, in four roles. A backend never opens a store; what may be asked of many is asked once.

    Launcher    starts jobs, stops them, and removes what is left of them
    Observer    reports the state of jobs, and waits for changes
    Inspector   looks into a running job: its log, a shell beside it, its stacks, its ports
    Secrets     keeps what the children of a batch need and no store may hold

A function takes the role that it needs. A backend has all four; it is done when it passes the contract suite of
tests/contracts/test_backend.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from kinetic._wire import NamedTuple, dataclass
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic._hardware.placement import Placement
    from kinetic._stores.protocol import Store
    from kinetic._wire.order import Child, Order
    from kinetic._wire.progress import Progress


class Clock(Protocol):
    """Returns the time, and waits: the module ``time``, or a clock that only a test moves."""

    def time(self) -> float: ...
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...


SYSTEM: Clock = time


@dataclass(frozen=True)
class Launch:
    """Everything a backend needs to start one job."""

    order: Order  # what the runner will do
    order_sha256: str  # digest of the Order's bytes in the store
    store_url: str  # where the Order is
    placement: Placement  # the hardware
    key: bytes = field(repr=False)  # the job's own key, for the process that seals the Outcome; never for user code
    key_id: str  # name of the namespace's key it was derived from
    # values of the captured environment variables
    captured: Mapping[str, str] = field(repr=False, default_factory=dict)
    cache_key: bytes = field(repr=False, default=b"")  # of the compile cache; empty where that is off
    group: str = ""  # the batch this job belongs to, or ""
    interpreter: str = ""  # the Python that it runs in; "" for the client's own
    # what this launch adds to an order that its batch shares; ``order`` has it in it already
    child: Child | None = None
    # the environment of the client that made the batch; None for this client's own
    environ: Mapping[str, str] | None = field(repr=False, default=None)
    # what it asks of its backend besides hardware: plain JSON that only this backend reads; None on this machine
    requirements: Mapping[str, Any] | None = None
    owner: str = ""  # the user who submits it, as shown on a cluster
    # the keys that verify what it follows, one behind the other, in the order of ``Predecessor.ids``
    followed: bytes = field(repr=False, default=b"")
    # of a batch's first child, whose compiled programs others wait for: how long compiling took the last time; else 0
    awaited_seconds: float = 0.0
    programs_of: str = ""  # the job that has to compile first; "" where this one starts at once


@dataclass(frozen=True)
class Observation:
    """What a backend sees of one job now. The store is the truth; the backend forgets."""

    name: str  # the job's id
    status: JobStatus  # PENDING, RUNNING, SUCCEEDED or FAILED as the backend sees it
    attempt: int | None = 0  # the attempt that runs or ran last; None where only the store knows
    reason: str = ""  # a plain sentence: what a pending job waits for, how a failed one ended
    submitted: float | None = None  # Unix time, as are ``started`` and ``ended``
    started: float | None = None
    ended: float | None = None
    # whether it waits for others to end and clients must start it: on a cluster. Elsewhere its backend does so
    waits_for_others: bool = False
    version: str = ""  # changes whenever something about the job changes; "" where nothing can be concluded from it
    warm: str = ""  # the warm pod that it was assigned to
    warm_ended: bool = False  # whether that pod is gone for good
    may_come_back: bool = False  # whether that pod may have given it back, which only the store knows
    is_told: bool = False  # whether that pod tells this process of its end, so that nothing else need be followed


class DebugAddress(NamedTuple):
    """Where the debug server of one host of a job listens, on the loopback interface of its machine."""

    port: int  # the port
    machine: str = ""  # where it listens, as the backend names it; "" on this machine
    # pairs of folders: as the client knows one, and where it is in the job. A cluster does not know them
    roots: tuple[tuple[str, str], ...] = ()
    # "waiting" for a debugger, "attached", or "over": it no longer waits, and still accepts a debugger. A cluster
    # returns "": ``_inspect/port_forward`` reads it and the rest in the store
    state: str = ""
    until: float = 0.0  # Unix time at which it stops waiting


class Stacks(NamedTuple):
    """What the threads of one host of a job are doing."""

    host: int  # which host, from 0
    text: str  # their stacks, as Python's faulthandler writes them; "" where there was no answer
    why: str = ""  # why there was none, or ""


@dataclass(frozen=True)
class Diagnosis:
    """The reason for a job's state, and what to do next."""

    what: str  # a sentence, without a full stop
    why: str = ""  # the place's own words
    next: str = ""  # what to do
    stuck: bool = False  # whether waiting alone will not help
    waits: bool = True  # whether it waits for something; False where it just runs, or has ended
    code: str = ""  # a short word for the reason, as in an error's brackets; "" where there is none
    status: JobStatus | None = None  # the job's status at that very moment; None where the caller knows it


class Launcher(Protocol):
    """Starts jobs, stops them, and removes what is left of them."""

    def begin(self, job_id: str) -> None:
        """Mark a job as being submitted, before its record can be found."""

    def finish_submitting(self, job_id: str, *, leave_nothing: bool = False) -> None:
        """Remove the mark of ``begin``: the job, or the batch, is launched, or never will be.

        With ``leave_nothing``, nothing of that name is launched, so that no folder of its own is needed.
        """

    def check(self, placement: Placement, requirements: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Refuse what cannot run here, before anything is packed; return sentences about what is emulated or ignored.

        Args:
            placement: The hardware.
            requirements: What is already known of what its jobs will ask of this backend; see ``Launch``.

        Raises:
            CapacityError: The hardware is not available here.
        """

    def check_store(self, url: str, requirements: Mapping[str, Any] | None = None) -> None:
        """Refuse a store that jobs of this place cannot reach, with an OptionError; the requirements are as above."""

    def prepare(self) -> None:
        """Start whatever takes time and does not depend on the job, while the client packs."""

    def launch(self, launches: Sequence[Launch]) -> list[str]:
        """Start jobs; a job that was started before is success.

        Raises:
            CapacityError: A quota has no room for some; its ``launched`` names those that were started all the same.
        """

    def can_hold(self, placement: Placement, requirements: Mapping[str, Any] | None) -> bool:
        """Return whether a job here can be launched to wait until another job, without any client, starts it."""

    def release(self, names: Sequence[str]) -> None:
        """Start jobs that were launched to wait for others; a job that does not wait stays as it is."""

    def name_of(self, job_id: str, hosts: int) -> str:
        """Return the name of a job's resource, for humans and for kubectl."""

    def check_stop(self) -> None:
        """Raise an error if this account may not end jobs here: one that is closed and still runs computes for nothing.

        Raises:
            AccessDeniedError: It may not.
        """

    def stop(self, names: Sequence[str], *, wait: float) -> bool:
        """End the processes of jobs; True when all are known to be gone within ``wait`` seconds."""

    def remove(self, names: Sequence[str], *, then: Callable[[], object] | None = None) -> None:
        """Remove the rows or resources of jobs that have ended, and their files on that machine.

        ``then``: what to do afterwards. With it, all may be done while the caller continues, and before this process
        ends.
        """

    def remove_unused_code(self) -> int:
        """Remove kinetic's code that was brought to this place and that no job needs; return of how many versions.

        Raises:
            AccessDeniedError: This account may not do that.
        """

    def sweep(
        self, scratch: Path | None, history: Callable[[Store, str], Mapping[str, Any] | None] | None = None
    ) -> None:
        """Remove expired files of this machine, at most once an hour.

        Args:
            scratch: The store's folder for files being written, if it has one.
            history: Returns the page of a removed job, once it is verified; without it no page is obeyed.
        """


class Observer(Protocol):
    """Reports the state of jobs, and waits for changes."""

    @property
    def clock(self) -> Clock: ...  # the clock by which its callers wait
    @property
    def poll_seconds(self) -> float: ...  # how often a waiting caller observes a job although no change was reported

    def observe(self, names: Sequence[str]) -> dict[str, Observation]:
        """Observe some jobs at once; a job that is not there is missing in the answer."""

    def observe_group(self, group: str) -> dict[str, Observation]:
        """Observe every job of a batch that has not ended with one request, whatever their number; without reasons."""

    def watch_group(self, group: str, *, seconds: float) -> None:
        """Wait until some job of a batch may have ended, at most some seconds."""

    def watch(self, name: str, *, seconds: float) -> bool:
        """Wait until a job may have changed, at most some seconds; return whether to observe it now."""

    def explain(self, name: str) -> Diagnosis | None:
        """Return why a job is pending or how it died."""

    def without_slot(self) -> AbstractContextManager[None]:
        """While it is open, a job that is this process waits for others, and needs no slot of its own."""

    def stop_watching(self, name: str) -> None:
        """Free what watching a job needs."""

    def find(self) -> Iterator[Observation]:
        """Observe every job that this place knows."""


class Inspector(Protocol):
    """Looks into a job: its log, a shell beside it, the stacks of its threads, its ports. Hosts count from 0."""

    @property
    def log_poll_seconds(self) -> float: ...  # how often a follower of a log asks for more of it

    def live_log(self, name: str, *, host: int, attempt: int, follow: bool = False) -> LiveLog | None:
        """Return the log that the place still holds, or None when only the store may have it.

        ``follow`` means that it is read as it grows, rather than once.
        """

    def last_log(self, name: str, *, host: int, attempt: int) -> LiveLog | None:
        """Return what is left of the log of a process that was ended before all of it was in the store, or None."""

    def live_usage(self, name: str, *, host: int, attempt: int) -> bytes | None:
        """Return what a host used so far, as JSON, where the place keeps it itself; None where the store has it."""

    def live_progress(self, name: str, *, host: int, attempt: int) -> Progress | None:
        """Return what a host reported of its progress last, where the place has that itself; the usage has it, too."""

    def debug_addresses(self, name: str, *, hosts: Sequence[int]) -> dict[int, DebugAddress]:
        """Return the debug servers of a running job's newest attempt, by host; a host without one is left out."""

    def port_address(self, name: str, port: int, *, host: int) -> DebugAddress | None:
        """Return where a port of a running job is, whether something listens there or not; None while it has none."""

    def dial(self, address: DebugAddress) -> AbstractContextManager[Link]:
        """Open a connection to a debug server, or another port of a job.

        Raises:
            BackendError: Nothing listens there, or we have no permission.
            OSError: The same, on this machine.
        """

    def run_in(self, name: str, command: Sequence[str], *, host: int, tty: bool) -> int:
        """Run a command where a job runs, with this process's input and output, and return its exit code.

        It has the job's variables and working directory.

        Args:
            name: The job; it runs.
            command: Program and arguments; none for a shell.
            host: On which host.
            tty: Whether input and output are a terminal, and must be one there.

        Raises:
            RunnerError: The job has no process there.
            AccessDeniedError: We have no permission.
            BackendError: The connection broke.
        """

    def stacks(self, name: str, *, hosts: Sequence[int]) -> list[Stacks]:
        """Ask hosts of a running job for the Python stacks of all their threads, without stopping them.

        Raises:
            AccessDeniedError: We have no permission.
        """


class Secrets(Protocol):
    """Keeps what the children of a batch need and no store may hold: values of environment variables, and keys."""

    def keep(self, group: str, secrets: Mapping[str, Any], keys: Callable[[], Sequence[bytes]]) -> None:
        """Keep the secrets of a batch.

        Args:
            group: The batch.
            secrets: What ``kept`` returns again.
            keys: Returns the keys of the first attempts, by index; only asked where children cannot ask this client.
        """

    def kept(self, group: str) -> dict[str, Any] | None:
        """Return what was kept for a batch, or None where this place does not have it."""

    def forget_kept(self, group: str) -> None:
        """Remove what was kept for a batch."""


class Backend(Launcher, Observer, Inspector, Secrets, Protocol):
    """A place where jobs run."""

    @property
    def name(self) -> str: ...  # as the registry has it
    # the namespace of its jobs, as their handles record it; a constant where there are none
    @property
    def namespace(self) -> str: ...
    # whether jobs run on this machine: then they see its files, and only this machine sees its processes
    @property
    def is_here(self) -> bool: ...
    @property
    def environ(self) -> Mapping[str, str]: ...  # the environment of the client that opened it


class LiveLog(Protocol):
    """The log of a running job, by byte position; when it raises an OSError, the store has the rest, as positioned."""

    # whether all of the log is in it once the job has its verdict; otherwise the store has the rest
    @property
    def is_complete(self) -> bool: ...

    def size(self) -> int:
        """Return how many bytes there are now."""

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position; fewer when there are fewer."""


class BytesLog:
    """A log that is in memory."""

    def __init__(self, data: bytes, *, is_complete: bool = True) -> None:
        self._data, self.is_complete = data, is_complete

    def size(self) -> int:
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        return self._data[start : start + length]


class Link(Protocol):
    """A connection to a port of a job, to be written and read by two threads."""

    def send(self, data: bytes) -> None:
        """Send bytes, however many; what cannot be sent any more is an OSError or a BackendError."""

    def receive(self) -> bytes:
        """Return the next bytes, b"" when the other end has closed or the connection broke.

        Raises:
            BackendError: Nothing listens there.
        """

    def finish(self) -> None:
        """Close this direction; then the other end closes, too."""
