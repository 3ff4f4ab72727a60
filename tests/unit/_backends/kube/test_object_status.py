"""What an object says of its job: preempted is pending again, done is done, and a part speaks for nobody."""

from __future__ import annotations

import pytest

from kinetic._backends.kube import object_status
from kinetic.job_status import JobStatus

PENDING, RUNNING = JobStatus.PENDING, JobStatus.RUNNING
SUCCEEDED, FAILED = JobStatus.SUCCEEDED, JobStatus.FAILED


def made(kind: str = "Job", *, spec: dict | None = None, job_id: str = "cpu-f-1", labels: dict | None = None, **status):
    about = {
        "name": f"kinetic-{job_id}",
        "namespace": "research",
        "uid": "u1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-21T10:00:00Z",
        "labels": {"app": "kinetic", "job-id": job_id, **(labels or {})},
    }
    return {"kind": kind, "apiVersion": "v1", "metadata": about, "spec": spec or {}, "status": status}


def holds(kind: str, **more: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": "True", **more}]


def two_slices(ready: int) -> dict:
    """Return a set of two slices of which so many are ready, as it is remembered."""
    spec = {"replicatedJobs": [{"name": "s", "replicas": 2, "template": {}}]}
    return object_status.reduced(made("JobSet", spec=spec, replicatedJobsStatus=[{"name": "s", "ready": ready}]))


@pytest.mark.parametrize(
    ("found", "status"),
    [
        pytest.param(made(), PENDING, id="nothing is said yet"),
        pytest.param(made(spec={"suspend": True}, active=0), PENDING, id="suspended"),
        pytest.param(made(active=1, ready=0), PENDING, id="its pod is not ready"),
        pytest.param(made(active=1, ready=1), RUNNING, id="its pod is ready"),
        pytest.param(made(active=0, ready=0, terminating=1), PENDING, id="its machine was taken away"),
        pytest.param(made(conditions=holds("Complete")), SUCCEEDED, id="complete"),
        pytest.param(made(conditions=holds("SuccessCriteriaMet")), SUCCEEDED, id="about to be complete"),
        pytest.param(made(conditions=holds("Failed")), FAILED, id="failed"),
        pytest.param(made(conditions=holds("FailureTarget")), FAILED, id="about to have failed"),
        pytest.param(made(spec={"completions": 4}, active=4, ready=3), PENDING, id="a host of four is missing"),
        pytest.param(made(spec={"completions": 4}, active=4, ready=4), RUNNING, id="all four hosts"),
        pytest.param(made(spec={"completions": 4}, active=1, ready=1, succeeded=3), RUNNING, id="the last of four"),
        pytest.param(made("JobSet"), PENDING, id="a new set"),
        pytest.param(made("JobSet", replicatedJobsStatus=[{"ready": 1}]), RUNNING, id="a set whose hosts are ready"),
        pytest.param(made("JobSet", replicatedJobsStatus=[{"active": 1, "ready": 0}]), PENDING, id="a restarted set"),
        pytest.param(two_slices(1), PENDING, id="one slice of two"),
        pytest.param(two_slices(2), RUNNING, id="both slices"),
        pytest.param(made("JobSet", conditions=holds("Completed")), SUCCEEDED, id="a completed set"),
        pytest.param(made("JobSet", conditions=holds("Failed")), FAILED, id="a failed set"),
        pytest.param(made("LeaderWorkerSet", readyReplicas=1), RUNNING, id="a leader with its workers"),
        pytest.param(made("LeaderWorkerSet"), PENDING, id="a leader without them"),
    ],
)
def test_the_status_follows_what_the_controllers_wrote(found: dict, status: JobStatus) -> None:
    assert object_status.status_of(found) is status


def test_a_condition_that_does_not_hold_says_nothing() -> None:
    found = made(active=1, ready=1, conditions=[{"type": "Failed", "status": "False"}])

    assert object_status.status_of(found) is RUNNING


def test_a_sighting_has_times_in_seconds_and_no_attempt_since_only_the_store_knows_it() -> None:
    found = made(
        startTime="2026-11-21T10:00:05Z",
        completionTime="2026-11-21T10:01:00Z",
        conditions=holds("Complete", lastTransitionTime="2026-11-21T10:01:01Z"),
    )

    seen = object_status.observation(found)

    assert (seen.name, seen.attempt, seen.version) == ("cpu-f-1", None, "7")
    assert seen.started is not None
    assert seen.submitted is not None
    assert seen.ended is not None
    assert (seen.started - seen.submitted, seen.ended - seen.started) == (5.0, 55.0)


def test_a_failed_job_says_in_the_clusters_words_why() -> None:
    found = made(conditions=holds("Failed", reason="DeadlineExceeded", message="Job was active longer than it may"))

    assert object_status.observation(found).reason == "Job was active longer than it may"


def test_a_job_whose_pod_was_killed_is_listed_with_what_explains_it_and_not_with_a_rule_of_its_manifest() -> None:
    said = (
        "Container kinetic-worker for pod ns/kinetic-x-abcde failed with exit code 137 matching FailJob rule at index 1"
    )
    found = made(conditions=holds("Failed", reason="PodFailurePolicy", message=said))

    assert object_status.observation(found).reason == "it was killed (SIGKILL), and the cluster does not say why"


def test_the_job_inside_a_set_does_not_speak_for_it() -> None:
    part = made(labels={"jobset.sigs.k8s.io/jobset-name": "kinetic-x"}, conditions=holds("Failed"))
    whole = made("JobSet", replicatedJobsStatus=[{"ready": 1}])

    assert object_status.observations([part, whole])["cpu-f-1"].status is RUNNING
    assert object_status.observations([part]) == {}


def test_an_id_that_is_too_long_for_a_label_is_found_in_the_annotation() -> None:
    found = made(job_id="shortened-0a1b2c3d")
    found["metadata"]["annotations"] = {"kinetic/job-id": "x" * 80}

    assert list(object_status.observations([found])) == ["x" * 80]


def test_what_is_not_ours_is_passed_over() -> None:
    assert object_status.observations([{"metadata": {"name": "other"}}]) == {}


def test_what_is_remembered_of_an_object_says_the_same_and_holds_no_manifest() -> None:
    found = made(spec={"completions": 1, "suspend": False, "template": {"spec": {"containers": ["large"]}}}, ready=1)
    found["metadata"]["annotations"] = {"kinetic/job-id": "cpu-f-1", "kinetic/order": "ab"}
    found["metadata"]["managedFields"] = ["large"]

    slim = object_status.reduced(found)

    assert object_status.observation(slim) == object_status.observation(found)
    assert "large" not in str(slim)
