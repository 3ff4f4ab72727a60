"""What stands on the screen of a terminal while something is waited for, frame by frame."""

from __future__ import annotations

from typing import Any

import pytest

JOBS = """
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def wait(seconds):
        time.sleep(seconds)
        return seconds
"""


@pytest.mark.parametrize("collect", ["results()", "results(return_exceptions=True, cleanup=False)", "wait()"])
def test_the_picture_of_a_batch_stands_as_long_as_it_is_collected(collect: str, project: Any) -> None:
    project.write("jobs.py", JOBS)
    script = f"from jobs import wait\nbatch = wait.run_async_map([0.2] * 24)\nbatch.{collect}\n"

    seen = project.watch("-c", script)

    assert seen.code == 0, seen.screen
    # Its line and its bars; on a slow machine there are moments in which no job runs.
    share = seen.share(
        lambda frame: "of 24 ended" in frame and ("██" in frame or "##" in frame), lambda frame: "24 succeeded" in frame
    )
    assert share > 0.9, seen.frames
    assert any("running" in frame for frame in seen.frames)
    assert "of 24 ended" not in seen.screen
    assert "24 succeeded" in seen.screen


def test_who_collects_another_job_meanwhile_does_not_take_the_line_of_a_running_one_away(project: Any) -> None:
    project.write("jobs.py", JOBS)
    script = """
import threading
from jobs import wait

done, over = wait.run_async(0), threading.Event()
done.wait()

def collect_others():
    while not over.wait(0.1):
        done.exception()

thread = threading.Thread(target=collect_others)
thread.start()
wait(4)
over.set()
thread.join()
"""

    seen = project.watch("-c", script)

    assert seen.code == 0, seen.screen
    share = seen.share(lambda frame: "running, " in frame, lambda frame: "running took" in frame)
    assert share > 0.9, seen.frames
    assert "running, " not in seen.screen
    assert "running took" in seen.screen


BARS = """
    import time
    import kinetic
    from tqdm import trange

    @kinetic.run(accelerator="cpu")
    def train():
        print("begin")
        for epoch in trange(3, desc="outer", mininterval=0):
            for step in trange(40, desc="inner", mininterval=0, leave=False):
                time.sleep(0.002)
        print("end")
"""


def test_bars_of_tqdm_below_each_other_are_one_line_each_on_the_screen_and_in_a_pipe(project: Any) -> None:
    project.write("jobs.py", BARS)

    seen = project.watch("-c", "from jobs import train\ntrain()")
    piped = project.run("-c", "from jobs import train\ntrain()")

    assert seen.code == 0, seen.screen
    lines = [line.split(":")[0].strip() for line in seen.screen.splitlines() if line.strip()]
    assert [line for line in lines if not line.startswith("kinetic")] == ["begin", "outer", "end"], seen.screen
    assert all(frame.count("outer") <= 1 and frame.count("inner") <= 1 for frame in seen.frames)
    assert len([line for line in piped.stdout.splitlines() if "outer" in line]) <= 2, piped.stdout
    assert piped.stdout.count("inner") <= 1


def test_a_status_and_errors_have_colors_on_a_terminal_and_none_elsewhere(project: Any) -> None:
    project.write("jobs.py", JOBS)
    project.run("-c", "from jobs import wait\nwait.run_async(0).wait()")

    seen = project.watch("-m", "kinetic", "jobs", "list").raw.decode()
    without = project.watch("-m", "kinetic", "--color", "never", "jobs", "list").raw.decode()
    piped = project.kinetic("jobs", "list").stdout
    forced = project.kinetic("--color=always", "jobs", "status", "@last").stdout
    failed = project.watch("-m", "kinetic", "jobs", "status", "grp-0a1b2c3d").raw.decode()

    assert "\x1b[32mSUCCEEDED\x1b[0m" in seen
    assert "SUCCEEDED" in piped
    assert "\x1b[3" not in without + piped
    assert forced.endswith(": \x1b[32mSUCCEEDED\x1b[0m\n")
    assert "\x1b[1;31merror:\x1b[0m no job grp-0a1b2c3d was found" in failed
    assert "kinetic batch status grp-0a1b2c3d" in failed


def test_messages_and_logs_stand_above_the_bars_that_the_script_draws_itself(project: Any) -> None:
    pytest.importorskip("tqdm")
    pytest.importorskip("rich")
    project.write("jobs.py", JOBS)
    script = """
from jobs import wait
from rich.progress import track
from tqdm import tqdm
for number in tqdm(range(2), desc="a bar of tqdm"):
    wait(1.5)
for number in track(range(1), "a bar of rich"):
    wait(1.5)
"""

    seen = project.watch("-c", script, columns=150)

    lines = [line.rstrip() for line in seen.screen.splitlines()]
    assert seen.code == 0, seen.screen
    assert [line for line in lines if "inetic: " in line and not line.startswith("kinetic: ")] == []
    assert sum(line.startswith("kinetic: follow the job with: ") for line in lines) == 3, seen.screen
    assert sum("a bar of " in line for line in lines) == 2, seen.screen
    assert "\x1b" not in seen.screen
    assert "[K" not in seen.screen
