"""Names of a job's objects in a cluster, and values of labels: derived, never drawn, and short enough everywhere.

Kubernetes gives a pod its name as its hostname, and repeats names of owners as labels; both end at 63 characters. So
what a name may have depends on what Kubernetes itself hangs behind it.
"""

from __future__ import annotations

import hashlib
import re

from kinetic._wire import names as ids

MOST = ids.MOST_OF_AN_OBJECT
PREFIX = "kinetic-"  # a Service must begin with a letter, and an id need not
SLICE = "s"  # the one replicated job of a JobSet; one letter, since it stands in every hostname

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


def single(job_id: str) -> str:
    """Name the Job of one host.

    Kubernetes cuts such a name before it appends five random characters, so all 63 may be used.
    """
    return ids.object_name(job_id, MOST)


def indexed(job_id: str, hosts: int) -> str:
    """Name the Indexed Job of many hosts, and its Service: a pod's hostname is ``NAME-INDEX``."""
    return ids.object_name(job_id, MOST - _digits(hosts) - _POD_SUFFIX)


def job_set(job_id: str, hosts: int) -> str:
    """Name a JobSet: a pod's hostname is ``NAME-s-0-INDEX``, and its name has six characters more."""
    return ids.object_name(job_id, MOST - len(f"-{SLICE}-0") - _digits(hosts) - _POD_SUFFIX)


def leader_worker_set(job_id: str, hosts: int) -> str:
    """Name a LeaderWorkerSet: pods are ``NAME-0-INDEX``, and a label adds a revision to ``NAME-0``."""
    return ids.object_name(job_id, MOST - len("-0") - max(_digits(hosts), _REVISION_SUFFIX))


def secret(job_id: str) -> str:
    """Name the Secret of a job."""
    return ids.object_name(job_id, MOST)


def group_secret(group: str) -> str:
    """Name the Secret that the children of a batch share."""
    return ids.object_name(group, MOST)


def runner(version: str, digest: str) -> str:
    """Name the ConfigMap of a runner: by its content, so that it can be shared and never changes.

    Args:
        version: Of kinetic; for whoever looks at the cluster.
        digest: SHA-256 of the runner's bytes.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", version.lower()).strip("-")[:20]
    return f"{PREFIX}runner-{readable}-{digest[:16]}"


def label_value(text: str) -> str:
    """Turn any text into a value that a label may have; what had to be changed gets a digest, so that two stay two."""
    value = _OUTSIDE.sub("-", text).strip("-_.")
    if value == text and len(text) <= MOST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH]
    return f"{value[: MOST - _HASH - 1].rstrip('-_.')}-{digest}".lstrip("-")


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
