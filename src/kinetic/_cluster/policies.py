"""Who may do what with a project or a bucket: policies that others write as well, so each change is compared first.

A policy is read with its conditions (version 3) and written with its etag; where another writer was faster, it is read
again. Without the version, conditions of other bindings would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kinetic._cluster.project_apis import NOT_PERMITTED, PROJECTS, STORAGE, ProjectApis, is_disabled
from kinetic._google.api import ApiError, Page

_MOST_RACES = 10  # with other writers, in a row
_CHANGED = frozenset({409, 412})


class Policy(Protocol):
    """A policy that can be read and written."""

    apis: ProjectApis

    def read(self) -> Page: ...
    def write(self, policy: Page) -> Page: ...


class ProjectPolicy:
    """The policy of a project."""

    def __init__(self, apis: ProjectApis) -> None:
        self.apis = apis
        self._path = f"v3/projects/{apis.project}"

    def read(self) -> Page:
        """Return the policy; an empty one where the API that has it is off."""
        body = {"options": {"requestedPolicyVersion": 3}}
        try:
            return self.apis.call(PROJECTS, "POST", f"{self._path}:getIamPolicy", body)
        except ApiError as error:
            if is_disabled(error) and PROJECTS not in self.apis.enabled:
                return {}
            raise

    def write(self, policy: Page) -> Page:
        return self.apis.call(PROJECTS, "POST", f"{self._path}:setIamPolicy", {"policy": policy})


class BucketPolicy:
    """The policy of a bucket."""

    def __init__(self, apis: ProjectApis, bucket: str) -> None:
        self.apis = apis
        self._path = f"storage/v1/b/{bucket}/iam"

    def read(self) -> Page:
        """Return the policy; an empty one where there is no such bucket, or it is not shown to us."""
        try:
            return self.apis.read(STORAGE, self._path, optionsRequestedPolicyVersion="3") or {}
        except ApiError as error:
            if error.status == 403:
                return {}
            raise

    def write(self, policy: Page) -> Page:
        return self.apis.call(STORAGE, "PUT", self._path, policy)


def has(policy: Page, role: str, member: str) -> bool:
    """Return whether a member has a role without a condition."""
    return any(
        each.get("role") == role and not each.get("condition") and member in (each.get("members") or ())
        for each in policy.get("bindings") or ()
    )


def deleted_members(policy: Page, member: str) -> list[str]:
    """Return what a policy calls a member that was deleted: "deleted:serviceAccount:…?uid=123"."""
    return [
        each
        for binding in policy.get("bindings") or ()
        for each in binding.get("members") or ()
        if each.startswith(f"deleted:{member}?")
    ]


def add(policy: Policy, role: str, member: str) -> None:
    """Give a member a role; other bindings stay as they are."""

    def change(page: Page) -> bool:
        if has(page, role, member):
            return False
        bindings: list[dict[str, Any]] = page.setdefault("bindings", [])
        plain = next((each for each in bindings if each.get("role") == role and not each.get("condition")), None)
        if plain is None:
            bindings.append({"role": role, "members": [member]})
        else:
            plain["members"] = [*(plain.get("members") or ()), member]
        return True

    _rewrite(policy, change)


def remove(policy: Policy, member: str) -> None:
    """Take every role from a member, under its name and under that of a deleted one."""

    def change(page: Page) -> bool:
        gone = {member, *deleted_members(page, member)}
        before = page.get("bindings") or []
        after = [
            {**each, "members": [name for name in each.get("members") or () if name not in gone]} for each in before
        ]
        page["bindings"] = [each for each in after if each["members"]]
        return bool(page["bindings"] != before)

    _rewrite(policy, change)


def _rewrite(policy: Policy, change: Callable[[Page], bool]) -> None:
    """Read, change and write a policy, again where another writer was faster; a new member may not be seen at once."""
    for attempt in range(_MOST_RACES):
        page = policy.read()
        if not change(page):
            return
        if not page.get("etag"):  # nothing was shown: writing it would remove what others may do
            raise ApiError(403, "", "the policy is not shown to this account, so nothing is added to it")
        page["version"] = 3
        try:
            policy.apis.retry_unseen(lambda page=page: policy.write(page))  # type: ignore[misc]
        except ApiError as error:
            if error.status not in _CHANGED or NOT_PERMITTED in error.message or attempt == _MOST_RACES - 1:
                raise
            policy.apis.sleep(min(5.0, 0.2 * 2**attempt))
        else:
            return
