"""A value or an exception becomes the body of an Outcome, or a failure that says why it cannot."""

from __future__ import annotations

import errno
import pickle
import threading
from pathlib import Path

import pytest

from kinetic._runner import delivering
from kinetic._runner.calling import Failure, Value, call
from kinetic._wire import digests


class FillsTheDisk:
    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self):
        raise OSError(self.number, "No space left on device")


class HoldsALockError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class OpensBadlyError(Exception):
    def __reduce__(self):
        return int, ("not a number",)


@pytest.fixture
def body(tmp_path: Path) -> Path:
    return tmp_path / "job.0.body"


def failure(error: BaseException) -> Failure:
    def function():
        raise error

    return call(function, (), {})


@pytest.mark.parametrize("value", [None, 3, {"loss": [0.1]}, b"x" * 300_000, "ünï"])
def test_a_value_becomes_a_pickle_with_its_length_and_digest(body: Path, value: object) -> None:
    word = delivering.deliver(Value(value), body)

    data = body.read_bytes()
    assert pickle.loads(data) == value
    assert (word["status"], word["cause"], word["error"]) == ("succeeded", "value", {})
    assert (word["body_length"], word["body_sha256"]) == (len(data), digests.of_bytes(data))


def test_the_type_of_a_value_is_told_in_full(body: Path) -> None:
    assert delivering.deliver(Value([1]), body)["value_type"] == "builtins.list"
    assert delivering.deliver(Value(digests.HashingWriter), body)["value_type"] == "builtins.type"


def test_a_value_that_cannot_be_pickled_is_a_failure_with_its_repr(body: Path) -> None:
    word = delivering.deliver(Value({"lock": threading.Lock()}), body)

    assert (word["status"], word["cause"]) == ("failed", "serialization")
    assert word["error"]["repr"].startswith("{'lock': <unlocked _thread.lock object")
    assert word["error"]["value_type"] == "builtins.dict"
    assert "cannot pickle" in word["error"]["message"]
    assert not body.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_to_be_full(body: Path, number: int) -> None:
    word = delivering.deliver(Value([bytes(1 << 20), FillsTheDisk(number)]), body)

    assert (word["status"], word["cause"]) == ("failed", "disk-full")
    assert "does not fit on the disk" in word["error"]["message"]
    assert not body.exists(), "what was half written would only keep the disk full"


def test_another_error_of_the_system_is_not_called_a_full_disk(body: Path) -> None:
    assert delivering.deliver(Value(FillsTheDisk(errno.EACCES)), body)["cause"] == "serialization"


def test_an_exception_becomes_a_pickle_and_words(body: Path) -> None:
    word = delivering.deliver(failure(KeyError("rate")), body)

    assert (word["status"], word["cause"]) == ("failed", "exception")
    assert pickle.loads(body.read_bytes()).args == ("rate",)
    assert word["body_length"] == body.stat().st_size
    assert word["error"]["type"] == "KeyError"


@pytest.mark.parametrize("error", [HoldsALockError("held"), OpensBadlyError("opens badly")])
def test_an_exception_that_cannot_travel_is_told_in_words_with_the_reason(body: Path, error: Exception) -> None:
    word = delivering.deliver(failure(error), body)

    assert (word["status"], word["cause"]) == ("failed", "exception")
    assert "body_length" not in word
    assert word["error"]["type"] == type(error).__name__
    assert word["error"]["not_delivered"]
    assert not body.exists()


def test_an_exit_keeps_its_cause(body: Path) -> None:
    def leave():
        raise SystemExit(3)

    word = delivering.deliver(call(leave, (), {}), body)

    assert (word["status"], word["cause"]) == ("failed", "exit")
