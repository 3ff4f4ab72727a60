"""What the compile cache saves, and what it costs a job that compiles nothing.

A program of JAX is compiled by a job, and then by another one: a fresh process with an empty folder, as a fresh pod is.
"""

from __future__ import annotations

import importlib.util

from _measure import COMPILES, Bench, Ground, alternate

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

def compile_once(rounds, mark):
    os.environ["KINETIC_COMPILE_CACHE"] = "on"
    return compiles(rounds, mark)

def call(word):
    os.environ["KINETIC_COMPILE_CACHE"] = word
    begun = time.perf_counter()
    noop()
    return (time.perf_counter() - begun) * 1e3

serve(compile_once=compile_once, call=call)
"""
)


def main() -> None:
    bench = Bench("the compile cache", runs=1, quick_runs=1, sizes={"rounds": (350, "steps of the program")})
    rounds = 10 if bench.quick else bench.sizes["rounds"]
    with Ground() as ground, ground.session("compiles.py", CALLS) as session:
        calls = alternate(
            bench.runs * 40, on=lambda: float(session.ask("call", "on")), off=lambda: float(session.ask("call", "off"))
        )
        on, off = (sorted(calls[word])[:10] for word in ("on", "off"))  # the fastest: the others tell of the machine
        bench.ratio("a warm call that compiles nothing, to one without a cache", on, off, 1.05, "ms")
        name = f"compiling a program of {rounds} steps again, in a fresh job"
        if importlib.util.find_spec("jax") is None:
            bench.skip(name, "JAX is not installed")
            bench.end()
        first, again = [], []
        for mark in range(bench.runs):
            first.append(float(session.ask("compile_once", rounds, mark)))
            again.append(float(session.ask("compile_once", rounds, mark)))
        bench.ratio(name, again, first, None if bench.quick else 0.1, "s")
    bench.end()


if __name__ == "__main__":
    main()
