"""Listing, finding and showing jobs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess

import pytest


def test_a_job_is_listed_with_its_status_and_its_place(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    told = kinetic("jobs", "list")

    assert told.code == 0
    assert told.out.splitlines()[0].split("  ")[0] == "JOB ID"
    assert told.rows[0][:3] == [job_id, "add", "SUCCEEDED"]
    assert "this machine" in told.out


def test_the_newest_job_is_on_top_even_of_those_of_one_second(submit, kinetic) -> None:
    submitted = [submit("add") for _ in range(4)]

    assert [row[0] for row in kinetic("jobs", "ls").rows] == submitted[::-1]
    assert [row[0] for row in kinetic("jobs", "ls", "--limit", "2").rows] == submitted[:1:-1]
    assert kinetic("jobs", "status", "@last").out.startswith(submitted[-1])


def test_a_job_that_waits_says_for_what(submit, kinetic, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    submit("slow", "30")
    waiting = submit("add")

    assert "waits for one of 1 slots" in kinetic("jobs", "list").out
    told = kinetic("jobs", "status", waiting)
    assert (told.code, told.out) == (0, f"{waiting}: PENDING\n")
    assert "waits for one of 1 slots" in told.err


def test_a_failed_job_is_listed_with_its_reason(submit, kinetic) -> None:
    job_id = submit("bad")
    kinetic("jobs", "result", job_id)

    assert "ValueError: no such thing [/tmp/x]" in kinetic("jobs", "list").out
    told = kinetic("jobs", "status", job_id)
    assert (told.code, told.out) == (0, f"{job_id}: FAILED\n")
    assert "ValueError: no such thing [/tmp/x]" in told.err


def test_the_beginning_of_an_id_and_the_newest_mean_the_same_job(submit, kinetic) -> None:
    job_id = submit("add")

    found = {kinetic("jobs", "status", word).out.partition(":")[0] for word in (job_id, job_id[:7], "@last", "-")}

    assert found == {job_id}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("explain", "what:  it was cancelled; its log is kept\n"),
        ("logs", "started\n"),
        ("show", "reason            it was cancelled\n"),
        ("status", ": NOT_FOUND\n"),
        ("cancel", " was cancelled before\n"),
        ("cleanup", " is removed"),
    ],
)
def test_the_newest_job_is_still_the_newest_once_it_is_cancelled(submit, kinetic, wait_until, word, told) -> None:
    submit("add")
    newest = submit("slow", "30")
    wait_until(lambda: "started" in kinetic("jobs", "logs", newest).out, "the job's first line")
    assert newest in kinetic("jobs", "cancel", "@last").err

    said = kinetic("jobs", word, "@last")

    assert said.code == 0
    assert told in said.out + said.err
    assert word == "logs" or newest in said.out + said.err


def test_a_job_of_which_nothing_is_left_is_no_longer_the_newest(submit, kinetic) -> None:
    older, _ = submit("add"), submit("add")
    kinetic("jobs", "cleanup", "@last")

    assert kinetic("jobs", "status", "@last").out.startswith(older)


def test_the_beginning_of_two_ids_is_refused_with_both(submit, kinetic) -> None:
    both = {submit("add"), submit("add")}

    told = kinetic("jobs", "status", "cpu-add")

    assert (told.code, told.out) == (2, "")
    assert all(job_id in told.err for job_id in both)


def test_an_unknown_id_is_told_in_three_parts(submit, kinetic) -> None:
    job_id = submit("add")

    told = kinetic("jobs", "status", f"{job_id[:-1]}x")

    first, why, next_ = told.err.splitlines()
    assert (told.code, told.out) == (1, "")
    assert first.startswith("error: no job ")
    assert first.endswith(" [job-not-found]")
    assert why.startswith("why:   ")
    assert job_id in why
    assert next_ == "next:  kinetic jobs list --all"


def test_json_is_one_document_with_stable_names(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    listed = json.loads(kinetic("jobs", "list", "--json").out)
    status = json.loads(kinetic("jobs", "status", job_id, "--json").out)
    result = json.loads(kinetic("jobs", "result", job_id, "--json").out)

    assert listed["schema_version"] == status["schema_version"] == result["schema_version"] == 1
    assert listed["jobs"] == [status["job"]]
    assert set(status["job"]) == {
        *("emulation", "group_id", "group_index", "name", "tags", "command", "after", "progress"),
        *("job_id", "function", "status", "reason", "accelerator", "backend", "where", "attempt"),
        *("created_at", "started_at", "ended_at", "collected_at", "removed_at", "duration_seconds"),
    }
    assert status["job"]["status"] == "SUCCEEDED"
    assert (result["job_id"], result["value"], result["type"]) == (job_id, {"sum": 3}, "builtins.dict")


def test_a_list_on_a_terminal_is_no_wider_than_the_terminal(submit, tmp_path, command, environment) -> None:
    job_id = submit("bad")
    leader, follower = pty.openpty()
    subprocess.run(["stty", "cols", "70"], stdin=follower, check=True)

    subprocess.run(
        [*command, "jobs", "list"], stdout=follower, stderr=follower, env=environment, cwd=tmp_path, check=True
    )

    os.close(follower)
    told = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert job_id in told
    assert max(map(len, told.splitlines())) <= 70


def test_watching_more_jobs_than_the_terminal_has_lines_says_how_many_are_not_shown(
    submit, tmp_path, command, environment, wait_until
) -> None:
    newest = [submit("add") for _ in range(4)][-1]
    leader, follower = pty.openpty()
    subprocess.run(["stty", "cols", "200", "rows", "5"], stdin=follower, check=True)
    shown = bytearray()

    def shows(text: str) -> bool:
        shown.extend(os.read(leader, 1 << 16))
        return text.encode() in shown

    with subprocess.Popen(
        [*command, "jobs", "list", "--watch"], stdout=follower, stderr=follower, env=environment, cwd=tmp_path
    ) as watching:
        wait_until(lambda: shows("and 3 more rows"), "the last line", 30)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130

    assert newest.encode() in shown
    os.close(follower)
    os.close(leader)


def test_watching_shows_the_table_anew_until_ctrl_c(
    submit, kinetic, tmp_path, command, environment, wait_until
) -> None:
    first = submit("add")
    leader, follower = pty.openpty()
    subprocess.run(["stty", "cols", "120", "rows", "30"], stdin=follower, check=True)
    shown = bytearray()

    def shows(job_id: str) -> bool:
        shown.extend(os.read(leader, 1 << 16))
        return job_id.encode() in shown

    with subprocess.Popen(
        [*command, "jobs", "list", "--watch"], stdout=follower, stderr=follower, env=environment, cwd=tmp_path
    ) as watching:
        wait_until(lambda: shows(first), "the first table", 30)
        second = submit("bad")
        wait_until(lambda: shows(second), "the table with the second job", 30)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
    os.close(follower)
    os.close(leader)
