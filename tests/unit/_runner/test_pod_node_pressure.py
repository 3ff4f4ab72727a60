"""Shortage: what a machine is short of, and whether that lasts from one attempt to the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic._runner.pod import container
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic._wire.outcomes import AttemptNote

JOB = "cpu-train-20261121-120000-abcdef0"
KEY = b"k" * 32


def meminfo(folder: Path, available_kib: int) -> Path:
    written = folder / "meminfo"
    written.write_text(f"MemTotal:  400000000 kB\nMemAvailable:  {available_kib} kB\nHugePages_Total:  0\n")
    return written


def roomy(_: object) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, 1000, 500, 500, 100, 50, 50, 0, 255))


def attempts(*short_of: str) -> MemoryStore:
    store = MemoryStore("memory://job")
    for attempt, lacking in enumerate(short_of):
        details: dict[str, object] = {container.SHORT_OF: lacking} if lacking else {}
        note = AttemptNote(JOB, attempt, "machine", 0.0, details=details)
        store.put(note.key, note.to_bytes(KEY))
    return store


def after(store: MemoryStore, attempt: int) -> str:
    return container.lasting_shortage(store, AttemptNote(JOB, attempt, "machine", 0.0), KEY)


@pytest.mark.parametrize(("kib", "lacking"), [(100 << 10, ("memory",)), (40 << 20, ())])
def test_a_machine_whose_memory_is_all_but_used_is_short_of_it(tmp_path, monkeypatch, kib, lacking) -> None:
    monkeypatch.setattr(os, "statvfs", roomy)

    assert container.shortages(tmp_path, meminfo(tmp_path, kib)) == lacking


def test_a_machine_whose_disk_is_all_but_full_is_short_of_it(tmp_path, monkeypatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 120, 90, 100, 50, 50, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)

    assert container.shortages(tmp_path, meminfo(tmp_path, 40 << 20)) == ("disk",)


def test_where_nothing_says_so_nothing_is_short(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "statvfs", roomy)

    assert container.shortages(tmp_path, tmp_path / "missing") == ()


@pytest.mark.parametrize(
    ("before", "lasts"),
    [
        ((), ""),
        (("memory", "memory"), ""),
        (("memory", "memory", "memory"), "memory"),
        (("", "disk", "memory", "disk"), "disk"),
        (("memory", "memory", "", "memory"), ""),  # one that was only preempted
    ],
)
def test_a_shortage_lasts_when_three_attempts_in_a_row_ended_by_it(before, lasts) -> None:
    assert after(attempts(*before), len(before)) == lasts


def test_a_note_that_is_gone_proves_nothing() -> None:
    store = attempts("memory", "memory", "memory")
    store.delete(keys.attempt(JOB, 1))

    assert after(store, 3) == ""


@pytest.mark.parametrize(("seconds", "gives_up"), [([5.0] * 10, True), ([5.0] * 9, False), ([5.0] * 9 + [90.0], False)])
def test_a_slice_whose_attempts_all_end_within_a_minute_gives_up(seconds: list[float], gives_up) -> None:
    store = MemoryStore("memory://job")
    for attempt, lasted in enumerate(seconds):
        details: dict[str, object] = {"ended": 100.0 + lasted, container.WHY: f"it was stopped {attempt}"}
        note = AttemptNote(JOB, attempt, "machine", 100.0, details=details)
        store.put(note.key, note.to_bytes(KEY))

    found = container.brief_attempts(store, AttemptNote(JOB, len(seconds), "machine", 0.0), KEY)

    assert found == ("it was stopped 9" if gives_up else "")
