"""Logs of jobs: printed byte for byte, cut at the end, followed."""

from __future__ import annotations

import signal


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
