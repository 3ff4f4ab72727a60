"""Limits belong to the submission: one home, and other KINETIC_LOCAL_* variables from one client to the next."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import last_json

JOBS = """
    import json
    import os
    import time
    import kinetic

    def note(notes, what, **more):
        with open(notes, "a") as file:
            file.write(json.dumps({"what": what, "job": os.environ["KINETIC_JOB_ID"], **more}) + "\\n")

    def noted(notes, what):
        return [page for page in map(json.loads, open(notes)) if page["what"] == what] if os.path.exists(notes) else []

    def meet(notes, wanted, until=""):
        '''Stay until as many run as are wanted, or for half a second if those never come; return on which devices.'''
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        note(notes, "begins", devices=seen)
        limit = time.monotonic() + (60 if until else 20 if wanted > 1 else 0.5)
        while time.monotonic() < limit:
            running = len(noted(notes, "begins")) - len(noted(notes, "ends"))
            if os.path.exists(until) if until else wanted > 1 and running >= wanted:
                break
            time.sleep(0.01)
        time.sleep(0.2)  # who may run beside us has begun by now
        note(notes, "ends", devices=seen)
        return seen

    on_cpu = kinetic.run(accelerator="cpu")(meet)
    on_gpu = kinetic.run(accelerator="gpu-l4")(meet)
"""

HEAD = """
import json, os, sys, time
import kinetic
from jobs import *
words = sys.argv[1:]
def explained(handle):
    from kinetic._jobs import locate as places
    said = places.backend_of(handle).explain(handle.job_id)
    return [said.what, said.why]
def tell(value):
    print(json.dumps(value), flush=True)
"""


class Clients:
    """Clients of one home, each with variables of its own."""

    def __init__(self, project: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project, self.folder, self.environ = project, home.parent, monkeypatch
        project.write("jobs.py", JOBS)

    def run(self, code: str, *words: str, **variables: str) -> Any:
        for name, value in variables.items():
            self.environ.setenv(name, value) if value else self.environ.delenv(name, raising=False)
        self.project.write("client.py", HEAD + code)
        done = self.project.run("client.py", *words, timeout=100)
        assert done.returncode == 0, done.stderr
        return last_json(done.stdout)

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def most_at_once(self, notes: str) -> int:
        now = most = 0
        for line in Path(notes).read_text().splitlines():
            now += 1 if json.loads(line)["what"] == "begins" else -1
            most = max(most, now)
        return most


@pytest.fixture
def clients(project: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> Clients:
    return Clients(project, home, monkeypatch)


MEETING = """
notes, wanted, count = words[0], int(words[1]), int(words[2])
tell([handle.result(timeout=90) for handle in [on_cpu.run_async(notes, wanted) for _ in range(count)]])
"""


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)])
def test_slots_count_as_they_are_at_the_submission_while_supervisors_idle(clients, before, after) -> None:
    clients.run(MEETING, clients.file("first"), str(before), str(before), KINETIC_LOCAL_SLOTS=str(before))

    clients.run(MEETING, clients.file("second"), str(after), "3", KINETIC_LOCAL_SLOTS=str(after))

    assert clients.most_at_once(clients.file("first")) == before
    assert clients.most_at_once(clients.file("second")) == after


def test_more_slots_let_jobs_run_beside_one_that_was_submitted_with_a_single_slot(clients) -> None:
    go, notes = clients.file("go"), clients.file("notes")
    clients.run("tell(on_cpu.run_async(words[0], 1, words[1]).job_id)", notes, go, KINETIC_LOCAL_SLOTS="1")

    clients.run(MEETING, notes, "3", "2", KINETIC_LOCAL_SLOTS="3")

    assert clients.most_at_once(notes) == 3
    Path(go).touch()


def test_fewer_slots_hold_a_job_back_until_enough_of_those_submitted_before_have_ended(clients) -> None:
    go, notes, later = clients.file("go"), clients.file("notes"), clients.file("later")
    running = clients.run(
        "handles = [on_cpu.run_async(words[0], 1, words[1]) for _ in range(2)]\n"
        "while len(noted(words[0], 'begins')) < 2: time.sleep(0.01)\n"
        "tell([handle.job_id for handle in handles])",
        notes,
        go,
        KINETIC_LOCAL_SLOTS="3",
    )

    waiting, said = clients.run(
        "handles = [on_cpu.run_async(words[0], 1) for _ in range(2)]\n"
        "time.sleep(0.5)\ntell([[handle.job_id for handle in handles], explained(handles[0])])",
        later,
        KINETIC_LOCAL_SLOTS="1",
    )
    seen_with_others = clients.run("tell(explained(kinetic.attach(words[0])))", waiting[0], KINETIC_LOCAL_SLOTS="3")
    began_early = Path(later).exists()
    Path(go).touch()
    clients.run("tell([kinetic.attach(word).result(timeout=60) for word in words])", *running, *waiting)

    assert not began_early
    assert "waits for one of 1 slots; it is next" in said[0]
    assert sorted(said[1].removeprefix("running: ").split(", ")) == sorted(running)
    assert "waits for one of 1 slots" in seen_with_others[0]
    assert "it was submitted with 1 slot: by KINETIC_LOCAL_SLOTS, or the cores of the process" in seen_with_others[1]
    assert clients.most_at_once(later) == 1


GPUS = """
handles = [on_gpu.run_async(words[0], int(words[1])) for _ in range(2)]
tell(sorted(handle.result(timeout=90) for handle in handles))
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("none", "0,1", ["0", "1"]),
        ("0", "0,1", ["0", "1"]),
        ("0,1", "0", ["0", "0"]),
        ("0,1", "2,3", ["2", "3"]),
        ("0,1", "none", ["", ""]),
    ],
)
def test_gpus_count_as_they_are_at_the_submission_while_supervisors_idle(clients, before, after, expected) -> None:
    clients.run(GPUS, clients.file("first"), "1", KINETIC_LOCAL_GPUS=before)

    wanted = "2" if expected[0] != expected[1] else "1"
    found = clients.run(GPUS, clients.file("second"), wanted, KINETIC_LOCAL_GPUS=after)

    assert found == expected
    assert clients.most_at_once(clients.file("second")) == (1 if after == "0" else 2)


def test_gpus_that_a_later_submission_names_are_used_while_another_one_is_busy(clients) -> None:
    go, notes = clients.file("go"), clients.file("notes")
    held = clients.run(
        "handles = [on_gpu.run_async(words[0], 1, words[1]) for _ in range(2)]\n"
        "while not noted(words[0], 'begins'): time.sleep(0.01)\ntell([handle.job_id for handle in handles])",
        notes,
        go,
        KINETIC_LOCAL_GPUS="0",
    )

    beside = clients.run("tell(on_gpu.run_async(words[0], 1).result(timeout=60))", notes, KINETIC_LOCAL_GPUS="0,1")
    narrow, said = clients.run(
        "handle = on_gpu.run_async(words[0], 1)\ntell([handle.job_id, explained(handle)])",
        notes,
        KINETIC_LOCAL_GPUS="0",
    )
    Path(go).touch()
    values = clients.run("tell([kinetic.attach(word).result(timeout=60) for word in words])", *held, narrow)

    assert beside == "1"
    assert "waits for 1 of 1 GPUs; one job is before it" in said[0]
    assert said[1] == f"running: {held[0]}"
    assert values == ["0", "0", "0"]


def test_jobs_on_gpus_go_on_when_only_clients_without_gpus_help_the_queue_along(clients) -> None:
    go, notes = clients.file("go"), clients.file("notes")
    jobs = clients.run(
        "tell([on_gpu.run_async(words[0], 1, words[1]).job_id for _ in range(2)])", notes, go, KINETIC_LOCAL_GPUS="5"
    )
    clients.run("tell(on_cpu.run_async(words[0], 1).result())", clients.file("other"), KINETIC_LOCAL_GPUS="none")

    said = clients.run("tell(explained(kinetic.attach(words[0])))", jobs[1])
    Path(go).touch()
    values = clients.run("tell([kinetic.attach(word).result(timeout=60) for word in words])", *jobs)

    assert "waits for 1 of 1 GPUs" in said[0]
    assert said[1] == f"running: {jobs[0]}; KINETIC_LOCAL_GPUS was 5 when it was submitted"
    assert values == ["5", "5"]


@pytest.mark.parametrize(("before", "after"), [("1", "4"), ("4", "1")])
def test_the_largest_slice_counts_as_it_is_at_the_submission(clients, before, after) -> None:
    slice_of_four = """
import kinetic.errors
@kinetic.run(accelerator="tpu-v5litepod-16")
def host():
    return os.environ["KINETIC_HOST_COUNT"]
try:
    tell(host())
except kinetic.errors.CapacityError:
    tell("refused")
"""
    found = [clients.run(slice_of_four, KINETIC_LOCAL_MAX_HOSTS=hosts) for hosts in (before, after)]

    assert found == [{"1": "refused", "4": "4"}[hosts] for hosts in (before, after)]


def test_the_environment_counts_as_it_is_at_the_submission(clients) -> None:
    where = "import sys\n@kinetic.run(accelerator='cpu')\ndef where(): return sys.prefix\ntell(where())"

    found = [clients.run(where, KINETIC_LOCAL_ENV=kind) for kind in ("same", "isolated", "same")]

    assert found[0] == found[2]
    assert "environments" in found[1]


def test_a_job_that_runs_is_not_lost_for_a_shell_with_another_runtime_folder(
    project: Any, home: Path, tmp_path: Path, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("one.py", """
        import os, time, kinetic
        @kinetic.run(accelerator="cpu")
        def stay(folder):
            with open(f"{folder}/begun", "a") as file:
                file.write("x")
            while not os.path.exists(f"{folder}/end"):
                time.sleep(0.01)
            return "its value"
    """)  # fmt: skip
    submit = f"from one import stay\nprint(stay.run_async({str(tmp_path)!r}).job_id)"
    job_id = project.out(submit).split()[-1]
    wait_until((tmp_path / "begun").exists, "the job")

    def kinetic(*words: str) -> Any:
        return project.kinetic(*words)

    with monkeypatch.context() as patch:
        patch.setenv("KINETIC_RUNTIME_DIR", str(tmp_path / "another"))
        status = kinetic("jobs", "status", job_id)
        kinetic("jobs", "cleanup", "--all", "--yes")
    (tmp_path / "end").touch()
    value = kinetic("jobs", "result", job_id)

    assert "RUNNING" in status.stdout, status
    assert "its value" in value.stdout, value
    assert (tmp_path / "begun").read_text() == "x"


def test_a_job_is_as_nice_as_its_client_and_not_as_the_one_before(project: Any) -> None:
    project.write(
        "script.py",
        """
        import os, kinetic

        @kinetic.run(accelerator="cpu")
        def niceness():
            return os.nice(0)

        print(niceness() - os.nice(0))
        """,
    )
    words = [sys.executable, "script.py"]

    told = [project.execute(*before, *words).stdout for before in ([], ["nice", "-n", "5"], [])]

    assert told == ["0\n"] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may join groups")
def test_a_job_has_the_groups_of_its_client_and_not_those_of_the_one_before(project: Any) -> None:
    project.write(
        "script.py",
        """
        import os, sys, kinetic

        @kinetic.run(accelerator="cpu")
        def groups():
            return os.getegid(), os.getgroups(), os.environ["KINETIC_SUPERVISOR"]

        os.setgroups([int(word) for word in sys.argv[2:]])
        os.setegid(int(sys.argv[1]))
        print(*groups())
        """,
    )

    told = [project.run("script.py", *words).stdout.rsplit(" ", 1) for words in (["0", "27"], ["27", "0", "44"]) * 2]

    assert [groups for groups, _ in told] == ["0 [27]", "27 [0, 44]"] * 2
    assert len({supervisor for _, supervisor in told}) == 2


def test_jobs_of_one_slurm_job_do_not_run_in_another_one(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(
        "script.py",
        """
        import os, kinetic

        @kinetic.run(accelerator="cpu")
        def supervisor():
            return os.environ["KINETIC_SUPERVISOR"]

        print(supervisor())
        """,
    )
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    told = []

    for job in ("7", "7", "8"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        told.append(project.run("script.py").stdout)

    assert told[0] == told[1] != told[2]


def test_a_file_that_the_shell_opened_above_its_own_limit_harms_no_job(project: Any) -> None:
    project.write(
        "script.py",
        """
        import os, kinetic

        @kinetic.run(accelerator="cpu")
        def is_open():
            return os.path.exists("/dev/fd/200")

        print(is_open(), os.get_inheritable(200))
        """,
    )

    done = project.execute("bash", "-c", f"exec 200>/dev/null; ulimit -S -n 100; {sys.executable} script.py")

    assert done.stdout == "False True\n", done.stderr
