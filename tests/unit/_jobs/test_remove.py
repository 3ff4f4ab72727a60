"""What stays of a collected job: the end of its log and its page; whoever dies in between loses nothing."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from servers.sealed import put_history

from kinetic._config import home
from kinetic._config import target as settings
from kinetic._jobs import collect, find, index, locate, logs
from kinetic._jobs.handle import JobHandle
from kinetic._jobs.status import Snapshot
from kinetic._maintenance import garbage_collection
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import digests, keys, outcomes, records
from kinetic._wire.outcomes import Outcome
from kinetic.errors import StoreError
from kinetic.job_status import JobStatus

DAY = 24 * 3600.0
JOB = "cpu-train-20261120-143000-1a2b3c4"
FIELDS = {
    **dict.fromkeys(("project", "cluster_name", "zone"), "local"),
    "backend": "local",
    "namespace": "default",
    "bucket_name": "b",
    "k8s_name": "k",
    "image_uri": "",
    "accelerator": "cpu",
    "func_name": "train",
    "display_name": "train",
    "created_at": "2026-11-20T14:30:00Z",
}
SUCCEEDED = Snapshot(JobStatus.SUCCEEDED, Outcome(JOB, outcomes.SUCCEEDED, started=1.0, ended=2.0))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    for name in [*os.environ]:
        if name.startswith("KINETIC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return FileStore(tmp_path / "home" / "store")


def handle(store: FileStore, **more: object) -> JobHandle:
    store.put(keys.record(JOB), b"{}")
    store.put(keys.attempt(JOB, 0), b"{}")
    locate.home().mkdir(exist_ok=True)
    key_id, _ = home.own_key(locate.home())
    return JobHandle.from_dict({"job_id": JOB, **FIELDS, "store": store.url, "key_id": key_id, **more})


def segment(store: FileStore, text: bytes, *, attempt: int = 0, host: int = 0, start: int = 0) -> None:
    store.put(keys.log_segment(JOB, attempt, host, start), text)


def test_every_attempt_and_host_keeps_its_log_as_a_file_that_zcat_reads(store) -> None:
    job = handle(store)
    store.put(keys.attempt(JOB, 1), b"{}")
    segment(store, b"first\n")
    segment(store, b"se", attempt=1)
    segment(store, b"cond\n", attempt=1, start=2)
    segment(store, b"peer\n", attempt=1, host=1)
    assert SUCCEEDED.outcome is not None
    second = replace(SUCCEEDED, outcome=replace(SUCCEEDED.outcome, attempt=1))

    collect.after_collection(job, second, wait=0)

    assert [entry.key for entry in store.entries(keys.job(JOB))] == []
    assert gzip.decompress(store.get(keys.history_log(JOB, 1, 0))) == b"second\n"
    texts = {
        each: logs.text_of(logs.history_log(store, JOB, attempt=each[0], host=each[1]))
        for each in [(0, 0), (1, 0), (None, 0), (None, 1), (0, 1), (2, 0)]
    }
    assert [*texts.values()] == ["first\n", "second\n", "second\n", "peer\n", "", ""]
    assert find.attach(JOB).logs() == "second\n"


def test_a_job_that_printed_nothing_leaves_one_small_page_and_no_log(store) -> None:
    collect.after_collection(handle(store), SUCCEEDED, wait=0)

    assert [entry.key for entry in store.entries(keys.HISTORY)] == [keys.history(JOB)]
    assert find.attach(JOB).logs() == ""


def test_files_of_others_among_the_logs_of_a_job_are_no_logs_and_no_attempts(store) -> None:
    job = handle(store)
    segment(store, b"words\n")
    for folder in ("logs/", "logs/0/", "logs/0/0/", "logs/0/x/", "attempts/"):
        store.put(f"{JOB}/{folder}.DS_Store", b"\0\0\0\1Bud1")  # of a Finder that has shown the folder

    page = collect.after_collection(job, SUCCEEDED, wait=0)

    assert page is not None
    assert page["attempts"] == 1
    assert find.attach(JOB).logs() == "words\n"
    assert [entry.key for entry in store.entries(keys.job(JOB))] == []


@pytest.mark.parametrize("broken", ["put_many", "delete"])
def test_a_log_that_cannot_be_kept_leaves_the_job_as_it_is(broken, store, monkeypatch, caplog) -> None:
    job = handle(store)
    segment(store, b"words\n")

    def refuse(self, key, *_, **__):
        raise StoreError("the disk that holds the store is full")

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, broken, refuse)
        assert collect.after_collection(job, SUCCEEDED, wait=0) is None

    assert "could not be removed" in caplog.text
    assert store.get(keys.log_segment(JOB, 0, 0, 0)) == b"words\n"
    collect.after_collection(job, SUCCEEDED, wait=0)
    assert find.attach(JOB).logs() == "words\n"


def test_a_second_collector_that_comes_while_the_first_deletes_spoils_nothing(store, monkeypatch) -> None:
    first, second = handle(store), handle(store)
    for number in range(3):
        segment(store, b"%d\n" % number, start=2 * number)
    real, calls = FileStore.get, []

    def get(self, key, **more):
        if "/logs/" in key and not calls:
            calls.append(key)
            collect.after_collection(first, SUCCEEDED, wait=0)
        return real(self, key, **more)

    monkeypatch.setattr(FileStore, "get", get)
    page = collect.after_collection(second, SUCCEEDED, wait=0)

    assert page is not None
    assert [found["size_bytes"] for found in page["logs"]] == [6]
    assert (page["attempts"], find.attach(JOB).logs()) == (1, "0\n1\n2\n")


def test_cleaning_up_in_part_and_then_collecting_keeps_the_log(store) -> None:
    job = handle(store)
    segment(store, b"words\n")
    collect.remove(job, SUCCEEDED, resource=True, artifacts=False, wait=0)

    collect.after_collection(job, Snapshot(JobStatus.NOT_FOUND, SUCCEEDED.outcome), wait=0)

    assert find.attach(JOB).logs() == "words\n"
    assert locate.is_collected(locate.read_page(store, JOB))


@pytest.mark.parametrize(
    "page", [b"{", b"[]", b'{"schema": 1, "collected": 5}', b'{"schema":1,"collected":1,"logs":7}']
)
def test_a_damaged_page_says_nothing_and_hides_no_other(page, store) -> None:
    collect.after_collection(handle(store), SUCCEEDED, wait=0)
    other = JOB.replace("1a2b3c4", "0000000")
    store.put(keys.history(other), page)

    assert find.newest_record(settings.resolve()).job_id == JOB
    assert logs.history_log(store, other, attempt=None, host=0) is None
    with pytest.raises(Exception, match=other):
        find.attach(other)


CHANGED = f"kinetic: the log of {JOB} was changed after the job ended: "


@pytest.mark.parametrize(
    ("attack", "shown"),
    [(b"\x1f\x8b nonsense", ""), (gzip.compress(b"forged\n", mtime=0), "forged\n"), (None, "")],
    ids=["damaged", "exchanged", "deleted"],
)
def test_a_kept_log_that_somebody_changed_is_shown_with_a_line_that_says_so(attack, shown, store, capsys) -> None:
    segment(store, b"words\n")
    collect.after_collection(handle(store), SUCCEEDED, wait=0)
    capsys.readouterr()
    store.delete(keys.history_log(JOB, 0, 0))
    if attack is not None:
        store.put(keys.history_log(JOB, 0, 0), attack)

    assert find.attach(JOB).logs() == shown
    said = capsys.readouterr().err
    assert said.startswith(CHANGED)
    assert said.count("\n") == 1


def test_a_log_that_was_changed_before_it_was_collected_is_not_made_honest_by_collecting_it(store, capsys) -> None:
    segment(store, b"words\n")
    outcome = Outcome(JOB, outcomes.SUCCEEDED, started=1.0, ended=2.0, logs=(sealed_log(b"WORDS\n"),))

    collect.after_collection(handle(store), Snapshot(JobStatus.SUCCEEDED, outcome), wait=0)

    assert capsys.readouterr().err.startswith(CHANGED)
    assert find.attach(JOB).logs() == "words\n"
    assert capsys.readouterr().err.startswith(CHANGED)


@pytest.mark.parametrize("at", [0, (1 << 20) + 7, (11 << 20) + 5, (12 << 20) + 99])
def test_of_a_long_log_the_end_that_is_kept_is_checked_without_reading_the_rest(at, store, capsys) -> None:
    whole = bytearray(b"line of a long log\n" * ((12 << 20) // 19 + 9))
    outcome = Outcome(JOB, outcomes.SUCCEEDED, started=1.0, ended=2.0, logs=(sealed_log(bytes(whole)),))
    whole[at] ^= 1
    for start in range(0, len(whole), 1 << 20):
        segment(store, bytes(whole[start : start + (1 << 20)]), start=start)

    page = collect.after_collection(handle(store), Snapshot(JobStatus.SUCCEEDED, outcome), wait=0)

    was_kept = at >= len(whole) - (11 << 20)
    assert page["logs"][0]["changed"] is was_kept
    assert capsys.readouterr().err.startswith(CHANGED) is was_kept


def sealed_log(data: bytes, attempt: int = 0) -> digests.LogDigest:
    hasher = digests.LogHasher()
    hasher.update(data)
    return hasher.digest(attempt, 0)


class Skewed(MemoryStore):
    """A store whose clock is wrong."""

    skew, ages = 0.0, dict[str, float]()

    def entries(self, prefix, *, after=""):
        return iter([self._aged(entry) for entry in super().entries(prefix, after=after)])

    def entry(self, key):
        found = super().entry(key)
        return self._aged(found) if found else None

    def _aged(self, entry):
        return entry._replace(modified=entry.modified + self.skew - self.ages.get(entry.key, 0.0))


@pytest.mark.parametrize("skew", [0.0, -400 * DAY, 400 * DAY], ids=["on time", "a year behind", "a year ahead"])
def test_the_store_itself_tells_how_old_a_page_is_and_no_page_is_measured_by_another(skew) -> None:
    store = Skewed(os.urandom(4).hex())
    store.skew = skew
    young, kept, old, future = (f"cpu-{name}-20261120-143000-1a2b3c4" for name in ("young", "kept", "old", "future"))
    ages = {young: 0.0, kept: 30 * DAY - 60, old: 30 * DAY + 60, future: -900 * DAY}
    for job, age in ages.items():
        put_history(store, {"job_id": job})
        store.put(keys.history_log(job, 0, 0), b"x")
        store.ages |= {keys.history(job): age, keys.history_log(job, 0, 0): age}

    garbage_collection._collect_history(store)

    assert index.page_ids(store) == {young, kept, future}
    assert {entry.key for entry in store.entries(keys.HISTORY)} == {
        *map(keys.history, (young, kept, future)),
        *(keys.history_log(job, 0, 0) for job in (young, kept, future)),
    }


def test_every_field_of_a_page_of_the_history_has_its_reader(store) -> None:
    collect.after_collection(handle(store), SUCCEEDED, wait=0)

    written = json.loads(store.get(keys.history(JOB)))

    assert written.keys() - {"schema", "mac"} <= records._PAST.keys()
