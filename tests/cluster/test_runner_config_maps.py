"""Kinetic's own code in a namespace goes when no job needs it, on a real API server, and no job loses it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cluster.test_kube_client import ask
from cluster.test_preflight import connect_as
from cluster.test_the_role_in_the_manual import submitter

from kinetic._backends.kube import discovery, job_manifests, object_status, runner_config_maps
from kinetic._backends.kube.client import CONFIG_MAP, JOB, Client
from kinetic._backends.kube.job_launcher import JobLauncher
from kinetic._backends.kube.runner_config_maps import ensure, remove_unused

__all__ = ["ask", "connect_as", "submitter"]
pytestmark = pytest.mark.timeout(120)

DAY = 24 * 3600.0


def old_code(kube: Client, version: str) -> str:
    """Bring the code of another version into the namespace, and return its name."""
    made = job_manifests.runner_config_map(kube.namespace, version, version * 32, {"runner.zip": b"PK"})
    return object_status.object_name(kube.create(CONFIG_MAP, made))


def names(kube: Client) -> set[str]:
    listed = kube.list(CONFIG_MAP, "kinetic/runner").objects
    return {object_status.object_name(found) for found in listed}


def test_code_goes_at_the_second_visit_and_stays_while_anything_names_it(kube: Client, ask: Any) -> None:
    needed, unused = old_code(kube, "a1"), old_code(kube, "b2")
    kube.create(JOB, job_manifests.job(ask(secret="s", runner=needed)))

    first = remove_unused(kube)
    soon = remove_unused(kube, time.time() + 60)
    assert (first, soon, names(kube)) == (0, 0, {needed, unused})
    later = remove_unused(kube, time.time() + DAY)

    assert (later, names(kube)) == (1, {needed})


def test_code_that_a_client_found_between_two_visits_is_not_removed(kube: Client, monkeypatch: Any) -> None:
    name, _ = ensure(kube)
    remove_unused(kube)
    looks = runner_config_maps._in_use

    def found_meanwhile(client: Client) -> set[str]:
        used = looks(client)
        assert ensure(kube) == (name, False)
        return used

    monkeypatch.setattr(runner_config_maps, "_in_use", found_meanwhile)

    assert remove_unused(kube, time.time() + DAY) == 0
    assert names(kube) == {name}


def test_a_job_of_somebody_who_may_not_take_the_mark_away_keeps_its_code(
    kube: Client, submitter: Client, ask: Any, monkeypatch: Any
) -> None:
    launcher = JobLauncher(lambda: submitter, {})
    name = launcher.ensure_runner()
    remove_unused(kube)
    launcher = JobLauncher(lambda: submitter, {})
    discovery.cache_of(submitter).forget("runner")  # as after a minute
    assert launcher.ensure_runner() == name
    delete = Client.delete

    def after_its_job(self: Client, *words: Any, **only: Any) -> bool:
        submitter.create(JOB, job_manifests.job(ask(secret="s", runner=name)))
        launcher.keep_runner()
        return delete(self, *words, **only)

    monkeypatch.setattr(Client, "delete", after_its_job)

    assert remove_unused(kube, time.time() + DAY) == 0
    assert names(kube) == {name}
    kube.transport.send("DELETE", CONFIG_MAP.path(kube.namespace, name))
    launcher.keep_runner()
    assert names(kube) == {name}
