"""The lease: one driver at a time, old only by the store's own clock, and the lower epoch stops."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kinetic._batches import control
from kinetic._stores.files import FileStore
from kinetic._wire import keys

GROUP, KEY = "grp-00000001", b"k" * 32


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KINETIC_MACHINE_ID", "here")


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "store")


def after(seconds):
    """Return a clock of the store that stands so much later than the last lease was touched."""

    def clock(store, group_id):
        return max(entry.modified for entry in store.entries(keys.leases(group_id))) + seconds

    return clock


def as_if_elsewhere(monkeypatch):
    """Let what follows happen on another machine: there the locks of this one cannot be seen."""
    monkeypatch.setenv("KINETIC_MACHINE_ID", "there")


def test_the_first_to_come_drives_and_the_second_does_not(store):
    first = control.take_lease(store, GROUP, KEY)

    assert first.epoch == 0
    assert first.is_ours()
    assert control.take_lease(store, GROUP, KEY) is None
    assert control.lease_holder(store, GROUP, KEY).pid == os.getpid()


def test_who_takes_a_lease_lists_them_once(store, monkeypatch):
    listed, entries = [], store.entries
    monkeypatch.setattr(store, "entries", lambda prefix: listed.append(prefix) or entries(prefix))

    assert control.take_lease(store, GROUP, KEY).epoch == 0
    assert listed == [keys.leases(GROUP)]


def test_a_lease_that_was_released_can_be_taken_at_once(store):
    control.take_lease(store, GROUP, KEY).release()

    second = control.take_lease(store, GROUP, KEY)

    assert second.epoch == 1
    assert second.is_ours()


def test_another_machine_waits_for_a_minute_by_the_clock_of_the_store(store, monkeypatch):
    first = control.take_lease(store, GROUP, KEY)
    as_if_elsewhere(monkeypatch)

    assert control.take_lease(store, GROUP, KEY, clock=after(control.OLD_SECONDS - 1)) is None
    second = control.take_lease(store, GROUP, KEY, clock=after(control.OLD_SECONDS + 1))

    assert second.epoch == 1
    assert second.is_ours()
    assert not first.is_ours()  # the lower epoch stops


def test_the_clock_of_this_machine_does_not_count(store, monkeypatch):
    control.take_lease(store, GROUP, KEY)
    as_if_elsewhere(monkeypatch)
    monkeypatch.setattr(time, "time", lambda: 4e9)  # a century ahead

    assert control.take_lease(store, GROUP, KEY) is None


def test_a_lease_that_is_touched_stays_young(store, monkeypatch):
    first = control.take_lease(store, GROUP, KEY)
    path = Path(store.root) / keys.lease(GROUP, 0)
    os.utime(path, (1000.0, 1000.0))
    later = time.monotonic() + control.TOUCH_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert first.is_ours()

    as_if_elsewhere(monkeypatch)
    assert control.take_lease(store, GROUP, KEY) is None


def test_a_lease_is_touched_at_once_when_its_machine_was_suspended(store, monkeypatch):
    first = control.take_lease(store, GROUP, KEY)
    path = Path(store.root) / keys.lease(GROUP, 0)
    os.utime(path, (1000.0, 1000.0))
    silent = control.lease_holder(store, GROUP, KEY)
    woken = time.time() + 3600  # the monotonic clock stops in a suspend
    monkeypatch.setattr(time, "time", lambda: woken)

    assert first.is_ours()

    assert (silent.lives, silent.is_silent) == (False, True)
    assert control.lease_holder(store, GROUP, KEY).lives


def test_a_driver_of_this_machine_that_was_killed_is_known_to_be_dead_at_once(store, tmp_path):
    code = (
        "import os, sys\n"
        "from kinetic._batches import control\n"
        "from kinetic._stores.files import FileStore\n"
        f"assert control.take_lease(FileStore(sys.argv[1]), {GROUP!r}, {KEY!r}).epoch == 0\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(store.root)], check=False)

    assert killed.returncode == -9
    assert not control.lease_holder(store, GROUP, KEY).lives
    assert control.take_lease(store, GROUP, KEY).epoch == 1


def test_of_many_that_take_over_at_the_same_time_one_drives(store):
    code = (
        "import sys, time\n"
        "from kinetic._batches import control\n"
        "from kinetic._stores.files import FileStore\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        f"held = control.take_lease(FileStore(sys.argv[1]), {GROUP!r}, {KEY!r})\n"
        "print('drives' if held is not None and held.is_ours() else 'watches', flush=True)\n"
        "sys.stdin.readline()"
    )
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(store.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for taker in takers:
        assert taker.stdout.readline() == "ready\n"
    for taker in takers:
        taker.stdin.write("go\n")
        taker.stdin.flush()
    said = [taker.stdout.readline().strip() for taker in takers]
    for taker in takers:
        taker.communicate("end\n")

    assert sorted(said) == ["drives", *["watches"] * 5]


def test_a_listing_from_before_the_lease_ends_no_driver(store, monkeypatch):
    lease = control.take_lease(store, GROUP, KEY)
    monkeypatch.setattr(store, "entries", lambda _: iter(()))

    assert lease.is_ours()


def test_a_batch_that_was_removed_is_driven_by_nobody(store):
    first = control.take_lease(store, GROUP, KEY)
    store.delete(keys.group(GROUP))

    assert not first.is_ours()
    first.release()
    assert [*store.entries(keys.group(GROUP))] == []


@pytest.mark.parametrize(
    "page",
    [
        b"not a page",
        b"",
        b"[" * 200_000,
        b'{"schema":1,"epoch":0,"machine":"there","name":"there","pid":1,"released":false}',
        b'{"schema":1,"epoch":null,"mac":"\xc3\xa9"}',
    ],
)
def test_what_is_no_lease_of_ours_neither_ends_a_driver_nor_keeps_one_from_driving(folder_or_bucket, page):
    store = folder_or_bucket
    store.put(keys.lease(GROUP, 0), page)
    store.put(f"{keys.leases(GROUP)}nonsense", page)

    held = control.take_lease(store, GROUP, KEY, clock=after(1))
    store.put(keys.lease(GROUP, 999_999), page)

    assert held.epoch == 1
    assert held.is_ours()
    assert control.lease_holder(store, GROUP, KEY).epoch == 1


def test_a_lease_of_another_batch_or_epoch_is_none_of_this_one(folder_or_bucket):
    store = folder_or_bucket
    first = control.take_lease(store, GROUP, KEY)
    copied = store.get(keys.lease(GROUP, 0))
    store.put(keys.lease(GROUP, 5), copied)
    store.put(keys.lease("grp-00000002", 0), copied)

    assert first.is_ours()
    assert control.lease_holder(store, "grp-00000002", KEY) is None


def test_patience_with_a_silent_driver_elsewhere_ends_with_the_lease(store, monkeypatch):
    control.take_lease(store, GROUP, KEY)
    path = Path(store.root) / keys.lease(GROUP, 0)
    as_if_elsewhere(monkeypatch)
    waited = []

    def wait(seconds):
        waited.append(seconds)
        then = time.time() - 61
        os.utime(path, (then, then))

    monkeypatch.setattr(control.time, "sleep", wait)

    # its touch moved into the past, which is no sign of life
    assert control.wait_for_lease(store, GROUP, KEY).epoch == 1
    assert len(waited) == 1


def test_patience_ends_when_the_driver_elsewhere_shows_that_it_lives(store, monkeypatch):
    first = control.take_lease(store, GROUP, KEY)
    as_if_elsewhere(monkeypatch)
    monkeypatch.setattr(control.time, "sleep", lambda seconds: store.touch(keys.lease(GROUP, 0)))

    assert control.wait_for_lease(store, GROUP, KEY) is None
    assert first.is_ours()
