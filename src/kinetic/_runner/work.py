"""Work: what the keeping process tells the working process, and what it hears from it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic._wire.steps import step

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
        body: The file for the pickled value, on the store's file system.
        meta: The file that says that the body is complete; written last.
        reserve: Space kept for a failure on a full disk.
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
    reserve: Path
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
        """Return the worker's final word as it lies on the disk, or None: it outlives both processes."""
        try:
            word = json.loads(self.meta.read_text())
        except (OSError, ValueError):
            return None
        return word if isinstance(word, dict) else None


@dataclass
class Report:
    """What the worker said last; the keeper's only source while it lives.

    Attributes:
        phase: In which phase it is.
        since: Monotonic time at which that phase began.
        done: The final word, or None.
    """

    phase: str = ORDER
    done: dict[str, Any] | None = None


class Teller:
    """The worker's end of the report."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.phase = ORDER

    def enter(self, phase: str) -> None:
        """Say that a phase begins."""
        self.phase = phase
        self._tell({"phase": phase})

    def done(self, word: dict[str, Any], meta: Path) -> None:
        """Say the final word; on disk first, so that it outlives both processes."""
        if word.get("body_length"):
            beside = meta.with_name(meta.name + ".part")
            beside.write_text(json.dumps(word))
            beside.replace(meta)
            step("worker:meta-written")
        self._tell({"phase": self.phase, "done": word})

    def _tell(self, page: dict[str, Any]) -> None:
        line = json.dumps(page).encode() + b"\n"
        with contextlib.suppress(OSError):  # a keeper that is gone hears nothing; the meta file remains
            while line:
                line = line[os.write(self._descriptor, line) :]


class Listener:
    """The keeper's end of the report."""

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
        return bool(data)

    def _take(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):  # user code that writes here harms its own job only
            page = json.loads(line)
            if isinstance(page, dict):
                self.report.phase = str(page.get("phase", self.report.phase))
                self.report.done = page.get("done") or self.report.done
