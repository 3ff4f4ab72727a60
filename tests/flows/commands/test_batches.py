"""``kinetic batch`` on real batches: each command is a process of its own, and so is the script that submits."""

from __future__ import annotations

import json
import os
import pickle
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
    import os, sys, time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def f(x):
        print("log of", x)
        if x == "bad" and not os.path.exists({fixed!r}):
            raise ValueError("no such \\x1b[31mthing")
        while x == "slow" and not os.path.exists({until!r}):
            time.sleep(0.01)
        return [x]

    if __name__ == "__main__":
        then, limit, *inputs = sys.argv[1:]
        batch = f.run_async_map(inputs, max_concurrent=int(limit) or None, name="letters")
        print(batch.group_id, flush=True)
        if then == "wait":
            batch.wait()
        if then == "die":
            while not batch.status_counts().get("SUCCEEDED"):
                time.sleep(0.01)
            os.kill(os.getpid(), 9)
"""


@pytest.fixture
def until(tmp_path) -> Path:
    """Return the file for which slow jobs wait."""
    return tmp_path / "until"


@pytest.fixture
def fixed(tmp_path) -> Path:
    """Return the file with which bad inputs are no longer bad."""
    return tmp_path / "fixed"


@pytest.fixture
def submit(project, until, fixed) -> Callable[..., str]:
    """Return a function that submits a batch of words and returns its id."""
    project.write("script.py", SCRIPT.format(until=str(until), fixed=str(fixed)))

    def run(*inputs: str, then: str = "wait", limit: int = 0) -> str:
        done = project.run("script.py", then, str(limit), *inputs)
        assert done.returncode == (-9 if then == "die" else 0), done.stderr
        return done.stdout.strip()

    return run


def test_a_batch_is_listed_shown_collected_and_removed(submit, kinetic, tmp_path) -> None:
    group_id = submit("a", "bad", "c")

    listed = kinetic("batch", "list")
    assert listed.code == 0
    assert listed.out.splitlines()[1].split("  ")[0] == group_id
    assert "2 succeeded, 1 failed" in listed.out

    shown = kinetic("batch", "status", "@last")
    assert shown.code == 0
    assert shown.out.splitlines()[0] == f"{group_id}: 2 succeeded, 1 failed, of 3"
    rows = [line.split() for line in shown.out.splitlines()[4:]]
    assert [row[:3] for row in rows] == [["0", "'a'", "succeeded"], ["1", "'bad'", "failed"], ["2", "'c'", "succeeded"]]
    assert "ValueError: no such \\x1b[31mthing" in shown.out
    assert f"log of [1]:  kinetic batch logs {group_id} 1" in shown.err

    log = kinetic("batch", "logs", group_id, "1")
    assert (log.code, log.out.splitlines()[0]) == (0, "log of bad")
    assert f"{group_id} had ended before: 2 succeeded, 1 failed" in kinetic("batch", "cancel", group_id).err

    printed = kinetic("batch", "results", group_id)
    assert (printed.code, printed.out) == (125, "[0] ['a']\n[2] ['c']\n")
    assert "1 of 3 inputs" in printed.err
    assert "[1] input 'bad': f raised ValueError" in printed.err

    file = tmp_path / "found.pkl"
    saved = kinetic("batch", "results", group_id, "--save", str(file), "--cleanup")
    assert (saved.code, saved.out) == (125, "")
    assert pickle.loads(file.read_bytes()) == [["a"], None, ["c"]]

    again = kinetic("batch", "results", group_id)
    assert (again.code, again.out) == (125, "")
    assert "[0] input 'a': its result was already collected; its log is kept" in again.err
    pages = json.loads(kinetic("batch", "results", group_id, "--json").out)["results"]
    assert [page["error"]["code"] for page in pages] == ["collected", "job-failed", "collected"]
    assert "collected" in kinetic("batch", "status", group_id).out

    assert kinetic("batch", "cleanup", group_id).code == 2
    assert kinetic("batch", "list").out != ""
    assert kinetic("batch", "cleanup", group_id, "--yes").code == 0
    gone = kinetic("batch", "status", group_id)
    assert (gone.code, gone.out) == (1, "")
    assert "[batch-not-found]" in gone.err


def test_the_logs_of_all_inputs_are_searched_at_once(submit, kinetic) -> None:
    group_id = submit("a", "bad", "c", "bad")

    everything = kinetic("batch", "logs", group_id)
    assert everything.code == 0
    lines = everything.out.splitlines()
    assert [line for line in lines if "log of" in line] == [
        "[0] log of a",
        "[1] log of bad",
        "[2] log of c",
        "[3] log of bad",
    ]
    assert lines == sorted(lines, key=lambda line: int(line[1]))

    found = kinetic("batch", "logs", group_id, "--search", "LOG OF C".lower())
    assert (found.code, found.out, found.err) == (0, "[2] log of c\n", "")
    failed = kinetic("batch", "logs", "@last", "--failed", "--search", "log of", "--host", "all")
    assert failed.out == "[1] [host 0] log of bad\n[3] [host 0] log of bad\n"
    ends = kinetic("batch", "logs", group_id, "--tail", "1", "--timestamps").out.splitlines()
    assert [re.sub(r" \d{4}-\S+Z ", " ", line)[:16] for line in ends] == [
        "[0] log of a",
        "[1] ValueError: ",
        "[2] log of c",
        "[3] ValueError: ",
    ]

    assert kinetic("batch", "results", group_id, "--cleanup").code == 125
    assert kinetic("batch", "logs", group_id).out == everything.out  # from the history


def test_inputs_without_a_log_are_counted(project, kinetic) -> None:
    project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def f(x):
            print("log of", x)

        batch = f.run_async_map([1, 2])
        batch.wait()
        batch.jobs[0].cleanup()
        """
    )

    shown = kinetic("batch", "logs", "@last")

    assert (shown.code, shown.out, shown.err) == (0, "[1] log of 2\n", "1 input has no log\n")


@pytest.mark.parametrize("option", [("--follow",), ("--raw",), ("--attempt", "0")])
def test_what_is_of_one_log_requires_the_index_of_an_input(submit, kinetic, option) -> None:
    group_id = submit("a")

    refused = kinetic("batch", "logs", group_id, *option)

    assert (refused.code, refused.out) == (2, "")
    assert f"error: {option[0]} requires INDEX" in refused.err
    assert kinetic("batch", "logs", group_id, "0", *option).out == "log of a\n"
    assert f"next:  kinetic batch logs {group_id} 0 {' '.join(option)}" in refused.err
    assert kinetic("batch", "logs", group_id, "0", "--failed").code == 2


def test_logs_that_do_not_fit_into_memory_are_printed_whole_and_in_order(project, kinetic) -> None:
    project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def f(x):
            for number in range(3000 * x):
                print(number, "x" * 1000)

        f.run_async_map([1, 0, 2]).wait()
        """
    )

    lines = kinetic("batch", "logs", "@last").out.splitlines()

    assert [line.partition(" x")[0] for line in lines] == [
        *(f"[0] {number}" for number in range(3000)),
        *(f"[2] {number}" for number in range(6000)),
    ]


def test_what_was_cleaned_up_is_not_called_collected(project, kinetic) -> None:
    said = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def f(x):
            return x

        batch = f.run_async_map([1, 2])
        batch.wait()
        batch.jobs[0].cleanup()
        batch.jobs[1].cleanup(gcs=False)
        print(batch.group_id)
        """
    )

    shown, printed = kinetic("batch", "status", said.strip(), "--json"), kinetic("batch", "results", said.strip())

    assert [row["reason"] for row in json.loads(shown.out)["jobs"]] == ["removed", ""]
    assert "[0] input 1: it was already removed" in printed.err
    assert printed.out == "[1] 2\n"


def test_the_same_as_json(submit, kinetic) -> None:
    group_id = submit("a", "bad")

    listed = json.loads(kinetic("batch", "list", "--json").out)["batches"]
    shown = json.loads(kinetic("batch", "status", group_id, "--json").out)
    results = json.loads(kinetic("batch", "results", group_id, "--json").out)["results"]
    cleaned = json.loads(kinetic("batch", "cleanup", group_id, "--yes", "--json").out)

    assert [(page["group_id"], page["name"], page["total"], page["driver"]) for page in listed] == [
        (group_id, "letters", 2, None)
    ]
    assert shown["batch"]["counts"]["failed"] == 1
    assert [(page["index"], page["input"], page["status"], page["attempt"]) for page in shown["jobs"]] == [
        (0, "'a'", "SUCCEEDED", 0),
        (1, "'bad'", "FAILED", 0),
    ]
    assert shown["jobs"][0]["duration_seconds"] >= 0
    assert results[0]["value"] == ["a"]
    assert results[1]["error"]["type"] == "ValueError"
    assert cleaned["removed"] is True


def test_a_batch_whose_driver_was_killed_says_so_and_is_resumed(submit, kinetic, fixed) -> None:
    group_id = submit("a", "b", "bad", "d", "e", "f", then="die", limit=1)

    listed, left = kinetic("batch", "list"), kinetic("batch", "status", group_id)
    watched = kinetic("batch", "status", group_id, "--watch", "--timeout", "30s")
    collected = kinetic("batch", "results", group_id, "--timeout", "30s")

    assert "none" in listed.out
    for told in (listed, left, watched, collected):
        assert f"kinetic batch resume {group_id}" in told.err
    assert (watched.code, collected.code) == (125, 125)

    resumed = kinetic("batch", "resume", group_id)
    kinetic("batch", "status", group_id, "--watch", "--timeout", "30s")
    fixed.touch()
    retried = kinetic("batch", "resume", group_id, "--failed")
    results = kinetic("batch", "results", group_id, "--timeout", "30s")

    assert (resumed.code, retried.code) == (0, 0), resumed.err + retried.err
    assert f"{group_id}: runs 1 failed input again, with the code that was submitted " in retried.err
    assert "edited code needs a new batch" in retried.err
    assert (results.code, len(results.out.splitlines())) == (0, 6), results.err
    assert kinetic("batch", "logs", group_id, "2", "--attempt", "1").out == "log of bad\n"
    assert "Traceback" in kinetic("batch", "logs", group_id, "2", "--attempt", "0").out
    done = kinetic("batch", "resume", group_id)
    assert (done.code, "all inputs were submitted" in done.err) == (0, True)


def test_a_list_of_jobs_tells_inputs_that_were_not_submitted_from_collected_ones(submit, kinetic, project) -> None:
    group_id = submit("a", "b", "c", "d", then="die", limit=1)

    left = kinetic("jobs", "list")
    cancelled = kinetic("batch", "cancel", group_id), kinetic("jobs", "list")
    collected = submit("a", "bad", "c"), kinetic("batch", "results", "@last", "--cleanup")
    failed = kinetic("jobs", "list")

    # The second one may have been launched before its driver died.
    assert re.search(f"{group_id}  .* PENDING .* SUCCEEDED, [23] not submitted, and no process does it  ", left.out), (
        left.out
    )
    assert f"next:  kinetic batch resume {group_id}" in left.err
    assert "supervisor" not in left.err
    assert re.search(f"{group_id}  .* CANCELLED .* [23] not submitted  ", cancelled[1].out), cancelled
    assert "resume" not in cancelled[1].err
    assert re.search(f"{collected[0]}  .* FAILED  +1 of 3 jobs of batch letters: 1 FAILED  ", failed.out), failed.out


def test_ctrl_c_leaves_a_resumed_batch_to_be_resumed_again(submit, kinetic, start, until, wait_until, home) -> None:
    group_id = submit("a", "slow", "c", "d", then="die", limit=1)
    resuming = start("batch", "resume", group_id)

    def is_driven() -> bool:
        page = json.loads(kinetic("batch", "list", "--json").out)["batches"][0]
        return page["driver"] == {"machine": os.uname().nodename, "pid": resuming.pid} and page["counts"]["running"] > 0

    wait_until(is_driven, "somebody drives the batch", 60)
    resuming.send_signal(signal.SIGINT)
    _, err = resuming.communicate(timeout=30)

    assert resuming.returncode == 130, err
    assert f"detached from {group_id}" in err.decode()
    assert f"kinetic batch resume {group_id}" in err.decode()
    page = json.loads(kinetic("batch", "list", "--json").out)["batches"][0]
    assert (page["driver"], page["is_left"]) == (None, True)

    until.touch()
    assert kinetic("batch", "resume", group_id).code == 0
    results = kinetic("batch", "results", group_id, "--timeout", "30s")
    assert results.out.splitlines() == ["[0] ['a']", "[1] ['slow']", "[2] ['c']", "[3] ['d']"]


def test_a_batch_is_cancelled_with_what_waits(submit, kinetic, project) -> None:
    group_id = submit("slow", "slow", "slow", then="leave")

    cancelled = kinetic("batch", "cancel", group_id)

    assert cancelled.code == 0
    assert f"{group_id} is cancelled: 3 jobs cancelled" in cancelled.err
    shown = kinetic("batch", "status", group_id, "--watch")
    assert (shown.code, shown.out.splitlines()[0]) == (125, f"{group_id}: 3 cancelled, of 3")
    refused = kinetic("batch", "resume", group_id, "--failed")
    assert (refused.code, "nothing has failed" in refused.err) == (0, True)


def test_only_what_failed_is_shown_when_that_is_asked_for_and_a_long_table_is_cut(submit, kinetic) -> None:
    group_id = submit(*map(str, range(12)), "bad", *map(str, range(12)))

    short, failed, whole = (kinetic("batch", "status", group_id, *words) for words in ((), ("--failed",), ("--all",)))

    rows = [line.split() for line in short.out.splitlines()[4:]]
    assert (len(rows), rows[0][0]) == (20, "12")  # what failed comes first
    assert f"and 5 more: kinetic batch status {group_id} --all" in short.err
    assert [line.split()[0] for line in failed.out.splitlines()[4:]] == ["12"]
    assert [int(line.split()[0]) for line in whole.out.splitlines()[4:]] == list(range(25))


def test_a_batch_that_is_meant_by_mistake_is_refused_with_the_way_on(submit, kinetic) -> None:
    assert "[batch-not-found]" in kinetic("batch", "status", "@last").err
    first, second = submit("a"), submit("b")

    assert kinetic("batch", "status", second[:11]).code in {0, 2}  # 2: the two begin alike
    ambiguous = kinetic("batch", "status", "grp-")
    assert (ambiguous.code, "[ambiguous-id]" in ambiguous.err) == (2, True)
    assert all(group_id in ambiguous.err for group_id in (first, second))
    assert kinetic("batch", "logs", first, "7").code == 2
    assert kinetic("batch", "logs", first, "0", "--attempt", "7").code == 2
    unknown = kinetic("batch", "status", "nonsense")
    assert (unknown.code, "no batch has the name 'nonsense' [batch-not-found]" in unknown.err) == (1, True)
    assert kinetic("batch", "results", first, "--save", "/no/such/folder/x.pkl").code == 2


def test_on_a_terminal_a_batch_is_watched_live_and_one_line_is_left(submit, command, environment, until) -> None:
    group_id = submit("a", "bad", "slow", then="leave")
    main, sub = pty.openpty()
    watching = subprocess.Popen(
        [*command, "batch", "status", group_id, "--watch"],
        stdout=subprocess.PIPE,
        stderr=sub,
        env={**environment, "TERM": "xterm"},
    )
    os.close(sub)

    seen = _read_until(main, "running")
    until.touch()
    out, _ = watching.communicate(timeout=60)
    seen += _read_until(main, None)

    assert watching.returncode == 125
    assert out.decode().splitlines()[0] == f"{group_id}: 2 succeeded, 1 failed, of 3"
    assert "failed: [1] input 'bad': ValueError: no such \\x1b[31mthing" in seen
    assert f"for {group_id}: 2 succeeded, 1 failed" in seen
    assert "\x1b[31m" not in seen


def _read_until(terminal: int, word: str | None) -> str:
    """Read what appears on a terminal, until a word does, or until its end."""
    seen = b""
    while word is None or word.encode() not in seen:
        try:
            found = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not found:
            break
        seen += found
    return seen.decode()


def test_an_input_that_was_named_and_never_launched_is_not_waited_for_and_is_resumed(
    submit, kinetic, project, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("KINETIC_TEST_KILL", f"driver:child-written@{tmp_path / 'killed'}")
    died = project.run("script.py", "leave", "1", "a", "b")
    monkeypatch.delenv("KINETIC_TEST_KILL")

    left = kinetic("batch", "status", "@last", "--watch", "--timeout", "30s")
    resumed = kinetic("batch", "resume", "@last")
    results = kinetic("batch", "results", "@last", "--timeout", "30s")

    assert died.returncode == -9, died.stderr
    assert "2 inputs are not submitted" in left.err
    assert (left.code, resumed.code, results.out) == (125, 0, "[0] ['a']\n[1] ['b']\n")
