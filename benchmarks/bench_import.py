"""What starting costs: `import kinetic`, a decorator, and the two commands that people type most."""

from __future__ import annotations

import os
import sys

from _measure import Bench, Sandbox, alternate

DECORATED = """\
import kinetic

@kinetic.run(accelerator="cpu")
def train(steps):
    return steps
"""
THREE_JOBS = """
import kinetic

@kinetic.run(accelerator="cpu")
def train(steps):
    return steps

def three():
    return [train.submit(number).wait().value for number in range(3)]

serve(three=three)
"""


def main() -> None:
    bench = Bench("starting", runs=21, quick_runs=7)
    with Sandbox() as sandbox:
        with sandbox.session("three.py", THREE_JOBS) as session:
            session.ask("three")  # something to list
        sandbox.quiet()
        sandbox.end_supervisors()
        decorated = str(sandbox.script("decorated.py", DECORATED))
        python, command = sandbox.milliseconds_of_python, _command()
        measured = alternate(
            bench.runs,
            bare=lambda: python("-c", "pass"),
            imported=lambda: python("-c", "import kinetic"),
            decorated=lambda: python(decorated),
        )
        bench.beyond("import kinetic, vs a bare interpreter", measured["imported"], measured["bare"], 10, "ms")
        bench.beyond("… and a decorator applied", measured["decorated"], measured["bare"], 40, "ms")
        for words in (["--help"], ["jobs", "list"], ["jobs", "list", "--all"]):
            name = f"kinetic {' '.join(words)}, vs python -c 'import click'"
            try:
                sandbox.seconds_of(*command, *words)
            except RuntimeError as error:
                bench.skip(name, str(error).strip().splitlines()[-1])
                continue
            measured = alternate(
                bench.runs,
                command=lambda words=words: sandbox.seconds_of(*command, *words) * 1e3,
                click=lambda: python("-c", "import click"),
            )
            bench.ratio(name, measured["command"], measured["click"], 2.5, "ms")
    bench.end()


def _command() -> list[str]:
    """Return the installed console script, or what does the same where kinetic runs from its sources."""
    beside = os.path.join(os.path.dirname(sys.executable), "kinetic")
    return [beside] if os.path.exists(beside) else [sys.executable, "-m", "kinetic"]


if __name__ == "__main__":
    main()
