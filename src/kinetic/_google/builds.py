"""Cloud Build: a build that is started, its log shown while it grows, and how it ended.

Source: Cloud Build's discovery document, v1 (2026-10-29).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any

from kinetic._google.api import ApiError, Page, Service
from kinetic._wire import NamedTuple
from kinetic.errors import AccessDeniedError, ImageBuildError

API = "cloudbuild.googleapis.com"
ROLE = "roles/cloudbuild.builds.editor"
ANYWHERE = "global"  # the location of builds that need no region
SECONDS = 3600
_MACHINE = "E2_HIGHCPU_8"
_ENDED = frozenset({"SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED"})

ReadLog = Callable[[int], bytes]  # takes an offset; returns what the log has from there on


class Build(NamedTuple):
    """A build that was started."""

    project: str
    location: str
    id: str

    @property
    def path(self) -> str:
        return f"v1/projects/{self.project}/locations/{self.location}/builds/{self.id}"

    @property
    def log_name(self) -> str:
        """Return the name of its log in the folder of its source."""
        return f"log-{self.id}.txt"

    @property
    def page(self) -> str:
        """Return its page in Google's console."""
        return f"https://console.cloud.google.com/cloud-build/builds;region={self.location}/{self.id}?project={self.project}"

    @property
    def show_command(self) -> str:
        """Return the command that shows its log while it grows."""
        return f"gcloud builds log --stream {self.id} --region={self.location} --project={self.project}"

    @property
    def cancel_command(self) -> str:
        """Return the command that cancels it."""
        return f"gcloud builds cancel {self.id} --region={self.location} --project={self.project}"


class Source(NamedTuple):
    """What is built: an object in a bucket with a folder as .tar.gz. The log goes to the object's folder."""

    bucket: str
    name: str

    @property
    def folder(self) -> str:
        """Return the address of the folder that it is in."""
        return f"gs://{self.bucket}/{self.name.rpartition('/')[0]}".rstrip("/")


def dockerfile_body(
    source: Source, images: Sequence[str], *, account: str = "", dockerfile: str = "Dockerfile"
) -> Page:
    """Return the request that builds an image from a Dockerfile."""
    tags = [word for image in images for word in ("--tag", image)]
    step = {"name": "gcr.io/cloud-builders/docker", "args": ["build", *tags, "--file", dockerfile, "."]}
    return _body(source, [step], account) | {"images": list(images)}


def python_body(
    source: Source, python: str, words: Sequence[str], *, account: str = "", compiles: bool = False, kept: str = ""
) -> Page:
    """Return the request that runs a Python program, e.g. our own builder of images, on the source.

    The full image of Python has a compiler, for a program that ``compiles``. Files that are ``kept``, e.g. "made-*", go
    to the source's folder.
    """
    name = f"python:{python}" if compiles else f"python:{python}-slim"
    body = _body(source, [{"name": name, "entrypoint": "python3", "args": list(words)}], account)
    return body | ({"artifacts": {"objects": {"location": f"{source.folder}/", "paths": [kept]}}} if kept else {})


def _body(source: Source, steps: list[dict[str, Any]], account: str) -> Page:
    return {
        "source": {"storageSource": {"bucket": source.bucket, "object": source.name}},
        "steps": steps,
        "timeout": f"{SECONDS}s",
        "logsBucket": source.folder,
        # With an account of one's own a setting of logs is needed; a log in Cloud Logging could not be followed.
        "options": {"logging": "GCS_ONLY", "machineType": _MACHINE, "diskSizeGb": "100"},
        **({"serviceAccount": account} if account else {}),
    }


def start(service: Service, project: str, location: str, body: Page) -> Build:
    """Start a build; where Google runs none in a region, it is "global".

    Some regions have no Cloud Build, and new projects may use a few only: cloud.google.com/build/docs/locations.

    Raises:
        AccessDeniedError: This account may not, or the API is off.
        ImageBuildError: Cloud Build refuses.
    """
    try:
        operation = service.request("POST", f"v1/projects/{project}/locations/{location}/builds", body, once=True)
    except ApiError as error:
        if location != ANYWHERE and error.status in {400, 404} and re.search("region|location", error.message):
            return start(service, project, ANYWHERE, body)
        what = f"Cloud Build did not start a build in {location} ({error.status})"
        raise _refused(what, error, project) from error
    return Build(project, location, str(operation["metadata"]["build"]["id"]))


def follow(
    service: Service, build: Build, read_log: ReadLog, show: Callable[[bytes], object], pause: Callable[[float], object]
) -> Page:
    """Show the log of a build while it grows, until the build has ended; return its page.

    Raises:
        ImageBuildError: The build failed; what its log said has been shown.
    """
    shown = 0

    def step(page: Page) -> bool:
        nonlocal shown
        data = read_log(shown)
        shown += len(data)
        if data:
            show(data)
        return str(page.get("status")) in _ENDED

    try:
        page = service.follow(build.path, step, pause)
    except ApiError as error:
        what = f"Cloud Build does not show the build {build.id} ({error.status})"
        raise _refused(what, error, build.project) from error
    if rest := read_log(shown):
        show(rest)
    if page["status"] != "SUCCESS":
        about = page.get("failureInfo") or {}
        raise ImageBuildError(
            f"Cloud Build's build {build.id} ended with {page['status']}",
            why=str(about.get("detail") or page.get("statusDetail") or "see its log above"),
            next=f"look at {build.page}",
            code="cloud-build",
        )
    return page


def first_output(page: Page) -> bytes:
    """Return what the first step of a build wrote into $BUILDER_OUTPUT/output, at most 50 KB; b"" where it did not."""
    outputs = (page.get("results") or {}).get("buildStepOutputs") or [""]
    return base64.b64decode(outputs[0])


def ended_with(service: Service, build: Build) -> str:
    """Return how a build ended, e.g. "SUCCESS"; "" while it runs, and "EXPIRED" if it is not known any more."""
    try:
        status = str(service.get(build.path).get("status"))
        return status if status in _ENDED else ""
    except ApiError as error:
        if error.status == 404:
            return "EXPIRED"
        what = f"Cloud Build does not show the build {build.id} ({error.status})"
        raise _refused(what, error, build.project) from error


def cancel(service: Service, build: Build) -> None:
    """Cancel a build; one that has ended stays as it is."""
    try:
        service.request("POST", f"{build.path}:cancel", {})
    except ApiError as error:
        if error.status not in {400, 404, 409}:
            what = f"the build {build.id} could not be cancelled ({error.status})"
            raise _refused(what, error, build.project) from error


def _refused(what: str, error: ApiError, project: str) -> AccessDeniedError | ImageBuildError:
    if error.status != 403:
        return ImageBuildError(what, why=error.message, next="correct what it names and try again", code="cloud-build")
    step = f"ask for the role {ROLE}"
    if error.reason == "SERVICE_DISABLED":
        step = f"gcloud services enable {API} --project {project}"
    return AccessDeniedError(what, why=error.message, next=step, code="build-denied")
