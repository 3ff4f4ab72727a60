"""What every place where jobs run can do. A backend never knows a Store; everything is asked in the plural."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._hardware.placement import Placement
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


@dataclass(frozen=True)
class Sighting:
    """What a backend sees of one job now. The store is the truth; the backend forgets.

    Attributes:
        name: The job's id.
        status: PENDING, RUNNING, SUCCEEDED or FAILED as the backend sees it.
        attempt: The attempt that runs or ran last.
        reason: A plain sentence: what a pending job waits for, how a failed one ended.
        where: The machine.
        submitted: Unix time.
        started: Unix time, or None.
        ended: Unix time, or None.
    """

    name: str
    status: JobStatus
    attempt: int = 0
    reason: str = ""
    where: str = ""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Why a job is as it is, and what to do next."""

    what: str
    why: str = ""
    next: str = ""


class Backend(Protocol):
    """A place where jobs run."""

    name: ClassVar[str]

    def check(self, placement: Placement) -> tuple[str, ...]:
        """Refuse what cannot run here, before anything is packed.

        Returns:
            Sentences about what is emulated or ignored here, for the user.

        Raises:
            CapacityError: The hardware cannot be had here.
        """

    def prepare(self) -> None:
        """Begin whatever takes time and does not depend on the job, side by side with packing."""

    def launch(self, launches: Sequence[Launch]) -> list[str]:
        """Start jobs; a job that was started before is success."""

    def observe(self, names: Sequence[str]) -> dict[str, Sighting]:
        """Look at some jobs at once; what is not there is absent from the answer."""

    def observe_group(self, group: str) -> dict[str, Sighting]:
        """Look at every living job of a batch with one question, whatever their number.

        Those that have ended are left out, and so are reasons.
        """

    def watch_group(self, group: str, *, seconds: float) -> None:
        """Wait until some job of a batch may have ended, at most some seconds."""

    def watch(self, name: str, *, seconds: float) -> Sighting | None:
        """Wait until something about a job may have changed, at most some seconds; then look at it."""

    def explain(self, name: str) -> Diagnosis | None:
        """Say why a job is pending or how it died."""

    def live_log(self, name: str, *, host: int, attempt: int) -> LiveLog | None:
        """Return the log that the place still holds, or None when only the store may have it."""

    def stop(self, names: Sequence[str], *, wait: float) -> bool:
        """End the processes of jobs; True when all are known to be gone within ``wait`` seconds."""

    def remove(self, names: Sequence[str]) -> None:
        """Forget jobs that have ended: rows or resources, and what lies around them on that machine."""

    def keep(self, group: str, secrets: Mapping[str, Any]) -> None:
        """Keep what the children of a batch need and no store may hold: values of environment variables."""

    def kept(self, group: str) -> dict[str, Any] | None:
        """Return what was kept for a batch, or None where this place does not have it."""

    def forget_kept(self, group: str) -> None:
        """Remove what was kept for a batch."""

    def find(self) -> Iterator[Sighting]:
        """Look at every job that this place knows."""


class LiveLog(Protocol):
    """The log of a running job, by byte position."""

    def size(self) -> int:
        """Return how many bytes there are now."""

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position; fewer when there are fewer."""
