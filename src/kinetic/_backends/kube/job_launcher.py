"""Making what a job needs in a cluster, in an order in which dying anywhere leaves nothing that runs by mistake.

A single job: its Job or JobSet, suspended; the Secret, and the Service of hosts that need names, both owned by it; then
it is let go. A child of a batch, whose Secret is there already: one Job that runs at once. Names are derived, so that
each step can be repeated, and "it is there already" is success.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import discovery, job_manifests, object_status, preflight
from kinetic._backends.kube.client import CONFIG_MAP, JOB, JOB_SET, LEADER_WORKER_SET, POD, SECRET, SERVICE
from kinetic._backends.kube.job_manifests import GROUP, RUNNER_FILE, RUNNER_PATH, BucketVolume, JobRequest, job
from kinetic._config.resources import PodRequirements
from kinetic._data.remote_refs import fuse_mount
from kinetic._project import runner_bundle
from kinetic._stores.protocol import PUBLIC_VARIABLES
from kinetic._wire import inspection, output_paths, threads
from kinetic._wire.documents import KEY_BYTES
from kinetic._wire.failpoints import step
from kinetic._wire.task import (
    BUCKETS_FOLDER,
    ENVIRONMENT_FILE,
    KEY_FILE,
    STORE_KEY_FILE,
    STORE_SECRET_FOLDER,
    PodSettings,
    Task,
)
from kinetic.errors import LaunchError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Kind, Object
    from kinetic._backends.protocol import Launch
    from kinetic._wire.order import Order


# Where GKE puts the driver's libraries; images made for CUDA know it, and Python's own do not.
# Source: cloud.google.com/kubernetes-engine/docs/how-to/gpus, "About the NVIDIA CUDA-X libraries", read 2026-11.
_DRIVER = "/usr/local/nvidia/lib64"
_PYTHON = "python:"  # Python's own images, whose user is root; others may have one of their own
_LONGEST_WORD = 131_071  # bytes: MAX_ARG_STRLEN of Linux, less the zero at the end
_SETTING_UP_SECONDS = 1800  # beside the function's own time: installing, fetching data, and sealing at the end


def request_of(
    launch: Launch,
    namespace: str,
    *,
    runner: str,
    secret: str,
    account: str,
    environ: Mapping[str, str],
    by_count: bool = True,
    security: str = "",
) -> JobRequest:
    """Return what a launch asks of a cluster; its command is added by ``manifest_of``.

    Args:
        launch: The launch.
        namespace: Where it goes.
        runner: The ConfigMap with the runner.
        secret: The Secret with the job's key.
        account: The service account.
        environ: This client's environment.
        by_count: Whether nodes are selected by the number of their GPUs.
        security: The level of Pod Security that the namespace enforces.
    """
    wishes = PodRequirements.from_json(launch.requirements)
    settings = wishes.settings
    deadline = launch.order.deadline
    non_root = security == "restricted"
    own_image = not wishes.image.startswith(_PYTHON)
    environment = environment_of(launch, environ)
    if non_root and not own_image:
        environment["HOME"] = "/tmp"  # noqa: S108 - in a container of the job's own, whose user has no home
    return JobRequest(
        job_id=launch.order.job_id,
        namespace=namespace,
        placement=launch.placement,
        image=wishes.image,
        command=(),
        owner=launch.owner,
        group=launch.group,
        order_sha256=launch.order_sha256,
        environment=environment,
        secret=secret,
        runner=runner,
        needs=wishes.needs,
        deadline_seconds=None if deadline is None else int(deadline) + _SETTING_UP_SECONDS,
        ttl_seconds=settings.ttl_seconds if launch.order.debug is None else inspection.EXPIRES_SECONDS,
        service_account=account,
        queue=settings.queue,
        priority_class=settings.priority_class,
        buckets=buckets_of(launch.order),
        pull_secrets=settings.pull_secrets,
        node_selector=settings.node_selector,
        store_secret=settings.store_secret,
        by_count=by_count,
        run_as=GROUP if non_root and not own_image else None,
        non_root=non_root,
        retries=JobRequest.retries + launch.order.retries,
    )


def environment_of(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the container: nothing of the user's, and nothing secret."""
    found = {name: environ[name] for name in PUBLIC_VARIABLES if environ.get(name)}
    found["KERAS_BACKEND"] = "jax"
    if launch.order.cpu is not None:
        found |= threads.thread_count_variables(launch.order.cpu)
    wishes = PodRequirements.from_json(launch.requirements)
    if launch.placement.kind == "gpu" and wishes.image.startswith(_PYTHON):
        found["LD_LIBRARY_PATH"] = _DRIVER
    if wishes.settings.store_secret and launch.store_url.startswith("gs://"):
        found["GOOGLE_APPLICATION_CREDENTIALS"] = f"{STORE_SECRET_FOLDER}/{STORE_KEY_FILE}"
    return found


def store_requirements(launch: Launch) -> str:
    """Return what a pod needs to open the stores of its job, besides Python: the version of it that this client has."""
    addresses = (launch.store_url, *(ref.uri for ref in launch.order.data))
    if not any(address.startswith(("gs://", "s3://")) for address in addresses):
        return ""
    from importlib import metadata  # 20 ms; only for stores that need it

    return f"obstore=={metadata.version('obstore')}"


def buckets_of(order: Order) -> tuple[BucketVolume, ...]:
    """Return the mounts for data that the job shall see without a copy: each at a path that the runner knows."""
    wanted = [(number, ref) for number, ref in enumerate(order.data) if ref.fuse and ref.kind in {"prefix", "object"}]
    return tuple(BucketVolume(f"{BUCKETS_FOLDER}/{number}", fuse_mount(ref)) for number, ref in wanted)


def manifest_of(
    request: JobRequest, launch: Launch, kind: Kind, *, key_offset: int, runner_sha256: str, umask: int
) -> Object:
    """Return the object that makes the job's pods.

    Args:
        request: What is asked for.
        launch: The launch.
        kind: JobSet, Job or LeaderWorkerSet.
        key_offset: Where the job's key begins in its file, in bytes.
        runner_sha256: Digest of the runner.
        umask: This client's.
    """
    coordinator = job_manifests.coordinator(request, _manifest_for(kind, request))
    holds = launch.placement.hosts > 1 and kind not in {JOB, JOB_SET}  # nothing but the slice itself can end it
    removes = ""
    if holds:
        removes = kind.path(
            request.namespace, job_manifests.leader_worker_set_name(request.job_id, request.placement.hosts)
        )
        request = replace(request, needs_token=True)
    settings = PodSettings(
        output_dir=launch.order.output_dir,
        checkpoint_dir=output_paths.checkpoints_of(launch.order),
        most_attempts=PodRequirements.from_json(launch.requirements).settings.most_attempts,
        holds=holds,
        removes=removes,
        store_requirement=store_requirements(launch),
        runner_sha256=runner_sha256,
        key_offset=key_offset,
    )
    task = task_of(launch, settings, coordinator=coordinator, umask=umask)
    return _manifest_for(kind, replace(request, command=("python3", RUNNER_PATH, _argument(task))))


def _argument(task: Task) -> str:
    """Return a task as a word of a command line.

    Raises:
        LaunchError: It is longer than Linux allows: every container of the job would fail to start.
    """
    word = task.to_argument()
    if len(word) > _LONGEST_WORD:
        named = f", {len(task.placed)} references to data among them" if task.placed else ""
        raise LaunchError(
            f"{task.job_id} has more to tell its pods than fits on a command line",
            why=f"{len(word):,} bytes{named}; Linux takes {_LONGEST_WORD:,}",
            next="put what the job reads into fewer folders, each one Data or volume",
        )
    return word


def _manifest_for(kind: Kind, request: JobRequest) -> Object:
    if request.placement.hosts == 1:
        return job(request)
    if kind is JOB:
        return job_manifests.indexed_job(request)
    return job_manifests.job_set(request) if kind is JOB_SET else job_manifests.leader_worker_set(request)


def task_of(launch: Launch, settings: PodSettings, *, coordinator: str, umask: int) -> Task:
    """Return what the runner in the pod is told."""
    order, wishes = launch.order, PodRequirements.from_json(launch.requirements)
    return Task(
        job_id=order.job_id,
        order_sha256=launch.order_sha256,
        store_url=launch.store_url,
        key_id=launch.key_id,
        order_key=order.key if launch.child else "",
        child=launch.child.to_json() if launch.child else None,
        mark=order.mark,
        hosts=launch.placement.hosts,
        coordinator=coordinator,
        deadline=order.deadline,
        environment={},  # the supervisor reads it in the pod
        function=order.function_name,
        placed=order.data_to_mount(),
        umask=umask,
        retries=order.retries,
        kind=launch.placement.kind,
        chips=launch.placement.resource_count,
        require_accelerator=wishes.require_accelerator,
        requirements=wishes.requirements,
        pod=settings,
    )


KEPT_FILE = "kept.json"  # of a batch's Secret: what another client needs to go on with it
_NOT_FOR_CLIENTS = ("captured", "environ", "addresses")  # in a file of its own; a client's own; of this machine's jobs
MOST_KEYS = 20_000  # in one Secret: 640 KB of 1 MiB; further children bring their own


class JobLauncher:
    """Makes the objects of jobs in one namespace.

    Args:
        client: Returns the connection of the moment: whoever logs in anew has another.
        account: Finds the service account for a launch.
        kind_for_slices: Finds what makes the pods of several hosts here.
        environ: This client's environment.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        *,
        account: Callable[[Launch], str],
        kind_for_slices: Callable[[], Kind],
        environ: Mapping[str, str],
    ) -> None:
        self._client_now, self._environ = client, environ
        self._account, self._kind_for_slices = account, kind_for_slices
        self._keys_of: dict[str, int] = {}  # how many keys the Secret of a batch has
        self._lock = threading.Lock()

    @property
    def _client(self) -> Client:
        return self._client_now()

    def make(self, launch: Launch, umask: int) -> Object:
        """Make everything that one job needs, and let it run.

        Returns:
            The object that makes its pods.
        """
        shared = self._shared_key(launch)
        secret = (
            job_manifests.group_secret_name(launch.group)
            if shared is not None
            else job_manifests.secret_name(launch.order.job_id)
        )
        built = runner_bundle.build()
        request = request_of(
            launch,
            self._client.namespace,
            runner=self.ensure_runner(),
            secret=secret,
            account=self._account(launch),
            environ=self._environ if launch.environ is None else launch.environ,
            by_count=preflight.selects_by_count(self._client, launch.placement),
            security=preflight.pod_security(self._client),
        )
        kind = JOB if launch.placement.hosts == 1 else self._kind_for_slices()
        at = 0 if shared is None else shared * KEY_BYTES
        manifest = manifest_of(request, launch, kind, key_offset=at, runner_sha256=built.sha256, umask=umask)
        if shared is not None and kind is not LEADER_WORKER_SET and launch.placement.hosts == 1:
            manifest["spec"]["suspend"] = bool(request.queue)
            return self._client.create(kind, manifest)
        return self._make_alone(request, manifest, kind, launch, needs_secret=shared is None)

    def _make_alone(
        self, request: JobRequest, manifest: Object, kind: Kind, launch: Launch, *, needs_secret: bool
    ) -> Object:
        made = self._client.create(kind, manifest)
        step("client:job-created")
        made = {"apiVersion": kind.api_version, "kind": kind.name, **made}
        if needs_secret:
            entries = {KEY_FILE: launch.key, ENVIRONMENT_FILE: json.dumps(dict(launch.captured)).encode()}
            self._client.create(SECRET, job_manifests.secret(request, entries, made))
            step("client:secret-created")
        if kind is JOB and request.placement.hosts > 1:
            self._client.create(SERVICE, job_manifests.service(request, made["metadata"]["uid"]))
        if request.queue or kind is LEADER_WORKER_SET:
            return made  # Kueue lets it go; a LeaderWorkerSet cannot be held
        return self._client.patch(kind, made["metadata"]["name"], {"spec": {"suspend": False}}) or made

    def ensure_runner(self) -> str:
        """See to it that the ConfigMap with the runner is there, and that it is ours; return its name.

        What is in it is compared with what we have. That is believed for a minute, and not of another cluster: somebody
        may clear it away, or make the namespace anew, while this process lives, and pods would wait for it.
        """
        with self._lock:
            client = self._client
            return discovery.cache_of(client).ask(
                "runner", lambda: _ensure_runner(client), lambda _: discovery.SHORT_SECONDS
            )

    # ------------------------------------------------------------------------------------------------ batches

    def keep(self, group: str, owner: str, kept: Mapping[str, object], keys: Sequence[bytes]) -> None:
        """Make the Secret that the children of a batch share; everything is in it once, as there is 1 MiB of room."""
        chosen = keys[:MOST_KEYS]
        for_clients = {name: value for name, value in kept.items() if name not in _NOT_FOR_CLIENTS}
        entries = {
            KEY_FILE: b"".join(chosen),
            ENVIRONMENT_FILE: json.dumps(kept.get("captured") or {}).encode(),
            KEPT_FILE: json.dumps({**for_clients, "keys": len(chosen)}).encode(),
        }
        self._client.create(SECRET, job_manifests.group_secret(group, self._client.namespace, owner, entries))
        self._keys_of[group] = len(chosen)

    def note_kept(self, group: str, keys: int) -> None:
        """Take note of how many keys the Secret of a batch has that another client made."""
        self._keys_of[group] = keys

    def _shared_key(self, launch: Launch) -> int | None:
        """Return which key of its batch's Secret a launch uses; None when it needs a Secret of its own."""
        order = launch.order
        if not launch.group or order.index is None or order.group_attempt:
            return None
        return order.index if order.index < self._keys_of.get(launch.group, 0) else None


def _ensure_runner(client: Client) -> str:
    from kinetic._version import __version__

    built = runner_bundle.build()
    name = job_manifests.runner_name(__version__, built.sha256)
    wanted = job_manifests.runner_config_map(client.namespace, __version__, built.sha256, {RUNNER_FILE: built.data})
    found = client.get(CONFIG_MAP, name)
    if found is None:
        client.create(CONFIG_MAP, wanted)  # somebody else may come first
        found = client.get(CONFIG_MAP, name) or {}
    if (found.get("binaryData") or {}) != wanted["binaryData"] or found.get("data"):
        raise LaunchError(
            f"the ConfigMap {name} does not hold the code of kinetic that its name stands for",
            why="somebody made or changed it, and every job of this version would run what is in it",
            next=f"ask who did; then: kubectl delete configmap {name} -n {client.namespace}, and submit again",
            code="runner-changed",
        )
    return name


_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_MOST_NAMED = 40
_KINDS = {kind.name: kind for kind in (JOB, JOB_SET, LEADER_WORKER_SET)}


def delete_jobs(client: Client, objects: Sequence[Object]) -> None:
    """Delete what makes pods; the pods, and what the objects own, follow in the background."""

    def one(found: Object) -> None:
        about = found["metadata"]
        client.delete(_KINDS[found["kind"]], about["name"], uid=about["uid"])

    kube_client.request_all([partial(one, found) for found in objects])


def wait_until_gone(
    client: Client,
    labels: Sequence[str],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until no process of some jobs is left, at most some seconds; say whether that came true.

    Args:
        client: Of the cluster.
        labels: The jobs, as their labels say them.
        seconds: At most.
        clock: Gives seconds.
        sleep: Waits.
    """
    limit, pause = clock() + seconds, _FIRST_PAUSE
    while _live_pods(client, labels):
        if clock() >= limit:
            return False
        sleep(min(pause, max(0.0, limit - clock())))
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def _live_pods(client: Client, labels: Sequence[str]) -> bool:
    for start in range(0, len(labels), _MOST_NAMED):
        chosen = labels[start : start + _MOST_NAMED]
        pods = client.list(POD, f"{job_manifests.JOB_LABEL} in ({','.join(chosen)})").objects
        if any(object_status.pod_phase(pod) not in {"Succeeded", "Failed"} for pod in pods):
            return True
    return False
