"""What `kinetic top` says of jobs: their last samples, hosts together, and only what is known."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kinetic._cli import top
from kinetic._cli.top import Looker, Row, Seen, now_of, summary, table_of
from kinetic._jobs.resource_usage import DeviceSample, HostUsage, Usage, UsageDevice, UsageSample
from kinetic._wire.progress import Progress

GIB = 1 << 30


def host(number: int = 0, *samples: UsageSample, disk: int = 100 * GIB, devices: int = 0) -> HostUsage:
    gpus = tuple(UsageDevice("gpu", "H100", 80 * GIB) for _ in range(devices))
    return HostUsage(number, 1.8e9, 9.0, 5.0, 4.0, 16 * GIB, disk, gpus, "processes", samples)


def sample(cpu: float, memory: int | None, used: int | None, *devices: tuple[float | None, int | None]) -> UsageSample:
    return UsageSample(1.0, cpu, memory, 0, 0, used, tuple(DeviceSample(*device) for device in devices))


def row(job_id: str, usage: Usage | None, status: str = "RUNNING", **more: Any) -> Row:
    page = {"job_id": job_id, "function": "train", "name": None, "command": None, "status": status, "group_index": None}
    return Row({**page, "duration_seconds": 75.0, **more}, usage)


def usage(*hosts: HostUsage) -> Usage:
    return Usage("cpu-x", 0, hosts)


def test_of_several_hosts_cpu_and_memory_are_added_and_the_fullest_disk_counts() -> None:
    first = host(0, sample(900, 1, 1), sample(100, 2 * GIB, 90 * GIB))
    second = host(1, sample(50, 3 * GIB, 99 * GIB), disk=1000 * GIB)

    now = now_of(usage(first, second))

    assert now is not None
    assert (now.cpu_percent, now.cores, now.memory_bytes) == (150, 8.0, 5 * GIB)
    assert (now.disk_used_bytes, now.disk_bytes) == (90 * GIB, 100 * GIB)
    assert now.device_percent is None


def test_devices_are_a_mean_and_a_sum_and_one_that_does_not_tell_counts_for_nothing() -> None:
    now = now_of(usage(host(0, sample(1, 1, 1, (90.0, GIB), (70.0, GIB), (None, None)), devices=3)))

    assert now is not None
    assert (now.device_percent, now.device_memory_bytes) == (80.0, 2 * GIB)


def test_a_command_is_named_as_in_the_list_of_jobs() -> None:
    command = ["python", "train.py", "--lr", "1e-3"]

    _, rows = table_of([row("cpu-a", None, command=command), row("cpu-b", None, command=command, name="mine")])

    assert [cells[1] for cells in rows] == ["python train.py --lr 1e-3", "mine"]


def test_a_job_of_which_nothing_is_known_yet_has_empty_cells() -> None:
    columns, rows = table_of([row("cpu-a", None), row("cpu-b", usage(host()))])

    assert [column.name for column in columns] == ["JOB ID", "FUNCTION", "STATUS", "CPU", "MEMORY", "DISK", "TIME"]
    assert rows == [
        ["cpu-a", "train", "RUNNING", "", "", "", "1m 15s"],
        ["cpu-b", "train", "RUNNING", *[""] * 3, "1m 15s"],
    ]


def test_a_column_of_devices_is_there_where_a_job_has_some() -> None:
    busy = usage(host(0, sample(312, 6 * GIB, None, (97.0, 71 * GIB)), devices=1))

    columns, rows = table_of([row("gpu-a", busy, name="sweep", group_index=7)])

    assert columns[5].name == "GPU/TPU"
    assert rows == [["gpu-a", "sweep [7]", "RUNNING", "312 %", "6.4 GB of 17.2 GB", "97 %, 76.2 GB", "", "1m 15s"]]


def test_the_sum_is_only_shown_where_it_is_one() -> None:
    rows = [row("cpu-a", usage(host(0, sample(150, 2 * GIB, 1)))), row("cpu-b", None, "PENDING")]

    assert summary(rows, 5) == "1 job running, 1 pending; CPU 150 %; memory 2.1 GB"
    assert summary(rows, 0) == "1 job running, 1 pending"
    assert summary([], 5) == "0 jobs running"


def test_what_a_pod_wrote_is_not_read_more_often_than_it_changes(monkeypatch: Any) -> None:
    clock, read = [0.0], []
    looker = Looker({}, lambda: clock[0])
    monkeypatch.setattr(Looker, "_look_at", staticmethod(lambda job: read.append(job.backend) or Seen(usage())))
    pod, here = (type("Job", (), {"job_id": name, "backend": name})() for name in ("gke", "local"))
    for seconds in (0.0, 2.0, 4.0, 6.0):
        clock[0] = seconds
        list(looker._seen([pod, here]))

    assert read.count("gke") == 2
    assert read.count("local") == 4


def test_a_job_whose_usage_cannot_be_read_is_shown_all_the_same(monkeypatch: Any) -> None:
    def fails(_: Any) -> Seen:
        raise top.KineticError("the store is away")

    monkeypatch.setattr(Looker, "_look_at", staticmethod(fails))
    job = type("Job", (), {"job_id": "a", "backend": "local"})()

    assert list(Looker({})._seen([job])) == [Seen()]


def test_a_job_that_reports_its_progress_shows_its_share_and_the_time_that_is_left() -> None:
    now = time.time()
    reported = Progress(40.0, 100.0, at=now, began=now - 80)
    jobs = [Row(row("cpu-a", None).page, None, reported), row("cpu-b", None)]

    columns, rows = table_of(jobs)

    assert [column.name for column in columns][-2:] == ["DONE", "LEFT"]
    assert rows[0][-2] == "40 %"
    assert rows[0][-1].startswith(("2m 00s", "1m 59s"))
    assert rows[1][-2:] == ["", ""]


@pytest.mark.parametrize("typed", ["0", "0.5s", "2"])
def test_an_interval_that_is_too_short_is_refused_with_the_shortest(typed, kinetic) -> None:
    told = kinetic("top", "--interval", typed)

    assert (told.exit_code, "such as 2s, and at least 1s" in told.stderr) == (2, True), told.stderr
