"""Warm pods of a cluster: found, made, told of tasks, and listed; and a task that none carries out, started cold."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import discovery, job_launcher, job_manifests, object_status, pod_exec, preflight
from kinetic._backends.kube.client import JOB, JOB_SET, LEADER_WORKER_SET, POD, SECRET, SERVICE
from kinetic._backends.kube.job_launcher import KINDS, JobLauncher
from kinetic._backends.kube.job_manifests import RUNNER_PATH
from kinetic._backends.kube.warm_connection import KeptConnection, WarmConnection
from kinetic._output import terminal as output
from kinetic._wire import NamedTuple, python_runtime, warm_pods
from kinetic._wire.failpoints import step
from kinetic._wire.task import KEY_FILE, WARM, Task
from kinetic._wire.warm_pods import WarmPod
from kinetic.errors import AccessDeniedError, BackendError, IntegrityError, KineticError, LaunchError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Kind, Object
    from kinetic._backends.kube.job_manifests import JobRequest
    from kinetic._backends.protocol import Launch

_DIGEST = 16  # hexadecimal digits
_CHECK_TRIES = _TURNS = 3
_BEGUN_SECONDS = 10.0  # how long a look for warm pods is believed that was begun before it was needed
# Of a pod's spec: compared by its parts, each job's own, or of the job's own name.
_OWN_FIELDS = {"containers", "volumes", "activeDeadlineSeconds", "subdomain", "affinity"}
_NOT_ENDED = ("Pending", "Running")  # phases of pods
_END_TRIES, _END_PAUSE = 20, 1.0


class WarmState(NamedTuple):
    """A warm pod, as the cluster shows it."""

    name: str  # its id
    page: WarmPod
    accelerator: str
    fits: Mapping[str, str]  # what a job must ask for, by the word for it
    packages: Mapping[str, Any]  # "lock": where its lock is in the store; "requirements": what its own jobs install
    job: Mapping[str, str]  # apiVersion, kind, name and uid of what makes it: a Job, or of a slice mostly a JobSet
    pod: str  # the pod whose container runs, of a slice that of its leader; "" while there is none
    created: float  # Unix time
    is_spot: bool = False
    is_started: bool = True  # else its Job is suspended: its client died before it was started
    restarts: int = 0  # of a slice (count)

    @property
    def what(self) -> str:
        """What it is called."""
        return "pod" if self.page.hosts == 1 else "slice"


class _Begun:
    """A look for warm pods that was begun before it was needed."""

    def __init__(self, owner: str) -> None:
        self.owner, self.is_over, self._since = owner, threading.Event(), time.monotonic()
        self.found: list[WarmState] | None = None

    @property
    def is_current(self) -> bool:
        """Whether it was answered, and lately."""
        return self.found is not None and time.monotonic() - self._since < _BEGUN_SECONDS


class WarmLauncher:
    """The warm pods of one namespace.

    Args:
        client: Returns the current client.
        launcher: Of jobs with pods of their own.
        notify: Wakes who waits for a job.
        find: Returns the object that makes the pods of a job or a warm pod, by its id; None where there is none.
        kinds: Returns the kinds of such objects.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        launcher: JobLauncher,
        notify: Callable[[str], object],
        find: Callable[[str], Object | None],
        kinds: Callable[[], Sequence[Kind]],
    ) -> None:
        self._client, self._launcher, self._notify = client, launcher, notify
        self._find, self._kinds = find, kinds
        self._kept: dict[str, tuple[KeptConnection, WarmState]] = {}  # by warm pod
        self._begun: _Begun | None = None
        self._lock = threading.Lock()

    def find(self, owner: str) -> list[WarmState]:
        """Return an owner's warm pods that have not ended, the newest first: two requests, or what was begun.

        Of a backend of slices, theirs as well, with a third request at the same time.
        """
        with self._lock:
            begun, self._begun = self._begun, None
        if begun is not None and begun.owner == owner and begun.is_over.wait(_BEGUN_SECONDS) and begun.is_current:
            return begun.found or []
        return self._list(owner, self._kinds())

    def find_all(self, owner: str) -> list[WarmState]:
        """Return the same of one host and of slices, whichever backend this is of."""
        return self._list(owner, [JOB, JOB_SET] if discovery.serves(self._client(), JOB_SET) else [JOB])

    def _list(self, owner: str, kinds: Sequence[Kind]) -> list[WarmState]:
        selector = f"{job_manifests.APP_LABEL}={job_manifests.APP_WARM}"
        if owner:
            selector += f",{job_manifests.label_selector(owner=owner)}"
        client = self._client()
        listed, *made = kube_client.request_all([partial(client.list, kind, selector) for kind in (POD, *kinds)])
        pods: dict[str, str] = {}
        for pod in reversed(object_status.newest_first(listed.objects)):
            is_first = object_status.host_index(pod) == 0
            if is_first and object_status.is_running(pod) and not pod["metadata"].get("deletionTimestamp"):
                pods[object_status.job_id_of(pod)] = object_status.object_name(pod)
        objects = [found for each in made for found in each.objects if not object_status.belongs_to_job_set(found)]
        return [
            _state(found, pods)
            for found in object_status.newest_first(objects)
            if not object_status.status_of(found).is_final and not found["metadata"].get("deletionTimestamp")
        ]

    def why_not(self, launch: Launch) -> str:
        """Return why this cluster cannot keep the pods of a launch, or ""."""
        if launch.placement.slices > 1:
            return "only hosts of one slice are kept"
        if self._launcher.kind_of(launch) != LEADER_WORKER_SET:
            return ""
        return "a LeaderWorkerSet starts again what has ended, so a slice of it could not end by itself; JobSet can"

    def check_permissions(self) -> None:
        """Refuse a new pod that would be idle for nothing: we may not connect to it, or Kueue starts each task itself.

        Raises:
            AccessDeniedError: The former.
            LaunchError: The latter.
        """
        client = self._client()
        discovery.check_permissions(client, (discovery.Permission("create", POD, "portforward"),))
        if queue := preflight.default_queue(client):
            raise LaunchError(
                f"the queue {queue} of Kueue admits each job by itself",
                why=f"it is the default queue of the namespace {client.namespace}",
                next="submit jobs as they are",
                code="no-warm-pod",
            )

    def task_of(self, launch: Launch, umask: int, requirements: Mapping[str, Any] | None = None) -> str:
        """Return the page of the task of a launch; ``requirements``: what it installs in place of its own."""
        page = task_page(self._launcher.manifest(self._launcher.request(launch), launch, umask))
        if requirements is not None:
            page = replace(Task.from_page(page), requirements=dict(requirements)).to_argument()
        return page

    def fits(self, launch: Launch, umask: int) -> dict[str, str]:
        """Return what a launch asks for, by the words that name it where another pod lacks it."""
        request = self._launcher.request(launch)
        return _fits(request, launch, self._launcher.manifest(request, launch, umask))

    def make_pod(self, launch: Launch, umask: int, page: WarmPod, key: bytes, assignment: bytes) -> WarmState:
        """Create a warm pod for jobs like this one; it is started by ``start_pod``."""
        client, kind, hosts = self._client(), self._launcher.kind_of(launch), launch.placement.hosts
        own = self._launcher.request(launch)
        fits = _fits(own, launch, self._launcher.manifest(own, launch, umask))
        request = replace(
            own,
            job_id=page.pod,
            order_sha256="",
            secret=job_manifests.object_name(page.pod),
            deadline_seconds=None,
            is_warm_pod=True,
        )
        if hosts > 1:
            until = time.time() + job_manifests.warm_guard_seconds(page.most_seconds)
            page = replace(page, hosts=hosts, leader=job_manifests.first_host(request, kind), until=until)
        request = replace(request, command=("python3", RUNNER_PATH, WARM, page.to_argument()))
        annotations = {
            job_manifests.FITS_ANNOTATION: json.dumps(fits),
            job_manifests.PACKAGES_ANNOTATION: json.dumps(
                {"lock": own.requirements.lock, "requirements": own.requirements.requirements}
            ),
            job_manifests.WARM_ANNOTATION: page.to_argument(),
        }
        job = job_manifests.warm_job(request, kind, annotations, page.most_seconds)
        made = kube_client.complete(kind, client.create(kind, job))
        step("client:warm-job-created")
        self._launcher.keep_runner()
        try:
            entries = {KEY_FILE: key} | ({warm_pods.ASSIGNMENT_FILE: assignment} if assignment else {})
            client.create(SECRET, job_manifests.secret(request, entries, made) | {"immutable": False})
            step("client:warm-secret-created")
            if kind is JOB and hosts > 1:
                client.create(SERVICE, job_manifests.service(request, made["metadata"]["uid"]))
        except BaseException:
            with suppress(KineticError):  # this must not hide what went wrong
                job_launcher.delete_jobs(client, [made])
            raise
        return _state(made, {})

    def start_pod(self, state: WarmState) -> None:
        """Resume what makes a warm pod."""
        self._client().patch(KINDS[state.job["kind"]], state.job["name"], {"spec": {"suspend": False}})

    def end_pod(self, state: WarmState, *, delete: bool = False) -> None:
        """End a warm pod: by its deadline, so that its Job stays a day; with ``delete``, or if it never began, now."""
        client, kind, name = self._client(), KINDS[state.job["kind"]], state.job["name"]
        if delete or not state.is_started:
            client.delete(kind, name, uid=state.job["uid"])
            return
        for _ in range(_END_TRIES):  # a slice that is being started again has no Job for a moment
            if client.patch(JOB, job_manifests.jobs_name(kind, name), {"spec": {"activeDeadlineSeconds": 1}}):
                return
            time.sleep(_END_PAUSE)
        raise BackendError(
            f"the warm slice {state.name} could not be stopped",
            why="the cluster is starting its hosts again",
            next=f"kinetic warm stop {state.name}",
        )

    @contextmanager
    def dial(self, state: WarmState) -> Iterator[WarmConnection]:
        """Connect to the first process of a warm pod."""
        with pod_exec.connect_port(self._client(), state.pod, state.page.port) as tunnel:
            yield WarmConnection(tunnel)

    def connect(self, state: WarmState) -> KeptConnection:
        """Return the connection to a warm pod that this process keeps, made now if there is none."""
        with self._lock:
            for name in [name for name, (kept, _) in self._kept.items() if kept.is_lost]:
                self._kept.pop(name)[0].close()
            if state.name not in self._kept:
                self._kept[state.name] = KeptConnection(self.dial(state), state.name, self._notify), state
            return self._kept[state.name][0]

    @contextmanager
    def turn(self, state: WarmState) -> Iterator[KeptConnection]:
        """Return the same connection, on which no other thread gives the pod a job or asks it meanwhile."""
        for left in reversed(range(_TURNS)):
            connection = self.connect(state)
            with connection.turn:
                if connection.is_lost and left:  # while another thread had its turn
                    continue
                yield connection
                return

    def begin(self, owner: str, accelerator: str) -> None:
        """Begin to list an owner's warm pods and to connect to the newest one that has an accelerator."""
        with self._lock:
            is_known = any(each.is_free for each, _ in self._kept.values())
            if is_known or self._begun is not None:
                return
            self._begun = begun = _Begun(owner)

        def look() -> None:
            try:
                begun.found = self._list(owner, self._kinds())
                near = [state for state in begun.found if state.pod and state.accelerator == accelerator]
                if near:
                    self.connect(near[0])
                    self._launcher.ensure_runner()
            except KineticError:  # the same question is asked again, where there is somewhere to report an error
                begun.found = None
            finally:
                begun.is_over.set()

        if python_runtime.start_thread(look, "kinetic-warm-pods") is None:
            self._begun = None

    def free(self) -> list[WarmState]:
        """Return the warm pods that are known to be idle, or about to be so, without a request."""
        with self._lock:
            return [state for each, state in self._kept.values() if each.is_free]

    def tell(
        self,
        connection: KeptConnection,
        message: bytes,
        job_id: str,
        *beside: Callable[[], Any],
        then: Callable[[], str] = lambda: "",
    ) -> list[Any]:
        """Tell a warm pod something of a task while other things are done; return why it refuses, or "", and those.

        ``then`` follows where the pod does not refuse, and may say why not in its place.
        """

        def ask() -> str:
            try:
                return connection.ask(message, job_id) or then()
            except KineticError as error:
                return f"the warm pod {connection.pod} cannot be told: {error.what}"

        return kube_client.request_all([ask, *beside])

    def is_followed(self, job_id: str) -> bool:
        """Return whether a connection would tell of the end of a job."""
        with self._lock:
            return any(each.follows(job_id) for each, _ in self._kept.values())

    def log_since(self, job_id: str) -> float:
        """Return a time before all that its pod's log has of a job, by the pod's clock; 0.0 where that is not known."""
        with self._lock:
            return max((each.log_since(job_id) for each, _ in self._kept.values()), default=0.0)

    def pods_of(self, name: str, request: Callable[[], list[Object]]) -> list[Object]:
        """Return the pods of a warm pod's Job: as they were, while the connection to one of them stays open."""
        with self._lock:
            kept, _ = self._kept.get(name, (None, None))
        if kept is None or kept.is_over:
            return request()
        kept.pods = kept.pods or request()
        return [dict(pod) for pod in kept.pods]

    def make_task(
        self, launch: Launch, umask: int, state: WarmState, *, at_once: bool = False, differs: bool = False
    ) -> Object:
        """Create what a task is in the cluster, as far as nothing runs; ``differs``: in packages from its warm pod.

        With ``at_once``, in one round of requests; ``own_secret`` is to follow.
        """
        self._begun = None  # it saw this pod idle
        return self._launcher.make_task(launch, umask, state.name, state.job if at_once else None, differs=differs)

    def own_secret(self, made: Object) -> None:
        """Let the Secret of a task go with what makes its pods, and no longer with the warm pod."""
        name, owner = job_manifests.object_name(object_status.job_id_of(made)), job_manifests.owner_of(made)
        self._client().patch(SECRET, name, {"metadata": {"ownerReferences": [owner]}})

    def now(self) -> float:
        """Return the time (Unix) by the cluster's clock, with which those of its objects are compared."""
        return self._client().transport.now()

    def tasks(self, owner: str) -> dict[str, float]:
        """Return when an owner's tasks were submitted, by job, those that have ended included."""
        selector = job_manifests.WARM_LABEL + (f",{job_manifests.label_selector(owner=owner)}" if owner else "")
        lists = [partial(self._client().list, kind, selector, reduce=object_status.reduced) for kind in self._kinds()]
        found = [each for listed in kube_client.request_all(lists) for each in listed.objects]
        return {object_status.job_id_of(each): object_status.created_at(each) for each in found}

    def store_of(self, job_id: str) -> str:
        """Return the store of a task, or "" if its Job is gone, or of another version of kinetic."""
        found = self._find(job_id)
        with suppress(IntegrityError):
            return Task.from_page(task_page(found)).store_url if found is not None else ""
        return ""

    def remove_tasks(self, job_ids: Iterable[str]) -> None:
        """Remove what would make the pods of tasks, and with it their Secrets."""
        job_launcher.delete_jobs(self._client(), [each for each in map(self._find, job_ids) if each is not None])

    def write_assignment(self, state: WarmState, assignment: bytes, key: bytes) -> None:
        """Put a task into the pod's Secret, for a pod that cannot be reached otherwise or is started again."""
        entries = {KEY_FILE: key, warm_pods.ASSIGNMENT_FILE: assignment}
        name = job_manifests.object_name(state.name)
        self._client().patch(SECRET, name, {"data": job_manifests.encoded(entries)})

    def start_cold(self, job_id: str, entries: Callable[[], Mapping[str, bytes]] | None = None) -> bool:
        """Start a task in a pod of its own: its Job is resumed, and no longer the warm pod's.

        Returns False if the Job is gone, or has no Secret: its client died before anything could have begun.

        Args:
            job_id: The task.
            entries: Returns what its Secret had, if that is gone: nothing where it had what is known nowhere else.
        """
        from kinetic._runner.pod import waiting_jobs  # pods do the same, where they may

        client = self._client()
        secret, found = client.get(SECRET, job_manifests.object_name(job_id)), self._find(job_id)
        if found is None:
            return False
        if secret is None:
            had = entries() if entries is not None else {}
            if not had:
                return False
            client.create(SECRET, job_manifests.secret_again(found, job_id, had))
        elif {each["uid"] for each in secret["metadata"].get("ownerReferences", ())} != {found["metadata"]["uid"]}:
            try:
                self.own_secret(found)  # its client died before: it would go with the warm pod
            except AccessDeniedError as error:  # a pod that has begun has it
                output.report_once(f"{job_id}: its Secret goes with its warm pod: {error.what}")
        name, change = object_status.object_name(found), waiting_jobs.CHANGE_TO_COLD
        return client.patch(KINDS[found["kind"]], name, change) is not None

    def could_take_since(self, warm: str) -> float | None:
        """Return since when a warm pod has run, and could have taken a task (Unix time); None where it still starts.

        Of a slice, since its last host has. Of one that its client did not start, which died: since it was created.
        """
        client = self._client()
        found = self._find(warm)
        if found is None or found["spec"].get("suspend"):
            return object_status.created_at(found or {})
        pods = client.list(POD, job_manifests.label_selector(job_id=warm)).objects
        times = [object_status.running_since(pod) for pod in pods if object_status.pod_phase(pod) in _NOT_ENDED]
        return max(times) if times and all(times) else None

    def check(self, job_id: str, warm: str, seconds: float) -> None:
        """Have a warm pod look into the store for the end of a job, and wait for it, as far as it can be reached."""
        client = self._client()
        pods = pod_exec.pods_of(client, warm)
        found = self._find(warm)
        if 0 not in pods or found is None:
            return
        state, trouble = _state(found, {warm: pods[0]}), ""
        request = warm_pods.request(warm_pods.CHECK, job_id=job_id)
        limit = time.monotonic() + seconds
        for _ in range(_CHECK_TRIES):
            try:
                with self.dial(state) as connection:
                    if connection.greeting().job_id != job_id or not connection.ask(request):
                        return
            except KineticError as error:
                trouble = error.what
            if time.monotonic() > limit:
                break
        if trouble:
            output.report(f"{job_id} ends within a minute in its warm pod {warm}, which cannot be told: {trouble}")


def _state(found: Object, pods: Mapping[str, str]) -> WarmState:
    about, name = found["metadata"], object_status.job_id_of(found)
    page = WarmPod.from_page(object_status.annotation_of(found, job_manifests.WARM_ANNOTATION) or "{}")
    fits = json.loads(object_status.annotation_of(found, job_manifests.FITS_ANNOTATION) or "{}")
    return WarmState(
        name,
        page,
        object_status.annotation_of(found, job_manifests.ACCELERATOR_ANNOTATION),
        {str(word): str(value) for word, value in fits.items()},
        json.loads(object_status.annotation_of(found, job_manifests.PACKAGES_ANNOTATION) or "{}"),
        {
            "name": str(about["name"]),
            "uid": str(about["uid"]),
            **{key: str(found[key]) for key in ("apiVersion", "kind")},
        },
        pods.get(name, ""),
        object_status.created_at(found),
        is_spot=fits.get("spot") == "True",
        is_started=not (found.get("spec") or {}).get("suspend"),
        restarts=int((found.get("status") or {}).get("restarts") or 0),
    )


def _fits(request: JobRequest, launch: Launch, cold: Mapping[str, Any]) -> dict[str, str]:
    """Return what must be equal, by the words that a line to the user has; all else of the pod is in the last one."""
    spec = job_manifests.pods_of(cold)["spec"]
    (container,) = spec["containers"]
    rest = {
        "spec": {name: spec[name] for name in spec if name not in _OWN_FIELDS},
        "container": {name: container[name] for name in container if name not in {"command", "image", "resources"}},
        "volumes": [volume for volume in spec["volumes"] if volume["name"] != "secret"],
        "store": launch.store_url,
        "labels": request.settings.labels,
        "annotations": request.settings.annotations,
    }
    return {
        "accelerator": request.placement.name,
        "spot": str(request.placement.spot),
        "image": request.requirements.image,
        "packages": _digest(request.requirements.requirements),
        "resources": _digest(container["resources"]),
        "service account": request.service_account,
        "version of kinetic or Python": request.runner,
        "settings": _digest(rest),
    }


def task_page(job: Mapping[str, Any]) -> str:
    """Return the page of a job's task, which is the last argument of its container."""
    (container,) = job_manifests.pods_of(job)["spec"]["containers"]
    return str(container["command"][-1]).replace("$$", "$")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_DIGEST]
