"""Work: what a supervisor tells its worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic._runner import report

ORDER = "order"
DEVICES = "accelerator check"
VERIFICATION = "artifact verification"
INSTALL = "dependency install"
EXTRACT = "context extract"
ENVIRONMENT = "environment setup"
DATA = "data download"
UNPICKLE = "payload unpickle"
DEBUGGER = "debugger setup"
EXECUTE = "execute"
SERIALIZE = "result serialization"


@dataclass(frozen=True)
class Work:
    """One attempt at one job on one host.

    Attributes:
        job_id: The job.
        attempt: Its number, from 0.
        host: Index of this host in the slice.
        order_sha256: The digest that the launch promised.
        store_url: Where the order and its artifacts lie.
        environment: All variables the worker has; nothing else of the keeper's is left.
        umask: The client's.
        folder: Where the project is rebuilt.
        log: Where output goes.
        body: The file for the pickled value, in a folder that is closed to other users.
        meta: The file for the last word, beside it; written last.
        deadline: Seconds the function may take, or None.
        memory_bytes: What the processes of this host may hold, or None; in a pod the kernel sees to it.
        runner: Folder with the runner's code.
        hosts: How many hosts the slice has.
        coordinator: ``address:port`` at which its hosts meet; "" for one host.
        order_key: Where the order lies; "" for the job's own place.
        child: What the launch adds to an order that a batch shares, as plain JSON; None for a job of its own.
        data: A folder of this host's own for what it reads, beside the working folder.
        data_cache: What this machine keeps of data for other jobs.
        function: Name of the user's function, for messages from before the order is read.
        placed: References to all that the job reads, as plain JSON, if any of it needs a mount; else None.
        kind: The hardware of a pod: "cpu", "gpu" or "tpu"; "" where no devices are looked for.
        chips: How many devices the pod was given.
        require_accelerator: Whether the job fails where they do not come up.
        requirements: What to install first, an Artifact as plain JSON; None outside of pods.
        is_in_a_pod: Whether nothing on this disk outlives the job.
        own_interpreter: Whether the environment has what an interpreter reads only when it starts.
    """

    job_id: str
    attempt: int
    host: int
    order_sha256: str
    store_url: str
    environment: Mapping[str, str] = field(repr=False)
    umask: int
    folder: Path
    log: Path
    body: Path
    meta: Path
    deadline: float | None
    runner: str
    hosts: int = 1
    coordinator: str = ""
    order_key: str = ""
    child: Mapping[str, Any] | None = None
    data: Path = Path()
    data_cache: Path = Path()
    function: str = ""
    placed: Sequence[Mapping[str, Any]] | None = None
    kind: str = ""
    chips: int = 0
    require_accelerator: bool = False
    requirements: Mapping[str, Any] | None = None
    is_in_a_pod: bool = False
    own_interpreter: bool = False
    memory_bytes: int | None = None

    @property
    def data_shared(self) -> Path | None:
        """A folder for data that the hosts of a slice on one machine have in common; None for one host."""
        return self.data.with_name(f"data-{self.attempt}-shared") if self.hosts > 1 else None

    @property
    def began(self) -> Path:
        """The file that appears when the function begins: before that, the job can be started again unharmed."""
        return self.log.with_name(f"{self.log.name}.began")

    @property
    def door(self) -> Path:
        """The file into which the stacks of its threads are written for visitors; see ``doors``."""
        return self.log.with_name(f"{self.log.name}.stacks")

    @property
    def debug_page(self) -> Path:
        """The file in which the debug server of this host says where it is and whether it waits."""
        return self.log.with_name(f"{self.log.name}.debug")

    def last_word(self) -> dict[str, Any] | None:
        """Return the worker's last word as it is on the disk, or None: it outlives both processes."""
        return report.read_word(self.meta)
