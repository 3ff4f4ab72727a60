"""However a job ends, its one verdict says so in plain words and at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from flows.conftest import HEAD_OF_SCRIPTS, SOON

import kinetic
from kinetic._wire import failpoints


def worker_of(home: Path) -> int:
    """Return the process of the only running job."""
    (door,) = home.glob("run/*/jobs/*/log-0-0.stacks")
    return int(json.loads(door.read_bytes().splitlines()[0])["pid"])


@pytest.mark.parametrize("code", ["", "False"])  # more of them in user_code/what_user_code_does.py
def test_leaving_by_a_good_exit_is_success_without_a_value(submit, code: str) -> None:
    job = submit(f"@on_cpu\ndef train(): sys.exit({code})")

    assert job.result() is None


@pytest.mark.parametrize("code", ["'no data'", "True"])
def test_leaving_by_any_other_exit_is_a_failure_that_names_the_code(submit, code: str) -> None:
    job = submit(f"@on_cpu\ndef train(): sys.exit({code})")

    with pytest.raises(RuntimeError) as raised:
        job.result()

    assert f"sys.exit({code})" in str(raised.value)
    assert job.status() is kinetic.JobStatus.FAILED


SUDDEN = {
    "os._exit": ("os._exit(3)", "ended by itself with exit code 3", "the last words", "exit"),
    "a fault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV, a segmentation fault", "in train", "signal"),
    "an abort": ("os.abort()", "ended by SIGABRT", "in train", "signal"),
    "SIGTERM": ("os.kill(os.getpid(), 15)", "ended by SIGTERM, sent from outside", "the last words", "signal"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", "ended by SIGKILL: it was killed with kill -9", "the last words", "signal"),
    "a real-time signal": ("os.kill(os.getpid(), 40)", "ended by signal 40", "the last words", "signal"),
}


@pytest.mark.parametrize(("how", "said", "words", "code"), SUDDEN.values(), ids=list(SUDDEN))
def test_a_sudden_end_is_told_in_a_plain_sentence_with_the_last_lines(
    submit, how: str, said: str, words: str, code: str
) -> None:
    job = submit(f"@on_cpu\ndef train():\n    print('the last words')\n    sys.stdout.flush()\n    {how}")

    with pytest.raises(RuntimeError) as raised:
        job.result(timeout=30)

    assert said in raised.value.what
    assert words in raised.value.why
    assert raised.value.code == code
    assert job.status() is kinetic.JobStatus.FAILED


def test_a_segmentation_fault_leaves_the_python_stacks_in_the_log(submit) -> None:
    job = submit("@on_cpu\ndef train():\n    import ctypes\n    ctypes.string_at(0)")

    job.wait(timeout=30)

    assert "Fatal Python error: Segmentation fault" in job.logs()
    assert re.search(r"line \d+ in train", job.logs())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_from_outside_ends_a_job_as_failed(submit, home: Path, wait_until, number: signal.Signals) -> None:
    job = submit("@on_cpu\ndef train():\n    print('at work', flush=True)\n    time.sleep(300)")
    wait_until(lambda: "at work" in job.logs(), "the beginning of the function")

    os.kill(worker_of(home), number)

    with pytest.raises(RuntimeError, match=number.name):
        job.result(timeout=SOON)


def test_a_job_may_catch_the_signal_and_save_its_work(submit, home: Path, wait_until) -> None:
    job = submit(
        """
        import signal

        def stop(*_):
            raise kinetic.errors.Preempted("saved at step 3")

        @on_cpu
        def train():
            signal.signal(signal.SIGTERM, stop)
            print("at work", flush=True)
            time.sleep(300)
        """
    )
    wait_until(lambda: "at work" in job.logs(), "the beginning of the function")

    os.kill(worker_of(home), signal.SIGTERM)

    with pytest.raises(kinetic.errors.Preempted, match="saved at step 3"):
        job.result(timeout=SOON)


@pytest.mark.parametrize(
    "stuck", ["time.sleep(300)", "sum(range(10**14))", "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"]
)
def test_a_deadline_ends_a_job_and_leaves_the_stacks_of_all_threads(submit, stuck: str) -> None:
    job = submit(
        f"""
        import signal, threading

        def waits_elsewhere():
            time.sleep(300)

        def stuck():
            {stuck}

        @on_cpu
        def train():
            threading.Thread(target=waits_elsewhere, daemon=True).start()
            stuck()
        """,
        "train.with_options(deadline=0.4).run_async()",
    )
    began = time.monotonic()

    with pytest.raises(RuntimeError, match=r"ended at its deadline of 0\.4 s") as raised:
        job.result(timeout=30)

    grace = 5.0 if "SIG_IGN" in stuck else 0.0  # for what handles SIGTERM
    assert time.monotonic() - began < SOON + grace
    assert raised.value.code == "deadline"
    *others, ours = job.logs().split("\n\n")  # the main thread is the last
    assert "in waits_elsewhere" in "".join(others)
    assert [line.split(" in ")[-1] for line in ours.splitlines()[1:]][-2:] == ["stuck", "train"]
    assert "/_runner/" not in job.logs()  # nothing of ours


def test_a_function_saves_its_work_at_its_deadline_and_its_retry_continues(submit) -> None:
    job = submit(
        """
        import os, signal, sys, time

        def stop(*_):
            with open(os.path.join(kinetic.checkpoint_dir(), "step"), "w") as file:
                file.write("3")
            raise kinetic.errors.Preempted("saved at step 3")

        @on_cpu
        def train():
            signal.signal(signal.SIGTERM, stop)
            kept = os.path.join(kinetic.checkpoint_dir(), "step")
            if os.path.exists(kept):
                return "from step " + open(kept).read()
            os.makedirs(kinetic.checkpoint_dir(), exist_ok=True)
            time.sleep(300)
        """,
        "train.with_options(deadline=1, retries=1).run_async()",
    )

    assert job.result(timeout=60) == "from step 3"


def test_a_function_that_raises_at_its_deadline_was_ended_by_that_and_leaves_its_stacks(submit) -> None:
    job = submit(
        """
        import signal

        def stop(*_):
            raise kinetic.errors.Preempted("saved")

        @on_cpu
        def train():
            signal.signal(signal.SIGTERM, stop)
            time.sleep(300)
        """,
        "train.with_options(deadline=0.4).run_async()",
    )

    with pytest.raises(RuntimeError, match=r"deadline of 0\.4 s; the stacks of all threads are in its log") as raised:
        job.result(timeout=30)

    assert raised.value.code == "deadline"
    traceback, _, stacks = job.logs().partition("Preempted: saved")
    assert "in stop" in traceback
    assert stacks.rstrip().endswith("in train")  # where it was at its deadline


def test_a_deadline_leaves_the_stacks_in_the_log_where_the_job_has_taken_their_signal(submit) -> None:
    job = submit(
        """
        import signal

        @on_cpu
        def train():
            signal.signal(signal.SIGRTMAX - 4, signal.SIG_IGN)
            time.sleep(300)
        """,
        "train.with_options(deadline=0.4).run_async()",
    )

    with pytest.raises(RuntimeError, match="deadline"):
        job.result(timeout=30)

    assert "in train" in job.logs()


def test_a_job_that_is_stopped_at_its_deadline_leaves_its_stacks_once_it_continues(submit) -> None:
    job = submit(
        """
        import os, signal, subprocess

        @on_cpu
        def train():
            subprocess.Popen(["sh", "-c", f"sleep 1.4; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(300)
        """,
        "train.with_options(deadline=0.4).run_async()",
    )

    with pytest.raises(RuntimeError, match="deadline"):
        job.result(timeout=30)

    assert "in train" in job.logs()


def test_the_stacks_at_a_deadline_begin_a_line_of_their_own_below_a_progress_bar(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            print("epoch 3 of 9", end="", flush=True)
            time.sleep(300)
        """,
        "train.with_options(deadline=0.4).run_async()",
    )

    with pytest.raises(RuntimeError, match="the stacks of all threads are in its log"):
        job.result(timeout=30)

    bar, first, *_ = job.logs().splitlines()
    assert (bar, first.partition(" ")[0]) == ("epoch 3 of 9", "Thread"), job.logs()


def test_a_program_that_takes_the_place_of_a_job_is_not_said_to_have_left_stacks_at_its_deadline(submit) -> None:
    job = submit(
        """
        import os, sys

        @on_cpu
        def train():
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)"])
        """,
        "train.with_options(deadline=0.4).run_async()",
    )

    with pytest.raises(RuntimeError, match="deadline") as raised:
        job.result(timeout=30)

    assert "stacks" not in str(raised.value)


def test_the_deadline_may_come_from_the_environment(submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_DEADLINE", "0.3")

    job = submit("@on_cpu\ndef train(): time.sleep(300)")

    with pytest.raises(RuntimeError, match=r"ended at its deadline of 0\.3 s"):
        job.result(timeout=30)


def test_a_deadline_that_is_met_changes_nothing(submit) -> None:
    job = submit("@on_cpu\ndef train(): return 1", "train.with_options(deadline=30).run_async()")

    assert job.result() == 1


@pytest.fixture
def on_a_small_disk(project, home: Path) -> Callable[[str], str]:
    """Return a function that runs a script whose store has a disk of 24 MiB, which only it and its jobs can see."""

    def run(text: str) -> str:
        (home / "store").mkdir(parents=True)
        project.write("script.py", HEAD_OF_SCRIPTS + text.format(disk=home / "store"))
        rights = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        mount = f"mount -t tmpfs -o size=24m none {home}/store && exec {sys.executable} {project.root}/script.py"
        try:
            tried = subprocess.run(
                ["unshare", *rights, "--mount", "mount", "-t", "tmpfs", "none", str(home / "store")],
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            pytest.skip("a small disk cannot be mounted here: there is no unshare")
        if tried.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
        done = project.execute("unshare", *rights, "--mount", "sh", "-c", mount)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


TELL = """
job = train.run_async()
try:
    job.result(timeout=30)
except RuntimeError as error:
    print(error.code, job.status().value, error.what, "next: ", error.next)
"""


def test_a_value_that_does_not_fit_on_the_disk_is_a_failure_that_says_so(on_a_small_disk) -> None:
    out = on_a_small_disk("@on_cpu\ndef train(): return os.urandom(40 << 20)\n" + TELL)

    assert out.startswith("disk-full FAILED train failed: the value does not fit on the disk: [Errno 28]")
    assert "next:  free some space there" in out


def test_a_verdict_finds_room_on_a_disk_that_the_job_filled_to_the_last_byte(on_a_small_disk) -> None:
    out = on_a_small_disk(
        """
@on_cpu
def train():
    with open("{disk}/filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError as error:
            print(error)
    return bytes(1 << 20)
"""
        + TELL
    )

    assert out.startswith("disk-full FAILED train failed: the value does not fit on the disk")
    assert "next:  free some space there" in out


FAILS = """
@on_cpu
def train():
    attempt = int(os.environ["KINETIC_ATTEMPT"])
    print("this is attempt", attempt)
    if attempt < FAILURES:
        raise ValueError(f"attempt {attempt}")
    return attempt
train = train.with_options(retries=RETRIES)
"""


@pytest.fixture
def failures() -> int:
    """How often a job fails that is tried again."""
    return 2


def test_a_job_that_fails_is_tried_again_under_its_own_id(submit, project, failures: int) -> None:
    job = submit(FAILS.replace("FAILURES", str(failures)).replace("RETRIES", "2"))

    assert job.result(cleanup=False) == failures
    numbers = range(failures + 1)
    log = [project.kinetic("jobs", "logs", job.job_id, "--attempt", str(number)).stdout for number in numbers]
    assert [f"this is attempt {number}\n" in log[number] for number in numbers] == [True] * len(numbers)
    assert "kinetic: attempt 0 failed: ValueError: attempt 0; trying again (retry 1 of 2)" in log[0]
    assert job.logs() == log[-1]


@pytest.mark.parametrize("place", ["supervisor:worker-ended", "supervisor:log-shipped"])
def test_a_job_that_failed_is_tried_again_though_its_supervisor_was_killed_before_it_saw_to_that(
    submit, project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"{place}@{tmp_path / 'killed'}")
    job = submit(FAILS.replace("FAILURES", "1").replace("RETRIES", "1"))

    assert job.result(cleanup=False) == 1
    assert (tmp_path / "killed").exists()
    log = project.kinetic("jobs", "logs", job.job_id, "--attempt", "0").stdout
    assert "this is attempt 0\n" in log
    assert log.count("kinetic: attempt 0 failed: ValueError: attempt 0; trying again (retry 1 of 1)") == 1


def test_without_retries_left_the_last_failure_is_the_one_that_is_raised(submit) -> None:
    job = submit(FAILS.replace("FAILURES", "2").replace("RETRIES", "1"))

    with pytest.raises(ValueError, match="attempt 1"):
        job.result()


def test_a_crash_is_tried_again_as_well(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            if os.environ["KINETIC_ATTEMPT"] == "0":
                os.kill(os.getpid(), 9)
            return "well"
        train = train.with_options(retries=1)
        """
    )

    assert job.result() == "well"


def test_a_job_that_is_cancelled_in_its_second_attempt_keeps_the_log_of_the_first(submit, project, wait_until) -> None:
    job = submit(FAILS.replace("return attempt", "time.sleep(600)").replace("FAILURES", "1").replace("RETRIES", "1"))
    wait_until(lambda: "this is attempt 1" in (job.logs() or ""), "the second attempt")

    job.cancel()

    log = [project.kinetic("jobs", "logs", job.job_id, "--attempt", str(number)).stdout for number in (0, 1)]
    assert "this is attempt 0\n" in log[0]
    assert "kinetic: attempt 0 failed: ValueError: attempt 0; trying again (retry 1 of 1)" in log[0]
    assert log[1] == "this is attempt 1\n"


def test_a_job_that_is_cancelled_is_not_tried_again(submit, wait_until) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            print("begun", flush=True)
            time.sleep(600)
        train = train.with_options(retries=5)
        """
    )
    wait_until(lambda: "begun" in (job.logs() or ""), "the job's first line")

    job.cancel()

    assert job.status() in {kinetic.JobStatus.FAILED, kinetic.JobStatus.NOT_FOUND}


def test_a_deadline_does_not_shorten_the_time_to_save_of_a_job_that_is_cancelled_just_before(
    submit, wait_until
) -> None:
    job = submit(
        """
        import signal

        def stop(*_):
            while time.monotonic() < begun + 3:  # a second after the deadline
                time.sleep(0.01)
            print("saved", flush=True)
            sys.exit(1)

        @on_cpu
        def train():
            global begun
            begun = time.monotonic()
            signal.signal(signal.SIGTERM, stop)
            print("begun", flush=True)
            time.sleep(600)
        """,
        "train.with_options(deadline=2).run_async()",
    )
    wait_until(lambda: "begun" in (job.logs() or ""), "the job's first line")

    job.cancel()

    assert "saved" in job.logs()
