"""What every backend promises, tried on each of them: the fake one, this machine, and a cluster.

A new backend is done when it passes. Here it is asked directly; what becomes of a call, its value and its log is asked
of users' code in tests/flows.
"""

from __future__ import annotations

import asyncio
import os

import pytest
from cluster.fixtures import add_node, agent, namespace, plane, why_not
from contracts.backends import Place
from flows.conftest import end_supervisors, share_runner
from flows.kube.conftest import _points_here, _why_not, bucket, machine, shared

from kinetic import JobStatus, testing
from kinetic._backends import registry
from kinetic._config.home import runtime_folder
from kinetic._hardware import place as placed
from kinetic._jobs import locate, logs
from kinetic.errors import CommandError, JobTimeoutError, PredecessorError

__all__ = ["add_node", "agent", "bucket", "machine", "namespace", "plane", "shared", "why_not"]

UNKNOWN = "cpu-nobody-20261122-120000-0000000"
GROUP = "grp-0000abcd"
# The server starts with whichever test is first, and costs every process of a run 10 seconds: not in `make test`.
KUBE = pytest.param("kube", marks=[pytest.mark.timeout(180), pytest.mark.real_node, pytest.mark.whole])
LOCAL = pytest.param("local", marks=pytest.mark.timeout(60))


@pytest.fixture(params=["fake", LOCAL, KUBE])
def place(request, tmp_path, tmp_path_factory, monkeypatch):
    """A backend of each kind."""
    for name in [*os.environ]:
        if name.startswith("KINETIC_") or name == "GOOGLE_CLOUD_PROJECT":
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    if request.param == "fake":
        with testing.fake_backend(tmp_path) as backend:
            yield Place(tmp_path, monkeypatch, backend)
    elif request.param == "local":
        monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "2")
        share_runner(runtime_folder(os.environ), tmp_path_factory)
        yield Place(tmp_path, monkeypatch)
        end_supervisors(tmp_path / "home")
    else:
        if reason := _why_not():
            pytest.skip(reason)
        folder = request.getfixturevalue("shared")
        for name, value in _points_here(request, monkeypatch).items():
            monkeypatch.setenv(name, value)
        request.getfixturevalue("machine")
        yield Place(folder, monkeypatch)


# ------------------------------------------------------------------------------------------------------------- launcher


def test_a_job_is_seen_from_its_launch_until_it_is_removed(place):
    job = place.submit()

    launched = place.status(job)
    place.wait_for_end(job)
    place.backend.remove([job.job_id])

    assert launched is not None
    place.wait(job, lambda: place.backend.observe([job.job_id]) == {})  # a cluster deletes in the background
    place.wait(job, lambda: job.job_id not in {seen.name for seen in place.backend.find()})
    assert job.result() == 3  # the store has it; the backend need not


def test_a_job_that_was_launched_already_is_launched_once_more_without_harm(place):
    first = place.submit_long()
    launches = place.spy()
    job = place.submit_long()

    [launch] = launches
    answer = place.backend.launch([launch])

    assert answer == [job.job_id]
    assert sorted(seen.name for seen in place.backend.find()) == sorted([first.job_id, job.job_id])
    place.release(first)
    place.release(job)
    assert job.result(timeout=60) == "gone"


def test_a_running_job_is_stopped_and_known_to_be_gone(place):
    job = place.submit_long()
    place.wait_for_start(job)

    gone = place.backend.stop([job.job_id], wait=30)

    assert gone
    assert place.status(job) is None or place.status(job).is_final


def test_what_is_not_there_is_stopped_and_removed_without_complaint(place):
    place.submit()

    gone = place.backend.stop([UNKNOWN], wait=1)
    place.backend.remove([UNKNOWN])

    assert gone


def test_what_follows_the_removal_of_a_job_is_done_whether_or_not_its_caller_waits(place):
    job = place.submit()
    place.wait_for_end(job)
    done = []

    place.backend.remove([job.job_id], then=lambda: done.append(job.job_id))

    place.wait(job, lambda: done == [job.job_id])
    place.wait(job, lambda: place.backend.observe([job.job_id]) == {})


def test_a_job_has_one_name_and_it_has_the_jobs_id_in_it(place):
    job = place.submit()

    assert place.backend.name_of(job.job_id, 1) == place.backend.name_of(job.job_id, 1) == job.k8s_name
    assert job.job_id in job.k8s_name


def test_a_plain_job_passes_the_check_and_notes_are_sentences(place):
    place.submit()

    notes = place.backend.check(placed("cpu"))

    assert all(isinstance(note, str) and note for note in notes)


# ------------------------------------------------------------------------------------------------------------- observer


def test_a_backend_is_what_the_registry_says_of_it(place):
    job = place.submit()

    entry = registry.find(job.backend)

    assert (place.backend.name, place.backend.is_here) == (entry.name, entry.is_here)
    assert place.backend.namespace == job.namespace
    assert place.backend.poll_seconds > 0
    assert place.backend.clock.monotonic() <= place.backend.clock.monotonic()


def test_jobs_are_observed_many_at_once_and_what_is_not_there_is_left_out(place):
    jobs = [place.submit() for _ in range(2)]
    ids = [job.job_id for job in jobs]

    seen = place.backend.observe([*ids, UNKNOWN])

    assert set(seen) == set(ids)
    assert all(name == each.name for name, each in seen.items())
    assert place.backend.observe([]) == {}


def test_a_job_runs_and_then_its_end_is_seen(place):
    job = place.submit_long()

    place.wait_for_start(job)
    place.release(job)
    place.wait_for_end(job)

    assert place.status(job) in {JobStatus.SUCCEEDED, None}
    assert job.result() == "gone"


def test_a_job_that_failed_is_final(place):
    job = place.submit("fail")

    place.wait_for_end(job)

    assert place.status(job) in {JobStatus.FAILED, JobStatus.SUCCEEDED, None}  # a pod that told its failure is done
    assert job.status() is JobStatus.FAILED


def test_an_exception_comes_with_what_it_was_raised_from(place):
    job = place.submit("fail_from", "x")
    place.wait_for_end(job)

    error = job.exception()

    assert (type(error), error.args) == (ValueError, ("no",))
    assert isinstance(error.__cause__, FileNotFoundError)
    assert repr(error.__cause__.__cause__) == "KeyError('x')"
    assert error.__cause__.__cause__.__cause__ is None


def test_a_command_is_a_job_and_its_exit_code_is_the_result(place):
    good = place.submit_command("sh", "-c", "echo from the command; echo to stderr >&2")
    python = place.submit_command("python", "-c", "import kinetic, sys; print('python'); sys.exit(3)")

    assert good.result(cleanup=False) == 0
    assert good.logs().splitlines() == ["from the command", "to stderr"]
    assert good.command == ["sh", "-c", "echo from the command; echo to stderr >&2"]
    with pytest.raises(CommandError, match="ended with exit code 3") as caught:
        python.result()
    assert caught.value.exit_code == 3
    assert python.status() is JobStatus.FAILED


def test_jobs_are_awaited_and_an_await_that_is_given_up_leaves_its_job_alone(place):
    async def program():
        value = await place.submit()
        long = place.submit_long()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(long, 0.2)
        place.wait_for_start(long)
        place.release(long)
        return value, await long

    assert asyncio.run(program()) == (3, "gone")


def test_a_watch_ends_with_its_time_when_nothing_happens(place):
    job = place.submit_long()
    place.wait_for_start(job)
    clock = place.backend.clock
    place.backend.watch(job.job_id, seconds=0.1)  # the first one may tell at once

    begun = clock.monotonic()
    place.backend.watch(job.job_id, seconds=0.3)
    took = clock.monotonic() - begun
    place.backend.stop_watching(job.job_id)
    place.backend.stop_watching(job.job_id)
    place.release(job)

    assert took < 10


def test_every_job_is_found(place):
    jobs = [place.submit(), place.submit()]

    assert {job.job_id for job in jobs} <= {seen.name for seen in place.backend.find()}


def test_a_job_is_explained_in_a_sentence_and_a_strange_one_is_not(place):
    job = place.submit_long()
    place.wait_for_start(job)

    found = place.backend.explain(job.job_id)
    place.release(job)

    assert found is not None
    assert job.job_id in found.what
    assert not found.what.endswith(".")
    assert place.backend.explain(UNKNOWN) is None


def test_a_batch_is_observed_as_one_and_those_that_ended_are_left_out(place):
    place.submit()
    batch = place.submit_batch(2)

    assert batch.results() == [0, 2]
    place.backend.watch_group(batch.group_id, seconds=0.1)
    assert place.backend.observe_group(batch.group_id) == {}


# ------------------------------------------------------------------------------------------------------------ followers


def test_a_job_starts_once_what_it_follows_has_succeeded_and_gets_its_value(place):
    first = place.submit_long()
    second = place.submit("join", first, "!")

    before, diagnosis = place.status(second), place.backend.explain(second.job_id)
    place.release(first)
    second.wait(timeout=60)

    assert before is JobStatus.PENDING
    assert f"waits for {first.job_id}" in diagnosis.what
    assert second.result() == "gone!"
    assert second.after == [first.job_id]


def test_a_job_is_closed_when_what_it_follows_has_failed_or_was_cancelled(place):
    held = place.submit_long()
    failed = place.submit("fail_later", held)
    after_failed = place.submit("join", failed, "!")
    after_both = place.submit("join", after_failed, held)

    place.release(held)
    after_both.wait(timeout=60)

    with pytest.raises(PredecessorError, match=rf"{failed.job_id} \(fail_later\) failed") as closed:
        after_failed.result()
    with pytest.raises(PredecessorError, match=rf"{after_failed.job_id} \(join\) failed"):
        after_both.result()
    assert "ValueError: gone" in closed.value.why
    assert held.result() == "gone"


def test_a_waiting_job_is_cancelled_like_any_other(place):
    first = place.submit_long()
    second = place.submit("join", first, "!")

    second.cancel()
    place.release(first)
    place.wait_for_end(first)

    assert place.status(second) is None
    assert second.history()["status"] == "CANCELLED"
    assert first.result() == "gone"


# ------------------------------------------------------------------------------------------------------------ inspector


def test_a_log_is_read_by_position_from_the_backend_or_once_it_let_go_of_it_from_the_store(place):
    job = place.submit("add", 3, 4)
    place.wait_for_end(job)

    log = logs.open_log(place.backend, locate.store_of(job), job.job_id, attempt=0, host=0)

    expected = b"adding 3 and 4\n"
    assert log is not None
    assert log.read(0, log.size()).count(expected) == 1
    at = log.read(0, log.size()).index(expected)
    assert log.read(at + 7, 5) == b"3 and"
    assert log.read(log.size(), 10) == b""


def test_changes_of_a_job_and_lines_of_its_log_come_one_by_one_until_it_has_ended(place):
    job = place.submit_long()
    lines, first = job.log_lines(follow=True), ""
    seen = []
    for event in job.events(timeout=120):
        seen.append(event.status)
        if event.status is JobStatus.RUNNING:
            assert event.attempt == 0
            if not isinstance(place.backend, testing.FakeBackend):  # it runs a job when it is released
                first = next(lines)
            place.release(job)

    rest = list(lines)

    assert seen in (
        [JobStatus.RUNNING, JobStatus.SUCCEEDED],
        [JobStatus.PENDING, JobStatus.RUNNING, JobStatus.SUCCEEDED],
    )
    assert [first, *rest].count("here") == 1
    assert list(job.log_lines()) == [*([first] if first else []), *rest]
    assert job.result() == "gone"
    assert [event.status for event in job.events()] == [JobStatus.NOT_FOUND]
    assert list(job.log_lines(follow=True)) == list(job.log_lines())


def test_waiting_for_changes_ends_with_its_time_and_leaves_the_job_alone(place):
    job = place.submit_long()
    place.wait_for_start(job)

    with pytest.raises(JobTimeoutError, match="has not ended within"):
        list(job.events(timeout=0.2))

    assert job.running()
    place.release(job)
    assert job.result() == "gone"


def test_what_a_job_uses_is_told_while_it_runs_and_afterwards_or_nothing_where_nothing_can_be_measured(place):
    job = place.submit_long()
    place.wait_for_start(job)
    measures = not isinstance(place.backend, testing.FakeBackend)
    if measures:
        place.wait(job, lambda: job.usage().hosts)
    while_it_ran = job.usage()
    place.release(job)
    job.wait()

    ended = job.usage()

    assert ended.attempt == 0
    assert [host.host for host in ended.hosts] == ([0] if measures else [])
    if measures:
        assert while_it_ran.hosts[0].samples == ended.hosts[0].samples[: len(while_it_ran.hosts[0].samples)]
        assert ended.peak.memory_bytes > 1 << 20


def test_nothing_was_used_by_a_job_that_is_not_there_or_took_no_time(place):
    job = place.submit()
    place.wait_for_end(job)

    assert place.backend.live_usage(UNKNOWN, host=0, attempt=0) is None
    assert place.backend.live_progress(UNKNOWN, host=0, attempt=0) is None
    assert job.usage().hosts == ()


def test_a_job_that_is_not_there_has_no_log(place):
    place.submit()

    assert place.backend.live_log(UNKNOWN, host=0, attempt=0) is None
    assert place.backend.last_log(UNKNOWN, host=0, attempt=0) is None


def test_each_host_that_is_asked_for_its_stacks_answers_or_says_why_not(place):
    job = place.submit_long()
    place.wait_for_start(job)

    (found,) = place.backend.stacks(job.job_id, hosts=[0])
    place.release(job)

    assert found.host == 0
    assert bool(found.text) != bool(found.why)


def test_a_job_that_does_not_run_has_no_ports_and_one_that_runs_may_have(place):
    job = place.submit_long()
    place.wait_for_start(job)

    found = place.backend.port_address(job.job_id, 6006, host=0)
    place.release(job)

    assert found is None or found.port == 6006
    assert place.backend.port_address(UNKNOWN, 6006, host=0) is None


# -------------------------------------------------------------------------------------------------------------- secrets


def test_what_is_kept_for_a_batch_is_there_until_it_is_forgotten(place):
    place.submit()
    secrets = {"captured": {"TOKEN": "x"}, "interpreter": "/bin/python", "environ": {}, "addresses": [], "pod": None}

    place.backend.keep(GROUP, secrets, lambda: [b"k" * 32])
    found = place.backend.kept(GROUP)
    place.backend.forget_kept(GROUP)
    place.backend.forget_kept(GROUP)

    assert found is not None
    assert (found["captured"], found["interpreter"]) == ({"TOKEN": "x"}, "/bin/python")
    assert place.backend.kept(GROUP) is None
