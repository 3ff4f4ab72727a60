"""When pickling fails, the message leads to the one value that is at fault."""

from __future__ import annotations

import functools
import re
import sys
import threading
import types
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import cloudpickle
import pytest

from kinetic._project import pickler
from kinetic._project.root import Plan
from kinetic._stores.memory import MemoryStore
from kinetic.errors import ArgumentNotPicklableError

DB = SimpleQueue()


@dataclass
class Box:
    inside: object


class Model:
    def __init__(self, queue=None):
        self.queue = queue or SimpleQueue()

    def fit(self):
        return 1

    def __call__(self):
        return 1


class Slotted:
    __slots__ = ("hidden",)

    def __init__(self):
        self.hidden = SimpleQueue()


class Refuses:
    def __reduce__(self):
        raise ValueError("I will not")

    def __repr__(self):
        return "<a stubborn one>"


def old_name(method):
    def renamed():
        return method()

    return renamed


class Solver(SimpleQueue):
    """As a model of ortools: what Python cannot pickle has old names for its own methods."""

    def __init__(self):
        self.Add = old_name(self.add)

    def add(self):
        return 1


class Mute:
    def __init__(self):
        self.queue = SimpleQueue()

    def __repr__(self):
        raise ValueError("I have no words")


def train(*args, **named):
    return 1


@pytest.fixture(autouse=True)
def by_value():
    """Pickle what this file defines like a script's: by value, so that everything in it is looked into."""
    import sys

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def refusal(function, *args, **named) -> str:
    """Pack a call that cannot be packed, and return what is said about it."""
    call = pickler.Call(function, args, named, getattr(function, "__name__", "it"))
    plan = Plan(Path("/nowhere"), "", "", ("",))
    with pytest.raises(ArgumentNotPicklableError) as raised:
        pickler.pack_call(call, plan, MemoryStore(__name__), ("job/function", "job/arguments"))
    return str(raised.value)


def path_in(text: str) -> str:
    return text.partition(" cannot be pickled [not-picklable]")[0]


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


ARGUMENTS = {
    "argument 2 → ['model'].queue": lambda: refusal(train, 1, 2, {"model": Model()}),
    "argument 0": lambda: refusal(train, DB),
    "argument 1 → .queue": lambda: refusal(train, 1, Model()),
    "argument 'model' → .queue": lambda: refusal(train, model=Model()),
    "argument 'grid' → [1]['a'].queue": lambda: refusal(train, grid=[1, {"a": Model()}]),
    "argument 0 → [0][1]": lambda: refusal(train, [(1, DB)]),
    "argument 0 → [1]": lambda: refusal(train, deque([1, DB])),
    "argument 0 → .inside.inside[0].queue": lambda: refusal(train, Box(Box([Model()]))),
    "argument 0 → .hidden": lambda: refusal(train, Slotted()),
    "argument 0 → ['solver']": lambda: refusal(train, {"solver": Solver()}),
    "argument 0 → ['add'].__self__": lambda: refusal(train, {"add": Solver().add}),
    "argument 0 → .args[0].queue": lambda: refusal(train, functools.partial(train, Model())),
    "argument 0 → .keywords['model'].queue": lambda: refusal(train, functools.partial(train, model=Model())),
}


@pytest.mark.parametrize("path", ARGUMENTS)
def test_the_path_leads_from_the_argument_to_the_value(path: str) -> None:
    assert path_in(ARGUMENTS[path]()) == path


def test_the_value_its_type_and_the_reason_are_told() -> None:
    text = refusal(train, 1, {"model": Model()})

    assert re.search(
        r"^why:   <_queue\.SimpleQueue object at 0x\w+> is a _queue\.SimpleQueue: cannot pickle", text, re.MULTILINE
    )
    assert "next:  create it inside the function, or pass what it is made from" in text


def test_a_value_that_refuses_by_itself_is_the_end_of_the_path() -> None:
    text = refusal(train, [Refuses()])

    assert path_in(text) == "argument 0 → [0]"
    assert "<a stubborn one> is a " in text
    assert "I will not" in text


def test_a_value_without_a_repr_is_named_by_its_type() -> None:
    assert path_in(refusal(train, {Mute(): 1})) == "the key <Mute> of argument 0 → .queue"


def test_an_element_of_a_set_is_told_by_its_repr() -> None:
    assert re.fullmatch(
        r"the element <.*Model object at \w+> of argument 0 → \.queue", path_in(refusal(train, {Model()}))
    )


def test_a_generator_is_told_as_it_is() -> None:
    text = refusal(train, (number for number in [1]))

    assert path_in(text) == "argument 0"
    assert "is a builtins.generator" in text


def test_the_first_of_several_culprits_is_named() -> None:
    assert path_in(refusal(train, [1], {"b": DB}, DB)) == "argument 1 → ['b']"


def test_a_loop_of_references_does_not_hold_us() -> None:
    ring: dict = {"queue": [DB]}
    ring["self"] = ring
    ring["queue"].insert(0, ring)

    assert path_in(refusal(train, ring)) == "argument 0 → ['queue'][1]"


# ------------------------------------------------------------------------------------------------- functions


def helper():
    return DB


def reads():
    return DB


def calls_a_helper():
    return helper()


def reads_inside():
    def inner():
        return DB

    return inner()


def has_a_default(queue=DB):
    return queue


def has_a_named_default(*, queue=DB):
    return queue


def reads_an_attribute_of_that_name(thing, queue=DB):
    return thing.DB


def closes_over():
    queue = SimpleQueue()

    def inner():
        return queue

    return inner


def carries_an_attribute():
    return 1


carries_an_attribute.queue = DB

FUNCTIONS = {
    "global 'DB' read by reads()": lambda: refusal(reads),
    "global 'DB' read by helper()": lambda: refusal(calls_a_helper),
    "global 'DB' read by reads_inside()": lambda: refusal(reads_inside),
    "global 'DB' read by <lambda>()": lambda: refusal(train, lambda: DB),
    "variable 'queue' that inner() closes over": lambda: refusal(closes_over()),
    "default 0 of has_a_default()": lambda: refusal(has_a_default),
    "default of 'queue' of has_a_named_default()": lambda: refusal(has_a_named_default),
    "default 0 of reads_an_attribute_of_that_name()": lambda: refusal(reads_an_attribute_of_that_name),
    "attribute 'queue' of carries_an_attribute()": lambda: refusal(carries_an_attribute),
    "the instance of Model.fit() → .queue": lambda: refusal(Model().fit),
    "the instance of a method() → .queue": lambda: refusal(types.MethodType(functools.partial(train), Model())),
    "the function it → .args[0].queue": lambda: refusal(functools.partial(train, Model())),
    "the function it → .queue": lambda: refusal(Model()),
}


@pytest.mark.parametrize("path", FUNCTIONS)
def test_the_path_leads_through_functions_to_what_they_read(path: str) -> None:
    assert path_in(FUNCTIONS[path]()) == path


def test_the_path_says_how_a_function_of_a_library_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    library, queue = types.ModuleType("library_of_views"), DB
    library.__file__ = "/env/site-packages/library_of_views.py"
    monkeypatch.setitem(sys.modules, library.__name__, library)

    def view():
        return queue

    view.__module__ = library.__name__

    assert path_in(refusal(train, {"views": [view]})) == (
        "argument 0 → ['views'][0]: variable 'queue' that view() closes over"
    )


class Guarded:
    guard = DB


class Inherits(Guarded):
    pass


class InMethod:
    def method(self):
        return DB


class InStatic:
    @staticmethod
    def static():
        return DB


class InProperty:
    @property
    def shown(self):
        return DB


class InInit:
    def __init__(self):
        self.locks = [DB][1:]


CLASSES = {
    "Guarded.guard": Guarded,
    "global 'DB' read by method()": InMethod,
    "global 'DB' read by static()": InStatic,
    "global 'DB' read by shown()": InProperty,
    "global 'DB' read by __init__()": InInit,
}


@pytest.mark.parametrize("path", CLASSES)
@pytest.mark.parametrize("as_instance", [False, True], ids=["the class", "an instance"])
def test_the_path_leads_into_a_class_of_the_script(path: str, as_instance: bool) -> None:
    kind = CLASSES[path]

    assert path_in(refusal(train, kind() if as_instance else kind)) == path


def test_the_path_leads_into_the_class_that_a_class_inherits_from() -> None:
    assert path_in(refusal(train, Inherits())) == "Guarded.guard"


# ------------------------------------------------------------------------------------------------- too deep, or too odd


def test_a_nest_that_is_too_deep_is_said_to_be_too_deep_and_not_followed_to_its_end() -> None:
    text = refusal(train, 1, {"deep": nested(50_000)})

    assert text.splitlines()[0] == "argument 1 is nested too deeply to be pickled [not-picklable]"
    assert "flatten it" in text


class TooLarge:
    """As a text of which there is no room for a copy."""

    def __reduce__(self):
        raise MemoryError


def test_a_lack_of_memory_is_not_blamed_on_the_kind_of_an_argument() -> None:
    text = refusal(train, {"text": TooLarge()})

    assert text.splitlines()[0] == "there was not enough memory to pickle the call [not-picklable]"
    assert "kinetic.Data" in text


def test_parts_that_pickle_alone_but_not_together_are_said_to() -> None:
    failed = pickler.unpicklable([("argument 0", 1)], lambda value: None, ValueError("too much"))

    assert "each of its parts can be pickled alone" in failed.why
    assert "ValueError: too much" in failed.why


def test_a_long_repr_is_cut() -> None:
    text = refusal(train, {"x" * 500: DB})

    assert len(text.splitlines()[0]) < 150


class Guarded:
    """As many classes: it holds a lock."""

    def __init__(self):
        self.lock = threading.Lock()


def closes_over_a_lock():
    lock = threading.Lock()

    def inner():
        return lock

    return inner


@pytest.mark.parametrize(
    ("refused", "path"),
    [
        (lambda: refusal(train, {"a": [threading.Lock()]}), "argument 0 → ['a'][0]"),
        (lambda: refusal(train, 1, model=Guarded()), "argument 'model' → .lock"),
        (lambda: refusal(closes_over_a_lock()), "variable 'lock' that inner() closes over"),
    ],
)
def test_a_lock_that_is_given_to_the_job_is_refused_as_the_two_would_not_share_it(refused, path) -> None:
    assert path_in(refused()) == path
