"""Files below an address, while the job runs and at its end, with a store of files in the bucket's place."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic._runner.supervisor import output_files
from kinetic._runner.supervisor.output_files import OutputFiles
from kinetic._stores.memory import MemoryStore
from kinetic._stores.protocol import Store
from kinetic._wire import documents
from kinetic._wire.order import OUTPUT_PAGES
from kinetic._wire.task import Task

JOB = "cpu-train-20261128-120000-abcdef0"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task whose function has begun, in the folder in which it writes."""
    monkeypatch.setattr(output_files, "PAUSE_SECONDS", 0.05)
    work, base = tmp_path / "work", tmp_path / "base"
    for folder in (work, base):
        folder.mkdir()
    monkeypatch.chdir(work)
    address = f"file://{tmp_path}/bucket/{JOB}"
    environment = {"KINETIC_OUTPUT_DIR": address, "KINETIC_CHECKPOINT_DIR": f"{address}/checkpoints"}
    made = Task(JOB, "0" * 64, f"file://{tmp_path}/store", "key", 0o022, None, environment, base=str(base))
    output_files.prepare(made, print)
    made.began.touch()
    made.log.touch()
    return made


@pytest.fixture
def bucket(task: Task, tmp_path: Path) -> Path:
    return tmp_path / "bucket" / JOB


def until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


def is_there(path: Path, text: str) -> Callable[[], bool]:
    return lambda: path.is_file() and path.read_text() == text


def test_a_file_that_has_settled_is_sent_while_the_job_runs_and_one_that_was_removed_is_removed(
    task: Task, bucket: Path
) -> None:
    address = task.environment["KINETIC_OUTPUT_DIR"]
    sending = OutputFiles(task)
    sending.start()

    with open(f"{address}/model.bin.part", "w") as file:
        file.write("weights")
    until(is_there(bucket / "model.bin.part", "weights"))
    os.replace(f"{address}/model.bin.part", f"{address}/model.bin")
    until(is_there(bucket / "model.bin", "weights"))
    until(lambda: not (bucket / "model.bin.part").exists())
    Path(address, "checkpoints", "last").write_text("step 7")

    assert sending.finish(lambda _: False) == ""
    assert (bucket / "checkpoints" / "last").read_text() == "step 7"


def test_a_file_that_is_written_all_the_time_is_sent_at_the_end(task: Task, bucket: Path) -> None:
    sending = OutputFiles(task)
    for number in range(3):
        Path(task.environment["KINETIC_OUTPUT_DIR"], "log").write_text("x" * number)
        assert sending._send(last=False)
    assert not (bucket / "log").exists()

    assert sending._send(last=True)
    assert (bucket / "log").read_text() == "xx"


def test_a_file_that_is_replaced_all_the_time_is_sent_with_each_look(task: Task, bucket: Path) -> None:
    state = Path(task.environment["KINETIC_OUTPUT_DIR"], "state")
    sending = OutputFiles(task)
    for step in range(3):
        part = state.with_suffix(".part")
        part.write_text(str(step))
        part.replace(state)
        assert sending._send(last=False)
        assert [file.read_text() for file in bucket.glob("state")] == ([str(step)] if step else [])


def test_a_file_that_replaces_another_one_of_its_size_within_the_second_of_a_file_system_is_sent(
    task: Task, bucket: Path
) -> None:
    state, sending = Path(task.environment["KINETIC_OUTPUT_DIR"], "state"), OutputFiles(task)
    for step in range(3):
        part = state.with_suffix(".part")
        part.write_text(str(step))
        os.utime(part, (1_800_000_000, 1_800_000_000))
        part.replace(state)
        assert sending._send(last=step == 2)

    assert (bucket / "state").read_text() == "2"


def test_a_log_that_is_written_all_the_time_is_sent_once_a_minute(task: Task, bucket: Path, monkeypatch) -> None:
    monkeypatch.setattr(output_files, "_LONGEST_SECONDS", 0.0)
    log = Path(task.environment["KINETIC_OUTPUT_DIR"], "log")
    sending = OutputFiles(task)
    for number in range(3):
        log.write_text("x" * number)
        assert sending._send(last=False)
    assert (bucket / "log").read_text() == "xx"


def test_a_checkpoint_that_takes_minutes_to_send_does_not_hold_the_next_one_back_for_an_hour(
    task: Task, monkeypatch
) -> None:
    """Unlike a look at hundreds of thousands of files, which is repeated after ten times its own time."""
    now, pauses = 100.0, list[float]()
    monkeypatch.setattr(
        output_files, "time", SimpleNamespace(monotonic=lambda: now, thread_time=time.thread_time, sleep=lambda _: None)
    )
    open_store = output_files.open_store

    def open_slowly(address: str) -> object:
        nonlocal now
        now += 200.0
        return open_store(address)

    monkeypatch.setattr(output_files, "open_store", open_slowly)
    sending = OutputFiles(task)
    Path(task.environment["KINETIC_OUTPUT_DIR"], "model").write_text("weights")
    last = SimpleNamespace(wait=lambda pause: pauses.append(pause) or len(pauses) > 2)
    monkeypatch.setattr(sending, "_last", last)

    sending.run()

    assert now > 200
    assert max(pauses) < 1.0


def test_what_was_sent_stays_where_the_whole_folder_is_removed(task: Task, bucket: Path) -> None:
    folder = Path(task.environment["KINETIC_OUTPUT_DIR"])
    (folder / "model").write_text("weights")
    sending = OutputFiles(task)
    assert sending._send(last=True)

    shutil.rmtree(folder)

    assert sending._send(last=True)
    assert (bucket / "model").read_text() == "weights"


def test_a_page_that_could_not_be_written_is_written_with_the_next_look(task: Task, bucket: Path) -> None:
    Path(task.environment["KINETIC_OUTPUT_DIR"], "model").write_text("weights")
    bucket.mkdir(parents=True)
    (bucket / ".kinetic-files").write_text("a file is where its folder should be")
    sending = OutputFiles(task)
    assert not sending._send(last=True)
    assert (bucket / "model").read_text() == "weights"

    (bucket / ".kinetic-files").unlink()

    assert sending._send(last=True)
    assert '"model"' in (bucket / ".kinetic-files" / "0.json").read_text()


def test_a_project_with_a_file_where_the_folder_should_be_is_told(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    Path("file:").write_text("of the project")
    said: list[str] = []

    output_files.prepare(task, said.append)

    assert "are not sent there" in said[0]


def test_a_name_that_no_bucket_takes_is_told_and_holds_nothing_up(task: Task, bucket: Path) -> None:
    folder = Path(task.environment["KINETIC_OUTPUT_DIR"])
    (folder / "two\nlines").write_text("")
    (folder / "good").write_text("")
    sending = OutputFiles(task)
    sending.start()

    trouble = sending.finish(lambda _: False)

    assert "two\nlines: " in trouble
    assert [path.name for path in bucket.iterdir() if path.is_file()] == ["good"]


def test_a_bucket_that_takes_nothing_is_told_once_there_is_no_time_left(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_AGAIN_SECONDS", "_LAST_SECONDS"):  # which pass in vain
        monkeypatch.setattr(output_files, name, 0.05)
    Path(task.environment["KINETIC_OUTPUT_DIR"], "lost").write_text("")
    (tmp_path / "bucket").write_text("a file is where its folder should be")
    sending = OutputFiles(task)
    sending.start()

    assert sending.finish(lambda _: "files cannot be sent to file://" in task.log.read_text())


def test_a_look_that_failed_while_the_job_ran_is_not_reported_while_its_files_are_being_sent(
    task: Task, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(task.environment["KINETIC_OUTPUT_DIR"], "model").write_text("weights")
    (tmp_path / "bucket").write_text("a file is where its folder should be")
    sending, is_looked_at = OutputFiles(task), threading.Event()
    assert not sending._send(last=True)
    (tmp_path / "bucket").unlink()
    send = sending._send_file

    def send_slowly(store: Store, path: str) -> str:
        assert is_looked_at.wait(20)
        return send(store, path)

    looks = iter([lambda: None, is_looked_at.set])

    def wait(_: float) -> bool:
        next(looks, is_looked_at.is_set)()
        return False

    monkeypatch.setattr(sending, "_send_file", send_slowly)
    sending.start()

    assert sending.finish(wait) == ""
    assert (bucket / "model").read_text() == "weights"
    assert task.log.read_text() == ""


def test_the_job_ends_when_its_files_have_arrived_and_not_a_pause_later(
    task: Task, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(task.environment["KINETIC_OUTPUT_DIR"], "model").write_text("weights")
    sending, is_looked_at, pauses = OutputFiles(task), threading.Event(), list[float]()
    send = sending._send_file

    def send_slowly(store: Store, path: str) -> str:
        assert is_looked_at.wait(20)
        return send(store, path)

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        is_looked_at.set()
        return False

    monkeypatch.setattr(sending, "_send_file", send_slowly)
    sending.start()

    assert sending.finish(wait) == ""
    assert (bucket / "model").read_text() == "weights"
    assert sum(pauses) == 0


def test_an_error_that_is_over_is_not_reported_at_the_end(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(task.environment["KINETIC_OUTPUT_DIR"], "model").write_text("weights")
    (tmp_path / "bucket").write_text("a file is where its folder should be")
    sending = OutputFiles(task)
    assert not sending._send(last=True)
    (tmp_path / "bucket").unlink()
    assert sending._send(last=True)
    monkeypatch.setattr(sending, "is_alive", lambda: next(states))
    states = iter([True, True, False, False])
    monkeypatch.setattr(sending, "join", lambda _: None)

    assert sending.finish(lambda _: False) == ""
    assert task.log.read_text() == ""


def test_nothing_is_sent_of_a_job_whose_function_never_began(task: Task, bucket: Path) -> None:
    task.began.unlink()
    Path(task.environment["KINETIC_OUTPUT_DIR"], "model").write_text("")
    sending = OutputFiles(task)
    sending.start()

    assert sending.finish(lambda _: False) == ""
    assert not bucket.exists()


def test_no_more_is_read_of_a_page_of_files_than_a_page_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = MemoryStore("pages"), list[int]()
    store.put(f"{OUTPUT_PAGES}0.json", b" " * 1000)
    get = store.get

    def counted(key: str, *, start: int = 0, length: int | None = None) -> bytes:
        read.append(len(found := get(key, start=start, length=length)))
        return found

    monkeypatch.setattr(store, "get", counted)
    monkeypatch.setattr(documents, "MOST_BYTES", 100)

    assert output_files._fetched(store, tmp_path) == {}
    assert read == [101]


def test_a_page_with_names_that_no_folder_can_have_costs_a_later_attempt_none_of_its_files(tmp_path: Path) -> None:
    store = MemoryStore("outputs")
    names = {"a": 1, "a/b": 1, "good": 1_700_000_000_000_000_000, "late": 10**40, "nul\0": 1, "long" * 100: 1}
    for name in names.keys() - {"nul\0"}:
        store.put(name, b"weights")
    page = {"schema": documents.SCHEMA, "files": {name: [7, changed] for name, changed in names.items()}}
    store.put(f"{OUTPUT_PAGES}0.json", documents.write_ascii(page))

    found = output_files._fetched(store, tmp_path / "out")

    assert found["good"] == (7, 1_700_000_000_000_000_000)
    assert len(found.keys() & {"a", "a/b"}) == 1
    assert found.keys() <= {"a", "a/b", "good"}
