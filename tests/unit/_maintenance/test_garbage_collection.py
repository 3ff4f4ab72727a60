"""What is not needed goes, and nothing else: packs, pages of the cache, history; on real files with real times."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from kinetic._backends.local.limits import Limits
from kinetic._backends.local.queue import Queue
from kinetic._jobs import find, locate
from kinetic._maintenance import garbage_collection
from kinetic._project.archive import ship
from kinetic._project.root import Plan
from kinetic._stores import open_store
from kinetic._stores.files import FileStore
from kinetic._wire import digests, documents, keys
from kinetic._wire.order import Artifact, DataRef, Order

DAY = 24 * 3600.0
JOB = "cpu-train-20261120-143000-1a2b3c4"
GROUP, OTHER_GROUP = "grp-1a2b3c4d", "grp-5e6f7081"
NOW = time.time()
NOTHING = garbage_collection.Removed()


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    home = tmp_path / "home"
    for name in [*os.environ]:
        if name.startswith("KINETIC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_HOME", str(home))
    home.mkdir()
    return home


@pytest.fixture
def store(home) -> FileStore:
    return FileStore(home / "store")


@pytest.fixture
def runtime(home) -> Path:
    folder = home / "run" / "here"
    (folder / "jobs").mkdir(parents=True)
    return folder


def aged(path: Path, days: float) -> Path:
    os.utime(path, (NOW - days * DAY, NOW - days * DAY))
    return path


def digest_of(name: str) -> str:
    return digests.of_bytes(name.encode())


def pack(store: FileStore, name: str, days: float) -> Path:
    at = keys.data_blob(digest_of(name))
    store.put(at, b"x" * 100)
    return aged(store.root / at, days)


def order(store: FileStore, job_id: str, *packs: str) -> None:
    nothing = Artifact.within(b"")
    page = Order(job_id, "train", nothing, nothing, packs=tuple(map(digest_of, packs)))
    store.put(keys.order(job_id), page.to_bytes())


def sweep(store, home, runtime) -> garbage_collection.Removed:
    return garbage_collection.collect(store, home, runtime, now=NOW)


# ---------------------------------------------------------------------------------------------- blobs of projects


def test_a_blob_that_no_order_names_is_removed_after_sixty_days(store, home, runtime) -> None:
    old, young = pack(store, "old", 60.1), pack(store, "young", 59.9)

    swept = sweep(store, home, runtime)

    assert (old.exists(), young.exists()) == (False, True)
    assert swept == garbage_collection.Removed(data=1, size_bytes=100)


def test_a_blob_that_an_order_names_stays_however_old(store, home, runtime) -> None:
    kept = pack(store, "kept", 400)
    order(store, JOB, "other", "kept")

    assert sweep(store, home, runtime) == NOTHING
    assert kept.exists()


def test_a_blob_of_a_group_of_jobs_stays(store, home, runtime) -> None:
    kept = pack(store, "kept", 400)
    nothing = Artifact.within(b"")
    store.put("_groups/grp-1/order.json", Order("a", "train", nothing, nothing, packs=(digest_of("kept"),)).to_bytes())

    assert sweep(store, home, runtime) == NOTHING
    assert kept.exists()


@pytest.mark.parametrize(
    "page", [b"{", documents.write({"schema": 99, "packs": []})], ids=["damaged", "of a later version"]
)
def test_an_order_that_cannot_be_read_keeps_every_blob(page, store, home, runtime) -> None:
    spare = pack(store, "spare", 400)
    store.put(keys.order(JOB), page)

    assert sweep(store, home, runtime) == NOTHING
    assert spare.exists()


def test_a_job_without_an_order_keeps_no_blob(store, home, runtime) -> None:
    spare = pack(store, "spare", 400)
    store.put(keys.record(JOB), b"{}")

    assert sweep(store, home, runtime).data == 1
    assert not spare.exists()


def test_a_blob_that_a_submission_relies_on_is_made_young_before_its_order_is_written(store, home, runtime) -> None:
    (home / "project").mkdir()
    (home / "project" / "main.py").write_text("x = 1")
    plan = Plan(home / "project", "", None, ("",))
    shipped = ship(plan, store, cache=home / "cache", environ={})
    for blob in shipped.packs:
        aged(store.root / "data" / "blobs" / blob, 400)

    assert ship(plan, store, cache=home / "cache", environ={}).packs == shipped.packs

    assert sweep(store, home, runtime).data == 0


def test_outputs_results_and_logs_stay_however_old(store, home, runtime) -> None:
    kept = ["outputs/cpu-train-1/model.bin", "cpu-train-1/result.pkl", "cpu-train-1/logs/0/0/000000000000", "data/x"]
    for key in kept:
        store.put(key, b"x")
        aged(store.root / key, 1000)

    assert sweep(store, home, runtime) == NOTHING
    assert [store.get(key) for key in kept] == [b"x"] * 4


@pytest.mark.parametrize(("days", "goes"), [(7.1, True), (6.9, False)])
def test_what_a_job_was_sent_goes_seven_days_after_it_ended_and_its_result_stays(days, goes, store, home, runtime):
    sent = [keys.function(JOB), keys.arguments(JOB)]
    kept = [keys.result(JOB), keys.record(JOB), keys.log_segment(JOB, 0, 0, 0)]
    for key in (*sent, *kept):
        store.put(key, b"x" * 50)
        aged(store.root / key, days)

    swept = sweep(store, home, runtime)

    assert [(store.root / key).exists() for key in sent] == [not goes] * 2
    assert [(store.root / key).exists() for key in kept] == [True] * 3
    assert swept == (garbage_collection.Removed(payloads=2, size_bytes=100) if goes else NOTHING)


def test_what_a_job_was_sent_stays_while_it_has_no_verdict(store, home, runtime) -> None:
    for key in (keys.arguments(JOB), keys.record(JOB)):
        store.put(key, b"x")
        aged(store.root / key, 400)

    assert sweep(store, home, runtime) == NOTHING


@pytest.mark.parametrize(("days", "goes"), [(7.1, True), (6.9, False)])
def test_what_killed_submissions_left_goes_after_seven_days_and_no_job_or_batch(
    days, goes, store, home, runtime
) -> None:
    left = [keys.arguments(JOB), keys.order(JOB), keys.group_clock(GROUP), keys.group_inputs(GROUP, 0)]
    being_sent = [keys.arguments(f"{JOB}aaaaaa"), keys.order(f"{JOB}aaaaaa")]
    kept = [keys.arguments(f"{JOB}bbbbbb"), keys.record(f"{JOB}bbbbbb"), keys.result(f"{JOB}cccccc")]
    kept += [keys.group_inputs(OTHER_GROUP, 0), keys.group_manifest(OTHER_GROUP)]
    for key in (*left, *being_sent, *kept):
        store.put(key, b"x" * 50)
        aged(store.root / key, days)
    aged(store.root / being_sent[1], 1)

    swept = sweep(store, home, runtime)

    assert [(store.root / key).exists() for key in left] == [not goes] * 4
    assert [(store.root / key).exists() for key in (*being_sent, *kept)] == [True] * 7
    assert swept == (garbage_collection.Removed(payloads=4, size_bytes=200) if goes else NOTHING)


class SubmittedMeanwhile(FileStore):
    """A client that was suspended for long writes record and manifest of its job and batch, after they were listed."""

    def entries(self, prefix, *, after=""):
        found = list(super().entries(prefix, after=after))
        if prefix in {keys.job(JOB), keys.group(GROUP)}:
            self.put(keys.record(JOB) if prefix == keys.job(JOB) else keys.group_manifest(GROUP), b"{}")
        return iter(found)


def test_a_job_or_batch_whose_submission_ends_while_its_files_are_listed_keeps_them(store, home, runtime) -> None:
    sent = [keys.arguments(JOB), keys.order(JOB), keys.group_inputs(GROUP, 0)]
    for key in sent:
        store.put(key, b"x" * 50)
        aged(store.root / key, 400)

    assert sweep(SubmittedMeanwhile(store.root), home, runtime) == NOTHING
    assert [store.size(key) for key in sent] == [50] * 3


def test_a_clock_of_this_machine_that_is_wrong_removes_no_submission_to_a_bucket(home, runtime) -> None:
    bucket = open_store("memory://submissions")
    bucket.put(keys.group_inputs(GROUP, 0), b"x" * 10)

    garbage_collection.collect(bucket, home, runtime, now=time.time() + 400 * DAY)

    assert bucket.get(keys.group_inputs(GROUP, 0)) == b"x" * 10


# ------------------------------------------------------------------------------------------------- cache and history


@pytest.mark.parametrize(("days", "goes"), [(59, False), (61, True)])
def test_data_goes_sixty_days_after_it_was_sent_or_touched_last(days, goes, store, home, runtime) -> None:
    blob, manifest = keys.data_blob("b" * 64), keys.data_manifest("a" * 64, "c" * 64)
    for key in (blob, manifest):
        store.put(key, b"x" * 10)
        aged(store.root / key, days)

    swept = sweep(store, home, runtime)

    assert [store.size(key) is None for key in (blob, manifest)] == [goes, goes]
    assert swept == (garbage_collection.Removed(data=2, size_bytes=20) if goes else NOTHING)


def test_data_stays_however_old_until_the_job_that_reads_it_has_its_verdict(store, home, runtime) -> None:
    blob, manifest = keys.data_blob("b" * 64), keys.data_manifest("a" * 64, "c" * 64)
    for key, page in ((blob, b"x"), (manifest, documents.write({"blobs": ["b" * 64]}))):
        store.put(key, page)
        aged(store.root / key, 400)
    data = (DataRef("shipped", store.url, "./set", "set", is_dir=True, hash="a" * 64, manifest="c" * 64),)
    page = Order(JOB, "train", Artifact.within(b""), Artifact.within(b""), data=data).to_bytes()
    for key in (keys.order(JOB), "_groups/grp-1/order.json"):
        store.put(key, page)

    assert sweep(store, home, runtime) == NOTHING
    store.delete("_groups/grp-1/order.json")
    assert sweep(store, home, runtime) == NOTHING
    store.put(keys.result(JOB), b"")
    assert sweep(store, home, runtime).data == 2


class KilledAfterOne(FileStore):
    """A process that is killed when it has removed one object."""

    def delete(self, key):
        super().delete(key)
        raise KeyboardInterrupt


def test_a_manifest_goes_before_what_it_promises_since_a_client_that_finds_it_sends_no_data(
    store, home, runtime
) -> None:
    blob, manifest = keys.data_blob("b" * 64), keys.data_manifest("a" * 64, "c" * 64)
    for key in (blob, manifest):
        store.put(key, b"x" * 10)
        aged(store.root / key, 400)

    with pytest.raises(KeyboardInterrupt):
        sweep(KilledAfterOne(store.root), home, runtime)

    assert (store.size(manifest), store.size(blob)) == (None, 10)


class UsedMeanwhile(FileStore):
    """Another client uses each object right after it was listed."""

    def entries(self, prefix, *, after=""):
        found = list(super().entries(prefix, after=after))
        for entry in found:
            self.touch(entry.key)
        return iter(found)


@pytest.mark.parametrize("key", [keys.data_blob("b" * 64), keys.layer("a" * 64)], ids=["data", "layer"])
def test_what_a_client_makes_young_after_we_listed_it_stays(key, store, home, runtime) -> None:
    store.put(key, b"x" * 10)
    aged(store.root / key, 61)

    assert sweep(UsedMeanwhile(store.root), home, runtime) == NOTHING
    assert store.get(key) == b"x" * 10


@pytest.mark.parametrize(
    ("key", "days"),
    [
        (keys.layer("a" * 64), 60),
        (keys.layer_list("b" * 64), 60),
        (keys.built_wheel("c" * 64), 60),
        (keys.image_build("env-1-key"), 7),
        (keys.image_build("cloud-env-1-key"), 7),
        (keys.build_source("d" * 32), 7),
        (keys.build_log("log-b-1.txt"), 7),
    ],
)
def test_packages_and_builds_of_images_go_when_nobody_has_used_them_for_long(key, days, store, home, runtime) -> None:
    store.put(key, b"x" * 10)
    aged(store.root / key, days - 0.5)
    assert sweep(store, home, runtime) == NOTHING

    aged(store.root / key, days + 0.5)

    assert sweep(store, home, runtime) == garbage_collection.Removed(data=1, size_bytes=10)
    assert store.size(key) is None


def test_a_clock_of_this_machine_that_is_wrong_removes_no_package_of_a_bucket(home, runtime) -> None:
    bucket = open_store("memory://packages")
    bucket.put(keys.layer("a" * 64), b"x" * 10)

    garbage_collection.collect(bucket, home, runtime, now=time.time() + 400 * DAY)

    assert bucket.get(keys.layer("a" * 64)) == b"x" * 10


def test_wheels_and_locks_of_this_machine_go_when_unused_and_the_last_lock_of_a_project_stays(
    store, home, runtime
) -> None:
    digest = 16 * "ab"
    names = [f"wheels/{digest}.whl", f"wheels/{digest}.cpython-312.zip", f"images/{digest}"]
    names += [f"images/last-{digest}", "wheels/half/layer"]
    for name in (*names, "wheels/new.whl"):
        (home / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "cache" / name).write_text("12345")
    for name in names:
        aged(home / "cache" / name, 91)

    swept = sweep(store, home, runtime)

    assert swept == garbage_collection.Removed(pages=3, size_bytes=15)
    left = sorted(str(file.relative_to(home / "cache")) for file in (home / "cache").rglob("*") if file.is_file())
    assert left == [f"images/last-{digest}", "wheels/half/layer", "wheels/new.whl"]


def test_a_page_of_the_cache_goes_when_nobody_has_used_it_for_ninety_days(store, home, runtime) -> None:
    (home / "cache" / "packs").mkdir(parents=True)
    (home / "cache" / "data").mkdir()
    digest = 16 * "ab"
    old = [home / "cache" / name for name in (f"{digest}.json", f"packs/{digest}", f"data/{digest}.stamps")]
    for page in (*old, home / "cache" / "c.json", home / "cache" / "d.json"):
        page.write_text("12345")
    for page in old:
        aged(page, 91)
    aged(home / "cache" / "c.json", 89)
    os.utime(home / "cache" / "d.json", (NOW - DAY, NOW - 400 * DAY))  # read yesterday, written long ago

    swept = sweep(store, home, runtime)

    assert swept == garbage_collection.Removed(pages=3, size_bytes=15)
    assert sorted(page.name for page in (home / "cache").glob("*.json")) == ["c.json", "d.json"]


def test_an_environment_goes_when_no_job_has_used_it_for_thirty_days(store, home, runtime) -> None:
    for name, days in ((24 * "a", 31), (new := 24 * "b", 29)):
        folder = home / "cache" / "environments" / name
        folder.mkdir(parents=True)
        (folder / "big.so").write_bytes(b"x" * 50)
        (folder / "used").touch()
        for path in (folder / "big.so", folder / "used", folder):
            aged(path, days)

    swept = sweep(store, home, runtime)

    assert (swept.environments, swept.size_bytes) == (1, 50)
    assert [path.name for path in (home / "cache" / "environments").iterdir()] == [new]


def test_an_unpacked_wheel_goes_ninety_days_after_its_last_use(store, home, runtime) -> None:
    unpacked = home / "cache" / "unpacked"
    for name, days in ((16 * "a", 91), (f"{16 * 'b'}.0a1b2c3d", 91), (new := 16 * "c", 89), ("theirs", 400)):
        file = unpacked / name / "lib-1-py3-none-any" / "src" / "lib.py"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * 50)
        aged(unpacked / name, days)

    swept = sweep(store, home, runtime)

    assert (swept.pages, swept.size_bytes) == (2, 100)
    assert sorted(path.name for path in unpacked.iterdir()) == [new, "theirs"]


def test_an_environment_stays_however_old_while_a_job_waits_that_needs_it(store, home, runtime) -> None:
    folder = runtime / "environments" / (24 * "a")
    (folder / "bin").mkdir(parents=True)
    (folder / "used").touch()
    aged(folder / "used", 400)
    with closing(Queue(runtime / "queue.db")) as queue:
        queue.add([(JOB, "", 0)], "template", json.dumps({"arguments": [f"{folder}/bin/python"]}), Limits(1, ()))

        assert sweep(store, home, runtime).environments == 0
        queue.end(JOB, "succeeded")

    assert sweep(store, home, runtime).environments == 1


def test_a_history_record_goes_after_thirty_days(store, home, runtime) -> None:
    for name, days in ((JOB, 31), (f"{JOB}000000", 0)):
        store.put(keys.history(name), documents.write({"schema": 1, "job_id": name}))
        aged(store.root / keys.history(name), days)

    sweep(store, home, runtime)

    assert [entry.key for entry in store.entries("history/")] == [keys.history(f"{JOB}000000")]


def test_a_history_record_stays_as_long_as_what_it_is_about(store, home, runtime) -> None:
    other = f"{JOB}000000"
    for name in (JOB, other):
        store.put(keys.history(name), documents.write({"schema": 1, "job_id": name}))
        aged(store.root / keys.history(name), 31)
    store.put(keys.record(JOB), b"{}")

    sweep(store, home, runtime)

    assert [entry.key for entry in store.entries("history/")] == [keys.history(JOB)], "else it would look as if it ran"


def test_what_is_not_kinetic_s_stays_where_the_home_or_the_store_is_a_folder_that_the_user_had(
    store, home, runtime
) -> None:
    theirs = ["train-1/result.pkl", "train-1/arguments.pkl", "history/2020/loss.csv", "history/loss.json"]
    theirs += ["data/wheels/mine.whl", "data/blobs/azure.bin"]
    theirs = [*(store.root / name for name in theirs), home / "cache" / "data" / "images.bin"]
    theirs.append(home / "cache" / "environments" / "torch" / "pyvenv.cfg")
    for file in theirs:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
        for path in (file, file.parent):
            aged(path, 400)

    assert sweep(store, home, runtime) == NOTHING
    assert [file.read_text() for file in theirs] == ["precious"] * len(theirs)


# ----------------------------------------------------------------------------------------------------------- how often


def test_it_happens_at_most_once_a_day(store, home, runtime) -> None:
    first = pack(store, "first", 400)
    garbage_collection.collect_if_due(store, home, runtime, now=NOW)
    assert not first.exists()

    second = pack(store, "second", 400)
    garbage_collection.collect_if_due(store, home, runtime, now=NOW + 0.9 * DAY)
    assert second.exists()

    garbage_collection.collect_if_due(store, home, runtime, now=NOW + 1.1 * DAY)
    assert not second.exists()


def test_each_store_of_a_home_has_a_day_of_its_own(store, home, runtime, tmp_path) -> None:
    other = FileStore(tmp_path / "other")
    spare = pack(other, "spare", 400)

    for each in (store, other):
        garbage_collection.collect_if_due(each, home, runtime, now=NOW)

    assert not spare.exists()


def test_a_clock_that_was_set_back_does_not_stop_it_for_ever(store, home, runtime) -> None:
    garbage_collection.collect_if_due(store, home, runtime, now=NOW + 1000 * DAY)
    spare = pack(store, "spare", 400)

    garbage_collection.collect_if_due(store, home, runtime, now=NOW)

    assert not spare.exists()


def test_listing_jobs_sweeps(store, home) -> None:
    spare = pack(store, "spare", 400)
    locate.runtime().mkdir(parents=True)

    find.list_jobs()

    assert not spare.exists()


def test_a_sweep_that_fails_does_not_break_the_listing(store, home, monkeypatch) -> None:
    def fail(*_, **__):
        raise OSError("the disk is gone")

    locate.runtime().mkdir(parents=True)
    monkeypatch.setattr(garbage_collection, "collect", fail)

    assert find.list_jobs() == []


def test_without_a_runtime_folder_nothing_is_made_and_nothing_goes(store, home) -> None:
    spare = pack(store, "spare", 400)

    garbage_collection.collect_if_due(store, home, home / "run" / "nowhere", now=NOW)

    assert spare.exists()
    assert not (home / "run").exists()
