"""Jobs that follow jobs: each starts when those before it have succeeded, also when this script has ended long ago.

    python examples/chained_jobs.py

A handle among the arguments is what its job returned, once the function sees it. The value goes from job to job
through the store; this script never holds it.
"""

import kinetic


@kinetic.run(accelerator="cpu")
def prepare(count):
    """Return numbers, as a real first step would clean a data set."""
    return [number * number for number in range(count)]


@kinetic.run(accelerator="cpu")
def train(numbers, rate):
    """Return what one training found."""
    return {"rate": rate, "score": sum(numbers) * rate}


@kinetic.run(accelerator="cpu")
def choose(results):
    """Return the best of all trainings."""
    return max(results, key=lambda result: result["score"])


def main():
    prepared = prepare.run_async(10)
    trainings = train.run_async_map([(prepared, rate) for rate in (0.1, 0.5, 0.2)])
    best = choose.run_async(trainings)  # the list of all their results
    checked = kinetic.run_command(["python", "-c", "print('published')"], after=best)
    print("the best:", best.result())
    print("published with", checked.result())


if __name__ == "__main__":
    main()
