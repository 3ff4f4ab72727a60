"""Who a job is in its pod: without capabilities everywhere, and not root in a namespace that enforces "restricted"."""

from __future__ import annotations

from typing import Any

import pytest
from cluster.images import of_this_python
from cluster.plane import wait_for

USER = 1000
NOBODY = 65_534  # in Debian, and so in Python's own image, with the home /nonexistent

WHO = """
    import os
    import kinetic

    @kinetic.run(accelerator="cpu")
    def who():
        key = os.stat("/kinetic/secret/job-key")
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        return {
            "user": os.getuid(), "groups": sorted({os.getgid(), *os.getgroups()}),
            "capabilities": int(status["CapEff"], 16), "gains": status["NoNewPrivs"].strip(),
            "key": [oct(key.st_mode & 0o777), key.st_uid, key.st_gid],
        }
"""

AT_HOME = """
    import getpass
    import pathlib
    import kinetic

    @kinetic.run(accelerator="cpu")
    def look():
        cache = pathlib.Path.home() / ".cache" / "library"
        cache.mkdir(parents=True)
        (cache / "model").write_text("kept")
        return getpass.getuser(), (cache / "model").read_text()
"""

KEY = ["0o440", 0, 65_532]  # as a kubelet makes it of 0400 and an fsGroup


@pytest.fixture
def ask(clients: Any, machine: str) -> Any:
    """Return a function that runs a job with an image and returns what it says of itself."""
    clients.project.write("who.py", WHO)

    def run(**options: str) -> dict[str, Any]:
        found: dict[str, Any] = clients.run(f"from who import who\ntell(who.with_options(**{options!r})())")
        return found

    return run


@pytest.fixture
def restricted(site: Any) -> None:
    """Have the namespace take pods of the level "restricted" only; the API server enforces it."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    site.api.merge(f"/api/v1/namespaces/{site.namespace}", {"metadata": {"labels": labels}})


@pytest.fixture
def images(agent: Any) -> None:
    """Images whose users are not root, and one whose user is."""
    agent.registry.add("with-user:*", of_this_python()._replace(user=USER))
    home = {"HOME": "/nonexistent"}
    agent.registry.add("with-nobody:*", of_this_python()._replace(user=NOBODY, environment=home))
    agent.registry.add("with-root:*", of_this_python())


def test_a_job_has_no_capabilities_and_gains_none(ask: Any) -> None:
    assert ask() == {"user": 0, "groups": [0, 65_532], "capabilities": 0, "gains": "1", "key": KEY}


def test_an_image_with_a_user_of_its_own_runs_as_that_user(ask: Any, images: None) -> None:
    found = ask(container_image="with-user:1")

    assert (found["user"], found["key"]) == (USER, KEY)


@pytest.mark.parametrize("image", ["with-user:1", "with-nobody:1"])
def test_a_user_to_whom_the_image_gives_no_home_can_write_to_one_and_has_a_name(
    clients: Any, machine: str, images: None, image: str
) -> None:
    clients.project.write("at_home.py", AT_HOME)

    told = clients.run(f"from at_home import look\ntell(look.with_options(container_image={image!r})())")

    assert told == ["kinetic", "kept"]


def test_a_namespace_that_enforces_restricted_takes_jobs_in_pythons_own_image(ask: Any, restricted: None) -> None:
    found = ask()

    assert (found["user"], found["groups"], found["capabilities"]) == (65_532, [65_532], 0)


def test_it_takes_an_image_with_a_user_and_names_one_that_is_root(
    ask: Any, restricted: None, images: None, clients: Any, kinetic: Any
) -> None:
    assert ask(container_image="with-user:1")["user"] == USER
    root = "who.with_options(container_image='with-root:1')"
    job_id = clients.run(f"from who import who\ntell({root}.run_async().job_id)")

    def explained() -> str:
        told = kinetic("jobs", "explain", job_id).out
        return told if "does not accept containers that run as root, as with-root:1 does" in told else ""

    told = wait_for("the reason", explained)

    assert "write USER 1000 into its Dockerfile" in told
