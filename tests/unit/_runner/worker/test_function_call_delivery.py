"""A value or an exception becomes the body of an Outcome, or a failure that says why it cannot."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from kinetic._runner.worker import function_call
from kinetic._runner.worker.function_call import Failure, Value, call_function
from kinetic._wire import digests


class FillsTheDisk:
    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self):
        raise OSError(self.number, "No space left on device")


class HoldsAQueueError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.queue = SimpleQueue()


class HoldsALockError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class RefusesNotesError(HoldsAQueueError):
    def add_note(self, note: str) -> None:
        raise AttributeError(f"frozen: {note}")


class OpensBadlyError(Exception):
    def __reduce__(self):
        return int, ("not a number",)


@pytest.fixture
def body(tmp_path: Path) -> function_call.BodyFile:
    return function_call.BodyFile(tmp_path / "body")


def failure(error: BaseException) -> Failure:
    def function():
        raise error

    return call_function(function, (), {})


@pytest.mark.parametrize("value", [None, 3, {"loss": [0.1]}, b"x" * 300_000, "ünï"])
def test_a_value_becomes_a_pickle_with_its_length_and_digest(body: function_call.BodyFile, value: object) -> None:
    word = function_call.deliver(Value(value), body)

    data = body.path.read_bytes()
    assert pickle.loads(data) == value
    assert (word["status"], word["cause"], word["error"]) == ("succeeded", "value", {})
    assert (word["body_length"], word["body_sha256"]) == (len(data), digests.of_bytes(data))


def test_the_type_of_a_value_is_told_in_full(body: function_call.BodyFile) -> None:
    assert function_call.deliver(Value([1]), body)["value_type"] == "builtins.list"
    assert function_call.deliver(Value(digests.HashingWriter), body)["value_type"] == "builtins.type"


def test_a_value_that_cannot_be_pickled_is_a_failure_with_its_repr_and_what_can(body: function_call.BodyFile) -> None:
    word = function_call.deliver(Value({"queue": SimpleQueue(), "rows": [1]}), body)

    assert (word["status"], word["cause"]) == ("failed", "serialization")
    assert word["error"]["repr"].startswith("{'queue': <_queue.SimpleQueue object")
    assert word["error"]["value_type"] == "builtins.dict"
    assert "cannot pickle" in word["error"]["message"]
    left = pickle.loads(body.path.read_bytes())
    assert left["rows"] == [1]
    assert left["queue"].startswith("<_queue.SimpleQueue object")
    assert word["body_length"] == body.path.stat().st_size


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_to_be_full(body: function_call.BodyFile, number: int) -> None:
    word = function_call.deliver(Value([bytes(1 << 20), FillsTheDisk(number)]), body)

    assert (word["status"], word["cause"]) == ("failed", "disk-full")
    assert "does not fit on the disk" in word["error"]["message"]
    assert body.path.stat().st_size == 0, "what was half written would only keep the disk full"


def test_another_error_of_the_system_is_not_called_a_full_disk(body: function_call.BodyFile) -> None:
    assert function_call.deliver(Value(FillsTheDisk(errno.EACCES)), body)["cause"] == "serialization"


def test_an_exception_becomes_a_pickle_and_words(body: function_call.BodyFile) -> None:
    word = function_call.deliver(failure(KeyError("rate")), body)

    assert (word["status"], word["cause"]) == ("failed", "exception")
    assert pickle.loads(body.path.read_bytes()).args == ("rate",)
    assert word["body_length"] == body.path.stat().st_size
    assert word["error"]["type"] == "KeyError"


def test_an_exception_that_cannot_travel_is_told_in_words_with_the_reason(body: function_call.BodyFile) -> None:
    word = function_call.deliver(failure(OpensBadlyError("opens badly")), body)

    assert (word["status"], word["cause"]) == ("failed", "exception")
    assert "body_length" not in word
    assert word["error"]["type"] == "OpensBadlyError"
    assert word["error"]["not_delivered"]
    assert body.path.stat().st_size == 0


@pytest.mark.parametrize("kind", [HoldsAQueueError, ValueError])
def test_an_exception_keeps_its_type_and_what_of_it_can_be_pickled(
    body: function_call.BodyFile, kind: type[Exception]
) -> None:
    error = kind(SimpleQueue() if kind is ValueError else "held")
    error.code, error.__cause__ = 3, KeyError("a")

    word = function_call.deliver(failure(error), body)

    with body.path.open("rb") as file:
        opened, cause = pickle.load(file), pickle.load(file)
    assert (type(opened), opened.code, repr(cause)) == (kind, 3, "KeyError('a')")
    assert "SimpleQueue" in (opened.args[0] if kind is ValueError else opened.queue)
    assert "texts stand for parts" in opened.__notes__[0]
    assert word["body_length"] == body.path.stat().st_size


def test_a_group_of_exceptions_keeps_them_with_what_of_them_can_be_pickled(body: function_call.BodyFile) -> None:
    function_call.deliver(failure(ExceptionGroup("two", [KeyError("a"), HoldsAQueueError("held")])), body)

    first, second = pickle.loads(body.path.read_bytes()).exceptions
    assert (repr(first), type(second), "SimpleQueue" in second.queue) == ("KeyError('a')", HoldsAQueueError, True)


def test_a_value_that_holds_a_lock_is_delivered_with_one_of_its_own(body: function_call.BodyFile) -> None:
    model = SimpleNamespace(lock=threading.Lock(), rows=[1])

    word = function_call.deliver(Value({"model": model}), body)

    opened = pickle.loads(body.path.read_bytes())["model"]
    assert (word["status"], opened.rows, opened.lock.locked()) == ("succeeded", [1], False)


@pytest.mark.parametrize(("value", "path"), [(threading.Lock(), ""), ({"rows": [1, threading.RLock()]}, "['rows'][1]")])
def test_a_lock_that_is_part_of_the_value_itself_is_not_copied(
    body: function_call.BodyFile, value: object, path: str
) -> None:
    word = function_call.deliver(Value(value), body)

    assert (word["status"], word["cause"]) == ("failed", "serialization")
    assert word["error"].get("path", "").endswith(path)
    assert word["body_length"]  # the rest of it, with a text for the lock


@pytest.mark.parametrize(
    ("causes", "sent"),
    [
        ([KeyError("a"), OSError(2, "b")], ["KeyError('a')", "FileNotFoundError(2, 'b')"]),
        (
            [KeyError("a"), HoldsAQueueError("held"), OSError(2, "b")],
            ["KeyError('a')", "HoldsAQueueError('held')", "FileNotFoundError(2, 'b')"],
        ),
        ([OpensBadlyError("opens badly"), KeyError("a")], []),
        ([KeyError("a"), ValueError("x" * (1 << 19)), KeyError("b")], ["KeyError('a')"]),
        ([KeyError(number) for number in range(20)], [f"KeyError({number})" for number in range(8)]),
    ],
    ids=["all", "one holds a queue", "one opens badly", "one is large", "many"],
)
def test_what_an_exception_was_raised_from_follows_it_as_far_as_it_can_travel(
    body: function_call.BodyFile, causes: list[BaseException], sent: list[str]
) -> None:
    error = raised = ValueError("outer")
    for cause in causes:
        error.__cause__ = cause
        error = cause

    word = function_call.deliver(failure(raised), body)

    with body.path.open("rb") as file:
        assert repr(pickle.load(file)) == "ValueError('outer')"
        assert [repr(pickle.load(file)) for _ in sent] == sent
        assert file.read() == b""
    assert word["body_sha256"] == digests.of_bytes(body.path.read_bytes())
    assert word["body_length"] == body.path.stat().st_size


def test_a_cause_has_texts_for_what_cannot_be_pickled_and_a_note_of_that(body: function_call.BodyFile) -> None:
    error = ValueError("outer")
    error.__cause__ = HoldsAQueueError("held")

    function_call.deliver(failure(error), body)

    with body.path.open("rb") as file:
        opened, cause = pickle.load(file), pickle.load(file)
    assert not hasattr(opened, "__notes__")
    assert "SimpleQueue" in cause.queue
    assert "texts stand for parts" in cause.__notes__[0]


def test_a_cause_that_holds_a_lock_has_one_of_its_own_and_no_note_of_texts(body: function_call.BodyFile) -> None:
    error = ValueError("outer")
    error.__cause__ = HoldsALockError("held")

    function_call.deliver(failure(error), body)

    with body.path.open("rb") as file:
        _, cause = pickle.load(file), pickle.load(file)
    assert not cause.lock.locked()
    assert not hasattr(cause, "__notes__")


def test_a_cause_that_refuses_notes_ends_no_chain(body: function_call.BodyFile) -> None:
    error = ValueError("outer")
    error.__cause__ = RefusesNotesError("held")
    error.__cause__.__cause__ = KeyError("a")

    function_call.deliver(failure(error), body)

    with body.path.open("rb") as file:
        found = [pickle.load(file) for _ in range(3)]
    assert [repr(each) for each in found] == ["ValueError('outer')", "RefusesNotesError('held')", "KeyError('a')"]


def test_an_exit_keeps_its_cause(body: function_call.BodyFile) -> None:
    def leave():
        raise SystemExit(3)

    word = function_call.deliver(call_function(leave, (), {}), body)

    assert (word["status"], word["cause"]) == ("failed", "exit")


class Evil:
    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self):
        return os.mkdir, (str(self.sign),)


def test_an_exception_is_opened_from_what_was_written_and_not_by_name(
    body: function_call.BodyFile, tmp_path: Path
) -> None:
    body.write(KeyError("rate"))
    (tmp_path / "evil").write_bytes(pickle.dumps(Evil(tmp_path / "opened")))
    os.replace(tmp_path / "evil", body.path)

    body.try_to_open()

    assert not (tmp_path / "opened").exists()


def test_a_body_whose_descriptor_is_another_file_by_now_is_written_by_its_name(
    body: function_call.BodyFile, tmp_path: Path
) -> None:
    theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
    os.dup2(theirs, body.descriptor())
    os.close(theirs)

    word = function_call.deliver(Value([1, 2]), body)

    assert pickle.loads(body.path.read_bytes()) == [1, 2]
    assert word["status"] == "succeeded"
    assert (tmp_path / "theirs").read_bytes() == b""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_whatever_pickling_raises_is_told(body: function_call.BodyFile, error: BaseException) -> None:
    class Raises:
        def __reduce__(self):
            raise error

    word = function_call.deliver(Value({"a": [Raises()]}), body)

    assert (word["status"], word["cause"]) == ("failed", "serialization")
    assert word["error"]["type"] == type(error).__name__
    assert word["error"]["path"] == "the value → ['a'][0]"


def test_a_write_that_fails_is_not_called_a_value_that_cannot_be_pickled(tmp_path: Path) -> None:
    body = function_call.BodyFile(tmp_path / "body")
    os.close(body.descriptor())
    (tmp_path / "body").unlink()
    (tmp_path / "body").mkdir()

    word = function_call.deliver(Value(3), body)

    assert (word["status"], word["cause"]) == ("failed", "not-written")
    assert "could not be written to the disk" in word["error"]["message"]
