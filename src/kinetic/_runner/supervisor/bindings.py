"""Which pod a job is bound to, a warm one or its own, and which job a warm pod takes next: keys, created once."""

from __future__ import annotations

import time

from kinetic._stores.protocol import Store
from kinetic._wire import documents, keys
from kinetic._wire.warm_pods import BINDING, NUMBERED, Binding
from kinetic.errors import KeyMissingError

_LONGEST_WHY = 500
_KEPT = 2  # keys of old assignments


def bind(store: Store, job_id: str, pod: str, key: bytes, *, ended: str = "", why: str = "") -> bool:
    """Bind a job to a warm pod, or to a pod of its own if ``pod`` is ""; return whether it is bound to that one.

    ``ended`` is a warm pod that is gone for good, or gives the job back, so that another may follow it; ``why``: why it
    gives it back.
    """
    last: Binding | None = None
    number = 0
    while True:
        at = keys.binding(job_id, number)
        if last is None or (ended and last.pod == ended != pod):
            attempts = _attempts(store, job_id) if ended else 0
            about = {"pod": pod, "placed": time.time(), "attempts": attempts, "why": why[:_LONGEST_WHY]}
            page = documents.seal_page(BINDING, about, at, key)
            if store.put(at, page, if_absent=True):
                return True
        try:
            last = documents.open_page(BINDING, store, at, key)
        except KeyMissingError:
            return last is not None and last.pod == pod
        number += 1


def binding_of(store: Store, job_id: str, key: bytes | None) -> Binding | None:
    """Return which pod a job is bound to, or None while that is not decided."""
    last: Binding | None = None
    number = 0
    while True:
        try:
            last = documents.open_page(BINDING, store, keys.binding(job_id, number), key)
        except KeyMissingError:
            return last
        number += 1


def _attempts(store: Store, job_id: str) -> int:
    """Return the number of the attempt that follows the last one."""
    return max((number + 1 for number, _ in keys.numbered(store.entries(keys.attempts(job_id)))), default=0)


def assign(store: Store, pod: str, sequence: int, job_id: str, key: bytes) -> bool:
    """Make a job the N-th task of a warm pod; False when another one is that. ``key``: the pod's."""
    at = keys.warm_task(pod, sequence)
    page = documents.seal_page(NUMBERED, {"job_id": job_id, "assigned": time.time()}, at, key)
    return store.put(at, page, if_absent=True)


def assigned(store: Store, pod: str, sequence: int, key: bytes) -> str:
    """Return which job the N-th task of a warm pod is, or "" while it has none."""
    try:
        return documents.open_page(NUMBERED, store, keys.warm_task(pod, sequence), key).job_id
    except KeyMissingError:
        return ""


def next_sequence(store: Store, pod: str, least: int = 0) -> int:
    """Return the number after the last one that was assigned; remove the keys of old ones."""
    last = least - 1
    for number, entry in keys.numbered(store.entries(keys.warm_tasks(pod))):
        last = max(last, number)
        if number < least - _KEPT:
            store.delete(entry.key)
    return last + 1
