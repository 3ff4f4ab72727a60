"""Cloud Build: builds images where no pod of the cluster can, and from Dockerfiles; its log is shown while it grows.

    store      data/builds/{random}.tar.gz         what is built; removed when the build has ended
               data/builds/log-{build id}.txt      Cloud Build writes it
               data/builds/made-{sha256}           wheels that it built from source, and a list of them
               data/builds/cloud-{image}-{key id}  sealed: the build that builds an image

A client that dies leaves the build, which the next submission of the same image finds.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import secrets
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

from kinetic._config import home
from kinetic._config.variables import read_variable
from kinetic._google import api, builds, default_credentials, login
from kinetic._google.api import Service
from kinetic._google.artifacts import Repository
from kinetic._google.builds import Build, Source
from kinetic._images import builder_project, image, pod_build
from kinetic._images.builders import CollectedError, NotWaitingError, RemoteImage, UnavailableError, read_note
from kinetic._images.container_registry import Login, Reference
from kinetic._images.docker_login import find_login
from kinetic._images.image import BuiltImage
from kinetic._images.layers import Wheel
from kinetic._images.lock import with_built
from kinetic._images.request import BuildRequest, logins
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic._stores import parallel
from kinetic._stores.protocol import Store, parse_address
from kinetic._wire import NamedTuple, dataclass, digests, documents, fields, keys
from kinetic.errors import (
    AccessDeniedError,
    BackendUnavailableError,
    CredentialsError,
    ImageBuildError,
    IntegrityError,
    KeyMissingError,
    KineticError,
)

ACCOUNT = "KINETIC_BUILD_ACCOUNT"
_ZONE = re.compile(r"(?P<region>[a-z]+-[a-z]+[0-9]+)-(ai[0-9]+)?[a-z]")
_CANCEL_SECONDS = 3.0  # after Ctrl-C, in which another one cancels the build
_STEP = (
    'import sys; sys.path.insert(0, "lib"); from kinetic._images import pod_build; pod_build.main("request.json")',
)
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_NAME = fields.text(128, re.compile(r"[A-Za-z0-9._:-]+"), least=1)


@dataclass(frozen=True)
class CloudNote:
    """Which build builds an image, and the key of what it builds."""

    project: str
    location: str
    build: str
    source: str


NOTE = documents.PageKind(
    "cloud build",
    "the note of a build",
    fields.builder(
        CloudNote,
        {
            **fields.each(_NAME, "project", "location", "build"),
            "source": fields.text(128, re.compile(rf"{keys.BUILDS}[0-9a-f]+\.tar\.gz")),
        },
    ),
    1 << 12,
)


class Running(NamedTuple):
    """A build, and the key of what it builds."""

    build: Build
    source: str


class CloudBuild:
    """Builds of one project; what they build, and their logs, are in a bucket.

    ``account`` is the e-mail address of the service account that builds; "" for the project's default.
    """

    def __init__(
        self,
        service: Service,
        project: str,
        location: str,
        store: Store,
        *,
        account: str = "",
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._service, self._project, self._location = service, project, location
        self._store, self._sleep = store, sleep
        self._account = f"projects/{project}/serviceAccounts/{account}" if account else ""

    def start_dockerfile(self, context: Path, images: Sequence[str], dockerfile: str) -> Running:
        """Start a build from a Dockerfile."""
        return self._start(
            context, lambda at: builds.dockerfile_body(at, images, account=self._account, dockerfile=dockerfile)
        )

    def start_program(
        self, folder: bytes, python: str, words: Sequence[str], *, compiles: bool = False, kept: str = ""
    ) -> Running:
        """Start a Python program in a folder that is given as .tar.gz; see ``builds.python_body``."""
        return self._start(
            folder,
            lambda at: builds.python_body(at, python, words, account=self._account, compiles=compiles, kept=kept),
        )

    def _start(self, folder: bytes | Path, body: Callable[[Source], api.Page]) -> Running:
        key, address = keys.build_source(secrets.token_hex(16)), parse_address(self._store.url)
        try:
            self._store.put(key, folder)
            page = body(Source(address.bucket, f"{address.prefix}{key}"))
            return Running(builds.start(self._service, self._project, self._location, page), key)
        except BaseException:  # Ctrl-C included: a build that began all the same finds nothing to build
            self._remove(key)
            raise

    def ended_with(self, running: Running) -> str:
        """Return how a build ended, or ""; see ``builds.ended_with``."""
        return builds.ended_with(self._service, running.build)

    def finish(self, running: Running, *, check: Callable[[], object] = lambda: None) -> api.Page:
        """Show the log of a build until it has ended, remove what was built, and return the page of the build.

        Ctrl-C detaches: the build keeps running. A second one within some seconds cancels it. What ``check`` raises,
        which is called now and then, detaches as well.

        Raises:
            ImageBuildError: It failed, or Cloud Build cannot be asked.
        """
        shown, at = _LogLines(), keys.build_log(running.build.log_name)

        def read_log(start: int) -> bytes:
            try:
                return self._store.get(at, start=start)
            except KeyMissingError:  # it begins when a machine for the build is found
                return b""

        def pause(seconds: float) -> None:
            check()
            self._sleep(seconds)
            check()

        with self._detaching(running), output.phase("building in Cloud Build", summary=False):
            try:
                page = builds.follow(self._service, running.build, read_log, shown.feed, pause)
            except ImageBuildError:
                self._remove(running.source)
                raise
            finally:
                shown.end()
        self._remove(running.source)
        return page

    @contextlib.contextmanager
    def _detaching(self, running: Running) -> Iterator[None]:
        build = running.build
        try:
            yield
        except KeyboardInterrupt:
            output.leave_line()
            output.report(f"detached: the build {build.id} keeps running in Cloud Build")
            output.report(f"follow:   {build.show_command}")
            output.report(f"cancel:   Ctrl-C once more within {_CANCEL_SECONDS:.0f} s, or {build.cancel_command}")
            try:
                self._sleep(_CANCEL_SECONDS)
            except KeyboardInterrupt:
                builds.cancel(self._service, build)
                self._remove(running.source)
                output.report(f"cancelled: {build.id}")
                raise tracebacks.interrupt(f"the build {build.id} was cancelled") from None
            raise tracebacks.interrupt(f"{build.id} keeps running; cancel it with: {build.cancel_command}") from None

    def _remove(self, key: str) -> None:
        with contextlib.suppress(KineticError):  # what stays is removed by retention
            self._store.delete(key)


def connect(project: str, zone: str, repository: str, store: Store, environ: Mapping[str, str]) -> CloudBuild:
    """Return Cloud Build of a project, in the region of a zone, where it can be used.

    Raises:
        UnavailableError: There is no login, no project, or no such bucket.
    """
    place = Reference.parse(f"{repository}:env")
    artifacts = Repository.of_image(place.host, place.name)
    project = project or (artifacts.project if artifacts else "")
    if not store.url.startswith("gs://"):
        raise _unavailable(
            f"the store is {store.url}, and Cloud Build reads from Cloud Storage only",
            "export KINETIC_STORE=gs://your-bucket",
        )
    if not project:
        raise _unavailable("there is no Google Cloud project", "export KINETIC_PROJECT=your-project")
    if default_credentials.file_of(environ) is None:
        raise _unavailable("this machine has no login for Google Cloud", login.LOGIN)
    found = _ZONE.fullmatch(zone)
    service = Service(builds.API, login.Tokens(environ), parallel.Retry(), environ=environ)
    return CloudBuild(
        service,
        project,
        found["region"] if found else builds.ANYWHERE,
        store,
        account=read_variable(ACCOUNT, environ) or "",
    )


def _unavailable(why: str, step: str) -> UnavailableError:
    return UnavailableError("Cloud Build cannot be used", why=why, next=step, code="no-cloud-build")


class _LogLines:
    """Shows a log line by line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Show the lines that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            output.report(line.decode(errors="replace").rstrip("\r").removeprefix("kinetic: "))

    def end(self) -> None:
        """Show what has no end of line."""
        if self._rest:
            self.feed(b"\n")


# --------------------------------------------------------------------------------------------- the builder of images


class CloudBuilder:
    """Builds images in Cloud Build, with the code of all other places; see ``RemoteBuilder``.

    Args:
        connect: Takes a repository; returns Cloud Build, or raises UnavailableError.
        find: Returns the image of a request if the registry has it.
        store: Of the job.
        environ: Of this client.
    """

    where = "Cloud Build"
    builds_sources = True

    def __init__(
        self,
        connect: Callable[[str], CloudBuild],
        find: Callable[[BuildRequest], BuiltImage | None],
        store: Store,
        environ: Mapping[str, str],
    ) -> None:
        self._connect, self._find, self._store, self._environ = connect, find, store, environ
        self._build: Build | None = None  # that is waited for
        self._detached = threading.Event()
        self._key_id, self._key = home.own_key(home.ensure_home(environ))

    def build(self, request: BuildRequest, *, waits: bool) -> RemoteImage:
        """Build an image in Cloud Build, or wait for the build of the same that is running."""
        self._check_logins(request)
        cloud = self._connect(request.repository)
        name = f"{image.tag_of(request.lock, request.base)}-{digests.of_bytes(request.repository.encode())[:8]}"
        at = keys.image_build(f"cloud-{name}-{self._key_id}")
        try:
            running, verb = self._running(at, cloud, request), "is building it already"
            if running is None:
                running, verb = self._begin(at, cloud, request), "builds it"
        except (AccessDeniedError, BackendUnavailableError, CredentialsError) as error:
            raise UnavailableError(error.what, why=error.why or "", next=error.next, code=error.code) from error
        output.report(f"{running.build.id} {verb}: {running.build.show_command}")
        if not waits:
            raise NotWaitingError(
                f"the image is being built by Cloud Build's {running.build.id}", next=running.build.show_command
            )
        self._build = running.build
        try:
            page = cloud.finish(running, check=self._check)
            wheels = self._made(page, running) if request.lock.to_build else ()
        except CollectedError:
            raise
        except (ImageBuildError, IntegrityError):
            self._store.delete(at)
            raise
        self._build = None
        request = request._replace(lock=with_built(request.lock, [wheel for wheel, _ in wheels]))
        built = self._find(request)
        if not wheels or built is None:
            self._store.delete(at)
        if built is None:
            raise ImageBuildError(
                f"Cloud Build's build {running.build.id} ended, and its image is not in the registry",
                why=f"{request.repository} has no tag {image.tag_of(request.lock, request.base)}",
                next=f"look at {running.build.page}",
                code="cloud-build",
            )
        if not wheels:
            return RemoteImage(built)

        def finish() -> None:
            self._store.delete(at)
            for name in (builds.first_output(page).decode(), *(wheel.sha256 for wheel, _ in wheels)):
                self._store.delete(keys.build_made(name))

        return RemoteImage(built, wheels, finish)

    def _made(self, page: api.Page, running: Running) -> tuple[tuple[Wheel, bytes], ...]:
        """Return the wheels that a build made from source, each with its bytes, verified from the build's own output.

        Raises:
            CollectedError: Another client has taken them.
            IntegrityError: Somebody changed what is in the bucket.
        """

        def held(digest: str) -> bytes:
            try:
                data = self._store.get(keys.build_made(digest))
            except KeyMissingError as error:
                raise CollectedError(
                    f"what the build {running.build.id} made was collected", why=error.what, code="image-build"
                ) from error
            if digests.of_bytes(data) != digest:
                raise IntegrityError(
                    f"a wheel that the build {running.build.id} made is damaged",
                    why=f"{keys.build_made(digest)} has another hash than its build says",
                    next="submit again; if it happens twice, look at who can write to the store",
                )
            return data

        output = builds.first_output(page)
        if not _DIGEST.fullmatch(output):
            raise ImageBuildError(
                f"Cloud Build's build {running.build.id} does not say what it made",
                why=f"its step wrote {output[:80]!r}",
                next=f"look at {running.build.page}",
                code="cloud-build",
            )
        wheels = [Wheel(**each) for each in json.loads(held(output.decode()))]
        return tuple((wheel, held(fields.sha256(wheel.sha256))) for wheel in wheels)

    def detach(self) -> list[str]:
        """End what waits for the build, which keeps running; return how to follow and how to cancel it."""
        self._detached.set()
        build = self._build
        if build is None:
            return []
        return [
            f"the build {build.id} keeps running in Cloud Build",
            f"follow:   {build.show_command}",
            f"cancel:   {build.cancel_command}",
        ]

    def _check(self) -> None:
        if self._detached.is_set():
            raise CancelledError

    def _check_logins(self, request: BuildRequest) -> None:
        """Refuse what needs a password: it would be in a bucket, for all who may read that."""
        places = map(Reference.parse, (request.source, f"{request.repository}:env"))
        named = [at.host for at in places if find_login(at.host, None, self._environ, repository=at.name) != Login()]
        if named := sorted({*named, *logins(request, self._environ)["indexes"]}):
            raise _unavailable(
                f"the build would need the password of {', '.join(named)}, which is not sent to a build service",
                "let a pod of the cluster build it: it gets passwords in a Secret",
            )

    def _running(self, at: str, cloud: CloudBuild, request: BuildRequest) -> Running | None:
        """Return the build of this image that runs, or whose wheels were not collected; None where there is none."""
        note = read_note(NOTE, self._store, at, self._key)
        if note is None:
            return None
        running = Running(Build(note.project, note.location, note.build), note.source)
        how = cloud.ended_with(running)
        if how == "SUCCESS" and request.lock.to_build:
            return running
        if how:  # and its image was not found: it failed, or the image was removed since
            self._store.delete(at)
            self._store.delete(note.source)
            return None
        return running

    def _begin(self, at: str, cloud: CloudBuild, request: BuildRequest) -> Running:
        compiles = bool(request.lock.to_build)
        running = cloud.start_program(
            self._folder(request),
            request.lock.platform.python,
            ("-c", *_STEP),
            compiles=compiles,
            kept=f"{pod_build.MADE}*" if compiles else "",
        )
        build = running.build
        page = {"project": build.project, "location": build.location, "build": build.id, "source": running.source}
        self._store.put(at, documents.seal_page(NOTE, page, at, self._key))
        return running

    def _folder(self, request: BuildRequest) -> bytes:
        """Return what the build gets as .tar.gz: the builder's own modules, the request, and wheels no index has."""
        files = {path: data for path, data in builder_project.files().items() if path.startswith("lib/")}
        files["request.json"] = json.dumps(request.to_json()).encode()
        for wheel in request.lock.wheels:
            if wheel.url.startswith("store:"):
                files[f"carried/{wheel.sha256}.whl"] = self._store.get(keys.built_wheel(wheel.sha256))
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w:gz", compresslevel=6) as archive:
            for path, data in files.items():
                about = tarfile.TarInfo(path)
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))
        return held.getvalue()
