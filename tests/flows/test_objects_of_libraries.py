"""What JAX, Keras and PyTorch have made of a function, a class or numbers is the same in the job."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from flows.conftest import last_json


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_what_jax_made_of_functions_its_class_of_arrays_and_its_config_are_the_same_in_the_job(project) -> None:
    project.write("steps.py", "import jax\n@jax.jit\ndef step(x):\n    return x + 1\n")
    out = project.out(
        """
        import json
        import jax
        import jax.numpy as jnp
        import kinetic
        import steps
        from jax import Array, config
        from jax.nn import relu
        from steps import step

        def loss(x):
            return x**2

        gradient = jax.jit(jax.grad(jax.checkpoint(loss)))

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
            values = [float(own(1.0)), float(jax.grad(five)(1.0)), float(gradient(3.0))]
            return [*first, config is jax.config], values, [relu, step, own, five]

        first, values, (its_relu, its_step, its_own, its_five) = same(step)
        again = [float(its_own(1.0)), float(jax.grad(its_five)(1.0))]
        print(json.dumps([first, values, its_relu is relu, its_step is step, again]))
        """
    )

    assert last_json(out) == [[True] * 5, [6.0, 5.0, 6.0], True, True, [6.0, 5.0]]


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

    assert last_json(out) == [6, 5, True]


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
            leaves = [len(jax.tree.leaves(each)) for each in (layer, pair, Deep([pair]), hidden, Hidden([3, 4, 5]))]
            return slope, doubled, leaves, pair.first()

        slope, doubled, leaves, name = train(Layer(4.0), Pair([1, 2]), Hidden([1]))
        assert (type(slope), type(doubled)) == (Layer, Pair)
        print(json.dumps([float(slope.weight), float(slope.bias), doubled, leaves, name]))
        """,
    )

    done = project.run("script.py")

    assert last_json(done.stdout) == [3.0, 1.0, [2, 4], [2, 2, 2, 1, 3], "set afterwards"], done.stderr
    assert "here and not in the job" not in done.stderr


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_classes_that_functions_make_are_pytrees_of_jax_in_the_job_and_where_it_returns_them(project) -> None:
    project.write(
        "metrics.py",
        """
        import dataclasses
        import functools
        import jax

        class Metric:
            @classmethod
            def from_output(cls, name):  # as clu.metrics makes one
                @functools.partial(jax.tree_util.register_dataclass, data_fields=["total"], meta_fields=["kind"])
                @dataclasses.dataclass
                class FromOutput(cls):
                    total: float
                    kind: str = name
                    count: int = dataclasses.field(default=0, init=False)
                return FromOutput

            @classmethod
            def with_keys(cls):
                @jax.tree_util.register_pytree_with_keys_class
                class Keyed(cls):
                    def __init__(self, one):
                        self.one = one
                    def tree_flatten_with_keys(self):
                        return [(jax.tree_util.GetAttrKey("one"), self.one)], None
                    @classmethod
                    def tree_unflatten(cls, _, children):
                        return cls(*children)
                return Keyed

        class Node:  # as flax.struct.PyTreeNode
            def __init_subclass__(cls):
                dataclasses.dataclass(cls)
                fields = [field.name for field in dataclasses.fields(cls)]
                jax.tree_util.register_dataclass(cls, fields, [])
        """,
    )
    out = project.out(
        """
        import dataclasses
        import json
        import jax
        import kinetic
        from metrics import Metric, Node

        Keyed = Metric.with_keys()

        def inner():
            class State(Node):
                step: float
            return State

        State = inner()

        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class Metrics:
            loss: Metric.from_output("loss")

        def make():
            return Metrics(Metrics.__annotations__["loss"](2.0))

        def names(tree):
            return [str(path[-1]) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]

        @kinetic.run(accelerator="cpu")
        def train(given, keyed, state):
            import metrics
            class_of_job = metrics.Metric.with_keys()
            both = jax.tree.map(lambda one, other: one + other, given, make())  # a TypeError for two classes
            state = jax.tree.map(lambda step: step + 6.0, state)
            return both, make(), keyed, class_of_job(5.0), state, names(given) + names(keyed)

        both, made, keyed, of_job, state, paths = train(make(), Keyed(3.0), State(0.0))
        is_ours = [type(each.loss) is Metrics.__annotations__["loss"] for each in (both, made)]
        print(json.dumps([jax.tree.leaves([both, made, keyed, of_job, state]), is_ours, type(keyed) is Keyed, paths]))
        """
    )

    assert last_json(out) == [[4.0, 2.0, 3.0, 5.0, 6.0], [True, True], True, [".total", ".one"]]


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_a_pytree_of_plain_values_is_opened_where_there_is_no_jax(project) -> None:
    out = project.out(
        """
        import json
        import jax
        import kinetic

        @jax.tree_util.register_pytree_node_class
        class State:
            def __init__(self, step):
                self.step = step
            def tree_flatten(self):
                return (self.step,), None
            @classmethod
            def tree_unflatten(cls, _, children):
                return cls(*children)

        @kinetic.run(accelerator="cpu")
        def train():
            return State(7)

        job = train.run_async()
        job.wait()
        print(json.dumps(job.job_id))
        """
    )

    elsewhere = project.out(
        f"""
        import json
        import sys
        sys.modules["jax"] = None
        import kinetic

        print(json.dumps(kinetic.attach({last_json(out)!r}).result().step))
        """
    )

    assert last_json(elsewhere) == 7


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

    assert last_json(out) == {"count": ["int64", 2**40], "third": ["float64", 1 / 3]}


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

    assert last_json(out) == ["torch.float8_e4m3fn", [2, 2], "torch.uint16", [0, 2, 4]]


@pytest.mark.skipif(find_spec("torch") is None, reason="real PyTorch is needed, and it is not installed here")
def test_torch_tensors_that_share_their_memory_travel_once_and_still_share_it(project, home) -> None:
    out = project.out(
        """
        import json
        import torch
        import kinetic

        @kinetic.run(accelerator="cpu")
        def filled(whole, row):
            row += 1
            words = whole.view(torch.uint16)
            return {"rows": list(whole), "words": words, "none": torch.empty(0), "half": whole[0].bfloat16()}

        job = filled.run_async(whole := torch.zeros(100, 10_000), whole[7])
        found = job.result(cleanup=False)
        rows, words = found["rows"], found["words"]
        words[8] = 0xFFFF  # a row of NaN
        shared = {each.untyped_storage().data_ptr() for each in [*rows, words]}
        rows[0].resize_(3_000_000)
        sums = [rows[7].sum().item(), rows[8].isnan().all().item(), found["half"].sum().item()]
        print(json.dumps([sums, len(shared), list(found["none"].shape)]))
        """,
        timeout=180,
    )

    assert last_json(out) == [[10_000, True, 0], 1, [0]]
    in_store = sum(each.stat().st_size for each in (home / "store").rglob("*") if each.is_file())
    assert in_store < 10_000_000  # an argument and a result of 4 MB


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

    assert last_json(out) == [True, True, True, 2.0, True]
