"""GPUs of one machine and several queues, of users or of homes: no GPU has two jobs, and none waits that need not."""

from __future__ import annotations

import os
import pwd
import select
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nvml
import pytest
from flows.conftest import end_supervisors, last_json
from waiting import until

from kinetic._backends.local.gpu_locks import GpuLocks
from kinetic._runner import processes

SCRIPT = """
    import json, os, sys, time
    import kinetic

    def hold(notes, until):
        with open(notes, "a") as file:
            file.write(f"begins {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
        while not os.path.exists(until):
            time.sleep(0.01)
        with open(notes, "a") as file:
            file.write(f"ends {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
        return os.environ["CUDA_VISIBLE_DEVICES"]

    on_gpu = kinetic.run(accelerator="gpu-l4")(hold)
    on_two = kinetic.run(accelerator="gpu-l4x2")(hold)

    def explained(job):
        from kinetic._jobs import locate
        return locate.backend_of(job).explain(job.job_id).what

    def refused(file):
        try:
            on_gpu.run_async(file, file)
        except kinetic.errors.OptionError as error:
            return str(error)

    if __name__ == "__main__":
        print(json.dumps(eval(sys.argv[1])))
"""


class User:
    """A user, or a home, with a queue of its own."""

    def __init__(self, project: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.notes = home, home.parent / f"notes-{home.name}"
        self._project, self._environ = project, monkeypatch

    def do(self, code: str) -> Any:
        self._environ.setenv("KINETIC_HOME", str(self.home))
        done = self._project.run("script.py", code, timeout=100)
        assert done.returncode == 0, done.stderr
        return last_json(done.stdout)

    def submit(self, file: Path, function: str = "on_gpu") -> str:
        return str(self.do(f"{function}.run_async({str(self.notes)!r}, {str(file)!r}).job_id"))

    def explained(self, job_id: str) -> str:
        return str(self.do(f"explained(kinetic.attach({job_id!r}))"))

    def result(self, job_id: str) -> str:
        return str(self.do(f"kinetic.attach({job_id!r}).result(timeout=60)"))

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def wait_for_its_job(self) -> None:
        until(self.noted, "a job that has begun")

    def supervisor(self) -> int:
        """Return the process that has the lock of a GPU."""
        return int(GpuLocks(os.environ["KINETIC_GPU_LOCKS"]).holder("0").split()[1])


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """Return the folder of the locks, which on a machine with GPUs is one for all users."""
    monkeypatch.setenv("KINETIC_GPU_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def users(project: Any, home: Path, locks: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[User, User]]:
    monkeypatch.setenv("KINETIC_LOCAL_GPUS", "0,1")
    project.write("script.py", SCRIPT)
    other = home.with_name("other")
    yield User(project, home, monkeypatch), User(project, other, monkeypatch)
    end_supervisors(other)


def test_a_job_gets_the_gpu_that_another_user_left(users, tmp_path) -> None:
    ada, bob = users
    first = ada.submit(tmp_path / "go")
    ada.wait_for_its_job()

    second = bob.submit(tmp_path / "go")
    bob.wait_for_its_job()
    (tmp_path / "go").touch()

    assert [ada.result(first), bob.result(second)] == ["0", "1"]


def test_a_job_that_needs_a_gpu_of_another_user_waits_for_it_and_says_whose_it_is(users, tmp_path) -> None:
    ada, bob = users
    first = ada.submit(tmp_path / "go")
    ada.wait_for_its_job()
    second = bob.submit(tmp_path / "nothing", "on_two")
    third = bob.submit(tmp_path / "nothing")

    said = bob.explained(second), bob.explained(third)
    (tmp_path / "nothing").touch()

    assert said[0].endswith(f"waits for 2 of 2 GPUs; GPU 0 is used by process {ada.supervisor()} of {_own_name()}")
    assert said[1].endswith("waits for 1 of 2 GPUs; one job is before it")
    assert bob.noted() == []

    (tmp_path / "go").touch()
    until(lambda: len(bob.noted()) == 4, "the jobs that waited")  # no client of theirs looks meanwhile
    assert [bob.result(second), bob.result(third), ada.result(first)] == ["0,1", "0", "0"]


def test_a_gpu_is_free_once_the_supervisor_that_had_it_was_killed(users, tmp_path) -> None:
    ada, bob = users
    ada.submit(tmp_path / "never", "on_two")
    ada.wait_for_its_job()
    second = bob.submit(tmp_path / "go")
    (tmp_path / "go").touch()
    assert "is used by process" in bob.explained(second)

    os.kill(ada.supervisor(), signal.SIGKILL)
    until(lambda: len(bob.noted()) == 2, "the job that waited")

    assert bob.result(second) in {"0", "1"}


def test_jobs_of_one_user_take_turns_as_before(users, tmp_path) -> None:
    ada, _ = users
    (tmp_path / "go").touch()

    jobs = [ada.submit(tmp_path / "go", "on_two") for _ in range(3)]

    assert [ada.result(job) for job in jobs] == ["0,1"] * 3


def test_what_another_user_made_unusable_locks_nothing(users, locks, tmp_path) -> None:
    ada, _ = users
    locks.mkdir()
    os.mkfifo(locks / "0")
    (locks / "1").symlink_to(tmp_path / "somewhere")
    (tmp_path / "go").touch()

    assert ada.result(ada.submit(tmp_path / "go", "on_two")) == "0,1"
    assert not (tmp_path / "somewhere").exists()


def test_a_job_keeps_its_gpu_when_the_user_whose_files_lock_it_logs_out(users, locks, tmp_path) -> None:
    ada, _ = users
    job = ada.submit(tmp_path / "go")
    ada.wait_for_its_job()

    _log_out(locks)
    until(lambda: GpuLocks(str(locks)).are_elsewhere(["0"]), "a lock that others see")
    (tmp_path / "go").touch()

    assert ada.result(job) == "0"
    until(lambda: GpuLocks(str(locks)).take(["0"]), "a GPU that is free again")


def test_what_waits_for_a_gpu_hears_of_it_also_once_the_files_of_the_locks_are_others(locks) -> None:
    libc = processes.load_libc()
    mine, theirs = GpuLocks(str(locks)), GpuLocks(str(locks))
    assert theirs.take(["0"])
    assert mine.watch(libc)
    assert not mine.watch(libc)

    _log_out(locks)
    theirs.keep()

    assert select.select([mine.freed], [], [], 10)[0]
    os.read(mine.freed, 1 << 16)
    assert mine.watch(libc)
    assert mine.are_elsewhere(["0"])
    theirs.release()
    assert select.select([mine.freed], [], [], 10)[0]
    assert mine.take(["0"])


def test_a_gpu_that_another_user_took_meanwhile_stays_theirs(locks) -> None:
    mine, theirs = GpuLocks(str(locks)), GpuLocks(str(locks))
    assert mine.take(["0", "1"])
    _log_out(locks)
    assert theirs.take(["0"])

    mine.keep()
    mine.release()

    assert GpuLocks(str(locks)).are_elsewhere(["0", "1"]) == {"0"}


def _log_out(locks: Path) -> None:
    """Remove what logind removes at the last logout of the user who made the files, with RemoveIPC=yes."""
    for file in locks.iterdir():
        file.unlink()
    locks.rmdir()


def test_a_job_is_not_submitted_where_no_locks_can_be_made(users, tmp_path, monkeypatch) -> None:
    ada, _ = users
    monkeypatch.setenv("KINETIC_GPU_LOCKS", str(tmp_path / "no" / "where"))

    assert "is not a folder for the locks of GPUs" in ada.do(f"refused({str(tmp_path / 'go')!r})")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_each_user_can_use_the_files_that_the_first_one_made() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        locks = f"{folder}/locks"
        mine = GpuLocks(locks)
        mask = os.umask(0o077)
        try:
            assert mine.take(["0"])
        finally:
            os.umask(mask)

        assert _as_nobody(lambda: GpuLocks(locks).are_elsewhere(["0", "1"]) == {"0"})
        assert _as_nobody(lambda: not GpuLocks(locks).take(["1", "0"]))
        assert _as_nobody(lambda: GpuLocks(locks).take(["1"]))
        mine.release()
        assert _as_nobody(lambda: GpuLocks(locks).take(["0", "1"]))
        assert mine.take(["0", "1"])


def _as_nobody(question: Callable[[], bool]) -> bool:
    """Answer a question in a process of another user."""
    pid = os.fork()
    if not pid:
        os.setgid(65534)
        os.setuid(65534)
        os._exit(0 if question() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _own_name() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def test_a_job_gets_the_gpu_that_programs_without_kinetic_use_least(users, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml.built(tmp_path).parent))
    ada, _ = users
    (go := tmp_path / "go").touch()

    alone = ada.result(ada.submit(go))
    both = ada.result(ada.submit(go, "on_two"))

    assert (alone, both) == ("1", "0,1")
