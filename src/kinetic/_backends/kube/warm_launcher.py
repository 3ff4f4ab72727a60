"""Warm pods of a cluster: found, made, told of tasks, and listed; and a task that none carries out, started cold."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import job_manifests, object_status, pod_exec
from kinetic._backends.kube.client import JOB, POD, SECRET
from kinetic._backends.kube.job_launcher import JobLauncher, manifest_of
from kinetic._backends.kube.job_manifests import RUNNER_PATH
from kinetic._project import runner_bundle
from kinetic._wire import warm_pods
from kinetic._wire.failpoints import step
from kinetic._wire.task import KEY_FILE, WARM, Task
from kinetic._wire.warm_pods import Greeting, WarmPod
from kinetic.errors import BackendError, KineticError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Object
    from kinetic._backends.kube.job_manifests import JobRequest
    from kinetic._backends.kube.pod_exec import Tunnel
    from kinetic._backends.protocol import Launch

_DIGEST = 16  # hexadecimal digits
_CHECK_TRIES = 3


class WarmState(NamedTuple):
    """A warm pod, as the cluster shows it."""

    name: str  # its id
    page: WarmPod
    accelerator: str
    fits: Mapping[str, str]  # what a job must ask for, by the word for it
    packages: Mapping[str, Any]  # "lock": where its lock is in the store; "requirements": what its own jobs install
    job: Mapping[str, str]  # name and uid of the Job that makes it
    pod: str  # the pod whose container runs; "" while there is none
    created: float  # Unix time
    is_spot: bool = False
    is_started: bool = True  # else its Job is suspended: its client died before it was started


class WarmLauncher:
    """The warm pods of one namespace; ``client`` returns the current connection."""

    def __init__(self, client: Callable[[], Client], launcher: JobLauncher) -> None:
        self._client, self._launcher = client, launcher

    def find(self, owner: str) -> list[WarmState]:
        """Return an owner's warm pods that have not ended, the newest first: two requests."""
        selector = f"{job_manifests.APP_LABEL}={job_manifests.APP_WARM}"
        if owner:
            selector += f",{job_manifests.label_selector(owner=owner)}"
        client = self._client()
        listed, jobs = kube_client.request_all([partial(client.list, kind, selector) for kind in (POD, JOB)])
        pods: dict[str, str] = {}
        for pod in reversed(object_status.newest_first(listed.objects)):
            if object_status.is_running(pod) and not pod["metadata"].get("deletionTimestamp"):
                pods[object_status.job_id_of(pod)] = object_status.object_name(pod)
        return [
            _state(found, pods)
            for found in object_status.newest_first(jobs.objects)
            if not object_status.status_of(found).is_final and not found["metadata"].get("deletionTimestamp")
        ]

    def task_of(self, launch: Launch, umask: int, requirements: Mapping[str, Any] | None = None) -> str:
        """Return the page of the task of a launch; ``requirements``: what it installs in place of its own."""
        own, digest = self._launcher.request(launch), runner_bundle.build().sha256
        cold = manifest_of(own, launch, JOB, key_offset=0, runner_sha256=digest, umask=umask)
        page = task_page(cold)
        if requirements is not None:
            page = replace(Task.from_page(page), requirements=dict(requirements)).to_argument()
        return page

    def fits(self, launch: Launch, umask: int) -> dict[str, str]:
        """Return what a launch asks for, by the words that name it where another pod lacks it."""
        request = self._launcher.request(launch)
        cold = manifest_of(request, launch, JOB, key_offset=0, runner_sha256=runner_bundle.build().sha256, umask=umask)
        return _fits(request, launch, cold)

    def make_pod(self, launch: Launch, umask: int, page: WarmPod, key: bytes, assignment: bytes = b"") -> WarmState:
        """Create a warm pod for jobs like this one; it is started by ``start_pod``."""
        client = self._client()
        own = self._launcher.request(launch)
        cold = manifest_of(own, launch, JOB, key_offset=0, runner_sha256=runner_bundle.build().sha256, umask=umask)
        fits = _fits(own, launch, cold)
        request = replace(
            own,
            job_id=page.pod,
            order_sha256="",
            secret=job_manifests.object_name(page.pod),
            deadline_seconds=None,
            is_warm_pod=True,
            command=("python3", RUNNER_PATH, WARM, page.to_argument()),
        )
        annotations = {
            job_manifests.FITS_ANNOTATION: json.dumps(fits),
            job_manifests.PACKAGES_ANNOTATION: json.dumps(
                {"lock": own.requirements.lock, "requirements": own.requirements.requirements}
            ),
            job_manifests.WARM_ANNOTATION: page.to_argument(),
        }
        found = client.create(JOB, job_manifests.warm_job(request, annotations, page.most_seconds))
        made: Object = {"apiVersion": JOB.api_version, "kind": JOB.name, **found}
        step("client:warm-job-created")
        entries = {KEY_FILE: key} | ({warm_pods.ASSIGNMENT_FILE: assignment} if assignment else {})
        client.create(SECRET, job_manifests.warm_secret(request, entries, made))
        step("client:warm-secret-created")
        return _state(made, {})

    def start_pod(self, state: WarmState) -> None:
        """Resume the Job of a warm pod."""
        self._client().patch(JOB, state.job["name"], {"spec": {"suspend": False}})

    def end_pod(self, state: WarmState, *, delete: bool = False) -> None:
        """End a warm pod: by its deadline, so that its Job stays a day; with ``delete``, or if it never began, now."""
        if delete or not state.is_started:
            self._client().delete(JOB, state.job["name"], uid=state.job["uid"])
        else:
            self._client().patch(JOB, state.job["name"], {"spec": {"activeDeadlineSeconds": 1}})

    @contextmanager
    def dial(self, state: WarmState) -> Iterator[WarmConnection]:
        """Connect to the first process of a warm pod."""
        with pod_exec.connect_port(self._client(), state.pod, state.page.port) as tunnel:
            yield WarmConnection(tunnel)

    def make_task(self, launch: Launch, umask: int, state: WarmState) -> Object:
        """Create what a task is in the cluster, as far as nothing runs."""
        return self._launcher.make_task(launch, umask, state.name)

    def tasks(self, owner: str) -> dict[str, float]:
        """Return when an owner's tasks were submitted, by job, those that have ended included: one request."""
        selector = job_manifests.WARM_LABEL + (f",{job_manifests.label_selector(owner=owner)}" if owner else "")
        found = self._client().list(JOB, selector, reduce=object_status.reduced).objects
        return {object_status.job_id_of(each): object_status.created_at(each) for each in found}

    def remove_tasks(self, job_ids: Iterable[str]) -> None:
        """Remove the Jobs of tasks, and with them their Secrets."""
        client = self._client()
        kube_client.request_all([partial(client.delete, JOB, job_manifests.object_name(each)) for each in job_ids])

    def write_assignment(self, state: WarmState, assignment: bytes, key: bytes) -> None:
        """Put a task into the pod's Secret, for a pod that is told in no other way or is started again."""
        entries = {KEY_FILE: key, warm_pods.ASSIGNMENT_FILE: assignment}
        name = job_manifests.object_name(state.name)
        self._client().patch(SECRET, name, {"data": job_manifests.encoded_entries(entries)})

    def start_cold(self, job_id: str) -> bool:
        """Start a task in a pod of its own: its Job is resumed, and no longer the warm pod's.

        Returns False if the Job is gone, or has no Secret: its client died before anything could have begun.
        """
        if self._client().get(SECRET, job_manifests.object_name(job_id)) is None:
            return False
        change: dict[str, Any] = {
            "metadata": {"labels": {job_manifests.WARM_LABEL: None}, "ownerReferences": None},
            "spec": {"suspend": False},
        }
        return self._client().patch(JOB, job_manifests.object_name(job_id), change) is not None

    def could_take_since(self, warm: str) -> float | None:
        """Return since when a warm pod has run, and could have taken a task (Unix time); None where it still starts.

        Of one that its client did not start, which died: since it was created.
        """
        client = self._client()
        found = client.get(JOB, job_manifests.object_name(warm))
        if found is None or found["spec"].get("suspend"):
            return object_status.created_at(found or {})
        pods = client.list(POD, job_manifests.label_selector(job_id=warm)).objects
        return max(filter(None, map(object_status.running_since, pods)), default=None)

    def check(self, job_id: str, warm: str, seconds: float) -> None:
        """Have a warm pod look into the store for the end of a job, and wait for it, as far as it can be reached."""
        client = self._client()
        pods = pod_exec.pods_of(client, warm)
        found = client.get(JOB, job_manifests.object_name(warm))
        if not pods or found is None:
            return
        state = _state(found, {warm: pods[0]})
        limit = time.monotonic() + seconds
        for _ in range(_CHECK_TRIES):
            with suppress(KineticError), self.dial(state) as connection:
                if connection.greeting().job_id != job_id or not connection.ask(warm_pods.check_request(job_id)):
                    return
            if time.monotonic() > limit:
                return


class WarmConnection:
    """A connection to the first process of a warm pod: lines of JSON."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel, self._rest = tunnel, b""

    def greeting(self) -> Greeting:
        """Return what it says first."""
        return Greeting.from_bytes(self._line())

    def ask(self, message: bytes) -> str:
        """Send a message, and return why it is not done, or ""."""
        self._tunnel.send(message + b"\n")
        return warm_pods.refusal(self._line())

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            data = self._tunnel.receive()
            if not data:
                raise BackendError("the warm pod closed the connection", why="it ended, or is about to")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


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
        {"name": str(about["name"]), "uid": str(about["uid"])},
        pods.get(name, ""),
        object_status.created_at(found),
        is_spot=fits.get("spot") == "True",
        is_started=not (found.get("spec") or {}).get("suspend"),
    )


def _fits(request: JobRequest, launch: Launch, cold: Mapping[str, Any]) -> dict[str, str]:
    """Return what must be equal, by the words that a line to the user has; all else of the pod is in the last one."""
    template = json.loads(json.dumps(cold["spec"]["template"]))
    spec = template["spec"]
    (container,) = spec["containers"]
    rest = {
        "spec": {name: spec[name] for name in spec if name not in {"containers", "volumes", "activeDeadlineSeconds"}},
        "container": {name: container[name] for name in container if name not in {"command", "image", "resources"}},
        "volumes": [volume for volume in spec["volumes"] if volume["name"] != "secret"],
        "store": launch.store_url,
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
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return str(container["command"][-1]).replace("$$", "$")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_DIGEST]


def unlike(state: WarmState, wanted: Mapping[str, str]) -> list[str]:
    """Return the words for what a job asks for and a warm pod does not have."""
    return [word for word, value in wanted.items() if state.fits.get(word) != value]
