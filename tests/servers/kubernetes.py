"""A server that speaks as much of Kubernetes as questions about a cluster need; objects are kept by their paths."""

from __future__ import annotations

import json
from typing import Any, Self

from servers.http11 import Answer, Request, Server
from servers.scripted import page, refusal

from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.transport import Access
from kinetic._stores.parallel import Retry

_RULES = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
_REVIEWS = "/apis/authorization.k8s.io/v1"


class KubernetesServer:
    """A cluster until closed.

    Attributes:
        objects: By path; lists are made of them.
        groups: Groups of kinds and their versions.
        rules: What we may do.
        version: Of the server.
        client: Of it.
        answers: What is answered instead, by the end of a path.
        seen: Every request, as "VERB path".
    """

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.groups: dict[str, list[str]] = {"batch": ["v1"]}
        self.rules: list[dict[str, Any]] = _RULES
        self.version = "v1.35.8-gke.1026000"
        self.answers: dict[str, Answer] = {}
        self.seen: list[str] = []
        self.add("/api/v1/namespaces/default")
        self.add("/api/v1/namespaces/default/serviceaccounts/kinetic")
        self._server = Server(self._answer).start()
        self.url = self._server.url
        self.client = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.close()

    def reconnect(self) -> None:
        """Make another client, which knows nothing of the cluster yet."""
        self.client.close()
        self.client = self._connect()

    def _connect(self) -> Client:
        access = Access(self.url, "the cluster", FixedCredential(), b"")
        return Client(access, "default", Retry(2, sleep=lambda _: None))

    def add(self, path: str, **more: Any) -> None:
        """Add an object."""
        metadata = {"name": path.rpartition("/")[2], **more.pop("metadata", {})}
        self.objects[path] = {"metadata": metadata, **more}

    def _answer(self, request: Request) -> Answer:
        self.seen.append(f"{request.method} {request.path}")
        for end, answer in self.answers.items():
            if request.path.endswith(end):
                return answer
        if request.path == "/version":
            return page({"gitVersion": self.version})
        if request.path == "/apis":
            found = [
                {"name": name, "versions": [{"version": each} for each in versions]}
                for name, versions in self.groups.items()
            ]
            return page({"groups": found})
        if request.path == f"{_REVIEWS}/selfsubjectrulesreviews":
            return page({"status": {"resourceRules": self.rules}}, 201)
        if request.path.startswith(_REVIEWS):
            return page({"status": {"allowed": False}}, 201)
        if request.path.endswith("/selfsubjectreviews"):
            return page({"status": {"userInfo": {"username": "ann@example.com"}}}, 201)
        if request.method in {"PATCH", "POST"}:
            made = json.loads(request.body)
            if "dryRun" not in request.query:
                self.objects[request.path] = made
            return page(made, 201)
        if request.path in self.objects:
            return page(self.objects[request.path])
        below = [each for path, each in self.objects.items() if path.rpartition("/")[0] == request.path]
        is_list = request.path.rpartition("/")[2] in {"nodes", "pods", "events"}
        if is_list:
            return page({"metadata": {}, "items": below})
        return refusal(404, f'{request.path} "not found"', "NotFound")
