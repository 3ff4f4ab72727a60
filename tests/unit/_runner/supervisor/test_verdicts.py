"""From what a worker said and how its process ended to the verdict: a table."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic._runner.supervisor import verdicts
from kinetic._runner.supervisor.verdicts import Ending
from kinetic._wire.task import PodSettings, Task

GIB = 2**30
GOOD = {"status": "succeeded", "cause": "value", "phase": "execute"}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(100)))
    more = {"attempt": 2, "base": str(tmp_path), "memory_bytes": 2 * GIB}
    return Task("cpu-train-1", "", "", "", 0o022, 1.5, {}, **more)


def judge(task: Task, machine_bytes: int = 0, **ending):
    made = Ending(**{"status": 0, "phase": "execute", **ending})
    return verdicts.judge(task, made, started=1.0, ended=2.0, machine_bytes=machine_bytes)


def exited(code: int) -> int:
    return code << 8


ENDS = {
    "an exit code": ({"status": exited(3)}, "exit", "ended by itself with exit code 3, as os._exit(3) does"),
    "exit code 0 without a word": ({"status": exited(0)}, "exit", "exit code 0"),
    "SIGTERM": ({"status": signal.SIGTERM}, "signal", "ended by SIGTERM, sent from outside"),
    "SIGHUP": ({"status": signal.SIGHUP}, "signal", "ended by SIGHUP, sent from outside"),
    "SIGKILL": ({"status": signal.SIGKILL}, "signal", "SIGKILL: it was killed with kill -9, or by the kernel"),
    "SIGSEGV": ({"status": signal.SIGSEGV}, "signal", "a segmentation fault in native code"),
    "SIGSEGV with a core": ({"status": signal.SIGSEGV | 0x80}, "signal", "a segmentation fault in native code"),
    "SIGABRT": ({"status": signal.SIGABRT}, "signal", "ended by SIGABRT"),
    "a number without a name": ({"status": 40}, "signal", "ended by signal 40"),
    "the kernel, as it counted": (
        {"status": signal.SIGKILL, "memory_kill": True, "peak_bytes": 3 * GIB},
        "memory",
        "ran out of memory: the kernel killed it (SIGKILL) at about 3.0 GiB",
    ),
    "the kernel, by its size": ({"status": signal.SIGKILL, "peak_bytes": 8 * GIB}, "memory", "ran out of memory"),
    "its memory": (
        {"status": signal.SIGKILL, "held_bytes": 3 * GIB},
        "memory",
        "the job ran out of memory: it asked for 2 GiB, and its processes held 3 GiB",
    ),
    "a deadline": ({"status": signal.SIGKILL, "deadline": True}, "deadline", "at its deadline of 1.5 s"),
    "a wish": ({"status": signal.SIGTERM, "stopped": True}, "stopped", "ended on request"),
    "nobody knows how": ({"status": None}, "lost", "the supervisor of this job was killed, and the job with it"),
}


@pytest.mark.parametrize(("ending", "cause", "said"), ENDS.values(), ids=list(ENDS))
def test_an_end_without_a_word_is_a_failure_in_a_plain_sentence(task: Task, ending, cause: str, said: str) -> None:
    verdict = judge(task, 10 * GIB, **ending)

    assert (verdict.status, verdict.cause) == ("failed", cause)
    assert said in verdict.error["message"]
    assert verdict.error["log"].splitlines() == [f"line {number}" for number in range(80, 100)]
    assert (verdict.job_id, verdict.attempt, verdict.started, verdict.ended) == ("cpu-train-1", 2, 1.0, 2.0)


def test_who_ran_out_of_memory_in_a_pod_is_told_how_to_get_more(task: Task) -> None:
    ending = {"status": signal.SIGKILL, "memory_kill": True}

    here = judge(task, 10 * GIB, **ending)
    in_a_pod = judge(replace(task, pod=PodSettings()), 10 * GIB, **ending)

    assert "next" not in here.error
    assert in_a_pod.error["next"].endswith('or resources = { memory = "32Gi" } under [tool.kinetic]')


def test_a_kill_of_a_small_process_is_not_blamed_on_memory(task: Task) -> None:
    verdict = judge(task, 10 * GIB, status=signal.SIGKILL, peak_bytes=1 * GIB)

    assert "ran out of memory" not in verdict.error["message"]


def test_a_good_word_counts_however_the_process_ended_afterwards(task: Task) -> None:
    task.body.write_bytes(b"12345")
    word = {**GOOD, "body_length": 5, "body_sha256": "abc", "value_type": "builtins.int", "files": ["a"]}

    verdict = judge(task, status=signal.SIGKILL, word=word)

    assert (verdict.status, verdict.cause, verdict.body_length) == ("succeeded", "value", 5)
    assert (verdict.value_type, verdict.files, verdict.error) == ("builtins.int", ("a",), {})


def test_a_value_that_was_there_at_the_deadline_counts_and_a_failure_after_it_does_not(task: Task) -> None:
    failed = {"status": "failed", "cause": "exception", "error": {"type": "SystemExit"}}

    value = judge(task, status=signal.SIGKILL, deadline=True, word=GOOD)
    failure = judge(task, status=signal.SIGKILL, deadline=True, word=failed)

    assert (value.status, value.cause) == ("succeeded", "value")
    assert (failure.status, failure.cause) == ("failed", "deadline")


@pytest.mark.parametrize("data", [None, b"", b"1234"])
def test_a_promised_body_must_be_there_in_full(task: Task, data: bytes | None) -> None:
    if data is not None:
        task.body.write_bytes(data)

    verdict = judge(task, status=exited(1), word={**GOOD, "body_length": 5, "body_sha256": "abc"})

    assert (verdict.status, verdict.cause) == ("failed", "exit")


def test_a_body_behind_which_a_dead_supervisor_wrote_its_page_is_there_in_full(task: Task) -> None:
    task.body.write_bytes(b"12345 and a page")

    assert judge(task, status=None, word={**GOOD, "body_length": 5, "body_sha256": "abc"}).status == "succeeded"


@pytest.mark.parametrize("word", [{}, {"status": "splendid"}, {"status": None}])
def test_a_word_that_means_nothing_is_no_word(task: Task, word) -> None:
    assert judge(task, status=exited(1), word=word).cause == "exit"


def test_a_word_that_was_on_disk_before_the_end_counts_as_well(task: Task) -> None:
    task.body.write_bytes(b"12345")
    task.word.write_text('{"status": "succeeded", "cause": "value", "body_length": 5, "body_sha256": "abc"}')

    assert judge(task, status=signal.SIGKILL).status == "succeeded"


def test_an_exception_tells_its_own_story_and_needs_no_log(task: Task) -> None:
    word = {"status": "failed", "cause": "exception", "error": {"type": "KeyError"}}

    assert judge(task, word=word).error == {"type": "KeyError"}


def test_a_failure_before_the_function_keeps_its_phase(task: Task) -> None:
    word = {"status": "failed", "cause": "runner", "phase": "payload unpickle", "error": {"type": "ImportError"}}

    assert judge(task, phase="execute", word=word).phase == "payload unpickle"
    assert judge(task, status=exited(1), phase="context extract").phase == "context extract"


def test_a_missing_log_is_an_empty_one(task: Task, tmp_path: Path) -> None:
    assert judge(replace(task, base=str(tmp_path / "none")), status=exited(1)).error["log"] == ""


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000 + b"\nthe end \xff\n")

    last = verdicts.last_lines(log)

    assert len(last) <= 8192
    assert last.endswith("the end \ufffd")


def test_the_stacks_of_python_are_the_last_lines_and_not_that_of_c_which_newer_ones_write_below(tmp_path: Path) -> None:
    log = tmp_path / "log"
    python = "Fatal Python error: Aborted\n\nCurrent thread 0x1 [python] (most recent call first):\n  File x in train"
    frames = "".join(f'  Binary file "python", at +{number}\n' for number in range(32))
    log.write_text(f"{python}\n\nCurrent thread's C stack trace (most recent call first):\n{frames}")

    assert verdicts.last_lines(log) == f"{python}\n"


@pytest.mark.parametrize(
    ("ending", "killed"),
    [
        ({"status": signal.SIGKILL}, True),
        ({"status": signal.SIGKILL, "deadline": True}, False),
        ({"status": signal.SIGKILL, "stopped": True}, False),
        ({"status": signal.SIGKILL, "memory_kill": True}, False),
        ({"status": signal.SIGTERM}, False),
        ({"status": exited(9)}, False),
        ({"status": None}, False),
    ],
)
def test_a_kill_from_outside_is_told_from_our_own_and_the_kernels(ending, killed: bool) -> None:
    assert Ending(**{"phase": "execute", **ending}).was_killed is killed
