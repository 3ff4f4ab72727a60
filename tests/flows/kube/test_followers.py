"""Jobs that follow jobs on a cluster: who starts and closes them when their client is gone, with and without the right.

The control plane, its controllers and RBAC are real; the service account of the pods has the rights of the page
docs/chained-jobs.md, or none.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster.images import Image
from cluster.manifests import objects_on
from cluster.plane import wait_for
from cluster.test_preflight import RBAC

from kinetic._cluster.namespace import FollowerBinding, FollowerRole, ServiceAccount

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(180)]

PAGE = "chained-jobs.md"


def test_the_page_has_what_kinetic_up_makes() -> None:
    setup: Any = SimpleNamespace(spec=SimpleNamespace(namespace="team"), apis=None)
    made = [kind(setup).manifest() for kind in (ServiceAccount, FollowerRole, FollowerBinding)]

    for each in made:
        written = objects_on(PAGE)[each["kind"]]
        for page in (each, written):
            page["metadata"].pop("labels", None)
            page["metadata"].pop("namespace", None)
        assert each == written


@pytest.fixture
def account(site: Any) -> None:
    """Give pods the account and the rights of the page."""
    objects = objects_on(PAGE)
    paths = {
        "ServiceAccount": f"{site.core}/serviceaccounts",
        "Role": f"{RBAC}/namespaces/{site.namespace}/roles",
        "RoleBinding": f"{RBAC}/namespaces/{site.namespace}/rolebindings",
    }
    for kind, path in paths.items():
        found = objects[kind]
        found["metadata"].pop("namespace", None)
        for subject in found.get("subjects", ()):
            subject["namespace"] = site.namespace
        site.api.create(path, found)


def job_of(site: Any, job_id: str) -> dict[str, Any]:
    """Return the Job of a job; nothing where it is gone."""
    found = site.jobs(job_id)
    return dict(found[0]) if found else {}


def submit(clients: Any, code: str) -> list[str]:
    """Submit from a process that ends at once, and return what it tells."""
    return list(clients.run(f"from one import *\nimport os\n{code}\nos._exit(0)"))


@pytest.mark.usefixtures("account")
def test_the_pod_of_a_job_warm_or_its_own_starts_the_one_that_follows_it_when_every_client_is_gone(
    clients: Any, site: Any, shared: Path
) -> None:
    until = shared / "until"
    _, second, third, said = submit(
        clients,
        f"""
import contextlib, io
first = talk.with_options(keep_warm="10m").run_async(1, {str(until)!r})
with contextlib.redirect_stderr(io.StringIO()) as said:
    second = add.run_async(first, 1)
    third = add.run_async(second, first)
tell([first.job_id, second.job_id, third.job_id, said.getvalue()])""",
    )
    suspended = [job_of(site, each)["spec"]["suspend"] for each in (second, third)]
    pods = site.pods_of(second)

    until.touch()
    wait_for("the end of the third", lambda: job_of(site, third).get("status", {}).get("succeeded"), seconds=90)

    assert (suspended, pods) == ([True, True], [])
    assert "may not start" not in said
    found = clients.run(
        f"import kinetic\ntell([kinetic.attach({third!r}).result(), kinetic.attach({second!r}).result()])"
    )
    assert found == [3, 2]


@pytest.mark.usefixtures("account")
def test_the_pod_of_a_job_that_fails_closes_all_that_follow_it_and_no_pod_of_them_is_made(
    clients: Any, site: Any
) -> None:
    first, second, third = submit(
        clients,
        """
first = fail.run_async(7)
second = add.run_async(first, 1)
third = add.run_async(second, 1)
tell([first.job_id, second.job_id, third.job_id])""",
    )

    wait_for("the end of both", lambda: not job_of(site, second) and not job_of(site, third), seconds=90)
    names = clients.run(f"""
        import kinetic
        found = []
        for name in {[second, third]!r}:
            try:
                kinetic.attach(name).result()
            except kinetic.errors.PredecessorError as error:
                found.append(str(error))
        tell(found)
    """)

    assert f"{first} (fail) failed" in names[0]
    assert f"{second} (add) failed" in names[1]
    assert site.pods_of(second) + site.pods_of(third) == []


def test_without_the_right_the_job_waits_suspended_and_whoever_looks_starts_it(
    clients: Any, site: Any, shared: Path, kinetic: Any
) -> None:
    until = shared / "until"
    first, second, said = submit(
        clients,
        f"""
import contextlib, io
first = talk.run_async(1, {str(until)!r})
with contextlib.redirect_stderr(io.StringIO()) as said:
    second = add.run_async(first, 1)
tell([first.job_id, second.job_id, said.getvalue()])""",
    )
    explained = kinetic("jobs", "explain", second)
    listed = kinetic("jobs", "list")
    until.touch()
    wait_for("the end of the first", lambda: job_of(site, first).get("status", {}).get("succeeded"), seconds=60)
    still = job_of(site, second)["spec"]["suspend"]

    kinetic("jobs", "wait", second)

    assert still is True
    assert "pods there may not start jobs that follow theirs" in said
    assert f"waits for {first}" in explained.out
    assert f"waits for {first}" in listed.out
    assert clients.run(f"import kinetic\ntell(kinetic.attach({second!r}).result())") == 2


def test_a_job_that_follows_one_which_was_lost_is_closed_by_whoever_looks(clients: Any, site: Any) -> None:
    first, second = submit(
        clients,
        """
first = talk.run_async(1, "/never")
second = add.run_async(first, 1)
tell([first.job_id, second.job_id])""",
    )
    site.running(first)
    wait_for("its first attempt", lambda: site.bucket.names(f"{first}/attempts/"))
    site.api.delete(f"{site.batch}/jobs/kinetic-{first}", propagationPolicy="Background")

    error = clients.run(f"tell(repr(kinetic.attach({second!r}).exception(timeout=60)))")

    assert error.startswith("PredecessorError(")
    assert f"{first} (talk) failed" in error


def test_a_job_that_follows_a_batch_of_which_one_was_lost_is_closed_by_whoever_looks(clients: Any, site: Any) -> None:
    children, second = submit(
        clients,
        """
batch = talk.run_async_map([(1, "/never"), (1,)], max_concurrent=None)
second = add.with_options(after=batch).run_async(1, 1)
tell([[job.job_id for job in batch.jobs], second.job_id])""",
    )
    site.running(children[0])
    wait_for("its first attempt", lambda: site.bucket.names(f"{children[0]}/attempts/"))
    site.api.delete(f"{site.batch}/jobs/kinetic-{children[0]}", propagationPolicy="Background")

    error = clients.run(f"tell(repr(kinetic.attach({second!r}).exception(timeout=60)))")

    assert error.startswith("PredecessorError(")
    assert "(talk) failed" in error


def test_a_job_reads_the_output_folder_of_one_that_it_follows_and_that_has_not_begun(clients: Any, site: Any) -> None:
    found = clients.run(
        """
from one import *
import kinetic

@kinetic.run(accelerator="cpu")
def write(word):
    with open(os.path.join(kinetic.output_dir(), "word"), "w") as file:
        file.write(word)

@kinetic.run(accelerator="cpu")
def read(folder, after=None):
    return open(os.path.join(folder, "word")).read()

first = write.run_async("early")
batch = read.with_options(after=first).run_async_map([(kinetic.Data(f"{first.output_dir}/"),)], max_concurrent=None)
second = read.run_async(kinetic.Data(first.output_dir), first)
tell([second.result(), *batch.results()])"""
    )

    assert found == ["early", "early"]


def test_a_job_that_follows_one_which_failed_before_its_attempt_is_closed_by_whoever_looks(
    clients: Any, agent: Any
) -> None:
    agent.registry.add("no-python:*", Image(environment={"PATH": "/nowhere"}))
    first, second = submit(
        clients,
        """
first = talk.with_options(container_image="no-python:1").run_async(1, "/never")
second = add.run_async(first, 1)
tell([first.job_id, second.job_id])""",
    )

    error = clients.run(f"tell(repr(kinetic.attach({second!r}).exception(timeout=60)))")

    assert error.startswith("PredecessorError(")
    assert f"{first} (talk) failed" in error


def test_a_waiting_job_is_cancelled_and_leaves_nothing_in_the_cluster(clients: Any, site: Any, kinetic: Any) -> None:
    _, second, third = submit(
        clients,
        """
first = talk.run_async(1, "/never")
second = add.run_async(first, 1)
third = add.run_async(second, 1)
tell([first.job_id, second.job_id, third.job_id])""",
    )

    kinetic("jobs", "cancel", second)
    wait_for("the end of its Job", lambda: not job_of(site, second))
    status = clients.run(f"import kinetic\ntell(kinetic.attach({third!r}).status().value)")

    assert status == "FAILED"
    assert not job_of(site, third)
