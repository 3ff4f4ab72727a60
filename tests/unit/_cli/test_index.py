"""The index of a store: a list reads nothing of a job twice, and never depends on what the index says."""

from __future__ import annotations

import json

import pytest

from kinetic._jobs import locate
from kinetic._stores.files import FileStore
from kinetic._wire import keys


@pytest.fixture(autouse=True)
def another_process():
    """Return a function after which the index is read from its file, as by the next command."""
    locate._indexes.clear()
    yield locate._indexes.clear
    locate._indexes.clear()


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


def index_of(home):
    (path,) = (path for path in (home / "index").glob("*.json") if ".history" not in path.name)
    return path


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
def test_a_damaged_or_foreign_index_is_made_again(kinetic, made_job, home, another_process, harm) -> None:
    job = made_job()
    listed(kinetic)
    index_of(home).write_bytes(harm)
    another_process()

    assert listed(kinetic) == {job: "SUCCEEDED"}
    assert job in json.loads(index_of(home).read_text())["jobs"]


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
    assert json.loads(index_of(home).read_text())["jobs"].keys() == {stays, new}


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
    assert [path.name for path in locate._indexes] == [index_of(home).name]
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
