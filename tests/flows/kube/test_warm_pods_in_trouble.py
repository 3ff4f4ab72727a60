"""Warm pods whose surroundings fail: nothing is lost, nothing runs twice, and messages say what happened."""

from __future__ import annotations

from typing import Any

import pytest
from cluster.plane import wait_for
from flows.kube.test_warm_pods import warm_job

# One after the other: the pods of these tests share the ports of this machine, and each warm pod listens on the same.
pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(300), pytest.mark.xdist_group("warm")]

FIRST = "from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))"
BEGIN = """
    from one import again
    tell(again.with_options(keep_warm='10m').run_async(words[0], words[1]).job_id)
"""
COLLECT = "tell(kinetic.attach(words[0]).result(timeout=90, cleanup=False))"


# ---------------------------------------------------------------------------------------------------- the pod's own Job


def test_a_task_survives_the_deletion_of_the_job_of_its_warm_pod(
    clients: Any, site: Any, shared: Any, kinetic: Any
) -> None:
    job_id = clients.run(BEGIN, str(shared), "/never")
    wait_for("its first attempt", (shared / "attempt-0").exists)

    name = warm_job(site)["metadata"]["name"]
    site.api.delete(f"{site.batch}/jobs/{name}", propagationPolicy="Background")
    wait_for("the end of the pod", lambda: not site.pods_of(), 60)
    explained = kinetic("jobs", "explain", job_id)
    value = clients.run(COLLECT, job_id)

    assert f"its warm pod {name.removeprefix('kinetic-')} has ended; it starts in a pod of its own" in explained.err
    assert value == 1
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/{number}" for number in range(2)]
    (own,) = site.jobs(job_id)
    assert "kinetic/warm" not in own["metadata"]["labels"]


def test_what_an_ended_task_left_in_the_cluster_goes_when_the_next_warm_pod_starts(
    clients: Any, site: Any, kinetic: Any
) -> None:
    submit = """
        from kinetic._jobs import warm_assignment
        warm_assignment._ENDED_SECONDS = float(words[0])
        from one import add
        job = add.with_options(keep_warm='10m').run_async(1, 2)
        job.wait()
        tell(job.job_id)
    """
    job_id = clients.run(submit, "3600")
    kinetic("warm", "stop", "--all")
    wait_for("the end of the pod", lambda: not warm_job(site)["status"].get("active"), 60)

    kept_id = clients.run(submit, "3600")
    kept = site.left(job_id)
    kinetic("warm", "stop", "--all")
    wait_for("the end of the pod", lambda: not any(each["status"].get("active") for each in site.jobs()), 60)
    clients.run(submit, "-60")

    assert len(kept) == 2
    wait_for("the end of what is left", lambda: site.left(job_id) == site.left(kept_id) == [])
    assert clients.run(COLLECT, job_id) == 3
