"""The decorated function: still the function to whoever looks, and to whatever pickles or copies it."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import sys
import textwrap
import typing
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import cloudpickle
import pytest

import kinetic
from kinetic._remote.recorded_calls import record_inputs
from kinetic._wire import references
from kinetic.errors import CallableError, OptionError


@pytest.fixture
def theirs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Give the test a module of a user's, importable by its name."""
    (tmp_path / "theirs.py").write_text(
        textwrap.dedent(
            '''
            import kinetic

            on_cpu = kinetic.run(accelerator="cpu")

            @on_cpu
            def train(rate: float, *, epochs: int = 1) -> float:
                """Train a little."""
                return rate * epochs

            class Model:
                def __init__(self, size=1):
                    self.size = size

                @on_cpu
                def fit(self, rate):
                    return self.size * rate

                @classmethod
                @on_cpu
                def build(cls, size):
                    return cls(size)

                @classmethod
                @on_cpu
                def build_too(klass, *, size):
                    return klass(size)

                @staticmethod
                @on_cpu
                def version(major):
                    return f"v{major}"

            class Sub(Model):
                pass

            def undecorated():
                return 1

            renamed = on_cpu(undecorated)
            '''
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("theirs")
    del sys.modules["theirs"]


def test_it_keeps_name_documentation_module_and_signature(theirs: ModuleType) -> None:
    train = theirs.train

    assert (train.__name__, train.__qualname__, train.__module__) == ("train", "train", "theirs")
    assert train.__doc__ == "Train a little."
    assert train.__annotations__ == {"rate": float, "epochs": int, "return": float}
    assert str(inspect.signature(train)) == "(rate: float, *, epochs: int = 1) -> float"
    model, plain = theirs.Model(1), theirs.Model.fit.__wrapped__
    assert inspect.signature(model.fit) == inspect.signature(plain.__get__(model))
    assert inspect.signature(model.fit.with_options(spot=True)) == inspect.signature(plain.__get__(model))
    assert inspect.signature(theirs.Model.fit) == inspect.signature(plain)


def test_it_says_what_it_is_and_where_it_runs(theirs: ModuleType) -> None:
    assert repr(theirs.train) == "<kinetic function train on cpu>"
    assert repr(theirs.Sub(3).fit).startswith("<kinetic function fit bound to <theirs.Sub object")


def test_what_a_decorator_below_left_on_the_function_is_found_and_removed_through_it() -> None:
    def train() -> None: ...

    train.__click_params__ = ["--lr"]
    remote = kinetic.run(accelerator="cpu")(train)

    assert remote.__click_params__ == ["--lr"]
    assert remote.with_options(name="nightly").__click_params__ == ["--lr"]
    del remote.__click_params__  # as click does
    assert not hasattr(remote, "__click_params__")


def test_the_plain_function_is_found_where_functools_puts_it(theirs: ModuleType) -> None:
    assert inspect.unwrap(theirs.train) is theirs.train.__wrapped__
    assert theirs.train.__wrapped__(0.5, epochs=4) == 2.0


# ------------------------------------------------------------------------------------------------- here, not elsewhere


def test_local_runs_the_plain_function_here(theirs: ModuleType) -> None:
    assert theirs.train.local(0.5, epochs=4) == 2.0


def test_local_binds_like_the_call(theirs: ModuleType) -> None:
    assert theirs.Model(3).fit.local(2) == 6
    assert theirs.Model.fit.local(theirs.Model(3), 2) == 6
    assert theirs.Model.version.local(3) == "v3"


def test_local_knows_the_class_of_a_class_method(theirs: ModuleType) -> None:
    assert type(theirs.Model.build.local(2)) is theirs.Model
    assert type(theirs.Sub.build.local(2)) is theirs.Sub
    assert type(theirs.Sub.build_too.local(size=2)) is theirs.Sub
    assert type(theirs.Sub().build.local(2)) is theirs.Sub


def test_a_class_method_of_a_class_in_a_function_knows_its_class_as_well() -> None:
    class Local:
        @classmethod
        @kinetic.run(accelerator="cpu")
        def build(cls):
            return cls

    assert Local.build.local() is Local  # type: ignore[call-arg]


def test_local_works_for_partials_and_instances() -> None:
    class Doubles:
        def __call__(self, number):
            return number * 2

    on_cpu = kinetic.run(accelerator="cpu")

    assert on_cpu(partial(pow, 2)).local(5) == 32
    assert on_cpu(Doubles()).local(4) == 8


def test_a_parameter_may_have_any_name() -> None:
    @kinetic.run(accelerator="cpu")
    def named(self: int, **others: int) -> tuple[int, dict[str, int]]:
        return self, others

    _, calls = record_inputs(lambda number: named.run_async(self=number, function=2), [1], "auto")

    assert named.local(self=1, function=2) == (1, {"function": 2})
    assert [(call.args, call.kwargs) for call in calls] == [((), {"self": 1, "function": 2})]


# ------------------------------------------------------------------------------------------------- other options


@pytest.mark.parametrize(("name", "instead"), [("remote", "run_async(…)"), ("starmap", "run_async_map(inputs)")])
def test_what_other_tools_call_a_call_is_answered_with_what_it_is_called_here(name: str, instead: str) -> None:
    @kinetic.run(accelerator="cpu")
    def train() -> None: ...

    assert not hasattr(train, name)
    with pytest.raises(AttributeError, match=rf"'RemoteCallable' object has no attribute '{name}'; .*train") as raised:
        getattr(train, name)(0.1)

    assert instead in str(raised.value)
    assert "docs/moving.md" in str(raised.value)


def test_with_options_is_the_same_function_with_other_options(theirs: ModuleType) -> None:
    other = theirs.train.with_options(accelerator="gpu-l4", spot=True, deadline=60)

    assert (other._options.accelerator, other._options.spot, other._options.deadline) == ("gpu-l4", True, 60)
    assert other.__wrapped__ is theirs.train.__wrapped__
    assert other.__name__ == "train"


def test_options_is_another_name_of_with_options(theirs: ModuleType) -> None:
    assert theirs.train.options(spot=True)._options == theirs.train.with_options(spot=True)._options
    assert theirs.train.options(spot=True)._options.spot


def test_with_options_leaves_the_original_as_it_was(theirs: ModuleType) -> None:
    theirs.train.with_options(accelerator="gpu-l4")

    assert theirs.train._options.accelerator == "cpu"


def test_with_options_keeps_what_is_not_named() -> None:
    function = kinetic.run(accelerator="cpu", capture_env_vars=["A"], output_dir="/out")(lambda: 1)

    other = function.with_options(spot=True)._options

    assert (other.accelerator, other.capture_env_vars, other.output_dir) == ("cpu", ("A",), "/out")


def test_with_options_keeps_the_instance_that_it_is_bound_to(theirs: ModuleType) -> None:
    assert theirs.Model(3).fit.with_options(spot=True).local(2) == 6


def test_with_options_keeps_the_class_that_it_was_reached_through(theirs: ModuleType) -> None:
    assert type(theirs.Sub.build.with_options(spot=True).local(2)) is theirs.Sub


def test_with_options_refuses_a_name_that_is_no_option_and_names_the_nearest(theirs: ModuleType) -> None:
    with pytest.raises(OptionError, match="'acelerator' is not an option") as raised:
        theirs.train.with_options(acelerator="cpu")

    assert "accelerator" in raised.value.why


@pytest.mark.parametrize("deadline", [0, -1, float("inf"), float("nan")])
def test_with_options_refuses_a_deadline_that_cannot_be_met(theirs: ModuleType, deadline: float) -> None:
    with pytest.raises(OptionError, match="not a positive number of seconds"):
        theirs.train.with_options(deadline=deadline)


@pytest.mark.parametrize("deadline", [True, [1]])
def test_with_options_refuses_a_deadline_that_is_no_number(theirs: ModuleType, deadline) -> None:
    with pytest.raises(TypeError, match="not a number of seconds"):
        theirs.train.with_options(deadline=deadline)


# ------------------------------------------------------------------------------------------------- two names, one way


def test_submit_is_run_async(theirs: ModuleType) -> None:
    assert theirs.train.submit == theirs.train.run_async
    assert theirs.Model.build.submit.__func__ is theirs.Model.build.run_async.__func__


# ------------------------------------------------------------------------------------------------- pickled and copied


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_it_pickles_as_the_plain_function(theirs: ModuleType, pickler) -> None:
    arrived = pickle.loads(pickler.dumps(theirs.train))

    assert arrived is theirs.train.__wrapped__


def test_a_bound_one_pickles_as_the_bound_plain_method(theirs: ModuleType) -> None:
    arrived = pickle.loads(pickle.dumps(theirs.Model(3).fit))

    assert arrived.__func__ is theirs.Model.fit.__wrapped__
    assert arrived(2) == 6


def test_a_function_that_is_found_under_its_own_name_pickles_as_itself(theirs: ModuleType) -> None:
    assert pickle.loads(pickle.dumps(theirs.renamed)) is theirs.undecorated


def test_the_pickle_says_nothing_of_options(theirs: ModuleType) -> None:
    data = pickle.dumps(theirs.train.with_options(output_dir="/home/secret"))

    assert b"secret" not in data
    assert b"RemoteCallable" not in data


@pytest.mark.parametrize("options", [{}, {"retries": 1}])
def test_a_method_that_submits_pickles_as_that_of_the_decorated_function(theirs: ModuleType, options) -> None:
    method = theirs.train.with_options(**options).run_async if options else theirs.train.run_async

    arrived = pickle.loads(pickle.dumps(method))
    passed_on = pickle.loads(cloudpickle.dumps(pickle.loads(cloudpickle.dumps(method))))  # as by Dask's scheduler

    assert (arrived == method) is (not options)
    assert arrived.__self__.is_alike(method.__self__)
    assert passed_on.__self__.is_alike(method.__self__)


def test_a_method_that_submits_keeps_options_that_were_changed(theirs: ModuleType) -> None:
    url = "https://hooks.test/c0ffee"
    changed = theirs.train.with_options(accelerator="gpu-l4", on_done=url)

    arrived = pickle.loads(pickle.dumps(changed.run_async)).__self__

    assert arrived.is_alike(changed)
    assert pickle.loads(pickle.dumps(theirs.Model(3).fit.run_async)).__self__.local(2) == 6


def test_a_method_that_submits_says_no_address_where_a_job_returns_it(theirs: ModuleType, monkeypatch) -> None:
    changed = theirs.train.with_options(on_done="https://hooks.test/c0ffee")
    monkeypatch.setenv("KINETIC_JOB_ID", "cpu-train-20261128-000000-0000000")

    assert b"c0ffee" not in pickle.dumps(changed.run_async)


def test_what_a_function_refers_to_that_is_pickled_by_value_stays_decorated(theirs: ModuleType) -> None:
    on_gpu = theirs.train.with_options(accelerator="gpu-l4")

    @kinetic.run(accelerator="cpu")
    def nested(number):
        return nested.local(number - 1) if number else 0

    def refers():
        return theirs.train, on_gpu, nested

    by_name, changed, by_value = pickle.loads(cloudpickle.dumps(refers))()

    assert by_name is theirs.train
    assert changed.is_alike(on_gpu)
    assert isinstance(by_value, kinetic.RemoteCallable)
    assert by_value.local(3) == 0


def test_a_nested_one_travels_by_value() -> None:
    offset = 3

    @kinetic.run(accelerator="cpu")
    def nested(number):
        return number + offset

    assert pickle.loads(cloudpickle.dumps(nested))(1) == 4
    assert pickle.loads(cloudpickle.dumps(nested.local))(1) == 4


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy])
def test_copying_gives_the_very_same_as_with_a_function(theirs: ModuleType, do) -> None:
    assert do(theirs.train) is theirs.train
    assert do({"f": [theirs.train]})["f"][0] is theirs.train


def test_a_decorated_function_is_known_by_its_mark(theirs: ModuleType) -> None:
    assert references.plain(theirs.train) is theirs.train.__wrapped__
    assert references.plain(theirs.undecorated) is theirs.undecorated
    assert references.plain(theirs) is theirs


# ------------------------------------------------------------------------------------------------- binding


def test_the_class_gives_the_function_and_the_instance_a_bound_one(theirs: ModuleType) -> None:
    model = theirs.Model(3)

    assert theirs.Model.fit is vars(theirs.Model)["fit"]
    assert model.fit.__name__ == "fit"
    assert isinstance(model.fit, kinetic.RemoteCallable)


def test_decorators_above_that_ask_what_is_wrapped_find_the_function_and_nothing_of_ours(theirs: ModuleType) -> None:
    train = theirs.train

    assert inspect.unwrap(train) is train.__wrapped__
    assert inspect.unwrap(type(train).__call__) is type(train).__call__  # else beartype reads our hints for it


def test_tools_find_of_the_function_what_they_ask_for(theirs: ModuleType) -> None:
    train = theirs.train

    assert train.__globals__ is vars(theirs)  # Airflow's task resolves the hint of the returned value in them
    assert train.__code__ is train.__wrapped__.__code__  # joblib's Memory compares it
    assert typing.get_type_hints(train.__call__) == {}  # Dagster's op takes ~R for the type of the value
    assert inspect.signature(train, follow_wrapped=False) == inspect.signature(train.__wrapped__)  # as Kedro asks
    assert list(inspect.signature(theirs.Model(3).fit, follow_wrapped=True).parameters) == ["rate"]
    assert not hasattr(theirs.Model(3).fit, "__code__")
    assert not hasattr(kinetic.run(accelerator="cpu")(partial(train.local, 1)), "__code__")


def test_a_bound_one_keeps_its_signature_without_the_instance(theirs: ModuleType) -> None:
    assert list(inspect.signature(theirs.Model.fit).parameters) == ["self", "rate"]


@pytest.mark.skipif(sys.version_info < (3, 13), reason="before 3.13 classmethod binds us itself")
def test_a_class_method_whose_class_is_not_clear_asks_for_it(theirs: ModuleType) -> None:
    kept = [theirs.Model.build, theirs.Sub.build]

    with pytest.raises(CallableError, match="not clear for which class"):
        _ = kept[0].run_async


# ------------------------------------------------------------------------------------------------- inside a job


def test_inside_a_job_a_call_runs_in_this_process(
    theirs: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KINETIC_JOB_ID", "cpu-train-20261120-143000-1a2b3c4")

    values = [theirs.train(0.5, epochs=2), theirs.train(1.0), theirs.Model(3).fit(2)]

    assert values == [1.0, 1.0, 6]
    told = capsys.readouterr().err
    assert told.count("train() was called inside a job and runs in this process") == 1


def test_inside_a_job_nothing_can_be_submitted(theirs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_JOB_ID", "cpu-train-20261120-143000-1a2b3c4")

    for way in ("run_async", "submit"):
        with pytest.raises(CallableError, match="cannot be submitted from inside a job") as raised:
            getattr(theirs.train, way)(0.5)

        assert "cpu-train-20261120-143000-1a2b3c4" in raised.value.why
    assert os.environ["KINETIC_JOB_ID"]
