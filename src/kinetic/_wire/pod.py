"""The launch page of a pod: what a runner inside a container is told, and the exit codes by which it answers.

The page is the only argument of the container: ``python3 /kinetic/runner.zip PAGE``, or ``@FILE`` where it is too long
for a command line (128 KiB on Linux). Nothing in it is secret. The job's key and the values of captured variables come
in a mounted Secret, as the two files that are named here.

| exit code | what it means | what the cluster should do |
|---|---|---|
| 0 | the verdict is in the store | nothing: the Job is complete |
| FAILED_EXIT | the verdict "failed" is in the store, or this pod can never carry out the job | fail the Job at once |
| INFRASTRUCTURE_EXIT | no verdict: preempted, or the store is out of reach | start another pod |
| LOST_EXIT | the machine was restarted under the container: said by its runtime, never by us | start another pod |
| anything else | Python itself did not start, or was killed | fail the Job at once |
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kinetic._wire import fields, names, pages

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


@dataclass(frozen=True)
class PodPage:
    """What the runner in a pod is told about its job.

    Attributes:
        job_id: The job.
        order_sha256: Digest of the order.
        store_url: Where the order lies and the outcome goes.
        key_id: Which key seals the outcome.
        order_key: Where the order lies; "" for the job's own place.
        child: What the launch adds to an order that a batch shares, as plain JSON.
        mark: Stem of the mark's key, for a batch's child.
        hosts: How many pods carry out this job together.
        coordinator: ``name:port`` at which JAX's processes meet; DETECT; or "" to leave JAX alone.
        deadline: Seconds the function may take, or None.
        function: Name of the user's function, for messages.
        placed: References to all data, as plain JSON, if any of it needs a mount.
        output_dir: Value of KINETIC_OUTPUT_DIR.
        checkpoint_dir: Value of KINETIC_CHECKPOINT_DIR.
        umask: The client's.
        most_attempts: After so many attempts that were cut short the job fails; None for no limit.
        holds: After the verdict the process stays until it is told to end: for a LeaderWorkerSet, which starts again
            whatever ends.
        removes: Path, in the cluster's API, of what the leader deletes after the verdict; "" for nothing.
        retries: How many more times a job that failed is tried.
        kind: The hardware: "cpu", "gpu" or "tpu"; "" where nothing is looked for.
        chips: How many devices this pod was given.
        require_accelerator: Whether the job fails where they do not come up.
        requirements: The file to install before anything else: an Artifact as plain JSON.
        reaches_with: What must be installed to open the store, where the image lacks it; "" for nothing.
        runner: Digest of the zip, for the note.
        key_at: Where the job's key begins in its file, in bytes.
        secret: The folder of the mounted Secret.
        last_words: The file for what Kubernetes shall show of a failure.
        look_seconds: How often a slice of several hosts looks for what its hosts tell.
        patience_seconds: How long the hosts of a slice wait at their beginning for a store that is out of reach.
        grace_seconds: From the first failure in a slice to the verdict: time for a preempted host to say so.
    """

    job_id: str
    order_sha256: str
    store_url: str
    key_id: str
    order_key: str = ""
    child: dict[str, Any] | None = None
    mark: str = ""
    hosts: int = 1
    coordinator: str = ""
    deadline: float | None = None
    function: str = ""
    placed: list[dict[str, Any]] | None = None
    output_dir: str = ""
    checkpoint_dir: str = ""
    umask: int = 0o022
    most_attempts: int | None = None
    holds: bool = False
    removes: str = ""
    retries: int = 0
    kind: str = ""
    chips: int = 0
    require_accelerator: bool = False
    requirements: dict[str, Any] | None = None
    reaches_with: str = ""
    runner: str = ""
    key_at: int = 0
    secret: str = SECRET_FOLDER
    last_words: str = TERMINATION_LOG
    look_seconds: float = 5.0
    grace_seconds: float = 15.0
    patience_seconds: float = 3600.0

    def to_argument(self) -> str:
        """Return the page as one word of a command line, in which Kubernetes finds no ``$(NAME)`` to replace."""
        text = pages.write({"schema": pages.SCHEMA, **asdict(self)}).decode()
        return text.replace("$", "\\u0024")  # a dollar can only stand inside a string

    @classmethod
    def from_argument(cls, word: str) -> PodPage:
        """Read the page.

        Raises:
            IntegrityError: It is none, or of another version.
        """
        what = "the launch page of this pod"
        return fields.build(cls, _READERS, pages.read(word, what), what)


_PAGES = fields.array_of(fields.map_of(fields.anything, 64), 100_000)
_SECONDS = fields.number(0, fields.SECONDS)
_READERS = {
    "job_id": names.JOB_ID,
    "order_sha256": fields.sha256,
    "store_url": fields.text(fields.PATH),
    "key_id": fields.text(fields.NAME),
    "order_key": fields.text(),
    "child": fields.maybe(fields.map_of(fields.anything, 64)),
    "mark": fields.text(),
    "hosts": fields.whole(1, 100_000),
    "coordinator": fields.text(),
    "deadline": fields.maybe(_SECONDS),
    "function": fields.text(),
    "placed": fields.maybe(_PAGES),
    "output_dir": fields.text(fields.PATH),
    "checkpoint_dir": fields.text(fields.PATH),
    "umask": fields.whole(0, 0o777),
    "most_attempts": fields.maybe(fields.whole(0, names.MOST_ATTEMPTS)),
    "holds": fields.flag,
    "removes": fields.text(),
    "requirements": fields.maybe(fields.map_of(fields.anything, 64)),
    "reaches_with": fields.text(),
    "runner": fields.text(),
    "retries": fields.whole(0, fields.BYTES),
    "kind": fields.text(fields.NAME),
    "chips": fields.whole(0, 1_000_000),
    "require_accelerator": fields.flag,
    "key_at": fields.whole(0, fields.BYTES),
    "secret": fields.text(fields.PATH),
    "last_words": fields.text(fields.PATH),
    "look_seconds": _SECONDS,
    "grace_seconds": _SECONDS,
    "patience_seconds": _SECONDS,
}
