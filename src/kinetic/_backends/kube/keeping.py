"""What lies beside a job's pods: the Secret with what no store may hold, and the ConfigMap with the runner."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kinetic._backends.kube import names
from kinetic._backends.kube.containers import Manifest, labels
from kinetic._backends.kube.slices import owner
from kinetic.errors import LaunchError

if TYPE_CHECKING:
    from kinetic._backends.kube.request import JobRequest

MOST_BYTES = 1_048_576  # what the server takes of a Secret's or a ConfigMap's values together


def secret(request: JobRequest, entries: Mapping[str, bytes], owned_by: Manifest) -> Manifest:
    """Return the Secret of one job.

    Args:
        request: The job.
        entries: Names and bytes; each becomes a file of the pod.
        owned_by: The object that makes the job's pods, as the server returned it: the Secret goes with it.

    Raises:
        LaunchError: They are too large.
    """
    about = _about(names.secret(request.job_id), request.namespace, labels(request))
    kept = owned_by["metadata"]
    about["ownerReferences"] = [owner(owned_by["apiVersion"], owned_by["kind"], kept["name"], kept["uid"])]
    return _secret(about, entries)


def group_secret(group: str, namespace: str, owner_name: str, entries: Mapping[str, bytes]) -> Manifest:
    """Return the Secret that the children of a batch share; nothing owns it, so whoever closes the batch removes it.

    Raises:
        LaunchError: They are too large.
    """
    found = {names.APP_LABEL: names.APP, names.GROUP_LABEL: names.label_value(group)}
    if owner_name:
        found[names.OWNER_LABEL] = names.label_value(owner_name)
    return _secret(_about(names.group_secret(group), namespace, found), entries)


def runner(namespace: str, version: str, digest: str, files: Mapping[str, bytes]) -> Manifest:
    """Return the ConfigMap with the runner: one for each version and namespace, shared by all jobs, never changed.

    Args:
        namespace: Where it goes.
        version: Of kinetic.
        digest: SHA-256 of the runner's bytes.
        files: Names and bytes; each becomes a file of the pod.

    Raises:
        LaunchError: They are too large.
    """
    _check_size("the runner", files)
    found = {names.APP_LABEL: names.APP, "kinetic/runner": digest[:32]}
    about = _about(names.runner(version, digest), namespace, found)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": about,
        "immutable": True,
        "binaryData": _encoded(files),
    }


def _secret(about: Manifest, entries: Mapping[str, bytes]) -> Manifest:
    _check_size("the captured environment variables", entries)
    encoded = _encoded(entries)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": about,
        "type": "Opaque",
        "immutable": True,
        "data": encoded,
    }


def _about(name: str, namespace: str, found: dict[str, str]) -> Manifest:
    return {"name": name, "namespace": namespace, "labels": found}


def _encoded(entries: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in entries.items()}


def _check_size(what: str, entries: Mapping[str, bytes]) -> None:
    size = sum(map(len, entries.values()))
    if size > MOST_BYTES:
        raise LaunchError(
            f"{what} are too large for a cluster" if what.endswith("s") else f"{what} is too large for a cluster",
            why=f"{size:,} bytes; a Secret or a ConfigMap holds {MOST_BYTES:,}",
            next="capture fewer variables, or pass large values as arguments",
        )
