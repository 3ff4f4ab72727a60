"""Jobs of a batch that are launched together share their launch page and the file with their keys."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kinetic._backends.local import runtime_files
from kinetic._backends.local.runtime_files import Paths
from kinetic._wire.task import Task
from kinetic.errors import IntegrityError

JOBS = [f"cpu-act-20261123-170000-{number:013x}" for number in range(3)]
KEYS = {job: bytes([number]) * 32 for number, job in enumerate(JOBS)}


def task_of(job: str, **more: object) -> Task:
    return Task(
        job_id=job,
        order_sha256="a" * 64,
        store_url="file:///store",
        key_id="k1",
        umask=0o22,
        deadline=None,
        environment={"HOME": "/home/me", "TEXT": "two\nlines", "KINETIC_JOB_ID": job},
        child={"job_id": job, "index": JOBS.index(job)},
        queued={"template": "t", "submitted": float(JOBS.index(job))},
        **more,
    )


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "run")
    made.make()
    for job in JOBS:
        made.job(job).mkdir()
    return made


def launch(paths: Paths, *tasks: Task) -> None:
    runtime_files.write_tasks(paths, [(task, KEYS[task.job_id]) for task in tasks])


def test_each_job_reads_its_own_task_and_key_from_what_they_share(paths):
    tasks = [task_of(job, memory_bytes=number or None) for number, job in enumerate(JOBS)]

    launch(paths, *tasks)

    assert [runtime_files.read_task(paths, job) for job in JOBS] == tasks
    for job in JOBS:
        assert runtime_files.read_key(paths, job) == KEYS[job]
        with runtime_files.temporary_key(paths, job) as key:
            assert bytes(key) == KEYS[job]
        assert sorted(os.listdir(paths.job(job))) == ["key", "launch.json"]
    assert len({os.stat(paths.launch(job)).st_ino for job in JOBS}) == 1
    assert {os.stat(path(job)).st_mode & 0o777 for path in (paths.key, paths.launch) for job in JOBS} == {0o600}


@pytest.mark.parametrize("count", [1, 3])
def test_task_and_key_of_an_accepted_job_are_on_the_disk_with_their_names(paths, monkeypatch, count):
    forced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: forced.append(os.readlink(f"/proc/self/fd/{descriptor}")))

    launch(paths, *map(task_of, JOBS[:count]))

    files = [name for name in forced if not os.path.isdir(name)]
    assert len(files) == 2, "one page and one file of keys, however many jobs share them"
    assert set(forced) >= {*map(str, map(paths.job, JOBS[:count])), str(paths.jobs)}
    assert max(map(forced.index, files)) < forced.index(str(paths.job(JOBS[0])))


def test_a_key_with_more_bytes_than_a_key_has_is_no_key(paths):
    launch(paths, task_of(JOBS[0]))
    with paths.key(JOBS[0]).open("ab") as file:
        file.write(b"x")

    with pytest.raises(IntegrityError):
        runtime_files.read_key(paths, JOBS[0])


def test_a_shared_page_about_other_jobs_says_so(paths):
    launch(paths, *map(task_of, JOBS[:2]))
    os.link(paths.launch(JOBS[0]), paths.launch(JOBS[2]))

    with pytest.raises(IntegrityError, match="other jobs"):
        runtime_files.read_task(paths, JOBS[2])


def test_what_one_job_does_not_need_any_more_stays_for_the_others(paths):
    launch(paths, *map(task_of, JOBS))

    runtime_files.remove_task(paths, JOBS[0])

    assert runtime_files.read_task(paths, JOBS[0]) is None
    assert os.listdir(paths.job(JOBS[0])) == []
    assert runtime_files.read_task(paths, JOBS[1]) == task_of(JOBS[1])
    assert runtime_files.read_key(paths, JOBS[1]) == KEYS[JOBS[1]]


def test_a_job_that_a_dead_driver_launched_is_launched_again_with_others(paths):
    launch(paths, task_of(JOBS[0], retries=1))

    launch(paths, task_of(JOBS[0], retries=2), task_of(JOBS[1]))

    assert runtime_files.read_task(paths, JOBS[0]).retries == 2
    assert sorted(os.listdir(paths.job(JOBS[0]))) == ["key", "launch.json"]


def test_without_hard_links_each_job_has_files_of_its_own(paths, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)

    launch(paths, *map(task_of, JOBS))

    assert [runtime_files.read_task(paths, job) for job in JOBS] == [task_of(job) for job in JOBS]
    assert [runtime_files.read_key(paths, job) for job in JOBS] == [*KEYS.values()]
    assert sorted(os.listdir(paths.job(JOBS[0]))) == ["key", "launch.json"]


@pytest.mark.parametrize("left", [0, 31, 40, 150, -1])
def test_a_file_of_keys_that_was_cut_short_gives_no_key(paths, left):
    launch(paths, *map(task_of, JOBS))
    whole = paths.key(JOBS[2]).read_bytes()

    paths.key(JOBS[2]).write_bytes(whole[:left])

    with pytest.raises(IntegrityError, match="the key of this job is damaged"):
        runtime_files.read_key(paths, JOBS[2])
    with pytest.raises(IntegrityError), runtime_files.temporary_key(paths, JOBS[2]):
        pass


@pytest.mark.parametrize(
    "change",
    [
        lambda page: page.replace(JOBS[1].encode() + b" ", b"other "),
        lambda page: page.replace(b'"order_sha256"', b'"order_sha2"'),
        lambda page: page.replace(b'"index":1', b'"index":'),
        lambda page: page[: page.index(b"\n") + 10],
    ],
    ids=["about others", "a field is gone", "no JSON", "cut short"],
)
def test_a_shared_page_that_is_damaged_says_so(paths, change):
    launch(paths, *map(task_of, JOBS))

    paths.launch(JOBS[1]).write_bytes(change(paths.launch(JOBS[1]).read_bytes()))

    with pytest.raises(IntegrityError, match="launch page of"):
        runtime_files.read_task(paths, JOBS[1])


def test_jobs_that_are_submitted_together_share_a_lock(paths):
    lock = runtime_files.take_lock(paths.submitting(JOBS[0]))

    assert lock is not None
    assert lock.add(paths.submitting(JOBS[1]))
    assert not lock.add(paths.submitting(JOBS[1]))  # there is one
    assert runtime_files.is_locked(paths.submitting(JOBS[1]))
    pid = os.fork()
    if pid == 0:  # to another process
        os._exit(not all(runtime_files.is_locked(paths.submitting(job)) for job in JOBS[:2]))
    assert os.waitpid(pid, 0)[1] == 0
    lock.release(remove=True)
    assert not any(paths.submitting(job).exists() for job in JOBS)
