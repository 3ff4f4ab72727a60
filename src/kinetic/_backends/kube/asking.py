"""From a launch to the request for a cluster: the task, the environment, the volumes, in one frozen page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic._backends.kube import names, slices
from kinetic._backends.kube.containers import GROUP
from kinetic._backends.kube.kinds import JOB, JOB_SET
from kinetic._backends.kube.request import RUNNER_PATH, BucketVolume, JobRequest
from kinetic._backends.kube.single import job
from kinetic._backends.wishes import PodWishes
from kinetic._data.mounting import fuse_mount
from kinetic._stores.addresses import PUBLIC_VARIABLES
from kinetic._wire import debug, outputs, threads
from kinetic._wire.pod import BUCKETS_FOLDER, STORE_KEY_FILE, STORE_SECRET_FOLDER
from kinetic._wire.task import PodSettings, Task
from kinetic.errors import LaunchError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Object
    from kinetic._backends.kube.kinds import Kind
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
    wishes = PodWishes.from_json(launch.requirements)
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
        ttl_seconds=settings.ttl_seconds if launch.order.debug is None else debug.EXPIRES_SECONDS,
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
        found |= threads.variables(launch.order.cpu)
    wishes = PodWishes.from_json(launch.requirements)
    if launch.placement.kind == "gpu" and wishes.image.startswith(_PYTHON):
        found["LD_LIBRARY_PATH"] = _DRIVER
    if wishes.settings.store_secret and launch.store_url.startswith("gs://"):
        found["GOOGLE_APPLICATION_CREDENTIALS"] = f"{STORE_SECRET_FOLDER}/{STORE_KEY_FILE}"
    return found


def client_of(launch: Launch) -> str:
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
    request: JobRequest, launch: Launch, kind: Kind, *, key_at: int, runner_sha256: str, umask: int
) -> Object:
    """Return the object that makes the job's pods.

    Args:
        request: What is asked for.
        launch: The launch.
        kind: JobSet, Job or LeaderWorkerSet.
        key_at: Where the job's key begins in its file, in bytes.
        runner_sha256: Digest of the runner.
        umask: This client's.
    """
    coordinator = slices.coordinator(request, _make(kind, request))
    holds = launch.placement.hosts > 1 and kind not in {JOB, JOB_SET}  # nothing but the slice itself can end it
    removes = ""
    if holds:
        removes = kind.path(request.namespace, names.leader_worker_set(request.job_id, request.placement.hosts))
        request = replace(request, needs_token=True)
    settings = PodSettings(
        output_dir=launch.order.output_dir,
        checkpoint_dir=outputs.checkpoints_of(launch.order),
        most_attempts=PodWishes.from_json(launch.requirements).settings.most_attempts,
        holds=holds,
        removes=removes,
        reaches_with=client_of(launch),
        runner_sha256=runner_sha256,
        key_at=key_at,
    )
    task = task_of(launch, settings, coordinator=coordinator, umask=umask)
    return _make(kind, replace(request, command=("python3", RUNNER_PATH, _argument(task))))


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


def _make(kind: Kind, request: JobRequest) -> Object:
    if request.placement.hosts == 1:
        return job(request)
    if kind is JOB:
        return slices.indexed_job(request)
    return slices.job_set(request) if kind is JOB_SET else slices.leader_worker_set(request)


def task_of(launch: Launch, settings: PodSettings, *, coordinator: str, umask: int) -> Task:
    """Return what the runner in the pod is told."""
    order, wishes = launch.order, PodWishes.from_json(launch.requirements)
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
        placed=order.placed_early(),
        umask=umask,
        retries=order.retries,
        kind=launch.placement.kind,
        chips=launch.placement.resource_count,
        require_accelerator=wishes.require_accelerator,
        requirements=wishes.requirements,
        pod=settings,
    )
