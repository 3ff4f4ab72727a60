"""Logs of jobs: printed byte for byte, cut at the end, followed."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest


def test_a_log_is_printed_byte_for_byte(submit, kinetic) -> None:
    job_id = submit("raw")
    kinetic("jobs", "result", job_id)

    expected = b"one\n\xff\xfe two\nno end".decode(errors="surrogateescape")
    assert kinetic("jobs", "logs", job_id) == (0, expected, "")
    assert kinetic("jobs", "logs", job_id, "--follow").out == expected


def test_of_a_job_that_printed_nothing_the_log_is_empty(project, kinetic) -> None:
    project.out(
        """
        import kinetic

        kinetic.run(accelerator="cpu")(lambda: 1).run_async().wait()
        """
    )

    shown = kinetic("jobs", "logs", "@last")

    assert (shown.code, shown.out, shown.err) == (0, "", "The log is empty: the job is SUCCEEDED\n")


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
    assert "cannot be used together" in told.err


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
    assert f"cancel:   kinetic jobs cancel {job_id}" in told.decode()
    assert "Traceback" not in told.decode()
    assert kinetic("jobs", "status", job_id).out == f"{job_id}: RUNNING\n"


def test_the_tail_of_one_line_of_100_mb_takes_little_memory(project) -> None:
    out = project.out("""
        import resource
        import kinetic

        @kinetic.run(accelerator="cpu")
        def prints():
            import os
            for _ in range(100):
                os.write(1, b"x" * (1 << 20))

        if __name__ == "__main__":
            job = prints.run_async()
            job.wait()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            told = job.tail(5)
            print(len(told), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """)

    length, kibibytes = map(int, out.split())
    assert length < 11 << 20
    assert kibibytes < 60 << 10  # it was twice the line


def test_the_parts_of_a_log_are_found_by_their_times_while_the_job_runs_and_once_it_was_collected(
    project, kinetic, start, tmp_path
) -> None:
    project.write(
        "steps.py",
        """
        import os, sys, time
        import kinetic

        @kinetic.run(accelerator="cpu")
        def steps(go_on):
            print("first", time.time(), flush=True)
            time.sleep(6)
            print("second", time.time(), flush=True)
            while not os.path.exists(go_on):
                time.sleep(0.05)
            print("third", time.time(), end="", flush=True)

        print(steps.run_async(sys.argv[1]).job_id)
        """,
    )
    go_on = tmp_path / "go-on"
    job_id = project.run("steps.py", str(go_on)).stdout.strip()
    following = start("jobs", "logs", job_id, "--follow", "--timestamps", "--since", "1h")
    assert following.stdout is not None
    first, second = (following.stdout.readline().decode().split() for _ in range(2))
    before, between = (datetime.fromtimestamp(float(second[2]) - each, UTC).isoformat() for each in (0.1, 3.0))

    live = kinetic("jobs", "logs", job_id, "--since", before, "--timestamps").out.split()
    go_on.touch()
    third = following.communicate(timeout=30)[0].decode().split()

    assert [line[1] for line in (first, second, third)] == ["first", "second", "third"]
    assert live[1:] == second[1:]
    for moment, _, written in (first, second, third, live):  # a host looks at its log once a second
        assert -1 <= datetime.fromisoformat(moment).timestamp() - float(written) < 4
    for collect in (False, True):
        if collect:
            assert kinetic("jobs", "result", job_id, "--cleanup").code == 0
        assert kinetic("jobs", "logs", job_id, "--until", between).out == f"first {first[2]}\n"
        later = kinetic("jobs", "logs", job_id, "--since", between, "--timestamps").out.split()
        assert (later[1:3], later[4:]) == (second[1:], third[1:])
        last = kinetic("jobs", "logs", job_id, "--timestamps", "-n", "2").out.split()
        assert last == later
        assert kinetic("jobs", "logs", job_id, "--until", "1h").out == ""
        later = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()  # times are known to some seconds
        assert kinetic("jobs", "logs", job_id, "--since", later).out == ""


def test_lines_are_searched_in_small_letters_for_any_and_with_a_capital_as_they_are(submit, kinetic, start) -> None:
    job_id = submit("bad")
    follows = kinetic("jobs", "logs", job_id, "-f", "--search", "ABOUT")
    found = kinetic("jobs", "logs", job_id, "--search", "valueerror").out

    assert (follows.code, follows.out) == (125, "")
    assert found == "".join(
        line for line in kinetic("jobs", "logs", job_id).out.splitlines(keepends=True) if "ValueE" in line
    )
    assert found.endswith("ValueError: no such thing [/tmp/x]\n")
    assert kinetic("jobs", "logs", job_id, "--search", "About").out == ""
    add = submit("add")
    kinetic("jobs", "result", add)
    assert kinetic("jobs", "logs", add, "--search", "line", "-n", "2").out == "line 8\nline 9\n"
    assert kinetic("jobs", "logs", add, "--search", "line 3", "--host", "all").out == "[host 0] line 3\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--follow", "--until", "1m"), "--follow and --until cannot be used together"),
        (("--since", "1m", "--until", "2m"), "--since is later than --until"),
        (("--since", "yesterday"), "'yesterday' is not a time"),
        (("--since", "10"), "'10' is not a time"),
    ],
)
def test_times_that_cannot_be_meant_are_refused(submit, kinetic, words: tuple[str, ...], why: str) -> None:
    told = kinetic("jobs", "logs", submit("add"), *words)

    assert (told.code, told.out) == (2, "")
    assert why in told.err
