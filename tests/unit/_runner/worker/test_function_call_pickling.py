"""What leaves a job goes by reference wherever the other side finds it, and by value only where it has no name."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import io
import pickle
import random
import sys
import threading
import tracemalloc
from collections import namedtuple
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Self
from zipfile import ZipFile

import pytest

from kinetic._runner.worker import function_call
from kinetic._wire import reducers


class Color(enum.Enum):
    RED = 1


class Model:
    shared: list = []  # noqa: RUF012 - what a pickle by value would reset

    class Inner:
        pass


class KeywordOnlyError(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


class OfTheSystemError(OSError):
    def __init__(self, path):
        super().__init__(2, "gone", path)
        self.path = path


class WithSlotsError(ValueError):
    __slots__ = ("axis", "unset")

    def __init__(self, axis):
        self.axis = axis

    def __str__(self):
        return f"no axis {self.axis}"


class CarriesError(Exception):
    def __init__(self, name):
        super().__init__(f"no {name}")

    def __reduce__(self):
        return CarriesError, ("itself",)


class SilentError(Exception):
    """As those of beartype: it leaves what it is about behind, and its message with that."""

    def __str__(self):
        return self.args[0]

    def __reduce__(self):
        return SilentError.__new__, (SilentError,), {"parameter": "x"}


class ComputesError(Exception):
    """It says by itself what its args are, and nothing can give it others."""

    def __init__(self, field):
        self.field = field

    @property
    def args(self):
        return (f"{self.field} is missing",)

    def __reduce__(self):
        return ComputesError, (self.field,)


class MissesError(ImportError):
    def __init__(self, what):
        super().__init__(f"no {what}", name=what)


def helper(number):
    return number + 1


def dumped(value: object) -> bytes:
    file = io.BytesIO()
    function_call.dump_value(value, file)
    return file.getvalue()


def returned(value: object):
    return pickle.loads(dumped(value))


@pytest.mark.parametrize("thing", [helper, Model, Model.Inner, Color, Path, sorted, pickle.Pickler])
def test_what_has_a_name_goes_by_it(thing) -> None:
    assert returned(thing) is thing


def test_a_function_without_a_name_keeps_the_file_that_it_is_in_and_so_do_those_inside_it() -> None:
    code = returned(lambda: lambda: 1).__code__
    inner = next(each for each in code.co_consts if isinstance(each, CodeType))

    assert code.co_filename == inner.co_filename == __file__


def test_an_enumeration_member_is_the_same_one() -> None:
    assert returned(Color.RED) is Color.RED


def test_an_instance_of_a_named_class_leaves_the_class_alone() -> None:
    Model.shared.append(1)

    assert type(returned(Model())) is Model
    assert Model.shared == [1]
    assert b"shared" not in dumped(Model())


def test_what_has_no_name_goes_by_value() -> None:
    offset = 3

    class Local:
        number = 4

    assert returned(lambda number: number + offset)(1) == 4
    assert returned(Local).number == 4
    assert returned(Local()).number == 4


def test_a_class_of_the_script_goes_by_its_name_in_main(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("class Point:\n    kept = []", main.__dict__)

    data = dumped(main.Point())

    assert b"__main__" in data
    assert b"kept" not in data
    assert type(pickle.loads(data)) is main.Point


def test_what_came_by_value_from_a_module_that_did_not_ship_goes_back_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("left_on_the_client")
    text = "class Point:\n    kept = []\ndef twice(n): return 2 * n"
    exec(compile(text, "left_on_the_client.py", "exec"), module.__dict__)

    data = dumped([module.Point, module.twice])  # as in a job: the module is not there

    monkeypatch.setitem(sys.modules, "left_on_the_client", module)
    assert pickle.loads(data) == [module.Point, module.twice]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """A script in ``__main__``; what is called ends it, as for a job that follows, or the command line."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("import dataclasses\nTABLE = b''\n@dataclasses.dataclass\nclass Point:\n    x: int\n", main.__dict__)
    exec("class Heavy:\n    def read(self):\n        return TABLE\ndef twice(n): return 2 * n", main.__dict__)
    main.__dict__["end"] = lambda: monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    return main


def test_what_only_the_script_has_is_made_from_its_copy_in_another_program(script) -> None:
    data = dumped([script.Point(3), script.Point(4), script.twice])

    script.end()
    one, other, twice = pickle.loads(data)

    assert (type(one).__name__, one.x, other.x, twice(2)) == ("Point", 3, 4, 4)
    assert type(one) is type(other)


def test_a_class_of_the_script_that_reads_much_goes_by_its_name_alone(script) -> None:
    script.TABLE = bytes(function_call._COPY_BYTES)

    data = dumped(script.Heavy())

    assert type(pickle.loads(data)) is script.Heavy
    assert len(data) < 200
    script.end()
    with pytest.raises(AttributeError, match="Heavy"):
        pickle.loads(data)


def test_a_copy_that_another_python_compiled_is_not_run(script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    data = dumped(script.Point(3))
    monkeypatch.undo()

    assert "Point" not in vars(sys.modules["__main__"])
    with pytest.raises(AttributeError, match=r"'Point'; its copy needs Python 3\.99\.0"):
        pickle.loads(data)


def test_a_named_tuple_that_was_made_in_the_job_can_be_opened() -> None:
    def made_in_a_function():
        return namedtuple("Row", "index loss")(1, 0.5)  # type: ignore[call-arg] # noqa: PYI024 - as pandas makes it

    row = made_in_a_function()

    assert returned(row) == row
    assert returned([row])[0].loss == 0.5


@pytest.mark.parametrize(
    "error",
    [
        KeywordOnlyError(code=3),
        OfTheSystemError("/x"),
        MissesError("jax"),
        ValueError(1, 2),
        WithSlotsError(3),
        CarriesError("y"),
    ],
)
def test_an_exception_arrives_whatever_its_constructor_takes(error: Exception) -> None:
    error.add_note("a note")

    arrived = returned(error)

    assert type(arrived) is type(error)
    if not isinstance(error, CarriesError):
        assert arrived.args == error.args
        assert str(arrived) == str(error)
        assert vars(arrived) == vars(error)


def test_the_fields_of_built_in_exceptions_arrive_in_those_that_inherit_them() -> None:
    gone, missing, stopped = returned(OfTheSystemError("/x")), returned(MissesError("jax")), returned(StopIteration(3))

    assert (gone.errno, gone.filename) == (2, "/x")
    assert missing.name == "jax"
    assert stopped.value == 3


def test_an_exception_that_reduces_itself_is_left_to_do_so() -> None:
    assert str(returned(CarriesError("y"))) == "no itself"


def test_an_exception_that_reduces_itself_without_its_message_keeps_that() -> None:
    arrived = returned(SilentError("x is not an int", object()))

    assert (str(arrived), arrived.args, arrived.parameter) == ("x is not an int", ("x is not an int",), "x")


def test_an_exception_that_computes_its_args_arrives() -> None:
    assert returned(ComputesError("x")).args == ("x is missing",)


def test_an_exception_that_compiled_code_reduces_is_left_to_it() -> None:
    pydantic = pytest.importorskip("pydantic")
    with pytest.raises(pydantic.ValidationError) as raised:
        pydantic.TypeAdapter(int).validate_python("many")

    assert returned(raised.value).errors() == raised.value.errors()


class OfAClassError(ExceptionGroup):
    def __new__(cls, message, exceptions, kind):
        error = super().__new__(cls, message, exceptions)
        error.kind = kind
        return error


def test_an_exception_group_brings_what_its_class_takes_besides_its_members() -> None:
    group = returned(OfAClassError("While structuring", [ValueError("no")], int))

    assert repr(group.exceptions) == "(ValueError('no'),)"
    assert (group.kind, group.message, str(group)) == (int, "While structuring", "While structuring (1 sub-exception)")


def test_an_exception_group_brings_its_members() -> None:
    group = returned(ExceptionGroup("two", [ValueError(1), KeywordOnlyError(code=3)]))

    assert [type(error) for error in group.exceptions] == [ValueError, KeywordOnlyError]
    assert group.exceptions[1].code == 3


def test_a_large_buffer_is_handed_over_without_a_copy() -> None:
    class Sink:
        def __init__(self):
            self.largest = 0

        def write(self, data):
            self.largest = max(self.largest, memoryview(data).nbytes)

    sink = Sink()
    function_call.dump_value([bytes(8 << 20)], sink)

    assert sink.largest == 8 << 20


class Proxy:
    @property
    def __class__(self) -> type:  # type: ignore[override] # what it stands for
        return int


class Wanting:
    def __new__(cls, size: int) -> Self:
        return super().__new__(cls)


def test_of_many_objects_of_a_class_that_python_pickles_by_itself_one_is_asked_for(monkeypatch) -> None:
    asked: list[type] = []
    kind = function_call.pickler_class()
    ask = kind.reduced

    def reduced(self: Any, obj: Any) -> Any:
        asked.append(type(obj))
        return ask(self, obj)

    monkeypatch.setattr(kind, "reduced", reduced)
    values = [dt.date(2020, 1, day) for day in range(1, 29)], [Path(str(number)) for number in range(9)]
    file = io.BytesIO()

    function_call.dump_value(values, file)

    assert pickle.loads(file.getvalue()) == values
    assert asked.count(dt.date) == 1
    assert asked.count(type(values[1][0])) == 1


@pytest.mark.parametrize(
    "value",
    [object(), threading.Lock(), functools.partial(len), random.Random(1), Proxy(), Wanting(1), ValueError("no"), len],
    ids=lambda value: type(value).__name__,
)
def test_objects_that_are_not_alike_are_each_asked_for(value: object) -> None:
    assert not reducers._has_plain_objects(type(value))


def test_an_object_whose_class_has_a_property_for_its_module_as_a_proxy_has_is_pickled() -> None:
    class Named:
        def __init__(self) -> None:
            self.value = 4

        @property
        def __module__(self) -> str:  # type: ignore[override] # of what it stands for
            return "elsewhere"

    function_call.dump_value([Named(), Named()], file := io.BytesIO())

    assert [each.value for each in pickle.loads(file.getvalue())] == [4, 4]


class Rows(dict):
    looked_through = 0

    def values(self):
        Rows.looked_through += 1
        return super().values()


@pytest.mark.parametrize(("beside", "times"), [(lambda: iter([]), 0), (threading.Event, 1)])
def test_a_value_is_looked_through_for_locks_only_where_one_cannot_be_pickled(beside, times):
    Rows.looked_through = 0

    function_call.dump_value([Rows(a=1), beside(), beside()], io.BytesIO(), anew=True, in_part=True)

    assert Rows.looked_through == times


def test_in_place_of_an_object_with_a_destructor_is_one_text_and_no_object_of_texts(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "all.zip", "w") as archive:
        function_call.dump_value({"archive": archive, "loss": 3}, file := io.BytesIO(), anew=True, in_part=True)

    kept = pickle.loads(file.getvalue())

    assert kept["archive"].startswith("<zipfile.ZipFile filename=")
    assert kept["loss"] == 3


class WithDestructor:
    def __init__(self) -> None:
        self.data = bytearray(4 << 20)

    def __del__(self) -> None:
        """Close nothing."""


def test_a_large_object_with_a_destructor_is_not_copied_to_see_whether_all_of_it_can_be_kept() -> None:
    written = 0

    class File:
        def write(self, data: bytes) -> None:
            nonlocal written
            written += memoryview(data).nbytes

    value = [WithDestructor(), threading.Thread()]
    tracemalloc.start()
    try:
        function_call.dump_value(value, File(), anew=True, in_part=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 2 << 20 < written
