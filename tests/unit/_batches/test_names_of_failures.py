"""A failing input names itself, in the exception, its traceback, and wherever it travels."""

from __future__ import annotations

import pickle
import traceback
from types import SimpleNamespace

import pytest

from kinetic._batches import collection, display
from kinetic._wire.input_table import Input, Table
from kinetic.errors import BatchError, CallableError, JobCancelledError, JobError, PredecessorError


def batch_of(total: int, *, missing: tuple[int, ...] = (), refused: dict[int, Exception] | None = None):
    jobs = [
        None if index in missing else SimpleNamespace(job_id=f"cpu-f-{index}", _past=None) for index in range(total)
    ]
    table = Table(tuple(Input(f"x={index}") for index in range(total)))
    return SimpleNamespace(group_id="grp-0a1b2c3d", jobs=jobs, _submission_errors=dict(refused or {}), _table=table)


def error_of(batch, failed, *, values=()) -> BatchError:
    failures = [job for index in failed if (job := batch.jobs[index]) is not None]
    return collection._error(batch, dict.fromkeys(values, 0.5), failed, failures)


def test_the_message_alone_names_the_first_of_those_that_failed():
    batch = batch_of(10)

    error = error_of(batch, {7: ValueError("no such rate\nmore"), 3: KeyError("lr")})

    assert str(error) == (
        "batch grp-0a1b2c3d: 2 of 10 jobs failed\n"
        "[3] input x=3: KeyError: 'lr'\n"
        "    kinetic jobs logs cpu-f-3\n"
        "[7] input x=7: ValueError: no such rate\n"
        "    kinetic jobs logs cpu-f-7"
    )


@pytest.mark.parametrize(("values", "what"), [((0,), "1 other value is"), ((0, 2), "2 other values are")])
def test_the_message_names_the_command_for_the_values_of_the_others(values, what):
    error = error_of(batch_of(3), {1: KeyError("lr")}, values=values)

    assert str(error).splitlines()[-1] == f"{what} kept: kinetic batch results grp-0a1b2c3d"


def test_the_message_counts_no_value_as_kept_that_was_collected_before():
    batch = batch_of(4)
    batch.jobs[0]._past = batch.jobs[2]._past = {"collected": 1.0}

    error = error_of(batch, {1: KeyError("lr")}, values=(0, 2, 3))

    assert str(error).splitlines()[-1] == "1 other value is kept: kinetic batch results grp-0a1b2c3d"


def test_an_input_that_never_started_is_explained_because_it_has_no_log():
    error = error_of(batch_of(2), {1: PredecessorError("cpu-a (a) failed, so the job that follows it cannot start")})

    assert str(error).splitlines()[-1] == "    kinetic jobs explain cpu-f-1"


def test_a_traceback_shows_each_name_once_and_the_first_exception_as_the_cause():
    error = error_of(batch_of(10), {3: KeyError("lr")})

    shown = "".join(traceback.format_exception(error))

    assert shown.count("kinetic jobs logs cpu-f-3") == 1
    assert "KeyError: 'lr'" in shown.partition("direct cause")[0]


def test_what_failed_by_itself_is_named_before_what_was_cancelled_because_of_it():
    cancelled = {index: JobCancelledError(f"cpu-f-{index} was cancelled") for index in range(9)}
    error = error_of(batch_of(20, missing=(11, 12)), {**cancelled, 10: ZeroDivisionError("x"), 11: cancelled[0]})

    first, second, *_, last = str(error).splitlines()

    assert first == "batch grp-0a1b2c3d: 1 of 20 jobs failed, 9 cancelled, 1 not submitted"
    assert second == "[10] input x=10: ZeroDivisionError: x"
    assert last == "and 6 more: kinetic batch status grp-0a1b2c3d --all"
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_an_input_that_could_not_be_submitted_counts_as_such():
    refused = {4: CallableError("f() takes no b")}
    batch = batch_of(6, missing=(4,), refused=refused)

    error = error_of(batch, dict(refused))

    assert str(error) == (
        "batch grp-0a1b2c3d: 0 of 6 jobs failed, 1 refused\n[4] input x=4: CallableError: f() takes no b [callable]"
    )
    assert error.partial_results == [None] * 4 + [refused[4], None]


def test_a_batch_that_was_cancelled_has_no_cause():
    error = error_of(batch_of(2), {0: JobCancelledError("cpu-f-0 was cancelled")})

    assert error.__cause__ is None


def test_a_killed_job_is_the_cause_with_what_it_knows_of_its_end():
    killed = JobError("f failed: it was killed by SIGKILL", why="the last lines of its log:\n       step 3")

    error = error_of(batch_of(2), {0: killed})

    assert error.__cause__ is killed


def test_the_words_survive_pickling():
    error = error_of(batch_of(10), {3: KeyError("lr")})
    error.failures = []
    error.add_note("a note")

    found = pickle.loads(pickle.dumps(error))

    assert (str(found), found.group_id, found.partial_results) == (str(error), "grp-0a1b2c3d", [None] * 10)
    assert found.__notes__ == ["a note"]


def test_one_that_somebody_else_raises_names_the_logs_as_well():
    failed = [SimpleNamespace(job_id=f"cpu-f-{index}") for index in range(7)]

    assert str(BatchError("grp-0a1b2c3d", failed, [None] * 9)).splitlines()[:2] == [
        "batch grp-0a1b2c3d: 7 of 9 jobs failed",
        "    kinetic jobs logs cpu-f-0",
    ]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("\x1b[31mred", "ValueError: \\x1b[31mred"),
        ("", "ValueError"),
        ("x" * 500, f"ValueError: {'x' * 199}…"),
        ("first\nsecond", "ValueError: first"),
    ],
)
def test_what_an_exception_says_fits_a_line_and_cannot_move_the_cursor(message: str, said: str):
    assert display.first_line(ValueError(message)) == said


def test_an_exception_whose_text_fails_is_named_by_its_class():
    class OddError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert display.first_line(OddError()) == "OddError"
