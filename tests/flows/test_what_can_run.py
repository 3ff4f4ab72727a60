"""Whatever a user decorates runs as a job on this machine, and finds the world it would find here."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

MODULE = """
import enum
import threading
import kinetic

LOCK = threading.Lock()
on_cpu = kinetic.run(accelerator="cpu")

class Color(enum.Enum):
    RED = 1

class Mistake(Exception):
    def __init__(self, code, hint):
        super().__init__(f"{code}: {hint}")
        self.code = code

def helper(number):
    with LOCK:
        return number + 1

@on_cpu
def train(number):
    return helper(number)

@on_cpu
def color():
    return Color.RED

@on_cpu
def mistake():
    raise Mistake(3, "so it is")

class Model:
    def __init__(self, size=1):
        self.size = size

    @on_cpu
    def fit(self, rate):
        return self.size * rate

    def plain(self, rate):
        return self.size + rate

    @classmethod
    @on_cpu
    def build(cls, size):
        return cls(size)

    @staticmethod
    @on_cpu
    def version(major):
        return f"v{major}"

class Sub(Model):
    pass
"""


def last(text: str) -> object:
    """Return the last line that a script printed, as JSON."""
    return json.loads(text.splitlines()[-1])


# ------------------------------------------------------------------------------------------------- functions of modules


def test_functions_methods_and_whatever_can_be_called_run_from_a_module(project) -> None:
    project.write("lib.py", MODULE)

    out = project.out(
        """
        import json
        from functools import partial
        from lib import Model, Sub, helper, on_cpu, train

        class Doubles:
            def __call__(self, number):
                return number * 2

        def outer(offset):
            def inner(number):
                return number + offset
            return inner

        model = Model(3)
        print(json.dumps([
            train(1),
            model.fit(2),
            Model.fit(model, 2),
            model.fit.run_async(2).result(),
            type(Model.build(2)).__name__,
            type(Sub.build(2)).__name__,
            type(Sub.build.run_async(2).result()).__name__,
            type(Sub.build.with_options(deadline=60)(2)).__name__,
            Model.version(3),
            model.version.submit(3).result(),
            on_cpu(model.plain)(1),
            on_cpu(partial(pow, 2))(5),
            on_cpu(partial(helper))(1),
            on_cpu(Doubles())(4),
            on_cpu(lambda number: number + 40)(2),
            on_cpu(outer(3))(1),
            on_cpu(len)([1, 2]),
            on_cpu(Model)(7).size,
        ]))
        """
    )

    expected = [2, 6, 6, 6, "Model", "Sub", "Sub", "Sub", "v3", "v3", 4, 32, 2, 8, 42, 4, 2, 7]
    assert last(out) == expected


def test_what_a_module_defines_keeps_its_identity_on_both_ways(project) -> None:
    project.write("lib.py", MODULE)

    out = project.out(
        """
        import lib

        assert lib.color() is lib.Color.RED
        assert type(lib.Sub.build(2)) is lib.Sub
        try:
            lib.mistake()
        except lib.Mistake as mistake:
            assert mistake.code == 3
            assert str(mistake) == "3: so it is"
            assert any(note.startswith("Remote traceback:\\nTraceback") for note in mistake.__notes__)
            assert "in mistake" in mistake.__notes__[-1]
        else:
            raise SystemExit("it was not raised")
        with lib.LOCK:   # which no job has touched
            print("all well")
        """
    )

    assert "all well" in out


def test_a_package_with_relative_imports_runs(project) -> None:
    project.write("pack/__init__.py", "")
    project.write("pack/deep/__init__.py", "")
    project.write("pack/tools.py", "def double(n): return 2 * n")
    project.write(
        "pack/deep/jobs.py",
        """
        import kinetic
        from ..tools import double

        @kinetic.run(accelerator="cpu")
        def train(n):
            from . import names
            return [double(n), names.NAME, __name__, __package__]
        """,
    )
    project.write("pack/deep/names.py", "NAME = 'deep'")

    out = project.out("import json; from pack.deep.jobs import train; print(json.dumps(train(2)))")

    assert last(out) == [4, "deep", "pack.deep.jobs", "pack.deep"]


# ------------------------------------------------------------------------------------------------- the script itself


def test_the_scripts_own_functions_and_classes_run_and_come_back_as_themselves(project) -> None:
    out = project.out(
        """
        import enum
        from dataclasses import dataclass
        import kinetic

        on_cpu = kinetic.run(accelerator="cpu")
        COUNT = 2

        class Color(enum.Enum):
            RED = 1

        @dataclass(frozen=True)
        class Point:
            x: int

        class Mistake(Exception):
            pass

        class Base:
            kept = []

        class Model(Base):
            def __init__(self, size):
                self.size = size

            @on_cpu
            def fit(self, rate):
                return Point(self.size * rate)

            @classmethod
            @on_cpu
            def build(cls, size):
                return cls(size)

        def helper(number):
            return number + COUNT

        @on_cpu
        def train(color, number):
            global COUNT
            COUNT += 1
            assert color is Color.RED
            return [color, helper(number), Model(3)]

        @on_cpu
        def fails():
            raise Mistake("mine")

        if __name__ == "__main__":
            color, number, model = train(Color.RED, 1)
            assert color is Color.RED
            assert number == 4
            assert COUNT == 2, "the job has its own"
            assert type(model) is Model
            assert Model(3).fit(2) == Point(6)
            assert type(Model.build(2)) is Model
            assert type(Model.build.run_async(2).result()) is Model
            Base.kept.append(1)
            model.fit.run_async(1).result()
            assert Base.kept == [1], "collecting a result must not reset a class"
            try:
                fails()
            except Mistake as mistake:
                print("mine:", mistake)
        """
    )

    assert out.endswith("mine: mine\n")


def test_values_of_the_scripts_classes_reach_jobs_that_follow_and_other_programs(project) -> None:
    text = """
        import enum
        import sys
        from dataclasses import dataclass
        import kinetic

        class Color(enum.Enum):
            RED = 1

        @dataclass
        class Trained:
            rate: float
            color: Color = Color.RED

        @kinetic.run(accelerator="cpu")
        def train(rate):
            return Trained(rate)

        @kinetic.run(accelerator="cpu")
        def best(trained):  # names none of the classes
            return min(trained, key=lambda each: each.rate)

        @kinetic.run(accelerator="cpu")
        def compare(one, other):
            return [one == other, isinstance(one, Trained), one.color is Color.RED, type(one) is type(other)]

        if sys.argv[1] == "submit":
            print(train.run_async(3).job_id, file=open(sys.argv[2], "w"))
        else:
            first, second = (kinetic.attach(open(name).read().strip()) for name in sys.argv[2:])
            assert compare.run_async(first, second).result() == [True] * 4
            assert best.run_async([first, train.run_async(2)]).result() == Trained(2)
            kept = kinetic.attach(first.job_id)
            print(best.run_async([train.run_async(1), kept]).job_id)
        """

    project.out(text, "submit", "first")
    project.out(text, "submit", "second")  # the same classes of another process
    job_id = project.out(text, "follow", "first", "second").strip()

    assert "Trained(rate=1" in project.out(f"import kinetic; print(kinetic.attach({job_id!r}).result())")


def test_the_scripts_classes_travel_whose_bases_are_told_of_them_by_keywords(project) -> None:
    out = project.out(
        """
        import kinetic

        MODELS = {}

        class Root:
            def __init_subclass__(cls, **others):
                super().__init_subclass__(**others)

        class Model(Root):
            def __init_subclass__(cls, /, name, **others):
                super().__init_subclass__(**others)
                assert cls.layers, "a model has layers"
                MODELS[name] = cls

        class Plain(Root): pass

        class ResNet(Plain, Model, name="resnet"):
            layers = 50

        class Wide(ResNet, name="wide"):
            layers = 101

        @kinetic.run(accelerator="cpu")
        def train(name):
            return MODELS[name](), sorted(MODELS), [each.layers for each in MODELS.values()]

        if __name__ == "__main__":
            made, names, layers = train("wide")
            print(type(made) is Wide, names, layers)

            class Later(Model, name="later"):
                layers = 3
            print(sorted(MODELS))
        """
    )

    assert out == "True ['resnet', 'wide'] [50, 101]\n['later', 'resnet', 'wide']\n"


def test_what_the_script_notes_of_its_classes_is_noted_once_in_the_job_and_what_a_library_notes_as_well(
    project,
) -> None:
    project.write(
        "plugins.py",
        "class Plugin:\n    known = []\n    def __init_subclass__(cls): Plugin.known.append(cls.__name__)\n",
    )
    out = project.out(
        """
        import abc
        import kinetic
        import plugins

        MODELS = []

        class Model(plugins.Plugin):
            def __init_subclass__(cls):
                super().__init_subclass__()
                MODELS.append(cls)

        class Small(Model): pass
        class Large(Model): pass

        class Checked(abc.ABCMeta):
            made = []

            def __new__(kind, name, bases, space, tag=None):
                assert not bases or "layers" in space, f"{name} has no layers"
                return super().__new__(kind, name, bases, space)

            def __init__(cls, name, bases, space, tag=None):
                super().__init__(name, bases, space)
                Checked.made.append(tag)

        class Net(metaclass=Checked):
            @abc.abstractmethod
            def run(self): ...

        class Deep(Net, tag="deep"):
            layers = 50
            def run(self): return super().run(), self.layers

        @kinetic.run(accelerator="cpu")
        def train():
            assert Deep.__abstractmethods__ == frozenset()
            return [each.__name__ for each in MODELS], Checked.made, sorted(plugins.Plugin.known), Deep().run()

        if __name__ == "__main__":
            print(train() == train.local(), train())
        """
    )

    assert out == "True (['Small', 'Large'], [None, 'deep'], ['Large', 'Model', 'Small'], (None, 50))\n"


def test_a_class_made_in_a_job_by_a_metaclass_with_new_comes_back(project) -> None:
    out = project.out(
        """
        import kinetic

        class Meta(type):
            def __new__(kind, name, bases, space):
                return super().__new__(kind, name, bases, space)

        @kinetic.run(accelerator="cpu")
        def make():  # as pydantic makes Page[int]
            kind = Meta("Page[int]", (), {"size": 3})
            return kind, kind()

        if __name__ == "__main__":
            kind, page = make()
            print(type(page) is kind, type(kind) is Meta, page.size)
        """
    )

    assert out == "True True 3\n"


def test_the_scripts_classes_with_slots_come_back_as_themselves(project) -> None:
    out = project.out(
        """
        import enum, json
        from dataclasses import dataclass
        from typing import NamedTuple
        import kinetic

        class Meta(type): pass

        @dataclass(slots=True)
        class Point:
            x: int

        @dataclass(slots=True, weakref_slot=True)
        class Deep(Point):
            y: int = 2

        class Private(metaclass=Meta):
            __slots__ = ("__kept", "kind")

            def __init__(self):
                self.__kept, self.kind = 3, Private

            def kept(self):
                return self.__kept

        class Single:
            __slots__ = "only"

        class Open:
            __slots__ = ("x", "__dict__")

        class Pair(NamedTuple):
            x: int

        class Color(enum.Enum):
            __slots__ = ()
            RED = 1

        class Mistake(Exception):
            __slots__ = ("hint",)

            def __init__(self):
                self.hint = 4

        @kinetic.run(accelerator="cpu")
        def back(values):
            return values, [hasattr(value, "__dict__") for value in values]

        single, open_, mistake = Single(), Open(), Mistake()
        single.only, open_.x, open_.free = 1, 2, 3
        sent = [Point(1), Deep(1), Private(), single, Pair(1), Color.RED, open_, mistake]
        (p, d, private, single, pair, red, open_, mistake), dicts = back(sent)
        print(json.dumps([
            p == Point(1), d == Deep(1), private.kept(), private.kind is Private, single.only, pair == Pair(1),
            type(pair) is Pair, red is Color.RED, open_.x, open_.free, mistake.hint, dicts[:4],
        ]))
        """
    )

    assert last(out) == [True, True, 3, True, 1, True, True, True, 2, 3, 4, [False] * 4]


def test_caches_generic_functions_and_names_of_types_of_a_script_run(project) -> None:
    project.write(
        "wrappers.py",
        """
        import functools, threading
        LOCK, CALLS = threading.Lock(), []

        def counted(function):
            @functools.wraps(function)
            def wrapper(*args):
                with LOCK:
                    CALLS.append(args)
                return function(*args)
            return wrapper
        """,
    )
    out = project.out(
        """
        import functools, json, sys, weakref
        from typing import NewType, ParamSpec, TypeVarTuple
        import kinetic, wrappers

        P, Ts, Count = ParamSpec("P"), TypeVarTuple("Ts"), NewType("Count", int)
        if sys.version_info >= (3, 12):
            exec("type Row = list[Row] | dict[str, Row] | Some[int]\\ntype Some[T] = list[T] | None")
        else:
            Row = list

        @functools.cache
        def fibonacci(n):
            return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

        short = functools.lru_cache(maxsize=3)(functools.partial(max, 4))

        @functools.singledispatch
        def kind(value):
            return "other"

        @kind.register
        def _(value: int):
            return "int"

        @wrappers.counted
        def typed(count: Count, *rest: P.args, row: Row = 0) -> tuple[*Ts]:
            return Count(count)

        class Model:
            names = weakref.WeakValueDictionary(own=fibonacci)

            @functools.cached_property
            def size(self):
                return 7

            @functools.lru_cache
            def twice(self, n):
                return 2 * n

            @functools.singledispatchmethod
            def tell(self, value):
                return kind(value)

        @kinetic.run(accelerator="cpu")
        def train(model):
            assert fibonacci.cache_info().currsize == 0 and short.cache_parameters()["maxsize"] == 3
            assert model.names["own"] is fibonacci
            if sys.version_info >= (3, 12):
                row = Row.__value__
                assert str(row) == "list[Row] | dict[str, Row] | Some[int]" and row.__args__[0].__args__[0] is Row
                assert Row.__module__ == "__main__"
                assert Some.__type_params__ == Some.__value__.__parameters__ and str(Some[int]) == "Some[int]"
            values = fibonacci(60), short(3), model.size, model.twice(4), model.tell(1), model.tell(""), typed(9)
            return values, len(wrappers.CALLS), model

        fibonacci(5)
        values, calls, model = train(Model())
        print(json.dumps([*values, calls, type(model) is Model, model.size]))
        """
    )

    assert last(out) == [1548008755920, 4, 7, 8, "int", "other", 9, 1, True, 7]


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_functions_that_jax_has_transformed_at_the_top_of_a_script_run(project) -> None:
    project.write(
        "script.py",
        """
        import json
        import jax
        import kinetic

        def loss(x):
            return x**2

        @jax.jit
        def step(x):
            return 2 * x

        gradient = jax.jit(jax.grad(jax.checkpoint(loss)))

        @jax.custom_vjp
        def clipped(x):
            return x

        clipped.defvjp(lambda x: (x, None), lambda _, cotangent: (cotangent * 5,))

        @kinetic.run(accelerator="cpu")
        def train(x):
            return float(step(x)), float(gradient(x)), float(jax.grad(clipped)(x))

        print(json.dumps(train(3.0)))
        """,
    )

    done = project.run("script.py")

    assert last(done.stdout) == [6, 6, 5], done.stderr


# With the real one where it is installed, as in `make test-torch`.
STAND_IN_FOR_TORCH = """
    import functools, threading

    class Context:
        def __call__(self, fn):
            @functools.wraps(fn)
            def compile_wrapper(*args):
                self.used = True
                return fn(*args)

            compile_wrapper._torchdynamo_orig_callable = fn
            compile_wrapper.aot_compile = threading.Lock()  # something that cannot be pickled
            return compile_wrapper

    def compile(fn=None, backend=""):
        return Context() if fn is None else Context()(fn)
"""


def test_functions_that_torch_has_compiled_at_the_top_of_a_script_run(project) -> None:
    if find_spec("torch") is None:
        project.write("torch.py", STAND_IN_FOR_TORCH)

    out = project.out(
        """
        import json
        import torch
        import kinetic

        SCALE = 3

        @torch.compile(backend="eager")
        def scaled(x):
            return SCALE * x

        added = torch.compile(lambda x: x + SCALE, backend="eager")

        @kinetic.run(accelerator="cpu")
        def train(x):
            is_compiled = scaled is not scaled._torchdynamo_orig_callable
            return scaled(x), added(x), is_compiled

        print(json.dumps(train(2)))
        """,
        timeout=180,
    )

    assert last(out) == [6, 5, True]


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_classes_of_a_script_are_known_to_jax_and_keras_in_the_job_as_they_are_in_the_script(project) -> None:
    project.write(
        "script.py",
        """
        from __future__ import annotations
        import dataclasses
        import json
        import os
        os.environ["KERAS_BACKEND"] = "jax"
        import jax
        import keras
        import kinetic

        SCALE = 2.0
        NOTHING = type(None)  # a pytree as well
        keras.mixed_precision.set_global_policy("mixed_bfloat16")

        class Registers(type):  # as that of equinox: it works with what it finds when the class is made
            def __new__(kind, name, bases, body):
                made = dataclasses.dataclass(super().__new__(kind, name, bases, body))
                jax.tree_util.register_dataclass(made, list(made.__annotations__), [])
                return made

        class Layer(metaclass=Registers):
            weight: float
            bias: float = SCALE

            def __call__(self, x):
                return chain(self, x) if self.depth else [self.weight * value + self.bias for value in [x]][0]

            depth = 0

        @jax.tree_util.register_pytree_node_class
        class Pair(tuple):
            def tree_flatten(self):
                return tuple(self), None

            @classmethod
            def tree_unflatten(cls, _, children):
                return cls(children)

            def first(self):
                return Deep.name

        class Deep(Pair):
            name = "before"

        jax.tree_util.register_pytree_node_class(Deep)
        Deep.name = "set afterwards"

        @keras.saving.register_keras_serializable("mine")
        class Scale(keras.layers.Layer):
            def call(self, x):
                return SCALE * x

        def chain(layer, x):
            return layer.weight * x

        def inner():
            @jax.tree_util.register_pytree_node_class
            class Hidden(Pair): pass
            return Hidden

        Hidden = inner()

        @kinetic.run(accelerator="cpu")
        def train(layer, pair, hidden):
            slope = jax.grad(lambda layer: layer(3.0))(layer) if type(None) is NOTHING else None
            doubled = jax.tree.map(lambda x: 2 * x, pair)
            assert keras.saving.get_registered_object("mine>Scale") is Scale
            assert keras.config.dtype_policy().name == "mixed_bfloat16", "as the script has told Keras"
            return slope, doubled, [len(jax.tree.leaves(each)) for each in (layer, pair, Deep([pair]))], pair.first()

        slope, doubled, leaves, name = train(Layer(4.0), Pair([1, 2]), Hidden([1]))
        assert (type(slope), type(doubled)) == (Layer, Pair)
        print(json.dumps([float(slope.weight), float(slope.bias), doubled, leaves, name]))
        """,
    )

    done = project.run("script.py")

    assert last(done.stdout) == [3.0, 1.0, [2, 4], [2, 2, 2], "set afterwards"], done.stderr
    assert re.findall(r"kinetic: (.*) is a pytree of JAX here and not in the job", done.stderr) == [
        "inner.<locals>.Hidden"
    ]


@pytest.mark.skipif(find_spec("keras") is None, reason="real Keras is needed, and it is not installed here")
def test_a_keras_model_travels_with_the_layers_and_functions_that_a_script_has_defined_for_it(project) -> None:
    out = project.out(
        """
        import os
        os.environ["KERAS_BACKEND"] = "jax"
        import keras
        import kinetic

        class Scale(keras.layers.Layer):
            def call(self, x):
                return 2 * x

        @keras.saving.register_keras_serializable("mine")
        class Shift(Scale): pass

        @keras.saving.register_keras_serializable("mine")
        def double(x):
            return 2 * x

        @kinetic.run(accelerator="cpu")
        def look(model):  # names none of them
            return model, [type(each).__name__ for each in model.layers]

        if __name__ == "__main__":
            last = keras.layers.Dense(1, activation=double)
            model, names = look(keras.Sequential([keras.layers.Input((1,)), Scale(), Shift(), last]))
            own = [type(model.layers[0]) is Scale, type(model.layers[1]) is Shift, model.layers[2].activation is double]
            print(names, own)
        """
    )

    assert out == "['Scale', 'Shift', 'Dense'] [True, True, True]\n"


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_jax_arrays_of_64_bits_keep_their_numbers_where_jax_computes_with_32(project) -> None:
    out = project.out(
        """
        import json
        import jax
        import jax.numpy as jnp
        import kinetic

        @kinetic.run(accelerator="cpu")
        def wide():
            jax.config.update("jax_enable_x64", True)
            return {"count": jnp.array(2**40), "third": jnp.float64(1) / 3}

        @kinetic.run(accelerator="cpu")
        def received(values):
            return {name: [str(value.dtype), value.item()] for name, value in values.items()}

        print(json.dumps(received(wide())))
        """
    )

    assert last(out) == {"count": ["int64", 2**40], "third": ["float64", 1 / 3]}


@pytest.mark.skipif(find_spec("torch") is None, reason="real PyTorch is needed, and it is not installed here")
def test_torch_tensors_of_any_type_travel_both_ways(project) -> None:
    out = project.out(
        """
        import json
        import torch
        import kinetic

        @kinetic.run(accelerator="cpu")
        def doubled(weights, tokens):
            return (weights.float() * 2).to(weights.dtype), tokens.long().mul(2).to(tokens.dtype)

        weights, tokens = doubled(torch.ones(2).to(torch.float8_e4m3fn), torch.arange(3).to(torch.uint16))
        print(json.dumps([str(weights.dtype), weights.float().tolist(), str(tokens.dtype), tokens.tolist()]))
        """,
        timeout=180,
    )

    assert last(out) == ["torch.float8_e4m3fn", [2, 2], "torch.uint16", [0, 2, 4]]


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_what_a_script_told_libraries_about_their_numbers_holds_in_the_job(project) -> None:
    project.write(
        "torch.py",  # as far as its settings are concerned
        """
        import sys, types

        class Module(types.ModuleType):
            benchmark = deterministic = False

        backends = types.ModuleType("torch.backends")
        backends.cudnn = sys.modules["torch.backends.cudnn"] = Module("torch.backends.cudnn")
        strict = [False]
        use_deterministic_algorithms = strict.append
        are_deterministic_algorithms_enabled = lambda: strict[-1]
        float32, float64 = "torch.float32", "torch.float64"
        kept = [float32]
        set_default_dtype = kept.append
        get_float32_matmul_precision = lambda: "highest"
        def get_default_dtype():
            return kept[-1]
        """,
    )
    project.write(
        "hydra.py",  # as far as what ``hydra.main`` does when it decorates is concerned
        """
        import types

        class version:
            kept = ["1.1"]
            setbase = kept.append
            def getbase():
                return types.SimpleNamespace(public=version.kept[-1])
        """,
    )
    out = project.out(
        """
        import json
        import hydra
        import jax
        import jax.numpy as jnp
        import torch
        import kinetic

        hydra.version.setbase("1.3")
        jax.config.update("jax_enable_x64", True)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = True

        @kinetic.run(accelerator="cpu")
        def numbers(third):
            base = hydra.version.getbase().public
            torch.backends.cudnn.deterministic = True
            switches = [torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()]
            return [str(third.dtype), str(jnp.arange(2).dtype), torch.get_default_dtype(), base, *switches]

        print(json.dumps([numbers(jnp.float64(1) / 3), numbers.__wrapped__(jnp.float64(1) / 3)]))
        """
    )

    in_the_job, plain = last(out)
    assert in_the_job == plain == ["float64", "int64", "torch.float64", "1.3", True, True]


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed here: make test-torch has it")
def test_modules_of_torch_that_are_no_plain_modules_may_be_named_in_a_function(project) -> None:
    out = project.out(
        """
        import json
        import torch
        import torch.backends.cudnn as cudnn
        import kinetic

        torch.use_deterministic_algorithms(True)
        cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True

        @kinetic.run(accelerator="cpu")
        def added():
            held = [cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32]
            torch.backends.cudnn.deterministic = True
            two = torch.ops.aten.add(torch.ones(1), 1).item()
            return [*held, torch.are_deterministic_algorithms_enabled(), two, cudnn.deterministic]

        print(json.dumps(added()))
        """
    )

    assert last(out) == [True, True, True, 2.0, True]


def test_what_a_script_has_set_in_python_and_numpy_holds_in_the_job(project) -> None:
    out = project.out(
        """
        import decimal, json, sys
        import numpy as np
        import kinetic

        sys.setrecursionlimit(5000)
        decimal.getcontext().prec = 50
        np.seterr(all="raise")

        @kinetic.run(accelerator="cpu")
        def compute():
            def deep(number):
                return number and deep(number - 1)
            try:
                np.float64(1) / np.float64(0)
            except FloatingPointError:
                raised = True
            return [deep(3000), str(decimal.Decimal(1) / 3), raised]

        print(json.dumps([compute(), compute.local()]))
        """
    )

    in_the_job, plain = last(out)
    assert in_the_job == plain == [0, "0." + "3" * 50, True]


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is needed, and it is not installed here")
def test_what_a_script_told_scikit_learn_holds_in_the_job(project) -> None:
    out = project.out(
        """
        import json
        import sklearn
        import kinetic

        sklearn.set_config(transform_output="pandas", enable_metadata_routing=True)

        @kinetic.run(accelerator="cpu")
        def told():
            return sklearn.get_config()

        print(json.dumps([told(), told.local()]))
        """
    )

    in_the_job, plain = last(out)
    assert in_the_job == plain
    assert in_the_job["transform_output"] == "pandas"


@pytest.mark.skipif(find_spec("torch") is None, reason="real PyTorch is needed, and it is not installed here")
def test_gradients_that_a_script_has_switched_off_in_torch_are_off_in_the_job(project) -> None:
    out = project.out(
        """
        import json
        import torch
        import kinetic

        torch.set_grad_enabled(False)
        model = torch.nn.Linear(1, 1)

        @kinetic.run(accelerator="cpu")
        def evaluated():
            return model(torch.ones(1)).numpy().shape, torch.is_anomaly_enabled()

        shape, is_checked = evaluated()
        torch.autograd.set_detect_anomaly(True)
        print(json.dumps([shape, is_checked, evaluated()[1]]))
        """,
        timeout=180,
    )

    assert last(out) == [[1], False, True]


def test_processes_are_started_in_the_job_as_the_script_has_said_or_a_module_of_it(project) -> None:
    project.write(
        "spawned.py",
        """
        import multiprocessing

        if multiprocessing.get_start_method(allow_none=True) is None:
            multiprocessing.set_start_method("spawn")

        def which():
            return multiprocessing.get_start_method()
        """,
    )
    text = """
        import json
        import multiprocessing
        import kinetic
        {first}

        def ask(_):
            return multiprocessing.get_start_method()

        @kinetic.run(accelerator="cpu")
        def started():
            {then}
            with multiprocessing.Pool(1) as pool:
                return pool.map(ask, [1])

        if __name__ == "__main__":
            {guarded}
            print(json.dumps(started()))
        """

    by_the_script = project.out(
        text.format(first="", then="", guarded='multiprocessing.set_start_method("forkserver")')
    )
    by_a_module = project.out(text.format(first="import spawned", then="spawned.which()", guarded=""))
    by_nobody = project.out(text.format(first="", then="", guarded=""))

    assert last(by_the_script) == ["forkserver"]
    assert last(by_a_module) == ["spawn"]
    assert last(by_nobody) == [multiprocessing.get_context().get_start_method()]


def test_processes_that_a_job_spawns_import_the_script_as_the_module_that_it_is(project) -> None:
    project.write("mine/__init__.py", "")
    project.write("mine/factors.py", "FACTOR = 3")
    project.write(
        "mine/train.py",
        """
        import json
        import multiprocessing
        import kinetic
        from .factors import FACTOR  # which has no meaning in a file that is run by its path

        def scaled(x):
            return FACTOR * x

        @kinetic.run(accelerator="cpu")
        def train():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return pool.map(scaled, [1, 2])

        if __name__ == "__main__":
            print(json.dumps(train()))
        """,
    )

    done = project.execute(sys.executable, "-m", "mine.train")

    assert last(done.stdout) == [3, 6], done.stderr


def test_a_script_without_a_guard_does_not_run_again_in_the_job(project) -> None:
    out = project.out(
        """
        import kinetic
        print("once")

        @kinetic.run(accelerator="cpu")
        def train():
            return 1

        print(train())
        """
    )

    assert out.count("once") == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_of_processes_work_with_the_scripts_functions_and_classes(project, method: str) -> None:
    project.write(
        "pools.py",
        f"""
        import multiprocessing
        import pickle
        import typing
        import kinetic

        class Model:
            def __init__(self, size):
                self.size = size

        def work(model):
            return Model(model.size + 1)

        Count = typing.NewType("Count", int)

        @kinetic.run(accelerator="cpu")
        def decorated(number):
            return Count(number + 1)

        def in_pool():
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                models = pool.map(work, [Model(1), Model(2)])
                return sorted(model.size for model in models), pool.map(decorated, [3])

        @kinetic.run(accelerator="cpu")
        def train():
            assert type(pickle.loads(pickle.dumps(Model(1)))) is Model
            return in_pool()

        def submitted_by_pool():
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                return [job.result() for job in pool.map_async(decorated.run_async, [5]).get(60)]

        if __name__ == "__main__":
            print(in_pool(), train(), submitted_by_pool())
        """,
    )

    done = project.run("pools.py")

    assert done.stdout.endswith("([2, 3], [4]) ([2, 3], [4]) [6]\n"), done.stderr
    assert "sent by value" not in done.stderr  # the script is __mp_main__ in a process of the pool


def test_what_reads_from_a_process_of_the_client_sees_its_end_while_the_supervisor_waits_for_jobs(project) -> None:
    project.write(
        "jobs.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def double(number):
            return number * 2

        def in_a_process():
            print(double(21))
        """,
    )

    # Its resource tracker ends when every copy of a pipe is closed, one of which each process inherits that it makes.
    printed = project.out(
        """
        import multiprocessing
        import jobs

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=jobs.in_a_process)
            process.start()
            process.join()
        """,
        timeout=30,
    )

    assert printed.splitlines() == ["42"]


def test_a_pool_works_with_functions_of_a_module(project) -> None:
    project.write("lib.py", MODULE)

    out = project.out(
        """
        import concurrent.futures
        import multiprocessing
        import kinetic
        from lib import helper

        @kinetic.run(accelerator="cpu")
        def train():
            spawn = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
                return list(pool.map(helper, [1, 2]))

        if __name__ == "__main__":
            print(train())
        """
    )

    assert out.endswith("[2, 3]\n")


def test_code_without_any_file_runs(project) -> None:
    done = project.run("-c", "import kinetic; print(kinetic.run(accelerator='cpu')(lambda n: n + 1)(1))")

    assert done.stdout.endswith("2\n"), done.stderr


# ------------------------------------------------------------------------------------------------- jobs inside a job


def test_inside_a_job_a_call_runs_in_its_process_and_a_submission_is_a_job_of_its_own(project) -> None:
    project.write("lib.py", MODULE)

    out = project.out(
        """
        import json, os
        import kinetic
        import lib

        @kinetic.run(accelerator="cpu")
        def process():
            return os.getpid()

        @kinetic.run(accelerator="cpu")
        def train():
            jobs = [lib.train.run_async(1), lib.Model(3).fit.run_async(2), process.run_async()]
            first, second, number = (job.result() for job in jobs)
            submitted = [first, second, number != os.getpid()]
            values = [lib.train(1), lib.train(2), lib.Model(3).fit(2), type(lib.Sub.build(1)).__name__]
            return [*values, process() == os.getpid(), submitted]

        if __name__ == "__main__":
            job = train.run_async()
            found = job.result(cleanup=False)
            found.append(job.logs().count("kinetic: train() was called inside a job and runs in this process"))
            print(json.dumps(found))
        """
    )

    assert last(out) == [2, 3, 6, "Sub", True, [2, 6, True], 1]


# ------------------------------------------------------------------------------------------------- the world of a job


WORLD = """
import json, os, sys
import kinetic

@kinetic.run(accelerator="cpu", capture_env_vars=["MY_*"])
def world():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "file": getattr(main, "__file__", None),
        "cwd": os.getcwd(),
        "path": sys.path[:4],
        "environ": {k: v for k, v in os.environ.items() if k.startswith(("KINETIC_", "MY_", "THEIRS"))},
        "output_is_there": os.path.isdir(os.environ["KINETIC_OUTPUT_DIR"]),
        "stdin": sys.stdin.read(),
        "umask": os.umask(0o077),
        "beside": open("beside.txt").read(),
    }

if __name__ == "__main__":
    os.umask(0o027)
    job = world.run_async()
    found = job.result(cleanup=False)
    print(json.dumps([job.job_id, job.output_dir, found]))
"""


@pytest.fixture
def world(project, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, dict]:
    """Look around in a job of a script in a folder of the project."""
    project.write("pyproject.toml", "[project]\nname = 'x'\n")
    project.write("jobs/beside.txt", "beside")
    project.write("jobs/look.py", WORLD)
    monkeypatch.setenv("MY_SECRET_TOKEN", "s3cr3t-c0ffee-1234567890")
    monkeypatch.setenv("THEIRS", "not asked for")
    done = project.run("jobs/look.py", "--rate", "3", cwd=project.root / "jobs")
    assert done.returncode == 0, done.stderr
    return last(done.stdout)


def test_a_job_knows_who_and_where_it_is(world) -> None:
    job_id, output_dir, found = world

    ours = {name: value for name, value in found["environ"].items() if name.startswith("KINETIC_")}
    assert ours["KINETIC_JOB_ID"] == job_id
    assert ours["KINETIC_ATTEMPT"] == "0"
    assert ours["KINETIC_HOST_INDEX"] == "0"
    assert ours["KINETIC_HOST_COUNT"] == "1"
    assert ours["KINETIC_OUTPUT_DIR"] == output_dir
    assert found["output_is_there"]
    assert not Path(output_dir).exists()  # it left nothing there, so the empty folder is gone


def test_log_records_are_shown_in_the_job_as_the_script_shows_them_and_once(project) -> None:
    project.write(
        "theirs.py",
        """
        import logging, sys, kinetic
        logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))

        @kinetic.run(accelerator="cpu")
        def work():
            logging.warning("of a module")
        """,
    )
    script = """
    import logging, kinetic
    log = logging.getLogger("mine")

    @kinetic.run(accelerator="cpu")
    def work(number):
        log.info("heard %d", number)
        log.debug("not shown")

    def logs(job):
        job.wait()
        return job.logs()

    print([logs(work.run_async(1))])
    logging.basicConfig(level=logging.INFO, format="{levelname}|{message}", style="{")
    print([logs(work.run_async(2)), *map(logs, work.run_async_map([3]).as_completed())])
    import theirs
    print([logs(theirs.work.run_async())])
    """

    assert project.out(script).splitlines() == ["['']", str(["INFO|heard 2\n", "INFO|heard 3\n"]), "['of a module\\n']"]


def test_records_of_the_scripts_own_loggers_are_shown_in_the_job_and_once(project) -> None:
    project.write(
        "theirs.py",
        """
        import logging, sys
        log = logging.getLogger("theirs")
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler(sys.stdout))
        """,
    )
    script = """
    import json, logging, sys
    import kinetic, theirs

    def begin(name, *files):
        log = logging.getLogger(name)
        if not log.handlers:
            log.setLevel(logging.DEBUG)
            log.propagate = False
            for handler in (logging.StreamHandler(), *map(logging.FileHandler, files)):
                handler.setFormatter(logging.Formatter(f"{name} %(message)s"))
                log.addHandler(handler)
        return log

    log, guarded = begin(__name__), begin("guarded", "train.log")
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("library").setLevel(logging.ERROR)

    @kinetic.run(accelerator="cpu")
    def train():
        log.debug("shown")
        begin("guarded", "train.log").info("in both")
        logging.getLogger("library").warning("silenced")
        logging.getLogger("other").debug("not shown")
        from theirs import log as later
        later.info("a module's")
        return open("train.log").read()

    job = train.run_async()
    print(json.dumps([job.result(cleanup=False), job.logs()]))
    """

    written, shown = last(project.out(script))

    assert written == "guarded in both\n"
    assert shown.splitlines()[:4] == ["__main__ shown", "guarded in both", "a module's", "INFO:theirs:a module's"]


def test_a_job_starts_where_the_script_was_started_in_a_copy_of_the_project(world, project, home: Path) -> None:
    _, _, found = world

    workspace = Path(found["cwd"]).parent
    assert found["cwd"].endswith("/jobs")
    assert workspace.is_relative_to(home)
    assert found["file"] == str(workspace / "jobs" / "look.py")
    assert found["argv"] == [found["file"], "--rate", "3"]
    assert found["path"][0] == str(workspace / "jobs")
    assert found["beside"] == "beside"
    assert found["umask"] == 0o027
    assert found["stdin"] == ""
    assert not [entry for entry in found["path"] if entry.startswith(str(project.root))]


def test_in_a_script_file_is_the_jobs_copy_also_for_jobs_that_it_submits(project, home: Path) -> None:
    project.write("beside.txt", "beside")
    out = project.out(
        """
        import json, pathlib
        import kinetic

        @kinetic.run(accelerator="cpu")
        def look(times, key=lambda: __file__):
            here = pathlib.Path(__file__)
            assert key() == __file__
            found = [str(here), here.with_name("beside.txt").read_text()]
            return [found, *look.run_async(times - 1).result()] if times > 1 else [found]

        print(json.dumps(look(2)))
        """
    )

    first, second = last(out)
    assert Path(first[0]).is_relative_to(home)
    assert Path(second[0]).is_relative_to(home)
    assert first[0] != second[0]
    assert first[1] == second[1] == "beside"


@pytest.mark.parametrize("instead", ["Tee(sys.stdout)", "None"])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_script_may_replace_its_streams_by_whatever_print_can_use(name: str, instead: str, project) -> None:
    out = project.out(
        f"""
        import pathlib, sys
        import kinetic

        class Tee:
            def __init__(self, stream):
                self.stream = stream

            def write(self, text):
                self.stream.write(text)

        @kinetic.run(accelerator="cpu")
        def train(number):
            print("training", number)
            return number

        kept = sys.{name}
        sys.{name} = {instead}
        found = [train(1), *train.run_async_map([2]).results()]
        sys.{name} = kept
        print(found)
        """
    )

    is_shown = (name, instead) != ("stdout", "None")
    assert ("training 1" in out) == is_shown
    assert out.endswith("[1, 2]\n")


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\xfcber \\u2603\n"), ("latin-1", "\xfcber \\u2603\n")])
def test_what_a_job_prints_is_shown_in_any_locale_and_its_value_arrives(
    project, monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str
) -> None:
    project.write(
        "script.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            print("über \N{SNOWMAN}")
            return 7

        print(train())
        """,
    )
    monkeypatch.setenv("PYTHONIOENCODING", encoding)

    done = subprocess.run([sys.executable, "script.py"], cwd=project.root, capture_output=True, check=False, timeout=60)

    assert (done.returncode, done.stdout.decode(encoding)) == (0, f"{shown}7\n"), done.stderr


def test_a_value_arrives_where_its_jobs_log_cannot_be_written(project) -> None:
    project.write(
        "full.py",
        """
        import os, sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train(number):
            print("training", number)
            return number

        kept = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        first = train(1)
        sys.stdout = open(os.devnull, "w")
        sys.stdout.close()
        os.write(kept, f"{first} {train(2)}".encode())
        """,
    )

    done = project.run("full.py")

    assert done.stdout == "1 2", done.stderr
    assert "is not shown any more: standard output cannot be written to\nwhy:   [Errno 9]" in done.stderr
    assert "why:   I/O operation on closed file" in done.stderr
    assert done.stderr.count("next:  kinetic jobs logs cpu-train-") == 2


def test_a_current_directory_that_was_removed_is_named(project) -> None:
    project.write(
        "script.py", "import kinetic\n\n@kinetic.run()\ndef train(): pass\n\nif __name__ == '__main__': train()\n"
    )
    script = project.root / "script.py"

    def run(*words: str) -> subprocess.CompletedProcess:
        command = shlex.join([sys.executable, *words])
        return project.execute("sh", "-c", f"mkdir -p gone; cd gone; rmdir ../gone; {command}")

    for done in (run(str(script)), run("-m", "kinetic", "run", f"{script}::train"), run("-m", "kinetic", "config")):
        assert "the current directory does not exist [project-root]\n" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.returncode == 1


def test_a_folder_whose_name_is_not_utf8_is_named_with_what_to_do(project, home: Path, monkeypatch) -> None:
    project.write("script.py", "import kinetic\n\n@kinetic.run()\ndef train(): pass\n\ntrain()\n")
    odd = os.fsdecode(os.fsencode(project.root) + b"/odd\xff")
    shutil.copytree(project.root, odd, ignore=lambda *_: ["odd\udcff"])
    project.write("ünï/script.py", (project.root / "script.py").read_text())

    told = [project.execute(sys.executable, f"{odd}/script.py").stderr]
    monkeypatch.setenv("KINETIC_HOME", f"{odd}/home")
    told.append(project.run("script.py").stderr)
    monkeypatch.setenv("KINETIC_HOME", str(home))
    for name, value in {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}.items():
        monkeypatch.setenv(name, value)
    told.append(project.run("ünï/script.py").stderr)

    assert "ProjectRootError: the project's folder cannot be used: " in told[0]
    assert "SettingsError: the kinetic home " in told[1]
    assert ["why:   its path is not valid UTF-8\n" in text for text in told] == [True, True, False]
    assert "why:   Python reads the names of files as ascii here\nnext:  export LC_ALL=C.UTF-8\n" in told[2]


def test_too_many_open_files_are_called_that_and_no_file_is_blamed(project) -> None:
    out = project.out(
        """
        import os, resource
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train(number):
            return number

        train(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        held, advice = [], set()
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for number in range(1, 30):
            try:
                train(number)
            except kinetic.errors.KineticError as error:
                advice.add(error.next)
            else:
                break
            os.close(held.pop())
        print(sorted(advice))
        """
    )

    assert out.splitlines()[-1] == "['close files that this program has open, or allow more: ulimit -n 4096']"


def test_a_job_has_the_variables_that_were_captured_and_no_others(world) -> None:
    _, _, found = world

    assert found["environ"]["MY_SECRET_TOKEN"] == "s3cr3t-c0ffee-1234567890"
    assert "THEIRS" not in found["environ"]


def test_a_captured_value_is_in_no_byte_of_the_store_and_nowhere_once_the_job_is_gone(
    project, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-c0ffee-1234567890"
    monkeypatch.setenv("MY_TOKEN", secret)
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu", capture_env_vars=["MY_TOKEN"])
        def train():
            import os
            return len(os.environ["MY_TOKEN"])

        job = train.run_async()
        print(job.result(cleanup=False))
        """
    )

    assert out.endswith(f"{len(secret)}\n")
    with_secret = [path for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert [path for path in with_secret if path.is_relative_to(home / "store")] == []
    assert all(path.stat().st_mode & 0o077 == 0 for path in with_secret)

    project.out("import kinetic; [job.cleanup() for job in kinetic.list_jobs()]")
    assert [path for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()] == []


def test_captured_variables_are_there_before_anything_is_unpickled(project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_MODE", "fast")
    project.write(
        "lib.py", "import os\nMODE = os.environ['MY_MODE']\nclass Model:\n    mode = MODE\ndef look(m): return m.mode"
    )

    out = project.out(
        """
        import kinetic
        from lib import Model, look

        print(kinetic.run(accelerator="cpu", capture_env_vars=["MY_MODE"])(look)(Model()))
        """
    )

    assert out.endswith("fast\n")


def test_the_path_keeps_the_order_that_the_client_had(project) -> None:
    project.write("first/which.py", "NAME = 'first'")
    project.write("second/which.py", "NAME = 'second'")

    out = project.out(
        """
        import json, os, sys
        here = os.path.dirname(os.path.abspath(__file__))
        sys.path[:0] = [os.path.join(here, "second"), os.path.join(here, "first")]
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            import which
            return [which.NAME, [os.path.basename(entry) for entry in sys.path[:2]]]

        print(json.dumps(train()))
        """
    )

    assert last(out) == ["second", ["second", "first"]]


def test_packages_of_a_folder_that_a_script_put_on_the_path_are_found(project, tmp_path: Path) -> None:
    for folder, name in (("lib/site-packages", "near"), ("target", "far")):  # the other as `pip install --target` does
        (tmp_path / folder / name).mkdir(parents=True)
        (tmp_path / folder / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / folder / name / "__init__.py").write_text(f"def where():\n    return {name!r}\n")

    value = project.out(
        f"""
        import sys
        sys.path += [{str(tmp_path / "lib/site-packages")!r}, {os.path.relpath(tmp_path / "target", project.root)!r}]
        import far, near
        import kinetic

        @kinetic.run(accelerator="cpu")
        def both(_=0):
            return near.where(), far.where()

        print(both(), both.run_async_map([1]).results())
        """
    )

    assert value.strip() == "('near', 'far') [('near', 'far')]"


def test_packages_in_a_folder_of_the_project_that_is_not_sent_are_found_where_they_are(project) -> None:
    project.write(".kineticignore", "vendor/\n")
    project.write("vendor/near-1.0.dist-info/METADATA", "")
    project.write("vendor/near/__init__.py", "import threading\nLOCK = threading.Lock()\nclass Item: pass\n")

    value = project.out(
        """
        import sys
        sys.path.insert(0, "vendor")
        import near
        import kinetic

        @kinetic.run(accelerator="cpu")
        def where(item):
            with near.LOCK:
                return isinstance(item, near.Item), near.__file__

        print(*where(near.Item()))
        """
    )

    assert value == f"True {project.root}/vendor/near/__init__.py\n"


@pytest.mark.parametrize("program", ["", "/usr/bin/true"])
def test_a_program_that_has_python_inside_submits_jobs_to_the_python_of_its_environment(project, program: str) -> None:
    value = project.out(
        f"""
        import sys
        sys.executable = {program!r}  # as in uWSGI
        import kinetic

        @kinetic.run(accelerator="cpu")
        def python():
            return sys.executable, sys.prefix

        print(*python())
        """
    )

    assert value == f"{sys.prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]} {sys.prefix}\n"


def test_a_python_inside_the_project_has_its_own_modules_in_jobs(
    project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = project.root / ".pixi" / "envs" / "default"  # as of `conda create -p` as well, or without a sign
    for folder in ("bin", "lib"):
        (environment / folder).mkdir(parents=True)
    library = Path(os.__file__).parent
    (environment / "lib" / library.name).symlink_to(library)
    python = shutil.copy(os.path.realpath(sys.executable), environment / "bin")
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))

    value = project.out(
        """
        import os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def paths():
            import argparse, sys
            return sys.prefix, argparse.__file__, os.listdir(".pixi/envs")

        print(*paths())
        """,
        python=str(python),
    )

    assert value == f"{environment} {environment}/lib/{library.name}/argparse.py []\n"


def test_jobs_outlive_the_environment_that_uv_run_makes_for_one_command(project, tmp_path: Path) -> None:
    def overlay(name: str) -> Path:  # as `uv run --with` makes it, over this environment
        folder = tmp_path / name
        packages = Path(sysconfig.get_path("purelib"))
        inside = folder / packages.relative_to(sys.prefix)
        inside.mkdir(parents=True)
        (inside / "_uv_ephemeral_overlay.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
        base = Path(os.path.realpath(sys.executable))
        (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\nextends-environment = {sys.prefix}\n")
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(base)
        return folder

    def submitted(folder: Path) -> str:
        return project.out(
            f"""
            import os
            import kinetic

            @kinetic.run(accelerator="cpu")
            def spawn(gone):
                import multiprocessing, sys, time
                while os.path.exists(gone):
                    time.sleep(0.01)
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    return pool.map(abs, [-3]), sys.prefix, os.environ["VIRTUAL_ENV"], os.environ["KINETIC_SUPERVISOR"]

            if __name__ == "__main__":
                os.environ["VIRTUAL_ENV"] = {str(folder)!r}
                print(spawn.run_async({str(folder)!r}).job_id)
            """,
            python=str(folder / "bin" / "python"),
        ).strip()

    found = []
    for name in ("first", "second"):
        job_id = submitted(folder := overlay(name))
        shutil.rmtree(folder)
        found.append(project.out(f"import kinetic\nprint(kinetic.attach({job_id!r}).result())"))

    (values, prefix, active, _), *_ = map(ast.literal_eval, found)
    assert found[0] == found[1]  # they share their supervisor
    assert (values, active) == ([3], prefix)


def test_kinetic_itself_can_be_imported_in_a_job(project) -> None:
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def version():
            import kinetic
            return kinetic.__version__

        assert version() == kinetic.__version__
        print("the same")
        """
    )

    assert out.endswith("the same\n")


def test_an_output_directory_of_ones_own_is_made_and_kept(project, tmp_path: Path) -> None:
    project.out(
        f"""
        import kinetic, os

        @kinetic.run(accelerator="cpu", output_dir="{tmp_path}/results/today")
        def train():
            with open(os.environ["KINETIC_OUTPUT_DIR"] + "/model.txt", "w") as file:
                file.write("weights")

        train()
        """
    )

    assert (tmp_path / "results" / "today" / "model.txt").read_text() == "weights"


# ------------------------------------------------------------------------------------------------- what cannot go


def test_a_call_that_cannot_be_pickled_leaves_no_trace(project, home: Path) -> None:
    out = project.out(
        """
        import sqlite3
        import kinetic
        DB = sqlite3.connect(":memory:")

        def helper():
            return DB

        @kinetic.run(accelerator="cpu")
        def train(*args):
            return helper()

        @kinetic.run(accelerator="cpu")
        def look(*args):
            return 1

        for attempt in (lambda: train.run_async(), lambda: look.run_async(1, 2, {"model": [DB]})):
            try:
                attempt()
            except TypeError as error:
                print(str(error).splitlines()[0])
        print(kinetic.list_jobs())
        """
    )

    assert "global 'DB' read by helper() cannot be pickled" in out
    assert "argument 2 → ['model'][0] cannot be pickled" in out
    assert out.endswith("[]\n")
    assert [path.name for path in home.glob("store/*") if path.name.startswith("cpu-")] == []
    assert [*home.glob("run/*/jobs/*")] == []


def test_locks_context_variables_and_what_else_each_process_has_of_its_own_are_made_anew_in_the_job(project) -> None:
    out = project.out(
        """
        import contextvars, json, queue, random, struct, threading
        import kinetic

        LOCK, TURN, STOP, DICE = threading.Lock(), threading.RLock(), threading.Event(), random.SystemRandom()
        STOP.set()
        LOCAL, HEADER, WAITING = threading.local(), struct.Struct("<H"), queue.Queue()
        THREAD = threading.Thread()
        LOCAL.depth = 3
        RATE = contextvars.ContextVar("RATE", default=1)
        USER = contextvars.ContextVar("USER")
        RATE.set(2)

        class Stack(threading.local):
            def __init__(self):
                self.names = []

        class Counter:
            lock = threading.Condition()

            def __init__(self):
                self.count, self._own = 0, threading.Semaphore()

            def add(self, number):
                with self.lock, self._own:
                    self.count += number
                return self

        STACK, COUNTER = Stack(), Counter()
        STACK.names.append("main")

        @kinetic.run(accelerator="cpu")
        def act():
            found = []
            other = threading.Thread(target=lambda: found.append(STACK.names))
            other.start()
            other.join()
            with LOCK, TURN:
                values = [LOCAL.depth, HEADER.size, RATE.get(), USER.get("nobody"), STOP.is_set(), STACK.names, *found]
            return [*values, 0 <= DICE.random() < 1], COUNTER.add(1)

        @kinetic.run(accelerator="cpu")
        def wait():
            return WAITING.get()

        @kinetic.run(accelerator="cpu")
        def start():
            THREAD.start()

        @kinetic.run(accelerator="cpu")
        def stopped(event):
            return event.is_set()

        values, counter = act()
        print(json.dumps([values, counter.add(1).count]))
        for function, *given in ((wait,), (start,), (stopped, STOP), (stopped, [TURN]), (stopped, COUNTER)):
            try:
                function.run_async(*given)
            except TypeError as error:
                print(str(error).splitlines()[0])
        """
    )

    said = out.splitlines()
    assert json.loads(said[-6]) == [[3, 2, 2, "nobody", True, ["main"], [], True], 2]
    assert said[-5:] == [
        "global 'WAITING' read by wait() cannot be pickled [not-picklable]",
        "global 'THREAD' read by start() cannot be pickled [not-picklable]",
        "argument 0 → ._cond._lock cannot be pickled [not-picklable]",
        "argument 0 → [0] cannot be pickled [not-picklable]",
        "argument 0 → ._own._cond._lock cannot be pickled [not-picklable]",
    ]


def test_what_decorators_and_metaclasses_make_and_cannot_be_pickled_is_made_again_in_the_job(project) -> None:
    project.write(
        "kernels.py",  # as Triton, torch.library and Numba make them
        """
        import threading

        class Kernel:
            def __init__(self, fn):
                self.fn, self.lock, self.fakes = fn, threading.Lock(), []

            def __call__(self, *args):
                return self.fn(*args)

            def register_fake(self, fn):
                self.fakes.append(fn)

        def kernel(block):
            return Kernel

        class Compiled(type):
            def __init__(kind, *args):
                kind.lock = threading.Lock()
        """,
    )

    out = project.out(
        """
        import json
        import kinetic
        from kernels import Compiled, kernel

        SCALE = 3

        @kernel(block=SCALE)
        def scaled(x):
            return helper(x)

        @scaled.register_fake
        def _(x):
            return x

        @kernel(block=1)
        def helper(x):
            return SCALE * x if x else scaled(1)

        class Touchy:
            @property
            def __class__(self):
                raise RuntimeError("not bound")

            def __getattr__(self, name):
                raise LookupError(name)

        touchy = Touchy()  # is there and does not matter

        class Particle(metaclass=Compiled):
            def __init__(self, mass):
                self.mass = mass

            def moved(self):
                return scaled(self.mass)

        @kinetic.run(accelerator="cpu")
        def train(particle):
            return scaled(0), len(scaled.fakes), particle.moved(), Particle(5).moved()

        print(json.dumps(train(Particle(2))))
        """
    )

    assert last(out) == [3, 1, 6, 15]


def test_functions_of_a_script_keep_what_decorators_of_wrapt_have_put_around_them(project) -> None:
    project.write(
        "wrappers.py",
        """
        import wrapt

        class Wrapper(wrapt.FunctionWrapper):  # as the package Deprecated makes one
            pass
        """,
    )
    out = project.out(
        """
        import kinetic, wrapt
        from wrappers import Wrapper

        def around(wrapped, _instance, args, kwargs):
            return ["around", wrapped(*args, **kwargs)]

        twice = wrapt.decorator(lambda wrapped, _instance, args, _kwargs: wrapped(*args) * 2)

        @kinetic.run(accelerator="cpu")
        @twice
        def count(n):
            return n if n < 2 else count.local(n - 1)

        @twice
        def helper(n):
            return n if n < 2 else helper(n - 1)

        class Model:
            @kinetic.run(accelerator="cpu")
            @wrapt.decorator(around)
            def fit(self, n):
                return self.plain(n), helper(n), wrapped(n)

            @twice
            def plain(self, n):
                return n

        wrapped = Wrapper(lambda n: n, around)

        assert (count(3), Model().fit(3)) == (count.local(3), Model().fit.local(3))
        print(count(3), Model().fit(3))
        """
    )

    assert out.splitlines()[-1] == "8 ['around', (6, 8, ['around', 3])]"


def test_a_struct_of_a_script_as_msgspec_makes_it_comes_back_as_itself(project) -> None:
    project.write("msgspec/__init__.py", "from msgspec._core import Struct")
    project.write(
        "msgspec/_core.py",  # as it is in 0.20: it adds slots, and takes none
        """
        class StructMeta(type):
            def __new__(kind, name, bases, body):
                if "__slots__" in body:
                    raise TypeError("Struct types cannot define __slots__")
                fields = tuple(body.get("__annotations__", ()))
                return super().__new__(kind, name, bases, {**body, "__slots__": fields})

        class Struct(metaclass=StructMeta):
            def __init__(self, *values):
                for name, value in zip(self.__slots__, values, strict=True):
                    setattr(self, name, value)

            def __reduce__(self):
                return type(self), tuple(getattr(self, name) for name in self.__slots__)
        """,
    )

    out = project.out(
        """
        from __future__ import annotations
        import kinetic, msgspec

        class Options(msgspec.Struct):
            rate: float

        class Config(msgspec.Struct):
            options: Options
            layers: list[int]

            def size(self):
                return len(self.layers)

        @kinetic.run(accelerator="cpu")
        def train(config):
            return type(config) is Config, config.size(), Config(Options(config.options.rate * 2), [])

        *found, back = train(Config(Options(0.5), [1, 2]))
        print(*found, type(back) is Config, back.options.rate)
        """
    )

    assert out == "True 2 True 1.0\n"


def test_a_class_of_a_cell_that_keeps_its_methods_as_numba_does_is_made_again_in_the_job(project) -> None:
    project.write(
        "classes.py",
        """
        import functools, threading, types

        class JitClass(type):
            def __new__(kind, name, bases, body):
                made = super().__new__(kind, name, bases, {"__module__": body["__module__"], "lock": threading.Lock()})
                methods = {name: types.SimpleNamespace(py_func=each) for name, each in body.items() if callable(each)}
                made.class_type = types.SimpleNamespace(jit_methods=methods)
                return made

            def __call__(kind, *args):
                return functools.partial(kind.class_type.jit_methods["get"].py_func, *args)
        """,
    )

    out = project.out(
        """
        import linecache
        import kinetic
        from classes import JitClass

        cell = "class Particle(metaclass=JitClass):\\n    def get(x):\\n        return 2 * x\\n"
        linecache.cache["<cell 1>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 1>")
        exec(compile(cell, "<cell 1>", "exec"), globals())

        @kinetic.run(accelerator="cpu")
        def train():
            return Particle(4)()

        print(train())
        """
    )

    assert last(out) == 8


def test_a_class_or_mark_of_a_module_is_that_one_in_the_job_whatever_it_says_of_its_name(project) -> None:
    project.write(
        "shapes.py",
        """
        import collections, enum
        import makers

        Point = collections.namedtuple("P", "x y")
        Color = enum.Enum("C", "RED BLUE")
        Box = makers.make_class()
        UNSET = object()
        Late = None
        """,
    )
    project.write("makers.py", "def make_class():\n    class Made:\n        size = 1\n    return Made\n")
    out = project.out(
        """
        import json
        import kinetic
        import makers, shapes
        from shapes import UNSET, Box, Color, Point

        shapes.Late = makers.make_class()  # the job's module has none

        @kinetic.run(accelerator="cpu")
        def same(point, color, box, late, given=UNSET):
            values = [point, color, box, Point(1, 2), Color.BLUE, Box()]
            own = [shapes.Point, shapes.Color, shapes.Box] * 2
            is_unset = given is UNSET is shapes.UNSET
            kept = [isinstance(each, kind) for each, kind in zip(values, own)]
            return kept, color is Color.RED, values, late, is_unset, UNSET

        said, is_red, values, late, is_unset, unset = same(Point(3, 4), Color.RED, Box(), shapes.Late())
        kinds = [Point, Color, Box] * 2
        back = [isinstance(each, kind) for each, kind in zip(values, kinds)]
        print(json.dumps([said, is_red, back, late.size, is_unset, unset is UNSET]))
        """
    )

    assert last(out) == [[True] * 6, True, [True] * 6, 1, True, True]


def test_what_a_process_has_one_of_is_the_jobs_own_however_a_script_has_imported_it(project, monkeypatch) -> None:
    monkeypatch.setenv("OF_THE_CLIENT", "secret")
    out = project.out(
        """
        import json
        import jax, numpy.random
        import kinetic
        from jax import config
        from os import environ
        from random import random, randint
        from numpy.random import rand

        @kinetic.run(accelerator="cpu")
        def draw(number):
            import os
            environ["SET_BY_THE_JOB"] = "1"
            return environ is os.environ and os.environ["SET_BY_THE_JOB"], "OF_THE_CLIENT" in environ, random(), rand()

        @kinetic.run(accelerator="cpu")
        def configured():
            return config is jax.config

        both = draw.run_async_map([1, 2]).results()
        drawn = [len({each[place] for each in both}) for place in (2, 3)]
        print(json.dumps([configured(), *both[0][:2], *drawn]))
        """
    )

    assert last(out) == [True, "1", False, 2, 2]


def test_what_jax_made_of_functions_and_its_class_of_arrays_are_the_same_in_the_job(project) -> None:
    project.write("steps.py", "import jax\n@jax.jit\ndef step(x):\n    return x + 1\n")
    out = project.out(
        """
        import json
        import jax
        import jax.numpy as jnp
        import kinetic
        import steps
        from jax import Array
        from jax.nn import relu
        from steps import step

        @jax.custom_vjp
        def five(x):
            return x * 2
        five.defvjp(lambda x: (five(x), None), lambda kept, grad: (grad * 5.0,))

        @jax.jit
        def own(x):
            return step(x) * 3

        @kinetic.run(accelerator="cpu")
        def same(given):
            first = [isinstance(jnp.ones(2), Array), relu is jax.nn.relu, given is steps.step, step is steps.step]
            return first, float(own(1.0)), float(jax.grad(five)(1.0)), [relu, step, own, five]

        first, six, slope, (its_relu, its_step, its_own, its_five) = same(step)
        again = [float(its_own(1.0)), float(jax.grad(its_five)(1.0))]
        print(json.dumps([first, six, slope, its_relu is relu, its_step is step, again]))
        """
    )

    assert last(out) == [[True] * 4, 6.0, 5.0, True, True, [6.0, 5.0]]


def test_what_a_script_defines_and_cannot_be_pickled_may_be_in_a_module_as_the_error_says(project) -> None:
    defined = """
        import sqlite3

        DB = sqlite3.connect(":memory:")

        class Counter:
            db = DB

            def count(self):
                with self.db:
                    return 3
        """
    calls = """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def locked():
            with DB:
                return 4

        @kinetic.run(accelerator="cpu")
        def counted():
            return Counter().count()

        @kinetic.run(accelerator="cpu")
        def with_the(db):
            return db is DB

        for function in (locked, counted, lambda: with_the.run_async_map([DB]).results()):
            try:
                print(function())
            except (TypeError, kinetic.errors.BatchError) as error:
                print(error)
        """
    project.write("shared.py", defined)

    alone = project.out(defined + calls)
    with_a_module = project.out("        from shared import Counter, DB\n" + calls)

    nexts = [line.removeprefix("next:  ") for line in alone.splitlines() if line.startswith("next:")]
    of_a_global = "create it inside the function or in a module that the script imports, or pass what is needed of it"
    assert nexts == [of_a_global, "define Counter in a module that the script imports", of_a_global]
    assert with_a_module.split() == ["4", "3", "[True]"]


def test_what_pythonpath_names_is_the_same_module_however_a_function_comes_by_it(
    project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "library").mkdir(parents=True)
        (tmp_path / name / "library" / "shared.py").write_text(
            f"import threading\nLOCK, NAME = threading.Lock(), {name!r}\nclass Thing: pass\n"
        )
    project.write(
        "script.py",
        """
        import kinetic
        from shared import LOCK, Thing

        @kinetic.run(accelerator="cpu")
        def names():
            import shared
            assert shared.LOCK is LOCK and shared.Thing is Thing
            return shared.NAME

        print(names())
        """,
    )

    def run_in(name: str, path: str) -> tuple[str, str]:
        monkeypatch.setenv("PYTHONPATH", path)
        done = project.run("script.py", cwd=tmp_path / name)
        return done.stdout, done.stderr

    relative = [run_in(name, "library") for name in ("first", "second")]
    absolute = run_in("first", f"{tmp_path}/second/library")
    monkeypatch.setenv("PYTHONPATH", "../second/library")
    asks = ["-m", "kinetic", "run", "--", "python", "-c", "import shared; print(shared.NAME)"]
    command = project.execute(sys.executable, *asks)

    printed, said = zip(*relative, absolute, (command.stdout, command.stderr), strict=True)
    assert printed == ("first\n", "second\n", "second\n", "second\n"), said
    assert "by value" not in "".join(said)


def test_what_does_not_ship_goes_by_value_and_that_is_said_once(project, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "stranger.py").write_text("def double(n): return 2 * n\n")

    project.write(
        "script.py",
        f"""
        import sys
        sys.path.append("{tmp_path}/outside")
        import kinetic
        from stranger import double

        @kinetic.run(accelerator="cpu")
        def train(n):
            return double(n)

        print(train(1) + train(2))
        """,
    )
    done = project.run("script.py")

    assert done.stdout.endswith("6\n"), done.stderr
    assert done.stderr.count("stranger is sent by value: its file is outside the project") == 1
