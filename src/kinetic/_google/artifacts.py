"""Artifact Registry: the repository that images go to.

Source: Artifact Registry's discovery document, v1 (2026-10-31).
"""

from __future__ import annotations

from collections.abc import Mapping

from kinetic._google.api import Page
from kinetic._wire import NamedTuple

API = "artifactregistry.googleapis.com"
HOST_ENDING = "-docker.pkg.dev"
_UNTAGGED_SECONDS = 7 * 24 * 3600


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


def page_of_new(labels: Mapping[str, str]) -> Page:
    """Return a repository for images as Artifact Registry is asked for it.

    Images without a tag go after a week: each environment keeps its tag until kinetic removes it. Scanning is off: it
    would cost money for every environment that is pushed.
    """
    return {
        "format": "DOCKER",
        "description": "Images of kinetic's jobs",
        "labels": dict(labels),
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
