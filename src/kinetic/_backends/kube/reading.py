"""Small questions to the objects of a cluster, as the API returns them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from kinetic._backends.kube.containers import CONTAINER

Object = dict[str, Any]


def condition(found: Object, *types: str) -> Object | None:
    """Return the condition of one of some types that holds, or None."""
    for each in (found.get("status") or {}).get("conditions") or ():
        if each.get("type") in types and each.get("status") == "True":
            return dict(each)
    return None


def denied(found: Object, kind: str) -> Object | None:
    """Return a condition that is said not to hold, or None."""
    for each in (found.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind and each.get("status") == "False":
            return dict(each)
    return None


def container(pod: Object) -> Object:
    """Return what a pod says of our container, by its name: a cluster may add others before it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each.get("name") == CONTAINER), {})


def terminated(pod: Object) -> Object | None:
    """Return how our container ended, now or before it was started again, or None."""
    ours = container(pod)
    found = (ours.get("state") or {}).get("terminated") or (ours.get("lastState") or {}).get("terminated")
    return dict(found) if found else None


def waiting(pod: Object) -> tuple[str, str]:
    """Return why our container, or one that must be done before it, waits: reason and message."""
    status = pod.get("status") or {}
    before = [each for each in status.get("initContainerStatuses") or () if (each.get("state") or {}).get("waiting")]
    for each in (container(pod), *before):
        found = (each.get("state") or {}).get("waiting")
        if found and found.get("reason") not in {None, "PodInitializing", "ContainerCreating"}:
            return str(found["reason"]), str(found.get("message") or "")
    return "", ""


def is_disrupted(pod: Object) -> bool:
    """Say whether a pod's machine was taken away, or its place."""
    return condition(pod, "DisruptionTarget") is not None


def phase(pod: Object) -> str:
    """Return a pod's phase."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def name(found: Object) -> str:
    """Return an object's name."""
    return str((found.get("metadata") or {}).get("name") or "")


def made(found: Object) -> float:
    """Return when an object was made, as Unix time; 0 where nothing says so."""
    return seconds((found.get("metadata") or {}).get("creationTimestamp"))


def host(pod: Object) -> int:
    """Return which host of a slice a pod is, from 0."""
    about = pod.get("metadata") or {}
    marks = {**(about.get("annotations") or {}), **(about.get("labels") or {})}
    for key in ("batch.kubernetes.io/job-completion-index", "leaderworkerset.sigs.k8s.io/worker-index"):
        if str(marks.get(key, "")).isdecimal():
            return int(marks[key])
    return 0


def events_of(found: Object, events: Iterable[Object]) -> list[Object]:
    """Return the events about an object, the latest last."""
    about = found.get("metadata") or {}
    ours = [each for each in events if _concerns(each, about)]
    return sorted(ours, key=event_time)


def _concerns(event: Object, about: Object) -> bool:
    involved = event.get("involvedObject") or event.get("regarding") or {}
    if involved.get("uid") and about.get("uid"):
        return bool(involved["uid"] == about["uid"])
    return bool(involved.get("name") == about.get("name"))


def event_time(event: Object) -> float:
    """Return when an event happened last, as Unix time."""
    series = event.get("series") or {}
    about = event.get("metadata") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return seconds(next(filter(None, times), None) or about.get("creationTimestamp"))


def said(event: Object) -> str:
    """Return an event's reason and words."""
    return f"{event.get('reason', '')}: {event.get('message') or event.get('note') or ''}"


def newest(pods: Sequence[Object]) -> Object:
    """Return the pod that was made last."""
    return max(pods, key=lambda pod: (made(pod), name(pod)))


def seconds(written: object) -> float:
    """Return a time that the API wrote, as Unix time; 0 where there is none."""
    if not written:
        return 0.0
    try:
        return dt.datetime.fromisoformat(str(written)).timestamp()
    except ValueError:
        return 0.0
