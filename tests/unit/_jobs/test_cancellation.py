"""Cancelling: the verdict comes first, then the processes end, and a canceller that died is followed by the next."""

from __future__ import annotations

import math

import pytest
from servers import user_module

from kinetic import testing
from kinetic._jobs import cancellation, locate
from kinetic._wire import keys
from kinetic.errors import BackendError
from kinetic.job_status import JobStatus

USER = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def ten():
        return 10
"""


@pytest.fixture
def backend(tmp_path):
    with testing.fake_backend(tmp_path) as found:
        found.running_seconds = math.inf
        yield found


@pytest.fixture
def job(backend, tmp_path, monkeypatch):
    made = user_module.imported(tmp_path, USER, monkeypatch).ten.run_async()
    backend.start(made.job_id)
    return made


def outcome_of(job):
    return locate.read_outcome(job)


def test_a_job_has_its_verdict_before_its_processes_are_ended(backend, job, monkeypatch):
    stop, verdicts = backend.stop, []

    def stop_noted(names, *, wait):
        verdicts.append(outcome_of(job))
        return stop(names, wait=wait)

    monkeypatch.setattr(backend, "stop", stop_noted)

    assert cancellation.cancel(job, wait=1)

    assert [verdict.status for verdict in verdicts] == ["cancelled"]
    assert backend.jobs == []
    assert locate.read_page(locate.store_of(job), job.job_id)["status"] == "CANCELLED"
    assert not cancellation.cancel(job, wait=1), "it was cancelled before"


def test_what_a_canceller_that_died_left_running_is_ended_by_the_next(backend, job, monkeypatch):
    def die(names, *, wait):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backend, "stop", die)
        with pytest.raises(KeyboardInterrupt):
            cancellation.cancel(job, wait=1)
    left = backend.jobs

    assert cancellation.cancel(job, wait=1)

    assert (left, backend.jobs) == ([job.job_id], [])


def test_processes_that_do_not_end_are_an_error_and_not_forgotten(backend, job, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(backend, "stop", lambda names, *, wait: False)
        with pytest.raises(BackendError) as caught:
            cancellation.cancel(job, wait=1)

    assert caught.value.code == "still-ending"
    assert "on a node that does not respond" in str(caught.value.why)
    assert f"kinetic jobs cancel {job.job_id}" in str(caught.value.next)
    assert locate.read_page(locate.store_of(job), job.job_id) is None
    assert backend.jobs == [job.job_id]
    assert cancellation.cancel(job, wait=1)


def test_a_job_that_ends_while_it_is_cancelled_keeps_its_value(backend, job, monkeypatch):
    observe = cancellation.observe

    def ends_after_the_look(asked):
        seen = observe(asked)
        backend.finish(job.job_id, 10)
        return seen

    monkeypatch.setattr(cancellation, "observe", ends_after_the_look)

    assert not cancellation.cancel(job, wait=1)

    assert job.status() is JobStatus.SUCCEEDED
    assert locate.store_of(job).size(keys.history(job.job_id)) is None
    assert job.result() == 10
