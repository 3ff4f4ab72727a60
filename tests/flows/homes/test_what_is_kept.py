"""How much a job leaves behind: inodes and bytes of one whose result is kept, and of a child that was collected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

JOBS = """
    import json, sys, time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def add(a, b=1):
        return a + b

    @kinetic.run(accelerator="cpu")
    def fail(name=""):
        if name:
            open(name, "w").close()
        raise ValueError("theirs")
"""


def below(home: Path, name: str) -> list[Path]:
    """Return what a home holds of a job: its folders and everything in them, and files of its name."""
    found = [path for path in home.rglob(f"*{name}*") if "cache" not in path.parts]
    return sorted({*found, *(inner for path in found if path.is_dir() for inner in path.rglob("*"))})


@pytest.fixture
def run(project: Any) -> Any:
    project.write("jobs.py", JOBS)
    return lambda code: json.loads(project.out("from jobs import *\n" + code))


def test_a_job_whose_result_is_kept_takes_six_inodes(run, home, wait_until) -> None:
    job = run("job = add.run_async(1)\njob.wait()\nprint(json.dumps(job.job_id))")

    wait_until(lambda: not [path for path in below(home, job) if "run" in path.parts], "the end of the tidying")

    kept = {str(path.relative_to(home / "store" / job)) for path in below(home, job)}
    assert kept == {".", "attempts", "attempts/0", "handle.json", "order.json", "result.pkl"}


def test_a_collected_child_leaves_three_files_and_a_key_that_it_may_share_and_no_folder(run, home, wait_until) -> None:
    group = run("batch = add.run_async_map([1, 2, 3])\nbatch.results()\nprint(json.dumps(batch.group_id))")

    wait_until(lambda: not [*home.glob("run/*/jobs/cpu-*")], "the end of the tidying")

    assert [*home.glob(f"store/outputs/{group}/*")] == []
    store = home / "store"
    runs = [path.name.split(".")[0].split("-") for path in store.glob("_groups/*/children/*/*")]
    assert sum(int(run[-1]) - int(run[0]) + 1 for run in runs) == 3  # a key names one child, or a run of them
    assert len([*store.glob("_groups/*/marks/*/*"), *store.glob("history/*.json")]) == 3 * 3


def test_what_a_job_writes_stays_and_only_empty_folders_go(run, home, project) -> None:
    project.write(
        "writer.py",
        """
        import os, json, kinetic

        @kinetic.run(accelerator="cpu")
        def write():
            open(os.path.join(os.environ["KINETIC_OUTPUT_DIR"], "it.txt"), "w").close()

        job = write.run_async()
        job.wait()
        print(json.dumps(job.output_dir))
        """,
    )

    done = project.run("writer.py")

    folder = Path(json.loads(done.stdout))
    assert (folder / "it.txt").exists()


def test_a_failed_job_that_wrote_into_its_working_folder_keeps_that_and_nothing_else(run, home, wait_until) -> None:
    job = run("job = fail.run_async('left')\njob.wait()\nprint(json.dumps(job.job_id))")

    (folder,) = home.glob(f"run/*/jobs/{job}")
    wait_until(lambda: [path.name for path in folder.iterdir()] == ["work-0-0"], "the end of the tidying")
    assert (folder / "work-0-0" / "left").exists()


def test_a_failed_job_that_wrote_nothing_keeps_no_folder(run, home, wait_until) -> None:
    job = run("job = fail.run_async()\njob.wait()\nprint(json.dumps(job.job_id))")

    wait_until(lambda: not [*home.glob(f"run/*/jobs/{job}")], "the end of the tidying")
