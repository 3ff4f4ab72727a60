"""What every backend can do, in four roles. A backend never opens a store; what may be asked of many is asked once.

    Launcher    starts jobs, stops them, and removes what is left of them
    Observer    says how jobs stand, and waits for changes
    Inspector   looks into a running job: its log, a shell beside it, its stacks, its ports
    Secrets     keeps what the children of a batch need and no store may hold

A function takes the role that it needs. A backend has all four; it is done when it passes the contract suite of
tests/contracts/test_backend.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic._hardware.placement import Placement
    from kinetic._stores.protocol import Store
    from kinetic._wire.order import Child, Order


@dataclass(frozen=True)
class Launch:
    """Everything a backend needs to start one job.

    Attributes:
        order: What the runner will do.
        order_sha256: Digest of the Order's bytes as they lie in the store.
        store_url: Where the Order lies.
        placement: The hardware.
        key: The job's own key, for the process that seals the Outcome; never for user code.
        key_id: Name of the namespace's key it was derived from.
        captured: Values of the captured environment variables.
        group: The batch this job belongs to, or "".
        interpreter: The Python that it runs in; "" for the client's own.
        environ: The environment of the client that made the batch; None for this client's own.
        child: What this launch adds to an order that its batch shares; ``order`` has it in it already.
        requirements: What it asks of its backend besides hardware: plain JSON that only this backend reads; None on
            this machine.
        owner: Who submits it, for whoever looks at a cluster.
    """

    order: Order
    order_sha256: str
    store_url: str
    placement: Placement
    key: bytes = field(repr=False)
    key_id: str
    captured: Mapping[str, str] = field(repr=False, default_factory=dict)
    group: str = ""
    interpreter: str = ""
    child: Child | None = None
    environ: Mapping[str, str] | None = field(repr=False, default=None)
    requirements: Mapping[str, Any] | None = None
    owner: str = ""


@dataclass(frozen=True)
class Observation:
    """What a backend sees of one job now. The store is the truth; the backend forgets.

    Attributes:
        name: The job's id.
        status: PENDING, RUNNING, SUCCEEDED or FAILED as the backend sees it.
        attempt: The attempt that runs or ran last; None where only the store knows.
        version: Changes whenever something about the job changes; "" where nothing can be concluded from it.
        reason: A plain sentence: what a pending job waits for, how a failed one ended.
        where: The machine.
        submitted: Unix time.
        started: Unix time, or None.
        ended: Unix time, or None.
    """

    name: str
    status: JobStatus
    attempt: int | None = 0
    reason: str = ""
    where: str = ""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    version: str = ""


class DebugAddress(NamedTuple):
    """Where the debug server of one host of a job listens, on the loopback interface of its machine.

    Attributes:
        port: The port.
        machine: Where it listens, as the backend names it; "" on this machine.
        roots: Pairs of folders: as the client knows one, and where it lies in the job. A cluster does not know them.
        state: "waiting" for a debugger, "attached", or "over": it waits for nobody any more, and takes whoever comes.
            A cluster does not know it and says "": ``_jobs/addressing`` reads it and the rest in the store.
        until: Unix time at which it stops waiting.
    """

    port: int
    machine: str = ""
    roots: tuple[tuple[str, str], ...] = ()
    state: str = ""
    until: float = 0.0


class Stacks(NamedTuple):
    """What the threads of one host of a job are doing.

    Attributes:
        host: Which host, from 0.
        text: Their stacks, as Python's faulthandler writes them; "" where there was no answer.
        why: Why there was none, or "".
    """

    host: int
    text: str
    why: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Why a job is as it is, and what to do next.

    Attributes:
        what: A sentence, without a full stop.
        why: The place's own words.
        next: What to do.
        stuck: Whether waiting alone will not help.
        waits: Whether it waits for something; False where there is only to say that it runs, or has ended.
        code: A short word for the reason, as in an error's brackets; "" where there is none.
        status: How the job stood at the very moment that this tells of; None where whoever asks knows it.
    """

    what: str
    why: str = ""
    next: str = ""
    stuck: bool = False
    waits: bool = True
    code: str = ""
    status: JobStatus | None = None


class Launcher(Protocol):
    """Starts jobs, stops them, and removes what is left of them."""

    def begin(self, job_id: str) -> None:
        """Mark a job as being submitted, before anybody can find its record."""

    def finish_submitting(self, job_id: str, *, leave_nothing: bool = False) -> None:
        """Take the mark of ``begin`` away: the job is launched, or will never be.

        Args:
            job_id: The job, or the batch.
            leave_nothing: Whether nothing of that name is launched, so that no folder of its own is needed.
        """

    def check(self, placement: Placement, requirements: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Refuse what cannot run here, before anything is packed.

        Args:
            placement: The hardware.
            requirements: What is known already of what its jobs will ask of this backend; see ``Launch``.

        Returns:
            Sentences about what is emulated or ignored here, for the user.

        Raises:
            CapacityError: The hardware cannot be had here.
        """

    def check_store(self, url: str) -> None:
        """Refuse a store that jobs of this place cannot reach.

        Raises:
            OptionError: They cannot.
        """

    def prepare(self) -> None:
        """Begin whatever takes time and does not depend on the job, side by side with packing."""

    def launch(self, launches: Sequence[Launch]) -> list[str]:
        """Start jobs; a job that was started before is success."""

    def name_of(self, job_id: str, hosts: int) -> str:
        """Return the name of a job's resource, for humans and for kubectl."""

    def stop(self, names: Sequence[str], *, wait: float) -> bool:
        """End the processes of jobs; True when all are known to be gone within ``wait`` seconds."""

    def remove(self, names: Sequence[str]) -> None:
        """Forget jobs that have ended: rows or resources, and what lies around them on that machine."""

    def sweep(
        self, scratch: Path | None, history: Callable[[Store, str], Mapping[str, Any] | None] | None = None
    ) -> None:
        """Remove what nobody needs any more on this machine, at most once an hour.

        Args:
            scratch: The store's folder for files being written, if it has one.
            history: Gives the page of a removed job, once it is verified; without it none is obeyed.
        """


class Observer(Protocol):
    """Says how jobs stand, and waits for changes.

    Attributes:
        clock: What those who wait go by.
        poll_seconds: How often whoever waits looks anew although nothing was told: a guard against lost news.
    """

    @property
    def clock(self) -> Clock: ...
    @property
    def poll_seconds(self) -> float: ...

    def observe(self, names: Sequence[str]) -> dict[str, Observation]:
        """Look at some jobs at once; what is not there is absent from the answer."""

    def observe_group(self, group: str) -> dict[str, Observation]:
        """Look at every living job of a batch with one question, whatever their number.

        Those that have ended are left out, and so are reasons.
        """

    def watch_group(self, group: str, *, seconds: float) -> None:
        """Wait until some job of a batch may have ended, at most some seconds."""

    def watch(self, name: str, *, seconds: float) -> bool:
        """Wait until something about a job may have changed, at most some seconds; say whether to look at it now."""

    def explain(self, name: str) -> Diagnosis | None:
        """Say why a job is pending or how it died."""

    def stop_watching(self, name: str) -> None:
        """Let go of what watching a job needs: nobody here waits for it any more."""

    def find(self) -> Iterator[Observation]:
        """Look at every job that this place knows."""


class Inspector(Protocol):
    """Looks into a job: its log, a shell beside it, the stacks of its threads, its ports.

    Attributes:
        log_poll_seconds: How often whoever follows a log asks for more of it.
    """

    @property
    def log_poll_seconds(self) -> float: ...

    def live_log(self, name: str, *, host: int, attempt: int, follow: bool = False) -> LiveLog | None:
        """Return the log that the place still holds, or None when only the store may have it.

        Args:
            name: The job.
            host: Of which host, from 0.
            attempt: Which attempt.
            follow: Whether it is read as it grows, rather than once.
        """

    def last_log(self, name: str, *, host: int, attempt: int) -> LiveLog | None:
        """Return the log of a process that was ended before it could bring all of it into the store.

        None where there is no such process, or where nothing is left of it.
        """

    def debug_addresses(self, name: str, *, hosts: Sequence[int]) -> dict[int, DebugAddress]:
        """Say where the debug servers of a running job's newest attempt are; a host that has none is left out.

        Args:
            name: The job.
            hosts: Of which hosts, from 0.
        """

    def dial(self, address: DebugAddress) -> AbstractContextManager[Link]:
        """Open a connection to a debug server.

        Raises:
            BackendError: Nobody listens there, or we may not.
            OSError: The same, on this machine.
        """

    def run_in(self, name: str, command: Sequence[str], *, host: int, tty: bool) -> int:
        """Run a command where a job runs, with this process's input and output, and return its exit code.

        It has the job's variables and stands in its working directory.

        Args:
            name: The job; it runs.
            command: Program and arguments; none for a shell.
            host: On which host, from 0.
            tty: Whether input and output are a terminal, and shall be one there.

        Raises:
            RunnerError: There is nothing to go to.
            AccessDeniedError: We may not.
            BackendError: The connection broke.
        """

    def stacks(self, name: str, *, hosts: Sequence[int]) -> list[Stacks]:
        """Ask hosts of a running job for the Python stacks of all their threads; nothing is stopped.

        Raises:
            AccessDeniedError: We may not.
        """


class Secrets(Protocol):
    """Keeps what the children of a batch need and no store may hold."""

    def keep(self, group: str, secrets: Mapping[str, Any], keys: Callable[[], Sequence[bytes]]) -> None:
        """Keep what the children of a batch need and no store may hold: values of environment variables, and keys.

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
    """A place where jobs run.

    Attributes:
        name: As the registry has it.
        namespace: The namespace of its jobs, as their handles record it; a constant where there are none.
        is_here: Whether jobs run on this machine: then they see its files, and only this machine sees its processes.
        environ: The environment of the client that opened it.
    """

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def is_here(self) -> bool: ...
    @property
    def environ(self) -> Mapping[str, str]: ...


class LiveLog(Protocol):
    """The log of a running job, by byte position.

    What it raises when it cannot go on is an OSError; then the store has what is missing, at the same positions.

    Attributes:
        is_complete: Whether all of the log is in it once the job has its verdict; otherwise the store has the rest.
    """

    @property
    def is_complete(self) -> bool: ...

    def size(self) -> int:
        """Return how many bytes there are now."""

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position; fewer when there are fewer."""


class Link(Protocol):
    """A connection to a port of a job, to be written and read by two threads."""

    def send(self, data: bytes) -> None:
        """Send bytes, however many; what cannot be sent any more is an OSError or a BackendError."""

    def receive(self) -> bytes:
        """Return the next bytes that come, b"" when the other end has closed or the connection broke.

        Raises:
            BackendError: Nobody listens there.
        """

    def finish(self) -> None:
        """Say that nothing more is sent; then the other end closes, too."""


class Clock(Protocol):
    """Tells the time, and waits."""

    def time(self) -> float:
        """Return Unix time in seconds."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards, from some moment in the past."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of this machine."""

    def time(self) -> float:
        """Return Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since some moment in the past."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only when it is told to: to sleep on it takes no time.

    Args:
        now: Unix time at which it starts.
    """

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._begun, self._passed = now, 0.0
        self._lock = threading.Lock()

    def time(self) -> float:
        """Return Unix time in seconds, by this clock."""
        return self._begun + self._passed

    def monotonic(self) -> float:
        """Return the seconds that have passed on this clock."""
        return self._passed

    def sleep(self, seconds: float) -> None:
        """Move the clock forward, and return at once."""
        with self._lock:
            self._passed += max(seconds, 0.0)


SYSTEM = SystemClock()
