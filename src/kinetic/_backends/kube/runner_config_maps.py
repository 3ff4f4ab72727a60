"""The ConfigMaps with kinetic's own code: one for each version in a namespace. Those that no job needs are removed.

A client may have found one a moment ago, and create its Job just now. So the first visit only marks what no object
names, and a later one removes what still bears the mark. A client that finds the mark takes it away, and what was
changed meanwhile is not removed. One that may not do that looks again once its Job is there; who removes does so too.
"""

from __future__ import annotations

import json
import re
import time
from functools import partial
from typing import TYPE_CHECKING

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import discovery, job_manifests, object_status
from kinetic._backends.kube.client import CONFIG_MAP, JOB, JOB_SET, LEADER_WORKER_SET, POD
from kinetic._backends.kube.job_manifests import APP, APP_LABEL, APP_MULTI_HOST, APP_WARM, RUNNER_FILE
from kinetic._project import runner_bundle
from kinetic._version import __version__
from kinetic.errors import AccessDeniedError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic._backends.kube.client import Client, Object

_MARK = "kinetic/unused-since"  # an annotation: Unix time
_REST_SECONDS = 3600.0  # from the mark to the removal: far longer than a client believes what it has seen
_NAME = r"kinetic-runner-[a-z0-9-]+"
_ALL = f"{APP_LABEL} in ({APP},{APP_MULTI_HOST},{APP_WARM})"


def name_of_own() -> str:
    """Return the name of the ConfigMap of this client's code."""
    return job_manifests.runner_name(__version__, runner_bundle.build().sha256)


def ensure(client: Client, labels: Mapping[str, str] | None = None) -> tuple[str, bool]:
    """Make sure that the ConfigMap of this client's code exists; return its name, and whether it may be removed soon.

    ``labels`` are those of the settings: it has them where a rule of the cluster rejects it otherwise, as it is shared.

    Raises:
        LaunchError: It has other content.
    """
    built, name = runner_bundle.build(), name_of_own()
    wanted = job_manifests.runner_config_map(client.namespace, __version__, built.sha256, {RUNNER_FILE: built.data})
    found, may_go = client.get(CONFIG_MAP, name), False
    if found is not None and object_status.annotation_of(found, _MARK):
        try:
            found = _set_mark(client, name, None)
        except AccessDeniedError:
            may_go = True
    if found is None:
        try:
            client.create(CONFIG_MAP, wanted)  # another client may come first
        except LaunchError as error:
            if error.code != "admission" or not labels:
                raise
            about = wanted["metadata"]
            client.create(CONFIG_MAP, {**wanted, "metadata": {**about, "labels": {**labels, **about["labels"]}}})
        found = client.get(CONFIG_MAP, name) or {}
    if (found.get("binaryData") or {}) != wanted["binaryData"] or found.get("data"):
        raise LaunchError(
            f"the ConfigMap {name} does not contain the code of kinetic that its name refers to",
            why="another user created or changed it, and every job of this version would run its content",
            next=f"ask who did; then: kubectl delete configmap {name} -n {client.namespace}, and submit again",
            code="runner-changed",
        )
    return name, may_go


def remove_unused(client: Client, now: float | None = None) -> int:
    """Remove those that no job or pod has needed since an earlier visit, and return how many.

    Raises:
        AccessDeniedError: This account may not list, change or delete ConfigMaps, or see all jobs.
    """
    now = time.time() if now is None else now
    listed = client.list(CONFIG_MAP, f"{APP_LABEL}={APP},{job_manifests.RUNNER_LABEL}").objects
    used = _in_use(client) if listed else set()
    removed = 0
    for found in listed:
        name, since = object_status.object_name(found), object_status.annotation_of(found, _MARK)
        if name in used:
            if since:
                _set_mark(client, name, None)
        elif not since.isdecimal():
            _set_mark(client, name, f"{now:.0f}")
        elif now - float(since) > _REST_SECONDS and client.delete(
            CONFIG_MAP, name, uid=found["metadata"]["uid"], version=found["metadata"]["resourceVersion"]
        ):
            removed += 1
            if name in _in_use(client):
                about = {key: found["metadata"][key] for key in ("name", "namespace", "labels")}
                client.create(CONFIG_MAP, {**found, "metadata": about})
                removed -= 1
    return removed


def _set_mark(client: Client, name: str, since: str | None) -> Object | None:
    return client.patch(CONFIG_MAP, name, {"metadata": {"annotations": {_MARK: since}}})


def _in_use(client: Client) -> set[str]:
    """Return the names that jobs and pods mention, whatever their state."""
    kinds = [JOB, POD, *(kind for kind in (JOB_SET, LEADER_WORKER_SET) if discovery.serves(client, kind))]
    ask = [partial(client.list, kind, _ALL, reduce=_names_in) for kind in kinds]
    return {name for listing in kube_client.request_all(ask) for found in listing.objects for name in found["names"]}


def _names_in(found: Object) -> Object:
    return {"names": re.findall(_NAME, json.dumps(found))}
