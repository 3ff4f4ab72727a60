"""The index of a store: a list reads nothing of a job twice, and never depends on what the index says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kinetic._jobs import index, job_list
from kinetic._stores.files import FileStore
from kinetic._wire import keys

LOADED = """
import sys, click
before = set(sys.modules)
from kinetic._cli.main import cli
cli({words}, standalone_mode=False)
print(*sorted(set(sys.modules) - before), file=sys.stderr)
"""
MOST_MODULES = 61  # beside click's; half are Python's own
NOT_FOR_ROWS = {
    *("dataclasses", "hashlib", "json", "shutil", "signal", "kinetic._maintenance.garbage_collection"),
    *(f"kinetic._backends.{name}" for name in ("protocol", "local.recovery", "local.expired_files", "local.scheduler")),
    "kinetic._backends.local.limits",
    *(f"kinetic._jobs.{name}" for name in ("collect", "find", "handle", "locate", "logs", "status", "wait")),
    *(f"kinetic._wire.{name}" for name in ("documents", "order", "outcomes", "records", "task")),
}


def modules_of(*words: str) -> set[str]:
    """Return the modules that a command loads in a process of its own."""
    code = LOADED.format(words=[*words])
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*told.stderr.split()}


@pytest.fixture(autouse=True)
def another_process():
    """Return a function after which the index is read from its files, as by the next command."""

    def forget() -> None:
        index._indexes.clear()
        index._rows.clear()

    forget()
    yield forget
    forget()


@pytest.fixture
def opened(monkeypatch):
    """Every object of the store that is opened, by its key."""
    found: list[str] = []
    real = FileStore.open

    def noting(self, key):
        found.append(key)
        return real(self, key)

    monkeypatch.setattr(FileStore, "open", noting)
    return found


def listed(kinetic, *words: str) -> dict[str, str]:
    told = kinetic("jobs", "list", "--json", *words)
    assert told.exit_code == 0, told.output
    return {job["job_id"]: job["status"] for job in json.loads(told.stdout)["jobs"]}


def file_of(home, ending: str):
    (path,) = (path for path in (home / "index").glob(f"*{ending}") if ".history" not in path.name)
    return path


def known(home) -> set[str]:
    """Return the jobs in both files of the index."""
    records = json.loads(file_of(home, ".json").read_text())["jobs"].keys()
    rows = index.rows_of(FileStore(home / "store")).rows.keys()
    return {*records} & {*rows}


def test_the_second_list_opens_no_page_of_a_job_that_has_ended(kinetic, made_job, opened, another_process) -> None:
    jobs = [made_job(), made_job()]
    first = listed(kinetic)
    another_process()
    opened.clear()

    again = listed(kinetic)

    assert first == again == dict.fromkeys(jobs, "SUCCEEDED")
    assert [key for key in opened if key.endswith(("handle.json", "result.pkl"))] == []


@pytest.mark.parametrize(
    "harm", [b"", b"{", b"[]", b'{"schema": 99}', b'{"schema": 1, "store": "file:///elsewhere", "jobs": {}}']
)
def test_damaged_or_foreign_records_are_read_again(kinetic, made_job, home, another_process, harm) -> None:
    job = made_job()
    listed(kinetic)
    file_of(home, ".json").write_bytes(harm)
    file_of(home, ".rows").unlink()
    another_process()

    assert listed(kinetic) == {job: "SUCCEEDED"}
    assert known(home) == {job}


@pytest.mark.parametrize("words", [(), ("--all",)])
def test_a_list_of_jobs_that_have_ended_loads_no_more_than_it_shows(kinetic, made_job, home, words) -> None:
    gone, _ = made_job(), made_job()
    assert kinetic("jobs", "cleanup", gone).exit_code == 0
    listed(kinetic, "--all")

    loaded = modules_of("jobs", "list", *words)

    assert loaded & NOT_FOR_ROWS == set()
    assert len(loaded) <= MOST_MODULES, sorted(loaded)


NOT_FOR_A_LOOK = (
    *("kinetic._google", "kinetic._backends.kube", "kinetic._images", "kinetic._batches"),
    *("kinetic._backends.local.recovery", "kinetic._backends.local.scheduler", "kinetic._jobs.collect"),
    *("kinetic._jobs.cancellation", "kinetic._jobs.results"),
    *("kinetic._jobs.handle", "kinetic._jobs.wait", "kinetic._wire.order", "kinetic._stores.parallel"),
)
MOST_MODULES_OF_A_LOOK = {"status": 90, "logs": 90, "show": 100}


@pytest.mark.parametrize("words", ["status {}", "logs {} --tail 3", "show {}", "status @last"])
def test_a_look_at_a_job_that_has_ended_loads_no_cluster_and_nothing_that_acts_on_it(kinetic, made_job, words) -> None:
    job = made_job(log="hello\n")
    listed(kinetic)

    loaded = modules_of("jobs", *words.format(job).split())

    assert [name for name in loaded if name.startswith(NOT_FOR_A_LOOK)] == []
    assert len(loaded) <= MOST_MODULES_OF_A_LOOK[words.split()[0]], sorted(loaded)


HARMS = {
    "emptied": lambda data: b"",
    "cut short": lambda data: data[:-1],
    "a bit turned": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "no marshal": lambda data: data[:40] + b"\xff" * 999,
    "of another version": lambda data: data.replace(b"kinetic rows 1", b"kinetic rows 0"),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("words", [(), ("--all",)])
def test_damaged_rows_are_made_again(kinetic, made_job, home, another_process, opened, harm, words) -> None:
    gone, job = made_job(), made_job()
    assert kinetic("jobs", "cleanup", gone).exit_code == 0
    right = listed(kinetic, "--all"), listed(kinetic)
    for path in (home / "index").glob("*.rows"):
        path.write_bytes(HARMS[harm](path.read_bytes()))
    another_process()

    assert listed(kinetic, "--all") == right[0] == {gone: "SUCCEEDED", job: "SUCCEEDED"}
    assert listed(kinetic) == right[1] == {job: "SUCCEEDED"}
    another_process()
    opened.clear()
    assert listed(kinetic, *words) == right[not words]
    assert opened == []


def test_rows_of_another_store_or_machine_are_not_believed(
    kinetic, made_job, home, another_process, monkeypatch
) -> None:
    made_job(days=1)  # whose age is the same in both lists
    listed(kinetic)
    rows = file_of(home, ".rows").read_bytes()
    another_process()
    monkeypatch.setenv("KINETIC_MACHINE_ID", "elsewhere")
    monkeypatch.setenv("KINETIC_RUNTIME_DIR", str(home / "run" / "elsewhere"))

    first = kinetic("jobs", "list").stdout
    for path in (home / "index").glob("*.rows"):
        path.write_bytes(rows)
    another_process()

    assert kinetic("jobs", "list").stdout == first
    assert "host " in first


def test_a_page_of_the_history_that_was_added_replaced_or_deleted_is_seen_at_once(
    kinetic, made_job, home, another_process
) -> None:
    store, jobs = FileStore(home / "store"), [made_job(), made_job("failed")]
    for job in jobs:
        assert kinetic("jobs", "cleanup", job).exit_code == 0
        another_process()
        assert job in listed(kinetic, "--all")
    replaced = store.get(keys.history(jobs[0]))
    store.delete(keys.history(jobs[1]))
    another_process()
    assert listed(kinetic, "--all").keys() == {jobs[0]}

    store.put(keys.history(jobs[0]), replaced.replace(b"SUCCEEDED", b"FAILED"))  # its seal is wrong now
    another_process()
    assert listed(kinetic, "--all") == {}
    store.put(keys.history(jobs[0]), replaced)
    another_process()
    assert listed(kinetic, "--all") == {jobs[0]: "SUCCEEDED"}


def test_a_history_that_did_not_change_is_not_even_listed(
    kinetic, made_job, home, another_process, monkeypatch
) -> None:
    for job in (made_job(), made_job()):
        assert kinetic("jobs", "cleanup", job).exit_code == 0
    history = home / "store" / "history"
    listed(kinetic)  # which collects garbage
    os.utime(history, (1_700_000_000.5, 1_700_000_000.5))  # long enough ago that it cannot change unseen
    right = listed(kinetic, "--all")
    another_process()
    monkeypatch.setattr(index, "page_entries", None)
    monkeypatch.setattr(job_list, "page_entries", None)

    assert listed(kinetic, "--all") == right
    assert len(right) == 2


def test_what_the_index_knows_of_a_job_that_is_gone_is_not_listed_and_forgotten(
    kinetic, made_job, home, another_process
) -> None:
    gone, stays = made_job(), made_job()
    listed(kinetic)
    FileStore(home / "store").delete(keys.job(gone))
    another_process()

    assert listed(kinetic) == {stays: "SUCCEEDED"}
    another_process()
    new = made_job()
    assert listed(kinetic).keys() == {stays, new}
    assert known(home) == {stays, new}


def test_a_job_that_was_removed_by_hand_is_history_whatever_the_index_knows(kinetic, made_job, another_process) -> None:
    job = made_job()
    listed(kinetic)
    assert kinetic("jobs", "cleanup", job).exit_code == 0
    another_process()

    assert listed(kinetic) == {}
    assert job in listed(kinetic, "--all")


def test_a_list_of_live_jobs_loads_neither_index_nor_pages_of_the_history(
    kinetic, made_job, home, opened, another_process
) -> None:
    removed, stays = made_job(), made_job()
    assert kinetic("jobs", "cleanup", removed).exit_code == 0
    assert listed(kinetic, "--all").keys() == {removed, stays}
    another_process()
    opened.clear()

    assert listed(kinetic) == {stays: "SUCCEEDED"}
    assert [path.name for path in index._rows] == [file_of(home, ".rows").name]
    assert index._indexes == {}
    assert [key for key in opened if key.startswith(keys.HISTORY)] == []


def test_a_record_that_others_replaced_steers_no_list(kinetic, made_job, home, another_process) -> None:
    job = made_job()
    listed(kinetic)
    store = FileStore(home / "store")
    forged = json.loads(store.get(keys.record(job))) | {"backend": "gke", "project": "theirs", "cluster_name": "theirs"}
    store.put(keys.record(job), json.dumps(forged).encode())
    another_process()

    assert listed(kinetic) == {job: "SUCCEEDED"}


def test_without_the_key_nothing_of_the_index_is_believed(kinetic, made_job, home, another_process) -> None:
    made_job()
    listed(kinetic)
    for key in (home / "keys").iterdir():
        key.rename(home / f"{key.name}.aside")
    another_process()

    assert listed(kinetic) == {}


def test_the_newest_job_is_found_with_the_history_read_once(kinetic, made_job, opened, another_process) -> None:
    collected = made_job()
    assert kinetic("jobs", "result", collected, "--cleanup").exit_code == 0
    assert collected in kinetic("jobs", "status", "@last").stdout
    another_process()
    opened.clear()

    assert collected in kinetic("jobs", "status", "@last").stdout
    assert len([key for key in opened if key.startswith(keys.HISTORY) and key.endswith(".json")]) <= 1
