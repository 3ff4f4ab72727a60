"""Results of jobs: printed, saved, collected, waited for."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import time


def test_a_result_is_printed_and_everything_is_kept(submit, kinetic) -> None:
    job_id = submit("add")

    told = [kinetic("jobs", "result", job_id) for _ in range(2)]

    assert told == [(0, "{'sum': 3}\n", "")] * 2
    assert kinetic("jobs", "status", job_id).out == f"{job_id}: SUCCEEDED\n"
    assert kinetic("jobs", "logs", job_id).out


def test_text_is_printed_as_it_is(submit, kinetic) -> None:
    assert kinetic("jobs", "result", submit("raw")).out == "plain [text]\n"


def test_a_value_that_json_cannot_hold_is_given_as_python_writes_it(submit, kinetic) -> None:
    page = json.loads(kinetic("jobs", "result", submit("strange"), "--json").out)

    assert (page["type"], page["repr"]) == ("builtins.tuple", "(nan, {1})")
    assert "value" not in page


def test_a_result_is_saved_as_a_pickle_and_kept(submit, kinetic, tmp_path) -> None:
    job_id = submit("add")

    told = kinetic("jobs", "result", job_id, "--save", "result.pkl")

    assert (told.code, told.out) == (0, "")
    assert pickle.loads((tmp_path / "result.pkl").read_bytes()) == {"sum": 3}
    assert kinetic("jobs", "result", job_id).out == "{'sum': 3}\n"


def test_a_pickle_with_the_name_of_another_format_is_warned_of(submit, kinetic, tmp_path) -> None:
    job_id = submit("add")

    told = kinetic("jobs", "result", job_id, "--save", "result.json")
    refused = kinetic("jobs", "result", job_id, "--save", "-")

    assert pickle.loads((tmp_path / "result.json").read_bytes()) == {"sum": 3}
    assert "warning: result.json will be a pickle" in told.err
    assert "next:  --save result.pkl; for JSON, instead of --save: --json" in told.err
    assert (refused.code, (tmp_path / "-").exists()) == (2, False)


def test_saving_replaces_a_file_only_by_force(submit, kinetic, tmp_path) -> None:
    job_id = submit("add")
    file = tmp_path / "result.pkl"
    file.write_text("precious")

    told = kinetic("jobs", "result", job_id, "--save", str(file))

    assert (told.code, file.read_text()) == (2, "precious")
    assert "--force" in told.err
    assert kinetic("jobs", "result", job_id, "--save", str(file), "--force").code == 0
    assert pickle.loads(file.read_bytes()) == {"sum": 3}
    assert {path.name for path in tmp_path.iterdir()} == {"home", "project", "result.pkl"}


def test_with_cleanup_a_result_is_printed_and_then_the_job_is_history(submit, kinetic) -> None:
    job_id = submit("add")

    told = kinetic("jobs", "result", job_id, "--cleanup")

    assert (told.code, told.out) == (0, "{'sum': 3}\n")
    assert kinetic("jobs", "list").out == ""
    assert kinetic("jobs", "list", "--all").rows[0][:3] == [job_id, "add", "SUCCEEDED"]
    again = kinetic("jobs", "result", job_id)
    assert again.code == 1
    assert "was collected at" in again.err


def test_a_value_that_could_not_be_written_is_not_removed(submit, kinetic, command, environment) -> None:
    job_id = submit("add")
    kinetic("jobs", "logs", job_id, "--follow")
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [*command, "jobs", "result", job_id, "--cleanup"], stdout=writing, env=environment, check=False
    )

    os.close(writing)
    assert done.returncode == 141
    assert kinetic("jobs", "result", job_id).out == "{'sum': 3}\n"


def test_a_failed_job_shows_its_own_traceback_and_ends_with_125(submit, kinetic) -> None:
    job_id = submit("bad")

    told = kinetic("jobs", "result", job_id)

    assert (told.code, told.out) == (125, "")
    assert told.err.startswith("Traceback (most recent call last):")
    assert 'raise ValueError("no such thing [/tmp/x]")' in told.err
    assert told.err.count("error: ") == 1
    assert "error: bad raised ValueError: no such thing [/tmp/x] [job-failed]" in told.err
    assert "collecting.py" not in told.err
    assert kinetic("jobs", "logs", job_id).out.startswith("about to fail\n")


def test_a_failed_job_as_json_is_one_document(submit, kinetic) -> None:
    told = kinetic("jobs", "result", submit("bad"), "--json")

    page = json.loads(told.out)
    assert (told.code, page["status"], page["error"]["type"]) == (125, "FAILED", "ValueError")


def test_waiting_ends_with_124_when_the_time_is_over_and_the_job_goes_on(submit, kinetic) -> None:
    job_id = submit("slow", "60")
    begun = time.monotonic()

    told = kinetic("jobs", "result", job_id, "--timeout", "0.5")

    assert (told.code, told.out) == (124, "")
    assert time.monotonic() - begun < 20
    assert "[timeout]" in told.err
    assert not kinetic("jobs", "status", job_id).out.endswith("FAILED\n")
