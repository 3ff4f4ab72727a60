"""Jobs that follow jobs on this machine: values, order, failures, and what stays until it was read."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from servers import user_module

import kinetic
from kinetic import JobStatus
from kinetic._inspect import explanation
from kinetic._jobs import locate
from kinetic.errors import DataError, OptionError, OptionTypeError, PredecessorError

STEPS = """
    import dataclasses
    import os
    import time
    import kinetic

    class Noted:
        '''A value that notes in which processes it is unpickled.'''
        def __init__(self, number, notes):
            self.number, self.notes = number, notes

        def __setstate__(self, state):
            self.__dict__.update(state)
            with open(self.notes, "a") as file:
                file.write(f"{os.getpid()} {os.environ.get('KINETIC_JOB_ID', 'client')}\\n")

    @dataclasses.dataclass
    class Pair:
        one: object
        other: object

    @kinetic.run(accelerator="cpu")
    def make(number, until=""):
        while until and not os.path.exists(until):
            time.sleep(0.02)
        if number < 0:
            raise ValueError("it is negative")
        return number

    @kinetic.run(accelerator="cpu")
    def note(number, notes):
        return Noted(number, notes)

    @kinetic.run(accelerator="cpu")
    def read(noted):
        return noted.number

    @kinetic.run(accelerator="cpu")
    def add(*values):
        return sum(values)

    @kinetic.run(accelerator="cpu")
    def add_all(*lists):
        return sum(map(sum, lists))

    @kinetic.run(accelerator="cpu")
    def add_at_second_try(one, other, tried, until):
        if not os.path.exists(f"{tried}{other}"):
            open(f"{tried}{other}", "w").close()
            raise ValueError("it is the first")
        while not os.path.exists(until):
            time.sleep(0.02)
        return one + other

    @kinetic.run(accelerator="cpu")
    def write(until):
        for name in ("early", "late"):
            with open(os.path.join(kinetic.output_dir(), name), "w") as file:
                file.write(name)
            while not os.path.exists(until):
                time.sleep(0.02)

    @kinetic.run(accelerator="cpu")
    def names(folder):
        return sorted(set(os.listdir(folder)) & {"early", "late"})

    @kinetic.run(accelerator="cpu")
    def within(found):
        return [found["list"][1], found["pair"].other, found["list"][1] is found["again"]]
"""


@pytest.fixture
def steps(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return user_module.imported(tmp_path, STEPS, monkeypatch)


@pytest.fixture
def until(tmp_path: Path) -> Path:
    return tmp_path / "until"


def test_a_function_gets_values_in_the_place_of_handles_and_the_client_never_opens_them(steps, tmp_path, until):
    notes = tmp_path / "notes"
    noted = steps.note.run_async(7, str(notes))
    held = steps.make.run_async(3, str(until))

    read = steps.read.run_async(noted)
    found = steps.within.run_async({"list": [0, held], "pair": steps.Pair(held, noted), "again": held})
    until.touch()

    assert read.result() == 7
    assert held.job_id in found.after
    [three, pair, is_same] = found.result(cleanup=False)
    assert (three, is_same) == (3, True)
    assert {line.split()[1] for line in notes.read_text().splitlines()[:2]} == {read.job_id, found.job_id}
    assert pair.number == 7


def test_a_function_that_runs_in_this_process_or_inside_a_job_gets_values_in_the_place_of_handles(project):
    project.write("steps.py", STEPS)
    out = project.out("""
        import kinetic, steps

        @kinetic.run(accelerator="cpu")
        def outer():
            return steps.within(arguments())

        def arguments():
            held, batch = steps.add.run_async(1, 5), steps.add.run_async_map([(1, 2), (3, 4)])
            return {"list": [0, held], "pair": steps.Pair(held, batch), "again": held}

        job = steps.make.run_async(7)
        print([steps.within.local(arguments()), outer(), steps.add.local(1, *[job] * 2), job.status().value])
        try:
            steps.add.local(steps.make.run_async(-1), 1)
        except ValueError as error:
            print(error)
    """)

    assert out.splitlines()[-2:] == ["[[6, [3, 7], True], [6, [3, 7], True], 15, 'SUCCEEDED']", "it is negative"]


def test_a_chain_goes_on_without_the_process_that_submitted_it(home, project, until):
    project.write("steps.py", STEPS)
    submitted = project.out(
        """
        import os, sys, kinetic, steps
        first = steps.make.run_async(1, sys.argv[1])
        second = steps.add.run_async(kinetic.attach(first.job_id), 10)
        third = steps.add.run_async(second, first)
        print(third.job_id, flush=True)
        os._exit(9) if "die" in sys.argv else None
        """,
        str(until),
    ).split()[-1]

    waiting = kinetic.attach(submitted)
    before = waiting.status(), explanation.observe_and_explain(waiting)[1].what
    until.touch()

    assert before[0] is JobStatus.PENDING
    assert before[1].startswith("waits for cpu-add-")
    assert waiting.result(timeout=30) == 12


def test_a_batch_hands_over_its_results_in_order_and_follows_what_its_inputs_name(steps):
    first = steps.make.run_async(5)
    batch = steps.add.run_async_map([(first, 1), (first, 2), (first, 3)], max_concurrent=2)

    total = steps.within.run_async({"list": [0, batch], "pair": steps.Pair(0, 0), "again": batch})
    after_batch = steps.make.with_options(after=batch).run_async(4)

    assert total.result() == [[6, 7, 8], 0, True]
    assert after_batch.result() == 4
    assert batch.results() == [6, 7, 8]
    assert first.result() == 5


@pytest.mark.parametrize("how", ["failed", "was cancelled"])
def test_a_job_is_closed_with_the_reason_and_so_are_those_that_follow_it(steps, until, how):
    first = steps.make.run_async(-1, str(until))
    second = steps.add.run_async(first, 1)
    third = steps.make.with_options(after=[second]).run_async(3)

    if how == "failed":
        until.touch()
    else:
        first.cancel()

    with pytest.raises(PredecessorError, match=rf"{first.job_id} \(make\) {how}") as closed:
        second.result(timeout=30)
    with pytest.raises(PredecessorError, match=rf"{second.job_id} \(add\) failed"):
        third.result(timeout=30)
    assert closed.value.code == "predecessor"
    assert how != "failed" or "it is negative" in str(closed.value.why)
    assert second.status() is JobStatus.FAILED
    with pytest.raises(PredecessorError, match="failed") as refused:
        steps.add.run_async(second)
    assert refused.value.__notes__ == ["Nothing was submitted."]
    assert len(kinetic.list_jobs()) == (3 if how == "failed" else 2)


def test_a_batch_of_which_an_input_fails_for_good_closes_what_follows_it(steps):
    batch = steps.make.run_async_map([1, -1], retries=1)

    with pytest.raises(PredecessorError, match=rf"batch {batch.group_id} \(make\) failed") as closed:
        steps.add.run_async(batch).result(timeout=30)

    assert closed.value.why == "its input 1 failed"


def test_a_waiting_job_is_cancelled_and_nothing_of_it_runs(steps, until):
    first = steps.make.run_async(1, str(until))
    second = steps.add.run_async(first)

    second.cancel()
    until.touch()

    assert first.result() == 1  # nobody reads it any more, so it is removed
    assert first.status() is JobStatus.NOT_FOUND
    assert second.history()["status"] == "CANCELLED"
    assert locate.local().queue.rows() == []


def test_a_collected_job_stays_until_its_value_was_read_and_then_goes_with_its_reader(steps, until, capfd):
    first = steps.make.run_async(1)
    held = steps.make.run_async(2, str(until))
    second, other = steps.add.run_async(first, held), steps.add.run_async(held, first)
    third = steps.make.with_options(after=first).run_async(3)

    value, kept = first.result(), first.status()
    until.touch()

    assert (value, kept) == (1, JobStatus.SUCCEEDED)
    readers = ", ".join(sorted([second.job_id, other.job_id]))
    assert f"{first.job_id} is kept until {readers} have read its value" in capfd.readouterr().err
    assert (second.result(), other.result(), third.result()) == (3, 3, 3)
    assert kinetic.attach(first.job_id).status() is JobStatus.NOT_FOUND
    assert kinetic.attach(first.job_id).history()["status"] == "SUCCEEDED"


def test_a_collected_job_goes_with_a_reader_that_failed_and_is_cleaned_up(steps, until):
    first = steps.make.run_async(1)
    held = steps.make.run_async(2, str(until))
    second = steps.add.run_async(first, held, "not a number")
    first.result()
    until.touch()
    with pytest.raises(TypeError):
        second.result()

    second.cleanup()

    assert kinetic.attach(first.job_id).status() is JobStatus.NOT_FOUND
    assert held.result() == 2


def test_a_collected_job_stays_for_the_retries_of_a_batch_and_goes_with_it(steps, tmp_path, until, wait_until, capfd):
    first = steps.make.run_async(1)
    batch = steps.add_at_second_try.run_async_map(
        [(first, number, str(tmp_path / "tried"), str(until)) for number in range(3)], retries=1
    )
    wait_until(lambda: [*batch.summary()] == ["running", "waiting"] and len(batch._tracker.ended) == 3)

    value, kept = first.result(), first.status()
    until.touch()

    assert (value, kept) == (1, JobStatus.SUCCEEDED)
    assert f"{first.job_id} is kept until {batch.group_id} has read its value" in capfd.readouterr().err
    assert batch.results() == [1, 2, 3]
    assert kinetic.attach(first.job_id).status() is JobStatus.NOT_FOUND


def test_a_collected_batch_goes_with_the_job_that_read_it_and_no_child_that_was_not_collected(steps, until, capfd):
    held = steps.make.run_async(0, str(until))
    batch, other = (steps.make.run_async_map([(1,), (2,)], max_concurrent=None) for _ in range(2))
    reader = steps.add_all.with_options(after=held).run_async(batch, other)

    values, first = batch.results(), other.jobs[0].result()
    until.touch()

    assert (values, first) == ([1, 2], 1)
    assert f"{batch.group_id} is kept until {reader.job_id} has read its value" in capfd.readouterr().err
    assert reader.result() == 6
    gone = [kinetic.attach(job.job_id).status() for job in (*batch.jobs, *other.jobs)]
    assert gone == [JobStatus.NOT_FOUND] * 3 + [JobStatus.SUCCEEDED]
    assert (other.jobs[1].result(), held.result()) == (2, 0)


def test_a_collected_job_goes_at_once_where_the_batch_that_read_it_was_cancelled_or_lacks_inputs(steps, until):
    first, second = steps.make.run_async(1), steps.make.run_async(2)
    held = steps.make.run_async(3, str(until))
    cancelled = steps.add.run_async_map([(first, held), (first, held)], max_concurrent=1)
    refused = steps.add.run_async_map([(second,), (second, threading.Lock())], max_concurrent=1)
    cancelled.cancel()
    refused.wait()
    assert [*refused.submission_failures] == [1]

    assert (first.result(), second.result()) == (1, 2)
    assert [kinetic.attach(job.job_id).status() for job in (first, second)] == [JobStatus.NOT_FOUND] * 2
    until.touch()
    assert held.result() == 3


def test_the_value_of_a_collected_job_is_refused_at_the_submission_and_its_order_is_not(steps):
    first = steps.make.run_async(1)
    first.result()

    with pytest.raises(PredecessorError, match="no longer stored") as gone:
        steps.add.run_async(first)
    second = steps.make.with_options(after=first).run_async(2)

    assert gone.value.code == "predecessor-collected"
    assert second.result() == 2


def test_of_a_collected_job_nothing_is_kept_for_the_jobs_and_batches_that_only_follow_it(steps):
    first, waits = steps.make.run_async(1), steps.make.run_async(2)
    first.result()

    follows = steps.make.with_options(after=[first, waits])
    second, batch = follows.run_async(3), follows.run_async_map([4])

    assert list(locate.store_of(first).entries(f"{first.job_id}/")) == []
    assert [second.result(), *batch.results(), waits.result()] == [3, 4, 2]


def test_a_value_that_was_changed_in_the_store_is_not_opened(steps, tmp_path, until):
    notes = tmp_path / "notes"
    noted, held = steps.note.run_async(7, str(notes)), steps.make.run_async(1, str(until))
    read = steps.read.with_options(after=held).run_async(noted)
    noted.wait()
    [stored] = (tmp_path / "home" / "store").glob(f"{noted.job_id}/result.pkl")
    data = stored.read_bytes()

    stored.chmod(0o600)
    stored.write_bytes(data[:4] + bytes([data[4] ^ 1]) + data[5:])
    until.touch()

    with pytest.raises(kinetic.errors.KineticError, match="not what it wrote"):
        read.result(timeout=30)
    assert not notes.exists()


def test_what_cannot_be_followed_is_refused_before_anything_is_submitted(steps, tmp_path, monkeypatch):
    first = steps.make.run_async(1)
    first.wait()

    with pytest.raises(OptionTypeError, match=r"after=.cpu-make-.* names no jobs") as text:
        steps.make.with_options(after=first.job_id)
    monkeypatch.setenv("KINETIC_STORE", f"file://{tmp_path}/other")
    with pytest.raises(OptionError, match="cannot follow") as elsewhere:
        steps.add.run_async(first)

    assert text.value.why == f"{first.job_id!r} is of type str, and not the handle of a job or batch"
    assert text.value.next == f'after=[kinetic.attach("{first.job_id}")]'
    assert elsewhere.value.code == "after-elsewhere"
    assert "other" in str(elsewhere.value.why)


def test_a_pool_of_one_slot_runs_a_chain_in_its_order(steps, monkeypatch, until):
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    first = steps.make.run_async(1, str(until))
    second = steps.add.run_async(first, 1)
    other = steps.make.run_async(9)

    until.touch()

    assert second.result() == 2
    assert other.result() == 9


def test_the_command_line_submits_lists_and_explains_a_chain(home, project, until):
    project.write("steps.py", STEPS)
    submit = f"""
import kinetic, steps
job = steps.make.run_async(1, {str(until)!r})
next(event for event in kinetic.attach(job.job_id).events() if event.status is kinetic.JobStatus.RUNNING)
print(job.job_id)
"""
    first = project.run("-c", submit).stdout.strip()

    def kinetic_(*words: str) -> str:
        done = project.kinetic(*words)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    second = kinetic_("run", "-d", "--after", first, "--", "python", "-c", "print('second')").split()[-1]
    listed = {job["job_id"]: job for job in json.loads(kinetic_("jobs", "list", "--json"))["jobs"]}
    explained = kinetic_("jobs", "explain", second)
    until.touch()
    kinetic_("jobs", "wait", second)

    assert (listed[second]["after"], listed[second]["reason"]) == ([first], f"waits for {first}")
    assert f"waits for {first}" in explained
    assert f"{first} runs" in explained
    assert kinetic_("jobs", "logs", second) == "second\n"


def test_cleaning_up_all_keeps_the_values_that_waiting_jobs_need(home, project, steps, until):
    job, batch, unneeded = steps.make.run_async(1), steps.make.run_async_map([2, 3]), steps.make.run_async(6)
    for each in (job, batch, unneeded):
        each.wait()
    slow = steps.make.run_async(4, str(until))
    readers = [steps.add.run_async(job, slow), steps.add.run_async(*batch.jobs, slow)]

    done = project.kinetic("jobs", "cleanup", "--all", "--yes")
    until.touch()

    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == [unneeded.job_id]
    assert "3 jobs kept, as their values are needed by pending jobs" in done.stderr
    assert [reader.result() for reader in readers] == [5, 9]


def test_after_the_newest_job_or_a_name_means_its_whole_sweep(home, project, until):
    def submit(*words: str) -> str:
        done = project.kinetic("run", "-d", *words)
        assert done.returncode == 0, done.stderr
        assert "1 jobs" not in done.stderr
        return str(done.stdout).split()[-1]

    sweep = submit("--name", "grid", "--sweep", "n=1", "--", "python", "-c", "pass")
    report = submit("--after", "@last", "--", "python", "-c", "pass")
    again = submit("--after", "@last", "--", "python", "-c", "pass")
    named = submit("--after", "grid", "--", "python", "-c", "pass")

    assert kinetic.attach(report).after == [sweep]
    assert kinetic.attach(again).after == [report]
    assert kinetic.attach(named).after == [sweep]


def test_what_a_job_still_writes_is_passed_by_its_path_and_refused_as_data(steps, until, wait_until):
    writing = steps.write.run_async(str(until))
    wait_until(lambda: Path(writing.output_dir, "early").exists(), "what it writes first")
    names = steps.names.with_options(after=[writing])

    for submit in (names.run_async, lambda data: names.run_async_map([data])):
        with pytest.raises(DataError, match="which has not ended"):
            submit(kinetic.Data(writing.output_dir))
    reading = names.run_async(writing.output_dir)
    shown = names.run_async(kinetic.Data(writing.output_dir, fuse=True))
    until.touch()

    assert reading.result() == shown.result() == ["early", "late"]
    assert names.run_async(kinetic.Data(writing.output_dir)).result() == ["early", "late"]
