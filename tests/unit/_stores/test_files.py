"""A folder store takes files over without ever losing the only copy, and reserves space that has no name."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kinetic
from kinetic._stores import put_hint, put_many
from kinetic._stores.files import FileStore
from kinetic._stores.protocol import SCRATCH
from kinetic._wire import folders
from kinetic.errors import StoreError, StoreUnreachableError


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "body"
    path.write_bytes(b"computed for hours")
    return path


def scratch(store: FileStore) -> list[str]:
    return sorted(path.name for path in store.scratch().iterdir() if path.name != ".creating")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE])
@pytest.mark.parametrize(("call", "if_absent"), [("link", True), ("replace", False), ("fsync", True), ("mkdir", True)])
def test_a_file_that_could_not_be_taken_over_stays_and_is_taken_over_later(
    store: FileStore, body: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str, if_absent: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreError):
            store.adopt("job/result.pkl", body, if_absent=if_absent)
    kept = body.read_bytes()
    later = store.adopt("job/result.pkl", body, if_absent=if_absent)

    assert kept == b"computed for hours"
    assert later
    assert store.get("job/result.pkl") == b"computed for hours"
    assert not body.exists()


def test_a_folder_that_cannot_be_synced_after_the_link_loses_nothing(
    store: FileStore, body: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def fail_for_folders(descriptor: int) -> None:
        calls.append(descriptor)
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    store.put("job/record", b"")  # its folder is there
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_for_folders)
        with pytest.raises(StoreUnreachableError):
            store.adopt("job/result.pkl", body, if_absent=True)

    assert calls
    assert body.read_bytes() == b"computed for hours"


def test_a_file_of_another_file_system_is_gone_only_when_its_copy_is_there(
    store: FileStore, body: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, away = os.link, [True]

    def link(source: str, target: str, **more: int) -> None:
        if source == os.fspath(body):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        if away:
            raise OSError(errno.EIO, "Input/output error")
        real(source, target, **more)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreUnreachableError):
        store.adopt("job/result.pkl", body, if_absent=True)
    kept, left = body.exists(), scratch(store)
    away.clear()
    taken = store.adopt("job/result.pkl", body, if_absent=True)

    assert (kept, left) == (True, [])
    assert (taken, body.exists()) == (True, False)
    assert store.get("job/result.pkl") == b"computed for hours"


def test_where_links_do_not_exist_a_file_of_another_folder_and_an_object_pass_the_same_gate(
    store: FileStore, body: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    first = store.adopt("job/result.pkl", body, if_absent=True)
    second = store.put("job/result.pkl", b"of somebody else", if_absent=True)

    assert (first, second) == (True, False)
    assert store.get("job/result.pkl") == b"computed for hours"
    assert not (body.parent / ".creating").exists()
    assert (store.scratch() / ".creating").exists()


AT_THE_GATE = """
import errno, fcntl, os, sys
from kinetic._stores.files import FileStore

def refuse(*_, **__):
    raise OSError(errno.EPERM, "Operation not permitted")

def waits(*arguments):
    print("waits", flush=True)
    lock(*arguments)

os.link, lock, fcntl.lockf = refuse, fcntl.lockf, waits
won = FileStore(sys.argv[1]).put("job/attempts/0", b"of another process", if_absent=True)
print("won" if won else "lost", flush=True)
"""


def test_where_links_do_not_exist_another_process_waits_while_one_creates_an_object(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, said, others = os.replace, [], []

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def replace(*arguments: object, **more: object) -> None:
        if not others:
            words = [sys.executable, "-c", AT_THE_GATE, str(store.root)]
            environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}
            others.append(subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True))
            said.append(others[0].stdout.readline())
        real(*arguments, **more)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "replace", replace)

    won = store.put("job/attempts/0", b"ours", if_absent=True)
    rest, _ = others[0].communicate(timeout=30)

    assert (won, said, rest) == (True, ["waits\n"], "lost\n")
    assert store.get("job/attempts/0") == b"ours"


def test_whose_link_was_made_though_the_answer_to_it_was_lost_knows_that_the_object_is_its_own(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def asked_twice(source: str, target: str, **more: int) -> None:  # as a client of NFS does without an answer
        real(source, target, **more)
        real(source, target, **more)

    store.put("job/theirs", b"theirs", if_absent=True)
    monkeypatch.setattr(os, "link", asked_twice)

    assert store.put("job/ours", b"ours", if_absent=True)
    assert not store.put("job/theirs", b"ours", if_absent=True)
    assert not store.put("job/ours", b"ours", if_absent=True)


def test_reserved_space_has_no_name_and_ends_with_its_descriptor(store: FileStore) -> None:
    descriptor = store.reserve(65_536)

    about = os.fstat(descriptor)
    os.close(descriptor)

    assert scratch(store) == []
    assert (about.st_size, about.st_nlink) == (65_536, 0)
    assert about.st_blocks * 512 >= 65_536


def test_an_object_of_odd_buffers_is_written_whole(store: FileStore) -> None:
    store.put("a", memoryview(b"12345678").cast("I"))
    store.put("b", memoryview(b""))
    store.put("c", iter([b"1", bytearray(b"23"), b""]))

    assert (store.get("a"), store.get("b"), store.get("c")) == (b"12345678", b"", b"123")


@pytest.mark.timeout(180)  # each of them is forced to the disk, which others may use as well
def test_many_threads_put_objects_into_new_folders_at_once(store: FileStore) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.put(f"job-{number}/deep/record", b"1"), range(3000)))

    assert sum(1 for _ in store.entries("")) == 3000


@pytest.mark.parametrize("if_absent", [True, False])
@pytest.mark.parametrize("moment", ["_place", "_into_place"], ids=["before it is opened", "once it is open"])
def test_a_folder_that_is_exchanged_for_a_link_is_not_written_through(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, if_absent: bool
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "result.pkl").write_text("dear")
    store.put("job/record", b"")
    folder, real = store.root / "job", getattr(FileStore, moment)

    def exchange(self: FileStore, *args: object, **named: object) -> object:
        folder.rename(tmp_path / "aside")
        folder.symlink_to(tmp_path / "theirs")
        return real(self, *args, **named)

    monkeypatch.setattr(FileStore, moment, exchange)

    with pytest.raises(StoreError) if moment == "_place" else contextlib.nullcontext():
        store.put("job/result.pkl", b"planted", if_absent=if_absent)

    assert (tmp_path / "theirs" / "result.pkl").read_text() == "dear"
    assert os.listdir(tmp_path / "theirs") == ["result.pkl"]


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is forced to the disk, in this order."""
    names: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def folders_of(forced: list[str], store: FileStore) -> list[str]:
    found = [os.path.relpath(name, store.root) for name in forced if f"/{SCRATCH}/" not in name]
    forced.clear()
    return found


def test_an_object_costs_one_forced_write_and_one_for_its_folder_and_an_empty_one_only_the_latter(
    store: FileStore, forced: list[str]
) -> None:
    store.put("job/order", b"1")
    forced.clear()

    store.put("job/record", b"1", if_absent=True)
    one = len(forced), folders_of(forced, store)
    store.put("job/mark", b"", if_absent=True)
    empty = len(forced), folders_of(forced, store)

    assert one == (2, ["job"])
    assert empty == (1, ["job"])


@pytest.mark.parametrize("many", [2, 40])
def test_many_objects_force_each_folder_once(store: FileStore, forced: list[str], many: int) -> None:
    store.put("first/order", b"1")
    forced.clear()

    put_many(store, [(f"job-{number}/{name}", b"1") for number in range(many) for name in ("order", "record")])

    assert len([name for name in forced if f"/{SCRATCH}/" in name]) == 2 * many
    assert sorted(folders_of(forced, store)) == sorted([".", *(f"job-{number}" for number in range(many))])


def test_a_file_that_is_taken_over_is_on_the_disk_before_its_name(
    store: FileStore, body: Path, forced: list[str]
) -> None:
    store.put("job/order", b"1")
    forced.clear()

    store.adopt("job/result.pkl", body, if_absent=True)

    assert forced == [str(body), str(store.root / "job")]


def test_a_folder_stays_known_while_others_are_deleted(store: FileStore, forced: list[str]) -> None:
    store.put("group/marks/0/1", b"")
    store.put("job/order", b"1")
    store.delete("job/")
    forced.clear()

    store.put("group/marks/0/2", b"")
    kept = folders_of(forced, store)
    store.put("job/order", b"1")

    assert kept == ["group/marks/0"]
    assert sorted(folders_of(forced, store)) == [".", "job"]


@pytest.mark.parametrize("deleted", ["job/", "job/order"])
def test_a_folder_that_was_deleted_and_made_again_is_forced_whichever_process_did_either(
    store: FileStore, forced: list[str], deleted: str
) -> None:
    other = FileStore(store.root)
    store.put("job/order", b"1")
    other.delete(deleted)
    forced.clear()
    store.put("job/order", b"1")
    after_another_process = folders_of(forced, store)

    store.delete(deleted)
    put_hint(other, "job/record")
    forced.clear()
    store.put("job/order", b"1")

    assert sorted(after_another_process) == sorted(folders_of(forced, store)) == [".", "job"]


def test_a_hint_forces_nothing_and_a_later_object_forces_the_folders_above(store: FileStore, forced: list[str]) -> None:
    store.put("job/order", b"1")
    forced.clear()

    put_hint(store, "marks/0/1")
    hint = folders_of(forced, store)
    store.put("marks/0/2", b"")

    assert hint == []
    assert sorted(folders_of(forced, store)) == [".", "marks", "marks/0"]


def test_who_finds_an_object_there_already_forces_it_before_relying_on_it(store: FileStore, forced: list[str]) -> None:
    put_hint(store, "job/page", b"not forced by its writer")
    forced.clear()

    assert not store.put("job/page", b"another", if_absent=True)
    assert "job/page" in folders_of(forced, store)
    entry = next(iter(store.entries("job/")))
    store.force(entry)
    assert {"job/page", "job"} <= set(folders_of(forced, store))
    store.force(entry)
    assert folders_of(forced, store) == []  # once is enough


@pytest.mark.parametrize("many", [False, True])
def test_who_finds_an_empty_object_there_already_forces_its_name(
    store: FileStore, forced: list[str], many: bool
) -> None:
    store.put("job/order", b"1")
    put_hint(store, "marks/0/1")
    forced.clear()

    left = (
        put_many(store, [("marks/0/1", b"")], if_absent=True) if many else store.put("marks/0/1", b"", if_absent=True)
    )

    assert left == (["marks/0/1"] if many else False)
    assert set(folders_of(forced, store)) == {".", "marks", "marks/0"}


def test_an_object_that_could_not_be_forced_does_not_count_as_forced(
    store: FileStore, forced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, "the disk")

    put_hint(store, "job/page", b"not forced by its writer")
    entry = next(iter(store.entries("job/")))
    with monkeypatch.context() as patch, contextlib.suppress(OSError), folders.forced_later():
        store.force(entry)
        patch.setattr(os, "fsync", fails)
    forced.clear()

    store.force(entry)

    assert "job/page" in folders_of(forced, store)


def test_a_folder_that_could_not_be_forced_is_forced_again_by_the_next(
    store: FileStore, forced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, "the disk")

    with monkeypatch.context() as patch, contextlib.suppress(OSError), folders.forced_later():
        store.put("job/page", b"1")
        patch.setattr(os, "fsync", fails)
    forced.clear()

    store.put("job/other", b"2")

    assert set(folders_of(forced, store)) >= {".", "job"}
