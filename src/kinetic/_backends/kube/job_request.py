"""What the cluster is asked for, before it becomes manifests: one frozen page per job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kinetic._config.resources import ResourceRequests
from kinetic._wire import names as ids

if TYPE_CHECKING:
    from kinetic._data.remote_refs import FuseMount
    from kinetic._hardware.placement import Placement


DAY_SECONDS = 86_400
SPOT_GRACE_SECONDS = 15  # of the 30 s after the notice the first 15 belong to us; a larger number changes nothing
GRACE_SECONDS = 30  # what Kubernetes gives by default
RUNNER_FILE = "runner.zip"  # the one entry of the ConfigMap
RUNNER_PATH = f"/kinetic/{RUNNER_FILE}"


class BucketVolume(NamedTuple):
    """A bucket, or a folder of it, that appears at a path of the job.

    Attributes:
        path: Absolute.
        mount: Which bucket, and how.
    """

    path: str
    mount: FuseMount


@dataclass(frozen=True)
class JobRequest:
    """What one job asks of a cluster.

    Attributes:
        job_id: The job.
        namespace: Where its objects go.
        placement: The hardware.
        image: What its containers are made of.
        command: What they run; the first word is a program of the image.
        owner: Who submitted it.
        group: The batch it belongs to, or "".
        order_sha256: Digest of its order: tells a launch of the same job from another that has its name.
        environment: Variables with their values. Nothing secret: whoever may read pods can read them.
        from_pod: Variables whose value only the pod knows, and the field that has it, e.g. "metadata.name".
        secret: The Secret whose entries lie in the runner's ``SECRET_FOLDER``, or "".
        runner: The ConfigMap whose ``RUNNER_FILE`` lies at ``RUNNER_PATH``, or "".
        needs: Processor, memory, disk and shared memory of each host.
        deadline_seconds: How long a pod may run before the cluster ends it; waiting does not count. None: no limit.
        life_seconds: How long the job may exist before the cluster ends it; waiting does count. None: no limit.
        ttl_seconds: After the end, when the cluster removes what is left.
        grace_seconds: Between the request to end and the end; None for what fits the hardware.
        service_account: Whom the pod is to the cluster and its cloud; "" for the namespace's default.
        needs_token: Whether the pod gets a token of that account, for stores whose client asks with one.
        queue: A LocalQueue of Kueue, or "".
        priority_class: How important it is, or "".
        buckets: What is mounted instead of copied.
        folders: Absolute paths at which the pod gets an empty folder that it may write to.
        pull_secrets: Secrets with which the image is pulled.
        run_as: User and group number that the container runs as; None for the image's own, mostly root.
        non_root: Whether the machine shall refuse an image whose user is root.
        node_selector: Labels of nodes, for clusters whose nodes do not carry Google's; None for Google's.
        by_count: Whether nodes are selected by the number of their GPUs, too; not where the cluster's do not tell it.
        store_secret: A Secret with credentials for the store: its entries become variables, and files.
        retries: How often what may pass is tried again (count); preemptions do not count.
        coordinator_port: Where the first host listens for the others, outside TPUs.
    """

    job_id: str
    namespace: str
    placement: Placement
    image: str
    command: tuple[str, ...]
    owner: str = ""
    group: str = ""
    order_sha256: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    from_pod: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    runner: str = ""
    needs: ResourceRequests = field(default_factory=ResourceRequests)
    deadline_seconds: int | None = None
    life_seconds: int | None = None
    ttl_seconds: int = DAY_SECONDS
    grace_seconds: int | None = None
    service_account: str = ""
    needs_token: bool = False
    queue: str = ""
    priority_class: str = ""
    buckets: tuple[BucketVolume, ...] = ()
    folders: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    run_as: int | None = None
    non_root: bool = False
    node_selector: Mapping[str, str] | None = None
    by_count: bool = True
    store_secret: str = ""
    retries: int = 3
    coordinator_port: int = 8482

    @property
    def grace(self) -> int:
        """Seconds between the request to end and the end."""
        if self.grace_seconds is not None:
            return self.grace_seconds
        return SPOT_GRACE_SECONDS if self.placement.spot else GRACE_SECONDS


MOST_NAME_CHARACTERS = ids.MOST_OF_AN_OBJECT
NAME_PREFIX = "kinetic-"  # a Service must begin with a letter, and an id need not
SLICE_PREFIX = "s"  # the one replicated job of a JobSet; one letter, since it stands in every hostname

APP, APP_MANY_HOSTS = "kinetic", "kinetic-pathways"
APP_LABEL = "app"
JOB_LABEL = "job-id"
OWNER_LABEL = "kinetic/owner"
GROUP_LABEL = "kinetic/group"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

_HASH = 8  # hexadecimal digits
_POD_SUFFIX = 6  # "-" and the five characters that the Job controller draws
_REVISION_SUFFIX = 11  # "-" and ten characters: a StatefulSet's revision, which is a label of its pods
_OUTSIDE = re.compile(r"[^A-Za-z0-9_.-]+")


def job_name(job_id: str) -> str:
    """Name the Job of one host.

    Kubernetes cuts such a name before it appends five random characters, so all 63 may be used.
    """
    return ids.object_name(job_id, MOST_NAME_CHARACTERS)


def indexed_job_name(job_id: str, hosts: int) -> str:
    """Name the Indexed Job of many hosts, and its Service: a pod's hostname is ``NAME-INDEX``."""
    return ids.object_name(job_id, MOST_NAME_CHARACTERS - _digits(hosts) - _POD_SUFFIX)


def job_set_name(job_id: str, hosts: int) -> str:
    """Name a JobSet: a pod's hostname is ``NAME-s-0-INDEX``, and its name has six characters more."""
    return ids.object_name(job_id, MOST_NAME_CHARACTERS - len(f"-{SLICE_PREFIX}-0") - _digits(hosts) - _POD_SUFFIX)


def leader_worker_set_name(job_id: str, hosts: int) -> str:
    """Name a LeaderWorkerSet: pods are ``NAME-0-INDEX``, and a label adds a revision to ``NAME-0``."""
    return ids.object_name(job_id, MOST_NAME_CHARACTERS - len("-0") - max(_digits(hosts), _REVISION_SUFFIX))


def secret_name(job_id: str) -> str:
    """Name the Secret of a job."""
    return ids.object_name(job_id, MOST_NAME_CHARACTERS)


def group_secret_name(group: str) -> str:
    """Name the Secret that the children of a batch share."""
    return ids.object_name(group, MOST_NAME_CHARACTERS)


def runner_name(version: str, digest: str) -> str:
    """Name the ConfigMap of a runner: by its content, so that it can be shared and never changes.

    Args:
        version: Of kinetic; for whoever looks at the cluster.
        digest: SHA-256 of the runner's bytes.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", version.lower()).strip("-")[:20]
    return f"{NAME_PREFIX}runner-{readable}-{digest[:16]}"


def label_value(text: str) -> str:
    """Turn any text into a value that a label may have; what had to be changed gets a digest, so that two stay two."""
    value = _OUTSIDE.sub("-", text).strip("-_.")
    if value == text and len(text) <= MOST_NAME_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH]
    return f"{value[: MOST_NAME_CHARACTERS - _HASH - 1].rstrip('-_.')}-{digest}".lstrip("-")


def selector(**labels: str) -> str:
    """Write a label selector for what kinetic made: ``app``, ``job_id``, ``owner`` and ``group``, as far as given.

    Several values of ``app`` are separated by commas.
    """
    keys = {"app": APP_LABEL, "job_id": JOB_LABEL, "owner": OWNER_LABEL, "group": GROUP_LABEL}
    parts = []
    for name, value in labels.items():
        several = [label_value(each) for each in value.split(",")] if name == "app" else [label_value(value)]
        parts.append(f"{keys[name]}={several[0]}" if len(several) == 1 else f"{keys[name]} in ({','.join(several)})")
    return ",".join(parts)


def _digits(hosts: int) -> int:
    """Return the characters of ``-INDEX`` for the last host."""
    return len(f"-{hosts - 1}")
