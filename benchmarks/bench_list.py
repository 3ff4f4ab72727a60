"""What looking at many kept jobs costs: a list, the newest job and the disk, beside the same with one job."""

from __future__ import annotations

import sys

from _measure import NOOP, Bench, Ground, alternate

KEPT = (
    NOOP
    + """
def keep(count):
    jobs = [noop.run_async(number) for number in range(count)]
    for job in jobs:
        job.wait()
    return count

serve(keep=keep)
"""
)
COMMANDS = {
    "kinetic jobs list": ["jobs", "list"],
    "kinetic jobs status @last": ["jobs", "status", "@last"],
    "kinetic disk": ["disk"],
}


def main() -> None:
    bench = Bench("looking at kept jobs", runs=7, quick_runs=3)
    count = 100 if bench.quick else 1000
    with Ground() as few, Ground() as many:
        for ground, number in ((few, 1), (many, count)):
            with ground.session("kept.py", KEPT) as session:
                session.ask("keep", number)
            ground.end_supervisors()
            ground.milliseconds_of_python("-m", "kinetic", "jobs", "list")  # which makes the index

        for name, words in COMMANDS.items():

            def run(ground: Ground, words: list[str] = words) -> float:
                return ground.milliseconds_of_python("-m", "kinetic", *words)

            measured = alternate(
                bench.runs,
                many=lambda run=run: run(many),
                few=lambda run=run: run(few),
                click=lambda: few.milliseconds_of_python("-c", "import click"),
            )
            bench.ratio(f"{name}, {count} jobs; vs 1 job", measured["many"], measured["few"], 2.5, "ms")
            further = [(one - other) / count for one, other in zip(measured["many"], measured["few"], strict=True)]
            bench.limit("… each further job", further, 0.05, "ms")
            bench.ratio(f"{name}, 1 job; vs import click", measured["few"], measured["click"], 3, "ms")
    bench.end()


if __name__ == "__main__":
    sys.exit(main())
