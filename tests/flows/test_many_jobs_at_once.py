"""Many jobs, several clients, few places: none is lost, doubled or reordered, and none gets what another one holds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flows.conftest import last_json
from waiting import until

from kinetic._backends.local.queue import JobRow, Queue, SupervisorRow

SLOTS = 2
EACH = 50

JOBS = """
    import json
    import os
    import signal
    import sys
    import time
    import kinetic

    def note(notes, **fields):
        with open(notes, "a") as file:
            file.write(json.dumps({"time": time.monotonic(), "pid": os.getpid(), **fields}) + "\\n")

    @kinetic.run(accelerator="cpu")
    def tiny(notes, who, number):
        note(notes, what="begins", job=os.environ["KINETIC_JOB_ID"])
        note(notes, what="ends", job=os.environ["KINETIC_JOB_ID"])
        return [who, number]

    def on_gpu(notes, until=""):
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        note(notes, what="begins", job=os.environ["KINETIC_JOB_ID"], devices=seen)
        while until and not os.path.exists(until):
            time.sleep(0.01)
        time.sleep(0.03)
        note(notes, what="ends", job=os.environ["KINETIC_JOB_ID"], devices=seen)
        return seen

    one_gpu = kinetic.run(accelerator="gpu-l4")(on_gpu)
    two_gpus = kinetic.run(accelerator="gpu-l4x2")(on_gpu)

    @kinetic.run(accelerator="cpu")
    def stay(notes, until, stubborn=False):
        if stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(notes, what="begins", job=os.environ["KINETIC_JOB_ID"])
        while not os.path.exists(until):
            time.sleep(0.01)
        return "stayed"

    @kinetic.run(accelerator="cpu")
    def about_me():
        import resource
        return [os.environ["KINETIC_SUPERVISOR"], sys.flags.optimize, resource.getrlimit(resource.RLIMIT_NOFILE)[0]]
"""


class Span(NamedTuple):
    """When a job ran, and on what."""

    begins: float
    ends: float
    devices: list[str]


class Crowd:
    """Clients of one home, what their jobs noted, and the rows of their queue."""

    def __init__(self, project: Any, home: Path) -> None:
        self.project, self.home = project, home
        self.notes = home.parent / "notes"
        self.until = home.parent / "go"
        project.write("jobs.py", JOBS)

    def start(self, code: str, *words: str) -> Any:
        """Start a client of its own."""
        self._write(code)
        return self.project.start("client.py", str(self.notes), str(self.until), *words)

    def run(self, code: str, *words: str) -> Any:
        """Run a client, and return what it printed as JSON."""
        self._write(code)
        done = self.project.run("client.py", str(self.notes), str(self.until), *words)
        assert done.returncode == 0, done.stderr
        return last_json(done.stdout)

    def _write(self, code: str) -> None:
        head = "import json, os, sys, time\nimport kinetic\nfrom jobs import *\nnotes, until, *words = sys.argv[1:]\n"
        self.project.write("client.py", head + code)

    def noted(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []

    def begun(self) -> list[str]:
        return [page["job"] for page in self.noted() if page["what"] == "begins"]

    def spans(self) -> dict[str, Span]:
        pages = {(page["what"], page["job"]): page for page in self.noted()}
        ended = [job for what, job in pages if what == "ends"]
        return {
            job: Span(
                pages["begins", job]["time"],
                pages["ends", job]["time"],
                pages["ends", job].get("devices", "").split(","),
            )
            for job in ended
        }

    def rows(self) -> list[JobRow]:
        return self._ask(Queue.rows)

    def supervisors(self) -> list[SupervisorRow]:
        return self._ask(Queue.supervisors)

    def row(self, job_id: str) -> JobRow | None:
        return next((row for row in self.rows() if row.job_id == job_id), None)

    def _ask(self, question: Callable[[Queue], list[Any]]) -> list[Any]:
        (path,) = self.home.glob("run/*/queue.db")
        with closing(Queue(path)) as queue:
            return question(queue)


@pytest.fixture
def crowd(project: Any, home: Path) -> Crowd:
    return Crowd(project, home)


def most_at_once(spans: list[Span]) -> int:
    """Return how many ran at the same time at most."""
    changes = sorted([(span.begins, 1) for span in spans] + [(span.ends, -1) for span in spans])
    now, most = 0, 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


FIFTY = f"""
handles = [tiny.run_async(notes, words[0], number) for number in range({EACH})]
print(json.dumps([[handle.job_id, handle.result(timeout=100, cleanup=False)] for handle in handles]))
"""


def test_two_clients_with_fifty_jobs_each_lose_double_and_reorder_none(crowd: Crowd) -> None:
    clients = [crowd.start(FIFTY, who) for who in ("one", "two")]

    told = [client.communicate(timeout=110) for client in clients]

    assert [client.returncode for client in clients] == [0, 0], told
    results = [last_json(out) for out, _ in told]
    for who, found in zip(("one", "two"), results, strict=True):
        assert [value for _, value in found] == [[who, number] for number in range(EACH)]
    begun = Counter(crowd.begun())
    assert set(begun.values()) == {1}
    assert set(begun) == {job for found in results for job, _ in found}
    spans = crowd.spans()
    assert most_at_once(list(spans.values())) <= SLOTS
    queued = [row.job_id for row in crowd.rows()]
    for found in results:
        assert [job for job in queued if job in dict(found)] == [job for job, _ in found]
    # Claimed strictly in order; of those that are claimed at the same time, the second may be on its feet first.
    for place, job in enumerate(queued):
        late = [other for other in queued[:place] if spans[other].begins > spans[job].begins]
        assert len(late) < SLOTS, f"{late} were submitted before {job}, and began after it"


def test_no_more_supervisors_are_started_than_jobs_may_run(crowd: Crowd) -> None:
    crowd.run("[handle.result() for handle in [tiny.run_async(notes, 'a', n) for n in range(12)]]\nprint(1)")

    assert len(crowd.supervisors()) <= SLOTS


GPUS = """
handles = [one_gpu.run_async(notes) for _ in range(3)]
handles.append(two_gpus.run_async(notes))
handles += [one_gpu.run_async(notes) for _ in range(3)]
print(json.dumps([[handle.job_id, handle.result(timeout=60, cleanup=False)] for handle in handles]))
"""


def test_no_two_jobs_hold_one_gpu_and_a_small_job_does_not_overtake_a_large_one(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_GPUS", "0,1")

    found = crowd.run(GPUS)

    spans = crowd.spans()
    assert [len(devices.split(",")) for _, devices in found] == [1, 1, 1, 2, 1, 1, 1]
    for device in ("0", "1"):
        assert most_at_once([span for span in spans.values() if device in span.devices]) == 1
    large = spans[found[3][0]]
    assert all(spans[job].ends <= large.begins for job, _ in found[:3])
    assert all(spans[job].begins >= large.ends for job, _ in found[4:])


def test_jobs_on_gpus_and_jobs_on_the_cpu_do_not_wait_for_each_other(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_GPUS", "7")
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")

    found = crowd.run(
        """
gpu = one_gpu.run_async(notes, until)
cpu = tiny.run_async(notes, "cpu", 1)
done = cpu.result(timeout=30)
open(until, "w").close()
print(json.dumps([done, gpu.result(timeout=30)]))
"""
    )

    assert found == [["cpu", 1], "7"]


def test_a_waiting_job_says_what_it_waits_for(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")

    first, reason, why = crowd.run(
        """
from kinetic._jobs import locate
first = stay.run_async(notes, until)
while not first.running(): time.sleep(0.01)
others = [tiny.run_async(notes, "a", n) for n in range(2)]
backend = locate.backend_of(first)
said = backend.explain(others[1].job_id)
seen = backend.observe([others[1].job_id])[others[1].job_id]
open(until, "w").close()
[each.result() for each in others]
print(json.dumps([first.job_id, seen.reason, said.why]))
"""
    )

    assert reason == "waits for one of 1 slots; one job is before it"
    assert why == f"running: {first}"


def test_supervisors_of_other_flags_or_limits_are_not_shared(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    about = "print(json.dumps(about_me.run_async().result(timeout=30)))"
    plain, again = crowd.run(about), crowd.run(about)
    limited = crowd.run(f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n{about}")
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    optimized = crowd.run(about)

    assert plain == again
    assert plain[1] == 0
    assert optimized[1] == 2
    assert limited[2] == 200
    assert len({plain[0], limited[0], optimized[0]}) == 3


def test_a_supervisor_takes_on_the_limits_of_its_jobs_whoever_starts_it(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    crowd.run("handle = stay.run_async(notes, until)\nprint(1)")
    wait_until(crowd.begun, "the first job")
    low = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(7)[1]))\n"
    job = crowd.run(f"{low}print(json.dumps(about_me.run_async().job_id))")  # leaves it to the first one's supervisor

    crowd.until.touch()

    found = crowd.run(f"print(json.dumps(kinetic.attach('{job}').result(timeout=30)))")
    assert found[2] == 200


@pytest.mark.parametrize("stubborn", [False, True], ids=["polite", "stubborn"])
def test_cancelling_a_running_job_ends_it_and_says_so(
    crowd: Crowd, stubborn: bool, wait_until: Callable[..., None]
) -> None:
    job = crowd.run(f"print(json.dumps(stay.run_async(notes, until, {stubborn}).job_id))")
    wait_until(crowd.begun, "the beginning of the job")
    worker = crowd.noted()[0]["pid"]

    status, error, message, artifacts, seconds, pages = crowd.run(
        f"""
handle = kinetic.attach("{job}")
requested = time.time()
handle.cancel()
seconds = time.time() - requested
status = handle.status().value
try:
    handle.result(timeout=0)  # nothing is left to wait for
except Exception as error:
    told = [type(error).__name__, str(error)]
artifacts = os.path.exists(handle.store.removeprefix("file://") + "/" + handle.job_id)
from kinetic._jobs.status import job_to_json, observe
shown = job_to_json(handle, observe(handle))
print(json.dumps([status, *told, artifacts, seconds, [handle.history(), shown]]))
"""
    )

    assert status == "NOT_FOUND"
    assert pages[0]["status"] == "CANCELLED"
    for page in pages:  # it ended when its process was gone, 5 s later if it is stubborn
        assert page["duration_seconds"] > seconds - 0.5
    assert (error, "was cancelled" in message) == ("JobCancelledError", True)
    assert artifacts
    assert crowd.row(job) is None
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_cancelling_a_queued_job_takes_it_out_and_it_never_runs(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")

    job, status, others = crowd.run(
        """
first = stay.run_async(notes, until)
second, third = [tiny.run_async(notes, "a", n) for n in range(2)]
second.cancel()
status = second.status().value
open(until, "w").close()
print(json.dumps([second.job_id, status, [first.result(), third.result()]]))
"""
    )

    assert status == "NOT_FOUND"
    assert others == ["stayed", ["a", 1]]
    assert job not in crowd.begun()


def test_cancelling_a_job_that_has_ended_changes_nothing_and_says_so(crowd: Crowd) -> None:
    crowd.project.write(
        "late.py",
        """
        import sys
        from jobs import tiny
        handle = tiny.run_async(sys.argv[1], "a", 1)
        handle.wait()
        handle.cancel()
        print(handle.status().value, handle.result())
        """,
    )

    done = crowd.project.run("late.py", str(crowd.notes))

    assert done.stdout.split(None, 1) == ["SUCCEEDED", "['a', 1]\n"]
    assert "had ended before it could be cancelled: it is SUCCEEDED" in done.stderr


def test_cleaning_up_a_running_job_ends_it_and_leaves_nothing_but_history(
    crowd: Crowd, home: Path, wait_until: Callable[..., None]
) -> None:
    job = crowd.run("print(json.dumps(stay.run_async(notes, until).job_id))")
    wait_until(crowd.begun, "the beginning of the job")
    worker = crowd.noted()[0]["pid"]

    status = crowd.run(f'handle = kinetic.attach("{job}")\nhandle.cleanup()\nprint(json.dumps(handle.status().value))')

    assert status == "NOT_FOUND"
    assert crowd.row(job) is None
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert [path for path in home.rglob(f"{job}*") if "outputs" not in path.parts] == [
        home / "store" / "history" / f"{job}.json"
    ]


def test_removing_only_the_resource_of_a_job_that_just_ended_keeps_its_result(crowd: Crowd) -> None:
    values = crowd.run(
        """
found = []
for number in range(8):
    handle = tiny.run_async(notes, "a", number)
    handle.wait()
    handle.cleanup(gcs=False)  # its supervisor may still be tidying up
    time.sleep(0.05)
    found.append(handle.result(cleanup=False)[1])
print(json.dumps(found))
"""
    )

    assert values == list(range(8))


def test_a_deadline_ends_a_job_with_the_stacks_in_its_log(crowd: Crowd) -> None:
    error, message, log = crowd.run(
        """
handle = stay.with_options(deadline=0.5).run_async(notes, until, True)
try:
    handle.result(timeout=30)
except Exception as raised:
    print(json.dumps([type(raised).__name__, str(raised), handle.logs()]))
"""
    )

    assert error == "JobError"
    assert "deadline of 0.5 s" in message
    assert "most recent call first" in log
    assert "in stay" in log


def test_what_cannot_be_carried_out_fails_with_its_reason_and_does_not_stop_the_others(
    crowd: Crowd, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    first, second, third = crowd.run(
        """
jobs = [stay.run_async(notes, until)] + [tiny.run_async(notes, "a", n) for n in range(2)]
print(json.dumps([job.job_id for job in jobs]))
"""
    )
    (runtime,) = home.glob("run/*")
    (runtime / "jobs" / second / "key").unlink()

    crowd.until.touch()
    told = crowd.run(
        f"""
told = []
for job in {[first, second, third]}:
    try:
        told.append(kinetic.attach(job).result(timeout=30))
    except Exception as error:
        told.append(f"{{type(error).__name__}}: {{error}}")
print(json.dumps(told))
"""
    )

    assert told[0] == "stayed"
    assert told[1].startswith("JobError")
    assert "could not be carried out" in told[1]
    assert told[2] == ["a", 1]


@pytest.mark.own_runner
def test_a_runner_that_a_power_cut_has_cut_short_is_written_anew(crowd: Crowd, home: Path) -> None:
    crowd.run("print(json.dumps([tiny(notes, 'a', 1)]))")
    _end_supervisors_politely(crowd)
    cut = [*home.glob("run/*/runners/*/supervisor.py"), *home.glob("run/*/runners/*/kinetic/_backends/local/queue.py")]
    for file in cut:
        file.write_text("")
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.write_text("")

    assert crowd.run("print(json.dumps(tiny(notes, 'a', 2)))") == ["a", 2]
    assert len(cut) == 2


@pytest.mark.own_runner
def test_a_runner_that_has_lost_folders_in_a_power_cut_is_written_anew(crowd: Crowd, home: Path) -> None:
    crowd.run("print(json.dumps([tiny(notes, 'a', 1)]))")
    _end_supervisors_politely(crowd)
    [runner] = home.glob("run/*/runners/*")
    shutil.rmtree(runner / "kinetic" / "_backends")
    (runner / "supervisor.py").unlink()

    assert crowd.run("print(json.dumps(tiny(notes, 'a', 2)))") == ["a", 2]


def test_jobs_whose_supervisor_never_comes_up_fail_with_the_reason(
    crowd: Crowd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif any(word.endswith('supervisor.py') for word in sys.orig_argv):\n    sys.exit('it is broken')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    begun = time.monotonic()
    told = crowd.run(
        """
handle = tiny.run_async(notes, "a", 2)
try:
    handle.result(timeout=60)
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""
    )

    assert "does not start" in told
    assert "it is broken" in told
    assert time.monotonic() - begun < 20


def _end_supervisors_politely(crowd: Crowd) -> None:
    for supervisor in crowd.supervisors():
        os.kill(supervisor.pid, signal.SIGTERM)
    until(lambda: not crowd.supervisors(), "the end of the supervisors", seconds=60)


COSTS = """
    import os
    import threading
    import kinetic

    forced, threads = [], []
    fsync, start = os.fsync, threading.Thread.start
    os.fsync = lambda descriptor: (forced.append(os.readlink(f"/proc/self/fd/{descriptor}")), fsync(descriptor))[1]
    threading.Thread.start = lambda thread: (threads.append(thread.name), start(thread))[1]

    @kinetic.run(accelerator="cpu")
    def double(number):
        return number * 2

    if __name__ == "__main__":
        double(1)
        forced.clear()
        threads.clear()
        handle = double.run_async(2)
        print(len(forced), threads, "of which", [each.name for each in threading.enumerate() if each.name in threads])
        assert handle.result() == 4, forced
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the files are named by /proc")
def test_a_further_submission_forces_four_files_their_four_folders_and_the_queue_on_threads_that_end(project) -> None:
    project.write("costs.py", COSTS)

    # Order, record, key and task; the job's two folders, and the two that these are in; what SQLite wrote.
    helpers = ", ".join(f"'kinetic-transfer-{number}'" for number in (1, 2, 3))
    assert project.run("costs.py").stdout == f"9 ['kinetic-progress', {helpers}] of which []\n"


COLLECTS = """
    import os
    import threading
    import kinetic

    forced = []
    fsync = os.fsync
    os.fsync = lambda descriptor: (forced.append(os.readlink(f"/proc/self/fd/{descriptor}")), fsync(descriptor))[1]

    @kinetic.run(accelerator="cpu")
    def say(number):
        print("number", number)
        return number

    if __name__ == "__main__":
        batch = say.run_async_map(range(20))
        batch.wait()
        forced.clear()
        assert batch.results() == list(range(20))
        folders = [name for name in forced if os.path.isdir(name)]
        assert sorted(job.logs() for job in batch.jobs) == sorted(f"number {number}\\n" for number in range(20))
        assert {job.history()["status"] for job in batch.jobs} == {"SUCCEEDED"}
        print(len(forced) - len(folders), len(folders))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the files are named by /proc")
def test_children_that_are_collected_share_the_forced_writes_of_the_folders_of_their_logs_and_pages(project) -> None:
    project.write("collects.py", COLLECTS)

    files, folders = map(int, project.run("collects.py").stdout.split())

    assert files == 2 * 20  # a log and a page each
    assert folders <= 10
