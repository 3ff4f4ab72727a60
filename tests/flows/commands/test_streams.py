"""Standard streams that nobody reads, that are closed, or that lead to a full disk."""

from __future__ import annotations

import os
import subprocess

import pytest


def test_a_closed_pipe_needs_no_words(submit, kinetic, tmp_path, command, environment) -> None:
    kinetic("jobs", "result", submit("add"))
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [*command, "jobs", "logs", "@last"], stdout=writing, stderr=subprocess.PIPE, env=environment, check=False
    )

    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["jobs", "--help"]])
def test_help_that_cannot_be_written_ends_like_any_output(words, command, environment) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*command, *words], stdout=writing, stderr=subprocess.PIPE, env=environment, text=True, check=False
    )
    os.close(writing)

    assert (done.returncode, done.stderr) == (141, "")
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, *words], stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: a disk is full, and the output is incomplete [disk-full]\nwhy: ")


def test_a_closed_pipe_needs_no_words_however_a_command_ends(project, command, environment) -> None:
    project.write(
        "divide.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def divide(number):
            return 1 / number

        if __name__ == "__main__":
            batch = divide.run_async_map([1, 0])
            batch.wait()
            print(batch.jobs[1].job_id)
        """,
    )
    failed, held_back = project.run("divide.py").stdout.strip(), environment | {"PYTHONUNBUFFERED": ""}
    reading, writing = os.pipe()
    os.close(reading)

    def end(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*command, *words], stdout=writing, stderr=subprocess.PIPE, env=held_back, check=False)

    looked, waited = end("batch", "status", "@last"), end("jobs", "wait", failed)
    os.close(writing)

    assert [looked.returncode, waited.returncode] == [141, 141]
    assert b"Traceback" not in looked.stderr + waited.stderr


@pytest.mark.parametrize(("words", "code"), [(["jobs", "lst"], 2), (["run", "--", "sh", "-c", "echo done; exit 3"], 3)])
def test_messages_that_cannot_be_written_change_no_exit_code(words, code, command, environment) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run([*command, *words], stdout=subprocess.PIPE, stderr=writing, env=environment, check=False)

    os.close(writing)
    assert (done.returncode, done.stdout) == (code, b"done\n" if code == 3 else b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_closed_leads_nowhere(submit, closed, command, environment) -> None:
    job_id = submit("add")
    words = " ".join([*command, "jobs", "wait", job_id])

    done = subprocess.run(["sh", "-c", f"exec {words} {closed}"], env=environment, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (b"" if ">&-" in closed.replace("2>&-", "") else f"{job_id}: SUCCEEDED\n".encode())


@pytest.mark.parametrize("words", [["list"], ["logs", "--follow", "@last"]])
def test_a_full_disk_behind_standard_output_is_said_to_be_full(words, submit, command, environment) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    subprocess.run([*command, "jobs", "wait", submit("add")], env=environment, capture_output=True, check=True)

    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "jobs", *words], stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False
        )

    assert done.returncode == 1
    assert done.stderr.startswith("error: a disk is full, and the output is incomplete [disk-full]\nwhy: ")
    assert "ignored" not in done.stderr


def test_an_error_is_in_order_where_the_encoding_is_ascii(command, environment) -> None:
    ascii_ = environment | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONUNBUFFERED": ""}

    done = subprocess.run([*command, "jobs", "show", "nosuch"], env=ascii_, capture_output=True, text=True, check=False)

    assert [line[:7] for line in done.stderr.splitlines()] == ["error: ", "why:   ", "next:  "]
