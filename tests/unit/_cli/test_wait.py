"""`kinetic jobs wait`: the exit code says how the jobs ended, and the lines say it of each."""

from __future__ import annotations

import json

import pytest

from kinetic._cli import job_views as command_jobs
from kinetic._cli import shared_options
from kinetic._jobs import wait as job_wait
from kinetic.errors import JobTimeoutError


def never_ends(*late: str):
    """Stand in for the waiting: these jobs do not end, the others have."""
    real = job_wait.wait

    def stub(handle, *, timeout=None, **more):
        if handle.job_id in late:
            raise JobTimeoutError("not yet")
        return real(handle, timeout=timeout, **more)

    return stub


def test_jobs_that_succeeded_give_exit_code_0_and_a_line_each(kinetic, made_job) -> None:
    first, second = made_job(), made_job()

    told = kinetic("jobs", "wait", first, second)

    assert (told.exit_code, told.stdout) == (0, f"{first}: SUCCEEDED\n{second}: SUCCEEDED\n")
    assert told.stderr == ""


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_one_that_did_not_succeed_gives_exit_code_125_and_its_reason(status, kinetic, made_job) -> None:
    good, bad = made_job(), made_job(status, error={"type": "ValueError", "message": "no"})

    told = kinetic("jobs", "wait", good, bad)

    assert told.exit_code == 125
    assert told.stdout.splitlines()[1] == f"{bad}: {'FAILED' if status == 'failed' else 'NOT_FOUND'}"
    assert told.stderr.startswith("why:   ValueError: no\n" if status == "failed" else "why:   it was cancelled\n")
    assert f"next:  kinetic jobs explain {bad}" in told.stderr


def test_when_the_time_is_over_the_code_is_124_and_those_that_ended_are_told(kinetic, made_job, monkeypatch) -> None:
    late, good = made_job(), made_job()
    monkeypatch.setattr(job_wait, "wait", never_ends(late))

    told = kinetic("jobs", "wait", late, good, "--timeout", "10m")

    assert (told.exit_code, told.stdout) == (124, f"{good}: SUCCEEDED\n")
    assert told.stderr.startswith(f"error: {late} has not ended within 10m [timeout]\n")


def test_a_job_that_is_named_twice_is_told_once(kinetic, made_job) -> None:
    job_id = made_job()

    assert kinetic("jobs", "wait", job_id, job_id[:-1]).stdout == f"{job_id}: SUCCEEDED\n"


def test_as_json_every_job_is_in_one_document(kinetic, made_job) -> None:
    good, bad = made_job(), made_job("failed", error={"type": "ValueError", "message": "no"})

    told = kinetic("jobs", "wait", good, bad, "--json")

    assert told.exit_code == 125
    page = json.loads(told.stdout)
    assert [(job["job_id"], job["status"]) for job in page["jobs"]] == [(good, "SUCCEEDED"), (bad, "FAILED")]


def test_ctrl_c_ends_the_waiting_and_says_that_the_jobs_go_on(kinetic, made_job, monkeypatch) -> None:
    job_id = made_job()

    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(job_wait, "wait", pressed)

    told = kinetic("jobs", "wait", job_id)

    assert told.exit_code == 130
    assert f"not affected: {job_id}" in told.stderr


def test_without_a_job_nothing_is_waited_for(kinetic) -> None:
    assert kinetic("jobs", "wait").exit_code == 2


def test_the_time_is_shared_by_all_jobs(kinetic, made_job, monkeypatch) -> None:
    jobs, given = [made_job(), made_job()], []
    real = job_wait.wait
    clock = iter([100.0, 101.0, 104.0])
    monkeypatch.setattr(command_jobs.time, "monotonic", lambda: next(clock, 104.0))
    monkeypatch.setattr(job_wait, "wait", lambda handle, **more: (given.append(more["timeout"]), real(handle))[1])

    kinetic("jobs", "wait", *jobs, "--timeout", "10")

    assert given == [9.0, 6.0]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("1.5h", 5400), ("10m", 600), ("7d", 604800), ("1w", 604800), ("5s", 5)]
)
def test_spans_of_time_are_read_in_their_units(text, seconds) -> None:
    assert shared_options.Duration(bare=True).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["soon", "-1d", "7 days", "", "1y"])
def test_what_is_no_span_of_time_is_a_mistake_on_the_command_line(text, kinetic) -> None:
    told = kinetic("jobs", "list", "--since", text)

    assert told.exit_code == 2
    assert "is not a valid duration" in told.stderr


def test_a_bare_number_is_refused_where_it_could_mean_anything(kinetic) -> None:
    assert kinetic("jobs", "list", "--since", "7").exit_code == 2


@pytest.mark.parametrize(("seconds", "text"), [(604800, "7d"), (5400, "90m"), (7200, "2h"), (90, "90s"), (0.5, "0.5s")])
def test_a_span_is_written_as_it_can_be_typed_again(seconds, text) -> None:
    assert shared_options.duration_argument(seconds) == text
    assert shared_options.Duration().convert(text, None, None) == seconds
