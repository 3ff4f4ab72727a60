"""Progress that a job reports: in every place that shows a job, while it runs, afterwards and once it was collected."""

from __future__ import annotations

import json
import threading
from typing import Any

JOBS = """
    import os, subprocess, sys, time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def train(steps, path=""):
        for step in range(steps):
            kinetic.progress(step + 1, steps if not path else 4 * steps, loss=0.25)
        while path and not os.path.exists(path):
            time.sleep(0.02)
"""


def test_progress_is_shown_while_a_job_runs_and_kept_when_it_was_collected(project: Any, tmp_path: Any) -> None:
    project.write("jobs.py", JOBS)
    out = project.out(f"""
        import json, subprocess, sys, time
        import kinetic
        from jobs import train
        job = train.run_async(25, {str(tmp_path / "go")!r})
        while (found := job.progress()) is None or found.done < 25:
            time.sleep(0.02)
        def said(*words):
            command = [sys.executable, "-m", "kinetic", "jobs", *words]
            return subprocess.run(command, capture_output=True, text=True).stdout
        texts = [said("list"), said("show", job.job_id), said("explain", job.job_id)]
        listed = json.loads(said("list", "--json"))["jobs"][0]["progress"]
        open({str(tmp_path / "go")!r}, "w").close()
        job.result()
        kept = kinetic.attach(job.job_id).progress()
        print(json.dumps([texts, listed, found.to_json(), kept.to_json()]))
    """)

    texts, listed, found, kept = json.loads(out)

    assert all("25 of 100, loss 0.25" in text for text in texts), texts
    assert (listed["done"], listed["total"], listed["share"], listed["metrics"]) == (25, 100, 0.25, {"loss": 0.25})
    assert found == kept


def test_the_last_report_of_a_job_of_milliseconds_is_kept_and_without_reports_nothing_is_written(
    project: Any,
) -> None:
    project.write("jobs.py", JOBS)
    out = project.out("""
        import json
        import kinetic
        from jobs import train
        job, silent = train.run_async(500), train.run_async(0)
        job.wait(); silent.wait()
        before = job.progress().to_json()
        job.result(); silent.result()
        after = kinetic.attach(job.job_id).progress().to_json()
        print(json.dumps([before, after, silent.progress(), kinetic.attach(silent.job_id).progress()]))
    """)

    before, after, silent, kept = json.loads(out)

    assert before == after
    assert before["done"] == 500
    assert silent is kept is None


def test_no_time_is_left_of_a_job_that_stopped_early(project: Any) -> None:
    out = project.out("""
        import subprocess, sys, time
        import kinetic
        from kinetic._jobs import job_card

        @kinetic.run(accelerator="cpu")
        def train():
            kinetic.progress(1, 1000)
            time.sleep(0.1)
            kinetic.progress(2, 1000)

        job = train.run_async()
        job.wait()
        assert job.progress().seconds_left() > 1
        print(job_card.draw(job).text)
        command = [sys.executable, "-m", "kinetic", "jobs", "show", job.job_id]
        print(subprocess.run(command, capture_output=True, text=True).stdout)
    """)

    assert "SUCCEEDED, 2 of 1000\n" in out
    assert "2 of 1000" in out.partition("\n")[2]
    assert " left" not in out


def test_a_blocking_call_shows_progress_on_its_line(project: Any) -> None:
    project.write("jobs.py", JOBS.replace("loss=0.25)", "loss=0.25); time.sleep(0.5)"))

    seen = project.watch("-c", "from jobs import train\ntrain(10)")

    assert seen.code == 0, seen.screen
    shown = [frame for frame in seen.frames if "running, " in frame and "of 10, loss 0.25" in frame]
    assert any("█" in frame or "##" in frame for frame in shown), seen.frames


def test_a_job_that_hangs_is_mentioned_once_by_who_follows_it(project: Any, tmp_path: Any) -> None:
    project.write("jobs.py", JOBS)
    go = tmp_path / "go"
    project.write(
        "follow.py",
        f"""
        import os, subprocess, sys
        os.environ["KINETIC_STALL_AFTER"] = "1s"
        from kinetic._jobs import activity
        activity._LOOK_SECONDS = {{True: 0.5, False: 0.5}}
        from jobs import train
        job = train.run_async(1, {str(go)!r})
        words = "import runpy; from kinetic._jobs import activity; activity._LOOK_SECONDS = {{True: 0.5, False: 0.5}}; "
        words += f"import sys; sys.argv = ['kinetic', 'jobs', 'logs', '{{job.job_id}}', '--follow']; "
        command = subprocess.Popen([sys.executable, "-c", words + "runpy.run_module('kinetic', run_name='__main__')"])
        job.logs(follow=True)
        assert command.wait() == 0
        """,
    )
    process = project.start("follow.py")
    mentioned, told = "no output, no CPU and no progress for", ""

    for line in process.stderr:
        told += line
        if mentioned in line and told.count(mentioned) == 2:  # by the script and by the command
            threading.Timer(1.5, go.touch).start()  # a look or two later
    process.communicate()

    assert process.returncode == 0, told
    assert told.count(mentioned) == 2, told
    assert "next:  kinetic jobs stacks cpu-train-" in told
