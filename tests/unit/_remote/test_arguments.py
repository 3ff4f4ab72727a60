"""What can be decorated, what cannot, and what the refusal says."""

from __future__ import annotations

import asyncio
import functools
import operator
from functools import partial

import pytest

import kinetic
from kinetic._project import pickler
from kinetic._remote import callable as remote_callable
from kinetic.errors import CallableError, KineticError


def plain(number=1):
    return number


async def coroutine():
    return 1


def generator():
    yield 1


async def asynchronous_generator():
    yield 1


class Instance:
    def __call__(self, number=1):
        return number

    def method(self):
        return 1

    async def coroutine_method(self):
        return 1


class Awaited:
    async def __call__(self):
        return 1


class Yields:
    def __call__(self):
        yield 1


class Inherited(Awaited):
    pass


class Slotted:
    __slots__ = ()

    def __call__(self):
        return 1


class LooksLikeACache:
    def __call__(self):
        return 1

    def cache_clear(self):
        """Forget nothing."""

    def cache_info(self):
        """Know nothing."""


FINE = {
    "a function": plain,
    "a lambda": lambda: 1,
    "a partial": partial(plain, 2),
    "a partial of a partial": partial(partial(plain), 2),
    "a bound method": Instance().method,
    "a callable instance": Instance(),
    "an instance with slots": Slotted(),
    "a built-in function": len,
    "a class": Instance,
    "an operator": operator.itemgetter(1),
    "a function that calls asyncio.run": lambda: asyncio.run(coroutine()),
}


@pytest.mark.parametrize("function", FINE.values(), ids=list(FINE))
def test_whatever_can_be_called_and_returns_can_be_decorated(function) -> None:
    decorated = kinetic.run(accelerator="cpu")(function)

    assert decorated.__wrapped__ is function


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_a_descriptor_in_the_wrong_order_is_told_to_swap(kind) -> None:
    with pytest.raises(CallableError) as raised:
        kinetic.run()(kind(plain))

    assert kind.__name__ in raised.value.what
    assert "swap the two lines" in raised.value.next


@pytest.mark.parametrize("cached", [functools.cache(plain), functools.lru_cache(maxsize=3)(plain), LooksLikeACache()])
def test_a_cache_is_told_to_go_above(cached) -> None:
    with pytest.raises(CallableError, match="cached function") as raised:
        kinetic.run()(cached)

    assert "above" in raised.value.next


def test_a_cache_above_the_decorator_is_fine() -> None:
    decorated = functools.cache(kinetic.run(accelerator="cpu")(plain))

    assert isinstance(decorated.__wrapped__, kinetic.RemoteCallable)


@pytest.mark.parametrize("thing", [3, "train", None, [plain], {"a": 1}])
def test_what_cannot_be_called_cannot_run_as_a_job(thing) -> None:
    with pytest.raises(CallableError, match="is not callable"):
        kinetic.run()(thing)


ENDLESS = {
    "a coroutine function": (coroutine, "coroutine"),
    "a generator function": (generator, "generator"),
    "an asynchronous generator function": (asynchronous_generator, "asynchronous generator"),
    "a partial of a coroutine function": (partial(coroutine), "coroutine"),
    "a partial of a partial of a generator function": (partial(partial(generator)), "generator"),
    "a bound method that is a coroutine function": (Instance().coroutine_method, "coroutine"),
    "an instance whose call is a coroutine": (Awaited(), "coroutine"),
    "an instance whose inherited call is a coroutine": (Inherited(), "coroutine"),
    "an instance whose call yields": (Yields(), "generator"),
    "a partial of an instance whose call yields": (partial(Yields()), "generator"),
    "a decorated coroutine function": (functools.wraps(coroutine)(partial(coroutine)), "coroutine"),
}


@pytest.mark.parametrize(("function", "word"), ENDLESS.values(), ids=list(ENDLESS))
def test_what_returns_something_that_lives_only_where_it_was_made_is_refused(function, word: str) -> None:
    with pytest.raises(CallableError, match="cannot run as a job") as raised:
        kinetic.run()(function)

    assert f"is a{'n' if word[0] == 'a' else ''} {word} function" in raised.value.what
    assert ("list(…)" if word == "generator" else "asyncio.run(…)") in raised.value.next
    assert isinstance(raised.value, TypeError)


def test_a_class_that_has_a_coroutine_as_its_call_may_be_decorated_itself() -> None:
    assert kinetic.run()(Awaited).__wrapped__ is Awaited


def test_every_refusal_is_both_ours_and_a_type_error() -> None:
    assert issubclass(CallableError, KineticError)
    assert issubclass(CallableError, TypeError)


NAMES = {
    "of a function": (plain, "plain"),
    "of a lambda": (lambda: 1, "lambda"),
    "of a partial, the function's": (partial(plain, 1), "plain"),
    "of a partial of a partial, the function's": (partial(partial(plain), 1), "plain"),
    "of an instance, the class's": (Instance(), "Instance"),
    "of a partial of an instance, the class's": (partial(Instance()), "Instance"),
    "of a bound method, the method's": (Instance().method, "method"),
    "of a class": (Instance, "Instance"),
    "of a built-in": (len, "len"),
    "of an instance with slots": (Slotted(), "Slotted"),
}


@pytest.mark.parametrize(("function", "name"), NAMES.values(), ids=list(NAMES))
def test_a_name_for_humans_and_ids(function, name: str) -> None:
    assert remote_callable.name_of(function) == name


@pytest.mark.parametrize("name", ["訓練", "größe", "प्रशिक्षण", "train_resnet_with_cosine_schedule_on_imagenet"])
def test_a_name_is_the_functions_own_in_any_script_and_of_any_usual_length(name: str) -> None:
    def function():
        return 1

    function.__name__ = name

    assert remote_callable.name_of(function) == name


def test_a_name_that_python_would_not_take_holds_plain_signs_only_and_has_an_end() -> None:
    def function():
        return 1

    function.__name__ = "träin <of> " + "x" * 600

    assert remote_callable.name_of(function) == "tr-in-of-" + "x" * 247


def test_a_name_without_any_plain_sign_is_job() -> None:
    def function():
        return 1

    function.__name__ = "<訓練>"

    assert remote_callable.name_of(function) == "job"


def test_naming_writes_nothing_onto_the_object() -> None:
    function = partial(plain)

    kinetic.run()(function)

    assert not hasattr(function, "__name__")


# ------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("args", "named"), [((1, 2), {}), ((), {"nmber": 1}), ((1,), {"number": 1})], ids=["too many", "misspelt", "twice"]
)
def test_arguments_that_do_not_fit_are_refused_like_python_does_and_before_anything_is_submitted(args, named) -> None:
    with pytest.raises(TypeError, match=r"plain\(\) cannot be called like this: ") as raised:
        pickler.check_arguments(plain, args, named, "plain")

    assert raised.value.why == "its signature is plain(number=1)"
    assert raised.value.code == "arguments"


@pytest.mark.parametrize("function", FINE.values(), ids=list(FINE))
def test_arguments_that_fit_are_fine(function) -> None:
    takes_one = function in {FINE["a built-in function"], FINE["an operator"]}

    pickler.check_arguments(function, ([1],) if takes_one else (), {}, "function")


def test_what_a_built_in_takes_is_for_the_job_to_find_out() -> None:
    pickler.check_arguments(max, (1, 2), {"nonsense": 1}, "max")


def test_a_decorator_that_adds_an_argument_is_asked_for_its_own() -> None:
    def with_seed(function):
        @functools.wraps(function)
        def inner(*args):
            return function(42, *args)

        return inner

    @with_seed
    def train(seed, rate):
        return seed, rate

    pickler.check_arguments(train, (0.1,), {}, "train")
