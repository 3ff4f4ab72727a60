"""Odd file systems: homes and projects without shared memory, read-only, full, oddly named, open to others."""

from __future__ import annotations

import contextlib
import fcntl
import json
import marshal
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kinetic._backends.local.queue_connection import QueueConnection
from kinetic._project import runner_bundle
from kinetic.errors import BackendUnavailableError, PackingError

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

QUOTA = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <limits.h>
    #include <stdio.h>
    #include <string.h>
    #include <unistd.h>

    static int refused(int fd) {
        char link[64], path[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 16);
        if (length < 7 || memcmp(path + length - 7, ".db-wal", 7) != 0) return 0;
        strcpy(path + length - 7, ".reserve");
        return access(path, F_OK) == 0;
    }

    #define REFUSING(name, offset)                                                        \\
        ssize_t name(int fd, const void *data, size_t size, offset at) {                  \\
            ssize_t (*next)(int, const void *, size_t, offset) = dlsym(RTLD_NEXT, #name); \\
            if (refused(fd)) { errno = EDQUOT; return -1; }                               \\
            return next(fd, data, size, at);                                              \\
        }

    REFUSING(pwrite, off_t)
    REFUSING(pwrite64, off64_t)
"""


@pytest.fixture
def no_shared_memory(project: Any, tmp_path: Path) -> str:
    """Return a library that lets every process see file systems as many shared ones are: no memory through a file."""
    return _library(project, NO_SHARED_MEMORY, tmp_path / "refuse.so")


@pytest.fixture
def quota(project: Any, tmp_path: Path) -> str:
    """Return a library with which a quota is used up as long as the queue keeps its reserve."""
    return _library(project, QUOTA, tmp_path / "quota.so")


def _library(project: Any, code: str, library: Path) -> str:
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    source = project.write(f"../{library.stem}.c", code)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, capture_output=True)
    return str(library)


def test_a_file_system_without_shared_memory_has_a_queue_with_the_older_journal(
    clients: Any, no_shared_memory: str
) -> None:
    clients.more = {"LD_PRELOAD": no_shared_memory}  # for clients; supervisors and workers have it from their recipe
    clients.until.touch()
    four = [clients.start(f"print(json.dumps([{clients.held}.result(timeout=50) for _ in range(2)]))") for _ in "1234"]

    told = [client.communicate(timeout=90) for client in four]

    assert [client.returncode for client in four] == [0] * 4, told
    (queue,) = clients.home.glob("run/*/queue.db")
    with closing(sqlite3.connect(queue)) as db:
        assert db.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
    assert not [*queue.parent.glob("queue.db*-shm"), *queue.parent.glob("queue.db.*")]


def test_where_there_is_shared_memory_the_queue_uses_it(clients: Any) -> None:
    clients.until.touch()
    clients.collect(clients.submit())

    (queue,) = clients.home.glob("run/*/queue.db")
    with closing(sqlite3.connect(queue)) as db:
        assert db.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert not [*queue.parent.glob("queue.db.*")]


def test_a_home_on_a_read_only_disk_is_one_clear_error(clients: Any, tmp_path: Path, mount: Any) -> None:
    disk = mount(mount(tmp_path / "disk", "size=1m"), "remount,ro")

    for more in ({"HOME": str(disk), "KINETIC_HOME": ""}, {"KINETIC_HOME": str(disk / "kinetic")}):
        told = clients.refused("work()", **more)

        assert [line.split(":")[0] for line in told.splitlines()[1:]] == ["why", "next"]
        assert f"{disk}" in told
        assert "Read-only file system" in told
        assert "KINETIC_" in told.splitlines()[2]
    assert [*disk.iterdir()] == []


def test_jobs_of_a_home_that_became_read_only_can_be_looked_at_and_are_not_waited_for(
    clients: Any, tmp_path: Path, mount: Any, end_supervisors: Any, wait_until: Callable[..., None]
) -> None:
    disk = mount(tmp_path / "disk", "size=60m")
    clients.home = disk / "home"
    clients.more = {"KINETIC_HOME": str(clients.home), "KINETIC_LOCAL_SLOTS": "1"}
    ended = clients.submit("work.run_async()")
    assert clients.collect(ended)
    runs, waits = clients.submit(), clients.submit()
    wait_until(clients.sign.exists, "the job", 20)
    end_supervisors(clients.home)
    states = {ended: "SUCCEEDED", runs: "RUNNING", waits: "PENDING"}

    for _ in ("with a journal", "without one, after SQLite was ended cleanly"):
        mount(disk, "remount,ro")
        listed = json.loads(clients.kinetic("jobs", "list", "--json").stdout)
        shown = clients.kinetic("jobs", "show", waits).stdout
        log = clients.kinetic("jobs", "logs", runs).stdout
        refused = clients.kinetic("jobs", "wait", runs).stderr
        mount(disk, "remount,rw")
        with closing(sqlite3.connect(*clients.home.glob("run/*/queue.db"))) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        assert {job["job_id"]: job["status"] for job in listed["jobs"]} == states
        assert "waits for one of 1 slots" in shown
        assert log == "begun\n"
        assert "Read-only file system" in refused
        assert "or set KINETIC_HOME to a folder that you can write to" in refused  # a part elsewhere does not help


# Kilobytes that are free: for nothing; for the folders; for the key; for part of the code; for the code, not the queue.
@pytest.mark.sampled(7)
@pytest.mark.parametrize("free", [0, 4, 16, 48, 160, 640, 1500], ids=lambda free: f"{free}k")
@pytest.mark.parametrize("runtime", ["disk/home/run/here", "home/run/here"], ids=["with its runtime", "store and keys"])
def test_a_home_on_a_full_disk_is_one_clear_error_and_nothing_half_made(
    clients: Any, tmp_path: Path, mount: Any, free: int, runtime: str
) -> None:
    disk = mount(tmp_path / "disk", "size=16m")
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


Full = Callable[[str], tuple[Path, str]]


@pytest.fixture
def full(clients: Any, tmp_path: Path, mount: Any) -> Full:
    """Return what runs a client with large values in a home on a small disk, fills that, and returns what was told."""

    def make(code: str) -> tuple[Path, str]:
        disk = mount(tmp_path / "disk", "size=32m")
        clients.home = disk / "home"
        clients.more = {"KINETIC_HOME": str(clients.home)}
        clients.until.touch()
        clients.project.write("large.py", """
            import kinetic
            @kinetic.run(accelerator="cpu")
            def large(size):
                print("large", size)
                return b"x" * size
        """)  # fmt: skip
        told = clients.run(f"from large import large\n{code}")
        _fill(disk, 0)
        return disk, told

    return make


def _free(disk: Path) -> int:
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "cleanup", "JOB", "--yes"),
        ("jobs", "cleanup", "--all", "--yes"),
        ("jobs", "result", "JOB", "--cleanup"),
    ],
    ids=lambda words: " ".join(words[1:]),
)
def test_a_full_disk_can_be_emptied_by_removing_a_job(clients: Any, full: Full, words: tuple[str, ...]) -> None:
    disk, job = full("job = large.run_async(4_000_000)\njob.wait()\nprint(json.dumps(job.job_id))")
    before = _free(disk)

    told = clients.kinetic(*[job if word == "JOB" else word for word in words])

    assert told.returncode == 0, told.stderr
    assert _free(disk) > before + 3_500_000
    listed = clients.kinetic("jobs", "list", "--all", "--json")
    assert job in listed.stdout


@pytest.mark.parametrize(
    "words",
    [("batch", "cleanup", "BATCH", "--yes"), ("batch", "results", "BATCH", "--cleanup"), ("-c", "b.results()")],
    ids=lambda words: words[1],
)
def test_a_full_disk_can_be_emptied_by_removing_a_batch(clients: Any, full: Full, words: tuple[str, ...]) -> None:
    disk, batch = full("b = large.run_async_map([300_000] * 12)\nb.wait()\nprint(json.dumps(b.group_id))")
    before = _free(disk)

    if words[0] == "-c":
        look = f"b = kinetic.attach_batch({batch!r})\nprint(json.dumps([len(value) for value in {words[1]}]))"
        assert clients.run(look) == [300_000] * 12
    else:
        told = clients.kinetic(*[batch if word == "BATCH" else word for word in words])
        assert told.returncode == 0, told.stderr

    assert _free(disk) > before + 3_000_000
    listed = clients.kinetic("jobs", "list", "--all", "--json")
    assert listed.stdout.count('"SUCCEEDED"') == 12


@pytest.mark.parametrize("writes", ["open('large.bin', 'wb', 0).write", "sys.stdout.buffer.raw.write"])
def test_a_job_that_fills_the_disk_with_its_files_or_its_log_can_be_seen_and_removed(
    clients: Any, tmp_path: Path, mount: Any, writes: str
) -> None:
    disk = mount(tmp_path / "disk", "size=48m")
    clients.more = {"KINETIC_RUNTIME_DIR": str(disk / "here")}
    clients.project.write("large.py", f"""
        import sys
        import kinetic
        @kinetic.run(accelerator="cpu")
        def fill():
            write = {writes}
            while write(b"x" * 99 + b"\\n"):
                pass
    """)  # fmt: skip
    job = clients.run("from large import fill\njob = fill.run_async()\njob.wait()\nprint(json.dumps(job.job_id))")

    seen = [clients.kinetic("jobs", *words) for words in (["list"], ["logs", job, "--tail", "9"], ["explain", job])]
    removed = clients.kinetic("jobs", "cleanup", job, "--yes")

    assert [told.returncode for told in (*seen, removed)] == [0, 0, 0, 0], [told.stderr for told in (*seen, removed)]
    assert "FAILED" in seen[0].stdout
    assert _free(disk) > 20_000_000
    clients.until.touch()
    assert clients.collect(clients.submit())["file"]


def test_a_reserve_that_was_not_written_to_its_end_is_written_again(tmp_path: Path) -> None:
    QueueConnection(tmp_path / "queue.db").close()
    reserve = tmp_path / "queue.reserve"
    size = reserve.stat().st_size
    os.truncate(reserve, 0)

    QueueConnection(tmp_path / "queue.db").close()

    assert reserve.stat().st_size == size > 200_000


def test_the_queue_takes_the_room_of_its_reserve_where_a_quota_is_used_up(
    clients: Any, quota: str, wait_until: Callable[..., None]
) -> None:
    clients.until.touch()
    first = clients.submit()
    clients.collect(first)
    assert [*clients.home.glob("run/*/queue.reserve")]

    second = clients.submit(LD_PRELOAD=quota)

    # A supervisor that starts makes it again before it meets the quota itself.
    wait_until(lambda: not [*clients.home.glob("run/*/queue.reserve")])
    assert clients.collect(second)["file"]


def test_a_queue_that_no_process_has_open_is_opened_on_a_disk_that_others_have_filled(
    tmp_path: Path, mount: Any
) -> None:
    disk = mount(tmp_path / "disk", "size=20m")
    queue = QueueConnection(disk / "queue.db")
    queue.read("SELECT job_id FROM jobs")
    queue.close()
    _fill(disk, 0)

    with queue.change() as db:
        db.execute("DELETE FROM jobs")
    queue.close()
    (disk / "ballast").rename(disk / "ballast of others")
    _fill(disk, 0)
    with pytest.raises(BackendUnavailableError, match="No space left") as caught:
        queue.read("SELECT job_id FROM jobs")

    assert caught.value.code == "disk-full"


def test_the_code_of_jobs_is_whole_or_not_there_however_little_room_there_was(tmp_path: Path, mount: Any) -> None:
    disk = mount(tmp_path / "disk", "size=16m")
    needed = sum(path.stat().st_size for path in runner_bundle.contents().values())
    made = []

    for free in range(needed // 1024 + 200, needed // 1024 + 1000, 100):  # room for the sources and for some bytecode
        _fill(disk, free)
        folder = disk / f"runners-{free}"
        with contextlib.suppress(PackingError):
            made.append(runner_bundle.folder(folder))
        (disk / "ballast").unlink()
        for compiled in folder.rglob("*.pyc"):
            marshal.loads(compiled.read_bytes()[16:])
        assert not [*folder.glob(".*")]
        shutil.rmtree(folder, ignore_errors=True)
    made.append(runner_bundle.folder(disk / "runners"))

    assert [*made[-1].rglob("*.pyc")]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_home_with_spaces_and_letters_of_other_alphabets_in_its_name(
    clients: Any, tmp_path: Path, locale: str
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


def test_what_removes_old_files_below_var_tmp_leaves_those_of_a_running_job_alone(
    clients: Any, wait_until: Callable[..., None]
) -> None:
    job = clients.submit()
    wait_until(clients.sign.exists, "the job", 20)
    (runtime,) = clients.home.glob("run/*")

    descriptor = os.open(runtime, os.O_RDONLY)  # systemd-tmpfiles takes this lock of each folder, or skips the folder
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)

    clients.until.touch()
    assert clients.collect(job)["written"]


def test_a_project_on_a_read_only_disk_runs_and_nothing_is_written_there(
    clients: Any, tmp_path: Path, mount: Any
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
    clients: Any, mask: int, wait_until: Callable[..., None]
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
