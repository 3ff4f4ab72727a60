"""kill -9 of client, canceller, supervisor, worker or observer at any step: a right status, and a result() that ends.

The points lie at and between the named steps of ``kinetic._wire.failpoints``. They are drawn from a seed that stands in
the name of each test; KINETIC_KILL_SEED=<seed> draws the same ones again. `make test` takes 20, `make nightly` 200.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import last_json

from kinetic._backends.local import expired_files
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._jobs import locate
from kinetic._wire import failpoints, keys

from .conftest import share_runner
from .kills import SEED, KillSite

ANSWER = 42
LIMIT_SECONDS = 10.0
QUICK, NIGHTLY = 20, 200

# What may have become of a job whose process died exactly at a step. "value": 42 is delivered, and the function ran
# once. "never": NOT_FOUND, and nothing runs. "lost": FAILED with a plain sentence. "removed": NOT_FOUND; its value may
# still be there. "cancelled": NOT_FOUND, and result() says so at once.
BECOMES: dict[str, str] = {
    **dict.fromkeys(failpoints.CLIENT[:5], "never"),
    **dict.fromkeys(failpoints.CLIENT[5:9], "value"),
    **dict.fromkeys(failpoints.CLIENT[9:], "removed"),
    **dict.fromkeys(failpoints.CANCELLER, "cancelled"),
    **dict.fromkeys(failpoints.SUPERVISOR, "value"),
    **dict.fromkeys(failpoints.WORKER, "value"),
    "worker:calling": "lost",
    "worker:called": "lost",
    "worker:body-written": "lost",
    **dict.fromkeys(failpoints.OBSERVER, "value"),
}
# A little later than these, the function may have begun, or somebody may have removed the job.
LATER: dict[str, frozenset[str]] = {
    **dict.fromkeys(failpoints.CLIENT[:5], frozenset({"never", "value", "removed"})),
    **dict.fromkeys(failpoints.CLIENT[5:], frozenset({"value", "removed"})),
    **dict.fromkeys(failpoints.SUPERVISOR[:6], frozenset({"value", "lost"})),
    **dict.fromkeys(failpoints.WORKER[:8], frozenset({"value", "lost"})),
}

SCRIPT = """
    import sys
    import time
    import kinetic

    def note(notes, word):
        with open(notes, "a") as file:
            file.write(word + "\\n")

    @kinetic.run(accelerator="cpu")
    def double(data, notes, seconds):
        note(notes, "began")
        print("doubling")
        time.sleep(seconds)
        note(notes, "done")
        return int(open(data + "/number").read()) * 2

    if __name__ == "__main__":
        what, notes, seconds = sys.argv[1:]
        handle = double.run_async(kinetic.Data("set"), notes, float(seconds))
        if what == "collect":
            print(handle.result())
        elif what == "cancel":
            while not handle.running():
                time.sleep(0.01)
            handle.cancel()
"""

ASK = """
    import json
    import sys
    import time
    import kinetic

    begun = time.monotonic()
    found = {}
    try:
        handle = kinetic.attach(sys.argv[1])
        found["before"] = handle.status().value
        found["value"] = handle.result(timeout=30, cleanup=False)
    except Exception as error:
        found |= {"error": type(error).__name__, "message": str(error)}
    found["seconds"] = time.monotonic() - begun
    if "before" in found:
        found["after"] = handle.status().value
        if "cancelled" in found.get("message", ""):
            handle.cancel()
    kinetic.list_jobs()
    print(json.dumps(found))
"""


def points(seed: int) -> Iterator[object]:
    """Draw the points: (step, seconds later); the quick ones cover every actor, the nightly ones every step."""
    draw = random.Random(seed)
    shares = {
        failpoints.CLIENT: 6,
        failpoints.CANCELLER: 1,
        failpoints.SUPERVISOR: 6,
        failpoints.WORKER: 4,
        failpoints.OBSERVER: 3,
    }
    assert sum(shares.values()) == QUICK
    for names, share in shares.items():
        for name in draw.sample(names, share):
            later = 0.0 if draw.random() < 0.6 else draw.uniform(0.0005, 0.03)
            yield pytest.param(name, later, id=f"seed {seed}, {name} + {later * 1000:.1f} ms")
    for number in range(NIGHTLY):
        name = failpoints.SINGLE[number % len(failpoints.SINGLE)]
        later = 0.0 if number < len(failpoints.SINGLE) else draw.uniform(0.0002, 0.03)
        words = f"seed {seed}, nightly {number}, {name} + {later * 1000:.1f} ms"
        yield pytest.param(name, later, id=words, marks=pytest.mark.nightly)


class Site(KillSite):
    """One home on which somebody is killed."""

    def __init__(self, home: Path, project: Any, setenv: Callable[[str, str], None]) -> None:
        super().__init__(home, project, setenv)
        self.runtime = Paths(home / "run" / "here")
        project.write("job.py", SCRIPT)
        project.write("set/number", "21")
        project.write("ask.py", ASK)

    def run(self, what: str, seconds: float = 0.05) -> int:
        done = self.project.run("job.py", what, str(self.notes), str(seconds))
        assert done.returncode in {0, -9}, done.stderr
        return int(done.returncode)

    def ask(self, job_id: str = "") -> dict[str, Any]:
        done = self.project.run("ask.py", job_id or self.job_id)
        assert done.returncode == 0, done.stderr
        return dict(last_json(done.stdout))

    @property
    def job_id(self) -> str:
        """The one job of this home, found by whatever there is of it."""
        store = self.home / "store"
        found = {path.name for path in self.runtime.jobs.iterdir() if not path.name.startswith("workspace-")}
        found |= (
            {path.name for path in store.iterdir() if path.name[0] != "."} - keys.RESERVED if store.exists() else set()
        )
        found |= {path.stem for path in store.glob("history/*.json")}
        (name,) = found
        return name

    def ran(self, word: str) -> int:
        return self.noted().count(word)

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.runtime.queue, timeout=5)) as db:
            return db.execute(question).fetchall()

    def scratch(self) -> list[Path]:
        folder = self.home / "store" / ".tmp"
        return [*folder.iterdir()] if folder.exists() else []


@pytest.fixture
def site(home: Path, project: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Site:
    monkeypatch.setenv("KINETIC_MACHINE_ID", "here")
    share_runner(home / "run" / "here", tmp_path_factory)
    return Site(home, project, monkeypatch.setenv)


@pytest.mark.parametrize(("name", "later"), [*points(SEED)])
def test_a_kill_at_any_step_leaves_a_right_status_and_a_result_that_ends(
    site: Site, name: str, later: float, wait_until: Callable[..., None]
) -> None:
    print(f"KINETIC_KILL_SEED={SEED}")

    mark, expected = _kill(site, name, later, wait_until)
    site.kill_nobody()
    found = site.ask()

    assert mark.exists(), f"nobody came by {name}"
    assert found["seconds"] < LIMIT_SECONDS
    _check_outcome(site, found, expected)
    _check_nothing_is_left(site, wait_until)


def _kill(site: Site, name: str, later: float, wait_until: Callable[..., None]) -> tuple[Path, set[str]]:
    """Let somebody be killed at a step; return the sign of it and what may have become of the job."""
    expected = {BECOMES[name]} if not later else {BECOMES[name]} | LATER.get(name, {BECOMES[name]})
    actor = name.partition(":")[0]
    if actor == "observer":
        lost = random.Random(name).random() < 0.5
        before = site.kill_at("supervisor:forked", 0.4) if lost else site.kill_at("supervisor:worker-ended")
        site.run("submit", 30.0 if lost else 0.05)
        wait_until(before.exists, "the first kill")
        wait_until(lambda: not processes_of(site.home), "the end of the supervisor")
        mark = site.kill_at(name, later)
        killed = site.project.run("ask.py", site.job_id).returncode
        assert killed == -9 or later
        return mark, {"lost"} if lost else {"value"}
    mark = site.kill_at(name, later)
    if actor in {"client", "canceller"}:
        killed = site.run("collect" if actor == "client" else "cancel", 0.05 if actor == "client" else 30.0)
        assert killed == -9 or later
        return mark, expected | ({"removed"} if killed == 0 else set())
    site.run("submit")
    wait_until(mark.exists, f"the kill at {name}")
    return mark, expected


def _check_outcome(site: Site, found: dict[str, Any], expected: set[str]) -> None:
    became = _what_became(site, found)
    assert became in expected, found
    assert site.ran("began") <= 1
    if became == "value":
        assert (site.ran("began"), site.ran("done")) == (1, 1)
        assert found["after"] == "SUCCEEDED"
    elif became == "lost":
        assert found["after"] == "FAILED"
        assert "was killed" in found["message"] or "SIGKILL" in found["message"]
    elif became == "never":
        assert site.ran("began") == 0
    elif became == "cancelled":
        assert site.ran("done") == 0


def _what_became(site: Site, found: dict[str, Any]) -> str:
    if "cancelled" in found.get("message", ""):
        return "cancelled"
    if found.get("before", "NOT_FOUND") == "NOT_FOUND":
        unknown = {"JobNotFoundError", "ResultMissingError"}
        assert found.get("value") == ANSWER or found["error"] in unknown
        return "removed" if [*site.home.glob("store/history/*.json")] else "never"
    if found.get("value") == ANSWER:
        return "value"
    return "lost" if found["error"] == "JobError" else "?"


def _check_nothing_is_left(site: Site, wait_until: Callable[..., None]) -> None:
    """No process but idle supervisors, no row in work, and after the next sweep no scrap of anything."""
    wait_until(lambda: not site.rows("SELECT 1 FROM jobs WHERE state != 'ended'"), "the end of every row")
    wait_until(lambda: processes_of(site.home) <= _idle(site), "the end of every process")
    now = time.time() + expired_files.DAY + expired_files.HOUR
    with closing(Queue(site.runtime.queue)) as queue:
        expired_files.sweep(site.runtime, queue, site.home / "store" / ".tmp", locate.read_page, now=now)
    known = {name for (name,) in site.rows("SELECT job_id FROM jobs")}
    assert site.scratch() == []
    assert {path.name for path in site.runtime.jobs.iterdir()} <= known
    assert [*site.runtime.jobs.glob("*/data-*")] == []
    assert [*site.runtime.jobs.glob("*/body-*"), *site.runtime.jobs.glob("*/word-*")] == []
    for folder in (site.home / "store").iterdir():
        if folder.name not in keys.RESERVED | {".tmp"}:
            assert (folder / "handle.json").exists(), f"{[*folder.rglob('*')]} cannot be found by anybody"


def _idle(site: Site) -> set[int]:
    return {pid for (pid,) in site.rows("SELECT pid FROM supervisors WHERE state = 'idle'")}


def processes_of(home: Path) -> set[int]:
    """Find the living processes of a home's supervisors by the mark, also of those that the home has forgotten."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marks = (folder / "environ").read_bytes()
            words = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if b"KINETIC_SUPERVISOR=" in marks and os.fsencode(home) in marks + words and state not in "ZX":
                found.add(int(folder.name))
    return found


STAY = """
    import os
    import subprocess
    import sys
    import time
    import kinetic

    def note(notes, word, pid):
        with open(notes, "a") as file:
            file.write(f"{word} {pid}\\n")

    @kinetic.run(accelerator="cpu")
    def stay(notes, until, family):
        if family:
            note(notes, "child", subprocess.Popen(["sleep", "90"]).pid)
            note(notes, "child", subprocess.Popen(["sleep", "90"], start_new_session=True).pid)
            if not os.fork():
                os.setsid()
                if not os.fork():
                    note(notes, "child", os.getpid())
                    time.sleep(90)
                os._exit(0)
            os.wait()
        note(notes, "worker", os.getpid())
        note(notes, "supervisor", os.getppid())
        print("here I am", flush=True)
        while not os.path.exists(until):
            time.sleep(0.02)
        return "stayed"

    if __name__ == "__main__":
        what, notes, until = sys.argv[1:]
        if what == "call":
            print(stay(notes, until, False))
        else:
            print(stay.run_async(notes, until, what == "family").job_id)
"""


class Stay:
    """A job that stays until it is told to go, or until somebody ends it."""

    def __init__(self, site: Site, wait_until: Callable[..., None], *, number: int = 0) -> None:
        self.site, self.wait_until = site, wait_until
        self.notes, self.until = site.home.parent / f"stay-{number}", site.home.parent / f"go-{number}"
        site.project.write("stay.py", STAY)

    def submit(self, what: str = "submit") -> str:
        done = self.site.project.run("stay.py", what, str(self.notes), str(self.until))
        assert done.returncode == 0, done.stderr
        return str(done.stdout.split()[-1])

    def call(self) -> Any:
        return self.site.project.start("stay.py", "call", str(self.notes), str(self.until))

    def pids(self, word: str) -> list[int]:
        found = self.notes.read_text().split() if self.notes.exists() else []
        return [int(pid) for name, pid in zip(found[::2], found[1::2], strict=False) if name == word]

    def wait(self) -> None:
        self.wait_until(lambda: self.pids("supervisor"), "the beginning of the job", 20)

    @property
    def supervisor(self) -> int:
        return self.pids("supervisor")[0]

    @property
    def worker(self) -> int:
        return self.pids("worker")[0]

    def go(self) -> None:
        self.until.touch()


@pytest.fixture(params=["fast", "portable"])
def stay(
    request: pytest.FixtureRequest, site: Site, wait_until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> Stay:
    if request.param == "portable":
        monkeypatch.setenv("KINETIC_PORTABLE", "1")
    return Stay(site, wait_until)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_supervisor_that_is_killed_takes_its_worker_and_all_grandchildren_along(
    site: Site, stay: Stay, wait_until: Callable[..., None]
) -> None:
    stay.submit("family")
    stay.wait()

    os.kill(stay.supervisor, signal.SIGKILL)
    found = site.ask()

    assert found["error"] == "JobError"
    assert "was killed" in found["message"]
    assert found["seconds"] < LIMIT_SECONDS
    assert len(stay.pids("child")) == 3
    wait_until(lambda: not any(map(_lives, [stay.worker, *stay.pids("child")])), "the end of the job's processes")
    _check_nothing_is_left(site, wait_until)


def test_a_worker_that_is_killed_leaves_no_grandchild_and_its_supervisor_takes_the_next_job(
    site: Site, stay: Stay, wait_until: Callable[..., None]
) -> None:
    stay.submit("family")
    stay.wait()
    supervisor = stay.supervisor

    os.kill(stay.worker, signal.SIGKILL)
    found = site.ask()
    wait_until(lambda: not any(map(_lives, stay.pids("child"))), "the end of the job's processes")
    second = Stay(site, wait_until, number=2)
    second.submit()
    second.wait()
    second.go()

    assert found["error"] == "JobError"
    assert "ended by SIGKILL" in found["message"]
    assert "here I am" in found["message"]
    assert second.supervisor == supervisor
    _check_nothing_is_left(site, wait_until)


def test_a_supervisor_that_is_told_to_end_ends_its_job_and_leaves_nothing(
    site: Site, stay: Stay, wait_until: Callable[..., None]
) -> None:
    stay.submit("family")
    stay.wait()

    os.kill(stay.supervisor, signal.SIGTERM)
    wait_until(lambda: not processes_of(site.home), "the end of the supervisor")
    found = site.ask()

    assert found["error"] == "JobError"
    assert "its supervisor received SIGTERM" in found["message"]
    assert not any(map(_lives, stay.pids("child")))
    assert [*site.runtime.supervisors.iterdir()] == []
    _check_nothing_is_left(site, wait_until)


SLOW = """
    import os
    import pathlib
    import time
    import kinetic

    home = pathlib.Path(os.environ["KINETIC_HOME"])
    if "KINETIC_JOB_ID" in os.environ:
        (home / "arrived").write_text(str(os.getpid()))
        while not (home / "go").exists():
            time.sleep(0.02)

    @kinetic.run(accelerator="cpu")
    def arrive():
        return "arrived"
"""


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_that_has_not_begun_waits_when_the_machine_shuts_down_unless_it_was_cancelled(
    site: Site, is_cancelled: bool, wait_until: Callable[..., None]
) -> None:
    site.project.write("slow.py", SLOW)
    job_id = site.project.out("from slow import arrive\nprint(arrive.run_async().job_id)").strip()
    wait_until((site.home / "arrived").exists, "the start of the job")

    if is_cancelled:
        with closing(Queue(site.runtime.queue)) as queue:
            queue.ask_to_stop([job_id])
    _shut_down(site, wait_until)
    rows = site.rows("SELECT state, requeues FROM jobs")
    (site.home / "go").touch()
    found = site.ask(job_id)

    assert rows == [("ended" if is_cancelled else "queued", 0)]
    assert found.get("value") == (None if is_cancelled else "arrived")
    _check_nothing_is_left(site, wait_until)


def test_a_job_that_has_not_begun_waits_also_when_a_shutdown_reaches_its_process_before_its_supervisor(
    site: Site, wait_until: Callable[..., None]
) -> None:
    site.project.write("slow.py", SLOW)
    job_id = site.project.out("from slow import arrive\nprint(arrive.run_async().job_id)").strip()
    arrived = site.home / "arrived"
    worker = wait_until(lambda: arrived.exists() and arrived.read_text(), "the start of the job")
    arrived.unlink()

    os.kill(int(worker), signal.SIGTERM)
    wait_until(lambda: arrived.exists() or site.rows("SELECT 1 FROM jobs WHERE state = 'ended'"), "the supervisor")
    _shut_down(site, wait_until)
    rows = site.rows("SELECT state FROM jobs")
    (site.home / "go").touch()
    found = site.ask(job_id)

    assert rows == [("queued",)]
    assert found.get("value") == "arrived"
    _check_nothing_is_left(site, wait_until)


def _shut_down(site: Site, wait_until: Callable[..., None]) -> None:
    """Send SIGTERM to every process, to supervisors first, and wait for their ends."""
    supervisors = {pid for (pid,) in site.rows("SELECT pid FROM supervisors")}
    for pid in sorted(processes_of(site.home), key=lambda pid: pid not in supervisors):
        with suppress(ProcessLookupError):  # one that ends with another one
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not processes_of(site.home), "the end of every process")


def test_a_reboot_ends_what_ran_and_starts_what_waited(
    site: Site, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    ran, waited = Stay(site, wait_until), Stay(site, wait_until, number=2)
    first = ran.submit("family")
    ran.wait()
    second = waited.submit()
    waited.go()

    while found := processes_of(site.home):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert [path.suffix for path in site.runtime.supervisors.iterdir()].count(".lock") >= 1
    lost, late = site.ask(first), site.ask(second)

    assert lost["error"] == "JobError"
    assert lost["seconds"] < LIMIT_SECONDS
    assert late["value"] == "stayed"
    assert late["seconds"] < LIMIT_SECONDS
    _check_nothing_is_left(site, wait_until)


def test_a_function_that_may_have_begun_before_a_restart_of_the_machine_is_not_run_again(
    site: Site, stay: Stay, wait_until: Callable[..., None]
) -> None:
    stay.submit()
    stay.wait()
    os.kill(stay.supervisor, signal.SIGKILL)
    wait_until(lambda: not processes_of(site.home), "the end of the supervisor")
    for began in site.runtime.jobs.glob("*/*.began"):
        began.unlink()  # the machine went down before this reached the disk
    with closing(sqlite3.connect(site.runtime.queue)) as db, db:
        db.execute("UPDATE jobs SET started = 1000.0")  # long before this machine started

    found = site.ask()

    assert found["error"] == "JobError"
    assert len(stay.pids("worker")) == 1


def test_a_client_that_is_killed_in_a_blocking_call_leaves_its_job_running(site: Site, stay: Stay) -> None:
    client = stay.call()
    stay.wait()

    client.kill()
    client.communicate()
    stay.go()
    found = site.ask()

    assert found["value"] == "stayed"


def test_ctrl_c_in_a_blocking_call_says_how_to_follow_and_to_cancel_and_the_job_goes_on(site: Site, stay: Stay) -> None:
    client = stay.call()
    stay.wait()

    client.send_signal(signal.SIGINT)
    _, told = client.communicate(timeout=20)
    stay.go()
    found = site.ask()

    assert client.returncode in {130, -signal.SIGINT}
    assert f"kinetic jobs logs {site.job_id} --follow" in told
    assert f"kinetic jobs cancel {site.job_id}" in told
    assert told.splitlines()[-1] == f"kinetic: cancel:   kinetic jobs cancel {site.job_id}"
    assert "Traceback" not in told
    assert found["value"] == "stayed"


def test_a_step_costs_nothing_outside_of_this_suite_and_jobs_never_see_it(site: Site) -> None:
    site.kill_at("client:nowhere")

    seen = site.project.out(
        f"""
        import os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def variable():
            return os.environ.get("{failpoints.VARIABLE}")

        print(variable())
        """
    )

    assert seen == "None\n"
    assert failpoints.step is bool
