"""The task: what is told of one job to whoever supervises it, and by that to its workers.

A backend writes it: on this machine into a file for its owner only, beside the queue; for a pod as the only argument of
its container, in which nothing is secret: ``python3 /kinetic/runner.zip TASK``, or ``@FILE`` where it is too long for a
command line (128 KiB on Linux). A supervisor adds which attempt it is and where its files lie, and hands it to a worker
for each host. The job's key is in no task: it lies in a file of its own.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic._wire import documents, fields, keys

FAILED_EXIT = 82
INFRASTRUCTURE_EXIT = 83  # the one code of ours that a podFailurePolicy does not answer with FailJob
LOST_EXIT = 255  # containerd's "Unknown", for what ran when its machine went down and came up again by itself

SECRET_FOLDER = "/kinetic/secret"  # noqa: S105 - a folder; its files are for root and one group (0440)
KEY_FILE = "job-key"  # the job's key, 32 raw bytes; for a batch those of all its children, one behind the other
STORE_SECRET_FOLDER = "/kinetic/store"  # noqa: S105 - the named Secret with credentials for the store
STORE_KEY_FILE = "credentials.json"  # of it: a key file of Google's
BUCKETS_FOLDER = "/kinetic/buckets"  # of an order's data, that with the number N is mounted at BUCKETS_FOLDER/N
ENVIRONMENT_FILE = "environment.json"  # captured values: {"NAME": "value"}; may be missing when there are none
LEFT_OUT = "left_out.json"  # in the folder of a pod's runner: the names of the modules that stay with the client
TERMINATION_LOG = "/dev/termination-log"  # Kubernetes shows what stands in it as the container's message

# Of these the first that holds a number says which host this is; Kubernetes sets it in every pod of an Indexed Job.
HOST_VARIABLES = ("JOB_COMPLETION_INDEX", "LWS_WORKER_INDEX", "TPU_WORKER_ID")
RESTART_VARIABLE = "JOBSET_RESTART_ATTEMPT"  # of several hosts: how often the whole set was started again
MORE_MEMORY = 'write resources = { memory = "32Gi" } under [tool.kinetic] in pyproject.toml, or ask for less at once'
DETECT = "detect"  # as a coordinator: JAX finds it by itself, as it does on TPU hosts of GKE


# The phases of an attempt, in their order.
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

# Has a worker write the stacks of all its threads into its log. Not SIGUSR1: NCCL catches it. Not SIGUSR2 where there
# is a choice: schedulers send it. A real-time signal has a number only, which Python takes as it is.
LOG_STACKS_SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2 + 3) - 3
# The same into a file of their own. Who ignores it by default on macOS, where it is Ctrl-T's, is safe.
STACKS_SIGNAL: int = signal.SIGRTMAX - 4 if hasattr(signal, "SIGRTMAX") else getattr(signal, "SIGINFO", signal.SIGUSR2)


@dataclass(frozen=True)
class PodSettings:
    """What only the first process of a pod needs to know.

    Attributes:
        output_dir: Value of KINETIC_OUTPUT_DIR.
        checkpoint_dir: Value of KINETIC_CHECKPOINT_DIR.
        most_attempts: After so many attempts that were cut short the job fails; None for no limit.
        holds: After the verdict the process stays until it is told to end: for a LeaderWorkerSet, which starts again
            whatever ends.
        removes: Path, in the cluster's API, of what the leader deletes after the verdict; "" for nothing.
        store_requirement: What must be installed to open the store, where the image lacks it; "" for nothing.
        runner_sha256: Digest of the zip, for the note.
        key_offset: Where the job's key begins in its file, in bytes.
        secret: The folder of the mounted Secret.
        last_words: The file for what Kubernetes shall show of a failure.
        poll_seconds: How often a slice of several hosts looks for what its hosts tell.
        grace_seconds: From the first failure in a slice to the verdict: time for a preempted host to say so.
        patience_seconds: How long the hosts of a slice wait at their beginning for a store that is out of reach.
    """

    output_dir: str = ""
    checkpoint_dir: str = ""
    most_attempts: int | None = None
    holds: bool = False
    removes: str = ""
    store_requirement: str = ""
    runner_sha256: str = ""
    key_offset: int = 0
    secret: str = SECRET_FOLDER
    last_words: str = TERMINATION_LOG
    poll_seconds: float = 5.0
    grace_seconds: float = 15.0
    patience_seconds: float = 3600.0


class _HostFiles:
    """What one host of an attempt has on the disk of its machine: all names, in one place."""

    base: str
    suffix: str

    @property
    def folder(self) -> Path:
        """Where the project is rebuilt."""
        return self._file("work")

    @property
    def log(self) -> Path:
        """Where output goes."""
        return self._file("log")

    @property
    def body(self) -> Path:
        """The file for the pickled value, until the store has it; never in the store, where others may write."""
        return self._file("body")

    @property
    def word(self) -> Path:
        """The file for the worker's last word, written last: it outlives worker and supervisor."""
        return self._file("word")

    @property
    def data(self) -> Path:
        """A folder of this host's own for what it reads, beside the working folder."""
        return self._file("data")

    @property
    def began(self) -> Path:
        """The file that appears when the function begins: before that, the job can be started again unharmed."""
        return self._file("log", ".began")

    @property
    def stacks(self) -> Path:
        """The file into which the stacks of its threads are written for whoever asks."""
        return self._file("log", ".stacks")

    @property
    def debug_page(self) -> Path:
        """The file in which the debug server of this host says where it is and whether it waits."""
        return self._file("log", ".debug")

    def _file(self, name: str, end: str = "") -> Path:
        return Path(self.base, f"{name}{self.suffix}{end}")


@dataclass(frozen=True)
class Task(_HostFiles):
    """One job as it is launched, and one attempt at it on one host.

    Attributes:
        job_id: The job.
        order_sha256: Digest of the order: the first link of the chain by which everything is verified.
        store_url: Where the order lies and the outcome goes.
        key_id: Which key seals the outcome.
        umask: The client's.
        deadline: Seconds the function may take, or None.
        environment: All variables that a worker has; nothing else of its supervisor's is left. Of a pod's task they are
            filled in by the supervisor: values of captured variables are in no argument of a container.
        order_key: Where the order lies; "" for the job's own place.
        child: What the launch adds to an order that a batch shares, as plain JSON; None for a job of its own.
        mark: Stem of the mark's key, for a batch's child.
        hosts: How many hosts carry out this job together.
        coordinator: ``address:port`` at which JAX's processes meet; DETECT of ``pod.py``; or "" to leave JAX alone.
        function: Name of the user's function, for messages from before the order is read.
        placed: References to all that the job reads, as plain JSON, if any of it needs a mount; else None.
        retries: How many more times a job that failed is tried.
        memory_bytes: What the processes of a host may hold, or None; in a pod the kernel sees to it.
        kind: The hardware of a pod: "cpu", "gpu" or "tpu"; "" where no devices are looked for.
        chips: How many devices the pod was given.
        require_accelerator: Whether the job fails where they do not come up.
        requirements: What to install first, an Artifact as plain JSON.
        machine: Which machine's queue the job is in; "" for a cluster's.
        queued: What its row in that queue says, should the queue have to be rebuilt.
        pod: What the first process of a pod needs; None on a machine.
        attempt: Number of the attempt, from 0; this and what follows is filled in by the supervisor.
        host: Index of the host.
        base: The folder for the attempt's files, closed to other users.
        suffix: Behind the names of those files, where the folder is shared with other attempts and hosts.
        cache: Folder of what this machine keeps of data for other jobs.
        runner: Folder with the runner's code.
        own_interpreter: Whether the environment has what an interpreter reads only when it starts.
    """

    job_id: str
    order_sha256: str
    store_url: str
    key_id: str
    umask: int
    deadline: float | None
    environment: dict[str, str] = field(repr=False)
    order_key: str = ""
    child: dict[str, Any] | None = None
    mark: str = ""
    hosts: int = 1
    coordinator: str = ""
    function: str = ""
    placed: list[dict[str, Any]] | None = None
    retries: int = 0
    memory_bytes: int | None = None
    kind: str = ""
    chips: int = 0
    require_accelerator: bool = False
    requirements: dict[str, Any] | None = None
    machine: str = ""
    queued: dict[str, Any] | None = None
    pod: PodSettings | None = None
    attempt: int = 0
    host: int = 0
    base: str = ""
    suffix: str = ""
    cache: str = ""
    runner: str = ""
    own_interpreter: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**self.__dict__, "pod": None if self.pod is None else self.pod.__dict__}

    def to_bytes(self) -> bytes:
        """Write the page."""
        return documents.write({"schema": documents.SCHEMA, **self.to_json()})

    def to_argument(self) -> str:
        """Return the page as one word of a command line, in which Kubernetes finds no ``$(NAME)`` to replace."""
        return self.to_bytes().decode().replace("$", "\\u0024")  # a dollar can only stand inside a string

    @classmethod
    def from_page(cls, data: bytes | str, what: str = "the launch page of this pod") -> Task:
        """Read the page.

        Raises:
            IntegrityError: It is none, or of another version.
        """
        return fields.build(cls, READERS, documents.read(data, what), what)

    @property
    def is_in_a_pod(self) -> bool:
        """Whether nothing on this disk outlives the job."""
        return self.pod is not None

    @property
    def data_shared(self) -> Path | None:
        """A folder for data that the hosts of a slice on one machine have in common; None for one host."""
        return self.data.with_name(f"data-{self.attempt}-shared") if self.hosts > 1 else None


@dataclass(frozen=True)
class AttemptFiles(_HostFiles):
    """The files of one host of an attempt, for whoever has no task at hand."""

    base: str
    suffix: str


_PAGES = fields.array_of(fields.map_of(fields.any_value, 64), 100_000)
_PAGE = fields.optional(fields.map_of(fields.any_value, 64))
_SECONDS = fields.number(0, fields.SECONDS)
POD_READERS = {
    "output_dir": fields.text(fields.PATH),
    "checkpoint_dir": fields.text(fields.PATH),
    "most_attempts": fields.optional(fields.integer(0, keys.MOST_ATTEMPTS)),
    "holds": fields.boolean,
    "removes": fields.text(),
    "store_requirement": fields.text(),
    "runner_sha256": fields.text(),
    "key_offset": fields.integer(0, fields.BYTES),
    "secret": fields.text(fields.PATH),
    "last_words": fields.text(fields.PATH),
    "poll_seconds": _SECONDS,
    "grace_seconds": _SECONDS,
    "patience_seconds": _SECONDS,
}
READERS = {
    "job_id": keys.JOB_ID,
    "order_sha256": fields.sha256,
    "store_url": fields.text(fields.PATH, least=1),
    "key_id": fields.text(fields.NAME),
    "order_key": fields.text(),
    "child": _PAGE,
    "mark": fields.text(),
    "hosts": fields.integer(1, 100_000),
    "coordinator": fields.text(),
    "deadline": fields.optional(_SECONDS),
    "function": fields.text(),
    "placed": fields.optional(_PAGES),
    "umask": fields.integer(0, 0o777),
    "retries": fields.integer(0, fields.BYTES),
    "memory_bytes": fields.optional(fields.integer(0, fields.BYTES)),
    "kind": fields.text(fields.NAME),
    "chips": fields.integer(0, 1_000_000),
    "require_accelerator": fields.boolean,
    "requirements": _PAGE,
    "machine": fields.text(),
    "queued": _PAGE,
    "pod": fields.optional(fields.nested(PodSettings, POD_READERS)),
    "environment": fields.map_of(fields.text(fields.BYTES), 1_000_000, fields.text(fields.TEXT)),
    "attempt": keys.ATTEMPT,
    "host": fields.integer(0, 100_000),
    "base": fields.text(fields.PATH),
    "suffix": fields.text(fields.NAME),
    "cache": fields.text(fields.PATH),
    "runner": fields.text(fields.PATH),
    "own_interpreter": fields.boolean,
}
