"""What the compile cache saves, and what it costs a job that compiles nothing.

A program of JAX is compiled by a job, and then by another one: a fresh process with an empty folder, as a fresh pod is.
"""

from __future__ import annotations

import importlib.util

from _measure import COMPILED_SIZES, COMPILES, Bench, Sandbox, alternate, show_compiled

CALLS = (
    """
import kinetic

@kinetic.run(accelerator="cpu")
"""
    + COMPILES
    + """
@kinetic.run(accelerator="cpu")
def trains(mark):
    # Fits and uses a small model once; returns how long its programs took to compile or to load, and how many.
    import jax
    import keras
    import numpy

    seconds = []

    def note(name, took, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            seconds.append(took)

    jax.monitoring.register_event_duration_secs_listener(note)
    layers = keras.layers
    images, digits = numpy.ones((512, 28, 28, 1), "float32"), numpy.arange(512) % 10
    model = keras.Sequential([
        layers.Input((28, 28, 1)), layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"), layers.Flatten(), layers.Dropout(0.3),
        layers.Dense(64 + mark, activation="relu"), layers.Dense(10),
    ])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(images, digits, batch_size=128, epochs=1, verbose=0)
    model.evaluate(images, digits, verbose=0)
    model.predict(images[:8], verbose=0)
    return sum(seconds), len(seconds)

@kinetic.run(accelerator="cpu")
def noop():
    pass

def train_once(mark):
    os.environ["KINETIC_COMPILE_CACHE"] = "on"
    return trains(mark)

def compile_once(layers, sorts, mark):
    os.environ["KINETIC_COMPILE_CACHE"] = "on"
    return compiles(layers, sorts, mark)

def call(word):
    os.environ["KINETIC_COMPILE_CACHE"] = word
    begun = time.perf_counter()
    noop()
    return (time.perf_counter() - begun) * 1e3

serve(compile_once=compile_once, train_once=train_once, call=call)
"""
)


def main() -> None:
    bench = Bench("the compile cache", runs=1, quick_runs=1, sizes=COMPILED_SIZES)
    layers, sorts = (1, 1) if bench.quick else (bench.sizes["layers"], bench.sizes["sorts"])
    with Sandbox() as sandbox, sandbox.session("compiles.py", CALLS) as session:
        calls = alternate(
            bench.runs * 40, on=lambda: float(session.ask("call", "on")), off=lambda: float(session.ask("call", "off"))
        )
        on, off = (sorted(calls[word])[:10] for word in ("on", "off"))  # the fastest: the others tell of the machine
        bench.ratio("a warm call that compiles nothing, to one without a cache", on, off, 1.05, "ms")
        if importlib.util.find_spec("jax") is None:
            bench.skip("compiling a program again, in a fresh job", "JAX is not installed")
            bench.end()
        steps, sorted_ = (
            [[session.ask("compile_once", layers, each, mark) for _ in range(2)] for mark in range(bench.runs)]
            for each in (0, sorts)
        )
        show_compiled(bench, "job", layers, steps, sorts, sorted_)
        if importlib.util.find_spec("keras") is None:
            bench.skip("compiling the programs of a Keras model again", "Keras is not installed")
            bench.end()
        (first, count), *others = [session.ask("train_once", mark) for mark in (0, 0, 0, 1, 1)]
        again = [seconds for seconds, _ in others[:2]]
        what = f"the {count} programs of a small Keras model"
        bench.ratio(f"compiling {what} again, in a fresh job", again, [first], 0.1, "s")
        bench.ratio("… after an edit that changes one of its layers", [others[2][0]], [first], 1.0, "s")
    bench.end()


if __name__ == "__main__":
    main()
