"""Sealing a verdict again after a store that was out of reach in the middle of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic._runner.supervisor import attempts
from kinetic._stores.files import FileStore
from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, keys, outcomes
from kinetic._wire.outcomes import Outcome
from kinetic.errors import StoreUnreachableError

KEY, BODY, MARK = bytes(32), b"a pickled value", "groups/grp-00000001/marks/0.0"
VERDICT = Outcome("cpu-f-1", "succeeded", body_length=len(BODY), body_sha256=hashlib.sha256(BODY).hexdigest())
RESULT = keys.result(VERDICT.job_id)


class Failing:
    """What a store of any kind does, except that some calls fail once: named by method and the end of their key."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.failures: list[tuple[str, str]] = []

    def _meet(self, method: str, key: str) -> None:
        for failure in self.failures:
            if failure[0] == method and key.endswith(failure[1]):
                self.failures.remove(failure)
                raise StoreUnreachableError(f"no answer to {method} {key}")

    def put(self, key, source, *, if_absent=False):
        self._meet("put", key)
        return super().put(key, source, if_absent=if_absent)

    def put_hint(self, key, data=b""):
        self._meet("put", key)
        return super().put_hint(key, data)

    def size(self, key):
        self._meet("size", key)
        return super().size(key)


class Bucket(Failing, MemoryStore):
    """A store that copies files."""


class Folder(Failing, FileStore):
    """A store that takes files over."""


@pytest.fixture(params=[Bucket, Folder])
def store(request, tmp_path: Path):
    return request.param("a" if request.param is Bucket else tmp_path / "store")


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "body"
    path.write_bytes(BODY)
    return path


def seal(store, body: Path) -> bool:
    return attempts.seal_outcome(store, VERDICT, KEY, body=body, mark=MARK)


def found(store) -> Outcome:
    size = store.size(RESULT)
    return outcomes.read(size, lambda start, length: store.get(RESULT, start=start, length=length), KEY)


def test_a_mark_that_could_not_be_written_is_written_by_the_next_try(store, body: Path) -> None:
    mark = documents.sealed_name(MARK, "succeeded", KEY)
    store.failures = [("put", mark)]
    with pytest.raises(StoreUnreachableError):
        seal(store, body)

    again = seal(store, body)

    assert again
    assert found(store) == VERDICT
    assert store.size(mark) == 0


def test_a_verdict_of_somebody_else_is_seen_as_such_by_the_next_try_too(store, body: Path) -> None:
    attempts.seal_outcome(store, Outcome(VERDICT.job_id, "cancelled"), KEY)
    store.failures = [("size", RESULT)]
    with pytest.raises(StoreUnreachableError):
        seal(store, body)

    again = seal(store, body)

    assert not again
    assert found(store).status == "cancelled"
    assert list(store.entries("groups/")) == [], "a mark of what is not the verdict would end the input of a batch"


def test_a_page_that_a_supervisor_appended_before_it_died_is_replaced_by_the_next_one_s(store, body: Path) -> None:
    before = replace(VERDICT, error={"log": "longer than the page that follows"})
    with body.open("ab") as file:
        file.write(before.footer(KEY))

    assert seal(store, body)
    assert found(store) == VERDICT
    assert store.size(RESULT) == len(BODY + VERDICT.footer(KEY))


def test_a_failure_whose_answer_was_lost_is_still_the_verdict_of_who_wrote_it(store) -> None:
    failed = Outcome(VERDICT.job_id, "failed", cause="exception")
    store.put(RESULT, failed.footer(KEY))

    assert attempts.seal_outcome(store, failed, KEY)
    assert not attempts.seal_outcome(store, replace(failed, cause="signal"), KEY)


def test_a_value_whose_answer_was_lost_is_still_the_verdict_of_who_wrote_it(store, body: Path) -> None:
    store.put(RESULT, BODY + VERDICT.footer(KEY))

    assert seal(store, body)
    body.write_bytes(BODY)
    assert not attempts.seal_outcome(store, replace(VERDICT, ended=5.0), KEY, body=body)


def test_a_value_that_got_lost_is_not_taken_for_delivered(store, body: Path) -> None:
    body.unlink()

    with pytest.raises(FileNotFoundError):
        seal(store, body)

    assert store.size(RESULT) is None
