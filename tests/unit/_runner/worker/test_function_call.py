"""What the end of the user's function means."""

from __future__ import annotations

import pathlib
import sys

import pytest

from kinetic._runner.worker import function_call
from kinetic._runner.worker.function_call import Failure, Value
from kinetic._stores import open_store
from kinetic._wire import digests, keys
from kinetic._wire.order import Artifact, Child, Order
from kinetic._wire.task import Task
from kinetic.errors import IntegrityError


class UnspeakableError(Exception):
    def __str__(self):
        raise ValueError("no words")


class Unshowable:
    def __repr__(self):
        raise ValueError("no picture")


def raising(error):
    def function():
        raise error

    return function


def test_a_value_is_a_value() -> None:
    assert function_call.call_function(lambda a, *, b: a + b, (1,), {"b": 2}) == Value(3)


@pytest.mark.parametrize("code", [None, 0, False, 0.0])
def test_a_good_exit_is_success_without_a_value(code) -> None:
    assert function_call.call_function(sys.exit, (code,), {}) == Value(None)


def test_a_breakpoint_that_ends_the_call_says_what_stops_a_job_also_where_pdb_exits_as_in_python_3_14() -> None:
    pdb: dict[str, object] = {"__name__": "pdb", "sys": sys}
    exec("def do_quit(): sys.exit(1)", pdb)

    ended = function_call.call_function(pdb["do_quit"], (), {})
    own = function_call.call_function(sys.exit, (1,), {})

    assert isinstance(ended, Failure)
    assert isinstance(own, Failure)
    assert ("debug=True" in ended.error["traceback"], "debug=True" in own.error["traceback"]) == (True, False)


@pytest.mark.parametrize("code", [1, "no data", True, -1, ("a", 1)])
def test_any_other_exit_is_a_failure_that_names_the_call(code) -> None:
    ended = function_call.call_function(sys.exit, (code,), {})

    assert isinstance(ended, Failure)
    assert type(ended.exception) is RuntimeError
    assert f"sys.exit({code!r})" in str(ended.exception)
    assert ended.cause == "exit"


def test_an_exception_is_kept_as_it_is() -> None:
    error = KeyError("rate")

    ended = function_call.call_function(raising(error), (), {})

    assert ended.exception is error
    assert ended.cause == "exception"
    assert (ended.error["module"], ended.error["type"], ended.error["message"]) == ("builtins", "KeyError", "'rate'")


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), GeneratorExit(), BaseException("base")])
def test_what_would_end_an_interpreter_becomes_a_runtime_error_with_its_name(error: BaseException) -> None:
    ended = function_call.call_function(raising(error), (), {})

    assert type(ended.exception) is RuntimeError
    assert str(ended.exception) == f"{type(error).__name__}: {error}".removesuffix(": ")
    assert ended.error["type"] == type(error).__name__


def test_the_traceback_begins_with_the_users_own_code() -> None:
    ended = function_call.call_function(raising(ValueError("mine")), (), {})

    lines = ended.error["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith(", in function")
    assert lines[-1] == "ValueError: mine"
    assert len(lines) == 4, "our own frames are not the user's business"


def test_arguments_that_do_not_fit_are_the_users_type_error() -> None:
    ended = function_call.call_function(lambda: 1, (2,), {})

    assert isinstance(ended.exception, TypeError)
    assert "takes 0 positional arguments" in ended.error["message"]


def test_notes_and_causes_are_in_the_traceback() -> None:
    def function():
        try:
            raise KeyError("first")
        except KeyError as error:
            second = ValueError("second")
            second.add_note("a hint")
            raise second from error

    text = function_call.call_function(function, (), {}).error["traceback"]

    assert "KeyError: 'first'" in text
    assert "The above exception was the direct cause" in text
    assert "a hint" in text


@pytest.mark.parametrize("path", ["gs://bucket/outputs/a/x.txt", pathlib.Path("gs://bucket/outputs/a/x.txt")])
def test_who_opens_an_address_as_if_it_were_a_path_is_told_what_it_is(path) -> None:
    ended = function_call.call_function(open, (path, "w"), {})

    assert isinstance(ended, Failure)
    assert isinstance(ended.exception, FileNotFoundError)
    assert "this is an address in a bucket" in ended.error["traceback"]


def test_who_opens_a_file_that_is_not_there_is_told_nothing_of_buckets(tmp_path) -> None:
    ended = function_call.call_function(open, (tmp_path / "gs:" / "x",), {})

    assert isinstance(ended, Failure)
    assert "bucket" not in ended.error["traceback"]


def test_a_message_that_cannot_be_had_is_told_so() -> None:
    assert function_call.text_of(UnspeakableError()) == "<its __str__ raised ValueError>"
    assert (
        function_call.call_function(raising(UnspeakableError()), (), {}).error["message"]
        == "<its __str__ raised ValueError>"
    )


def test_a_repr_that_cannot_be_had_is_told_so() -> None:
    assert function_call.repr_of(Unshowable()) == "<Unshowable whose repr fails: ValueError>"


def test_a_repr_is_cut_at_twenty_thousand_signs() -> None:
    assert len(function_call.repr_of("x" * 50_000)) == 20_000


def test_a_message_and_a_traceback_have_their_limits() -> None:
    described = function_call.describe(ValueError("x" * 500_000))

    assert len(described["message"]) == 4_000
    assert 200_000 <= len(described["traceback"]) < 200_100
    assert described["traceback"].startswith("ValueError: xxx")
    assert "characters …]" in described["traceback"]


# ---------------------------------------------------------------------- what a batch's children share

GROUP = "grp-12345678"


@pytest.fixture
def shared(tmp_path):
    """Give a store with the order of a batch, and the digest of that order."""
    store = open_store(f"file://{tmp_path}/store")
    store.put("function", b"the function")
    store.put("inputs", b"first, second")
    order = Order(
        "", "train", Artifact(digests.of_bytes(b"the function"), 12, key="function"), Artifact.within(b""), group=GROUP
    )
    store.put(order.key, order.to_bytes())
    yield store, digests.of_bytes(order.to_bytes())
    function_call._kept.clear()


def task_of(store, index, sha256):
    data, start = (b"first", 0) if index == 0 else (b"second", 7)
    arguments = Artifact(digests.of_bytes(data), len(data), key="inputs", start=start)
    child = Child(f"cpu-train-20261120-143000-1a2b3c{index}", index, 0, arguments)
    return Task(
        job_id=child.job_id,
        order_sha256=sha256,
        store_url=store.url,
        key_id="",
        umask=0o22,
        deadline=None,
        environment={},
        order_key=keys.group_order(GROUP),
        child=child.to_json(),
    )


def test_what_children_share_is_read_once_and_is_what_each_would_have_read(shared) -> None:
    store, sha256 = shared
    tasks = [task_of(store, index, sha256) for index in range(2)]
    read = [function_call.fetch(store, task) for task in tasks]

    function_call.keep_shared(store, tasks[0])
    store.delete("function")  # from here on only the supervisor has it

    assert [function_call.fetch(store, task) for task in tasks] == read
    assert [each.arguments for each in read] == [b"first", b"second"]


def test_what_one_batch_shares_is_not_taken_for_that_of_another(shared) -> None:
    store, sha256 = shared
    function_call.keep_shared(store, task_of(store, 0, sha256))

    with pytest.raises(IntegrityError, match="not the one that was launched"):
        function_call.fetch(store, task_of(store, 0, "0" * 64))


def test_what_cannot_be_kept_is_reported_by_the_worker(shared) -> None:
    store, sha256 = shared
    store.put("function", b"another function")

    function_call.keep_shared(store, task_of(store, 0, sha256))

    with pytest.raises(IntegrityError, match="the function"):
        function_call.fetch(store, task_of(store, 0, sha256))
