"""`kinetic disk`: every file has its row, old results are named, and --clean removes what nobody needs."""

from __future__ import annotations

import functools
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from kinetic._jobs import locate, status
from kinetic._maintenance import garbage_collection, usage
from kinetic._stores.files import FileStore

DAY = 24 * 3600.0


@pytest.fixture
def fill(home):
    """Return a function that writes files: path below the home, and how many bytes."""

    def put(files: dict[str, int]) -> None:
        for name, size in files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)

    return put


def look(home: Path) -> usage.Usage:
    store = FileStore(home / "store")
    return usage.measure(home, locate.runtime(), store, functools.partial(status.value_age, store))


def holdings(found: usage.Usage) -> dict[str, tuple[int, int]]:
    return {holding.name: (holding.count, holding.size_bytes) for holding in found.holdings if holding.units}


def test_every_kind_of_file_has_its_row(home, fill) -> None:
    run = locate.runtime().relative_to(home)
    fill(
        {
            "store/data/blobs/aa": 1,
            "store/data/blobs/bb": 1,
            "store/outputs/job-1/a/model.bin": 2,
            "store/outputs/job-1/log.txt": 2,
            "store/history/job-0.json": 3,
            "store/data/blobs/ff": 20,
            "store/data/manifests/aa/bb": 20,
            "store/_groups/grp-1/manifest.json": 21,
            "store/_groups/grp-1/inputs/00000": 21,
            "store/job-1/handle.json": 4,
            "store/job-1/order.json": 4,
            "store/job-1/logs/0/0/000000000000": 5,
            "store/.tmp/half": 6,
            f"{run}/jobs/job-2/log-0-0": 7,
            f"{run}/jobs/job-2/work-0-0/train.py": 8,
            f"{run}/jobs/job-2/work-0-0/data/x": 8,
            f"{run}/jobs/job-2/launch.json": 9,
            f"{run}/jobs/job-2/data-0-0/0/set/a": 8,
            f"{run}/data/files/aa": 22,
            f"{run}/groups/grp-1.json": 21,
            f"{run}/queue.db": 10,
            f"{run}/runners/abc/kinetic/x.py": 11,
            f"{run}/environments/e1/lib/x.so": 12,
            "cache/environments/e2/lib/y.so": 12,
            "run/another-host/queue.db": 13,
            "run/another-host/jobs/job-3/log-0-0": 14,
            "cache/p.json": 15,
            "cache/aa.contents": 16,
            "keys/k1": 17,
            "profiles.json": 18,
            "notes/mine.txt": 19,
        }
    )

    assert holdings(look(home)) == {
        "jobs": (1, 8),
        "logs": (3, 26),
        "outputs": (1, 4),
        "history": (1, 3),
        "working folders": (2, 24),
        "data": (4, 42),
        "fetched data": (1, 22),
        "batches": (1, 63),
        "runner code": (1, 11),
        "environments": (2, 24),
        "caches": (2, 31),
        "queue": (3, 32),
        "keys and settings": (2, 35),
        "being written": (1, 6),
        "other": (1, 19),
    }


def test_the_rows_add_up_to_all_that_is_there(home, fill, made_job) -> None:
    made_job(log="hello\n")
    made_job("failed")
    fill({"whatever/there/is": 1000, "store/unknown": 5})

    found = look(home)

    assert found.size_bytes == sum(path.stat().st_size for path in home.rglob("*") if path.is_file())


def test_values_that_wait_are_told_from_failures(home, made_job) -> None:
    value, failed, cancelled = made_job(days=3), made_job("failed"), made_job("cancelled")

    found = look(home)

    assert [result.job_id for result in found.waiting] == [value]
    assert holdings(found)["results"][0] == 1
    assert holdings(found)["failures"][0] == 2
    assert {failed, cancelled} == next(h for h in found.holdings if h.name == "failures").units


def test_a_result_that_cannot_be_read_counts_as_one_that_waits(home, made_job, fill) -> None:
    fill({"store/cpu-train-1/result.pkl": 5})

    assert [result.job_id for result in look(home).waiting] == ["cpu-train-1"]


def test_a_file_with_two_names_counts_once(home, fill) -> None:
    fill({"cache/environments/a/lib.so": 100})
    (home / "cache" / "environments" / "b").mkdir()
    os.link(home / "cache/environments/a/lib.so", home / "cache/environments/b/lib.so")

    assert look(home).size_bytes == 100


def test_a_runtime_folder_outside_the_home_is_looked_through_as_well(home, tmp_path, monkeypatch, fill) -> None:
    monkeypatch.setenv("KINETIC_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "queue.db").write_bytes(b"12")
    fill({"keys/k": 1})

    found = look(home)

    assert holdings(found) == {"queue": (1, 2), "keys and settings": (1, 1)}
    assert set(found.places) == {home, tmp_path / "elsewhere"}


def test_a_link_is_not_followed(home, tmp_path, fill) -> None:
    (tmp_path / "big").write_bytes(b"x" * 1000)
    fill({"keys/k": 1})
    (home / "link").symlink_to(tmp_path / "big")

    assert look(home).size_bytes == 1


# ------------------------------------------------------------------------------------------- many jobs that are kept


@pytest.fixture
def folders_read(monkeypatch) -> list[str]:
    """Collect the folders whose files are looked at."""
    read: list[str] = []
    scandir = os.scandir

    def counting(path: str) -> Any:
        read.append(os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    return read


@pytest.fixture
def kept_jobs(made_job, home) -> list[str]:
    """Jobs enough for an index, and folders that have been left alone for a moment."""
    made = [made_job(log="hello\n", days=number) for number in range(27)]
    made += [made_job("failed", days=number) for number in range(3)]
    long_ago = time.time() - DAY
    for folder, _, _ in os.walk(home / "store"):
        os.utime(folder, (long_ago, long_ago))
    return made


def report(kinetic) -> dict[str, Any]:
    told = kinetic("disk", "--json")
    assert told.exit_code == 0, told.output
    page: dict[str, Any] = json.loads(told.stdout)
    page["holdings"] = [holding for holding in page["holdings"] if holding["what"] != "caches"]  # the index itself
    del page["size_bytes"]
    return page


def test_a_second_report_looks_at_no_file_of_a_kept_job(kinetic, kept_jobs, home, folders_read) -> None:
    first = report(kinetic)
    folders_read.clear()

    assert report(kinetic) == first
    assert [folder for folder in folders_read if any(job in folder for job in kept_jobs)] == []


def test_a_report_from_the_index_says_what_one_without_it_says(kinetic, kept_jobs, home, made_job) -> None:
    report(kinetic)
    store = home / "store"
    shutil.rmtree(store / kept_jobs[3])
    (store / kept_jobs[4] / "result.pkl").unlink()
    (store / kept_jobs[5] / "logs/0/0/000000000006").write_bytes(b"x" * 77)
    made_job(value="new")

    by_index = report(kinetic)

    shutil.rmtree(home / "index")
    assert by_index == report(kinetic)
    assert len(by_index["waiting_results"]) == 27 - 2 + 1


@pytest.mark.parametrize("text", ["", "[", "[]", '{"schema": 1}', "damaged rows", "rows of another version"])
def test_a_damaged_index_is_made_again(kinetic, kept_jobs, home, folders_read, text) -> None:
    first = report(kinetic)
    (path,) = home.glob("index/*.folders.json")
    page = json.loads(path.read_bytes())
    rows = {"damaged rows": [["jobs", 1, "x"]], "rows of another version": [["treasure", [], 1, 1.0]]}
    if text in rows:
        page["folders"] = {name: [*known[:4], rows[text], *known[5:]] for name, known in page["folders"].items()}
    path.write_text(json.dumps(page) if text in rows else text)

    assert report(kinetic) == first
    folders_read.clear()
    assert report(kinetic) == first
    assert [folder for folder in folders_read if any(job in folder for job in kept_jobs)] == []


def test_a_file_that_got_a_second_name_later_counts_once(kinetic, kept_jobs, home) -> None:
    before = report(kinetic)
    (home / "mine").mkdir()
    os.link(home / "store" / kept_jobs[0] / "result.pkl", home / "mine" / "result.pkl")
    os.link(home / "store" / kept_jobs[1] / "result.pkl", home / "store" / kept_jobs[2] / "copy.pkl")

    sizes = [sum(holding["size_bytes"] for holding in page["holdings"]) for page in (before, report(kinetic))]

    assert sizes[0] == sizes[1]


# --------------------------------------------------------------------------------------------------------- the command


def test_the_table_says_what_holds_how_much_and_why(kinetic, made_job) -> None:
    made_job(days=2)

    told = kinetic("disk")

    assert told.exit_code == 0
    row = next(line for line in told.stdout.splitlines() if line.startswith("results"))
    assert row.split()[1] == "1"
    assert "until result() or kinetic jobs cleanup" in row
    assert "warning" not in told.stderr


def test_results_that_have_waited_for_a_month_are_named_with_the_command_that_removes_them(kinetic, made_job) -> None:
    old = [made_job(days=31 + number) for number in range(7)]
    made_job(days=29)

    told = kinetic("disk")

    assert "warning: 7 results were not collected for more than 30 days" in told.stderr
    assert f"{old[6]}, {old[5]}" in told.stderr
    assert "and 2 more" in told.stderr
    assert f"kinetic jobs result {old[6]}" in told.stderr
    assert "kinetic jobs cleanup --all --older-than 30d" in told.stderr


def test_failed_jobs_are_no_reason_to_warn(kinetic, made_job) -> None:
    made_job("failed", days=100)

    assert "warning" not in kinetic("disk").stderr


def test_the_command_that_is_named_removes_exactly_the_old_ones(kinetic, made_job) -> None:
    made_job(days=31)
    new = made_job(days=29)

    kinetic("jobs", "cleanup", "--all", "--older-than", "30d", "--yes")

    page = json.loads(kinetic("disk", "--json").stdout)
    assert [result["job_id"] for result in page["waiting_results"]] == [new]


def test_as_json_everything_is_there(kinetic, made_job, home) -> None:
    job_id = made_job(days=31)

    told = kinetic("disk", "--json")

    page = json.loads(told.stdout)
    assert page["places"] == [str(home)]
    assert page["removed"] is None
    assert {holding["what"] for holding in page["holdings"]} == {rule.name for rule in garbage_collection.RULES}
    assert [(result["job_id"], result["overdue"]) for result in page["waiting_results"]] == [(job_id, True)]


def test_clean_removes_what_nobody_needs_and_says_what(kinetic, made_job, fill, home) -> None:
    job_id = made_job(days=100)
    page, spare = f"cache/{16 * 'ab'}.json", f"store/data/blobs/{32 * 'ab'}"
    fill({spare: 2048, page: 1024, "store/outputs/x/y": 1})
    for name in (spare, page, "store/outputs/x/y"):
        os.utime(home / name, (time.time() - 100 * DAY,) * 2)

    told = kinetic("disk", "--clean")

    assert "removed: 1 page of the cache, 1 blob of data; 3.1 kB" in told.stderr
    assert not (home / spare).exists()
    assert (home / "store/outputs/x/y").exists()
    assert (home / "store" / job_id / "result.pkl").exists()


def test_clean_with_nothing_to_do_says_so(kinetic, home) -> None:
    assert "there was nothing to remove" in kinetic("disk", "--clean").stderr


def test_looking_makes_nothing(kinetic, home) -> None:
    told = kinetic("disk")

    assert told.exit_code == 0
    assert not home.exists()
