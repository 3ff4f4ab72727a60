"""Artifact Registry: the repository that images go to, and whether this account may write there.

Source: Artifact Registry's discovery document, v1 (2026-10-31).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kinetic._google.api import ApiError, Service
from kinetic._wire import NamedTuple
from kinetic.errors import AccessDeniedError, ImageBuildError

API = "artifactregistry.googleapis.com"
HOST_ENDING = "-docker.pkg.dev"
_WRITE = "artifactregistry.repositories.uploadArtifacts"
_UNTAGGED_SECONDS = 7 * 24 * 3600
_WRITER = "roles/artifactregistry.writer"


class Repository(NamedTuple):
    """A repository for images, e.g. of "us-docker.pkg.dev/team/kinetic/kinetic"."""

    project: str
    location: str
    name: str

    @classmethod
    def of_image(cls, host: str, image: str) -> Repository | None:
        """Return the repository of an image by its host and name; None where it is not Artifact Registry's."""
        parts = image.split("/")
        if not host.endswith(HOST_ENDING) or len(parts) < 2:
            return None
        return cls(parts[0], host.removesuffix(HOST_ENDING), parts[1])

    @property
    def parent(self) -> str:
        return f"v1/projects/{self.project}/locations/{self.location}"

    @property
    def image_prefix(self) -> str:
        """How the names of its images begin."""
        return f"{self.location}{HOST_ENDING}/{self.project}/{self.name}"

    @property
    def path(self) -> str:
        return f"{self.parent}/repositories/{self.name}"


def ensure_repository(
    service: Service,
    repository: Repository,
    pause: Callable[[float], object],
    labels: Mapping[str, str] | None = None,
) -> bool:
    """Make the repository if it is missing, with some labels; return whether it was made.

    Images without a tag go after a week: each environment keeps its tag until kinetic removes it. Scanning is off: it
    would cost money for every environment that is pushed.

    Raises:
        AccessDeniedError: This account may not make it.
        ImageBuildError: Artifact Registry refuses.
    """
    try:
        service.get(repository.path)
    except ApiError as error:
        if error.status != 404:
            raise _error(error, repository) from error
    else:
        return False
    body = {
        "format": "DOCKER",
        "description": "Images of kinetic's jobs",
        **({"labels": dict(labels)} if labels else {}),
        "dockerConfig": {"immutableTags": False},
        "cleanupPolicies": {
            "untagged": {
                "id": "untagged",
                "action": "DELETE",
                "condition": {"tagState": "UNTAGGED", "olderThan": f"{_UNTAGGED_SECONDS}s"},
            }
        },
        "vulnerabilityScanningConfig": {"enablementConfig": "DISABLED"},
    }
    try:
        operation = service.request(
            "POST", f"{repository.parent}/repositories", body, query={"repositoryId": repository.name}
        )
        done = service.follow(f"v1/{operation['name']}", lambda page: bool(page.get("done")), pause)
    except ApiError as error:
        if error.status == 409:  # another client was faster
            return False
        raise _error(error, repository) from error
    if failed := done.get("error"):
        raise ImageBuildError(
            f"the repository {repository.name} could not be made in {repository.location}",
            why=str(failed.get("message", "")),
            next="try again, or name another: KINETIC_IMAGE_REPO",
        )
    return True


def _error(error: ApiError, repository: Repository) -> AccessDeniedError | ImageBuildError:
    what = f"Artifact Registry refuses the repository {repository.name} in {repository.location} ({error.status})"
    if error.status == 403:
        step = f"ask for the role {_WRITER}, or roles/artifactregistry.admin to make it"
        if error.reason == "SERVICE_DISABLED":
            step = f"gcloud services enable {API} --project {repository.project}"
        return AccessDeniedError(what, why=error.message, next=step, code="registry-denied")
    return ImageBuildError(what, why=error.message, next="correct the name of the repository", code="registry-missing")
