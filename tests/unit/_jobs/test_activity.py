"""A job that hangs is mentioned once, by times that were recorded; one that prints, computes or reports never is."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from servers.distant import AtOnce

from kinetic._jobs import activity, locate, resource_usage, submit
from kinetic._jobs.status import Snapshot
from kinetic._runner.supervisor.meter import Meter
from kinetic._wire import progress
from kinetic._wire.measurements import PAGE, Measurements
from kinetic._wire.progress import Progress
from kinetic._wire.records import REQUIRED, JobRecord
from kinetic._wire.task import Task
from kinetic.errors import OptionError
from kinetic.job_status import JobStatus

JOB = JobRecord(**dict.fromkeys(REQUIRED, "") | {"job_id": "cpu-f-1"})


def measured(seconds: float, active: float, **more: Any) -> Measurements:
    return Measurements("cpu-f-1", 0, 0, 1000.0, "processes", 1.0, 0, 0, seconds=seconds, active=active, **more)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Here:
    is_here = True

    def __init__(self) -> None:
        self.clock = Clock()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the backend of a job, and a function that sets what was measured of it."""
    backend, pages = Here(), list[Measurements]()
    monkeypatch.setattr(activity.locate, "backend_of", lambda _: backend)
    monkeypatch.setattr(activity.locate, "can_be_seen", lambda _: True)
    monkeypatch.setattr(resource_usage, "measurements_of", lambda _, **__: (0, list(pages)))
    backend.pages = pages  # type: ignore[attr-defined]
    return backend


RUNNING = Snapshot(JobStatus.RUNNING)


def follow(job: Any, watch: activity.StallWatch, seconds: float) -> None:
    for _ in range(int(seconds // 5)):
        job.clock.now += 5
        watch.look(RUNNING)


def test_a_job_that_does_nothing_for_ten_minutes_is_mentioned_once_with_the_command_for_its_stacks(
    job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = activity.StallWatch(JOB, {})
    job.pages[:] = [measured(700, 1101.0)]  # 599 s
    follow(job, watch, 60)
    assert capsys.readouterr().err == ""

    job.pages[:] = [measured(700, 1100.0)]
    follow(job, watch, 600)

    assert capsys.readouterr().err.splitlines() == [
        "kinetic: warning: cpu-f-1: no output, no CPU and no progress for 10 min 00 s",
        "next:  kinetic jobs stacks cpu-f-1",
    ]


def test_one_busy_host_is_enough(job: Any) -> None:
    job.pages[:] = [measured(5000, 1001.0), measured(5000, 5990.0)]

    assert activity.stall_of(JOB, {}) == ""


@pytest.mark.parametrize(
    ("setting", "stalls"), [("", True), ("5m", True), ("3600", False), ("0", False), ("2h", False)]
)
def test_the_time_is_a_setting_and_zero_is_never(job: Any, setting: str, stalls: bool) -> None:
    job.pages[:] = [measured(2000, 1001.0)]

    assert bool(activity.stall_of(JOB, {"KINETIC_STALL_AFTER": setting})) is stalls


def test_another_word_in_the_setting_is_an_error_in_three_parts(job: Any) -> None:
    with pytest.raises(OptionError, match="KINETIC_STALL_AFTER='soon' is not a valid duration") as raised:
        activity.stall_of(JOB, {"KINETIC_STALL_AFTER": "soon"})
    assert raised.value.next


def test_who_follows_a_job_is_warned_once_of_a_setting_that_is_not_a_duration(job: Any, capsys: Any) -> None:
    watch = activity.StallWatch(JOB, {"KINETIC_STALL_AFTER": "soon"})

    follow(job, watch, 60)

    assert capsys.readouterr().err.count("KINETIC_STALL_AFTER='soon' is not a valid duration") == 1


@pytest.mark.parametrize("variable", ["KINETIC_STALL_AFTER", "KINETIC_LOG_LEVEL"])
def test_a_submission_finds_a_setting_of_messages_that_is_wrong(variable: str) -> None:
    found = submit._wrong_variable({variable: "foo"})

    assert found is not None
    assert f"{variable}='foo' is not a" in found.what
    assert submit._wrong_variable({"KINETIC_STALL_AFTER": "30m", "KINETIC_LOG_LEVEL": "warning"}) is None


def test_a_job_of_which_nothing_is_known_does_not_hang(job: Any) -> None:
    assert activity.stall_of(JOB, {}) == ""
    job.pages[:] = [measured(9999, 0.0)]  # an earlier version of kinetic measured it
    assert activity.stall_of(JOB, {}) == ""


# --------------------------------------------------------------------------------- what the supervisor writes down


@pytest.fixture
def task(tmp_path: Any) -> Task:
    return Task("cpu-f-1", "0" * 64, "file:///x", "k", 0o22, None, {}, base=str(tmp_path))


@pytest.mark.parametrize("does", ["print", "compute", "report", "nothing"])
def test_who_prints_computes_or_reports_is_active(does: str, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import time

    clock, cpu = Clock(), [0.0]
    start = time.time()
    monkeypatch.setattr(time, "time", lambda: start + clock.now)
    meter = Meter(task, 0.0, list, lambda: cpu[0], clock=clock.monotonic)
    task.log.write_text("begin")
    os.utime(task.log, (start, start))
    for _ in range(240):
        clock.now += 5
        cpu[0] += 0.001  # an idle interpreter wakes now and then
        if does == "compute":
            cpu[0] += 1.0
        elif does == "print":
            os.utime(task.log, (start + clock.now, start + clock.now))
        elif does == "report":
            monkeypatch.setenv(progress.VARIABLE, str(task.progress))
            writer = progress._Writer()
            writer.report(str(task.progress), clock.now, None, {})
        found = meter.measure()

    assert found.idle_seconds == pytest.approx(1200.0 if does == "nothing" else 0.0, abs=6)
    assert (found.progress is not None) is (does == "report")
    again = PAGE.build(found.to_json(), "the usage")
    assert (again.progress, again.active) == (found.progress, found.active)


def test_progress_is_told_in_a_sentence() -> None:
    found = Progress(40, 100, {"loss": 0.31234567, "bad": None, "\x1b[2J": 1}, at=60.0, began=0.0, began_with=0)

    assert activity.progress_text(found, 60.0) == (
        "40 of 100, loss 0.3123, bad not finite, \\x1b[2J 1, about 1 min 30 s left"
    )
    assert activity.progress_text(Progress(7.5)) == "7.5"


def test_the_time_of_a_report_is_written_like_all_times_in_json() -> None:
    page = activity.progress_page(Progress(40, 100, at=1.8e9), 1.8e9)

    assert page is not None
    assert page["reported_at"] == "2027-01-15T08:00:00Z"


def test_each_job_of_a_list_has_its_own_progress_whoever_answers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    later = threading.Event()

    def ask(job: JobRecord) -> Progress:
        if job.job_id == "cpu-f-1":
            later.wait(10)
        else:
            later.set()
        return Progress(float(job.job_id[-1]))

    monkeypatch.setattr(activity, "progress_of", ask)
    jobs = [JobRecord(**dict.fromkeys(REQUIRED, "") | {"job_id": f"cpu-f-{n}", "backend": "gke"}) for n in (1, 2)]

    found = activity.progress_of_many(jobs)

    assert {job_id: each.done for job_id, each in found.items()} == {"cpu-f-1": 1.0, "cpu-f-2": 2.0}


def test_a_list_of_slices_reads_the_pages_of_their_hosts_with_at_most_64_requests_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = AtOnce()

    def read() -> None:
        with requests:
            time.sleep(0.01)

    def ask(_: JobRecord) -> Progress:
        locate.in_order([("gs://far/away", read)] * 16)
        return Progress(1.0)

    monkeypatch.setattr(activity, "progress_of", ask)
    about = dict.fromkeys(REQUIRED, "") | {"backend": "gke", "store": "gs://far/away"}
    jobs = [JobRecord(**about | {"job_id": f"tpu-f-{number}"}) for number in range(20)]

    assert len(activity.progress_of_many(jobs)) == 20
    assert requests.most <= 64
