"""What a job's log says while its data arrives: nothing where that is quick, and else lines at growing intervals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kinetic import _stores as stores
from kinetic._runner.data import provision, transfer
from kinetic._runner.data.mounted_data import JobFolders
from kinetic._runner.data.transfer import Transfer
from kinetic._stores import open_store
from kinetic._wire.order import DataRef


def test_a_transfer_says_how_far_it_is_after_5_seconds_and_then_less_and_less_often(capsys: Any) -> None:
    now = [0.0]
    fetching = Transfer("gs://acme/images/", 200 * 10**9, clock=lambda: now[0])
    said = []
    for second in range(200):
        now[0] = float(second)
        fetching.received(500 * 10**6)
        if line := capsys.readouterr().err:
            said.append((second, line))
    fetching.end()

    assert [second for second, _ in said] == [5, 15, 45, 105, 165]
    assert said[0][1] == "kinetic: fetching gs://acme/images/: 3.0 GB of 200.0 GB, 600.0 MB/s\n"
    assert capsys.readouterr().err == "kinetic: fetched gs://acme/images/: 100.0 GB in 199 s\n"


def test_a_short_transfer_says_nothing(capsys: Any) -> None:
    fetching = Transfer("data")
    fetching.received(10**9)
    fetching.end()

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("kind", "key", "told"), [("object", "data/a", "3.0 MB of 3.0 MB"), ("prefix", "data/", "3.0 MB")]
)
def test_what_a_bucket_gives_is_counted(
    kind: Any, key: str, told: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(transfer, "_PAUSES", (0.0,))
    store = open_store(f"memory://{os.urandom(6).hex()}")
    store.put("data/a", bytes(3_000_000))
    ref = DataRef(kind, f"{store.url}/{key}", key, "data", kind == "prefix")

    provision.provide([ref], JobFolders(folder=tmp_path / "job", cache=tmp_path / "cache", environ={}))

    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"kinetic: fetching {store.url}/{key}: {told}, ")
    assert said[-1].startswith(f"kinetic: fetched {store.url}/{key}: 3.0 MB in ")
    del stores._memory[store.url]
