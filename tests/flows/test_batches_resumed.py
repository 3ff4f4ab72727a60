"""A batch whose submitting process is gone: seen, taken over here or on another machine, tried again; nothing twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from kinetic._wire import failpoints

HERE, THERE = {"KINETIC_MACHINE_ID": "here"}, {"KINETIC_MACHINE_ID": "there"}
TAKE_OVER = """
    batch = kinetic.attach_batch(words[0], resume=True)
    values = batch.results(return_exceptions=True, cleanup=False)
    tell([value if isinstance(value, int) else repr(value) for value in values])
"""


class Left:
    """A batch whose submitter was killed when some of its jobs had begun, none of which had ended."""

    def __init__(self, batches: Any, wait_until: Callable[..., None]) -> None:
        self.batches, self.wait_until = batches, wait_until
        self.group = ""

    def leave(self, inputs: str, options: str = "max_concurrent=2", *, begun: int = 2, **more: str) -> str:
        client = self.batches.start(f"batch = run({inputs}, {options})\ntell(batch.group_id)\nbatch.wait()", **more)
        (group,) = self.batches.told(client.stdout.readline())
        self.wait_until(lambda: len(self.batches.noted("begins")) == begun, "the first jobs", 30)
        client.kill()
        client.communicate()
        self.group = str(group)
        return self.group

    def age(self, seconds: float = 61.0) -> None:
        """Let the last driver be silent for so long: on another machine nobody can see that its process is gone."""
        for lease in self.batches.store.glob(f"_groups/{self.group}/leases/*"):
            now = time.time()
            os.utime(lease, (now - seconds, now - seconds))


@pytest.fixture
def left(batches: Any, wait_until: Callable[..., None]) -> Left:
    return Left(batches, wait_until)


def test_what_was_submitted_can_be_seen_and_the_other_places_are_empty(batches: Any, left: Left) -> None:
    group = left.leave("plans(6, until=go)")

    found, said = batches.both(
        """
        batch = kinetic.attach_batch(words[0], poll_interval=0.1, poll_timeout=0.5)
        before = [job is None for job in batch.jobs]
        open(go, "w").close()
        values = batch.results(return_exceptions=True, cleanup=False)
        tell([before, [value if isinstance(value, int) else type(value).__name__ for value in values]])
        """,
        group,
    )

    assert found[0] == [False, False, True, True, True, True]
    assert found[1] == [0, 10, *["JobCancelledError"] * 4]
    assert f"4 of 6 inputs of {group} were not submitted" in said
    assert f"kinetic batch resume {group}" in said


def test_who_waits_for_a_batch_whose_driver_is_gone_is_told_at_once_though_jobs_run_on(
    batches: Any, left: Left
) -> None:
    group = left.leave("plans(6, until=go)")

    (late, told, values), said = batches.both(
        """
        batch, told = kinetic.attach_batch(words[0]), []
        try:
            batch.results(timeout=0)
        except TimeoutError as error:
            late = str(error)
        def wait_in_each_way():
            for way in (batch.wait, lambda: [*batch.as_completed()], batch.results):
                begun = time.monotonic()
                try:
                    way()
                except RuntimeError as error:
                    told.append([error.code, time.monotonic() - begun < 10, str(error)])
        wait_in_each_way()
        open(go, "w").close()
        values = batch.results(return_exceptions=True, cleanup=False)
        wait_in_each_way()
        tell([late, told, [value if isinstance(value, int) else value.code for value in values]])
        """,
        group,
    )

    assert "6 of its 6 jobs have not ended; 4 of them were not submitted so far" in late
    assert [words[:2] for words in told] == [["driver-gone", True]] * 6
    for number, (_, _, text) in enumerate(told):
        assert f"4 of 6 inputs of {group} were not submitted" in text
        assert ("2 of its jobs keep running" if number < 3 else "none of its jobs is running") in text
        assert f"kinetic batch resume {group}" in text
    assert "no process drives this batch" not in said  # the error says it
    assert values == [0, 10, *["driver-gone"] * 4]


def test_who_only_watches_makes_do_without_what_was_announced_and_never_launched(batches: Any) -> None:
    """The driver dies between the key that makes a child known and the launch."""
    driver = batches.start(
        "run(plans(3), max_concurrent=None)",
        **{failpoints.VARIABLE: f"driver:record-written@{batches.home.parent / 'killed'}"},
    )
    driver.communicate(timeout=60)
    (group,) = [path.name for path in batches.store.glob("_groups/*")]

    found, said = batches.both(
        """
        batch = kinetic.attach_batch(words[0], poll_interval=0.1, poll_timeout=0.5)
        values = batch.results(return_exceptions=True)
        tell([[status.value for _, status in batch.statuses()], [str(value).splitlines()[1] for value in values]])
        """,
        group,
    )

    assert driver.returncode == -9
    assert set(found[0]) == {"PENDING"}
    assert found[1] == ["why:   the process that submitted the batch was gone before"] * 3
    assert f"kinetic batch resume {group}" in said
    assert batches.run(TAKE_OVER, group) == [0, 10, 20]
    assert batches.numbers("begins") == [0, 1, 2]


def test_another_process_takes_over_what_was_not_submitted_and_runs_nothing_twice(batches: Any, left: Left) -> None:
    group = left.leave("plans(8, until=go)")

    batches.go.touch()
    found = batches.run(TAKE_OVER, group)

    assert found == [number * 10 for number in range(8)]
    assert batches.numbers("begins") == list(range(8))


def test_of_two_that_take_over_one_drives_and_the_other_watches(batches: Any, left: Left) -> None:
    group = left.leave("plans(10, until=go)")

    both = [batches.start(TAKE_OVER, group) for _ in range(2)]
    batches.go.touch()
    said = [client.communicate(timeout=60) for client in both]

    assert [batches.told(out)[-1] for out, _ in said] == [[number * 10 for number in range(10)]] * 2
    assert sum("is driven by another process" in err for _, err in said) <= 1
    assert batches.numbers("begins") == list(range(10))


def test_a_living_driver_is_not_taken_over(batches: Any, wait_until: Callable[..., None]) -> None:
    driver = batches.start("batch = run(plans(5, until=go), max_concurrent=2)\ntell(batch.group_id)\nbatch.wait()")
    (group,) = batches.told(driver.stdout.readline())

    watcher = batches.start(TAKE_OVER, group)
    wait_until(lambda: "is driven by another process: process" in batches.peek(watcher), "the line that says so", 20)
    batches.go.touch()
    out, said = watcher.communicate(timeout=60)
    _, err = driver.communicate(timeout=60)

    assert watcher.returncode == 0, said
    assert driver.returncode == 0, err
    assert batches.told(out)[-1] == [number * 10 for number in range(5)]
    assert batches.numbers("begins") == list(range(5))


def test_retries_go_on_where_the_killed_driver_left_them(batches: Any, left: Left) -> None:
    inputs = "[plan(0, until=go, fails=1), plan(1, until=go, fails=9), plan(2), plan(3, fails=2)]"
    group = left.leave(inputs, "max_concurrent=2, retries=2")

    batches.go.touch()
    found = batches.run(TAKE_OVER, group)

    assert found == [0, "ValueError('number 1 at its attempt 3')", 20, 30]
    assert batches.numbers("begins") == [0, 0, 1, 1, 1, 2, 3, 3, 3]


def test_launching_twice_runs_nothing_twice(batches: Any) -> None:
    found = batches.run(
        """
        from kinetic._batches.driver import ChildLauncher
        whole = ChildLauncher.launch
        def twice(self, wanted):
            whole(self, wanted)
            return whole(self, wanted)
        ChildLauncher.launch = twice
        batch = run([plan(n, fails=n % 2) for n in range(6)], max_concurrent=2, retries=1)
        values = batch.results(cleanup=False)
        state = batch._tracker
        from kinetic._batches import driver
        whole(driver.launcher_of(state.group, state), [(n, 0) for n in range(6)])  # and long after their ends
        batch.wait()
        tell([values, batch.results()])
        """
    )

    assert found == [[0, 10, 20, 30, 40, 50]] * 2
    assert batches.numbers("begins") == [0, 1, 1, 2, 3, 3, 4, 5, 5]


def test_what_was_collected_is_not_launched_again_by_who_takes_over(batches: Any, left: Left) -> None:
    group = left.leave("[plan(0), plan(1, until=go), plan(2, until=go)]", "max_concurrent=2, retries=2", begun=3)

    batches.run("batch = kinetic.attach_batch(words[0]); tell(batch.jobs[0].result())", group)
    batches.go.touch()
    found = batches.run(TAKE_OVER, group)

    assert found[1:] == [10, 20]
    assert "ResultMissingError" in found[0]
    assert batches.numbers("begins") == [0, 1, 2]


# ----------------------------------------------------------------------------------------------------- another machine


def test_another_machine_takes_over_what_was_not_submitted_and_leaves_what_runs_to_the_first(
    batches: Any, left: Left
) -> None:
    group = left.leave("plans(8, until=go)", **HERE)
    left.age()

    batches.go.touch()
    found = batches.run(TAKE_OVER, group, **THERE)

    assert found == [number * 10 for number in range(8)]
    assert batches.numbers("begins") == list(range(8))
    machines = [
        _machine_of_note(batches, page["job"]) for page in sorted(batches.noted("begins"), key=lambda p: p["n"])
    ]
    assert machines == ["here", "here", *["there"] * 6]


def _machine_of_note(batches: Any, job: str) -> str:
    (path,) = (batches.store / job / "attempts").iterdir()
    return str(json.loads(path.read_text())["details"]["machine_id"])


def test_another_machine_takes_over_once_the_last_driver_was_silent_for_a_minute(batches: Any, left: Left) -> None:
    group = left.leave("plans(4, until=go)", **HERE)
    left.age(58.0)

    batches.go.touch()
    found, said = batches.both(TAKE_OVER, group, **THERE)

    assert found == [0, 10, 20, 30]
    assert "it is taken over here if that machine stays silent for a minute" in said


def test_another_machine_only_watches_a_driver_that_shows_that_it_lives(batches: Any, left: Left) -> None:
    group = left.leave("plans(4, until=go)", **HERE)
    taker = batches.start(TAKE_OVER, group, **THERE)

    left.wait_until(lambda: left.age(1.0) or "only watches" in batches.peek(taker), "the touches to be seen", 30)
    batches.go.touch()
    found = batches.run(TAKE_OVER, group, **HERE)
    out, err = taker.communicate(timeout=60)

    assert taker.returncode == 0, err
    assert batches.told(out)[-1] == found == [0, 10, 20, 30]


def test_a_driver_that_was_frozen_finds_a_higher_epoch_and_only_watches(batches: Any, left: Left) -> None:
    frozen = batches.start(
        """
        batch = run(plans(8, until=go), max_concurrent=2)
        tell(batch.group_id)
        tell(batch.results(cleanup=False))
        """,
        **HERE,
    )
    (left.group,) = batches.told(frozen.stdout.readline())
    left.wait_until(lambda: len(batches.noted("begins")) == 2, "the first jobs", 30)
    frozen.send_signal(signal.SIGSTOP)
    left.age()

    batches.go.touch()
    found = batches.run(TAKE_OVER, left.group, **THERE)
    frozen.send_signal(signal.SIGCONT)
    out, err = frozen.communicate(timeout=60)

    assert frozen.returncode == 0, err
    assert "this one only watches" in err
    assert batches.told(out)[-1] == found == [number * 10 for number in range(8)]
    assert batches.numbers("begins") == list(range(8))


def test_what_waits_on_both_machines_runs_on_one(batches: Any, left: Left) -> None:
    """What was queued on the first machine, and had not begun, is launched on the second one, too."""
    group = left.leave("plans(6, until=go)", "max_concurrent=6", **HERE)
    left.age()

    taker = batches.start(TAKE_OVER, group, **THERE)
    left.wait_until(lambda: len(batches.noted("begins")) == 4, "two more on the other machine", 20)
    batches.go.touch()
    out, err = taker.communicate(timeout=60)
    here = batches.run("batch = kinetic.attach_batch(words[0]); tell([batch.results(cleanup=False)])", group, **HERE)

    assert taker.returncode == 0, err
    assert batches.told(out)[-1] == here[0] == [0, 10, 20, 30, 40, 50]
    assert batches.numbers("begins") == list(range(6))


def test_what_runs_on_another_machine_is_never_called_failed(batches: Any, left: Left) -> None:
    group = left.leave("plans(4, until=go)", "max_concurrent=4", **HERE)
    left.age()
    taker = batches.start(TAKE_OVER, group, **THERE)
    left.wait_until(lambda: len(batches.noted("begins")) == 4, "two jobs on each machine", 20)

    seen = {
        machine: batches.run(
            """
            batch = kinetic.attach_batch(words[0])
            counts = batch.status_counts()
            tell([counts, sorted({job.status().value for job in batch.jobs if job is not None})])
            """,
            group,
            KINETIC_MACHINE_ID=machine,
        )
        for machine in ("here", "there", "third")
    }
    batches.go.touch()
    taker.communicate(timeout=60)

    assert seen["there"] == seen["third"] == [{"RUNNING": 4}, ["RUNNING"]]
    assert seen["here"] == [{"RUNNING": 2, "PENDING": 2}, ["PENDING", "RUNNING"]]  # its own queue still has two of them


def test_captured_values_do_not_travel_and_another_machine_says_which_are_missing(batches: Any, left: Left) -> None:
    batches.project.write(
        "secret.py",
        """
        import os
        import time
        import kinetic

        @kinetic.run(accelerator="cpu", capture_env_vars=["MY_TOKEN"])
        def token(number, go, notes):
            with open(notes, "a") as file:
                file.write('{"what": "begins", "n": 0}\\n')
            while not os.path.exists(go):
                time.sleep(0.01)
            return os.environ["MY_TOKEN"]
        """,
    )
    client = batches.start(
        """
        from secret import token
        batch = token.run_async_map([(n, go, notes) for n in range(3)], max_concurrent=1)
        tell(batch.group_id)
        batch.wait()
        """,
        MY_TOKEN="s3cret",
        **HERE,
    )
    (group,) = batches.told(client.stdout.readline())
    left.wait_until(lambda: batches.noted("begins"), "the first job", 20)
    client.kill()
    client.communicate()

    elsewhere = batches.run(
        """
        try:
            kinetic.attach_batch(words[0], resume=True)
        except RuntimeError as error:
            tell([type(error).__name__, str(error)])
        """,
        group,
        **THERE,
    )
    batches.go.touch()
    found = batches.run("tell(kinetic.attach_batch(words[0], resume=True).results())", group, **HERE)

    assert elsewhere[0] == "CredentialsError"
    assert "MY_TOKEN" in elsewhere[1]
    assert found == ["s3cret"] * 3  # its own, not that of whoever took over
    assert not any(b"s3cret" in path.read_bytes() for path in batches.store.rglob("*") if path.is_file())
    kept = [path for path in batches.home.glob("run/here/**/*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert kept == []  # gone with the batch


def test_a_job_that_another_machine_starts_says_that_it_has_no_words_of_the_command_line(
    batches: Any, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches.project.write(
        "script.py",
        """
        import os, sys, time
        import kinetic

        @kinetic.run(accelerator="cpu")
        def count(number, go, notes):
            with open(notes, "a") as file:
                file.write('{"what": "begins", "n": 0}\\n')
            while not os.path.exists(go):
                time.sleep(0.01)
            return len(sys.argv)

        go, notes = sys.argv[1:]
        batch = count.run_async_map([(n, go, notes) for n in range(2)], max_concurrent=1)
        print(batch.group_id, flush=True)
        batch.wait()
        """,
    )
    monkeypatch.setenv("KINETIC_MACHINE_ID", "here")
    client = batches.project.start("script.py", str(batches.go), str(batches.notes))
    left.group = client.stdout.readline().strip()
    left.wait_until(lambda: batches.noted("begins"), "the first job", 20)
    client.kill()
    client.communicate()
    left.age()
    batches.go.touch()

    found = batches.run(
        """
        batch = kinetic.attach_batch(words[0], resume=True)
        values = batch.results(cleanup=False)
        tell([values, [job.logs() for job in batch.jobs]])
        """,
        left.group,
        **THERE,
    )

    said = "kinetic: the words of the script's command line did not come here: sys.argv has none of them\n"
    assert found == [[3, 1], ["", said]]


def test_only_its_owner_can_read_what_was_kept(batches: Any, left: Left) -> None:
    group = left.leave("plans(4, until=go)", **HERE)

    (kept,) = batches.home.glob(f"run/here/groups/{group}.json")

    assert os.stat(kept).st_mode & 0o077 == 0


# ----------------------------------------------------------------------------------------------------------- once more


def test_only_what_failed_is_tried_again_and_again_twice_in_a_row(batches: Any) -> None:
    found = batches.run(
        """
        def shown(batch):
            values = batch.results(return_exceptions=True, cleanup=False)
            return [value if isinstance(value, int) else str(value) for value in values]
        batch = run([plan(0), plan(1, fails=2), plan(2), plan(3, fails=1)], retries=0)
        found = [shown(batch)]
        found.append(shown(batch.retry_failed()))
        found.append(shown(batch.retry_failed()))
        batch.retry_failed()
        tell([*found, [job.group_attempt for job in batch.jobs], len(batch.failures())])
        """
    )

    assert found == [
        [0, "number 1 at its attempt 1", 20, "number 3 at its attempt 1"],
        [0, "number 1 at its attempt 2", 20, 30],
        [0, 10, 20, 30],
        [0, 2, 0, 1],
        0,
    ]
    assert batches.numbers("begins") == [0, 1, 1, 1, 2, 3, 3]


def test_a_failed_attempt_that_was_removed_stays_removed_when_its_input_is_tried_again(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0), plan(1, fails=1)], retries=0)
        batch.wait()
        failed = batch.jobs[1]
        failed.cleanup()
        tell([failed.job_id, batch.retry_failed().results(cleanup=False)])
        """
    )

    assert found[1] == [0, 10]
    assert not (batches.store / found[0]).exists()


def test_after_failing_fast_what_failed_is_tried_again_and_nothing_else(batches: Any) -> None:
    group = batches.run(
        """
        batch = run([plan(0), plan(1, fails=1), *plans(6)[2:]], fail_fast=True, max_concurrent=1)
        batch.wait()
        tell(batch.group_id)
        """
    )

    found = batches.run(
        """
        batch = kinetic.attach_batch(words[0])
        try:
            kinetic.attach_batch(words[0], resume=True)
        except ValueError as error:
            refused = str(error)
        batch.retry_failed().wait()
        watcher = kinetic.attach_batch(words[0])
        watcher.wait(timeout=20)
        values = [batch.results(return_exceptions=True, cleanup=False) for batch in (batch, watcher)]
        tell([refused, *[[value if isinstance(value, int) else type(value).__name__ for value in found]
                         for found in values]])
        """,
        group,
    )

    assert "was stopped and is not resumed" in found[0]
    assert found[1] == found[2] == [0, 10, *["JobCancelledError"] * 4]
    assert batches.numbers("begins") == [0, 1, 1]


def test_what_was_tried_again_right_after_failing_fast_has_nothing_left_to_be_tried(batches: Any) -> None:
    found = batches.run(
        """
        whole = run([plan(0, fails=1), plan(1)], fail_fast=True, max_concurrent=1)
        whole.wait()
        whole.retry_failed().wait()
        tell([[status.value for _, status in whole.statuses()], whole.retry_failed() is whole])
        """
    )

    assert found == [["SUCCEEDED"], True]


def test_what_is_being_driven_is_not_tried_again_at_the_same_time(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0, fails=9), plan(1, until=go), plan(2)], max_concurrent=1)
        while len(noted(notes)) < 3:
            time.sleep(0.01)
        try:
            batch.retry_failed()
        except RuntimeError as error:
            refused = str(error)
        open(go, "w").close()
        batch.wait()
        tell([refused, len(batch.failures())])
        """
    )

    assert "is still being driven, so nothing was tried again" in found[0]
    assert found[1] == 1


def test_a_cancelled_batch_is_not_resumed_and_what_failed_before_can_be_tried_again(batches: Any) -> None:
    group = batches.run(
        """
        batch = run([plan(0, fails=1), plan(1, until=go), plan(2)], max_concurrent=2)
        while "FAILED" not in batch.status_counts() or len(noted(notes)) < 3:
            time.sleep(0.01)
        batch.cancel()
        tell(batch.group_id)
        """
    )

    found = batches.run(
        """
        try:
            kinetic.attach_batch(words[0], resume=True)
        except ValueError as error:
            refused = str(error)
        batch = kinetic.attach_batch(words[0]).retry_failed()
        values = batch.results(return_exceptions=True)
        tell([refused, [value if isinstance(value, int) else type(value).__name__ for value in values]])
        """,
        group,
    )

    assert "it was cancelled" in found[0]
    assert found[1][:2] == [0, "JobCancelledError"]
    assert 1 not in batches.numbers("ends")


def test_who_watches_learns_that_something_is_tried_again_elsewhere(batches: Any) -> None:
    group = batches.run("batch = run([plan(0, fails=1), plan(1)]); batch.wait(); tell(batch.group_id)")
    watcher = batches.start(
        """
        batch = kinetic.attach_batch(words[0])
        tell(batch.status_counts())
        while not os.path.exists(go):
            time.sleep(0.01)
        tell([batch.status_counts(), batch.results(cleanup=False), [job.group_attempt for job in batch.jobs]])
        """,
        group,
    )
    (before,) = batches.told(watcher.stdout.readline())

    batches.run("kinetic.attach_batch(words[0]).retry_failed().wait(); tell(1)", group)
    batches.go.touch()
    out, err = watcher.communicate(timeout=60)

    assert watcher.returncode == 0, err
    assert before == {"FAILED": 1, "SUCCEEDED": 1}
    assert batches.told(out)[-1] == [{"SUCCEEDED": 2}, [0, 10], [1, 0]]
