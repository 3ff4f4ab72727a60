"""What the log of a container has now."""

from __future__ import annotations

import contextlib

import pytest
from servers.http11 import Answer
from servers.scripted import Scripted, refusal

from kinetic._backends.kube import pod_logs
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.transport import Access
from kinetic._stores.parallel import Retry
from kinetic.errors import AccessDeniedError


def connected(server: Scripted) -> contextlib.closing:
    access = Access(server=server.url, about="the test", credential=FixedCredential())
    return contextlib.closing(Client(access, "research", Retry(4, sleep=lambda _: None)))


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    with Scripted(Answer(200, b"\xff\x00\n")) as server, connected(server) as client:
        assert pod_logs.read_log(client, "pod-a", last_lines=10) == b"\xff\x00\n"

    assert server.asked[0].query == {"container": "kinetic-worker", "tailLines": "10"}


def test_a_pod_that_is_gone_or_has_not_started_has_no_log() -> None:
    waiting = refusal(400, 'container "kinetic-worker" in pod "pod-a" is waiting to start: ContainerCreating')

    with Scripted(waiting) as server, connected(server) as client:
        assert pod_logs.read_log(client, "pod-a", last_lines=10) is None


def test_who_may_not_read_logs_is_told() -> None:
    refused = refusal(403, "cannot get pods/log", "Forbidden")

    with Scripted(refused) as server, connected(server) as client, pytest.raises(AccessDeniedError):
        pod_logs.read_log(client, "pod-a")
