"""The start of a job in a pod of its own that was assigned to a warm pod which does not carry it out."""

from __future__ import annotations

import functools
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic._jobs import locate
from kinetic._output import terminal as output
from kinetic._runner.supervisor import attempts, bindings
from kinetic._wire import documents, keys, outcomes, records
from kinetic._wire.failpoints import step
from kinetic._wire.task import CACHE_KEY_FILE, ENVIRONMENT_FILE, KEY_FILE
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Observation
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import JobRecord

START, START_NAME = ("true",), "warm-start"  # the command with which `kinetic warm start` begins a warm pod
_UNTAKEN_SECONDS = 180.0  # of a pod that runs and has not taken a task: then it is started cold; a kubelet needs 120


def take(store: Store, key: bytes, job_id: str, ended: str = "") -> bool:
    """Make a job one of a pod of its own; False where a warm pod has it. ``ended``: one that is gone for good."""
    taken = bindings.bind(store, job_id, "", key, ended=ended)
    step("client:placed-cold")
    return taken


def find_without_job(job: JobRecord) -> Observation | None:
    """Observe a job whose Job somebody deleted in the cluster, if a warm pod has it: it runs there all the same."""
    store = locate.store_of(job)
    if store.size(keys.binding(job.job_id, 0)) is None:  # then no key is needed, which a colleague would not have
        return None
    found = bindings.binding_of(store, job.job_id, locate.key_to_read(job))
    backend: Any = locate.backend_of(job)  # as below
    return backend.observe_without_job(job.job_id, found.pod) if found is not None and found.pod else None


def start_if_left(job: JobRecord, observation: Observation, *, giver_died: bool = False) -> Observation:
    """Start a task in a pod of its own if its warm pod is gone, or never took it; return how it is then.

    A pod that runs has three minutes to take it, and none where the process that was giving it the task is known to be
    dead. One that began to run since then is told by its Secret, whatever became of that process.

    Whoever looks first does this. What says who carries it out is created before it is started, so none starts it
    while a warm pod has it, and it is repeated where a process died in between.
    """
    store = locate.store_of(job)
    backend: Any = locate.backend_of(job)  # of the only kind that has warm pods
    why = "has ended"
    if not observation.warm_ended:
        latest, submitted = backend.warm.now() - _UNTAKEN_SECONDS, observation.submitted
        is_old = giver_died or (submitted is not None and submitted <= latest)
        if not is_old and not observation.may_come_back:
            return observation
        found = bindings.binding_of(store, job.job_id, locate.key_to_read(job))
        if (found is not None and found.pod) or not (is_old or found):
            return observation
        why = f"gave it back: {found.why}" if found is not None and found.why else "has not taken it"
        since = 0.0 if found is not None else backend.warm.could_take_since(observation.warm)
        if since is None:  # a machine for it may take an hour; a second one would not come earlier
            return observation
        if since > latest and not (giver_died and submitted is not None and since <= submitted):
            return observation
    if store.size(keys.result(job.job_id)) is not None:
        return observation
    ended = observation.warm if observation.warm_ended else ""
    if (job.name, job.command) == (START_NAME, [*START]):
        return _end_start(job, observation)
    if not take(store, locate.key_to_seal(job), job.job_id, ended):
        return observation
    if not backend.warm.start_cold(job.job_id, functools.partial(_secret_of, job)):
        return observation
    output.report(f"{job.job_id}: its warm pod {observation.warm} {why}; it starts in a pod of its own")
    return replace(observation, warm="", status=JobStatus.PENDING)


def _end_start(job: JobRecord, observation: Observation) -> Observation:
    """Cancel what `kinetic warm start` began a warm pod with: a machine of its own would be of no use to anybody."""
    store, key, ended = locate.store_of(job), locate.key_to_seal(job), time.time()
    verdict = outcomes.Outcome(
        job.job_id,
        outcomes.CANCELLED,
        attempt=-1,
        cause="cancelled",
        ended=ended,
        witness="client",
        key_id=job.key_id or "",
    )
    if attempts.seal_outcome(store, verdict, key):
        locate.write_page(store, {**records.plain(job), "status": "CANCELLED", "ended": ended}, key)
        locate.backend_of(job).remove([job.job_id])
    return replace(observation, reason=f"it is cancelled: its warm pod {observation.warm} has ended")


def _secret_of(job: JobRecord) -> dict[str, bytes]:
    """Return what the Secret of a job had; nothing where that were captured values, which are in no store.

    The Secret of a batch has those of its children.
    """
    store, namespace = locate.store_of(job), locate.namespace_key(job.key_id or "")
    if namespace is None or locate.verified_record(store, job.job_id) is None:
        return {}
    found = locate.order_of(job)
    kept = locate.backend_of(job).kept(job.group_id) if job.group_id and found.environment else None
    captured = kept["captured"] if kept is not None else {}
    if set(found.environment) - captured.keys() or found.debug is not None:
        return {}
    cache_key = documents.cache_key(namespace, store.url)
    own_key = documents.job_key(namespace, job.job_id, store.url)
    return {KEY_FILE: own_key, ENVIRONMENT_FILE: json.dumps(captured).encode(), CACHE_KEY_FILE: cache_key}
