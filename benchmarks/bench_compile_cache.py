"""What the compile cache saves, and what it costs a job that compiles nothing.

A program of JAX is compiled by a job, and then by another one: a fresh process with an empty folder, as a fresh pod is.
"""

from __future__ import annotations

import importlib.util

from _measure import COMPILED_SIZES, COMPILES, Bench, Ground, alternate, show_compiled

CALLS = (
    """
import kinetic

@kinetic.run(accelerator="cpu")
"""
    + COMPILES
    + """
@kinetic.run(accelerator="cpu")
def noop():
    pass

def compile_once(layers, sorts, mark):
    os.environ["KINETIC_COMPILE_CACHE"] = "on"
    return compiles(layers, sorts, mark)

def call(word):
    os.environ["KINETIC_COMPILE_CACHE"] = word
    begun = time.perf_counter()
    noop()
    return (time.perf_counter() - begun) * 1e3

serve(compile_once=compile_once, call=call)
"""
)


def main() -> None:
    bench = Bench("the compile cache", runs=1, quick_runs=1, sizes=COMPILED_SIZES)
    layers, sorts = (1, 1) if bench.quick else (bench.sizes["layers"], bench.sizes["sorts"])
    with Ground() as ground, ground.session("compiles.py", CALLS) as session:
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
    bench.end()


if __name__ == "__main__":
    main()
