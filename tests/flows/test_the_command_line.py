"""The command line on real jobs: each command is a process of its own, and so is the script that submits."""

from __future__ import annotations

import json
import os
import pickle
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src"

SCRIPT = """
    import sys, time
    import kinetic

    class Grid:
        def __init__(self, side): self.side = side

    @kinetic.run(accelerator="cpu")
    def add(a, b):
        for number in range(10):
            print("line", number)
        print("[/tmp/x] [bold]as it is[/bold]")
        return {"sum": a + b}

    @kinetic.run(accelerator="cpu")
    def bad():
        print("about to fail")
        raise ValueError("no such thing [/tmp/x]")

    @kinetic.run(accelerator="cpu")
    def raw():
        sys.stdout.flush()
        sys.stdout.buffer.write(b"one\\n\\xff\\xfe two\\nno end")
        sys.stdout.flush()
        return "plain [text]"

    @kinetic.run(accelerator="cpu")
    def slow(seconds):
        print("started", flush=True)
        time.sleep(seconds)
        print("ended")
        return seconds

    @kinetic.run(accelerator="cpu")
    def strange():
        return float("nan"), {1}

    calls = {"add": (1, 2), "bad": (), "raw": (), "strange": (), "slow": tuple(map(float, sys.argv[2:]))}
    print(globals()[sys.argv[1]].run_async(*calls[sys.argv[1]]).job_id)
"""


class Told(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def submit(project) -> Callable[..., str]:
    """Return a function that submits a job from a script, and returns its id."""
    project.write("script.py", SCRIPT)

    def run(*words: str) -> str:
        done = project.run("script.py", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def environment() -> dict[str, str]:
    # A worker of xdist carries COLUMNS, which would overrule the width of a test's own terminal.
    ours = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    return {**ours, "PYTHONPATH": str(SOURCE), "NO_COLOR": "1"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "kinetic", *words]


@pytest.fixture
def kinetic(home, tmp_path) -> Callable[..., Told]:
    """Return a function that runs a command to its end, away from the project."""

    def run(*words: str, **more: object) -> Told:
        done = subprocess.run(
            command(*words), capture_output=True, env=environment(), cwd=tmp_path, timeout=60, check=False, **more
        )
        return Told(done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode())

    return run


@pytest.fixture
def start(home, tmp_path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a command and does not wait for it; what is left of it ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*words: str) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=tmp_path
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def rows(told: Told) -> list[list[str]]:
    return [line.split() for line in told.out.splitlines()[1:]]


# ------------------------------------------------------------------------------------------------------------- looking


def test_a_job_is_listed_with_its_status_and_its_place(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    told = kinetic("jobs", "list")

    assert told.code == 0
    assert told.out.splitlines()[0].split("  ")[0] == "JOB ID"
    assert rows(told)[0][:3] == [job_id, "add", "SUCCEEDED"]
    assert "this machine" in told.out


def test_the_newest_job_is_on_top_even_of_those_of_one_second(submit, kinetic) -> None:
    submitted = [submit("add") for _ in range(4)]

    assert [row[0] for row in rows(kinetic("jobs", "ls"))] == submitted[::-1]
    assert [row[0] for row in rows(kinetic("jobs", "ls", "--limit", "2"))] == submitted[:1:-1]
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
        *("job_id", "function", "status", "reason", "accelerator", "backend", "where", "attempt"),
        *("created_at", "started_at", "ended_at", "removed_at", "duration_seconds"),
    }
    assert status["job"]["status"] == "SUCCEEDED"
    assert (result["job_id"], result["value"], result["type"]) == (job_id, {"sum": 3}, "builtins.dict")


def test_a_list_on_a_terminal_is_no_wider_than_the_terminal(submit, tmp_path) -> None:
    job_id = submit("bad")
    leader, follower = pty.openpty()
    subprocess.run(["stty", "cols", "70"], stdin=follower, check=True)

    subprocess.run(
        command("jobs", "list"), stdout=follower, stderr=follower, env=environment(), cwd=tmp_path, check=True
    )

    os.close(follower)
    told = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert job_id in told
    assert max(map(len, told.splitlines())) <= 70


# ---------------------------------------------------------------------------------------------------------------- logs


def test_a_log_is_printed_byte_for_byte(submit, kinetic) -> None:
    job_id = submit("raw")
    kinetic("jobs", "result", job_id)

    expected = b"one\n\xff\xfe two\nno end".decode(errors="surrogateescape")
    assert kinetic("jobs", "logs", job_id) == (0, expected, "")
    assert kinetic("jobs", "logs", job_id, "--follow").out == expected


def test_brackets_in_a_log_are_printed_as_they_are(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    assert kinetic("jobs", "logs", job_id).out.endswith("[/tmp/x] [bold]as it is[/bold]\n")


def test_a_tail_is_exactly_the_last_lines(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    told = kinetic("jobs", "logs", job_id, "-n", "3")

    assert told.out == "line 8\nline 9\n[/tmp/x] [bold]as it is[/bold]\n"
    assert kinetic("jobs", "logs", job_id, "--tail", "0").out == ""
    assert kinetic("jobs", "logs", job_id, "--tail", "999").out == kinetic("jobs", "logs", job_id).out


def test_following_prints_each_line_once_and_ends_with_the_job(submit, kinetic) -> None:
    job_id = submit("slow", "1")

    told = kinetic("jobs", "logs", job_id, "--follow")

    assert (told.code, told.out) == (0, "started\nended\n")


def test_following_a_job_that_fails_ends_with_125(submit, kinetic) -> None:
    told = kinetic("jobs", "logs", submit("bad"), "-f")

    assert told.code == 125
    assert told.out.startswith("about to fail\n")
    assert "error: bad raised ValueError" in told.err


def test_a_traceback_is_shown_once(submit, kinetic) -> None:
    told = kinetic("jobs", "logs", submit("bad"), "-f")

    assert (told.out + told.err).count("Traceback") == 1


def test_follow_and_tail_together_are_refused(submit, kinetic) -> None:
    told = kinetic("jobs", "logs", submit("add"), "-f", "-n", "3")

    assert (told.code, told.out) == (2, "")
    assert "do not go together" in told.err


def test_the_log_of_a_chosen_attempt_is_printed_and_one_that_was_not_is_refused(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    assert kinetic("jobs", "logs", job_id, "--attempt", "0").out == kinetic("jobs", "logs", job_id).out
    told = kinetic("jobs", "logs", job_id, "--attempt", "1")
    assert (told.code, told.out) == (2, "")
    assert "has no attempt 1" in told.err


def test_ctrl_c_while_following_lets_the_job_go_on(submit, start, kinetic) -> None:
    job_id = submit("slow", "60")
    following = start("jobs", "logs", job_id, "--follow")
    assert following.stdout is not None
    assert following.stdout.readline() == b"started\n"

    following.send_signal(signal.SIGINT)
    _, told = following.communicate(timeout=10)

    assert following.returncode == 130
    assert f"{job_id} goes on; cancel it with: kinetic jobs cancel {job_id}" in told.decode()
    assert "Traceback" not in told.decode()
    assert kinetic("jobs", "status", job_id).out == f"{job_id}: RUNNING\n"


def test_a_closed_pipe_needs_no_words(submit, kinetic, tmp_path) -> None:
    kinetic("jobs", "result", submit("add"))
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        command("jobs", "logs", "@last"), stdout=writing, stderr=subprocess.PIPE, env=environment(), check=False
    )

    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


# -------------------------------------------------------------------------------------------------------------- results


def test_a_result_is_printed_and_everything_is_kept(submit, kinetic) -> None:
    job_id = submit("add")

    told = [kinetic("jobs", "result", job_id) for _ in range(2)]

    assert told == [Told(0, "{'sum': 3}\n", "")] * 2
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
    assert rows(kinetic("jobs", "list", "--all"))[0][:3] == [job_id, "add", "SUCCEEDED"]
    again = kinetic("jobs", "result", job_id)
    assert again.code == 1
    assert "was removed" in again.err


def test_a_value_that_could_not_be_written_is_not_removed(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "logs", job_id, "--follow")
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        command("jobs", "result", job_id, "--cleanup"), stdout=writing, env=environment(), check=False
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


# --------------------------------------------------------------------------------------------------------------- ending


def test_a_cancelled_job_keeps_its_log_and_becomes_history(submit, start, kinetic) -> None:
    job_id = submit("slow", "60")
    following = start("jobs", "logs", job_id, "--follow")
    assert following.stdout is not None
    assert following.stdout.readline() == b"started\n"

    told = kinetic("jobs", "cancel", job_id)

    _, said = following.communicate(timeout=20)
    assert (told.code, told.out) == (0, "")
    assert f"{job_id} is cancelled" in told.err
    assert following.returncode == 125
    assert "was cancelled" in said.decode()
    assert kinetic("jobs", "status", job_id).out == f"{job_id}: NOT_FOUND\n"
    assert kinetic("jobs", "logs", job_id).out == "started\n"
    assert kinetic("jobs", "list").out == ""
    assert rows(kinetic("jobs", "list", "--all"))[0][:3] == [job_id, "slow", "CANCELLED"]
    assert kinetic("jobs", "result", job_id).code == 125


def test_cancelling_a_job_that_has_ended_changes_nothing(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    told = kinetic("jobs", "cancel", job_id)

    assert told.code == 0
    assert "had ended before it could be cancelled: it is SUCCEEDED" in told.err
    assert kinetic("jobs", "result", job_id).out == "{'sum': 3}\n"


def test_cleaning_up_removes_a_job_and_leaves_its_history(submit, kinetic, home) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    told = kinetic("jobs", "cleanup", job_id)

    assert (told.code, told.out) == (0, "")
    assert not (home / "store" / job_id).exists()
    (page,) = json.loads(kinetic("jobs", "list", "--all", "--json").out)["jobs"]
    assert (page["job_id"], page["status"], page["where"]) == (job_id, "SUCCEEDED", "this machine")
    assert page["removed_at"]


def test_cleaning_up_the_resource_alone_keeps_the_result(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    assert kinetic("jobs", "cleanup", job_id, "--no-gcs").code == 0

    assert kinetic("jobs", "result", job_id).out == "{'sum': 3}\n"
    assert kinetic("jobs", "list").out == ""


def test_cleaning_up_nothing_is_a_mistake_on_the_command_line(submit, kinetic) -> None:
    assert kinetic("jobs", "cleanup", submit("add"), "--no-k8s", "--no-gcs").code == 2


def test_cleaning_up_a_running_job_ends_it_and_says_so(submit, kinetic) -> None:
    job_id = submit("slow", "60")

    told = kinetic("jobs", "cleanup", job_id)

    assert told.code == 0
    assert "and was ended" in told.err
    assert kinetic("jobs", "list").out == ""


# ------------------------------------------------------------------------------------------------------ odd situations


def test_a_damaged_result_does_not_hide_the_other_jobs(submit, kinetic, home) -> None:
    good, damaged = submit("add"), submit("add")
    for job_id in (good, damaged):
        kinetic("jobs", "result", job_id)
    file = home / "store" / damaged / "result.pkl"
    file.write_bytes(file.read_bytes().replace(b'"succeeded"', b'"succeedeb"'))

    told = kinetic("jobs", "list")

    assert {row[0]: row[2] for row in rows(told)}[good] == "SUCCEEDED"
    assert "wrong seal" in next(line for line in told.out.splitlines() if line.startswith(damaged))
    refused = kinetic("jobs", "result", damaged)
    assert (refused.code, refused.out) == (1, "")
    assert "[seal]" in refused.err


def test_a_job_of_another_machine_is_listed_with_its_host(submit, kinetic, monkeypatch) -> None:
    job_id = submit("slow", "60")
    monkeypatch.setenv("KINETIC_MACHINE_ID", "another-one")

    (page,) = json.loads(kinetic("jobs", "list", "--json").out)["jobs"]

    assert (page["job_id"], page["where"]) == (job_id, f"host {os.uname().nodename}")
    assert page["status"] in {"PENDING", "RUNNING"}
    assert page["reason"] == "only the machine that runs it can see it"


def test_a_result_whose_key_is_elsewhere_is_not_opened(submit, kinetic, home) -> None:
    job_id = submit("add")
    kinetic("jobs", "logs", job_id, "--follow")
    (key_id,) = [row[0] for row in rows(kinetic("key", "list"))]
    key = kinetic("key", "export", key_id).out
    (home / "keys" / key_id).unlink()

    told = kinetic("jobs", "result", job_id, "--save", "result.pkl")

    assert (told.code, told.out) == (1, "")
    assert f"kinetic key export {key_id}" in told.err
    assert kinetic("key", "import", input=key.encode()).code == 0
    assert kinetic("jobs", "result", job_id).out == "{'sum': 3}\n"


def test_ctrl_c_while_waiting_for_a_result_lets_the_job_go_on(submit, start, kinetic, wait_until) -> None:
    job_id = submit("slow", "60")
    waiting = start("jobs", "result", job_id)
    wait_until(lambda: kinetic("jobs", "status", job_id).out == f"{job_id}: RUNNING\n", "the job's start")
    time.sleep(0.5)  # the command needs some 0.2 s to come to its waiting, and nothing outside shows when it is there

    waiting.send_signal(signal.SIGINT)
    out, told = waiting.communicate(timeout=10)

    assert (waiting.returncode, out) == (130, b"")
    assert f"kinetic jobs cancel {job_id}" in told.decode()
    assert kinetic("jobs", "status", job_id).out == f"{job_id}: RUNNING\n"
