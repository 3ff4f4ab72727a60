"""A bucket that is out of reach while a job begins or ends: its supervisor waits, and nothing computed is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from servers.faults import Fault, FaultyProxy
from servers.gcs import GcsServer
from servers.http11 import Answer, Request, Server
from servers.moto_s3 import MotoServer

from kinetic._backends.local.backend import LocalBackend
from kinetic._backends.local.queue import JobRow
from kinetic.job_status import JobStatus

SCRIPT = """
    import os
    import sys
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def work(begun, go):
        open(begun, "w").close()
        while not os.path.exists(go):
            time.sleep(0.01)
        return "computed once"

    if __name__ == "__main__":
        print(work.run_async(*sys.argv[1:]).job_id)
"""
COLLECT = """
    import sys
    import kinetic

    print(kinetic.attach(sys.argv[1]).result(timeout=60))
"""


class Away:
    """A job whose store can be put out of reach."""

    def __init__(self, project: Any, home: Path, wait_until: Any, proxy: FaultyProxy) -> None:
        self.project, self.home, self.wait_until, self.proxy = project, home, wait_until, proxy
        self.begun, self.go = home.parent / "begun", home.parent / "go"
        self._backend: LocalBackend | None = None
        project.write("script.py", SCRIPT)
        project.write("collect.py", COLLECT)

    def submit(self) -> str:
        """Submit the job and return its id."""
        done = self.project.run("script.py", str(self.begun), str(self.go))
        assert done.returncode == 0, done.stderr
        return str(done.stdout.strip())

    def leave(self, target: str = "", *, status: int = 503, method: str = ".*") -> None:
        """Answer with 503, more often than any client asks: everything, or what fits."""
        self.proxy.faults = [Fault("status", method=method, target=target, times=float("inf"), status=status)]

    def come_back(self) -> None:
        self.proxy.faults = []

    def waits(self) -> bool:
        """Say whether a supervisor has told in its log that it waits for the store."""
        logs = [log.read_text() for log in self.home.glob("run/*/supervisors/*.log")]
        return any(f"{word} for its store: gs://" in log for word in ("waits", "waiting") for log in logs)

    def is_waited_for_before_the_beginning(self) -> str:
        """Submit a job, and return its id once its supervisor waits for the store."""
        self.go.touch()
        self.leave("attempts")  # which a supervisor writes to before it begins
        job_id = self.submit()
        self.wait_until(self.waits, "the wait for the store", 60)
        assert not self.begun.exists()
        return job_id

    def is_waited_for_by_its_worker(self) -> str:
        """Submit a job, and return its id once the process that is to call the function waits for the order."""
        self.go.touch()
        self.leave("order", method="GET")
        job_id = self.submit()
        logs = f"run/*/jobs/{job_id}/log-0-0"
        self.wait_until(lambda: any("waits for its store" in log.read_text() for log in self.home.glob(logs)), "it", 60)
        assert not self.begun.exists()
        return job_id

    def is_waited_for_at_the_end(self) -> str:
        """Submit a job, and return its id once the function has returned and its supervisor waits for the store."""
        job_id = self.submit()
        self.wait_until(self.begun.exists, "the beginning of the job", 20)
        self.leave()
        self.go.touch()
        self.wait_until(self.waits, "the wait for the store", 60)
        return job_id

    def backend(self) -> LocalBackend:
        """Return the backend of the home, always the same: each keeps a connection to the queue until the end."""
        if self._backend is None:
            (runtime,) = self.home.glob("run/*")
            self._backend = LocalBackend(runtime)
        return self._backend

    def row(self, job_id: str) -> JobRow:
        return self.backend().queue.jobs([job_id])[job_id]

    def collected(self, job_id: str) -> str:
        done = self.project.run("collect.py", job_id)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


@pytest.fixture
def away(project: Any, home: Path, wait_until: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a project whose jobs lie in a bucket behind a proxy."""
    server = GcsServer().start()
    server.bucket("jobs-of-a-test")
    proxy = FaultyProxy(server.url)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    monkeypatch.setenv("KINETIC_STORE", "gs://jobs-of-a-test")
    yield Away(project, home, wait_until, proxy)
    proxy.close()
    server.close()


WHEN = [Away.is_waited_for_before_the_beginning, Away.is_waited_for_at_the_end]
at_both_ends = pytest.mark.parametrize("is_waited_for", WHEN, ids=["before it begins", "when it has ended"])


@pytest.mark.parametrize("is_waited_for", [*WHEN, Away.is_waited_for_by_its_worker])
def test_a_job_whose_store_comes_back_gives_its_value(away: Away, is_waited_for: Callable[[Away], str]) -> None:
    job_id = is_waited_for(away)

    away.come_back()

    assert away.collected(job_id) == "computed once\n"


def test_a_pending_job_says_that_it_waits_for_its_store_until_it_begins(away: Away) -> None:
    away.go.unlink(missing_ok=True)
    away.leave("attempts")
    job_id = away.submit()
    away.wait_until(lambda: away.row(job_id).verdict, "the note of the wait", 60)
    observed = away.backend().observe([job_id])[job_id]
    explained = away.backend().explain(job_id)

    away.come_back()
    away.wait_until(away.begun.exists, "the beginning of the job", 60)
    after = away.backend().observe([job_id])[job_id]
    away.go.touch()

    assert observed.status is JobStatus.PENDING
    assert observed.reason.startswith("waits for its store: gs://jobs-of-a-test")
    assert explained is not None
    assert explained.what == f"{job_id} {observed.reason}"
    assert "kinetic doctor" in explained.next
    assert (after.status, after.reason) == (JobStatus.RUNNING, "")
    assert away.collected(job_id) == "computed once\n"


@pytest.mark.parametrize("bucket", ["jobs-of-a-test", "not-there"])
def test_an_output_folder_in_a_bucket_that_cannot_be_used_is_named_before_the_job_begins(
    away: Away, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    monkeypatch.delenv("KINETIC_STORE")
    monkeypatch.setenv("KINETIC_OUTPUT_DIR", f"gs://{bucket}/trained")
    if bucket == "jobs-of-a-test":
        away.leave(status=403)
    away.go.touch()

    done = away.project.run("script.py", str(away.begun), str(away.go))

    assert f"warning: files that the job writes may not get to gs://{bucket}/trained" in done.stderr
    assert "next: " in done.stderr
    away.come_back()
    assert away.collected(done.stdout.strip()) == "computed once\n"


def test_an_output_folder_in_a_bucket_that_can_be_used_needs_no_words(
    away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KINETIC_STORE")
    monkeypatch.setenv("KINETIC_OUTPUT_DIR", "gs://jobs-of-a-test/trained")
    away.go.touch()

    done = away.project.run("script.py", str(away.begun), str(away.go))

    assert "warning" not in done.stderr
    assert away.collected(done.stdout.strip()) == "computed once\n"


@at_both_ends
def test_a_supervisor_that_is_told_to_end_leaves_its_job_to_the_next_one(
    away: Away, is_waited_for: Callable[[Away], str], living_processes: Callable[[Path], list[int]]
) -> None:
    job_id = is_waited_for(away)
    (supervisor,) = [each.pid for each in away.backend().queue.supervisors() if each.state == "busy"]

    os.kill(supervisor, signal.SIGTERM)
    away.wait_until(lambda: supervisor not in living_processes(away.home), "the end of the supervisor", 60)
    away.come_back()

    assert away.row(job_id).state != "ended"
    assert away.collected(job_id) == "computed once\n"


def test_stopping_a_job_ends_the_wait_for_its_store(away: Away) -> None:
    job_id = away.is_waited_for_at_the_end()

    is_stopped = away.backend().stop([job_id], wait=60)

    assert is_stopped
    assert "it was stopped while its store was out of reach: gs://jobs-of-a-test" in away.row(job_id).verdict
    away.come_back()
    assert away.collected(away.submit()) == "computed once\n"  # nobody holds its place any more


# -------------------------------------------------------------------------------- credentials that expire meanwhile


def finished_without_credentials(away: Away, method: str = ".*") -> str:
    """Submit a job whose credentials expire before it has ended; return its id once it says what it waits for."""
    job_id = away.submit()
    away.wait_until(away.begun.exists, "the beginning of the job", 20)
    away.leave(status=403, method=method)
    away.go.touch()
    away.wait_until(lambda: "waiting for credentials" in away.row(job_id).verdict, "the wait for credentials", 60)
    return job_id


def test_a_value_waits_for_credentials_that_expired_while_the_job_ran(away: Away) -> None:
    job_id = finished_without_credentials(away)

    away.come_back()

    assert away.collected(job_id) == "computed once\n"


def test_a_job_says_that_it_has_finished_and_waits_for_credentials(away: Away) -> None:
    job_id = finished_without_credentials(away, "POST|PUT")  # this client may still read

    for _ in range(2):  # the second look finds a supervisor that has left the job to whoever comes with better ones
        explained = away.project.kinetic("jobs", "explain", job_id)

        assert explained.stdout.startswith(f"{job_id}: RUNNING\n"), explained.stderr
        assert "finished; waiting for credentials: gs://jobs-of-a-test rejected our credentials" in explained.stdout
    away.come_back()
    assert away.collected(job_id) == "computed once\n"


def test_whoever_looks_with_good_credentials_seals_what_its_supervisor_may_not(
    away: Away, living_processes: Callable[[Path], list[int]]
) -> None:
    job_id = finished_without_credentials(away)
    (supervisor,) = [each.pid for each in away.backend().queue.supervisors() if each.state == "busy"]
    os.kill(supervisor, signal.SIGSTOP)  # it tries no more
    away.come_back()

    looked = away.project.start("collect.py", job_id)
    away.wait_until(lambda: supervisor in stopped_with_a_term(supervisor), "the request to leave the job", 30)
    with contextlib.suppress(ProcessLookupError):
        os.kill(supervisor, signal.SIGCONT)
    out, err = looked.communicate(timeout=60)

    assert (looked.returncode, out) == (0, "computed once\n"), err


def stopped_with_a_term(pid: int) -> list[int]:
    """Return the process if a SIGTERM waits for it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:  # it was continued by whoever asked, and is gone already
        return [pid]
    waiting = sum(int(line.split()[1], 16) for line in lines if line.startswith(("ShdPnd:", "SigPnd:")))
    return [pid] if waiting >> (signal.SIGTERM - 1) & 1 else []


def test_a_bucket_behind_the_clients_proxy_is_reached_by_its_jobs_as_well(
    project: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = GcsServer().start()
    server.bucket("jobs-of-a-test")

    def pass_on(request: Request) -> Answer:
        return server.answer(request._replace(path=request.path.removeprefix("http://store.invalid")))

    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://store.invalid")
    monkeypatch.setenv("KINETIC_STORE", "gs://jobs-of-a-test")
    project.write("script.py", SCRIPT)
    project.write("collect.py", COLLECT)
    go = home.parent / "go"
    go.touch()
    with contextlib.closing(server), contextlib.closing(Server(pass_on).start()) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)

        job_id = project.run("script.py", str(home.parent / "begun"), str(go)).stdout.strip()

        assert project.run("collect.py", job_id).stdout == "computed once\n"


def test_a_job_of_this_machine_that_is_waited_for_asks_its_bucket_once_a_second(
    project: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        "waits.py",
        """
        import time
        import kinetic

        @kinetic.run(accelerator="cpu")
        def nap():
            time.sleep(3)
            return time.time()

        if __name__ == "__main__":
            began = time.time()
            ended = nap()
            print(ended - began, time.time() - ended)
        """,
    )
    with contextlib.closing(GcsServer().start()) as server:
        server.bucket("jobs-of-a-test")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("KINETIC_STORE", "gs://jobs-of-a-test")
        done = project.run("waits.py")
        looks = [path for method, path in server.seen if method in {"GET", "HEAD"} and "result.pkl" in unquote(path)]

    took, _ = map(float, done.stdout.split())
    assert len(looks) <= took + 6, "the rest is of its beginning and its end"


def test_a_job_sends_what_its_bucket_demands_of_each_object(
    project: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("adds.py", 'import kinetic\nadd = kinetic.run(accelerator="cpu")(sum)\nprint(add([1, 2]))\n')
    with contextlib.closing(MotoServer(demands="HTTP_X_AMZ_CHECKSUM_SHA256")) as server:
        server.bucket("jobs-of-a-test")
        for name, value in {**server.environment(), "KINETIC_STORE": "s3://jobs-of-a-test/below"}.items():
            monkeypatch.setenv(name, value)
        refused = project.run("adds.py")
        monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "sha256")
        done = project.run("adds.py")

    assert "export AWS_CHECKSUM_ALGORITHM=sha256" in refused.stderr
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
