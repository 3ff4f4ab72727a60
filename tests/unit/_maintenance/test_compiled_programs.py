"""What of the compile cache is removed: what rests for long, and of too much what rests longest; never what is used."""

from __future__ import annotations

import hashlib
import os
import time

import pytest

from kinetic._maintenance import compiled_programs
from kinetic._maintenance.compiled_programs import Pruned
from kinetic._stores.files import FileStore
from kinetic._wire import cache_entries, keys
from kinetic._wire.cache_entries import Group
from kinetic.errors import StoreError

KEY = bytes(range(32))
DAY = 24 * 3600.0
NOW = time.time()
CPU = Group("jax", "cpu", "jax-1", "x86_64-1")
TPU = Group("jax", "tpu-v5e-1", "jax-1", "x86_64-1")


class Cache:
    def __init__(self, store: FileStore) -> None:
        self.store = store

    def add(self, path: str, data: bytes, days: float, group: Group = CPU, key: bytes = KEY) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        entry = cache_entries.sealed(group, path, sha256, len(data), key)
        assert entry is not None
        self.store.put(keys.compiled_blob(sha256), data)
        self.store.put(entry.key, b"")
        for name in (entry.key, keys.compiled_blob(sha256)):
            self.age(name, days)
        return entry.key

    def age(self, name: str, days: float) -> None:
        os.utime(self.store.root / name, (NOW - days * DAY, NOW - days * DAY))

    def paths(self) -> list[str]:
        found = (cache_entries.parse(each.key) for each in self.store.entries(keys.COMPILED_ENTRIES))
        return [entry.path for entry in found if entry is not None]

    def sizes(self) -> list[int]:
        return sorted(each.size for each in self.store.entries(keys.COMPILED_BLOBS))


@pytest.fixture
def cache(tmp_path) -> Cache:
    return Cache(FileStore(tmp_path / "store"))


def test_what_was_not_used_for_long_goes_with_its_bytes(cache) -> None:
    cache.add("old", b"x" * 10, days=61)
    cache.add("young", b"y" * 20, days=59)

    assert compiled_programs.prune(cache.store, NOW) == Pruned(1, 10)
    assert cache.paths() == ["young"]
    assert cache.sizes() == [20]


def test_of_too_much_what_rests_longest_goes_first_and_no_more_than_needed(cache) -> None:
    for number in range(4):
        cache.add(f"p{number}", bytes([number]) * 100, days=number + 1)

    assert compiled_programs.prune(cache.store, NOW, most_bytes=250) == Pruned(2, 200)
    assert cache.paths() == ["p0", "p1"]


def test_bytes_that_two_programs_share_stay_until_both_are_gone(cache) -> None:
    cache.add("one", b"same", days=61)
    cache.age(cache.add("two", b"same", days=1, group=TPU), 1)

    assert compiled_programs.prune(cache.store, NOW) == Pruned(1, 0)
    assert cache.sizes() == [4]
    assert compiled_programs.prune(cache.store, NOW, most_bytes=0) == Pruned(1, 4)
    assert cache.sizes() == []


def test_bytes_without_an_entry_stay_for_a_day_because_a_job_may_be_writing_it(cache) -> None:
    cache.store.put(keys.compiled_blob("11" * 32), b"fresh")
    cache.store.put(keys.compiled_blob("22" * 32), b"left by a killed job")
    cache.age(keys.compiled_blob("22" * 32), 2)

    assert compiled_programs.prune(cache.store, NOW) == Pruned(0, 20)
    assert cache.sizes() == [5]


def test_a_program_that_a_job_uses_while_it_would_be_removed_stays(cache, monkeypatch) -> None:
    key = cache.add("used", b"data", days=61)
    real = FileStore.entry

    def used_meanwhile(self, name):
        if name == key:
            os.utime(self.root / key)
        return real(self, name)

    monkeypatch.setattr(FileStore, "entry", used_meanwhile)

    assert compiled_programs.prune(cache.store, NOW) == Pruned(0, 0)
    assert cache.paths() == ["used"]
    assert cache.sizes() == [4]


def test_an_entry_that_cannot_be_removed_keeps_its_bytes_and_no_other_one(cache, monkeypatch) -> None:
    stuck = cache.add("stuck", b"1234", days=70)
    cache.add("free", b"12345", days=70)
    real = FileStore.delete

    def refuse(self, name):
        if name == stuck:
            raise StoreError("no")
        return real(self, name)

    monkeypatch.setattr(FileStore, "delete", refuse)

    assert compiled_programs.prune(cache.store, NOW) == Pruned(1, 5)
    assert cache.paths() == ["stuck"]
    assert cache.sizes() == [4]


def test_a_dry_run_says_the_same_and_removes_nothing(cache) -> None:
    cache.add("old", b"x" * 10, days=61)

    assert compiled_programs.prune(cache.store, NOW, dry_run=True) == Pruned(1, 10)
    assert cache.paths() == ["old"]


def test_names_that_nobody_understands_go_when_they_are_old(cache) -> None:
    cache.store.put(f"{keys.COMPILED_ENTRIES}junk", b"")
    cache.age(f"{keys.COMPILED_ENTRIES}junk", 61)

    assert compiled_programs.prune(cache.store, NOW) == Pruned(1, 0)
    assert list(cache.store.entries(keys.COMPILED)) == []


def test_usage_counts_by_group_and_leaves_out_what_another_key_sealed(cache) -> None:
    cache.add("a", b"12", days=2)
    cache.add("b", b"123", days=1)
    cache.add("c", b"1234", days=0.5, group=TPU, key=bytes(32))

    cpu, tpu = sorted(compiled_programs.usage(cache.store, KEY), key=lambda each: each.group.hardware)

    assert (cpu.files, cpu.size_bytes, cpu.unverified) == (2, 5, 0)
    assert abs(cpu.used_at - (NOW - DAY)) < 1
    assert (tpu.files, tpu.unverified) == (0, 1)
