"""What a look at many jobs costs: lists, one job, its log, the disk; beside an import, and the same with one job."""

from __future__ import annotations

import sys

from _measure import NOOP, Bench, Sandbox, alternate

KEPT = (
    NOOP
    + """
def keep(count):
    jobs = [noop.run_async(number) for number in range(count)]
    for job in jobs:
        job.wait()
    return count

def remember(count):
    # The history of one collected job, under so many other ids.
    from kinetic._config import home, target
    from kinetic._jobs import locate
    from kinetic._stores import open_store
    from kinetic._wire import documents, keys

    os.fsync = lambda descriptor: None
    place = target.ensure_home(os.environ)
    _, key = home.own_key(place)
    job = noop.run_async()
    job.result()
    store = open_store(job.store)
    page = locate.read_page(store, job.job_id)
    for number in range(count):
        job_id = keys.new_job_id("cpu", "noop")
        locate.write_page(store, {**page, "job_id": job_id}, documents.job_key(key, job_id, store.url))
    return count

serve(keep=keep, remember=remember)
"""
)
# What they are, and the most that they may be of `import click`; "all" is asked where there is a long history.
COMMANDS = {
    "kinetic jobs list": (["jobs", "list"], 2),
    "kinetic jobs status @last": (["jobs", "status", "@last"], 2),
    "kinetic jobs logs @last --tail 9": (["jobs", "logs", "@last", "--tail", "9"], 2),
    "kinetic disk": (["disk"], 3),
    "kinetic jobs list --all": (["jobs", "list", "--all"], 3),
}


def main() -> None:
    bench = Bench("looking at many jobs", runs=5, quick_runs=3)
    count, past = (100, 1000) if bench.quick else (1000, 10_000)
    with Sandbox() as few, Sandbox() as many, Sandbox() as old:
        for sandbox, number, ended in ((few, 1, 1), (many, count, 1), (old, count, past)):
            with sandbox.session("kept.py", KEPT) as session:
                session.ask("keep", number)
                session.ask("remember", ended)
            sandbox.end_supervisors()
            sandbox.milliseconds_of_python("-m", "kinetic", "jobs", "list", "--all")  # which makes the index

        for name, (words, most) in COMMANDS.items():
            looked_at = old if "--all" in words else many

            def run(sandbox: Sandbox, words: list[str] = words) -> float:
                return sandbox.milliseconds_of_python("-m", "kinetic", *words)

            measured = alternate(
                bench.runs,
                many=lambda run=run, sandbox=looked_at: run(sandbox),
                few=lambda run=run: run(few),
                click=lambda: few.milliseconds_of_python("-c", "import click"),
            )
            jobs = f"{count} jobs" + (f", {past} collected" if looked_at is old else "")
            bench.ratio(f"{name}, {jobs}; vs import click", measured["many"], measured["click"], most, "ms")
            bench.show("… vs 1 job", measured["many"], "ms", measured["few"])
    bench.end()


if __name__ == "__main__":
    sys.exit(main())
