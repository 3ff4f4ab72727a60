"""Homes as they are found: shared by machines, on odd file systems, full, read-only, oddly named, in dying sessions."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kinetic._jobs import tombstones
from kinetic._stores.files import FileStore
from kinetic._wire import keys

DAY = 24 * 3600.0

JOBS = """
    import os
    import sys
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def work(until="", sign=""):
        if sign:
            with open(sign, "w") as file:
                file.write(str(os.getpid()))
        print("begun", flush=True)
        while until and not os.path.exists(until):
            time.sleep(0.01)
        return {"written": sorted(os.listdir(".")), "file": __file__}
"""


class Clients:
    """Clients of one home, each a process of its own, on this machine or as if on another one."""

    def __init__(self, project: Any, home: Path) -> None:
        self.project, self.home = project, home
        self.until, self.sign = home.parent / "go", home.parent / "sign"
        self.more: dict[str, str] = {}
        project.write("jobs.py", JOBS)

    @property
    def held(self) -> str:
        """Return a call that works until it is let go."""
        return f"work.run_async({str(self.until)!r}, {str(self.sign)!r})"

    def start(self, code: str, *before: str, **more: str) -> subprocess.Popen[str]:
        """Start a client, behind another command if need be."""
        text = f"import json, os, sys, time\nimport kinetic\nfrom jobs import *\n{code}\n"
        return subprocess.Popen(
            [*before, sys.executable, "-c", text],
            cwd=self.project.root,
            env=self._environment(more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, **more: str) -> Any:
        """Run a client to its good end, and return what it said as JSON on its last line."""
        client = self.start(code, **more)
        out, err = client.communicate(timeout=60)
        assert client.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    def refused(self, code: str, **more: str) -> str:
        """Run a client that fails, and return the last error that it told."""
        client = self.start(code, **more)
        _, err = client.communicate(timeout=60)
        assert client.returncode == 1, err
        assert "kinetic.errors." in err, err
        return err[err.rindex("kinetic.errors.") :]

    def kinetic(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kinetic", *words],
            cwd=self.project.root,
            env=self._environment(more),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def submit(self, call: str = "", **more: str) -> str:
        return str(self.run(f"print(json.dumps({call or self.held}.job_id))", **more))

    def status(self, job: str, **more: str) -> str:
        return str(self.run(f"print(json.dumps(kinetic.attach({job!r}).status().value))", **more))

    def collect(self, job: str, words: str = "timeout=30, cleanup=False", **more: str) -> Any:
        return self.run(f"print(json.dumps(kinetic.attach({job!r}).result({words})))", **more)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        source = str(Path(__file__).parents[2] / "src")
        return {**os.environ, "PYTHONPATH": source, **self.more, **more}

    def rows(self, machine: str = "*") -> list[tuple[str, ...]]:
        (path,) = self.home.glob(f"run/{machine}/queue.db")
        with closing(sqlite3.connect(path, timeout=10)) as db:
            return db.execute("SELECT job_id, state FROM jobs ORDER BY seq").fetchall()


@pytest.fixture
def mount() -> Iterator[Callable[..., Path]]:
    """Return a function that mounts a file system of its own on a folder, or mounts it anew with other options."""
    mounted: list[Path] = []

    def mount_(folder: Path, options: str) -> Path:
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        folder.mkdir(exist_ok=True)
        if os.geteuid() or subprocess.run(words, check=False, capture_output=True).returncode:
            pytest.skip("only root may mount a file system")
        if folder not in mounted:
            mounted.append(folder)
        return folder

    yield mount_
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def clients(project: Any, home: Path, mount: object, request: pytest.FixtureRequest) -> Iterator[Clients]:
    found = Clients(project, home)
    yield found
    _end_keepers(request, found.home)  # before what it is mounted on goes


# ------------------------------------------------------------------------------------- two machines over one home


HERE, THERE = {"KINETIC_MACHINE_ID": "here"}, {"KINETIC_MACHINE_ID": "there"}


@pytest.fixture
def running_there(clients: Clients, wait_until: Callable[..., None]) -> str:
    job = clients.submit(**THERE)
    wait_until(clients.sign.exists, "the job on the other machine", 20)
    return job


def test_a_job_of_another_machine_is_listed_with_its_host_and_runs_until_that_host_says_otherwise(
    clients: Clients, running_there: str
) -> None:
    told = clients.kinetic("jobs", "list", **HERE)
    page = json.loads(clients.kinetic("jobs", "list", "--json", **HERE).stdout)

    assert told.returncode == 0, told.stderr
    (line,) = [line for line in told.stdout.splitlines() if running_there in line]
    assert "RUNNING" in line
    assert f"host {os.uname().nodename}" in line
    assert running_there in json.dumps(page)
    assert clients.status(running_there, **HERE) == "RUNNING"


def test_a_job_whose_machine_is_lost_is_never_called_failed_on_another(
    clients: Clients, running_there: str, request: pytest.FixtureRequest
) -> None:
    _end_keepers(request, clients.home)
    shutil.rmtree(clients.home / "run" / "there")

    assert clients.status(running_there, **HERE) == "RUNNING"


def test_a_job_that_waits_on_another_machine_is_pending_here(clients: Clients, running_there: str) -> None:
    waits = clients.submit(**THERE, KINETIC_LOCAL_SLOTS="1")

    assert clients.status(waits, **HERE) == "PENDING"
    clients.until.touch()
    assert clients.collect(waits, **HERE)


@pytest.mark.parametrize("by", [HERE, THERE], ids=["here", "there"])
def test_a_job_of_another_machine_is_waited_for_and_collected_on_either(
    clients: Clients, running_there: str, by: dict[str, str], wait_until: Callable[..., None]
) -> None:
    waiting = clients.start(f"print(json.dumps(kinetic.attach({running_there!r}).result(timeout=40)))", **by)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.5)

    clients.until.touch()
    out, err = waiting.communicate(timeout=40)

    assert waiting.returncode == 0, err
    assert json.loads(out)["file"].endswith("jobs.py")
    for machine in (HERE, THERE):
        wait_until(lambda machine=machine: clients.kinetic("jobs", "list", **machine).stdout.count("cpu-") == 0)
        assert "SUCCEEDED" in clients.kinetic("jobs", "list", "--all", **machine).stdout


def test_a_job_of_another_machine_is_cancelled_at_once_and_its_process_ends_when_its_keeper_looks(
    clients: Clients, running_there: str, wait_until: Callable[..., None]
) -> None:
    told = clients.kinetic("jobs", "cancel", running_there, **HERE)
    refused = clients.refused(f"kinetic.attach({running_there!r}).result()", **HERE)
    _ring(clients.home / "run" / "there")  # it looks once a minute by itself

    assert told.returncode == 0, told.stderr
    assert f"runs on host {os.uname().nodename}; its processes there end within a minute" in told.stderr
    assert "JobCancelledError" in refused
    pid = int(clients.sign.read_text())
    wait_until(lambda: not _is_alive(pid), "the end of the worker", 20)
    assert clients.status(running_there, **THERE) == "NOT_FOUND"
    wait_until(lambda: clients.rows("there")[0][1:] == ("ended",), "the end of the row")


def test_a_job_of_another_machine_that_is_removed_while_it_runs_leaves_nothing_behind(
    clients: Clients, running_there: str, wait_until: Callable[..., None]
) -> None:
    told = clients.kinetic("jobs", "cleanup", running_there, **HERE)
    _ring(clients.home / "run" / "there")

    assert told.returncode == 0, told.stderr
    assert f"runs on host {os.uname().nodename}; its processes there end within a minute" in told.stderr
    pid = int(clients.sign.read_text())
    wait_until(lambda: not _is_alive(pid), "the end of the worker", 20)
    wait_until(lambda: clients.rows("there") == [], "the end of the row")
    wait_until(lambda: not (clients.home / "store" / running_there).exists(), "an empty store")
    wait_until(lambda: not (clients.home / "run" / "there" / "jobs" / running_there).exists(), "an empty machine")


def test_a_job_that_waits_on_another_machine_and_is_removed_never_begins(
    clients: Clients, running_there: str, wait_until: Callable[..., None]
) -> None:
    sign = clients.home.parent / "never"
    waits = clients.submit(f"work.run_async('', {str(sign)!r})", **THERE, KINETIC_LOCAL_SLOTS="1")

    clients.run(f"kinetic.attach({waits!r}).cleanup()\nprint(1)", **HERE)
    clients.until.touch()

    assert clients.collect(running_there, **THERE)
    wait_until(lambda: clients.rows("there") == [(running_there, "ended")], "the end of the row")
    assert not sign.exists()
    assert not (clients.home / "store" / waits).exists()


# ------------------------------------------------------------------------------------- file systems


NO_SHARED_MEMORY = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <limits.h>
    #include <stdio.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>

    static int refused(int flags, int fd) {
        char link[64], path[PATH_MAX];
        if (fd < 0 || (flags & MAP_TYPE) != MAP_SHARED) return 0;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path);
        return length > 4 && memcmp(path + length - 4, "-shm", 4) == 0;
    }

    #define REFUSING(name, offset)                                                          \\
        void *name(void *at, size_t size, int rights, int flags, int fd, offset from) {     \\
            void *(*next)(void *, size_t, int, int, int, offset) = dlsym(RTLD_NEXT, #name); \\
            if (refused(flags, fd)) { errno = ENODEV; return MAP_FAILED; }                  \\
            return next(at, size, rights, flags, fd, from);                                 \\
        }

    REFUSING(mmap, off_t)
    REFUSING(mmap64, off64_t)
"""


@pytest.fixture
def no_shared_memory(project: Any, tmp_path: Path) -> str:
    """Return a library that lets every process see file systems as many shared ones are: no memory through a file."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    source, library = project.write("../refuse.c", NO_SHARED_MEMORY), tmp_path / "refuse.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, capture_output=True)
    return str(library)


def test_a_file_system_without_shared_memory_has_a_queue_with_the_older_journal(
    clients: Clients, no_shared_memory: str
) -> None:
    clients.more = {"LD_PRELOAD": no_shared_memory}  # for clients; keepers and workers have it from their recipe
    clients.until.touch()
    four = [clients.start(f"print(json.dumps([{clients.held}.result(timeout=50) for _ in range(2)]))") for _ in "1234"]

    told = [client.communicate(timeout=90) for client in four]

    assert [client.returncode for client in four] == [0] * 4, told
    (queue,) = clients.home.glob("run/*/queue.db")
    with closing(sqlite3.connect(queue)) as db:
        assert db.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
    assert not [*queue.parent.glob("queue.db*-shm"), *queue.parent.glob("queue.db.*")]


def test_where_there_is_shared_memory_the_queue_uses_it(clients: Clients) -> None:
    clients.until.touch()
    clients.collect(clients.submit())

    (queue,) = clients.home.glob("run/*/queue.db")
    with closing(sqlite3.connect(queue)) as db:
        assert db.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert not [*queue.parent.glob("queue.db.*")]


def test_a_home_on_a_read_only_disk_is_one_clear_error(clients: Clients, tmp_path: Path, mount: Any) -> None:
    disk = mount(mount(tmp_path / "disk", "size=1m"), "remount,ro")

    for more in ({"HOME": str(disk), "KINETIC_HOME": ""}, {"KINETIC_HOME": str(disk / "kinetic")}):
        told = clients.refused("work()", **more)

        assert [line.split(":")[0] for line in told.splitlines()[1:]] == ["why", "next"]
        assert f"{disk}" in told
        assert "Read-only file system" in told
        assert "KINETIC_" in told.splitlines()[2]
    assert [*disk.iterdir()] == []


# Kilobytes that are free: for nothing; for the folders; for the key; for part of the code; for the code, not the queue.
@pytest.mark.parametrize("free", [0, 4, 16, 48, 160, 640, 1500], ids=lambda free: f"{free}k")
@pytest.mark.parametrize("runtime", ["disk/home/run/here", "home/run/here"], ids=["with its runtime", "store and keys"])
def test_a_home_on_a_full_disk_is_one_clear_error_and_nothing_half_made(
    clients: Clients, tmp_path: Path, mount: Any, free: int, runtime: str
) -> None:
    disk = mount(tmp_path / "disk", "size=8m")
    clients.home = disk / "home"
    clients.more = {"KINETIC_HOME": str(clients.home), "KINETIC_RUNTIME_DIR": str(tmp_path / runtime)}
    _fill(disk, free)

    told = clients.refused("work.run_async(sign='x' * 3_000_000)")
    (disk / "ballast").unlink()

    lines = told.splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["why", "next"]
    assert "No space left" in lines[1] or "disk is full" in lines[1]
    assert "KINETIC_" in lines[2]
    assert [path.name for path in tmp_path.glob(f"{runtime}/runners/.*")] == []
    assert [*disk.glob("home/store/*-*")] == []
    assert [path for path in disk.glob("home/store/.tmp/*") if path.stat().st_size] == []
    assert clients.run("print(json.dumps([job.job_id for job in kinetic.list_jobs()]))") == []
    clients.until.touch()
    assert clients.collect(clients.submit())["file"]  # and it works again


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_home_with_spaces_and_letters_of_other_alphabets_in_its_name(
    clients: Clients, tmp_path: Path, locale: str
) -> None:
    home = tmp_path / "home" / "ein schönes  'Heim' ☃ – 家 #1 %20?"
    clients.home = home
    clients.more = {"KINETIC_HOME": str(home), "LC_ALL": locale}

    job = clients.submit("work.run_async()")
    value = clients.collect(job)
    listed = clients.kinetic("jobs", "list")
    log = clients.kinetic("jobs", "logs", job)

    assert value["file"].startswith(str(home))
    assert (listed.returncode, job in listed.stdout) == (0, True), listed.stderr
    assert log.stdout == "begun\n", log.stderr
    assert [path.name for path in tmp_path.joinpath("home").iterdir()] == [home.name]


def test_a_project_on_a_read_only_disk_runs_and_nothing_is_written_there(
    clients: Clients, tmp_path: Path, mount: Any
) -> None:
    disk = mount(tmp_path / "disk", "size=1m")
    shutil.copytree(clients.project.root, disk / "project")
    before = sorted(disk.rglob("*"))
    mount(disk, "remount,ro")
    clients.project.root = disk / "project"

    value = clients.run("print(json.dumps(work()))")

    assert set(value["written"]) - {"__pycache__"} == {"jobs.py", "pyproject.toml"}
    assert sorted(disk.rglob("*")) == before


@pytest.mark.parametrize("mask", [0o077, 0o000], ids=["077", "000"])
def test_whatever_the_umask_nobody_else_reads_or_writes_what_kinetic_keeps(
    clients: Clients, mask: int, wait_until: Callable[..., None]
) -> None:
    clients.home.mkdir(mode=0o755)  # by somebody else: it does not protect what lies in it
    clients.home.chmod(0o755)
    job = clients.run(f"os.umask({mask})\nprint(json.dumps({clients.held}.job_id))")
    wait_until(clients.sign.exists, "the job", 20)
    during = _open_to_others(clients.home)
    clients.until.touch()
    clients.run(f"os.umask({mask})\nprint(json.dumps(kinetic.attach({job!r}).result(timeout=30, cleanup=False)))")

    assert during == []
    assert _open_to_others(clients.home) == []
    assert stat.S_IMODE(clients.sign.stat().st_mode) == 0o666 & ~mask  # what the user's code writes is the user's


# ------------------------------------------------------------------------------------- sessions that die


def test_a_job_goes_on_when_the_whole_session_that_submitted_it_is_killed(
    clients: Clients, wait_until: Callable[..., None]
) -> None:
    shell = clients.start(
        f"job = {clients.held}\nprint(job.job_id, flush=True)\njob.result()", "setsid", "sh", "-c", '"$@"; exit', "sh"
    )
    assert shell.stdout is not None
    job = shell.stdout.readline().strip()
    wait_until(clients.sign.exists, "the job", 20)
    session = os.getsid(shell.pid)
    doomed = _processes_of_session(session)
    worker = int(clients.sign.read_text())

    os.killpg(session, signal.SIGKILL)
    for pid in _processes_of_session(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shell.communicate(timeout=10)

    assert len(doomed) >= 2  # the shell that leads the session, and the client
    assert session != os.getsid(0)
    assert os.getsid(worker) != session
    assert _processes_of_session(session) == []
    assert clients.status(job) == "RUNNING"
    clients.until.touch()
    assert clients.collect(job)["file"].endswith("jobs.py")


def test_where_jobs_die_with_their_session_one_sentence_says_so_once(clients: Clients) -> None:
    clients.until.touch()
    client = clients.start(f"{clients.held}\n{clients.held}", SLURM_JOB_ID="4711", SLURMD_NODENAME="node07")

    _, err = client.communicate(timeout=30)

    assert client.returncode == 0, err
    assert err.count("jobs end with Slurm job 4711: what still runs when that is over is killed\n") == 1


# ------------------------------------------------------------------------------------- history


@pytest.mark.parametrize("store_is", [0.0, -400 * DAY, 400 * DAY], ids=["on time", "a year behind", "a year ahead"])
def test_a_removed_job_is_remembered_for_thirty_days_by_the_stores_own_clock(clients: Clients, store_is: float) -> None:
    store = FileStore(clients.home / "store")
    ages = {"cpu-new-20261120-143000-0000001": 0.0, "cpu-kept-20261120-143000-0000002": 30 * DAY - 60}
    ages["cpu-old-20261120-143000-0000003"] = 30 * DAY + 60
    for job, age in ages.items():
        tombstones.write(store, {"job_id": job, "status": "SUCCEEDED", "created_at": "2026-11-20T14:30:00Z"})
        then = time.time() + store_is - age
        os.utime(clients.home / "store" / keys.tombstone(job), (then, then))

    told = clients.kinetic("jobs", "list", "--all")

    assert told.returncode == 0, told.stderr
    assert [job for job in ages if job in told.stdout] == [*ages][:2]
    assert [entry.key for entry in store.entries(keys.HISTORY)] == sorted(map(keys.tombstone, [*ages][:2]))


def _ring(runtime: Path) -> None:
    """Let the keepers of a machine look now instead of within a minute."""
    for wake in runtime.glob("keepers/*.wake"):
        with contextlib.suppress(OSError):
            descriptor = os.open(wake, os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, b"w")
            os.close(descriptor)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _fill(disk: Path, free_kilobytes: int) -> None:
    """Write a file that leaves so much room on a disk."""
    about = os.statvfs(disk)
    size = about.f_bavail * about.f_frsize - free_kilobytes * 1024
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _open_to_others(home: Path) -> list[str]:
    """Return what lies below a home and lets anybody but its owner in.

    A job's working and output folders are the user's, and made with the user's own umask; like the unpacked code of the
    runner they lie in folders that let nobody else through.
    """
    found = []
    for above, folders, files in os.walk(home):
        folders[:] = [name for name in folders if name != "outputs" and not name.startswith("work-")]
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                about = Path(above, name).lstat()
                if about.st_mode & 0o077:
                    found.append(f"{stat.filemode(about.st_mode)} {Path(above, name).relative_to(home)}")
        folders[:] = [name for name in folders if name != "runners"]
    return found


def _processes_of_session(session: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in {"Z", "X"}:
                    found.append(int(name))
    return found


def _end_keepers(request: pytest.FixtureRequest, home: Path) -> None:
    request.config.pluginmanager.get_plugin(os.fspath(Path(__file__).with_name("conftest.py"))).end_keepers(home)
