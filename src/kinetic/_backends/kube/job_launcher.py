"""Create what a job needs in a cluster, in an order in which dying anywhere leaves nothing that runs by mistake.

A single job: its Job or JobSet, suspended; the Secret, and the Service of hosts that need names, both owned by it; then
it is resumed, or given to its queue of Kueue. A child of a batch, whose Secret exists: one Job that runs at once. Names
are derived, so each step can be repeated, and an object that exists already is success.
"""

from __future__ import annotations

import json
import os
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import discovery, job_manifests, object_status, preflight, runner_config_maps
from kinetic._backends.kube.client import JOB, JOB_SET, LEADER_WORKER_SET, POD, POD_GROUP, SECRET, SERVICE, Client
from kinetic._backends.kube.job_manifests import GROUP, QUEUE_LABEL, RUNNER_PATH, JobRequest, bucket_volume
from kinetic._config.cluster import PodRequirements
from kinetic._images.image_choice import GPU_DRIVER
from kinetic._project import runner_bundle
from kinetic._stores import credentials, obstore_client
from kinetic._stores.protocol import CLOUDS, PUBLIC_VARIABLES, parse_address
from kinetic._wire import inspection, python_runtime
from kinetic._wire import order as wire_order
from kinetic._wire.documents import KEY_BYTES
from kinetic._wire.failpoints import step
from kinetic._wire.task import (
    BUCKETS_FOLDER,
    CACHE_KEY_FILE,
    ENVIRONMENT_FILE,
    FOLLOWED_FILE,
    IN_SECRET,
    KEY_FILE,
    STORE_KEY_FILE,
    STORE_SECRET_FOLDER,
    PodSettings,
    Task,
)
from kinetic.errors import AccessDeniedError, KineticError, LaunchError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Kind, Object
    from kinetic._backends.protocol import Launch

_PYTHON = "python:"  # Python's own images, whose user is root; others may have one of their own
_MOST_ARGUMENT_BYTES = 131_071  # MAX_ARG_STRLEN of Linux, less the zero at the end
_AZURE_IDENTITY = "azure.workload.identity/use"
_SETUP_SECONDS = 1800  # beside the function's own time: installing, fetching data, and sealing at the end
KEPT_FILE = "kept.json"  # of a batch's Secret: what another client needs to continue the batch
_NOT_FOR_CLIENTS = (
    "captured",
    "cache_key",
    "environ",
    "addresses",
    "followed",
)  # in files of their own; a client's own; of this machine's jobs
MOST_KEYS = 20_000  # in one Secret: 640 KB of 1 MiB; further children bring their own
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
MOST_NAMES = 40  # jobs in one selector
KINDS = {kind.name: kind for kind in (JOB, JOB_SET, LEADER_WORKER_SET)}


class JobLauncher:
    """Creates the objects of jobs in one namespace; ``client`` returns the current connection."""

    def __init__(self, client: Callable[[], Client], environ: Mapping[str, str]) -> None:
        self._client, self._environ = client, environ
        self._keys_of: dict[str, int] = {}  # how many keys the Secret of a batch has
        self._may_go = False  # the ConfigMap with the runner
        self.lock = threading.Lock()

    def request(self, launch: Launch, shared: int | None = None) -> JobRequest:
        """Return what a launch asks of this cluster."""
        client = self._client()
        settings = PodRequirements.from_json(launch.requirements).settings
        account = preflight.service_account(client, settings)
        found = request_of(
            launch,
            client.namespace,
            runner=runner_config_maps.name_of_own(),
            secret=job_manifests.object_name(launch.order.job_id if shared is None else launch.group),
            account=account,
            environ=self._environ if launch.environ is None else launch.environ,
            by_count=preflight.selects_by_count(client, launch.placement),
            security=preflight.pod_security(client),
            needs_token=preflight.starts_followers(client, account),
        )
        ensure = partial(self.ensure_runner, settings.labels)
        found = replace(found, has_read_only_root=preflight.has_read_only_root(client, found, ensure))
        ensure()
        return found

    def make_task(
        self, launch: Launch, umask: int, pod: str, holder: Mapping[str, str] | None = None, *, differs: bool = False
    ) -> Object:
        """Create the suspended Job of a task for a warm pod, and its Secret.

        The warm pod does not own it, so it outlives that: a client that looks starts a task that is left. A task with
        other packages than the pod's may be given back, so a client that looks at it asks the store as well.
        ``holder`` owns the Secret until ``own_secret`` has given it to the Job: then both are created at the same time,
        and a Secret whose Job is never created goes with its holder.
        """
        client, request = self._client(), replace(self.request(launch), warm=pod)
        kind, manifest = self.kind_of(launch), self.manifest(request, launch, umask)
        manifest["metadata"]["annotations"] |= {job_manifests.DIFFERS_ANNOTATION: "true"} if differs else {}

        def make_job() -> Object:
            made = kube_client.complete(kind, client.create(kind, manifest))
            step("client:job-created")
            self.keep_runner(request.settings.labels)
            return made

        def make_secret(owner: Object) -> Object:
            return client.create(SECRET, job_manifests.secret(request, _secret_entries(launch), owner))

        if holder is not None:
            try:
                owner: Object = {**holder, "metadata": holder}
                asks: list[Callable[[], Object]] = [make_job, partial(make_secret, owner)]
                made = kube_client.request_all(asks)[0]
            except KineticError:
                with suppress(KineticError):  # else it goes with its holder
                    client.delete(SECRET, request.secret)
                raise
        else:
            made = make_job()
            make_secret(made)
        step("client:secret-created")
        if kind is JOB and launch.placement.hosts > 1:  # nothing looks for it before the task is started cold
            client.create(SERVICE, job_manifests.service(request, made["metadata"]["uid"]))
        return made

    def kind_of(self, launch: Launch) -> Kind:
        """Return the kind of object that makes the pods of a launch."""
        return JOB if launch.placement.hosts == 1 else discovery.kind_for_slices(self._client())

    def manifest(self, request: JobRequest, launch: Launch, umask: int, *, key_offset: int = 0) -> Object:
        """Return the object that makes the pods of a launch, as it is for a pod of its own."""
        kind, digest = self.kind_of(launch), runner_bundle.build().sha256
        return manifest_of(request, launch, kind, key_offset=key_offset, runner_sha256=digest, umask=umask)

    def make(self, launch: Launch, umask: int) -> Object:
        """Create everything that one job needs, start it, and return the object that makes its pods."""
        client, hosts = self._client(), launch.placement.hosts
        shared = self._shared_key(launch)
        request = self.request(launch, shared)
        kind = self.kind_of(launch)
        if launch.order.after and kind is LEADER_WORKER_SET:
            raise LaunchError(
                f"{launch.order.job_id} cannot follow other jobs",
                why="a LeaderWorkerSet cannot be suspended, so its machines would wait with it",
                next="install JobSet in the cluster; or wait for the others, and submit it then: job.wait()",
                code="after-unsupported",
            )
        waits_for = [each.job_id for each in launch.order.after]
        if launch.programs_of:
            waits_for = [job_manifests.PROGRAMS_OF, launch.programs_of]
        if kind is not LEADER_WORKER_SET and not waits_for and not request.settings.queue:
            # A group whose pods are not there yet would keep others from their room.
            together = preflight.starts_together(client, launch.placement, request.settings)
            request = replace(request, starts_together=together)
        manifest = self.manifest(request, launch, umask, key_offset=(shared or 0) * KEY_BYTES)
        default_queue = preflight.default_queue(client) if waits_for or request.settings.queue else ""
        if waits_for:
            job_manifests.hold(manifest, waits_for, default_queue)
        if shared is not None and hosts == 1:
            manifest["spec"]["suspend"] = bool(request.settings.queue or waits_for)
            made = client.create(kind, manifest)
            self.keep_runner(request.settings.labels)
            return made
        queue = request.settings.queue if kind is not LEADER_WORKER_SET and not waits_for else ""
        create = partial(_create_outside_its_queue, default_queue=default_queue) if queue else Client.create
        made = kube_client.complete(kind, create(client, kind, manifest))
        step("client:job-created")
        self.keep_runner(request.settings.labels)
        if shared is None:
            client.create(SECRET, job_manifests.secret(request, _secret_entries(launch), made))
            step("client:secret-created")
        if kind is JOB and hosts > 1:
            client.create(SERVICE, job_manifests.service(request, made["metadata"]["uid"]))
        if request.starts_together:
            client.create(POD_GROUP, job_manifests.pod_group(request, made))
        if kind is LEADER_WORKER_SET or waits_for:  # a LeaderWorkerSet cannot be suspended
            return made
        change: Object = {"metadata": {"labels": {QUEUE_LABEL: queue}}} if queue else {"spec": {"suspend": False}}
        return client.patch(kind, made["metadata"]["name"], change) or made  # in a queue, Kueue resumes it

    def ensure_runner(self, labels: Mapping[str, str] | None = None) -> str:
        """Make sure that the ConfigMap with the runner exists, and that it is ours; return its name.

        Its content is compared with what we have. That is believed for a minute, and not of another cluster: somebody
        may delete it, or recreate the namespace, while this process lives, and pods would wait for it.
        """
        with self.lock:
            client = self._client()
            name, self._may_go = discovery.cache_of(client).ask(
                "runner",
                lambda: runner_config_maps.ensure(client, labels),
                lambda found: 0.0 if found[1] else discovery.SHORT_SECONDS,
            )
            return name

    def keep_runner(self, labels: Mapping[str, str] | None = None) -> None:
        """Look at the ConfigMap again if it may be removed: what names it exists now, so it is not removed any more."""
        if self._may_go:
            self.ensure_runner(labels)

    def restore_runner(self, words: str) -> bool:
        """Make the ConfigMap with the runner again if a pod waits for it, as words about that pod say."""
        if runner_config_maps.name_of_own() not in words:
            return False
        discovery.cache_of(self._client()).forget("runner")
        with suppress(KineticError):
            self.ensure_runner()
            return True
        return False

    def keep(self, group: str, owner: str, kept: Mapping[str, Any], keys: Sequence[bytes]) -> None:
        """Create the Secret that the children of a batch share; it has everything once, as it may hold 1 MiB."""
        chosen = keys[:MOST_KEYS]
        for_clients = {name: value for name, value in kept.items() if name not in _NOT_FOR_CLIENTS}
        entries = {
            KEY_FILE: b"".join(chosen),
            ENVIRONMENT_FILE: json.dumps(kept.get("captured") or {}).encode(),
            KEPT_FILE: json.dumps({**for_clients, "keys": len(chosen)}).encode(),
        }
        if cache_key := bytes.fromhex(str(kept.get("cache_key") or "")):
            entries[CACHE_KEY_FILE] = cache_key
        if followed := kept.get("followed"):
            entries[FOLLOWED_FILE] = b64decode(str(followed))
        client, settings = self._client(), PodRequirements.from_json(kept.get("pod")).settings
        secret = job_manifests.group_secret(group, client.namespace, owner, entries, settings.labels or {})
        client.create(SECRET, secret)
        self._keys_of[group] = len(chosen)

    def kept(self, group: str) -> dict[str, Any] | None:
        """Read the Secret of a batch, or return None if there is none."""
        found = self._client().get(SECRET, job_manifests.object_name(group))
        if found is None:
            return None
        page, captured = (json.loads(b64decode(found["data"][name])) for name in (KEPT_FILE, ENVIRONMENT_FILE))
        self._keys_of[group] = int(page.pop("keys", 0))
        cache_key = b64decode(found["data"].get(CACHE_KEY_FILE, "")).hex()
        followed = found["data"].get(FOLLOWED_FILE) or ""  # in base 64, as it was kept
        own = {"captured": captured, "environ": dict(self._environ)}
        return {**page, **own, "cache_key": cache_key, "followed": followed}

    def _shared_key(self, launch: Launch) -> int | None:
        """Return which key of its batch's Secret a launch uses; None when it needs a Secret of its own."""
        order = launch.order
        if not launch.group or order.index is None or order.group_attempt:
            return None
        return order.index if order.index < self._keys_of.get(launch.group, 0) else None


def _create_outside_its_queue(client: Client, kind: Kind, manifest: Object, *, default_queue: str) -> Object:
    """Create an object that Kueue does not know yet: it would start pods, and hold machines, without a Secret."""
    about = manifest["metadata"]
    labels = job_manifests.outside_of_queues(about["labels"], default_queue)
    try:
        return client.create(kind, {**manifest, "metadata": {**about, "labels": labels}})
    except (AccessDeniedError, LaunchError):  # a policy of the cluster may want the queue from the beginning
        return client.create(kind, manifest)


# --------------------------------------------------------------------------------------------------- what is requested


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
    needs_token: bool = False,
) -> JobRequest:
    """Return what a launch asks of a cluster, without its command; ``security``: see ``preflight.pod_security``."""
    order, requirements = launch.order, PodRequirements.from_json(launch.requirements)
    settings, is_python = requirements.settings, requirements.image.startswith(_PYTHON)
    runs_as_root = is_python or bool(requirements.lock)  # images that kinetic builds have no user either
    environment = {name: environ[name] for name in PUBLIC_VARIABLES if environ.get(name)}
    if _needs("s3://", launch) and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & environment.keys():
        environment["AWS_REGION"] = credentials.amazon_region()  # a pod has no profile that would say it
    if launch.store_url.startswith("az://"):
        from kinetic._stores import azure  # few need it

        # For addresses in the function that name no account.
        of_store = parse_address(launch.store_url).bucket.partition("@")[2]
        environment["AZURE_STORAGE_ACCOUNT"] = of_store
        environment.pop("AZURE_STORAGE_ENDPOINT", None)  # it may be another account's
        endpoint = azure.settings(of_store).get("BlobEndpoint", "")
        if endpoint and not {"@", "?"} & {*endpoint}:  # else it may hold a secret, and everyone may read the pod
            environment["AZURE_STORAGE_ENDPOINT"] = endpoint
    if _needs("az://", launch):  # AKS gives its identity to pods with this label only
        settings = settings._replace(labels={_AZURE_IDENTITY: "true", **(settings.labels or {})})
        requirements = replace(requirements, settings=settings)
    environment["KERAS_BACKEND"] = "jax"
    if order.cpu is not None:
        environment |= python_runtime.thread_count_variables(order.cpu)
    if launch.placement.kind == "gpu" and is_python:
        environment["LD_LIBRARY_PATH"] = GPU_DRIVER
    if settings.store_secret and launch.store_url.startswith("gs://"):
        environment["GOOGLE_APPLICATION_CREDENTIALS"] = f"{STORE_SECRET_FOLDER}/{STORE_KEY_FILE}"
    non_root = security == "restricted"
    has_own_users = security == preflight.OPENSHIFT
    run_as = (GROUP, GROUP) if non_root and runs_as_root else None
    if wire_order.local_folder(launch.store_url) and os.getuid() and not has_own_users:
        run_as = os.getuid(), os.getgid()  # what client and pods write to a folder is for its owner only
    if run_as or (has_own_users and runs_as_root):
        # In a container of the job's own, whose user has no home, and no name: getpass.getuser() would fail.
        environment |= {"HOME": "/tmp", "USER": "kinetic"}  # noqa: S108
    return JobRequest(
        job_id=order.job_id,
        namespace=namespace,
        placement=launch.placement,
        requirements=requirements,
        owner=launch.owner,
        group=launch.group,
        order_sha256=launch.order_sha256,
        environment=environment,
        secret=secret,
        runner=runner,
        deadline_seconds=None if order.deadline is None else int(order.deadline) + _SETUP_SECONDS,
        ttl_seconds=settings.ttl_seconds if order.debug is None else inspection.EXPIRES_SECONDS,
        service_account=account,
        buckets=tuple(
            bucket_volume(f"{BUCKETS_FOLDER}/{number}", ref)
            for number, ref in enumerate(order.data)
            if ref.fuse and ref.kind in {"prefix", "object"}
        ),
        by_count=by_count,
        run_as=run_as,
        non_root=non_root,
        has_own_users=has_own_users,
        needs_token=needs_token,
        retries=JobRequest.retries + order.retries,
    )


def manifest_of(
    request: JobRequest, launch: Launch, kind: Kind, *, key_offset: int, runner_sha256: str, umask: int
) -> Object:
    """Return the object that makes the job's pods; ``key_offset`` is where its key begins in its file, in bytes."""
    order, requirements = launch.order, request.requirements
    removes = ""
    if kind == LEADER_WORKER_SET and request.placement.hosts > 1:  # only the slice itself can end it
        name = job_manifests.resource_name(kind, request.job_id, request.placement.hosts)
        removes = kind.path(request.namespace, name)
        request = replace(request, needs_token=True)
    settings = PodSettings(
        output_dir=order.output_dir,
        checkpoint_dir=wire_order.checkpoints_of(order),
        most_attempts=requirements.settings.most_attempts,
        holds=bool(removes),
        leader=job_manifests.first_host(request, kind) if request.placement.hosts > 1 else "",
        removes=removes,
        store_requirement=f"obstore=={obstore_client.version()}" if _needs(CLOUDS, launch) else "",
        runner_sha256=runner_sha256,
        key_offset=key_offset,
        was_assigned=bool(request.warm) and request.placement.hosts > 1,
        awaited_seconds=launch.awaited_seconds,
        waited=bool(launch.programs_of),
    )
    task = Task(
        job_id=order.job_id,
        order_sha256=launch.order_sha256,
        store_url=launch.store_url,
        key_id=launch.key_id,
        order_key=order.key if launch.child else "",
        child=launch.child.to_json() if launch.child else None,
        mark=order.mark,
        hosts=launch.placement.hosts,
        slices=launch.placement.slices,
        coordinator=job_manifests.coordinator(request, kind),
        deadline=order.deadline,
        environment={},  # the supervisor reads it in the pod
        function=order.function_name,
        placed=order.data_to_mount(),
        umask=umask,
        retries=order.retries,
        cache_key=IN_SECRET if launch.cache_key else "",
        is_command=order.is_command,
        after=[each.to_json() for each in order.after] or None,
        kind=launch.placement.kind,
        # CUDA shows a process one part of a GPU (MIG), however many its pod has; two shares may be of the same GPU.
        chips=1 if requirements.settings.gpu_resource else launch.placement.resource_count,
        require_accelerator=requirements.require_accelerator,
        requirements=requirements.requirements,
        pod=settings,
    )
    argument = task.to_argument()
    if len(argument) > _MOST_ARGUMENT_BYTES:  # every container of the job would fail to start
        data, jobs = len(task.placed or ()), len(task.after or ())
        what = f"{data} references to data" if data > jobs else f"{jobs} jobs that it follows"
        fewer = "put what the job reads into fewer folders, each one Data or volume"
        raise LaunchError(
            f"the task of {task.job_id} is too long for a command line",
            why=f"{len(argument):,} bytes, with {what}; Linux allows {_MOST_ARGUMENT_BYTES:,}",
            next=fewer if data > jobs else "follow one job that waits for the others, or a batch",
        )
    return job_manifests.manifest(replace(request, command=("python3", RUNNER_PATH, argument)), kind)


def _secret_entries(launch: Launch) -> dict[str, bytes]:
    """Return what the Secret of one job holds, by the names of the files in its pod."""
    entries = {KEY_FILE: launch.key, ENVIRONMENT_FILE: json.dumps(dict(launch.captured)).encode()}
    entries |= {CACHE_KEY_FILE: launch.cache_key} if launch.cache_key else {}
    return entries | ({FOLLOWED_FILE: launch.followed} if launch.followed else {})


def _needs(schemes: str | tuple[str, ...], launch: Launch) -> bool:
    """Return whether a job's store, outputs or data are in one of some clouds."""
    order = launch.order
    return any(
        each.startswith(schemes) for each in (launch.store_url, order.output_dir, *(ref.uri for ref in order.data))
    )


# -------------------------------------------------------------------------------------------------------------- removal


def release(client: Client, found: Object) -> None:
    """Resume an object that was made to wait for other jobs; one that does not wait any more stays as it is."""
    from kinetic._runner.pod import waiting_jobs  # pods do the same; only where a job waits

    change = waiting_jobs.change_to_start(found)
    if change is not None:
        client.patch(KINDS[found["kind"]], found["metadata"]["name"], change)


def delete_jobs(client: Client, objects: Sequence[Object]) -> None:
    """Delete what makes pods; the pods, and what the objects own, follow in the background.

    Where another program has put a finalizer on such an object, it stays for as long as that wants: pods go first then.
    """

    def delete(found: Object) -> bool:
        about = found["metadata"]
        is_held = bool(about.get("finalizers"))
        return client.delete(KINDS[found["kind"]], about["name"], uid=about["uid"], pods_first=is_held)

    kube_client.request_all([partial(delete, found) for found in objects])


def wait_until_gone(client: Client, job_ids: Sequence[str], seconds: float) -> bool:
    """Wait until no process of some jobs is left, at most some seconds; return whether that is so."""
    limit, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while _live_pods(client, job_ids):
        if time.monotonic() >= limit:
            return False
        time.sleep(min(pause, max(0.0, limit - time.monotonic())))
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def _live_pods(client: Client, job_ids: Sequence[str]) -> bool:
    for start in range(0, len(job_ids), MOST_NAMES):
        pods = client.list(POD, job_manifests.jobs_selector(job_ids[start : start + MOST_NAMES])).objects
        if any(object_status.pod_phase(pod) not in {"Succeeded", "Failed"} for pod in pods):
            return True
    return False
