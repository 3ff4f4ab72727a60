"""Requests for tests of manifests: one page of defaults, and whatever a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinetic._backends.kube.job_manifests import JobRequest
from kinetic._config.cluster import ClusterSettings, PodRequirements
from kinetic._config.options import ResourceRequests
from kinetic._hardware import place

Ask = Callable[..., JobRequest]
JOB_ID = "l4-train-20261121-143000-1a2b3c4"


@pytest.fixture
def ask() -> Ask:
    """Return a function that makes a request for an accelerator."""

    def make(accelerator: str = "cpu", *, spot: bool = False, multi_host: bool = False, **more: Any) -> JobRequest:
        needs = more.pop("needs", ResourceRequests())
        settings = {
            name: more.pop(name) for name in ClusterSettings._fields if name in more and name != "service_account"
        }
        requirements = PodRequirements("python:3.11-slim", needs=needs, settings=ClusterSettings(**settings))
        fields = {
            "job_id": JOB_ID,
            "namespace": "research",
            "placement": place(accelerator, spot=spot, multi_host=multi_host),
            "requirements": requirements,
            "command": ("python3", "/kinetic/runner.zip", "{}"),
            "owner": "ann@example.com",
            "order_sha256": "ab" * 32,
            "secret": "kinetic-secret",
            "runner": "kinetic-runner-1-abc",
        }
        return JobRequest(**{**fields, **more})

    return make
