"""What of a call travels by reference, what by value, and what arrives in the job's process."""

from __future__ import annotations

import copyreg
import enum
import importlib
import importlib.machinery
import io
import json
import pickle
import pickletools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MethodType, ModuleType, SimpleNamespace

import cloudpickle
import pytest

import kinetic
from kinetic._project import pickler
from kinetic._project.root import Plan
from kinetic._wire import reducers, references

SOURCE = Path(kinetic.__file__).parents[1]

MODULE = """
import enum
import threading
import kinetic

LOCK = threading.Lock()        # cannot be pickled; never needs to be
on_cpu = kinetic.run(accelerator="cpu")

class Color(enum.Enum):
    RED = 1
    BLUE = 2

class Mistake(Exception):
    pass

class Model:
    def __init__(self, size=1):
        self.size = size

    def fit(self, rate):
        return self.size * rate

    @on_cpu
    def train(self, rate):
        with LOCK:
            return self.size * rate

    @classmethod
    @on_cpu
    def build(cls, size):
        return cls(size)

    @staticmethod
    @on_cpu
    def version():
        return "v1"

def helper(number):
    with LOCK:
        return number + 1

@on_cpu
def train(number):
    return helper(number)

def calls_the_decorated_one(number):
    return train(number)
"""

OPENER = """
import json, os, pickle, sys
os.environ["KINETIC_JOB_ID"] = "cpu-test-20261120-143000-1a2b3c4"   # a decorated function runs in this process
function, args = pickle.load(open(sys.argv[1], "rb"))
print(json.dumps(function(*args)))
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Give the test a user's project with a module that ships, a folder outside of it, and a script."""
    root, outside = tmp_path / "project", tmp_path / "outside"
    # What travels by value takes along what it reads, which must be picklable then.
    for folder, name, guard in ((root, "shipped", "with LOCK:"), (outside, "left_behind", "if True:")):
        folder.mkdir()
        (folder / f"{name}.py").write_text(MODULE.replace("with LOCK:", guard))
        monkeypatch.syspath_prepend(folder)
    found = SimpleNamespace(
        root=root,
        plan=Plan(root, "", "", ("",)),
        shipped=__import__("shipped"),
        left_behind=__import__("left_behind"),
        tmp=tmp_path,
    )
    yield found
    for name in ("shipped", "left_behind"):
        del sys.modules[name]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return a function that makes a text the script of this process, as if Python had been started with it."""

    def run(text: str) -> ModuleType:
        module = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec(compile(textwrap.dedent(text), "script.py", "exec"), module.__dict__)
        return module

    return run


def globals_named_in(data: bytes) -> set[str]:
    """Return "module.name" for everything that a pickle takes by reference."""
    found, strings = set(), []
    for code, argument, _ in pickletools.genops(data):
        if isinstance(argument, str) and code.name != "GLOBAL":
            strings.append(argument)
        if code.name == "STACK_GLOBAL":
            found.add(f"{strings[-2]}.{strings[-1]}")
        if code.name == "GLOBAL":
            found.add(argument.replace(" ", "."))
    return found


def packed(theirs: SimpleNamespace, value: object, by_value: tuple[str, ...] = ()) -> tuple[bytes, tuple[str, ...]]:
    rules, file = pickler.PickleRules(theirs.plan, by_value), io.BytesIO()
    pickler.dump(value, file, rules)
    return file.getvalue(), rules.notes()


def called_there(theirs: SimpleNamespace, called: object, *args: object, by_value: tuple[str, ...] = ()) -> object:
    """Pack a call, open it in a process that has the project and nothing else of ours, and return what it returns."""
    data, _ = packed(theirs, (called, args), by_value)
    (theirs.tmp / "payload").write_bytes(data)
    (theirs.tmp / "opener.py").write_text(OPENER)
    done = subprocess.run(
        [sys.executable, str(theirs.tmp / "opener.py"), str(theirs.tmp / "payload")],
        env={"PYTHONPATH": f"{theirs.root}:{SOURCE}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ------------------------------------------------------------------------------------------------- a module that ships


def test_a_function_of_a_module_that_ships_travels_by_reference(theirs: SimpleNamespace) -> None:
    data, notes = packed(theirs, theirs.shipped.helper)

    assert pickle.loads(data) is theirs.shipped.helper
    assert len(data) < 100
    assert notes == ()


def test_a_lock_in_a_module_that_ships_is_nobodys_business(theirs: SimpleNamespace) -> None:
    assert called_there(theirs, theirs.shipped.helper, 1) == 2


def test_a_decorated_function_arrives_decorated_so_that_the_job_can_submit_it(theirs: SimpleNamespace) -> None:
    data, _ = packed(theirs, theirs.shipped.train)

    assert pickle.loads(data).run_async
    assert pickle.loads(data).__wrapped__ is theirs.shipped.train.__wrapped__
    assert called_there(theirs, theirs.shipped.train, 1) == 2


def test_the_function_of_a_decorated_one_arrives_as_it_is(theirs: SimpleNamespace) -> None:
    data, _ = packed(theirs, theirs.shipped.train.__wrapped__)

    assert pickle.loads(data) is theirs.shipped.train.__wrapped__
    assert called_there(theirs, theirs.shipped.train.__wrapped__, 1) == 2


def test_a_decorated_name_that_a_function_calls_runs_in_the_jobs_process(theirs: SimpleNamespace) -> None:
    assert called_there(theirs, theirs.shipped.calls_the_decorated_one, 1) == 2


def test_a_class_keeps_its_identity(theirs: SimpleNamespace) -> None:
    data, _ = packed(theirs, [theirs.shipped.Model, theirs.shipped.Mistake])

    assert pickle.loads(data) == [theirs.shipped.Model, theirs.shipped.Mistake]


def test_an_enumeration_member_keeps_its_identity(theirs: SimpleNamespace) -> None:
    data, _ = packed(theirs, {"color": theirs.shipped.Color.RED})

    assert pickle.loads(data)["color"] is theirs.shipped.Color.RED


def test_an_instance_brings_its_state_and_not_its_class(theirs: SimpleNamespace) -> None:
    data, _ = packed(theirs, theirs.shipped.Model(3))

    arrived = pickle.loads(data)
    assert type(arrived) is theirs.shipped.Model
    assert arrived.size == 3
    assert "shipped.Model" in globals_named_in(data)


METHODS = {
    "a bound method": lambda module: (module.Model(3).fit, (2,)),
    "a bound decorated method": lambda module: (module.Model(3).train, (2,)),
    "the plain function of a decorated method": lambda module: (module.Model.train.__wrapped__, (module.Model(3), 2)),
    "a partial": lambda module: (partial(module.Model.fit, module.Model(3)), (2,)),
    "a method that a partial is": lambda module: (MethodType(partial(module.Model.fit), module.Model(3)), (2,)),
    "a partial of a decorated method": lambda module: (partial(module.Model.train, module.Model(3)), (2,)),
}


@pytest.mark.parametrize("given", METHODS.values(), ids=list(METHODS))
def test_methods_and_partials_arrive(theirs: SimpleNamespace, given) -> None:
    called, args = given(theirs.shipped)

    assert called_there(theirs, called, *args) == 6


def test_a_static_method_arrives(theirs: SimpleNamespace) -> None:
    assert called_there(theirs, theirs.shipped.Model.version) == "v1"


def test_a_module_as_a_value_travels_by_its_name(theirs: SimpleNamespace) -> None:
    data, _ = packed(theirs, theirs.shipped)

    assert pickle.loads(data) is theirs.shipped
    assert len(data) < 200


# ------------------------------------------------------------------------------------------------- installed


def test_what_is_installed_travels_by_reference(theirs: SimpleNamespace) -> None:
    data, notes = packed(theirs, [textwrap.dedent, json.JSONEncoder, cloudpickle.CloudPickler, enum.Enum])

    assert pickle.loads(data) == [textwrap.dedent, json.JSONEncoder, cloudpickle.CloudPickler, enum.Enum]
    assert notes == ()


def test_our_own_errors_travel_by_reference(theirs: SimpleNamespace) -> None:
    data, notes = packed(theirs, kinetic.errors.JobError("what"))

    assert str(pickle.loads(data)) == "what [job-failed]"
    assert notes == ()


# ------------------------------------------------------------------------------------------------- outside


def test_a_function_from_outside_the_project_travels_by_value_and_that_is_said(theirs: SimpleNamespace) -> None:
    data, notes = packed(theirs, theirs.left_behind.helper)

    assert "left_behind.helper" not in globals_named_in(data)
    assert len(notes) == 1
    assert notes[0].startswith("left_behind is sent by value: its file is outside the project: ")
    assert called_there(theirs, theirs.left_behind.helper, 1) == 2


def test_a_compiled_module_from_outside_is_named_and_not_copied(theirs: SimpleNamespace, monkeypatch) -> None:
    compiled = ModuleType("kn_compiled")
    compiled.__file__ = str(theirs.tmp / "outside" / f"kn_compiled{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    monkeypatch.setitem(sys.modules, "kn_compiled", compiled)

    data, notes = packed(theirs, compiled)

    assert len(data) < 200  # the name of the module, and nothing of what is in it
    assert len(notes) == 1
    assert notes[0].startswith("kn_compiled is compiled, so it cannot be sent by value, and its file is outside")
    assert notes[0].endswith(": the job finds it only where it is installed")


def test_a_class_from_outside_works_in_the_job(theirs: SimpleNamespace) -> None:
    assert called_there(theirs, theirs.left_behind.Model(3).fit, 2) == 6


def test_a_package_and_its_module_from_outside_that_name_each_other_work_in_the_job(theirs: SimpleNamespace) -> None:
    package = theirs.tmp / "outside" / "library"
    package.mkdir()
    (package / "__init__.py").write_text("from library import core\nRATE = 3\n")
    (package / "core.py").write_text("import library\n\ndef scaled(x):\n    return x * library.RATE\n")
    library = importlib.import_module("library")

    assert called_there(theirs, library.core.scaled, 2) == 6
    del sys.modules["library"], sys.modules["library.core"]


def test_by_value_may_be_asked_for(theirs: SimpleNamespace) -> None:
    data, notes = packed(theirs, [theirs.shipped.Mistake, theirs.shipped.Color], by_value=("shipped",))

    assert globals_named_in(data).isdisjoint({"shipped.Mistake", "shipped.Color"})
    assert notes == ("shipped is sent by value: it is listed in by_value of [tool.kinetic]",)


def test_cloudpickles_own_list_is_left_as_it_was(theirs: SimpleNamespace) -> None:
    before = cloudpickle.list_registry_pickle_by_value()

    packed(theirs, theirs.left_behind.Model)

    assert cloudpickle.list_registry_pickle_by_value() == before


def test_what_the_user_registered_stays_registered(theirs: SimpleNamespace) -> None:
    cloudpickle.register_pickle_by_value(theirs.left_behind)
    try:
        packed(theirs, theirs.left_behind.Model)

        assert "left_behind" in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(theirs.left_behind)


# ------------------------------------------------------------------------------------------------- the script


def test_a_function_of_the_script_lives_in_the_jobs_own_main(theirs: SimpleNamespace, script) -> None:
    main = script(
        """
        import sys
        COUNT = 3

        def helper(number):
            return number + COUNT

        def main_is_here(number):
            return [helper(number), globals() is sys.modules["__main__"].__dict__, main_is_here.__module__]
        """
    )

    assert called_there(theirs, main.main_is_here, 1) == [4, True, "__main__"]


def test_functions_of_the_script_share_one_namespace(theirs: SimpleNamespace, script) -> None:
    main = script(
        """
        COUNT = 0

        def increment():
            global COUNT
            COUNT += 1

        def count():
            increment()
            increment()
            return COUNT
        """
    )

    assert called_there(theirs, main.count) == 2


def test_a_decorated_function_of_the_script_arrives(theirs: SimpleNamespace, script) -> None:
    main = script(
        """
        import kinetic
        from shipped import Color

        @kinetic.run(accelerator="cpu")
        def inner(number):
            return number * 2

        @kinetic.run(accelerator="cpu")
        def train(number):
            return [inner(number), Color.RED is Color(1)]
        """
    )

    assert called_there(theirs, main.train, 2) == [4, True]


def test_a_class_of_the_script_arrives_with_its_methods(theirs: SimpleNamespace, script) -> None:
    main = script(
        """
        import enum

        class Color(enum.Enum):
            RED = 1

        class Base:
            def name(self):
                return "base"

        class Model(Base):
            def __init__(self):
                self.color = Color.RED

            def name(self):
                return super().name() + " model"

        def look(model):
            return [model.name(), model.color is Color.RED, type(model) is Model]
        """
    )

    assert called_there(theirs, main.look, main.Model()) == ["base model", True, True]


def test_a_lambda_and_a_nested_function_arrive_with_what_they_close_over(theirs: SimpleNamespace, script) -> None:
    main = script(
        """
        def outer(offset):
            def inner(number):
                return number + offset
            return inner

        doubled = lambda number: number * 2
        """
    )

    assert called_there(theirs, main.outer(3), 1) == 4
    assert called_there(theirs, main.doubled, 4) == 8


def test_an_unpicklable_global_that_is_not_read_does_not_matter(theirs: SimpleNamespace, script) -> None:
    main = script(
        """
        import threading
        LOCK = threading.Lock()

        def train(number):
            return number
        """
    )

    assert called_there(theirs, main.train, 3) == 3


# ------------------------------------------------------------------------------------------------- values


def test_arguments_keep_their_types_and_who_is_who(theirs: SimpleNamespace) -> None:
    shared = [1]
    given = {"a": shared, "b": shared, "c": (1, frozenset({2})), "d": theirs.shipped.Color.BLUE}

    data, _ = packed(theirs, given)

    arrived = pickle.loads(data)
    assert arrived == given
    assert arrived["a"] is arrived["b"]
    assert arrived is not given


def test_the_same_call_gives_the_same_bytes(theirs: SimpleNamespace) -> None:
    call = (theirs.shipped.helper, (1, {"a": [2]}), {"rate": 0.1})

    assert packed(theirs, call) == packed(theirs, call)


def test_arguments_are_named_as_error_messages_name_them() -> None:
    assert list(pickler.argument_names((7, 8), {"rate": 9})) == [
        ("argument 0", 7),
        ("argument 1", 8),
        ("argument 'rate'", 9),
    ]


def test_a_trial_of_a_study_that_the_job_gets_a_copy_of_is_told(theirs: SimpleNamespace, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    shared = f"sqlite:///{tmp_path}/study.db"
    in_memory, in_a_file = (optuna.create_study(storage=storage).ask() for storage in (None, shared))
    beside = pickle.loads(pickle.dumps(in_a_file))
    beside.storage._backend.url = "sqlite:///study.db"  # as of a script that was started in its folder

    told = [packed(theirs, trial)[1] for trial in (in_memory, beside, in_a_file)]

    assert [[note[: note.index(",")] for note in notes] for notes in told] == [
        ["the job gets a copy of an Optuna study in memory"],
        ["the job gets a copy of an Optuna study in sqlite:///study.db"],
        [],
    ]


def test_a_full_disk_is_told_without_the_part_of_the_value_that_was_just_being_pickled(theirs: SimpleNamespace) -> None:
    class Full(io.BytesIO):
        def write(self, data: object, /) -> int:
            raise kinetic.errors.StoreError("no room is left")

    with pytest.raises(kinetic.errors.StoreError) as full:  # Python 3.14 would note the dict and the tuple
        pickler.dump({"sign": ("x" * 3_000_000, 1)}, Full(), pickler.PickleRules(theirs.plan))

    assert not hasattr(full.value, "__notes__")


def test_a_class_whose_metaclass_has_a_reduction_with_a_state_is_reduced_by_that(monkeypatch) -> None:
    class Meta(type):
        pass

    class Known(metaclass=Meta):
        pass

    reductions: list[tuple[object, ...]] = [(Meta, ("Known", (), {})), (Meta, ("Known", (), {}), {"unit": "m"})]
    monkeypatch.setitem(copyreg.dispatch_table, Meta, lambda _: reductions[-1])

    assert reducers.of_class(Known, NotImplemented) is NotImplemented  # the pickler's own way, with the state
    del reductions[-1]
    assert reducers.of_class(Known, NotImplemented)[0] is references.made_class
