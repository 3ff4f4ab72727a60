"""A server that speaks the part of Google's container API that kinetic asks; whatever it says fits the document."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Self

from servers.discovery import document, masked
from servers.http11 import Answer, Request, Server

Page = dict[str, Any]
AUTHORITY = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
_ONE = re.compile(r"/v1/projects/([^/]+)/locations/([^/]+)/clusters/([^/]+)")
_ALL = re.compile(r"/v1/projects/([^/]+)/locations/-/clusters")


class ContainerServer:
    """Describe clusters until closed.

    Attributes:
        clusters: By project, location and name.
        tokens: Bearer tokens that are let in.
        fault: What is answered next instead: a status, a reason and a message each.
        seen: Every request, in order.
        wrong: What Google's own document has against a request.
    """

    def __init__(self) -> None:
        self.clusters: dict[tuple[str, str, str], Page] = {}
        self.tokens = {"token"}
        self.fault: list[tuple[int, str, str]] = []
        self.seen: list[Request] = []
        self.wrong: list[str] = []
        self._server = Server(self._answer).start()
        self.url = self._server.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def add(self, project: str, location: str, name: str, **more: Any) -> Page:
        """Add a cluster that answers at an IP address; ``more`` says what is different about it."""
        page = {
            "name": name,
            "location": location,
            "status": "RUNNING",
            "endpoint": "203.0.113.7",
            "masterAuth": {"clusterCaCertificate": base64.b64encode(AUTHORITY).decode()},
            "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"endpoint": f"gke-{name}.{location}.gke.goog"}},
            "currentMasterVersion": "1.35.1-gke.100",
            **more,
        }
        assert document("container.v1").misfits("Cluster", page) == []
        self.clusters[project, location, name] = page
        return page

    def _answer(self, request: Request) -> Answer:
        self.seen.append(request)
        self.wrong += document("container.v1").complaints(request.method, request.path[1:], request.query)
        if self.fault:
            return _refusal(*self.fault.pop(0))
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return _refusal(401, "ACCESS_TOKEN_EXPIRED", "Request had invalid authentication credentials.")
        if found := _ALL.fullmatch(request.path):
            there = {"clusters": [page for key, page in self.clusters.items() if key[0] == found[1]]}
            return _page(masked(there, request.query.get("fields", "")))
        found = _ONE.fullmatch(request.path)
        page = self.clusters.get(found.groups()) if found else None  # type: ignore[arg-type]  # three groups
        fields = request.query.get("fields", "")
        return _page(masked(page, fields)) if page else _refusal(404, "", f"Not found: {request.path[4:]}.")


def _page(page: Page) -> Answer:
    return Answer(200, json.dumps(page).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _refusal(status: int, reason: str, message: str) -> Answer:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}] if reason else []
    body = {"error": {"code": status, "message": message, "status": "X", "details": details}}
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/json; charset=UTF-8"})
