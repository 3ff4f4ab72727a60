"""Jobs on a Kubernetes cluster: ``gke`` for one host, ``pathways`` for many. Every answer is the cluster's own."""

from __future__ import annotations

import json
import os
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic import _output as output
from kinetic._backends import registry
from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import (
    diagnosis,
    discovery,
    job_launcher,
    job_manifests,
    object_status,
    pod_exec,
    pod_logs,
    preflight,
)
from kinetic._backends.kube.client import JOB, JOB_SET, LEADER_WORKER_SET, POD, SECRET
from kinetic._backends.kube.connection import ClusterAddress, client_of, pools_of
from kinetic._backends.kube.informer import Informer, Informers
from kinetic._backends.kube.job_launcher import KEPT_FILE, JobLauncher
from kinetic._backends.protocol import SYSTEM, Clock, DebugAddress, Diagnosis, Launch, LiveLog, Observation, Stacks
from kinetic._config import cluster
from kinetic._config.resources import PodRequirements
from kinetic._wire import inspection, threads
from kinetic._wire.task import ENVIRONMENT_FILE
from kinetic.errors import AccessDeniedError, OptionError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Kind, Object
    from kinetic._backends.kube.pod_exec import Tunnel
    from kinetic._backends.registry import Opening
    from kinetic._hardware.placement import Placement

_APPS = job_manifests.label_selector(app=f"{job_manifests.APP},{job_manifests.APP_MANY_HOSTS}")
_MOST_NAMED = 40  # jobs in one selector; more are found by listing all
_LOOK_SECONDS = 30.0
_LOOK_WITHOUT_END_SECONDS = 5.0  # a LeaderWorkerSet does not say that its job has ended: only the store does
_CURRENT_SECONDS = 10.0
_BLIND_SECONDS = 1.0  # between two looks at a job that cannot be watched


def open_backend(opening: Opening) -> KubeBackend:
    """Open the backend of a cluster; nothing is asked of it yet."""
    entry, where = opening.entry, ClusterAddress(**opening.address._asdict())
    return KubeBackend(entry.name, where, opening.environ, spans_hosts=entry.spans_hosts)


class KubeBackend:
    """Run jobs on a cluster.

    Args:
        name: As the registry has it.
        where: Which cluster and namespace.
        environ: The environment of this client.
        spans_hosts: Whether it takes jobs of several hosts.
    """

    is_here = False
    clock: Clock = SYSTEM
    log_poll_seconds = 0.1  # a job flushes its output this often

    def __init__(
        self, name: str, where: ClusterAddress, environ: Mapping[str, str] | None = None, *, spans_hosts: bool = False
    ) -> None:
        self.name, self.where, self._spans_hosts = name, where, spans_hosts
        self.environ = os.environ if environ is None else environ
        self._kinds: tuple[Kind, ...] | None = None
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """Have nothing that threads hold or feed, as in a forked child, which has only one of its parent's threads."""
        self._feeds = Informers(self._make_feed)
        self._seen = threading.local()  # what each waiting thread has seen of whom
        self._lock = threading.Lock()
        self._maker: JobLauncher | None = None

    @property
    def client(self) -> Client:
        """The connection, made on first use and shared by the process."""
        return client_of(self.where, self.environ)

    @property
    def namespace(self) -> str:
        """Where its objects are: what the settings say, else the context's own."""
        return self.where.namespace or self.client.namespace

    @property
    def poll_seconds(self) -> float:
        """How often whoever waits looks anew although nothing was told."""
        without_end = self._kinds is not None and LEADER_WORKER_SET in self._kinds
        return _LOOK_WITHOUT_END_SECONDS if without_end else _LOOK_SECONDS

    # ------------------------------------------------------------------------------------------------ before a launch

    def check(self, placement: Placement, requirements: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Refuse what this cluster cannot run; see the protocol."""
        if placement.hosts > 1 and not self._spans_hosts:
            other = registry.find(self.name).many_hosts
            raise OptionError(
                f"{placement.name} has {placement.hosts} hosts, and the {self.name} backend runs jobs of one",
                next=f'write backend="{other}"' if other else None,
            )
        chosen = PodRequirements.from_json(requirements).settings
        return preflight.check(self.client, placement, chosen, pools=lambda: pools_of(self.where, self.environ))

    def check_store(self, url: str) -> None:
        """Refuse a store that pods cannot reach; see the protocol."""
        preflight.check_store(url, self.environ)

    def prepare(self) -> None:
        """Load what a launch needs while the client packs; see the protocol."""
        from kinetic._project import runner_bundle

        threads.start(runner_bundle.build, "kinetic-prepare")

    def begin(self, job_id: str) -> None:
        """Do nothing: until it is launched there is nothing of a job in the cluster."""

    def finish_submitting(self, job_id: str, *, leave_nothing: bool = False) -> None:
        """Do nothing; see ``begin``."""

    def sweep(self, scratch: Path | None, history: object = None) -> None:
        """Do nothing: the cluster removes what has ended after its time."""

    def name_of(self, job_id: str, hosts: int) -> str:
        """Return the name of a job's object; see the protocol."""
        if hosts == 1:
            return job_manifests.job_name(job_id)
        kind = self._kind_for_slices()
        if kind is JOB_SET:
            return job_manifests.job_set_name(job_id, hosts)
        return (
            job_manifests.indexed_job_name(job_id, hosts)
            if kind is JOB
            else job_manifests.leader_worker_set_name(job_id, hosts)
        )

    def launch(self, launches: Sequence[Launch]) -> list[str]:
        """Make the objects of jobs; see the protocol."""
        mask = os.umask(0o022)  # the only way to read it, and one for the whole process: so not on the threads below
        os.umask(mask)
        return kube_client.request_all([partial(self._launch, self._made_maker(), launch, mask) for launch in launches])

    def _launch(self, maker: JobLauncher, launch: Launch, mask: int) -> str:
        """Make one job, and let those who watch know of it at once."""
        made = maker.make(launch, mask)
        selectors = _selectors(launch.order.job_id, launch.owner, launch.group)
        for feed in self._feeds.alive():
            if feed.selector in selectors:
                feed.add(made)
        return launch.order.job_id

    def _made_maker(self) -> JobLauncher:
        with self._lock:
            if self._maker is None:
                self._maker = JobLauncher(
                    lambda: self.client,
                    account=self._account_of,
                    kind_for_slices=self._kind_for_slices,
                    environ=self.environ,
                )
            return self._maker

    def _account_of(self, launch: Launch) -> str:
        return preflight.service_account(self.client, PodRequirements.from_json(launch.requirements).settings)

    def _kind_for_slices(self) -> Kind:
        return discovery.kind_for_slices(self.client)

    # ------------------------------------------------------------------------------------------------ looking

    def kinds(self) -> tuple[Kind, ...]:
        """Return what can make the pods of this backend's jobs here."""
        if self._kinds is None:
            served = [
                kind
                for kind in (JOB_SET, LEADER_WORKER_SET)
                if self._spans_hosts and discovery.serves(self.client, kind)
            ]
            with_sets = LEADER_WORKER_SET in served and JOB_SET not in served
            self._kinds = (JOB, *(kind for kind in served if kind is JOB_SET or with_sets))
        return self._kinds

    def observe(self, names_: Sequence[str]) -> dict[str, Observation]:
        """Look at some jobs: in what the watch has told, or with one question; see the protocol."""
        seen: dict[str, Observation] = {}
        for feed in self._feeds.alive():
            if feed.is_current:
                found = [each for name in names_ if name not in seen and (each := feed.find(name)) is not None]
                seen |= object_status.observations(found)
        missing = [name for name in names_ if name not in seen]
        return seen | self._ask(missing)

    def _ask(self, wanted: Sequence[str]) -> dict[str, Observation]:
        """Ask the cluster about jobs."""
        found = object_status.observations(self._objects(wanted))
        return {name: found[name] for name in wanted if name in found}

    def _objects(self, wanted: Sequence[str]) -> list[Object]:
        if not wanted:
            return []
        labels = ",".join(job_manifests.label_value(name) for name in wanted)
        selector = _APPS if len(wanted) > _MOST_NAMED else f"{job_manifests.JOB_LABEL} in ({labels})"
        return self._list(selector)

    def _list(self, selector: str) -> list[Object]:
        found = [each for kind in self.kinds() for each in self.client.list(kind, selector).objects]
        return [each for each in found if not object_status.belongs_to_job_set(each)]

    def observe_group(self, group: str) -> dict[str, Observation]:
        """Look at every living job of a batch with one question; see the protocol."""
        selector = job_manifests.label_selector(group=group)
        feed = next((each for each in self._feeds.alive() if each.selector == selector and each.is_current), None)
        objects = feed.objects() if feed is not None else self._list(selector)
        seen = object_status.observations(objects)
        return {name: each for name, each in seen.items() if not each.status.is_final}

    def find(self) -> Iterator[Observation]:
        """Look at every job of kinetic in this namespace; see the protocol."""
        return iter(object_status.observations(self._list(_APPS)).values())

    # ------------------------------------------------------------------------------------------------ waiting

    def watch(self, name: str, *, seconds: float) -> bool:
        """Wait for a change of a job, told by a watch that all who wait share; see the protocol."""
        feed = self._feed_of(name)
        seen: dict[str, int] = self._seen.__dict__.setdefault("news", {})
        before, now = seen.get(name), feed.changes_of(name)
        if before is None or before > now:  # what changed before, no such feed told: look once
            seen[name] = now
            return True
        if feed.is_alive:
            feed.wait(name, before, seconds)
        else:
            time.sleep(min(seconds, _BLIND_SECONDS))  # it cannot be watched now; whoever waits looks again
        seen[name] = feed.changes_of(name)
        return seen[name] != before or (seconds >= _BLIND_SECONDS and not feed.is_alive)

    def stop_watching(self, name: str) -> None:
        """Forget what this thread has seen of a job; see the protocol."""
        self._seen.__dict__.setdefault("news", {}).pop(name, None)
        self._seen.__dict__.setdefault("feeds", {}).pop(name, None)

    def watch_group(self, group: str, *, seconds: float) -> None:
        """Wait until some job of a batch may have ended; see the protocol."""
        feed = self._feeds.get(job_manifests.label_selector(group=group))
        if not feed.is_current:
            if not feed.wait_until_current(min(seconds, _CURRENT_SECONDS)) and not feed.is_alive:
                time.sleep(min(seconds, 1.0))  # it cannot be watched now; whoever waits looks again
            return
        ends: dict[str, int] = self._seen.__dict__.setdefault("ends", {})
        known = ends.get(group, -1)
        feed.wait_for_any_end(known if known <= feed.ends else -1, seconds)  # a feed made anew counts from 0
        ends[group] = feed.ends

    def _feed_of(self, name: str) -> Informer:
        """Return the feed that tells of a job and of its kin: each holds a connection, so no job has one of its own."""
        known: dict[str, str] = self._seen.__dict__.setdefault("feeds", {})
        if name not in known:
            known[name] = self._selector_for(name)
        return self._feeds.get(known[name])

    def _selector_for(self, name: str) -> str:
        """Select the jobs that this user submits, if it is among them; else those of its batch or of its owner."""
        own = _own_jobs(cluster.owner(self.environ))
        self._feeds.get(own).wait_until_current(_CURRENT_SECONDS)
        for feed in self._feeds.alive():
            if feed.is_current and feed.find(name) is not None:
                return feed.selector
        return _kin(next(iter(self._objects([name])), {})) or job_manifests.label_selector(job_id=name)

    def _make_feed(self, selector: str) -> Informer:
        return Informer(self.client, self.kinds(), selector)

    # ------------------------------------------------------------------------------------------------ explaining, logs

    def explain(self, name: str) -> Diagnosis | None:
        """Say why a job is as it is; see the protocol."""
        found = next(iter(self._objects([name])), None)
        if found is None:
            return None
        hosts = int((found.get("spec") or {}).get("completions") or 1) if found.get("kind") == JOB.name else 1
        machines = self.where.command_for_pools or diagnosis.NODES
        scene = diagnosis.gather_evidence(self.client, found, hosts=max(hosts, _hosts_of(found)), machines=machines)
        seen = diagnosis.diagnose(scene)
        if seen.status is JobStatus.RUNNING and seen.pod and not seen.what:
            seen = seen._replace(what=pod_logs.waiting_reason(self.client, seen.pod))
        return diagnosis.to_diagnosis(seen, name)

    def live_log(self, name: str, *, host: int, attempt: int, follow: bool = False) -> LiveLog | None:
        """Return the log of a pod that is there; see the protocol."""
        pods = self.client.list(POD, f"{job_manifests.JOB_LABEL}={job_manifests.label_value(name)}").objects
        if not pods:
            return None
        if follow:
            return pod_logs.follow_live(
                self.client, pods, host=host, attempt=attempt, on_verdict=partial(self._tell, name)
            )
        return pod_logs.snapshot(self.client, pods, host=host, attempt=attempt)

    def last_log(self, name: str, *, host: int, attempt: int) -> LiveLog | None:
        """Return the log of a pod whose runner was killed; see the protocol."""
        pods = self.client.list(POD, f"{job_manifests.JOB_LABEL}={job_manifests.label_value(name)}").objects
        return pod_logs.last_log(self.client, pods, host=host, attempt=attempt)

    def debug_addresses(self, name: str, *, hosts: Sequence[int]) -> dict[int, DebugAddress]:
        """Say which pods carry out hosts of a job now; see the protocol."""
        pods = pod_exec.pods_of(self.client, name)
        return {host: DebugAddress(inspection.PORT, machine=pods[host]) for host in hosts if host in pods}

    def dial(self, address: DebugAddress) -> AbstractContextManager[Tunnel]:
        """Open a connection to a port of a pod; see the protocol."""
        return pod_exec.connect_port(self.client, address.machine, address.port)

    def run_in(self, name: str, command: Sequence[str], *, host: int, tty: bool) -> int:
        """Run a command in the container of a pod; see the protocol."""
        return pod_exec.run_in_pod(self.client, name, command, host=host, tty=tty, environ=self.environ)

    def stacks(self, name: str, *, hosts: Sequence[int]) -> list[Stacks]:
        """Ask the workers of a job for their stacks; see the protocol."""
        return pod_exec.pod_stacks(self.client, name, hosts)

    def _tell(self, name: str) -> None:
        for feed in self._feeds.alive():
            feed.notify(name)

    # ------------------------------------------------------------------------------------------------ ending

    def stop(self, names_: Sequence[str], *, wait: float) -> bool:
        """End jobs by removing their objects; what has ended stays; see the protocol."""
        wanted = set(names_)
        found = [each for each in self._objects(names_) if object_status.job_id_of(each) in wanted]
        alive = [each for each in found if not object_status.status_of(each).is_final]
        job_launcher.delete_jobs(self.client, alive)
        labels = [job_manifests.label_value(name) for name in names_]
        return job_launcher.wait_until_gone(self.client, labels, wait) if labels else True

    def remove(self, names_: Sequence[str]) -> None:
        """Remove what is left of jobs; see the protocol."""
        feeds = [feed for feed in self._feeds.alive() if feed.is_current]
        known = {name: each for name in names_ for feed in feeds if (each := feed.find(name)) is not None}
        asked = self._objects([name for name in names_ if name not in known])
        found = {object_status.job_id_of(each): each for each in asked} | known
        job_launcher.delete_jobs(self.client, [found[name] for name in names_ if name in found])

    # ------------------------------------------------------------------------------------------------ batches

    def keep(self, group: str, secrets: Mapping[str, Any], keys: Callable[[], Sequence[bytes]]) -> None:
        """Make the Secret that the children of a batch share; see the protocol."""
        self._made_maker().keep(group, cluster.owner(self.environ), secrets, keys())

    def kept(self, group: str) -> dict[str, Any] | None:
        """Read it again; see the protocol."""
        found = self.client.get(SECRET, job_manifests.group_secret_name(group))
        if found is None:
            return None
        page, captured = (json.loads(b64decode(found["data"][name])) for name in (KEPT_FILE, ENVIRONMENT_FILE))
        self._made_maker().note_kept(group, int(page.pop("keys", 0)))
        return {**page, "captured": captured, "environ": dict(self.environ)}

    def forget_kept(self, group: str) -> None:
        """Remove it; see the protocol."""
        try:
            self.client.delete(SECRET, job_manifests.group_secret_name(group))
        except AccessDeniedError as error:  # what was computed is there all the same
            output.warn(f"the Secret {job_manifests.group_secret_name(group)} stays in the cluster: {error.what}")


def _own_jobs(owner: str) -> str:
    """Select the single jobs of one owner: each batch has a watch of its own."""
    return f"{job_manifests.label_selector(owner=owner)},!{job_manifests.GROUP_LABEL}"


def _kin(found: Object) -> str:
    """Select the jobs of an object's batch, else the single jobs of its owner; "" where it has neither."""
    if group := object_status.group_of(found):
        return job_manifests.label_selector(group=group)
    owner = object_status.owner_of(found)
    return _own_jobs(owner) if owner else ""


def _selectors(job_id: str, owner: str, group: str) -> tuple[str, ...]:
    """Return the selectors of the feeds in which a job belongs."""
    theirs = job_manifests.label_selector(group=group) if group else _own_jobs(owner)
    return theirs, job_manifests.label_selector(job_id=job_id)


def _hosts_of(found: Object) -> int:
    spec = found.get("spec") or {}
    for part in spec.get("replicatedJobs") or ():
        return int(part["template"]["spec"].get("completions") or 1)
    return int((spec.get("leaderWorkerTemplate") or {}).get("size") or 1)
