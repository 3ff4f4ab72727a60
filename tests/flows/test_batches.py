"""A batch from its first input to its last result, with real processes: what the document of batched jobs promises."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

# -------------------------------------------------------------------------------------------------------------- inputs


def test_inputs_of_the_wrong_kind_are_refused_before_anything_is_sent(batches: Any) -> None:
    found = batches.run(
        """
        def refused(function, *words, **options):
            try:
                function(*words, **options)
            except Exception as error:
                return sorted(kind.__name__ for kind in type(error).__mro__ if kind in (ValueError, TypeError))
        tell([
            refused(run, [1], max_concurrent=0),
            refused(run, [1], max_concurrent=-1),
            refused(run, [1], retries=-1),
            refused(act.run_async_map, [1], input_mode="guess"),
            refused(run, []),
            refused(run, iter(())),
            refused(kinetic.collections.map, print, [1]),
            refused(run, 5),
            refused(run, [1], max_concurrent=2.5),
        ])
        """
    )

    assert found[:6] == [["ValueError"]] * 6
    assert found[6] == ["TypeError"]
    assert all("TypeError" in kinds for kinds in found[7:])
    assert not (batches.store / "_groups").exists()


def test_a_generator_a_method_a_class_method_and_a_function_of_the_script_can_be_mapped(batches: Any) -> None:
    batches.project.write(
        "methods.py",
        """
        import kinetic

        class Scale:
            factor = 3

            def __init__(self, by):
                self.by = by

            @kinetic.run(accelerator="cpu")
            def scaled(self, number):
                return self.by * number

            @classmethod
            @kinetic.run(accelerator="cpu")
            def of_class(cls, number):
                return cls.factor * number
        """,
    )

    found = batches.run(
        """
        from methods import Scale

        @kinetic.run(accelerator="cpu")
        def here(number):
            return number + offset

        offset = 100
        tell([
            double.run_async_map(number for number in range(3)).results(),
            Scale(7).scaled.run_async_map([1, 2]).results(),
            Scale.of_class.run_async_map([1, 2]).results(),
            here.run_async_map([1, 2]).results(),
            kinetic.collections.map(double, [1, 2]).results(),
            kinetic.collections.map(double.run_async, [1, 2]).results(),
            kinetic.collections.map(lambda x: double.run_async(x + 1), [1, 2], retries=1).results(),
        ])
        """
    )

    assert found == [[0, 2, 4], [7, 14], [3, 6], [101, 102], [2, 4], [2, 4], [4, 6]]


def test_data_in_inputs_is_shipped_once_and_becomes_a_path_in_each_job(batches: Any) -> None:
    for number in range(3):
        batches.project.write(f"sets/{number}/part.txt", f"set {number}")
    batches.project.write(
        "reading.py",
        """
        import pathlib
        import kinetic

        LABELS = kinetic.Data("sets/2")

        @kinetic.run(accelerator="cpu")
        def read(folder, number, labels=LABELS):
            texts = [pathlib.Path(path, "part.txt").read_text() for path in (folder, labels)]
            return [*texts, number]
        """,
    )

    found, manifests = batches.run(
        """
        from reading import read
        zero, one, again = kinetic.Data("sets/0"), kinetic.Data("sets/1"), kinetic.Data("sets/0")
        labels = kinetic.Data("sets/2")
        inputs = [(zero, 0, labels), (one, 1, labels), (zero, 2, labels), (again, 3, labels)]
        found = read.run_async_map(inputs).results()
        manifests = [name for _, _, names in os.walk(words[0] + "/data/manifests") for name in names]
        tell([found, len(manifests)])
        """,
        str(batches.store),
    )

    assert found == [["set 0", "set 2", 0], ["set 1", "set 2", 1], ["set 0", "set 2", 2], ["set 0", "set 2", 3]]
    assert manifests == 3


def test_data_of_the_function_and_volumes_and_data_of_inputs_keep_their_places(batches: Any, tmp_path: Any) -> None:
    for number in range(4):
        batches.project.write(f"sets/{number}/part.txt", f"set {number}")

    found = batches.run(
        """
        import pathlib
        zero, one, two, three = [kinetic.Data(f"sets/{number}") for number in range(4)]
        def text(path):
            return pathlib.Path(path, "part.txt").read_text()
        def read(number, mine=None, own=zero):
            return [number, text(own), mine and text(mine["deep"][0]), text(words[0])]
        run_ = kinetic.run(accelerator="cpu", volumes={words[0]: one})(read)
        tell(run_.run_async_map([(0, {"deep": [two]}), (1,), (2, {"deep": [three]}), (3, {"deep": [two]})]).results())
        """,
        str(tmp_path / "volume"),
    )

    assert found == [
        [0, "set 0", "set 2", "set 1"],
        [1, "set 0", None, "set 1"],
        [2, "set 0", "set 3", "set 1"],
        [3, "set 0", "set 2", "set 1"],
    ]


def test_a_batch_takes_no_id_that_another_one_has(batches: Any) -> None:
    found = batches.run(
        """
        from kinetic._wire import keys
        drawn = iter(["grp-00000001", "grp-00000001", "grp-00000001", "grp-00000002"])
        keys.new_group_id = lambda: next(drawn)
        first, second = run([plan(1)]), run([plan(2)])
        tell([first.group_id, second.group_id, first.results(), second.results()])
        """
    )

    assert found == ["grp-00000001", "grp-00000002", [10], [20]]


def test_inputs_that_cannot_be_submitted_are_told_one_by_one_and_harm_no_other(batches: Any) -> None:
    found, said = batches.both(
        """
        import threading
        batch = act.run_async_map([plan(0), threading.Lock(), plan(2), {1, kinetic.Data(".")}], input_mode="single")
        batch.wait()
        errors = batch.submission_failures
        again = kinetic.attach_batch(batch.group_id).submission_failures
        try:
            batch.results(cleanup=False)
        except kinetic.BatchError as error:
            caught = [len(error.failures), [value if isinstance(value, int) else type(value).__name__
                                            for value in error.partial_results], message(error)]
        kept = batch.results(return_exceptions=True, ordered=False, cleanup=False)
        wrong = double.run_async_map([1, [1, 2], 3], input_mode="args")
        strange = double.run_async_map([{"number": 1}, {"numbee": 2}])
        tell({
            "errors": {index: [isinstance(error, TypeError), isinstance(error, ValueError)]
                       for index, error in errors.items()},
            "again": [[repr(each[index]), str(each[index])] for each in (errors, again) for index in (1, 3)],
            "jobs": [job is None for job in batch.jobs],
            "caught": caught,
            "kept": [value if isinstance(value, int) else "error" for value in kept],
            "wrong": [type(error).__name__ for _, error in sorted(wrong.submission_failures.items())],
            "strange": [sorted(strange.submission_failures), strange.results(return_exceptions=True)[0]],
            "failures": len(batch.failures()),
        })
        """
    )

    assert set(found["errors"]) == {"1", "3"}
    assert found["errors"]["1"][0]
    assert found["errors"]["3"][1]
    assert found["again"][2:] == found["again"][:2]  # another process gets the same errors
    assert found["jobs"] == [False, True, False, True]
    failures, partial, text = found["caught"]
    assert failures == 0
    assert partial == [0, "ArgumentNotPicklableError", 20, "OptionError"]
    assert "0 of 4 jobs failed, 2 refused" in text
    assert "[1]" in text
    assert "lock" in text
    assert sorted(found["kept"][:2]) == [0, 20]
    assert found["kept"][2:] == ["error", "error"]
    assert found["wrong"] == ["OptionTypeError", "CallableError", "OptionTypeError"]
    assert found["strange"] == [[1], 2]
    assert found["failures"] == 0
    assert said.count("2 of 4 inputs could not be submitted") == 1


def test_inputs_that_cannot_be_submitted_are_named_at_once_and_to_another_process_that_waits(batches: Any) -> None:
    group, said = batches.both("tell(double.run_async_map([1, {'numbee': 2}]).group_id)")
    found, later = batches.both(
        f"""
        batch = kinetic.attach_batch({group!r})
        tell([job.result(cleanup=False) for job in batch.as_completed()])
        """
    )

    assert found == [2]
    for each in (said, later):
        assert each.count("1 of 2 inputs could not be submitted; input 1: double() cannot be called like this") == 1
        assert "nothing was submitted" not in each


def test_more_than_a_hundred_jobs_without_a_limit_are_worth_a_warning(batches: Any) -> None:
    _, few = batches.both("tell(len(double.run_async_map(range(100), max_concurrent=None).jobs))")
    _, limited = batches.both("tell(len(double.run_async_map(range(101), max_concurrent=101).jobs))")

    found, many = batches.both("tell(sum(double.run_async_map(range(101), max_concurrent=None).results()))")

    assert found == 2 * sum(range(101))
    assert "warning" not in few + limited
    assert "warning: 101 jobs are submitted at once; max_concurrent=64" in many


# ----------------------------------------------------------------------------------------------- observing, collecting


def test_results_come_in_the_order_of_the_inputs_or_in_that_of_their_ends(batches: Any) -> None:
    found = batches.run(
        """
        inputs = [plan(0, until=go), *plans(4)[1:]]
        batch = run(inputs)
        order = []
        for job in batch.as_completed():
            order.append(job.group_index)
            if len(order) == 3:
                open(go, "w").close()
        tell([order, batch.results(ordered=False, cleanup=False), batch.results()])
        """
    )

    order, by_end, by_input = found
    assert order == [1, 2, 3, 0]
    assert by_end == [10, 20, 30, 0]
    assert by_input == [0, 10, 20, 30]


def test_jobs_are_yielded_while_others_are_still_to_be_submitted(batches: Any) -> None:
    found = batches.run(
        """
        batch = run(plans(6), max_concurrent=1)
        jobs = batch.as_completed()
        first = next(jobs)
        missing = sum(job is None for job in batch.jobs)
        rest = [job.result() for job in jobs]
        tell([first.result(), missing > 0, sorted(rest), [len(batch.jobs), batch.status_counts()]])
        """
    )

    assert found == [0, True, [10, 20, 30, 40, 50], [6, {"NOT_FOUND": 6}]]


def test_statuses_follow_the_life_of_each_job_and_the_counts_are_theirs(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0), plan(1, fails=9), *[plan(n, until=go) for n in (2, 3)]], max_concurrent=3,
                    name="first", tags={"sweep": "lr"})
        while batch.status_counts() != {"SUCCEEDED": 1, "FAILED": 1, "RUNNING": 2}:
            time.sleep(0.02)
        during = [[index, status.value] for index, status in batch.statuses()]
        try:
            batch.wait(timeout=0.2)
            told = ""
        except TimeoutError as error:
            told = str(error)
        live = [job.group_index for job in batch.failures()]
        open(go, "w").close()
        batch.wait()
        after = batch.status_counts()
        job = batch.jobs[2]
        tell([during, told, live, after, batch.name, batch.tags, batch.group_id,
              [job.group_id == batch.group_id, job.group_kind, job.group_index]])
        """
    )

    during, told, live, after, name, tags, group, child = found
    assert during == [[0, "SUCCEEDED"], [1, "FAILED"], [2, "RUNNING"], [3, "RUNNING"]]
    assert "has not ended within 0.2 s" in told
    assert live == [1]
    assert after == {"SUCCEEDED": 3, "FAILED": 1}
    assert (name, tags) == ("first", {"sweep": "lr"})
    assert len(group) == len("grp-a1b2c3d4")
    assert child == [True, "map", 2]


def test_a_timeout_leaves_the_jobs_alone_in_both_ways_of_waiting(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0), plan(1, until=go)])
        next(batch.as_completed())
        late = []
        def collected():
            for job in batch.as_completed(timeout=0.5):
                late.append(job.group_index)
        for call in (lambda: batch.results(timeout=0.3), lambda: batch.results(timeout=0.3, ordered=False), collected):
            try:
                call()
            except TimeoutError as error:
                late.append(type(error).__name__)
        open(go, "w").close()
        tell([late, batch.results()])
        """
    )

    assert found == [["JobTimeoutError", "JobTimeoutError", 0, "JobTimeoutError"], [0, 10]]


def test_collecting_removes_what_succeeded_and_the_batch_can_still_be_found(batches: Any) -> None:
    group = batches.run(
        "batch = run([plan(0), plan(1, fails=9)]); batch.results(return_exceptions=True); tell(batch.group_id)"
    )

    found = batches.run(
        """
        batch = kinetic.attach_batch(words[0])
        statuses = [status.value for _, status in batch.statuses()]
        values = batch.results(return_exceptions=True)
        tell([statuses, [job.group_index for job in batch.jobs], [type(value).__name__ for value in values],
              [job.group_index for job in batch.failures()]])
        """,
        group,
    )

    assert found[:2] == [["NOT_FOUND", "FAILED"], [0, 1]]
    assert found[2] == ["ResultMissingError", "ValueError"]
    assert found[3] == [1]  # what was collected has not failed


def test_values_that_results_could_not_return_are_there_for_the_next_script(batches: Any) -> None:
    group, partial = batches.run("""
        batch = run([plan(0), plan(1, fails=1), plan(2)])
        try:
            batch.results()
        except kinetic.BatchError as error:
            tell([batch.group_id, error.partial_results])
    """)
    found = batches.run(
        """
        batch = kinetic.attach_batch(words[0])
        statuses = [status.value for _, status in batch.statuses()]
        tell([statuses, batch.retry_failed().results(), [status.value for _, status in batch.statuses()]])
        """,
        group,
    )

    assert partial == [0, None, 20]
    assert found == [["SUCCEEDED", "FAILED", "SUCCEEDED"], [0, 10, 20], ["NOT_FOUND"] * 3]
    assert batches.numbers("begins") == [0, 1, 1, 2]  # what had succeeded did not run again


def test_cleaning_up_leaves_nothing_that_can_be_attached_and_keeping_artifacts_keeps_values(batches: Any) -> None:
    found = batches.run(
        """
        kept, gone = run(plans(2)), run([plan(5), plan(6, fails=1)], retries=1)
        kept.wait(), gone.wait()
        kept.cleanup(gcs=False)
        statuses = kept.status_counts()
        values = kinetic.attach_batch(kept.group_id).jobs[1].result(cleanup=False)
        gone.cleanup()
        try:
            kinetic.attach_batch(gone.group_id)
            attached = True
        except FileNotFoundError:
            attached = "FileNotFoundError"
        except Exception as error:
            attached = type(error).__name__
        tell([statuses, values, gone.status_counts(), attached, gone.group_id, [job.job_id for job in gone.jobs]])
        """
    )

    statuses, value, after, attached, group, jobs = found
    assert statuses == {"NOT_FOUND": 2}
    assert value == 10
    assert after == {"NOT_FOUND": 2}
    assert attached == "FileNotFoundError"
    assert not (batches.store / "_groups" / group).exists()
    assert [path.name for path in batches.store.iterdir() if path.name in jobs] == []


# ---------------------------------------------------------------------------------- limits, retries, fail-fast, cancel


def test_an_input_is_tried_again_and_the_attempt_that_counts_is_delivered_once(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0, fails=1), plan(1), plan(2, fails=2), plan(3, fails=9)], retries=2, max_concurrent=2)
        yielded = [[job.group_index, job.group_attempt, job.status().value] for job in batch.as_completed()]
        attempts = [job.group_attempt for job in batch.jobs]
        import subprocess
        listed = [subprocess.run([sys.executable, "-m", "kinetic", "jobs", "list"], stdout=subprocess.PIPE, text=True)]
        values = batch.results(return_exceptions=True, ordered=False)
        listed += [subprocess.run(listed[0].args, stdout=subprocess.PIPE, text=True)]
        listed = [done.stdout.splitlines()[1] for done in listed]
        tell([sorted(yielded), attempts, sorted(str(value) for value in values), batch.group_id, listed])
        """
    )

    yielded, attempts, values, group, listed = found
    assert "batch of 4 jobs: 1 FAILED, 3 SUCCEEDED" in listed[0]
    assert "1 of 4 jobs of batch: 1 FAILED" in listed[1]
    assert yielded == [[0, 1, "SUCCEEDED"], [1, 0, "SUCCEEDED"], [2, 2, "SUCCEEDED"], [3, 2, "FAILED"]]
    assert attempts == [1, 0, 2, 2]
    assert values == ["0", "10", "20", "number 3 at its attempt 3"]
    assert batches.numbers("begins") == [0, 0, 1, 2, 2, 2, 3, 3, 3]
    jobs = [page["job"] for page in batches.noted("begins")]
    assert len(set(jobs)) == len(jobs)  # each attempt is a job of its own
    attempts_of_3 = []
    for path in (batches.store / "_groups" / group / "children").rglob("*.*"):
        run, attempt, *_ = path.name.split(".")  # one key names a run of children
        first, _, last = run.partition("-")
        attempts_of_3 += [int(attempt)] if int(first) <= 3 <= int(last or first) else []
    assert sorted(attempts_of_3) == [0, 1, 2]


def test_what_was_tried_again_can_never_succeed_any_more_and_keeps_its_log(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0, fails=1)], retries=1)
        batch.wait()
        first = noted(notes)[0]["job"]
        earlier = kinetic.attach(first)
        tell([earlier.status().value, type(earlier.exception()).__name__, earlier.tail(), batch.results()])
        """
    )

    status, error, log, values = found
    assert (status, error, values) == ("FAILED", "ValueError", [0])
    assert "number 0 at its attempt 1" in log


def test_a_success_that_was_collected_early_is_never_run_again(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0), plan(1, fails=2), *[plan(n) for n in range(2, 6)]], retries=2, max_concurrent=2)
        values = {}
        for job in batch.as_completed():
            values[job.group_index] = job.result()  # removes it, while the driver goes on
        tell([[values[index] for index in range(6)], batch.results()])
        """
    )

    assert found == [[0, 10, 20, 30, 40, 50]] * 2
    assert batches.numbers("begins") == [0, 1, 1, 1, 2, 3, 4, 5]


def test_another_process_collects_while_retries_go_on_and_nothing_is_run_twice(
    batches: Any, wait_until: Callable[..., None]
) -> None:
    driver = batches.start(
        """
        batch = run([plan(0), plan(1), plan(2, fails=2, seconds=0.2), plan(3, until=go)], retries=2)
        tell(batch.group_id)
        batch.wait()
        tell(batch.status_counts())
        """
    )
    group = batches.told(driver.stdout.readline())[0]
    wait_until(lambda: {0, 1} <= set(batches.numbers("ends")), "the first ends", 20)

    found = batches.run(
        """
        batch, found = kinetic.attach_batch(words[0]), {}
        for job in batch.as_completed():
            found[job.group_index] = [job.group_attempt, job.result()]
            if len(found) == 3:
                open(go, "w").close()
        tell([found[index] for index in range(4)])
        """,
        group,
    )
    out, err = driver.communicate(timeout=60)

    assert found == [[0, 0], [0, 10], [2, 20], [0, 30]]
    assert driver.returncode == 0, err
    (counts,) = batches.told(out)
    assert sum(counts.values()) == 4
    assert counts.keys() <= {"NOT_FOUND", "SUCCEEDED"}  # the last one may be in the midst of being removed
    assert batches.numbers("begins") == [0, 1, 2, 2, 2, 3]


def test_a_lost_worker_is_tried_again(batches: Any) -> None:
    batches.project.write(
        "dying.py",
        """
        import os
        import signal
        import kinetic

        @kinetic.run(accelerator="cpu")
        def die_once(sign):
            if not os.path.exists(sign):
                open(sign, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return "alive"
        """,
    )

    found = batches.run("from dying import die_once\ntell(die_once.run_async_map([go], retries=1).results())")

    assert found == ["alive"]


def test_an_input_that_cannot_be_submitted_fails_fast_before_anything_runs(batches: Any) -> None:
    found = batches.run(
        """
        batch = act.run_async_map([plan(0), threading.Lock()], input_mode="single", fail_fast=True)
        batch.wait()
        tell([job is None for job in batch.jobs])
        """
    )

    assert found == [True, True]
    assert batches.noted() == []


def test_cancelling_drops_what_is_queued_and_ends_what_runs_and_tries_nothing_again(
    batches: Any, wait_until: Callable[..., None]
) -> None:
    found = batches.run(
        """
        batch = run([plan(n, until=go, fails=1) for n in range(6)], max_concurrent=4, retries=3)
        while len(noted(notes)) < 2:
            time.sleep(0.01)
        batch.cancel()
        open(go, "w").close()
        batch.wait()
        jobs = [job for job in batch.jobs if job is not None]
        errors = batch.results(return_exceptions=True)
        tell([len(jobs), batch.status_counts(), [type(error).__name__ for error in errors],
              [os.path.exists(words[0] + "/" + job.job_id + "/result.pkl") for job in jobs]])
        """,
        str(batches.store),
    )

    assert found == [4, {"NOT_FOUND": 4}, ["JobCancelledError"] * 6, [True] * 4]
    assert batches.numbers("begins") == [0, 1]
    assert batches.numbers("ends") == []
    assert not [*batches.home.glob("run/*/jobs/*")]  # neither captured values nor keys stay


def test_a_batch_is_cancelled_from_another_process_while_its_driver_launches(
    batches: Any, wait_until: Callable[..., None]
) -> None:
    driver = batches.start(
        """
        batch = run(plans(300, seconds=0.05), max_concurrent=50)
        tell(batch.group_id)
        values = batch.results(return_exceptions=True)
        tell([sum(isinstance(value, int) for value in values), len(values)])
        """
    )
    group = batches.told(driver.stdout.readline())[0]
    wait_until(lambda: batches.noted("ends"), "the first end", 20)

    batches.run("kinetic.attach_batch(words[0]).cancel(); tell(1)", group)
    out, err = driver.communicate(timeout=60)

    assert driver.returncode == 0, err
    succeeded, count = batches.told(out)[-1]
    assert count == 300
    assert succeeded < 150
    assert batches.numbers("begins") != list(range(300))


def test_a_cancelled_child_is_not_tried_again_and_the_others_go_on(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0, until=go), plan(1, fails=1)], retries=1)
        while not (noted(notes) and batch.jobs[0]):  # it may begin before this process has its handle
            time.sleep(0.01)
        batch.jobs[0].cancel()
        found = batch.results(return_exceptions=True)
        tell([[value if isinstance(value, int) else type(value).__name__ for value in found],
              [job.group_attempt for job in batch.jobs]])
        """
    )

    assert found == [["JobCancelledError", 10], [0, 1]]


# --------------------------------------------------------------------------------------------------- driving, crashing

CRASH = """
    from {module} import {owner}
    whole, calls = {owner}.launch, []
    def launch(self, wanted):
        calls.append(wanted)
        if len(calls) == 3:
            raise RuntimeError("[/tmp/x] the driver crashed")
        return whole(self, wanted)
    {owner}.launch = launch
    batch = run(plans(6), max_concurrent=1)
    caught, got = [], []
    for way in (batch.wait, lambda: got.extend(batch.as_completed()), batch.results,
                lambda: batch.results(ordered=False)):
        try:
            way()
            caught.append("nothing")
        except RuntimeError as error:
            caught.append(message(error))
    tell([caught, [job.result() for job in got], batch.group_id])
"""


@pytest.mark.parametrize(
    ("module", "owner"),
    [("kinetic._batches.driver", "ChildLauncher"), ("kinetic._backends.local.backend", "LocalBackend")],
    ids=["before a child is known", "before it is launched"],
)
def test_a_crash_of_the_driver_is_told_to_everybody_who_waits_and_can_be_gone_on_from(
    batches: Any, module: str, owner: str
) -> None:
    caught, got, group = batches.run(CRASH.format(module=module, owner=owner))

    assert len(caught) == 4
    for text in caught:
        assert "[/tmp/x] the driver crashed" in text
        assert f"kinetic batch resume {group}" in text
    assert got == [0, 10]
    resumed = "tell(kinetic.attach_batch(words[0], resume=True).results(return_exceptions=True)[2:])"
    assert batches.run(resumed, group) == [20, 30, 40, 50]


def test_a_collected_batch_that_is_attached_again_raises_with_true_counts(batches: Any) -> None:
    text, failures, partial, summary, again = batches.run("""
        first = run([plan(0), plan(1, fails=9), plan(2)])
        first.results(return_exceptions=True)
        batch = kinetic.attach_batch(first.group_id)
        try:
            batch.results()
        except kinetic.BatchError as error:
            found = [message(error), [job.group_index for job in error.failures], error.partial_results]
        values = [type(value).__name__ for value in batch.results(return_exceptions=True)]
        tell([*found, batch.summary(), values])
    """)

    assert text.splitlines()[0].endswith(": 1 of 3 jobs failed, 2 collected before")
    assert "[1] input {'n': 1" in text.splitlines()[1]
    assert (failures, partial) == ([1], [None, None, None])
    assert summary == {"succeeded": 2, "failed": 1}
    assert again == ["ResultMissingError", "ValueError", "ResultMissingError"]


def test_a_collected_batch_with_captured_variables_is_resumed_and_has_nothing_to_submit(batches: Any) -> None:
    batches.project.write(
        "captures.py",
        """
        import os
        import kinetic

        @kinetic.run(accelerator="cpu", capture_env_vars=["MY_TOKEN"])
        def token(number):
            return os.environ["MY_TOKEN"] * number
        """,
    )

    found = batches.run(
        """
        from captures import token
        first = token.run_async_map([1, 2])
        values = first.results()
        batch = kinetic.attach_batch(first.group_id, resume=True)
        batch.wait(timeout=30)
        tell([values, batch.summary()])
        """,
        MY_TOKEN="s3",
    )

    assert found == [["s3", "s3s3"], {"succeeded": 2}]


def test_a_batch_that_was_cleaned_up_does_not_say_that_it_was_collected(batches: Any) -> None:
    text = batches.run("""
        batch = run([plan(0), plan(1)])
        batch.wait()
        batch.cleanup()
        try:
            batch.results()
        except kinetic.BatchError as error:
            tell(message(error))
    """)

    assert text.splitlines()[0].endswith(": 0 of 2 jobs failed, 2 removed before")


def test_cancelling_jobs_that_were_put_together_by_hand_leaves_ended_ones_alone(batches: Any) -> None:
    statuses, said = batches.both("""
        ended, failed, running = map(act.run_async, [plan(0), plan(1, fails=9), plan(2, until=go)])
        ended.wait(), failed.wait()
        batch = kinetic.BatchHandle("by-hand", None, {}, [ended, failed, None, running])
        batch.cancel()
        found = [[job.status().value for job in (ended, failed, running)], ended.result()]
        tell([*found, kinetic.BatchHandle("by-hand", None, {}, [ended, failed]).summary()])
    """)

    assert statuses == [["SUCCEEDED", "FAILED", "NOT_FOUND"], 0, {"succeeded": 1, "failed": 1}]
    assert "had ended" not in said


def test_a_crash_of_the_driver_is_told_at_once_though_a_job_runs_on(batches: Any) -> None:
    told, notes, values, counts = batches.run("""
        from kinetic._batches.driver import ChildLauncher
        whole, calls = ChildLauncher.launch, []
        def launch(self, wanted):
            calls.append(time.monotonic())
            if len(calls) == 2:
                raise RuntimeError("the driver crashed")
            return whole(self, wanted)
        ChildLauncher.launch = launch
        batch = run([plan(0), plan(1, until=go), *plans(4)[2:]], max_concurrent=2)
        told, got = [], []
        for way in (batch.wait, lambda: got.extend(batch.as_completed()), batch.results):
            try:
                way()
            except RuntimeError as error:
                told.append([str(error), time.monotonic() - calls[1] < 5, os.path.exists(go)])
                notes = error.__notes__
        open(go, "w").close()
        values = [value if isinstance(value, int) else str(value) for value in batch.results(return_exceptions=True)]
        tell([told, notes, values, batch.summary()])
    """)

    assert told == [["the driver crashed", True, False]] * 3
    assert sum("1 of its jobs keeps running: kinetic batch status grp-" in note for note in notes) == 1
    assert any("kinetic batch resume grp-" in note for note in notes)
    assert values == [0, 10, "the driver crashed", "the driver crashed"]
    assert counts == {"succeeded": 2, "not submitted": 2}


def test_the_interpreter_stays_until_everything_is_submitted(batches: Any) -> None:
    group = batches.run("tell(run(plans(5, seconds=0.05), max_concurrent=1).group_id)")  # and nobody waits

    assert batches.run("tell(kinetic.attach_batch(words[0]).results())", group) == [0, 10, 20, 30, 40]


def test_a_driver_that_fails_when_nobody_waits_any_more_says_how_to_go_on(batches: Any) -> None:
    _, err = batches.both(
        """
        from kinetic._batches.driver import _AtExit, ChildLauncher

        def fail(launcher, wanted):
            while not _AtExit.has_come:
                time.sleep(0.01)
            raise OSError("the disk is full")
        ChildLauncher.launch = fail
        tell(run(plans(3), max_concurrent=1).group_id)
        """
    )

    assert "was not completely submitted: the disk is full" in err
    assert "kinetic batch resume grp-" in err


def test_the_driver_goes_on_where_no_thread_can_be_had_any_more(batches: Any) -> None:
    found = batches.run(  # as after the end of the main thread, in Python 3.12.0 and 3.12.1
        """
        batch = run(plans(4, until=go), max_concurrent=1)
        threading.stack_size(1 << 62)  # no machine has room for one
        open(go, "w").close()
        tell(batch.results())
        """
    )

    assert found == [0, 10, 20, 30]


def test_without_a_thread_to_drive_in_everything_is_submitted_before_the_call_returns(batches: Any) -> None:
    found, said = batches.both(
        """
        threading.stack_size(1 << 62)
        batch = run(plans(3), max_concurrent=1)
        tell([[job is not None for job in batch.jobs], batch.results()])
        """
    )

    assert found == [[True] * 3, [0, 10, 20]]
    assert "is submitted before the program continues: no thread can be started" in said


def test_a_thread_that_outlives_the_main_one_can_run_a_batch(batches: Any) -> None:
    found = batches.run(
        """
        def late():
            threading.main_thread().join()
            tell(run(plans(3), max_concurrent=1).results())
        threading.Thread(target=late).start()
        """
    )

    assert found == [0, 10, 20]


def test_without_limit_and_retries_everything_is_submitted_before_the_call_returns(batches: Any) -> None:
    found = batches.run(
        """
        batch = run(plans(5), max_concurrent=None)
        submitted, threads = [job is not None for job in batch.jobs], threading.active_count()
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("kinetic-grp")]
        with_retries = run(plans(1), max_concurrent=None, retries=1)
        tell([submitted, names, with_retries.results()])
        """
    )

    assert found == [[True] * 5, [], [0]]


@pytest.mark.parametrize("prompt", ["", ">>> "])
def test_ctrl_c_while_waiting_says_how_to_go_on_and_ends_no_job(
    batches: Any, wait_until: Callable[..., None], prompt: str
) -> None:
    client = batches.start(
        f"""
        if {prompt!r}:
            sys.ps1 = {prompt!r}  # a notebook, or a console
        batch = run(plans(3, until=go), max_concurrent=2)
        tell(batch.group_id)
        batch.results()
        """
    )
    group = batches.told(client.stdout.readline())[0]
    wait_until(lambda: len(batches.noted("begins")) == 2, "the first two jobs", 20)

    client.send_signal(signal.SIGINT)
    wait_until(lambda: "submits the rest" in batches.peek(client), "the end of the wait", 20)
    said = batches.peek(client)
    assert client.poll() is None  # it stays for what is still to be submitted
    batches.go.touch()
    client.communicate(timeout=60)

    assert client.returncode in {1, 130, -signal.SIGINT}
    assert f"detached: {group} keeps running" in said
    assert ("Ctrl-C once more ends it" in said) == (not prompt)
    assert ("this session submits the other inputs" in said) == bool(prompt)
    assert f"kinetic batch resume {group}     submits the rest" in said
    assert batches.run("tell(kinetic.attach_batch(words[0]).results())", group) == [0, 10, 20]


# ------------------------------------------------------------------------------------------------- handles that travel


def test_a_handle_travels_as_a_pickle_with_the_values_it_has(batches: Any) -> None:
    batches.run(
        """
        import pickle
        batch = run(plans(3, until=go))
        with open(words[0], "wb") as file:
            pickle.dump(batch, file)
        open(go, "w").close()
        tell(1)
        """,
        str(batches.home.parent / "handle.pkl"),
    )

    found = batches.run(
        """
        import pickle
        batch = pickle.load(open(words[0], "rb"))
        again, first = pickle.loads(pickle.dumps(batch)), batch.results(cleanup=False)
        fresh = pickle.loads(pickle.dumps(kinetic.attach(batch.jobs[1].job_id)))
        tell([len(batch.jobs), first, fresh.result(cleanup=False), again.results(),
              pickle.loads(pickle.dumps(batch.jobs[1])).result()])  # gone from the store, and still in the handle
        """,
        str(batches.home.parent / "handle.pkl"),
    )

    assert found == [3, [0, 10, 20], 10, [0, 10, 20], 10]


@pytest.mark.parametrize("remove", ["results", "cleanup"])
def test_what_a_handle_put_together_by_hand_removes_is_gone_from_each_of_its_stores(batches: Any, remove: str) -> None:
    found = batches.run(
        """
        import os

        jobs, stores = [], [os.path.join(os.path.dirname(go), name) for name in ("one", "other")]
        for number, store in enumerate(stores):
            os.makedirs(store)
            os.environ["KINETIC_STORE"] = store
            jobs.append(act.run_async(plan(number)))
            jobs[-1].wait()
        kinetic.BatchHandle("", None, {}, jobs).REMOVE()
        tell([[job.job_id in os.listdir(store), os.listdir(f"{store}/history") == [f"{job.job_id}.json"]]
              for job, store in zip(jobs, stores)])
        """.replace("REMOVE", remove)
    )

    assert found == [[False, True]] * 2


def test_a_handle_put_together_by_hand_does_what_the_others_do(batches: Any) -> None:
    found = batches.run(
        """
        jobs = [act.run_async(plan(0)), act.run_async(plan(1, fails=9)), None, act.run_async(plan(3, until=go))]
        batch = kinetic.BatchHandle("", "mine", {}, jobs)
        order = []
        for job in batch.as_completed():
            order.append(jobs.index(job))
            if len(order) == 2:
                open(go, "w").close()
        counts = batch.status_counts()
        failures = [jobs.index(job) for job in batch.failures()]
        try:
            batch.results()
        except kinetic.BatchError as error:
            partial = error.partial_results
        batch.cancel()
        batch.cleanup()
        nothing = kinetic.BatchHandle("grp-0a1b2c3d", None, {}, [None, None])
        nothing.cleanup()
        tell([sorted(order), counts, failures, partial, batch.status_counts(),
              nothing.results(return_exceptions=True) != []])
        """
    )

    order, counts, failures, partial, after, empty = found
    assert order == [0, 1, 3]
    assert counts == {"SUCCEEDED": 2, "FAILED": 1}
    assert failures == [1]
    assert partial == [0, None, None, 30]
    assert after == {"NOT_FOUND": 3}
    assert empty


# -------------------------------------------------------------------------------------------------------- what is sent


def test_everything_is_sent_once_and_lies_in_the_store_before_the_first_job_starts(batches: Any) -> None:
    found = batches.run(
        """
        from kinetic._batches.driver import ChildLauncher
        from kinetic._stores.files import FileStore
        written, first = collections.Counter(), []
        put, adopt, whole = FileStore.put, FileStore.adopt, ChildLauncher.launch
        put_many = FileStore.put_many
        def counted(before):
            def write(self, key, *words, **more):
                written[key] += 1
                return before(self, key, *words, **more)
            return write
        def launch(self, wanted):
            first.append(dict(written))
            return whole(self, wanted)
        def together(self, objects, **more):
            written.update(key for key, _ in objects)
            return put_many(self, objects, **more)
        FileStore.put, FileStore.adopt, ChildLauncher.launch = counted(put), counted(adopt), launch
        FileStore.put_many = together
        batch = double.run_async_map(range(2500), max_concurrent=8)
        while not first:
            time.sleep(0.01)
        batch.cancel()
        tell([first[0], dict(written), batch.group_id])
        """
    )

    before, written, group = found
    prefix = f"_groups/{group}/"
    expected = ["manifest.json", "order.json", "inputs.json", "inputs/00000", "inputs/00001", "inputs/00002"]
    assert {key: before.get(prefix + key) for key in expected} == dict.fromkeys(expected, 1)
    assert {key: written[prefix + key] for key in expected} == dict.fromkeys(expected, 1)
    packs = {key: count for key, count in written.items() if key.startswith("data/blobs/")}
    assert packs
    assert set(packs.values()) == {1}
    assert packs.items() <= before.items()
    assert not [key for key in before if "/children/" in key]


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_ten_thousand_tiny_inputs_come_to_their_end_and_the_client_stays_small(batches: Any) -> None:
    client = batches.start(
        """
        batch = double.run_async_map(range(10_000))
        right = batch.results() == [2 * number for number in range(10_000)]
        with open("/proc/self/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
        tell([right, batch.status_counts(), peak * 1024 / 1e6])
        """
    )

    out, err = client.communicate(timeout=1400)

    assert client.returncode == 0, err
    right, counts, megabytes = batches.told(out)[-1]
    assert right
    assert counts == {"NOT_FOUND": 10_000}
    assert megabytes < 150


def test_a_forked_process_gets_the_results_of_a_batch_that_its_parent_submits(batches: Any) -> None:
    found = batches.run(
        """
        batch = double.run_async_map(list(range(6)), max_concurrent=2)
        ours, theirs = os.pipe()
        if (child := os.fork()) == 0:
            os.write(theirs, repr(batch.results(cleanup=False)).encode())
            os._exit(0)
        os.close(theirs)
        text = os.read(ours, 1000).decode()
        tell([text, os.waitpid(child, 0)[1], batch.results()])
        """
    )

    assert found == ["[0, 2, 4, 6, 8, 10]", 0, [0, 2, 4, 6, 8, 10]]
