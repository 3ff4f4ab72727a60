"""The completion pipe of a job, and the pipe that wakes a supervisor."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kinetic._backends.local import runtime_files

LONG = 10.0  # seconds: none of these tests waits so long


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    runtime_files.make_pipe(tmp_path / "completion_pipe")
    return tmp_path / "completion_pipe"


def seconds_of(wait: runtime_files.CompletionReader, seconds: float = LONG) -> float:
    begun = time.monotonic()
    wait.wait(seconds)
    return time.monotonic() - begun


def test_nothing_is_told_before_anything_happens(pipe):
    waiting = runtime_files.CompletionReader(pipe)

    assert seconds_of(waiting, 0.05) >= 0.045
    assert not waiting.has_ended
    waiting.close()


def test_who_waits_learns_whether_something_has_changed(pipe):
    waiting, heart = runtime_files.CompletionReader(pipe), runtime_files.CompletionWriter(pipe)
    found = [waiting.wait(0.0)]

    heart.running()
    found += [waiting.wait(LONG), waiting.wait(0.0)]
    heart.stop()
    found.append(waiting.wait(LONG))

    assert found == [False, True, False, True]
    assert runtime_files.CompletionReader(pipe, portable=True).wait(0.0), "without a pipe it may always"
    waiting.close()


def test_the_beginning_is_told_once(pipe):
    waiting, heart = runtime_files.CompletionReader(pipe), runtime_files.CompletionWriter(pipe)

    heart.running()

    assert seconds_of(waiting) < LONG
    assert not waiting.has_ended
    assert seconds_of(waiting, 0.05) >= 0.045  # it runs: nothing new
    heart.stop()
    waiting.close()


def test_who_comes_late_is_told_that_it_runs(pipe):
    heart = runtime_files.CompletionWriter(pipe)
    heart.running()

    waiting = runtime_files.CompletionReader(pipe)

    assert seconds_of(waiting) < LONG
    heart.stop()
    waiting.close()


def test_the_end_is_told_at_once(pipe):
    waiting, heart = runtime_files.CompletionReader(pipe), runtime_files.CompletionWriter(pipe)
    heart.running()
    waiting.wait(LONG)
    ending = threading.Timer(0.05, heart.stop)

    ending.start()

    assert seconds_of(waiting) < LONG
    assert waiting.has_ended
    waiting.close()


def test_the_death_of_the_supervisor_is_told_at_once(pipe):
    waiting = runtime_files.CompletionReader(pipe)
    hears, speaks = os.pipe()
    pid = os.fork()
    if pid == 0:
        runtime_files.CompletionWriter(pipe).running()
        waiting.close()
        os.write(speaks, b"x")
        time.sleep(0.05)
        os.kill(os.getpid(), 9)
    os.read(hears, 1)
    waiting.wait(LONG)

    assert seconds_of(waiting) < LONG
    assert waiting.has_ended
    os.waitpid(pid, 0)
    waiting.close()


def test_a_worker_that_closed_its_copy_does_not_keep_the_pipe_alive(pipe):
    waiting, heart = runtime_files.CompletionReader(pipe), runtime_files.CompletionWriter(pipe)
    pid = os.fork()
    if pid == 0:
        os.close(heart._descriptor)
        waiting.close()
        time.sleep(LONG)
        os._exit(0)

    heart.stop()

    assert seconds_of(waiting) < LONG
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    waiting.close()


def test_a_second_attempt_is_told_to_a_new_pipe(pipe):
    first = runtime_files.CompletionWriter(pipe)
    first.stop()
    waiting, second = runtime_files.CompletionReader(pipe), runtime_files.CompletionWriter(pipe)

    assert seconds_of(waiting, 0.05) >= 0.045
    second.stop()
    assert seconds_of(waiting) < LONG
    waiting.close()


@pytest.mark.parametrize("how", ["portable", "no pipe"])
def test_without_a_pipe_waiting_is_a_short_sleep(tmp_path, how):
    runtime_files.make_pipe(tmp_path / "completion_pipe")
    waiting = (
        runtime_files.CompletionReader(tmp_path / "completion_pipe", portable=True)
        if how == "portable"
        else runtime_files.CompletionReader(tmp_path / "none")
    )

    assert seconds_of(waiting) < LONG
    assert not waiting.has_ended


class PollOfGevent:
    """What gevent puts in the place of ``select.poll``: without POLLIN or POLLOUT it watches for nothing."""

    def register(self, descriptor: int, events: int) -> None:
        self.is_watching = events & (select.POLLIN | select.POLLOUT)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        if not self.is_watching:
            time.sleep(milliseconds / 1000)
        return [(0, self.is_watching)] if self.is_watching else []


@pytest.mark.parametrize("library", ["eventlet", "gevent"])
def test_a_program_under_a_library_with_a_poll_of_its_own_or_none_sleeps_and_sees_the_end(pipe, monkeypatch, library):
    if library == "eventlet":
        monkeypatch.delattr(select, "poll")
    else:
        monkeypatch.setattr(select, "poll", PollOfGevent)
    waiting, heart = runtime_files.CompletionReader(pipe), runtime_files.CompletionWriter(pipe)
    heart.running()

    assert seconds_of(waiting) < LONG
    heart.stop()
    assert seconds_of(waiting) < LONG
    assert waiting.descriptor is None


def test_a_poke_wakes_whoever_reads(pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    assert runtime_files.wake(pipe)

    assert os.read(reader, 10) == b"w"
    os.close(reader)


def test_a_poke_at_nobody_says_so(pipe, tmp_path):
    assert not runtime_files.wake(pipe)
    assert not runtime_files.wake(tmp_path / "nowhere")


def test_a_poke_at_somebody_with_a_full_pipe_is_no_error(pipe):
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(reader, bytes(1 << 16)):
            pass

    assert runtime_files.wake(pipe)
    os.close(reader)


@pytest.mark.parametrize(
    "code",
    [
        "os.closerange(3, 64)",  # as a daemon does that user code makes
        "runtime_files.os = runtime_files.contextlib = None",  # as an interpreter leaves a module behind at its end
    ],
)
def test_a_pipe_that_goes_with_its_interpreter_prints_nothing(pipe, code):
    program = f"""
import os
from pathlib import Path
from kinetic._backends.local import runtime_files
waiting = runtime_files.CompletionReader(Path({str(pipe)!r}))
waiting.itself = waiting
{code}
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
