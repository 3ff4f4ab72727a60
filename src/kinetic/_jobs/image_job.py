"""A job that builds an image on a CPU machine of the cluster: one for all who need that image at the same time.

    store      data/builds/{image}-{key id}      sealed: the job that builds it; created only if absent

Whoever creates the page submits the job; others find it there and wait for the same job. A client that dies leaves the
job, which the next submission finds. A page whose job is not there any more, or has failed, is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any

from kinetic._config import home
from kinetic._config.target import Target
from kinetic._google import default_credentials, login
from kinetic._images import builder_project, bundled, cloud_build, image, pod_build
from kinetic._images.builders import (
    CollectedError,
    NotWaitingError,
    RemoteBuilder,
    RemoteImage,
    UnavailableError,
    read_note,
)
from kinetic._images.image import BuiltImage
from kinetic._images.layers import Wheel
from kinetic._images.request import BuildRequest, logins
from kinetic._jobs import locate, submit_context, wait
from kinetic._jobs.handle import JobHandle, handle_of
from kinetic._jobs.job_options import Options
from kinetic._output import terminal as output
from kinetic._project import pickler, root
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple, dataclass, digests, documents, fields, keys
from kinetic.errors import ImageBuildError, IntegrityError, JobError, KeyMissingError, KineticError, ResultMissingError
from kinetic.job_status import JobStatus

FUNCTION = "build_image"
_UNSUBMITTED_SECONDS = 30.0  # between the page and the start of its job: the other client is packing
_LOOK_SECONDS = 0.5
_NO_RIGHT = frozenset({"registry-denied", "registry-login"})  # of the pod's account: another builder's may have it
_CARRIED_BYTES = 64 << 20  # of wheels that travel with the job
_MOST_SECONDS = 7200.0
_MUCH = 1 << 30  # bytes of wheels from which a job says how much disk it needs: for wheels, layers and bytecode


@dataclass(frozen=True)
class BuildNote:
    """Which job builds an image."""

    job_id: str


NOTE = documents.PageKind(
    "image build", "the note of a build", fields.builder(BuildNote, {"job_id": keys.JOB_ID}), 1 << 12
)


class BuildCall(NamedTuple):
    """What is submitted: a function that takes the page."""

    function: Callable[[Mapping[str, Any]], Any]
    page: Mapping[str, Any]
    secrets: Mapping[str, str]  # variables for the Secret of the job
    job_id: str
    size_bytes: int  # of the wheels: how much disk the job needs follows from it
    python: str  # X.Y of its image
    compiles: bool  # whether it needs a compiler


def remote_builders(
    submit: Callable[..., JobHandle], options: Options, target: Target, store: Store
) -> list[RemoteBuilder]:
    """Return who can build the image of a job besides this machine, the preferred one first."""
    pod = PodBuilder(functools.partial(_submit_build, submit, options), store, os.environ)
    if default_credentials.file_of(os.environ) is None or not store.url.startswith("gs://"):
        return [pod]
    cloud = cloud_build.CloudBuilder(
        lambda repository: cloud_build.connect(target.project.value, target.zone.value, repository, store, os.environ),
        functools.partial(bundled.find, environ=os.environ, google_token=login.Tokens(os.environ).get),
        store,
        os.environ,
    )
    return [pod, cloud]


def _submit_build(submit: Callable[..., JobHandle], options: Options, build: BuildCall) -> JobHandle:
    """Submit the job that builds an image, where jobs with these options run."""
    disk = {"disk": f"{build.size_bytes * 3 // (1 << 30) + 2}Gi"} if build.size_bytes > _MUCH else None
    wanted = Options.checked(
        **options.place,
        accelerator="cpu",
        container_image=f"python:{build.python}" if build.compiles else f"python:{build.python}-slim",
        base_image_repo=options.base_image_repo,
        spot=False,
        deadline=_MOST_SECONDS,
        resources=disk,
        retries=0,
    )
    outside = {name: value for name, value in os.environ.items() if name != "KINETIC_PACKAGE_ROOT"}
    plan = root.find_root(build.function, environ=outside)
    call = pickler.Call(build.function, (build.page,), {}, FUNCTION)
    context = submit_context.prepare(wanted)
    if context.settings is not None:
        context = context._replace(settings=context.settings._replace(builds_image=True))
    return submit(call, wanted, context, plan=plan, secrets=build.secrets, job_id=build.job_id)


class PodBuilder:
    """Builds images in a pod, by a job on the cluster of the job that needs the image; see ``RemoteBuilder``."""

    where = "a pod of the cluster"
    builds_sources = True

    def __init__(self, submit: Callable[[BuildCall], JobHandle], store: Store, environ: Mapping[str, str]) -> None:
        self._submit, self._store, self._environ = submit, store, environ
        self._job_id = ""  # of the build that is waited for
        self._detached = threading.Event()
        self._key_id, self._key = home.own_key(home.ensure_home(environ))

    def build(self, request: BuildRequest, *, waits: bool) -> RemoteImage:
        """Build an image in a pod, or wait for the pod that is building it."""
        name = f"{image.tag_of(request.lock, request.base)}-{digests.of_bytes(request.repository.encode())[:8]}"
        at = keys.image_build(f"{name}-{self._key_id}")
        handle, is_new = self._running(at), False
        if handle is None:
            handle, is_new = self._begin(at, request)
        self._job_id = handle.job_id
        self._check()
        output.report(f"{handle.job_id} {'builds it' if is_new else 'is building it already'}")
        if not waits and not handle.status().is_final:
            raise NotWaitingError(
                f"the image is being built by {handle.job_id}",
                next=f"kinetic jobs logs {handle.job_id} --follow",
            )
        return self._finished(at, handle)

    def detach(self) -> list[str]:
        """End what waits for the job, which keeps running; return how to follow and how to cancel it."""
        self._detached.set()
        if not self._job_id:
            return []
        return [
            f"{self._job_id} keeps building the image",
            f"follow:   kinetic jobs logs {self._job_id} --follow",
            f"cancel:   kinetic jobs cancel {self._job_id}",
        ]

    def _check(self) -> None:
        if self._detached.is_set():
            raise CancelledError

    def _finished(self, at: str, handle: JobHandle) -> RemoteImage:
        with wait.detaching(handle):
            wait.wait(handle, follow=_to_stderr, check=self._check)
        self._job_id = ""
        try:
            page = handle.result(cleanup=False)
        except ResultMissingError as error:
            raise CollectedError(
                f"what {handle.job_id} built was collected", why=error.what, code="image-build"
            ) from error
        except JobError as error:
            self._store.delete(at)
            raise ImageBuildError(
                f"the image could not be built by {handle.job_id}",
                why=str(error).partition("\n")[0],
                next=f"kinetic jobs logs {handle.job_id}",
                code="image-build",
            ) from error
        except KineticError as error:
            self._store.delete(at)
            if error.code in _NO_RIGHT:
                what = "the pod that builds the image has no right to do so"
                raise UnavailableError(what, why=error.what, next=error.next, code=error.code) from error
            raise
        built = BuiltImage(**{**page["built"], "conflicts": tuple(map(tuple, page["built"]["conflicts"]))})
        wheels = tuple((Wheel(**each["wheel"]), bytes(each["data"])) for each in page["wheels"])
        for wheel, data in wheels:
            if digests.of_bytes(data) != wheel.sha256:
                raise IntegrityError(f"the wheel of {wheel.name} that {handle.job_id} built is damaged")

        def finish() -> None:
            self._store.delete(at)
            with contextlib.suppress(KineticError):
                handle.cleanup()

        return RemoteImage(built, wheels, finish)

    def _running(self, at: str) -> JobHandle | None:
        """Return the job that builds this image, or has built it; None where there is none that will."""
        waited = 0.0
        while True:
            note = read_note(NOTE, self._store, at, self._key)
            if note is None:
                return None
            with contextlib.suppress(KeyMissingError):
                handle = handle_of(locate.read_job(self._store, note.job_id))
                status = handle.status()
                if status is JobStatus.PENDING and _is_held(handle):
                    if waited >= _UNSUBMITTED_SECONDS:
                        handle.cancel()
                elif status not in {JobStatus.FAILED, JobStatus.NOT_FOUND}:
                    return handle
                else:
                    waited = _UNSUBMITTED_SECONDS
            if waited >= _UNSUBMITTED_SECONDS:
                self._store.delete(at)
                return None
            time.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS

    def _begin(self, at: str, request: BuildRequest) -> tuple[JobHandle, bool]:
        """Submit the job, unless another client was faster."""
        job_id = keys.new_job_id("cpu", FUNCTION)
        note = documents.seal_page(NOTE, {"job_id": job_id}, at, self._key)
        if not self._store.put(at, note, if_absent=True):
            found = self._running(at)
            return (found, False) if found is not None else self._begin(at, request)
        self._job_id = job_id
        try:
            carried = self._carried(request)
            with builder_project.written() as function:
                secrets = {name: value for name, value in self._environ.items() if name.startswith("UV_") and value}
                secrets = {name: value for name, value in secrets.items() if name in _INDEXES or "INDEX_" in name}
                secrets[pod_build.LOGINS] = json.dumps(logins(request, self._environ))
                size = sum(wheel.size_bytes for wheel in request.lock.wheels)
                python = request.lock.platform.python
                call = BuildCall(function, request.to_json() | {"carried": carried}, secrets, job_id, size,
                                 python, bool(request.lock.to_build))  # fmt: skip
                return self._submit(call), True
        except KineticError as error:
            self._job_id = ""
            self._store.delete(at)
            raise UnavailableError("no pod of the cluster can build it", why=error.what) from error
        except BaseException:
            self._store.delete(at)
            raise

    def _carried(self, request: BuildRequest) -> dict[str, bytes]:
        """Return the wheels that no index has: those that were built from source before."""
        found: dict[str, bytes] = {}
        for wheel in request.lock.wheels:
            if wheel.url.startswith("store:"):
                found[wheel.sha256] = self._store.get(keys.built_wheel(wheel.sha256))
        if sum(map(len, found.values())) > _CARRIED_BYTES:
            raise ImageBuildError(
                "too many wheels were built from source", why="they do not fit into a job's arguments"
            )
        return found


_INDEXES = frozenset({"UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_FIND_LINKS"})


def _is_held(handle: JobHandle) -> bool:
    """Return whether the client of a job has created it and not started it: it may have died in between."""
    found = locate.backend_of(handle).explain(handle.job_id)
    return found is not None and found.code == "held"


def _to_stderr(text: str) -> None:
    """Show the log of a build beside our own messages: standard output is the user's."""
    for line in text.splitlines():
        output.report(line.removeprefix("kinetic: "))
