"""Which permissions are missing, asked with one request, and the predefined roles that bring them."""

from __future__ import annotations

from collections.abc import Iterable

from kinetic._cluster.project_apis import PROJECTS, ProjectApis, is_disabled
from kinetic._google.api import ApiError

ACT_AS = "iam.serviceAccounts.actAs"  # may be held on the one account only, which this question does not see
CREATE_PROJECT = "resourcemanager.projects.create"  # of an organization or a folder
_MOST = 100  # permissions in one question
_ROLES = (  # by the beginning of a permission; the first that fits
    (ACT_AS, "roles/iam.serviceAccountUser"),
    ("iam.", "roles/iam.serviceAccountAdmin"),
    ("compute.firewalls.", "roles/compute.securityAdmin"),
    ("compute.", "roles/compute.networkAdmin"),
    ("container.", "roles/container.admin"),
    ("resourcemanager.projects.createBillingAssignment", "roles/billing.projectManager"),
    (CREATE_PROJECT, "roles/resourcemanager.projectCreator"),
    ("resourcemanager.", "roles/resourcemanager.projectIamAdmin"),
    ("serviceusage.", "roles/serviceusage.serviceUsageAdmin"),
    ("storage.", "roles/storage.admin"),
    ("artifactregistry.", "roles/artifactregistry.admin"),
)


def missing(apis: ProjectApis, permissions: Iterable[str], *, parent: str = "") -> list[str] | None:
    """Return which of some permissions our account does not have; None where Google cannot be asked.

    They may be asked in a ``parent``, an organization or folder, instead of the project.
    """
    wanted = sorted({*permissions})[:_MOST]
    if not wanted:
        return []
    path = f"v3/{parent or f'projects/{apis.project}'}:testIamPermissions"
    try:
        page = apis.call(PROJECTS, "POST", path, {"permissions": wanted})
    except ApiError as error:
        if is_disabled(error):
            return None
        raise
    held = {*(page.get("permissions") or ())}
    return [each for each in wanted if each not in held]


def by_role(permissions: Iterable[str]) -> dict[str, list[str]]:
    """Return the roles that bring some permissions, each with those that it is needed for."""
    found: dict[str, list[str]] = {}
    for each in permissions:
        role = next((role for beginning, role in _ROLES if each.startswith(beginning)), "roles/owner")
        found.setdefault(role, []).append(each)
    return found
