"""Jobs on a Kubernetes cluster: ``gke`` for one host, ``pathways`` for many. All state is in the cluster."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    runner_config_maps,
)
from kinetic._backends.kube.client import JOB, JOB_SET, LEADER_WORKER_SET, POD, SECRET
from kinetic._backends.kube.connection import ClusterAddress, client_of, pools_of
from kinetic._backends.kube.informer import Informer, Informers
from kinetic._backends.kube.job_launcher import MOST_NAMES, JobLauncher
from kinetic._backends.kube.warm_launcher import WarmLauncher
from kinetic._backends.protocol import SYSTEM, Clock, DebugAddress, Diagnosis, Launch, LiveLog, Observation, Stacks
from kinetic._config import cluster
from kinetic._config.cluster import PodRequirements
from kinetic._output import terminal as output
from kinetic._wire import folders, inspection, python_runtime
from kinetic.errors import AccessDeniedError, BackendUnavailableError, CapacityError, KineticError, OptionError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Kind, Object
    from kinetic._backends.kube.pod_exec import Tunnel
    from kinetic._backends.kube.pod_logs import VerdictFollower
    from kinetic._backends.registry import Opening
    from kinetic._hardware.placement import Placement

_POLL_SECONDS = 30.0
_POLL_WITHOUT_END_SECONDS = 5.0  # a LeaderWorkerSet does not say that its job has ended: only the store does
_CURRENT_SECONDS = 10.0
_MOST_VERDICTS = 32  # logs that are followed to their verdicts (count): each has a connection
_UNFOLLOWED_SECONDS = 2.0  # between two tries to follow the log of a warm pod that does not run yet
_BLIND_SECONDS = 1.0  # between two requests about a job that cannot be watched


def open_backend(opening: Opening) -> KubeBackend:
    """Open the backend of a cluster; no request is sent yet."""
    entry, where = opening.entry, ClusterAddress(**opening.address._asdict())
    return KubeBackend(entry.name, where, opening.environ, spans_hosts=entry.spans_hosts)


class KubeBackend:
    """Runs jobs on a cluster; ``protocol`` documents its methods."""

    is_here = False
    clock: Clock = SYSTEM
    log_poll_seconds = 0.1  # a job flushes its output this often

    def __init__(
        self, name: str, where: ClusterAddress, environ: Mapping[str, str] | None = None, *, spans_hosts: bool = False
    ) -> None:
        self.name, self.where, self._spans_hosts = name, where, spans_hosts
        self.environ = os.environ if environ is None else environ
        self._kinds: tuple[Kind, ...] | None = None
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Drop what threads hold or update: a forked child has only one of its parent's threads."""
        self._informers = Informers(self._make_informer)
        self._seen = _SeenByThread()
        self._verdicts: list[VerdictFollower] = []
        self._without_job: dict[str, str] = {}  # the warm pods of jobs whose own Jobs are gone, by job
        self._launcher = JobLauncher(lambda: self.client, self.environ)
        self.warm = WarmLauncher(lambda: self.client, self._launcher, self._notify, self._whole, self.kinds)

    def _make_informer(self, selector: str) -> Informer:
        """Make an informer; of a batch, whose logs are not followed, it follows the ends of pods as well."""
        is_of_batch = selector.startswith(f"{job_manifests.GROUP_LABEL}=")
        return Informer(self.client, self.kinds(), selector, follows_pods=is_of_batch)

    @property
    def client(self) -> Client:
        """The connection, made on first use and shared by the process."""
        return client_of(self.where, self.environ)

    @property
    def namespace(self) -> str:
        """The namespace of its objects: of the settings, else of the context."""
        return self.where.namespace or self.client.namespace

    @property
    def poll_seconds(self) -> float:
        """How often a waiter asks again without an event."""
        without_end = self._kinds is not None and LEADER_WORKER_SET in self._kinds
        return _POLL_WITHOUT_END_SECONDS if without_end else _POLL_SECONDS

    # ------------------------------------------------------------------------------------------------ before a launch

    def check(self, placement: Placement, requirements: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        if placement.hosts > 1 and not self._spans_hosts:
            other = registry.find(self.name).many_hosts
            raise OptionError(
                f"{placement.name} has {placement.hosts} hosts, and the {self.name} backend runs jobs of one host",
                next=f'write backend="{other}"' if other else None,
            )
        settings = PodRequirements.from_json(requirements).settings
        with self.client.transport.submitting():
            return preflight.check(self.client, placement, settings, pools=lambda: pools_of(self.where, self.environ))

    def check_store(self, url: str, requirements: Mapping[str, Any] | None = None) -> None:
        preflight.check_store(url, self.environ, PodRequirements.from_json(requirements).settings)

    def prepare(self) -> None:
        """Build the runner in a thread while the client packs."""
        from kinetic._project import runner_bundle

        python_runtime.start_thread(runner_bundle.build, "kinetic-prepare")

    def begin(self, job_id: str) -> None:
        """Do nothing: before its launch, a job has no objects in the cluster."""

    def finish_submitting(self, job_id: str, *, leave_nothing: bool = False) -> None:
        """Do nothing, as in ``begin``."""

    def sweep(self, scratch: Path | None, history: object = None) -> None:
        """Do nothing: the cluster removes ended jobs after their time to live."""

    def remove_unused_code(self) -> int:
        return runner_config_maps.remove_unused(self.client)

    def name_of(self, job_id: str, hosts: int) -> str:
        kind = JOB if hosts == 1 else discovery.kind_for_slices(self.client)
        return job_manifests.resource_name(kind, job_id, hosts)

    def launch(self, launches: Sequence[Launch]) -> list[str]:
        mask, launched = folders.read_umask(), list[str]()

        def launch_one(launch: Launch) -> str:
            """Create one job, and put it into the informers that cover it."""
            self.add(launch, self._launcher.make(launch, mask))
            launched.append(launch.order.job_id)
            return launch.order.job_id

        try:
            with self.client.transport.submitting():
                return kube_client.request_all([partial(launch_one, launch) for launch in launches])
        except CapacityError as error:
            error.launched = tuple(launched)
            raise

    def add(self, launch: Launch, made: Object) -> None:
        """Put an object that was created into the informers that cover it."""
        job_id = launch.order.job_id
        selectors = {_relatives(launch.group, launch.owner), job_manifests.label_selector(job_id=job_id)}
        for informer in self._informers.alive():
            if informer.selector in selectors:
                informer.add(made)
                self._seen.changes[job_id] = informer.changes_of(job_id)  # a look that follows sees all until now

    def can_hold(self, placement: Placement, requirements: Mapping[str, Any] | None) -> bool:
        """Return whether pods may start jobs; a LeaderWorkerSet cannot be suspended."""
        if placement.hosts > 1 and discovery.kind_for_slices(self.client) is LEADER_WORKER_SET:
            return False
        settings = PodRequirements.from_json(requirements).settings
        return preflight.starts_followers(self.client, preflight.service_account(self.client, settings))

    def release(self, names: Sequence[str]) -> None:
        """Resume what waits; where Kueue has the say, hand it over to its queue."""
        kube_client.request_all([partial(job_launcher.release, self.client, found) for found in self._objects(names)])

    # ------------------------------------------------------------------------------------------------ observing

    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of objects that make the pods of this backend's jobs here."""
        if self._kinds is None:
            served = [
                kind
                for kind in (JOB_SET, LEADER_WORKER_SET)
                if self._spans_hosts and discovery.serves(self.client, kind)
            ]
            self._kinds = (JOB, *served[:1])  # with JobSets, there are no LeaderWorkerSets of ours
        return self._kinds

    def observe(self, names: Sequence[str]) -> dict[str, Observation]:
        """Observe some jobs: by the informers that know them, or with one request."""
        seen: dict[str, Observation] = {}
        for informer in self._informers.alive():
            if informer.is_current:
                found = [each for name in names if name not in seen and (each := informer.find(name)) is not None]
                seen |= object_status.observations(found)
        missing = [name for name in names if name not in seen]
        with _unless_deleted():
            requested = object_status.observations(self._objects(missing))
            seen |= {name: requested[name] for name in missing if name in requested}
        for warm in {observed.warm for observed in seen.values() if observed.warm}:
            status = self._warm_status(warm)
            for name, seen_one in list(seen.items()):
                if seen_one.warm == warm:
                    is_told = status is not None and self.warm.is_followed(name)
                    now = status or JobStatus.PENDING
                    seen[name] = replace(seen_one, warm_ended=status is None, status=now, is_told=is_told)
        return seen

    def observe_without_job(self, name: str, warm: str) -> Observation | None:
        """Observe a job of a warm pod whose own Job is gone, or return None where that pod has ended as well."""
        status = None
        with _unless_deleted():
            status = self._warm_status(warm)
        if status is None:
            return None
        self._without_job[name] = warm
        return Observation(name, status, attempt=None, warm=warm, is_told=self.warm.is_followed(name))

    def _warm_status(self, warm: str) -> JobStatus | None:
        """Return the status of a warm pod, or None if it is gone for good."""
        found = self._find(warm)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return None
        status = object_status.status_of(found)
        return None if status.is_final else status

    def _find(self, name: str) -> Object | None:
        """Find the object of a job or a warm pod, by an informer that knows it or with a request."""
        known = (informer.find(name) for informer in self._informers.alive() if informer.is_current)
        return next((each for each in known if each is not None), None) or next(iter(self._objects([name])), None)

    def _objects(self, names: Sequence[str]) -> list[Object]:
        if not names:
            return []
        every = len(names) > MOST_NAMES  # too many for one selector
        return self._list(job_manifests.label_selector() if every else job_manifests.jobs_selector(names))

    def _whole(self, name: str) -> Object | None:
        """Return the object that makes the pods of a job or a warm pod, with all that it has."""
        return next(iter(self._list(job_manifests.jobs_selector([name]), dict)), None)

    def _list(
        self, selector: str, reduce: Callable[[Object], Object] = object_status.reduced, *, fields: str = ""
    ) -> list[Object]:
        lists = [self.client.list(kind, selector, fields=fields, reduce=reduce) for kind in self.kinds()]
        found = [each for listing in lists for each in listing.objects]
        return [each for each in found if not object_status.belongs_to_job_set(each)]

    def observe_group(self, group: str) -> dict[str, Observation]:
        """Observe every living job of a batch with one request, or none."""
        selector = job_manifests.label_selector(group=group)
        current = [each for each in self._informers.alive() if each.selector == selector and each.is_current]
        # A Job of several hosts counts each; and of the kinds that make Jobs, the server knows no such field.
        fields = "" if self._spans_hosts else "status.successful=0"
        seen: dict[str, Observation] = {}
        with _unless_deleted():
            seen = object_status.observations(current[0].objects() if current else self._list(selector, fields=fields))
        for name in [name for name, each in seen.items() if each.warm and self.warm.is_followed(name)]:
            seen[name] = replace(seen[name], status=JobStatus.RUNNING, is_told=True)
        return {name: each for name, each in seen.items() if not each.status.is_final}

    def find(self) -> Iterator[Observation]:
        return iter(object_status.observations(self._list(job_manifests.label_selector())).values())

    # ------------------------------------------------------------------------------------------------ waiting

    def watch(self, name: str, *, seconds: float) -> bool:
        informer = self._informer_for(name)
        before, now = self._seen.changes.get(name), informer.changes_of(name)
        if before is None or before > now:  # what changed before this informer was made is unknown: observe once
            self._seen.changes[name] = now
            return True
        if informer.is_alive:
            if not self.warm.is_followed(name):
                self._follow_verdict(name, informer)
            if self._is_unfollowed(name, informer):  # the Job of such a task changes neither when it begins nor ends
                seconds = min(seconds, _UNFOLLOWED_SECONDS)
            informer.wait(name, before, seconds)
        else:
            time.sleep(min(seconds, _BLIND_SECONDS))  # it cannot be watched now; the waiter observes again
        now = self._seen.changes[name] = informer.changes_of(name)
        return now != before or (seconds >= _BLIND_SECONDS and not informer.is_alive)

    def _follow_verdict(self, name: str, informer: Informer) -> None:
        """Follow the end of the log of a job that runs, unless this thread reads all of it; again only after a change.

        The informer hears of its end a second later. That is enough where very many are waited for.
        """
        change, follower = self._seen.verdicts.get(name, (0, None))
        now, found = informer.changes_of(name), informer.find(name)
        is_same = now == change and not self._is_unfollowed(name, informer)
        if is_same or name in self._seen.followed or (follower is not None and not follower.is_over):
            return
        self._verdicts = [each for each in self._verdicts if not each.is_over]
        is_running = found is not None and (
            object_status.status_of(found) is JobStatus.RUNNING or bool(object_status.warm_pod_of(found))
        )
        if is_running and len(self._verdicts) < _MOST_VERDICTS:
            self._seen.verdicts[name] = now, None
            with contextlib.suppress(KineticError):
                follower = pod_logs.follow_verdict(self.client, self._pods(name), partial(self._notify, name))
                self._seen.verdicts[name] = now, follower
                self._verdicts += [follower] if follower else []

    def _is_unfollowed(self, name: str, informer: Informer) -> bool:
        """Return whether nothing would report the end of a task of a warm pod."""
        _, follower = self._seen.verdicts.get(name, (0, None))
        found = informer.find(name)
        is_task = found is not None and bool(object_status.warm_pod_of(found)) and not self.warm.is_followed(name)
        return is_task and name not in self._seen.followed and (follower is None or follower.is_over)

    def without_slot(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stop_watching(self, name: str) -> None:
        self._seen.changes.pop(name, None)
        self._seen.selectors.pop(name, None)
        self._seen.followed.discard(name)
        _, follower = self._seen.verdicts.pop(name, (0, None))
        if follower is not None:
            follower.stop()

    def watch_group(self, group: str, *, seconds: float) -> None:
        informer = self._informers.get(job_manifests.label_selector(group=group))
        if not informer.is_current:
            if not informer.wait_until_current(min(seconds, _CURRENT_SECONDS)) and not informer.is_alive:
                time.sleep(min(seconds, _BLIND_SECONDS))  # it cannot be watched now; the waiter observes again
            return
        known = self._seen.ends.get(group, -1)
        informer.wait_for_any_end(known if known <= informer.ends else -1, seconds)  # a new informer counts from 0
        self._seen.ends[group] = informer.ends

    def _informer_for(self, name: str) -> Informer:
        """Return the informer of a job and its relatives: each has a connection, so no job has one of its own."""
        if name not in self._seen.selectors:
            self._seen.selectors[name] = self._selector_for(name)
        return self._informers.get(self._seen.selectors[name])

    def _selector_for(self, name: str) -> str:
        """Select the jobs that this user submits, if it is one of them; else those of its batch or of its owner."""
        self._informers.get(_relatives("", cluster.owner(self.environ))).wait_until_current(_CURRENT_SECONDS)
        for informer in self._informers.alive():
            if informer.is_current and informer.find(name) is not None:
                return informer.selector
        found = next(iter(self._objects([name])), {})
        group = object_status.label_of(found, job_manifests.GROUP_LABEL)
        owner = object_status.label_of(found, job_manifests.OWNER_LABEL)
        return _relatives(group, owner) if group or owner else job_manifests.label_selector(job_id=name)

    # ------------------------------------------------------------------------------------------------ explaining, logs

    def explain(self, name: str) -> Diagnosis | None:
        found, list_nodes = self._whole(name), self.where.command_for_pools or diagnosis.LIST_NODES
        if found is None:
            return self._explain_task(name, self._without_job[name], list_nodes) if name in self._without_job else None
        warm = object_status.warm_pod_of(found)
        if warm and self.client.get(SECRET, job_manifests.object_name(name)) is not None:  # else its client died before
            return self._explain_task(name, warm, list_nodes)
        state = diagnosis.diagnose(diagnosis.gather_evidence(self.client, found, list_nodes=list_nodes))
        if state.code == "configuration" and self._launcher.restore_runner(state.what):
            state = state._replace(what="kinetic's own code was deleted from the namespace, and was sent there again")
            state = state._replace(next="wait: the node looks for it again within minutes", stuck=False)
        if state.status is JobStatus.RUNNING and state.pod and not state.what:
            state = state._replace(what=pod_logs.waiting_reason(self.client, state.pod))
        return diagnosis.to_diagnosis(state, name)

    def _explain_task(self, name: str, warm: str, list_nodes: str) -> Diagnosis:
        """Explain a job that a warm pod carries out, or does not."""
        if self._warm_status(warm) is None:
            what = f"its warm pod {warm} has ended; who waits for it starts it in a pod of its own"
            return Diagnosis(what)
        pod = self._whole(warm) or {}
        state = diagnosis.diagnose(diagnosis.gather_evidence(self.client, pod, list_nodes=list_nodes))
        if state.status is JobStatus.RUNNING:
            return Diagnosis(f"it is in the warm pod {warm}", waits=False, next=f"kinetic jobs logs {name} --follow")
        found = diagnosis.to_diagnosis(state, warm)
        next_ = re.sub(rf"\b(jobs \w+) {warm}", rf"\1 {name}", found.next)
        return replace(found, what=f"{name}: its warm pod {found.what}", next=next_, status=None)

    def live_log(self, name: str, *, host: int, attempt: int, follow: bool = False) -> LiveLog | None:
        if follow:
            self._seen.followed.add(name)
        pods: list[Object] = []
        with _unless_deleted():
            pods = self._pods(name)
        if not pods:
            return None
        if follow:
            block = 0.0 if self.warm.is_followed(name) else pod_logs.BLOCK_SECONDS
            notify = partial(self._notify, name)
            return pod_logs.follow_live(
                self.client, pods, host=host, attempt=attempt, on_verdict=notify, block_seconds=block
            )
        return pod_logs.snapshot(self.client, pods, host=host, attempt=attempt)

    def last_log(self, name: str, *, host: int, attempt: int) -> LiveLog | None:
        with _unless_deleted():
            return pod_logs.last_log(self.client, self._pods(name), host=host, attempt=attempt)
        return None

    def live_usage(self, name: str, *, host: int, attempt: int) -> None:
        """Return nothing: a pod writes it into the store."""

    def _pods(self, name: str) -> list[Object]:
        warm, created = self._warm_pod_of(name)
        selector = job_manifests.label_selector(job_id=warm or name)
        list_them = partial(self.client.list, POD, selector)
        pods = self.warm.pods_of(warm, lambda: list_them().objects) if warm else list_them().objects
        if warm:
            said, about = self.warm.log_since(name), max(0.0, created - pod_logs.SKEW_SECONDS)
            for pod in pods:  # the first host alone has told its time
                since = about if object_status.host_index(pod) else said or about
                pod |= {pod_logs.WARM_JOB: name, pod_logs.WARM_SINCE: since}
        return pods

    def _warm_pod_of(self, name: str) -> tuple[str, float]:
        """Return the warm pod that carries a job out, or "", and since when the job exists; often without a request."""
        found = self._find(name) or {}
        return object_status.warm_pod_of(found) or self._without_job.get(name, ""), object_status.created_at(found)

    def _runs_in(self, name: str) -> str:
        """Return what the pods of a job are labeled with: its id, or that of its warm pod."""
        return self._warm_pod_of(name)[0] or name

    def _notify(self, name: str) -> None:
        for informer in self._informers.alive():
            informer.notify(name)

    def live_progress(self, name: str, *, host: int, attempt: int) -> None:
        """Return nothing, as above."""

    def debug_addresses(self, name: str, *, hosts: Sequence[int]) -> dict[int, DebugAddress]:
        pods = pod_exec.pods_of(self.client, self._runs_in(name))
        return {host: DebugAddress(inspection.PORT, machine=pods[host]) for host in hosts if host in pods}

    def port_address(self, name: str, port: int, *, host: int) -> DebugAddress | None:
        found = self.debug_addresses(name, hosts=[host]).get(host)
        return found and found._replace(port=port)

    def dial(self, address: DebugAddress) -> AbstractContextManager[Tunnel]:
        return pod_exec.connect_port(self.client, address.machine, address.port)

    def run_in(self, name: str, command: Sequence[str], *, host: int, tty: bool) -> int:
        return pod_exec.run_in_pod(self.client, self._runs_in(name), command, host=host, tty=tty, environ=self.environ)

    def stacks(self, name: str, *, hosts: Sequence[int]) -> list[Stacks]:
        return pod_exec.pod_stacks(self.client, self._runs_in(name), hosts)

    # ------------------------------------------------------------------------------------------------ ending

    def check_stop(self) -> None:
        with _unless_deleted():
            maker = discovery.kind_for_slices(self.client) if self._spans_hosts else JOB
            discovery.check_permissions(self.client, (discovery.Permission("delete", maker),))

    def stop(self, names: Sequence[str], *, wait: float) -> bool:
        wanted = set(names)
        with _unless_deleted():
            found = [each for each in self._objects(names) if object_status.job_id_of(each) in wanted]
            alive = [each for each in found if not object_status.status_of(each).is_final]
            for each in alive:
                if warm := object_status.warm_pod_of(each):
                    self.warm.check(object_status.job_id_of(each), warm, wait)
            for name in wanted & self._without_job.keys():
                self.warm.check(name, self._without_job[name], wait)
            job_launcher.delete_jobs(self.client, alive)
            return job_launcher.wait_until_gone(self.client, names, wait)
        return True

    def remove(self, names: Sequence[str], *, then: Callable[[], object] | None = None) -> None:
        informers = [each for each in self._informers.alive() if each.is_current]
        known = {name: each for name in names for informer in informers if (each := informer.find(name)) is not None}
        with _unless_deleted():
            requested = self._objects([name for name in names if name not in known])
            found = {object_status.job_id_of(each): each for each in requested} | known
            doomed = [found[name] for name in names if name in found]
            if then is not None and doomed and all(map(object_status.warm_pod_of, doomed)):  # the next need not wait
                remove = partial(self._remove_behind, doomed, then)
                if python_runtime.start_thread(remove, "kinetic-remove", daemon=False) is not None:
                    return
            job_launcher.delete_jobs(self.client, doomed)
        if then is not None:
            then()

    def _remove_behind(self, doomed: list[Object], then: Callable[[], object]) -> None:
        for remove in (partial(job_launcher.delete_jobs, self.client, doomed), then):  # one may fail without the other
            try:
                remove()
            except KineticError as error:
                names = " ".join(map(object_status.job_id_of, doomed))
                what = f"{names} was collected, and could not be removed in full"
                output.warn(what, why=error.what, next=error.next or f"kinetic jobs cleanup {names}")

    # ------------------------------------------------------------------------------------------------ batches

    def keep(self, group: str, secrets: Mapping[str, Any], keys: Callable[[], Sequence[bytes]]) -> None:
        self._launcher.keep(group, cluster.owner(self.environ), secrets, keys())

    def kept(self, group: str) -> dict[str, Any] | None:
        return self._launcher.kept(group)

    def forget_kept(self, group: str) -> None:
        name = job_manifests.object_name(group)
        try:
            with _unless_deleted():
                self.client.delete(SECRET, name)
        except AccessDeniedError as error:  # the results exist all the same
            output.warn(f"the Secret {name} stays in the cluster: {error.what}")


@contextlib.contextmanager
def _unless_deleted() -> Iterator[None]:
    """Leave out what is to be done in a cluster that Google says was deleted: its jobs went with it."""
    try:
        yield
    except BackendUnavailableError as error:
        if error.code != "cluster-missing":
            raise


class _SeenByThread(threading.local):
    """What each waiting thread has seen: changes and the informer's selector by job, ends by batch."""

    def __init__(self) -> None:
        self.changes: dict[str, int] = {}
        self.followed: set[str] = set()  # jobs whose logs it reads
        self.verdicts: dict[str, tuple[int, VerdictFollower | None]] = {}  # by job; since which change
        self.selectors: dict[str, str] = {}
        self.ends: dict[str, int] = {}


def _relatives(group: str, owner: str) -> str:
    """Select the jobs of a batch, or without one the single jobs of an owner: each batch has an informer of its own."""
    if group:
        return job_manifests.label_selector(group=group)
    return f"{job_manifests.label_selector(owner=owner)},!{job_manifests.GROUP_LABEL}"
