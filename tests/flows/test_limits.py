"""What a job is to this machine: memory that it is held to, threads that follow its cores, processes with its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import last_json

from kinetic._runner import processes

from .conftest import Project  # type: ignore[import-not-found,unused-ignore]

MIB = 1 << 20
ASKS = '[project]\nname = "theirs"\nversion = "1"\n[tool.kinetic]\nresources = {{ {} }}\n'
EATS = """
    import json, os, sys, time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def eat(mebibytes, in_a_child):
        if in_a_child and os.fork():
            os.wait()
            return "the child ended"
        held = []
        for number in range(mebibytes):
            held.append(os.urandom(1 << 20))
            time.sleep(0.002)
        time.sleep(3)
        return len(held)

    if __name__ == "__main__":
        begun = time.monotonic()
        try:
            print(json.dumps(eat(int(sys.argv[1]), "child" in sys.argv)))
        except kinetic.errors.JobError as error:
            print(json.dumps([error.code, str(error), time.monotonic() - begun]))
"""


@pytest.mark.skipif(not processes.can_measure_memory(), reason="this system has no /proc")
@pytest.mark.parametrize("who", ["itself", "child"])
def test_a_job_that_eats_more_memory_than_it_asked_for_fails_as_out_of_memory(project: Project, who: str) -> None:
    project.write("pyproject.toml", ASKS.format('memory = "200Mi"'))

    out = project.out(EATS, "1000", who)

    code, said, took = last_json(out)
    assert code == "memory"
    assert "the job ran out of memory: it asked for 200 MiB, and its processes held " in said
    assert 'resources = { memory = "32Gi" }' in said
    assert took < 30


@pytest.mark.skipif(not processes.can_measure_memory(), reason="this system has no /proc")
def test_a_job_that_stays_within_its_memory_ends_well(project: Project) -> None:
    project.write("pyproject.toml", ASKS.format('memory = "200Mi"'))

    assert project.out(EATS, "100") == "100\n"


def test_libraries_start_as_many_threads_as_a_job_asked_for_cores_unless_somebody_says_otherwise(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    project.write("pyproject.toml", ASKS.format("cpu = 2.5"))

    out = project.out("""
        import os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def threads():
            return [os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")]

        if __name__ == "__main__":
            print(threads())
    """)

    assert out == "['3', '3', '7']\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process change what ps shows of it")
def test_ps_and_top_show_the_id_of_the_job_that_a_process_works_for(
    project: Project, home: Path, tmp_path: Path, wait_until: Callable[..., None], living_processes: Callable[..., Any]
) -> None:
    go = tmp_path / "go"
    out = project.out(
        """
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def wait(path):
            import os, time
            while not os.path.exists(path):
                time.sleep(0.01)

        if __name__ == "__main__":
            print(wait.run_async(sys.argv[1]).job_id)
        """,
        str(go),
    )
    job_id = out.strip()

    def shown() -> list[tuple[str, str]]:
        return [_shown(pid) for pid in living_processes(home)]

    wait_until(lambda: sum(job_id in words for words, _ in shown()) == 2, "the title of two processes")
    told = sorted(shown())
    go.touch()

    assert [words.split()[:3] for words, _ in told] == [
        ["kinetic:", job_id, "supervisor"],
        ["kinetic:", job_id, "worker"],
    ]
    assert {name for _, name in told} == {job_id[:15]}
    wait_until(
        lambda: [words.split()[-1] for words, _ in shown() if "supervisor.py" in words], "the title of an idle one"
    )


def _shown(pid: int) -> tuple[str, str]:
    listed = subprocess.run(["ps", "-o", "comm=", "-p", str(pid)], capture_output=True, text=True, check=False)
    words = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return words.stdout.strip(), listed.stdout.strip()
