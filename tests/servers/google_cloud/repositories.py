"""Artifact Registry's repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servers.google_cloud import refusals
from servers.google_cloud.projects import Policy
from servers.google_cloud.refusals import Refusal

if TYPE_CHECKING:
    from servers.google_cloud.cloud import Call, GoogleCloud

Page = dict[str, Any]


class Repositories:
    """The repositories of a project.

    Attributes:
        pages: What each is, by its path.
        policies: Who may do what with each.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self.pages: dict[str, Page] = {}
        self.policies: dict[str, Policy] = {}
        self._operations: dict[str, tuple[int, Page]] = {}

    def answer(self, call: Call) -> Page:
        _, project, _, location, kind, *names = call.parts
        parent = f"projects/{project}/locations/{location}"
        if project not in {self._cloud.project, self._cloud.number}:
            raise refusals.denied(f"artifactregistry.repositories.{call.action}", f"projects/{project}")
        if kind == "operations":
            return self._operation(f"{parent}/operations/{names[0]}")
        path = f"{parent}/repositories/{call.query.get('repositoryId') or (names[0] if names else '')}"
        if call.action == "list":
            found = [page for name, page in self.pages.items() if name.startswith(path)]
            return {"repositories": found} if found else {}
        if call.action == "create":
            return self._create(path, call.body)
        if path not in self.pages:
            raise refusals.missing(path)
        if call.action == "get":
            return self.pages[path]
        if call.action == "delete":
            del self.pages[path], self.policies[path]
            return self._started(parent, {"@type": "type.googleapis.com/google.protobuf.Empty"})
        if call.action == "testIamPermissions":
            held = [each for each in call.body.get("permissions", []) if each not in self._cloud.denied]
            return {"permissions": held} if held else {}
        if call.action == "getIamPolicy":
            return self.policies[path].read(int(call.query.get("options.requestedPolicyVersion", "1")))
        if call.action == "setIamPolicy":
            self._cloud.projects.check_members(call.body["policy"])
            self.policies[path].write(call.body["policy"])
            return self.policies[path].read(3)
        raise Refusal(400, f"{call.method} is not played")

    def _create(self, path: str, body: Page) -> Page:
        if path in self.pages:
            raise Refusal(409, "the repository already exists", "ALREADY_EXISTS")
        time = "2026-11-23T00:00:00.000000Z"
        self.pages[path] = {"mode": "STANDARD_REPOSITORY", **body, "name": path, "createTime": time, "updateTime": time}
        self.policies[path] = Policy(409)
        kind = "type.googleapis.com/google.devtools.artifactregistry.v1.Repository"
        return self._started(path.partition("/repositories/")[0], {"@type": kind, **self.pages[path]})

    def _started(self, parent: str, response: Page) -> Page:
        name = f"{parent}/operations/{next(self._cloud.ids)}"
        self._operations[name] = (self._cloud.pending, response)
        return {"name": name}

    def _operation(self, name: str) -> Page:
        if name not in self._operations:
            raise refusals.missing(name)
        left, response = self._operations[name]
        if left:
            self._operations[name] = (left - 1, response)
            return {"name": name}
        if fate := self._cloud.fates.get("repository"):
            self.pages.clear()
            return {"name": name, "done": True, "error": {"code": fate[2], "message": fate[1]}}
        return {"name": name, "done": True, "response": response}
