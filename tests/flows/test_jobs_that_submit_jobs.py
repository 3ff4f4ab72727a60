"""A job on this machine submits others: it gives its slot to them while it waits, and they do not end with it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kinetic
from kinetic.errors import OptionError
from kinetic.job_status import JobStatus

JOBS = """
import os, time
import kinetic

@kinetic.run(accelerator="cpu")
def leaf(value, until=""):
    while until and not os.path.exists(until):
        time.sleep(0.01)
    return value * 2

@kinetic.run(accelerator="cpu")
def depth(levels):
    return depth.run_async(levels - 1).result() + 1 if levels else 0

@kinetic.run(accelerator="cpu")
def folder(value=0):
    return os.environ["KINETIC_CHECKPOINT_DIR"]

@kinetic.run(accelerator="cpu")
def folders():
    found = [folder(), folder.run_async().result(), folder.run_async().result(), *folder.run_async_map([1]).results()]
    os.environ["KINETIC_OUTPUT_DIR"] += "/chosen"
    return [*found, folder.run_async().result()]

@kinetic.run(accelerator="cpu")
def both():
    jobs = [leaf.run_async(number) for number in range(3)]
    batch = leaf.run_async_map([10, 20])
    command = kinetic.run_command(["sh", "-c", "exit 0"])
    return [job.result() for job in jobs], batch.results(), command.result()

@kinetic.run(accelerator="cpu")
def batch_of(count, limit):
    return leaf.run_async_map(range(count), max_concurrent=limit, retries=1).group_id

@kinetic.run(accelerator="cpu")
def leaves(note, until):
    job = leaf.run_async(21, until)
    with open(note + "~", "w") as file:
        file.write(job.job_id)
    os.rename(note + "~", note)
    return job.result()

@kinetic.run(accelerator="cpu")
def computes(note, until):
    job = leaf.run_async(1)
    with open(note + "~", "w") as file:
        file.write(job.job_id)
    os.rename(note + "~", note)
    while not os.path.exists(until):
        time.sleep(0.01)
    return job.result()

@kinetic.run(accelerator="cpu")
def circle():
    return leaf.with_options(after=kinetic.attach(os.environ["KINETIC_JOB_ID"])).run_async(1).result()

@kinetic.run(accelerator="cpu")
def processes(count):
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            os._exit(leaf.run_async(number).result())
        children.append(child)
    return sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
"""


@pytest.fixture
def jobs(project, monkeypatch: pytest.MonkeyPatch):
    """Return a module of functions in a project, on a machine with one slot."""
    project.write("jobs.py", JOBS)
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    monkeypatch.syspath_prepend(project.root)
    monkeypatch.chdir(project.root)
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    return importlib.import_module("jobs")


def told_by(note: Path, *, seconds: float = 60) -> str:
    limit = time.monotonic() + seconds
    while not note.exists():
        assert time.monotonic() < limit, "the job said nothing"
        time.sleep(0.01)
    return note.read_text()


def test_jobs_three_deep_end_on_a_machine_with_one_slot(jobs) -> None:
    assert jobs.depth.run_async(3).result(timeout=90) == 3


def test_a_job_waits_for_jobs_a_batch_and_a_command(jobs) -> None:
    assert jobs.both.run_async().result(timeout=90) == ([0, 2, 4], [20, 40], 0)


def test_a_shell_script_that_runs_as_a_job_uses_the_kinetic_command(jobs) -> None:
    command = kinetic.run_command(["sh", "-c", "python -m kinetic run jobs.py::leaf 21"])

    assert command.result(timeout=90) == 0
    assert command.logs().endswith("\n42\n")


def test_what_a_job_submits_has_folders_of_its_own_for_outputs_and_checkpoints(jobs) -> None:
    job = jobs.folders.run_async()

    own, *others, chosen = job.result(timeout=90)

    assert own == f"{job.output_dir}/checkpoints"
    assert len({own, *others}) == 4
    assert chosen == f"{job.output_dir}/chosen/checkpoints"
    assert not [each for each in others if each.startswith(job.output_dir)]


@pytest.mark.parametrize("limit", [64, 1])
def test_a_job_ends_when_its_batch_is_submitted_also_if_it_does_not_wait_for_it(jobs, limit) -> None:
    group_id = jobs.batch_of.run_async(4, limit).result(timeout=90)

    assert kinetic.attach_batch(group_id).results(timeout=90) == [0, 2, 4, 6]


def test_a_job_of_a_script_submits_what_the_script_imported_or_defined(jobs, project, tmp_path) -> None:
    project.write("set/word", "shown")
    out = project.out(
        f"""
        import pathlib
        import kinetic
        from jobs import leaf

        twice = leaf.with_options(retries=1)
        shown = {str(tmp_path / "volume")!r}

        @kinetic.run(accelerator="cpu", volumes={{shown: kinetic.Data("set")}})
        def read(number):
            return pathlib.Path(shown, "word").read_text() * number

        @kinetic.run(accelerator="cpu")
        def search():
            words = read.run_async(1).result(), read.run_async_map([2]).results(), pathlib.Path(shown).exists()
            return words, leaf(1), leaf.run_async(2).result(), twice.run_async_map([3]).results()

        print(search())
        """
    )

    assert out.endswith("(('shown', ['shownshown'], False), 2, 4, [6])\n")


def test_what_a_job_submits_writes_and_tells_where_the_project_is_and_not_in_the_jobs_copy(project, wait_until) -> None:
    project.write(
        "steps.py",
        """
        import os, kinetic

        @kinetic.run(accelerator="cpu", output_dir="runs", on_done="echo told >> told")
        def leaf(name):
            with open(os.path.join(kinetic.output_dir(), name), "w") as file:
                file.write("kept")

        @kinetic.run(accelerator="cpu")
        def inner():
            leaf.run_async("third").result()

        @kinetic.run(accelerator="cpu")
        def outer():
            leaf.with_options(output_dir=os.path.join(os.path.dirname(__file__), "runs")).run_async("second").result()
            inner.run_async().result()
        """,
    )

    project.out("import steps; steps.outer()")

    assert sorted(path.name for path in (project.root / "runs").iterdir() if path.is_file()) == ["second", "third"]
    wait_until(lambda: (project.root / "told").exists() and len((project.root / "told").read_text()) == 10, "notices")


def test_what_a_job_submits_has_the_profile_that_the_job_was_submitted_with(project, monkeypatch) -> None:
    for name, accelerator in (("current", "tpu-v5e-1"), ("named", "cpu")):
        words = ("profile", "create", name, "--backend", "local", "--option", f"accelerator={accelerator}")
        assert project.kinetic(*words).returncode == 0
    monkeypatch.setenv("KINETIC_PROFILE", "named")

    out = project.out(
        """
        import kinetic

        @kinetic.run()
        def leaf():
            return "done"

        @kinetic.run()
        def search():
            job = leaf.run_async()
            return job.accelerator, job.result()

        print(search())
        """
    )

    assert out.endswith("('cpu', 'done')\n")


def test_a_child_process_that_imports_the_script_submits_no_job(project) -> None:
    script = """
        import multiprocessing, kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            child = multiprocessing.get_context("spawn").Process(target=print)
            child.start()
            child.join()
            return child.exitcode

        job = train.run_async()
        print(job.result(cleanup=False), job.job_id)
    """
    project.write("script.py", script)

    done = project.run("script.py")

    code, job_id = done.stdout.split()
    assert code == "1"
    assert "put what the script does below `if __name__ == '__main__':`" in kinetic.attach(job_id).logs()
    assert len(kinetic.list_jobs()) == 1


def test_a_job_cannot_wait_for_one_that_follows_it(jobs) -> None:
    with pytest.raises(OptionError, match="starts once this job has ended"):
        jobs.circle.run_async().result(timeout=30)


def test_each_of_several_processes_of_a_job_gives_its_slot_away(jobs) -> None:
    assert jobs.processes(3) == [0, 2, 4]


def test_what_a_job_submits_waits_for_a_slot_until_the_job_itself_waits(jobs, tmp_path: Path) -> None:
    job = jobs.computes.run_async(str(tmp_path / "note"), str(tmp_path / "go"))
    inner = kinetic.attach(told_by(tmp_path / "note"))

    before = inner.status()
    (tmp_path / "go").touch()

    assert before is JobStatus.PENDING
    assert job.result(timeout=60) == 2


@pytest.mark.parametrize("how", ["cancelled", "killed"])
def test_a_job_goes_on_when_the_one_that_submitted_it_is(
    how: str, jobs, tmp_path: Path, worker_of: Callable[[str], int]
) -> None:
    job = jobs.leaves.run_async(str(tmp_path / "note"), str(tmp_path / "go"))
    inner = kinetic.attach(told_by(tmp_path / "note"))
    limit = time.monotonic() + 60
    while inner.status() is not JobStatus.RUNNING:  # so the slot was given away
        assert time.monotonic() < limit
        time.sleep(0.02)

    if how == "cancelled":
        job.cancel()
    else:
        os.kill(worker_of(job.job_id), signal.SIGKILL)
    with pytest.raises(kinetic.errors.JobError):
        job.result(timeout=60)
    (tmp_path / "go").touch()

    assert inner.result(timeout=60) == 42
    assert jobs.leaf.run_async(1).result(timeout=60) == 2  # and no slot is lost


@pytest.fixture
def worker_of() -> Callable[[str], int]:
    """Return a function that names the worker of a job."""

    def find(job_id: str) -> int:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if f"{job_id} worker " in title:
                    return int(folder.name)
        raise AssertionError(f"no worker of {job_id}")

    return find


@pytest.mark.parametrize("submit", ["leaf.run_async(1)", "leaf.run_async_map([1, 2], max_concurrent=1)"])
def test_a_module_that_submits_when_it_is_imported_does_not_do_so_in_its_jobs(project, submit: str) -> None:
    project.write(
        "theirs.py",
        f"""
        import kinetic

        @kinetic.run(accelerator="cpu")
        def leaf(value):
            return value * 2

        submitted = {submit}
        """,
    )

    out = project.out(
        """
        import theirs, kinetic
        try:
            theirs.submitted.wait(timeout=60)
            theirs.leaf(3)
        except Exception as error:
            print(error)
        print(len(kinetic.list_jobs()))
        """
    )

    assert "leaf was submitted by a job that imports a module [callable]" in out
    assert "`if __name__ == '__main__':`" in out
    assert out.endswith(f"\n{3 if 'map' in submit else 2}\n")


@pytest.mark.parametrize("submit", ["train.run_async().result()", "train.run_async_map([{}]).results()"])
def test_processes_that_a_launcher_in_a_job_starts_with_the_script_do_not_submit_the_job_again(
    project, submit: str, tmp_path: Path
) -> None:
    """Lightning's strategy "ddp", the one for several devices, starts all processes but the first one like this."""
    out = project.out(
        f"""
        import os, pathlib, subprocess, sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            started = pathlib.Path({str(tmp_path / "started")!r})
            if started.exists():
                return "submitted again"
            started.touch()
            second = os.environ | {{"LOCAL_RANK": "1"}}
            command = [sys.executable, os.path.abspath(sys.argv[0])]
            done = subprocess.run(command, env=second, stderr=subprocess.PIPE, text=True, check=False)
            return done.returncode, done.stderr

        if __name__ == "__main__":
            print({submit})
        """
    )

    assert "(1, " in out
    assert "train was submitted by another process of its own job [callable]" in out
    assert "call train(…) in the script instead" in out
