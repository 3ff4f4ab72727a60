"""A job that was collected: its log and its record stay for 30 days, and every command finds them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

BLOCKING = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def talk(lines):
        for number in range(lines):
            print("line", number)
        return lines

    if __name__ == "__main__":
        talk(3)
"""


@pytest.fixture
def collected(project, home) -> str:
    """Call a function in a script that ends, and return the id of the job that ran for it."""
    project.write("blocking.py", BLOCKING)
    done = project.run("blocking.py")
    assert done.returncode == 0, done.stderr
    (page,) = home.glob("store/history/*.json")
    return page.stem


def test_the_log_of_a_collected_job_is_printed_by_whoever_lost_the_terminal(collected, kinetic) -> None:
    whole = kinetic("jobs", "logs", "@last")
    last = kinetic("jobs", "logs", collected, "--tail", "1")
    followed = kinetic("jobs", "logs", collected[:12], "--follow")

    assert (whole.code, whole.out) == (0, "line 0\nline 1\nline 2\n"), whole.err
    assert (last.code, last.out) == (0, "line 2\n")
    assert (followed.code, followed.out) == (0, whole.out)


def test_every_command_says_that_a_job_was_collected_and_how_it_ended(collected, kinetic) -> None:
    told = {word: kinetic("jobs", word, "@last") for word in ("status", "wait", "explain", "show", "cancel", "result")}

    for word in ("status", "wait", "explain"):
        assert re.match(rf"{collected}: SUCCEEDED \(collected \d+ s ago\)\n", told[word].out), told[word]
        assert told[word].code == 0
    assert re.search(r"^status +SUCCEEDED$", told["show"].out, re.MULTILINE)
    assert re.search(r"^log_bytes +21$", told["show"].out, re.MULTILINE)
    assert "it was SUCCEEDED, and was collected afterwards" in told["cancel"].err
    assert (told["result"].code, told["result"].out) == (1, "")
    assert f"{collected} was collected at " in told["result"].err
    assert f"/{collected}/result.pkl, and keeps the log" in told["result"].err
    assert f"kinetic jobs logs {collected}" in told["result"].err


def test_a_list_and_json_tell_collected_jobs_from_removed_ones(collected, kinetic) -> None:
    (listed,) = json.loads(kinetic("jobs", "list", "--all", "--json").out)["jobs"]
    status = json.loads(kinetic("jobs", "status", "@last", "--json").out)["job"]

    assert listed == status
    assert (status["status"], status["attempt"]) == ("SUCCEEDED", 0)
    assert status["created_at"] <= status["started_at"] <= status["ended_at"] <= status["collected_at"]
    assert re.search(r"SUCCEEDED +collected \d+s ago", kinetic("jobs", "list", "--all").out)
    assert kinetic("jobs", "list").out == ""


def test_an_attached_handle_of_a_collected_job_is_not_found_and_has_its_log_and_its_history(collected, project) -> None:
    told = json.loads(
        project.out(f"""
            import json, kinetic
            job = kinetic.attach({collected!r})
            try:
                job.result()
            except Exception as error:
                raised = [type(error).__name__, error.code]
            history = job.history()
            print(json.dumps([job.status().value, job.done(), job.logs(), job.tail(1), raised, history["status"]]))
        """)
    )

    log = "line 0\nline 1\nline 2\n"
    assert told == ["NOT_FOUND", True, log, "line 2", ["ResultMissingError", "collected"], "SUCCEEDED"]


def test_the_handle_that_collected_has_the_log_too_and_a_failure_that_was_cleaned_up_has_it_as_well(project) -> None:
    project.write("blocking.py", BLOCKING)
    told = json.loads(
        project.out("""
            import json, kinetic
            from blocking import talk

            @kinetic.run(accelerator="cpu")
            def bad():
                print("about to fail")
                raise ValueError("no such thing")

            good, failed = talk.run_async(2), bad.run_async()
            good.result()
            try:
                failed.result(cleanup=True)
            except ValueError:
                pass
            pages = [[j.status().value, j.tail(9), *map(j.history().get, ("status", "reason"))] for j in (good, failed)]
            print(json.dumps(pages))
        """)
    )

    assert told[0] == ["NOT_FOUND", "line 0\nline 1", "SUCCEEDED", ""]
    status, log, how, why = told[1]
    assert (status, how, why) == ("NOT_FOUND", "FAILED", "ValueError: no such thing")
    assert log.startswith("about to fail\nTraceback")


def test_children_of_a_collected_batch_keep_their_logs(project, kinetic) -> None:
    project.write("blocking.py", BLOCKING)
    told = json.loads(
        project.out("""
            import json, kinetic
            from blocking import talk
            batch = talk.run_async_map([1, 2])
            batch.results()
            assert (batch.summary(), batch.status_counts()) == ({"succeeded": 2}, {"NOT_FOUND": 2})
            assert kinetic.attach_batch(batch.group_id).summary() == {"succeeded": 2}
            print(json.dumps([[job.job_id, job.tail(9), job.history()["status"]] for job in batch.jobs]))
        """)
    )

    assert [words[1:] for words in told] == [["line 0", "SUCCEEDED"], ["line 0\nline 1", "SUCCEEDED"]]
    assert [kinetic("jobs", "logs", words[0]).out for words in told] == ["line 0\n", "line 0\nline 1\n"]
    page = json.loads(kinetic("jobs", "status", told[0][0], "--json").out)["job"]
    assert page["started_at"] <= page["ended_at"]


def test_cleanup_by_hand_removes_the_log_and_all_but_the_history(collected, kinetic, home) -> None:
    assert [*home.glob("store/history/~logs/*")]

    told = kinetic("jobs", "cleanup", collected)

    assert (told.code, "is removed" in told.err) == (0, True), told.err
    assert [*home.glob("store/history/~logs/*")] == []
    assert kinetic("jobs", "logs", collected).code == 1
    assert "was removed" in kinetic("jobs", "logs", collected).err
    assert "so @last is not available" in kinetic("jobs", "status", "@last").err
    (page,) = json.loads(kinetic("jobs", "list", "--all", "--json").out)["jobs"]
    assert (page["job_id"], page["status"], page["collected_at"]) == (collected, "SUCCEEDED", None)


def test_of_a_log_that_is_too_long_the_end_is_kept_and_a_line_says_so(project, kinetic) -> None:
    project.write("blocking.py", BLOCKING)
    project.out("""
        import time
        import kinetic
        @kinetic.run(accelerator="cpu")
        def shout():
            for number in range(120_000):
                print(f"{number:07d}", "x" * 91, flush=number == 119_999)
            time.sleep(4)
            print(f"{time.time():.3f}".rjust(99))
        shout()
    """)

    told = kinetic("jobs", "logs", "@last")

    first, second, *_, last, end = told.out.splitlines()
    missing = int(re.fullmatch(r"kinetic: the first (\d+) bytes of this log were not kept", first)[1])
    assert missing + sum(len(line) + 1 for line in told.out.splitlines()[1:]) == 12_000_100
    assert len(told.out) <= (10 << 20) + 100
    assert last.startswith("0119999 x")
    assert int(second[:7]) * 100 == missing
    since = datetime.fromtimestamp(float(end) - 1, UTC).isoformat()
    assert kinetic("jobs", "logs", "@last", "--since", since).out == f"{end}\n"


AT = """
    import sys, time
    import kinetic
    real = time.time
    time.time = lambda: real() + float(sys.argv[1])
    from blocking import talk

    if sys.argv[2] == "collect":
        talk(1)
    else:
        print(talk.run_async(1).job_id)
"""


@pytest.mark.parametrize(("first", "how"), [(4e7, "collect"), (4e7, "keep"), (3600.0, "keep")])
def test_the_newest_job_is_the_one_that_was_submitted_last_though_the_clock_went_back(
    first, how, project, kinetic
) -> None:
    project.write("blocking.py", BLOCKING)
    project.write("at.py", AT)
    assert project.run("at.py", str(first), how).returncode == 0

    newest = project.run("at.py", "0", "keep").stdout.strip()
    kinetic("jobs", "wait", newest)

    assert kinetic("jobs", "status", "@last").out == f"{newest}: SUCCEEDED\n"
    rows = json.loads(kinetic("jobs", "list", "--all", "--json").out)["jobs"]
    assert rows[0]["job_id"] == newest
    assert not re.search(r"-\d+[smhd] ago", kinetic("jobs", "list", "--all").out)
