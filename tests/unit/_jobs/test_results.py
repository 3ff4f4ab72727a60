"""What is opened or saved of a result is what was verified, whatever happens to the store in between."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetic._jobs import results
from kinetic._stores.files import FileStore
from kinetic._stores.protocol import Store
from kinetic._wire import keys, outcomes
from kinetic._wire.outcomes import Outcome
from kinetic.errors import IntegrityError, ResultUnreadableError, StoreError

JOB = "cpu-train-20261121-120000-abcdef0"
LARGE = 20 << 20  # more than is read into memory at once


class Opened:
    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.sign),)


@dataclasses.dataclass
class Opens:
    number: int

    def __setstate__(self, state: dict[str, int]) -> None:
        self.number = state["number"]
        if self.number == 2:
            raise ValueError("not this one")


@pytest.fixture
def store(folder_or_bucket: Store) -> Store:
    return folder_or_bucket


def seal(store: Store, value: object) -> Outcome:
    body = pickle.dumps(value, protocol=5)
    outcome = Outcome(JOB, "succeeded", body_length=len(body), body_sha256=hashlib.sha256(body).hexdigest())
    store.put(keys.result(JOB), body + outcome.footer(bytes(32)))
    return outcome


@pytest.fixture
def swap(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Outcome], Path]:
    """Return a function that arms an attacker, who changes the result the moment it was found to be right."""

    def arm(outcome: Outcome) -> Path:
        sign = tmp_path / "opened"
        evil = pickle.dumps(Opened(sign)).ljust(outcome.body_length, b"\0")
        check = outcomes.check_body

        def then_swap(*words: Any) -> None:
            check(*words)
            if isinstance(store, FileStore):
                with open(store.root / keys.result(JOB), "r+b") as file:  # the file itself, as its writer may
                    file.write(evil)
            else:
                store.put(keys.result(JOB), evil)

        monkeypatch.setattr(outcomes, "check_body", then_swap)
        return sign

    return arm


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_value_of_any_size_comes_back(store: Store, size: int) -> None:
    value = {"bytes": os.urandom(size), "list": list(range(1000))}

    assert results.body_of(store, seal(store, value)) == value


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_value_that_is_swapped_after_the_check_runs_nothing(
    store: Store, swap: Callable[[Outcome], Path], size: int
) -> None:
    value = os.urandom(size)
    outcome = seal(store, value)
    sign = swap(outcome)

    try:
        found = results.body_of(store, outcome)
    except IntegrityError:  # the file itself was changed under our hands
        found = value

    assert found == value
    assert not sign.exists(), "what was opened is not what was verified"


@pytest.mark.parametrize(("size", "read_before"), [(10, False), (10, True), (LARGE, False)])
def test_a_value_that_was_changed_since_it_was_sealed_runs_nothing(
    store: Store, tmp_path: Path, size: int, read_before: bool
) -> None:
    outcome = seal(store, os.urandom(size + 200))
    evil = pickle.dumps(Opened(tmp_path / "opened")).ljust(outcome.body_length, b"\0")
    store.put(keys.result(JOB), evil + outcome.footer(bytes(32)))

    with pytest.raises(IntegrityError, match="is not what the job wrote"):
        results.body_of(store, outcome, evil if read_before else None)

    assert not (tmp_path / "opened").exists()


def read_again(data: bytes, job_id: str = JOB) -> Outcome:
    return outcomes.read_of(job_id, len(data), lambda start, length: data[start : start + length], bytes(32))


def test_a_verdict_of_another_job_one_that_is_cut_off_and_one_without_end_are_refused(store: Store) -> None:
    outcome = seal(store, bytes(5000))
    data = store.get(keys.result(JOB))
    endless = bytes(60) + (outcomes.MOST_BYTES + 1).to_bytes(8, "big") + outcomes.MAGIC

    assert read_again(data) == outcome
    with pytest.raises(IntegrityError, match="is about another job"):
        read_again(data, "cpu-train-20261121-120000-abcdef1")
    with pytest.raises(IntegrityError, match="shorter than it says"):
        read_again(data[outcome.body_length :])
    with pytest.raises(IntegrityError, match="longer than the object, or than any page"):
        outcomes.read(1 << 40, lambda start, length: endless[-length:], bytes(32))


def test_the_end_of_a_large_value_is_verified_as_well(store: Store) -> None:
    value = [os.urandom(LARGE), "the end"]
    outcome = seal(store, value)
    data = store.get(keys.result(JOB))
    store.put(keys.result(JOB), data.replace(b"the end", b"the ENd"))

    with pytest.raises(IntegrityError, match="not what the job wrote"):
        results.body_of(store, outcome)


def test_a_file_has_what_was_verified(store: Store, swap: Callable[[Outcome], Path], tmp_path: Path) -> None:
    value = os.urandom(LARGE)
    outcome = seal(store, value)
    swap(outcome)

    results.save(store, outcome, tmp_path / "saved.pkl")

    assert pickle.loads((tmp_path / "saved.pkl").read_bytes()) == value


def test_a_result_that_is_not_right_becomes_no_file(store: Store, tmp_path: Path) -> None:
    outcome = seal(store, os.urandom(LARGE))
    store.put(keys.result(JOB), bytes(outcome.body_length))

    with pytest.raises(IntegrityError):
        results.save(store, outcome, tmp_path / "saved.pkl")

    assert [path.name for path in tmp_path.glob("*.pkl*")] + [path.name for path in tmp_path.glob(".saved*")] == []


def test_a_link_beside_the_target_is_not_written_through(store: Store, tmp_path: Path) -> None:
    theirs, outcome = tmp_path / "theirs", seal(store, 3)
    theirs.write_text("precious")
    (tmp_path / f".saved.pkl.{os.getpid()}.part").symlink_to(theirs)

    results.save(store, outcome, tmp_path / "saved.pkl")

    assert theirs.read_text() == "precious"
    assert pickle.loads((tmp_path / "saved.pkl").read_bytes()) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are named in /proc")
def test_a_saved_result_and_its_name_are_on_the_disk_when_the_job_may_be_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, forced = seal(store, 3), []
    monkeypatch.setattr(os, "fsync", lambda descriptor: forced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    folder = tmp_path / "results"
    folder.mkdir()

    results.save(store, outcome, folder / "saved.pkl")

    of_file, *rest = forced
    assert (os.path.dirname(of_file), rest) == (str(folder), [str(folder)])


def test_a_large_value_without_room_for_temporary_files_says_what_to_do_and_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = os.urandom(LARGE)
    outcome = seal(store, value)
    with monkeypatch.context() as during:
        during.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        if store.local is None:
            with pytest.raises(StoreError, match="cannot be read into a temporary file") as raised:
                results.body_of(store, outcome)
            assert "TMPDIR" in str(raised.value.next)

    assert results.body_of(store, outcome) == value


def test_a_large_value_that_cannot_be_opened_here_says_so_and_stays(store: Store) -> None:
    outcome = seal(store, [bytes(LARGE), 1])
    body = store.get(keys.result(JOB), length=outcome.body_length)
    broken = body[:-1] + b"\xff"  # no opcode of a pickle
    again = Outcome(JOB, "succeeded", body_length=len(broken), body_sha256=hashlib.sha256(broken).hexdigest())
    store.put(keys.result(JOB), broken + again.footer(bytes(32)))

    with pytest.raises(ResultUnreadableError, match="whole, and cannot be opened here"):
        results.body_of(store, again)


@pytest.mark.parametrize("size", [10, LARGE])
def test_what_can_be_opened_of_a_value_arrives_where_a_part_of_it_cannot(
    store: Store, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = types.ModuleType("only_there")
    text = "import enum\nclass Model: pass\nclass Net(dict): pass\nclass Kind(enum.Enum):\n    A = 1\ndef fit(): pass"
    exec(f"__name__ = 'only_there'\n{text}", vars(there))
    made = {name: vars(there)[name]() for name in ("Model", "Net")}
    made["Model"].weights, made["Net"]["a"] = [1], 2
    value = {"loss": [0.5, 0.25], "bytes": bytes(size), **made, "all": [there.fit, {there.Kind.A}, Opens(1), Opens(2)]}
    value["again"] = value["all"]
    with monkeypatch.context() as during:
        during.setitem(sys.modules, "only_there", there)
        outcome = seal(store, value)

    with pytest.raises(ResultUnreadableError, match="only_there") as raised:
        results.body_of(store, outcome)

    partial = raised.value.partial
    assert partial.pop("again") is partial["all"]
    assert partial.pop("all") == ["<only_there.fit>", {"<only_there.Kind>"}, Opens(1), f"<{__name__}.Opens>"]
    assert partial == {
        "loss": [0.5, 0.25],
        "bytes": bytes(size),
        "Model": "<only_there.Model>",
        "Net": "<only_there.Net>",
    }


def test_an_error_of_a_value_of_which_nothing_can_be_opened_has_no_part_of_it(store: Store) -> None:
    body = b"cno_such_module\nModel\n)R."
    outcome = Outcome(JOB, "succeeded", body_length=len(body), body_sha256=hashlib.sha256(body).hexdigest())
    store.put(keys.result(JOB), body + outcome.footer(bytes(32)))

    with pytest.raises(ResultUnreadableError) as raised:
        results.body_of(store, outcome)

    assert raised.value.partial is None


def test_an_error_of_a_value_of_very_many_objects_does_not_wait_for_the_part_that_can_be_opened(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_PARTLY_SECONDS", -1.0)
    outcome = seal(store, [Opens(2), *range(10)])

    with pytest.raises(ResultUnreadableError) as raised:
        results.body_of(store, outcome)

    assert raised.value.partial is None
    assert not hasattr(raised.value, "__notes__")


def test_an_exception_arrives_also_where_what_it_was_raised_from_cannot_be_opened(store: Store) -> None:
    known, missing = pickle.dumps(KeyError("x")), b"cno_such_module\nError\n."
    body = pickle.dumps(ValueError("no")) + known + missing + known
    outcome = Outcome(
        JOB,
        "failed",
        cause="exception",
        body_length=len(body),
        body_sha256=hashlib.sha256(body).hexdigest(),
        error={"type": "ValueError", "traceback": "as it was"},
    )
    store.put(keys.result(JOB), body + outcome.footer(bytes(32)))

    error = results.failure_of(store, outcome, "train")

    assert repr(error) == "ValueError('no')"
    assert repr(error.__cause__) == "KeyError('x')"
    assert error.__cause__.__cause__ is None  # what is behind the missing one is not put in its place
    assert "as it was" in error.__notes__[0]
