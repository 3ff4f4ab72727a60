"""The task: what a supervisor and its workers are told of one job.

A backend writes it: on this machine into a file for its owner only, beside the queue; for a pod as the only argument of
its container, in which nothing is secret: ``python3 /kinetic/runner.zip TASK``, or ``@FILE`` where it is too long for a
command line (128 KiB on Linux). A supervisor adds which attempt it is and where its files are, and hands it to a worker
for each host. The job's key is in no task: it has a file of its own.
"""

from __future__ import annotations

import functools
import signal
from dataclasses import field
from pathlib import Path
from typing import Any

from kinetic._wire import dataclass, documents, fields, keys

FAILED_EXIT = 82
INFRASTRUCTURE_EXIT = 83  # the one code of ours that a podFailurePolicy does not answer with FailJob
WARM = "warm"  # the first argument of a container that takes many jobs; the second is the page of a warm pod
IMAGE_EXIT = 84  # the Python of the image cannot even load what would write an outcome
LOST_EXIT = 255  # containerd's "Unknown", for what ran when its machine went down and came up again by itself

SECRET_FOLDER = "/kinetic/secret"  # noqa: S105 - a folder; its files are for root and one group (0440)
KEY_FILE = "job-key"  # the job's key, 32 raw bytes; for a batch those of all its children, one behind the other
IN_SECRET = "secret"  # noqa: S105 - as a task's cache key: it is in the job's Secret
CACHE_KEY_FILE = "cache-key"  # the key of the compile cache, 32 raw bytes; missing where the cache is off
FOLLOWED_FILE = "followed-keys"  # beside it: the keys that verify what the job waits for, one behind the other
STORE_SECRET_FOLDER = "/kinetic/store"  # noqa: S105 - the named Secret with credentials for the store
STORE_KEY_FILE = "credentials.json"  # of it: a key file of Google's
BUCKETS_FOLDER = "/kinetic/buckets"  # of an order's data, that with the number N is mounted at BUCKETS_FOLDER/N
ENVIRONMENT_FILE = "environment.json"  # captured values: {"NAME": "value"}; may be missing when there are none
LEFT_OUT = "left_out.json"  # in the folder of a pod's runner: the names of the modules that stay with the client
TERMINATION_LOG = "/dev/termination-log"  # Kubernetes shows its content as the container's message

# Of these the first that holds a number says which host this is; Kubernetes sets it in every pod of an Indexed Job.
HOST_VARIABLES = ("JOB_COMPLETION_INDEX", "LWS_WORKER_INDEX", "TPU_WORKER_ID")
SLICE_VARIABLE = "JOBSET_JOB_INDEX"  # which slice of several this host is in: its own number begins at 0 in each
POD_VARIABLE = "LWS_POD_UID"  # in the pods of a LeaderWorkerSet, which have the same names when they begin again
RESTART_VARIABLE = "JOBSET_RESTART_ATTEMPT"  # of several hosts: how often the whole set was started again
MORE_MEMORY = (
    "ask for more memory where resources is set, or use less at once: "
    'resources={"memory": "32Gi"}, --resources memory=32Gi, or resources = { memory = "32Gi" } under [tool.kinetic]'
)
DETECT = "detect"  # as a coordinator: JAX finds it by itself, as it does on TPU hosts of GKE

# The modules whose import starts the compile cache, and the library that each belongs to. torch itself is imported by
# many jobs that compile nothing.
COMPILERS = {"jax": "jax", "torch._inductor": "torch", "triton": "torch", "vllm": "vllm"}

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
# The same into a file of their own. Processes on macOS ignore SIGINFO by default, where it is Ctrl-T's.
STACKS_SIGNAL: int = signal.SIGRTMAX - 4 if hasattr(signal, "SIGRTMAX") else getattr(signal, "SIGINFO", signal.SIGUSR2)


@dataclass(frozen=True)
class PodSettings:
    """What only the first process of a pod needs to know."""

    output_dir: str = ""  # value of KINETIC_OUTPUT_DIR
    checkpoint_dir: str = ""  # value of KINETIC_CHECKPOINT_DIR
    most_attempts: int | None = None  # after so many interrupted attempts the job fails; None for no limit
    # After the verdict the process stays until it is told to end: for a LeaderWorkerSet, which restarts what ends.
    holds: bool = False
    leader: str = ""  # of several hosts: the name of the first one in the network of pods
    removes: str = ""  # path, in the cluster's API, of what the leader deletes after the verdict; "" for nothing
    store_requirement: str = ""  # what must be installed to open the store, where the image lacks it
    runner_sha256: str = ""  # digest of the zip, for the note
    key_offset: int = 0  # where the job's key begins in its file, in bytes
    warm: str = ""  # the warm pod that carries the job out; "" for a pod of its own
    first_restart: int = 0  # of a warm slice: how often it had been started again before it was given the job (count)
    was_assigned: bool = False  # whether a warm slice had the job, or was to have it, before hosts of its own
    # of a batch's first child: how long compiling took the last time; others wait for its programs. 0: none do
    awaited_seconds: float = 0.0
    waited: bool = False  # whether it was started after the first child had compiled
    secret: str = SECRET_FOLDER
    last_words: str = TERMINATION_LOG
    poll_seconds: float = 5.0  # how often a slice of several hosts looks for what its hosts report
    grace_seconds: float = 15.0  # from a slice's first failure to the verdict: for a preempted host to say so
    patience_seconds: float = 3600.0  # how long the hosts of a slice wait at first for a store that is out of reach


_folder = functools.lru_cache(2)(Path)


@functools.lru_cache(64)  # one attempt asks twenty times for its ten files
def _path(folder: str, name: str) -> Path:
    return _folder(folder).joinpath(name)  # a sixth of the time that parsing the whole takes


class _File:
    """Where something of one host of an attempt is: its name, what tells it from other hosts, and an end."""

    def __init__(self, name: str, end: str = "") -> None:
        self._name, self._end = name, end

    def __get__(self, host: _HostFiles, _: object) -> Path:
        return _path(host.base, f"{self._name}{host.suffix}{self._end}")


class _HostFiles:
    """What one host of an attempt has on the disk of its machine: all names, in one place."""

    base: str
    suffix: str

    folder = _File("work")  # where the project is rebuilt
    log = _File("log")  # where output goes
    body = _File("body")  # the pickled value, until the store has it; never in the store, where others may write
    word = _File("word")  # the worker's last word, written last: it outlives worker and supervisor
    data = _File("data")  # a folder of this host's own for what it reads, beside the working folder
    began = _File("log", ".began")  # appears when the function begins: before, the job can be started again unharmed
    stacks = _File("log", ".stacks")  # the stacks of its threads, written on request
    usage = _File("log", ".usage")  # what this host used so far, on a machine; a pod has it in the store
    progress = _File("log", ".progress")  # what the function reported last of its progress
    sent = _File("log", ".sent")  # where files for an output directory that is an address are, and which were
    compiled = _File("log", ".compiled")  # how many seconds of compiling are in the store, where others wait for that
    visited = _File("log", ".visited")  # appears when somebody runs a shell or a command in its folder
    debug_page = _File("log", ".debug")  # in which the debug server of this host says where it is and whether it waits


@dataclass(frozen=True)
class AttemptFiles(_HostFiles):
    """The files of one host of an attempt, where there is no task at hand."""

    base: str
    suffix: str


@dataclass(frozen=True)
class Task(_HostFiles):
    """One job as it is launched, and one attempt at it on one host."""

    job_id: str
    order_sha256: str  # the first link of the chain by which everything is verified
    store_url: str  # of the order and the outcome
    key_id: str  # which key seals the outcome
    umask: int  # the client's
    deadline: float | None  # seconds the function may take
    # All variables that a worker has; nothing else of its supervisor's is left. Of a pod's task they are filled in by
    # the supervisor: values of captured variables are in no argument of a container.
    environment: dict[str, str] = field(repr=False)
    order_key: str = ""  # "" for the job's own place
    child: dict[str, Any] | None = None  # what the launch adds to an order that a batch shares, as plain JSON
    mark: str = ""  # stem of the mark's key, for a batch's child
    hosts: int = 1  # of all slices
    slices: int = 1  # of TPUs; each has as many hosts
    coordinator: str = ""  # ``address:port`` at which JAX's processes meet; DETECT; or "" to leave JAX alone
    function: str = ""  # its name, for messages from before the order is read
    project: str = ""  # its folder on this machine and its module, for what a supervisor learns of it; "" in a pod
    placed: list[dict[str, Any]] | None = None  # references to all that the job reads, if any of it needs a mount
    retries: int = 0  # how many times a failed job is retried
    is_command: bool = False  # whether it is asked to end at its deadline, before it is killed
    memory_bytes: int | None = None  # what the processes of a host may use; in a pod the kernel enforces it
    kind: str = ""  # the hardware of a pod: "cpu", "gpu" or "tpu"; "" where no devices are checked
    chips: int = 0  # how many devices the pod was given
    require_accelerator: bool = False  # whether the job fails where they are not available
    requirements: dict[str, Any] | None = None  # what to install first, an Artifact as plain JSON
    machine: str = ""  # which machine's queue the job is in; "" for a cluster's
    queued: dict[str, Any] | None = None  # its row in that queue, should the queue have to be rebuilt
    # The key of the compile cache, in hexadecimal; IN_SECRET in a pod; "" where there is no cache.
    cache_key: str = field(default="", repr=False)
    after: list[dict[str, Any]] | None = None  # what must have succeeded before it starts
    pod: PodSettings | None = None  # None on a machine
    attempt: int = 0  # from 0; this and what follows is filled in by the supervisor
    host: int = 0
    base: str = ""  # the folder for the attempt's files, closed to other users
    suffix: str = ""  # behind the names of those files, where the folder is shared with other attempts and hosts
    cache: str = ""  # folder of what this machine keeps of data for other jobs
    runner: str = ""  # folder with the runner's code
    workspace: str = ""  # where a job leaves its working folder for the next one; "" where it does not
    left: dict[str, Any] | None = None  # what another job left there, see ``workspace.Left``
    values: list[dict[str, Any]] | None = None  # where in the store the values are that its arguments refer to
    own_interpreter: bool = False  # whether the environment has what an interpreter reads only when it starts

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**self.__dict__, "pod": None if self.pod is None else self.pod.__dict__}

    def to_bytes(self) -> bytes:
        """Write the page."""
        return documents.write_ascii({"schema": documents.SCHEMA, **self.to_json()})

    def to_argument(self) -> str:
        """Return the page as one word of a command line, in which Kubernetes finds no ``$(NAME)`` to replace."""
        return self.to_bytes().decode().replace("$", "\\u0024")  # a dollar can only be inside a string

    @classmethod
    def from_page(cls, data: bytes | str, what: str = "the launch page of this pod") -> Task:
        """Read the page."""
        return fields.build(cls, READERS, documents.read(data, what, any_name=True), what)

    @property
    def is_in_a_pod(self) -> bool:
        """Whether nothing on this disk outlives the job."""
        return self.pod is not None

    @property
    def data_shared(self) -> Path | None:
        """A folder for data that the hosts of a slice on one machine have in common; None for one host."""
        return self.data.with_name(f"data-{self.attempt}-shared") if self.hosts > 1 else None


_SECONDS = fields.number(0, fields.SECONDS)
_MANY = fields.integer(0, fields.BYTES)
_PAGE = fields.map_of(fields.any_value, 64)
_PATH, _NAME = fields.text(fields.PATH), fields.text(fields.NAME)
POD_READERS = {
    **fields.each(_PATH, "output_dir", "checkpoint_dir", "secret", "last_words"),
    "most_attempts": fields.optional(fields.integer(0, keys.MOST_ATTEMPTS)),
    "holds": fields.boolean,
    **fields.each(fields.text(), "leader", "removes", "store_requirement", "runner_sha256", "warm"),
    **fields.each(_MANY, "key_offset", "first_restart"),
    **fields.each(fields.boolean, "was_assigned", "waited"),
    **fields.each(_SECONDS, "awaited_seconds", "poll_seconds", "grace_seconds", "patience_seconds"),
}
READERS = {
    "job_id": keys.JOB_ID,
    "order_sha256": fields.sha256,
    "store_url": fields.text(fields.PATH, least=1),
    **fields.each(_NAME, "key_id", "kind", "suffix", "cache_key"),
    **fields.each(fields.text(), "order_key", "mark", "coordinator", "function", "project", "machine"),
    **fields.each(_PATH, "base", "cache", "runner", "workspace"),
    **fields.each(fields.optional(_PAGE), "child", "requirements", "queued", "left"),
    **fields.each(fields.boolean, "require_accelerator", "own_interpreter", "is_command"),
    **fields.each(fields.integer(1, 100_000), "hosts", "slices"),
    "deadline": fields.optional(_SECONDS),
    **fields.each(fields.optional(fields.array_of(_PAGE, 100_000)), "placed", "after", "values"),
    "umask": fields.integer(0, 0o777),
    "retries": _MANY,
    "memory_bytes": fields.optional(_MANY),
    "chips": fields.integer(0, 1_000_000),
    "pod": fields.optional(fields.nested(PodSettings, POD_READERS)),
    "environment": fields.map_of(fields.text(fields.BYTES), 1_000_000, fields.text(fields.TEXT)),
    "attempt": keys.ATTEMPT,
    "host": fields.integer(0, 100_000),
}
