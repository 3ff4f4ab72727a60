"""A log has all that a job and its processes print, as it was printed and in its order."""

from __future__ import annotations

import sys

import pytest

from kinetic.errors import OptionError


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_line_of_a_child_process_is_in_the_log_at_once(submit, method: str) -> None:
    job = submit(
        """
        def work():
            print("begun")
            os.kill(os.getpid(), 9)

        @on_cpu
        def train(method):
            import multiprocessing
            child = multiprocessing.get_context(method).Process(target=work)
            child.start()
            child.join()
        """,
        f"train.run_async({method!r})",
    )

    job.result(cleanup=False)

    assert job.logs() == "begun\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the name of C's stream is Linux's")
def test_what_c_prints_is_in_the_log(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import ctypes
            c = ctypes.CDLL(None)
            if not os.fork():
                c.printf(b"a line\\n")
                os._exit(0)
            os.wait()
            c.printf(b"no line")
        """
    )

    job.result(cleanup=False)

    assert job.logs() == "a line\nno line"


def test_text_of_any_kind_is_shown_as_it_was_printed(project) -> None:
    odd = [
        "[/tmp/x]",
        "[bold]not bold[/bold]",
        "[red]",
        "100% \\x1b[31mred",
        "progress\\rline",
        "tab\\tend",
        "ünïcödé ✓",
    ]

    out = project.out(
        f"""
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            for text in {odd!r}:
                print(text)
            sys.stdout.flush()
            sys.stdout.buffer.write(b"not utf-8: \\xff\\n")

        if __name__ == "__main__":
            train()
            job = train.run_async()
            job.result(cleanup=False)
            print("=====")
            print(job.logs(), end="")
            print("=====")
            job.logs(follow=True)
        """
    )

    expected = "".join(f"{text}\n" for text in odd) + "not utf-8: \ufffd\n"
    streamed, whole, followed = out.split("=====\n")
    assert whole == expected
    assert followed == expected
    assert streamed == expected


def test_the_order_of_the_two_streams_and_of_programs_is_true(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import subprocess
            for number in range(50):
                print("out", number)
                print("err", number, file=sys.stderr)
            os.system("echo system")
            print("two")
            subprocess.run(["echo", "a child"])
            print("three")
            os.waitpid(os.posix_spawnp("echo", ["echo", "spawned"], os.environ), 0)
            print("the end")
        """
    )

    job.result(cleanup=False)

    lines = job.logs().splitlines()
    assert lines[:100] == [f"{stream} {number}" for number in range(50) for stream in ("out", "err")]
    assert lines[100:] == ["system", "two", "a child", "three", "spawned", "the end"]


def test_the_tail_is_exactly_the_last_lines(submit) -> None:
    job = submit("@on_cpu\ndef train():\n    for number in range(100_000): print('line', number)")

    job.result(cleanup=False)

    assert job.tail(5).splitlines() == [f"line {number}" for number in range(99_995, 100_000)]
    assert job.tail(1) == "line 99999"
    assert job.tail(0) == ""
    assert len(job.tail().splitlines()) == 100
    with pytest.raises(OptionError, match="n must be 0 or more, got -1"):
        job.tail(-1)
