"""Sweeping removes what nobody needs, and nothing else."""

from __future__ import annotations

import json
import os
import time

import pytest

from kinetic._backends.local import expired_files, notifier, runtime_files
from kinetic._backends.local.limits import Limits
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._runner.data import file_cache
from kinetic._stores.files import FileStore
from kinetic._wire import documents, keys

DAY = 24 * 3600.0
ONE = Limits(1, ())


@pytest.fixture
def site(tmp_path):
    paths = Paths(tmp_path / "run")
    paths.make()
    queue = Queue(paths.queue)
    scratch = tmp_path / ".tmp"
    scratch.mkdir()
    yield paths, queue, scratch
    queue.close()


def _aged(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def _job(paths, queue, name, *, ended):
    (paths.job(name) / "work-0-0").mkdir(parents=True)
    queue.add([(name, "", 0)], "earth", "{}", ONE)
    if ended is not None:
        queue.end(name, "failed")
        with queue.change() as db:
            db.execute("UPDATE jobs SET ended = ? WHERE job_id = ?", (time.time() - ended, name))


def test_the_working_folder_of_a_debug_job_goes_two_hours_after_its_end_and_never_while_it_runs(site):
    paths, queue, scratch = site
    _job(paths, queue, "old", ended=7200 + 60)
    _job(paths, queue, "young", ended=7200 - 60)
    _job(paths, queue, "live", ended=None)
    for name in ("old", "young", "live"):
        (paths.job(name) / "log-0-0.debug").write_text("{}")

    expired_files.sweep(paths, queue, scratch, now=time.time())

    assert not (paths.job("old") / "work-0-0").exists()
    assert (paths.job("young") / "work-0-0").exists()
    assert (paths.job("live") / "work-0-0").exists()


def test_the_working_folder_of_a_failed_job_goes_after_a_day_and_its_other_files_stay(site):
    paths, queue, scratch = site
    _job(paths, queue, "old", ended=DAY + 60)
    _job(paths, queue, "young", ended=DAY - 60)
    _job(paths, queue, "waiting", ended=None)
    (paths.job("old") / "log-0-0").write_text("kept")

    expired_files.sweep(paths, queue, scratch)

    assert not (paths.job("old") / "work-0-0").exists()
    assert (paths.job("old") / "log-0-0").read_text() == "kept"
    assert (paths.job("young") / "work-0-0").exists()
    assert (paths.job("waiting") / "work-0-0").exists()


def test_a_folder_that_the_queue_does_not_know_goes_after_a_day(site):
    paths, queue, scratch = site
    forgotten, new = "cpu-train-20261120-143000-1a2b3c4", "cpu-train-20261120-143000-1a2b3c5"
    of_others = "grp-cab78493", "workspace-0123456789ab"  # of a batch, and of a supervisor
    for name, age in ((forgotten, DAY + 60), (new, 60), *((name, DAY + 60) for name in of_others)):
        paths.job(name).mkdir()
        _aged(paths.job(name), age)

    expired_files.sweep(paths, queue, scratch)

    assert [path.name for path in paths.jobs.iterdir()] == [new]


def test_what_a_killed_submission_left_goes_after_a_day_and_no_result_nor_what_a_client_is_sending(site, tmp_path):
    paths, queue, scratch = site
    store = FileStore(tmp_path)
    left, decided, held, new = (f"cpu-train-20261120-143000-1a2b3c{number}" for number in range(4))
    for name in (left, decided, held, new):
        store.put(keys.order(name), b"{}")
        store.put(keys.arguments(name), b"x")
        _aged(tmp_path / keys.order(name), DAY + 60)
        _aged(tmp_path / keys.arguments(name), DAY + 60)
        paths.job(name).mkdir()
    store.put(keys.result(decided), b"x")
    _aged(tmp_path / keys.result(decided), DAY + 60)
    os.utime(tmp_path / keys.arguments(new))
    submission = runtime_files.take_lock(paths.submitting(held))  # of a client whose machine was suspended
    for name in (left, held):
        _aged(paths.job(name), DAY + 60)

    expired_files.sweep(paths, queue, scratch)
    submission.release()

    assert sorted(filter(keys.is_made, store.folders(""))) == [decided, held, new]
    assert sorted(path.name for path in paths.jobs.iterdir()) == [decided, held, new]


def test_what_a_killed_submission_of_a_batch_left_stays_until_all_of_it_is_a_day_old(site, tmp_path):
    paths, queue, scratch = site
    store = FileStore(tmp_path)
    left, new = "grp-00000001", "grp-00000002"
    for name in (left, new):
        for key in (keys.group_inputs(name, 0), keys.group_clock(name)):
            store.put(key, b"x")
            _aged(tmp_path / key, DAY + 60)
    os.utime(tmp_path / keys.group_inputs(new, 0))

    expired_files.sweep(paths, queue, scratch)

    assert list(store.folders(keys.GROUPS)) == [new]


def test_a_removal_that_was_killed_is_completed_and_takes_neither_a_value_nor_a_job_that_runs(site, tmp_path):
    paths, queue, scratch = site
    store = FileStore(tmp_path)
    pages = {"all": {"artifacts_removed": True}, "but its value": {}, "runs": {}, "known to none": None}
    for name, page in pages.items():
        _job(paths, queue, name, ended=None if name == "runs" else 60)
        store.put(keys.result(name), b"value")
        if page is not None:
            store.put(keys.history(name), b"{}")

    expired_files.sweep(paths, queue, scratch, lambda _, name: pages[name])

    assert sorted(row.job_id for row in queue.rows()) == ["known to none", "runs"]
    assert sorted(path.name for path in paths.jobs.iterdir()) == ["known to none", "runs"]
    assert [name for name in pages if store.size(keys.result(name)) is None] == ["all"]


@pytest.mark.parametrize("file", ["launch", "key", "followed_keys"])
def test_the_key_and_the_variables_of_a_job_go_though_its_supervisor_died_before_it_could_remove_them(site, file):
    paths, queue, scratch = site
    for name, ended in (("old", DAY + 60), ("waiting", None)):
        _job(paths, queue, name, ended=ended)
        getattr(paths, file)(name).write_text("secret")

    expired_files.sweep(paths, queue, scratch)

    assert [getattr(paths, file)(name).exists() for name in ("old", "waiting")] == [False, True]


def test_what_the_user_keeps_in_the_folder_for_running_jobs_stays(site):
    paths, queue, scratch = site
    theirs = [paths.jobs / "slurm-1", paths.runners / "actions", paths.supervisors / "notes", paths.groups / "lab.csv"]
    theirs.append(paths.environments / "torch")
    for path in theirs:
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "precious").touch()
        _aged(path, 400 * DAY)

    expired_files.sweep(paths, queue, scratch)

    assert [(path / "deep" / "precious").exists() for path in theirs] == [True] * len(theirs)


def test_half_written_files_go_after_a_day_unless_a_job_is_still_known(site):
    paths, queue, scratch = site
    _job(paths, queue, "known", ended=None)
    for name in ("known.0.body", "gone.0.body", "1f-abc"):
        (scratch / name).write_bytes(b"x")
        _aged(scratch / name, DAY + 60)
    (scratch / "fresh").write_bytes(b"x")

    expired_files.sweep(paths, queue, scratch)

    assert sorted(path.name for path in scratch.iterdir()) == ["fresh", "known.0.body"]


def test_what_cannot_be_removed_keeps_neither_a_submission_nor_the_rest(site):
    paths, queue, scratch = site
    kept = file_cache.Cache(paths.data_cache)
    kept.keep_page("old", b"{}")
    (paths.data_cache / "pinned" / ".DS_Store").write_bytes(b"\0\xff")  # of a Finder that has shown the folder
    damaged, log = paths.supervisors / "aaaaaaaaaaaa.log", paths.supervisors / "bbbbbbbbbbbb.log"
    damaged.mkdir()
    log.touch()
    for path in (damaged, log, paths.data_cache / "pages" / "old"):
        _aged(path, 31 * DAY)

    expired_files.sweep(paths, queue, scratch)

    assert damaged.exists()
    assert not log.exists()
    assert not (paths.data_cache / "pages" / "old").exists()


def test_the_secrets_of_a_batch_go_a_month_after_it_and_stay_while_it_is_in_another_store(site, tmp_path):
    paths, queue, scratch = site
    own, other, missing = (f"file://{tmp_path / name}".rstrip("/") for name in ("", "other", "missing"))
    pages = {
        "grp-00000001": json.dumps({"schema": documents.SCHEMA, "addresses": [own, other]}),
        "grp-00000002": json.dumps({"schema": documents.SCHEMA, "addresses": [other]}),
        "grp-00000003": json.dumps({"schema": documents.SCHEMA, "addresses": [missing]}),
        "grp-00000004": json.dumps({"schema": documents.SCHEMA, "addresses": ["s3://bucket"]}),
        "grp-00000005": "damaged",
    }
    for name, page in pages.items():
        paths.group_secrets(name).parent.mkdir(exist_ok=True)
        paths.group_secrets(name).write_text(page)
        _aged(paths.group_secrets(name), 31 * DAY)
    for name in ("grp-00000001", "grp-00000002"):
        (tmp_path / "other" / keys.group_manifest(name)).parent.mkdir(parents=True)
        (tmp_path / "other" / keys.group_manifest(name)).write_text("{}")

    expired_files.sweep(paths, queue, scratch, now=time.time())

    assert [name for name in pages if paths.group_secrets(name).exists()] == ["grp-00000002", "grp-00000004"]


@pytest.mark.parametrize(("suffix", "days"), [(".claimed", 1), (".json", 30)])
def test_a_notification_that_nobody_will_send_goes_with_the_variables_in_it(site, suffix, days):
    paths, queue, scratch = site
    _job(paths, queue, "waits", ended=None)
    folder = paths.runtime / notifier.FOLDER
    folder.mkdir()
    for name, age in (("old", days + 0.1), ("young", days - 0.1), ("waits", days + 0.1)):
        (folder / f"{name}{suffix}").write_text("{}")
        _aged(folder / f"{name}{suffix}", age * DAY)
    (folder / "log").write_text("")
    _aged(folder / "log", 99 * DAY)

    expired_files.sweep(paths, queue, scratch, now=time.time())

    assert sorted(file.name for file in folder.iterdir()) == sorted(["log", f"waits{suffix}", f"young{suffix}"])


def test_a_second_sweep_within_an_hour_does_nothing(site):
    paths, queue, scratch = site
    expired_files.sweep(paths, queue, scratch)
    (scratch / "old").write_bytes(b"x")
    _aged(scratch / "old", DAY + 60)

    expired_files.sweep(paths, queue, scratch)
    assert (scratch / "old").exists()

    expired_files.sweep(paths, queue, scratch, now=time.time() + 3601)
    assert not (scratch / "old").exists()


def test_the_code_of_an_older_version_goes_after_a_month_unless_a_waiting_job_needs_it(site):
    paths, queue, scratch = site
    needed, unused = (f"{24 * digit}-cpython-311" for digit in "ab")
    for name in (needed, unused):
        _aged_folder = paths.runners / name
        _aged_folder.mkdir()
        _aged(_aged_folder, 31 * DAY)
    queue.add([("waiting", "", 0)], "earth", f'{{"arguments": ["{paths.runners}/{needed}/supervisor.py"]}}', ONE)

    expired_files.sweep(paths, queue, scratch)

    assert (paths.runners / needed).exists()
    assert not (paths.runners / unused).exists()


def test_data_that_a_job_left_behind_goes_with_its_links(site, tmp_path):
    paths, queue, scratch = site
    for name, ended in (("old", DAY + 60), ("waiting", None)):
        _job(paths, queue, name, ended=ended)
        home = paths.files(name, 0).data
        (home / "0" / "set").mkdir(parents=True)
        (tmp_path / f"mnt-{name}").symlink_to(home / "0" / "set")
        (home / "links").write_text(json.dumps([str(tmp_path / f"mnt-{name}")]) + "\n")
    (paths.data_cache / "links").mkdir(parents=True)

    expired_files.sweep(paths, queue, scratch)

    assert not paths.files("old", 0).data.exists()
    assert not (tmp_path / "mnt-old").is_symlink()
    assert (tmp_path / "mnt-waiting").is_dir()


def test_data_that_nobody_reads_goes_after_a_month(site):
    paths, queue, scratch = site
    kept = file_cache.Cache(paths.data_cache)
    for name, days in (("old", 31), ("young", 29)):
        kept.keep_page(name, b"{}")
        _aged(paths.data_cache / "pages" / name, days * DAY)

    expired_files.sweep(paths, queue, scratch)

    assert os.listdir(paths.data_cache / "pages") == ["young"]


def test_each_store_is_swept_though_another_one_was_within_the_hour(site, tmp_path):
    paths, queue, scratch = site
    other = tmp_path / "other" / ".tmp"
    other.mkdir(parents=True)
    for folder in (scratch, other):
        (folder / "old").write_bytes(b"x")
        _aged(folder / "old", DAY + 60)
        expired_files.sweep(paths, queue, folder)

    assert not any((folder / "old").exists() for folder in (scratch, other))
