"""Why a job waits, as whoever waits for it is told: what it waits for, and nothing of a job that runs already."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kinetic._backends.kube import diagnosis
from kinetic._backends.kube.diagnosis import JobState
from kinetic._backends.protocol import SYSTEM, Observation
from kinetic._jobs import locate, pod_requirements, wait
from kinetic._jobs.status import Snapshot
from kinetic._wire import python_runtime
from kinetic.errors import ImageBuildError
from kinetic.job_status import JobStatus

JOB_ID = "cpu-train-20261121-143000-1a2b3c4"
PENDING = Snapshot(JobStatus.PENDING)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[[JobState], tuple[str, str]]:
    """Return a function that asks why a pending job waits, of a cluster that has a finding; always at once."""
    now: list[JobState] = []
    backend = SimpleNamespace(is_here=False, clock=SYSTEM, explain=lambda name: diagnosis.to_diagnosis(now[-1], name))
    monkeypatch.setattr(locate, "backend_of", lambda _: backend)
    monkeypatch.setattr(wait, "_REASON_SECONDS", 0.0)
    reasons = wait._Reasons(SimpleNamespace(job_id=JOB_ID, after=["cpu-b"]))

    def phase(found: JobState) -> tuple[str, str]:
        now.append(found)
        return reasons.phase(PENDING)

    return phase


def test_a_job_whose_pod_runs_is_nothing_to_warn_of_however_late_the_cluster_counts_it(ask, capsys) -> None:
    told = [ask(JobState(JobStatus.RUNNING, pod="pod-a")) for _ in range(3)]

    assert told == [("waiting", "")] * 3
    assert capsys.readouterr().err == ""


def test_what_a_job_waits_for_is_forgotten_once_its_pod_runs(ask) -> None:
    ask(JobState(JobStatus.PENDING, what="the node is creating the container"))

    assert ask(JobState(JobStatus.RUNNING, pod="pod-a")) == ("waiting", "")


def test_what_waiting_alone_does_not_help_is_told_once_with_what_to_do(ask, capsys) -> None:
    found = JobState(JobStatus.PENDING, what="the image x does not exist", why="404", next="check its name", stuck=True)

    told = [ask(found) for _ in range(3)]

    assert told == [("waiting", "")] * 3  # not once more in other words
    assert capsys.readouterr().err.splitlines() == [
        f"kinetic: warning: {JOB_ID}: the image x does not exist",
        "why:   404",
        "next:  check its name",
    ]


def test_what_a_job_waits_for_after_a_warning_is_told_again(ask, capsys) -> None:
    ask(JobState(JobStatus.PENDING, what="the image x does not exist", why="404", next="check its name", stuck=True))

    told = ask(JobState(JobStatus.PENDING, what="the node is pulling the image x"))

    assert told == ("waiting", "the node is pulling the image x")


GONE = JobState(JobStatus.PENDING, "image-missing", "the image x does not exist", "404", "check its name", stuck=True)


def test_an_image_of_a_lock_that_is_gone_is_built_again_once_by_who_waits(ask, capsys, monkeypatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(wait, "lock_key", lambda _: "data/locks/a")
    monkeypatch.setattr(python_runtime, "start_thread", lambda work, _: work())
    monkeypatch.setattr(pod_requirements, "rebuild_image", lambda job: not built.append(job.job_id))

    first, then = ask(GONE), ask(GONE)

    assert first == ("waiting", "its image was removed from the registry, and is built again")
    assert then == ("waiting", "")  # warned of: the cluster may need a minute
    assert built == [JOB_ID]
    assert f"the image of {JOB_ID} was built again; the cluster pulls it" in capsys.readouterr().err


def test_an_image_that_cannot_be_built_again_is_told_with_what_to_do(ask, capsys, monkeypatch) -> None:
    def rebuild(_: object) -> bool:
        raise ImageBuildError("the registry h did not answer")

    monkeypatch.setattr(wait, "lock_key", lambda _: "data/locks/a")
    monkeypatch.setattr(python_runtime, "start_thread", lambda work, _: work())
    monkeypatch.setattr(pod_requirements, "rebuild_image", rebuild)

    ask(GONE)

    assert capsys.readouterr().err.splitlines() == [
        f"kinetic: warning: the image of {JOB_ID} could not be built again",
        "why:   the registry h did not answer",
        f"next:  kinetic jobs explain {JOB_ID}",
    ]


def test_an_image_that_the_user_named_is_not_built_by_anybody(ask, capsys, monkeypatch) -> None:
    monkeypatch.setattr(wait, "lock_key", lambda _: "")

    ask(GONE)

    assert "next:  check its name" in capsys.readouterr().err


def test_that_a_job_of_a_cluster_waits_for_others_is_told_and_is_no_warning_however_long(ask, capsys) -> None:
    found = JobState(JobStatus.PENDING, "follows", "waits for cpu-b", "it is suspended", "kinetic jobs explain cpu-b")

    told = [ask(found) for _ in range(3)]

    assert told == [("waiting for other jobs", "cpu-b")] * 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("waits for grp-0a1b2c3d and cpu-b", ("waiting for other jobs", "grp-0a1b2c3d and cpu-b")),
        ("waits for one of 2 slots; it is next", ("waiting for a slot", "one of 2 slots; it is next")),
        ("waits for its store: gs://b did not answer", ("waiting", "its store: gs://b did not answer")),
        ("waits for its kinetic home, /mnt/home", ("waiting", "its kinetic home, /mnt/home")),
    ],
)
def test_a_job_of_this_machine_waits_for_jobs_for_a_slot_or_for_what_is_out_of_reach(monkeypatch, reason, told) -> None:
    monkeypatch.setattr(locate, "backend_of", lambda _: SimpleNamespace(is_here=True))
    reasons = wait._Reasons(SimpleNamespace(job_id=JOB_ID, after=["grp-0a1b2c3d", "cpu-b"]))

    seen = Observation(JOB_ID, JobStatus.PENDING, reason=reason)

    assert reasons.phase(Snapshot(JobStatus.PENDING, None, seen)) == told
